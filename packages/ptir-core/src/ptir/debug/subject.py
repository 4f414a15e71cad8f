"""What is compared: a program, its inputs, and how it runs on two backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from ptir.backend.checked import downloaded
from ptir.backend.contract import Target
from ptir.capture.plan import Parameter, Plan, plan_for
from ptir.errors import UsageError
from ptir.ir.program import Port, Program
from ptir.ops.overriding import in_force
from ptir.ops.policies import Overrides
from ptir.runtime.recorded import recorded_images, recorded_step, recorded_texts
from ptir.runtime.session import capacity_for
from ptir.types import TensorType, dtype_of

if TYPE_CHECKING:
    from ptir.capture.build import Captured
    from ptir.runtime.handle import Model
    from ptir.runtime.image_model import ImageModel
    from ptir.runtime.speech import SpeechModel
    from ptir.runtime.text_model import TextModel

Array = np.ndarray[Any, Any]
Arrays = Mapping[int, Array]
Step = Literal["prefill", "decode"]
STEPS: Final[tuple[Step, ...]] = ("prefill", "decode")


@dataclass
class Runner:
    """Programs on one target, with the parameters that their ports name; ``runs`` counts them."""

    target: Target
    parameters: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter])
    policies: Overrides = ()
    runs: int = 0

    def plan(self, program: Program) -> Plan:
        """The compiled program, under the policies of the model that it comes from."""
        with in_force(self.policies):
            return plan_for(program, self.target)

    def run(self, program: Program, inputs: Sequence[Array]) -> list[Array]:
        """The outputs on arrays for the ports that are no parameters, in order."""
        backend, device = self.target.backend, self.target.device
        plan = self.plan(program)
        named = [port.name for port in program.ports if port.kind == "parameter"]
        bound = plan.bind({name: self.parameters[name] for name in named})
        handles = [backend.upload(array, device) for array in inputs]
        self.runs += 1
        outputs = zip(plan.run(handles, bound), program.outputs, strict=True)
        return [downloaded(backend, handle, device, type) for handle, type in outputs]

    def parameter(self, name: str) -> Array:
        """The array that a parameter port stands for, as programs read it."""
        parameter = self.parameters[name]
        handle = parameter.store.handle(parameter.name)
        backend, device = self.target.backend, self.target.device
        array: Array = downloaded(backend, handle, device, parameter.store.type(parameter.name))
        return array


@dataclass(frozen=True)
class Subject:
    """A program and its inputs, the backend that is tested and the one that is believed."""

    name: str
    program: Program
    inputs: Mapping[str, Array]
    tested: Runner
    reference: Runner

    def given(self, values: Sequence[int]) -> dict[int, Array]:
        """The arrays of those of ``values`` that are inputs of the program."""
        ports = self.program.ports
        known = (v for v in values if v < len(ports) and ports[v].kind == "input")
        return {value: self.inputs[ports[value].name] for value in known}


def subject_of_program(
    name: str, program: Program, inputs: Mapping[str, Array], tested: Target, reference: Target
) -> Subject:
    """A program by itself: all its ports, parameters too, are given in ``inputs`` by name.

    Raises ``UsageError`` where an array is missing or has another type than its port.
    """
    arrays: dict[str, Array] = {}
    for port, type in zip(program.ports, program.inputs, strict=True):
        if port.name not in inputs:
            given = ", ".join(inputs) or "nothing"
            raise UsageError(f"no array for port {port.name!r} ({type}); given: {given} (--input)")
        array = arrays[port.name] = inputs[port.name]
        found = TensorType(dtype_of(array), tuple(array.shape))
        if found != type:
            raise UsageError(f"port {port.name!r} takes {type}, given {found}")
    return Subject(name, by_itself(program), arrays, Runner(tested), Runner(reference))


def by_itself(program: Program) -> Program:
    """The same program with parameters as inputs."""
    return Program(program.main, tuple(Port(port.name) for port in program.ports), program.version)


def subject_of_model(tested: Model, reference: Model, tokens: Sequence[int], step: Step) -> Subject:
    """A step of a model that was loaded on two targets: the prompt ``tokens``, or what follows it.

    The state that decoding continues, and the token, are what the reference computes of the
    prompt. Raises ``UsageError`` for a prompt that does not fit, and where the two targets would
    run other programs (``--dtype`` makes them alike).
    """
    length = len(tokens)
    if not 0 < length < reference.context:
        raise UsageError(
            f"{length} tokens: give one at least and fewer than the context of {reference.context}"
        )
    capacity = capacity_for(length + 1, reference.context)

    def step_of(length: int) -> _Recorded:
        return _Recorded.of(tested, reference, lambda m: recorded_step(m, 1, length, capacity))

    prefill = step_of(length)
    row = np.array([0], np.int32)
    inputs = prefill.inputs(np.array([tokens], np.int32), row, np.array([length], np.int32))
    inputs |= {
        name: np.zeros(type.shape, type.dtype.numpy) for name, type in prefill.types(len(inputs))
    }
    if step == "prefill":
        return prefill.subject(reference.name, inputs)
    logits, *state = prefill.runners()[1].run(prefill.program, [*inputs.values()])
    decode = step_of(1)
    token = logits.reshape(-1, logits.shape[-1])[-1:].argmax(-1).astype(np.int32)
    inputs = decode.inputs(token[None], row + length, np.array([1], np.int32))
    names = (name for name, _ in decode.types(len(inputs)))
    return decode.subject(reference.name, inputs | dict(zip(names, state, strict=True)))


def subject_of_images(tested: ImageModel, reference: ImageModel, pixels: Array) -> Subject:
    """A run over prepared images f32[N,H,W,3] of a model that was loaded on two targets."""
    batch, height, width, _ = pixels.shape
    made = _Recorded.of(tested, reference, lambda m: recorded_images(m, batch, (height, width)))
    return made.subject(reference.name, made.inputs(pixels))


def subject_of_texts(tested: TextModel, reference: TextModel, tokens: Array) -> Subject:
    """A run of an encoder over texts of token ids i32[B,T], on two targets."""
    batch, length = tokens.shape
    made = _Recorded.of(tested, reference, lambda m: recorded_texts(m, batch, length))
    count = np.full(batch, length, np.int32)
    return made.subject(reference.name, made.inputs(tokens, np.zeros_like(tokens), count))


def subject_of_speech(
    tested: SpeechModel, reference: SpeechModel, tokens: Array, features: Array
) -> Subject:
    """All logits of tokens i32[B,T] that are heard in windows f32[B,F,M], on two targets."""
    from ptir.runtime.speech.recorded import recorded_logits

    batch, length = tokens.shape
    made = _Recorded.of(tested, reference, lambda m: recorded_logits(m, batch, length))
    return made.subject(reference.name, made.inputs(tokens, features))


@dataclass(frozen=True)
class _Recorded:
    """A step or run as both models record it, and the parameters of each."""

    program: Program
    models: tuple[Model, Model]
    parameters: tuple[Mapping[str, Parameter], Mapping[str, Parameter]]

    @classmethod
    def of(cls, tested: Model, reference: Model, recorded: Callable[[Any], Captured]) -> _Recorded:
        with reference.policies():
            one, other = recorded(tested), recorded(reference)
        if one.program != other.program:
            raise UsageError(
                f"{tested.target} and {reference.target} run other programs for {tested.name!r}:"
                " they hold its weights in other types; say one for both (--dtype f32)"
            )
        return cls(one.program, (tested, reference), (one.parameters, other.parameters))

    def inputs(self, *arrays: Array) -> dict[str, Array]:
        """Tokens, first position and count by port; or pixels."""
        return dict(zip((port.name for port in self.program.ports), arrays, strict=False))

    def types(self, first: int) -> list[tuple[str, TensorType]]:
        """Names and types of the inputs behind the first ones: the state."""
        typed = zip(self.program.ports, self.program.inputs, strict=True)
        every = [(port.name, type) for port, type in typed if port.kind == "input"]
        return every[first:]

    def runners(self) -> tuple[Runner, Runner]:
        """How it runs on the tested target, and on the reference."""
        made = zip(self.models, self.parameters, strict=True)
        one, other = (Runner(m.target, given, m.overrides) for m, given in made)
        return one, other

    def subject(self, name: str, inputs: Mapping[str, Array]) -> Subject:
        return Subject(name, self.program, inputs, *self.runners())
