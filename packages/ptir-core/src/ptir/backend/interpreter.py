"""Level 1 of the contract: a backend that runs one instruction at a time.

The backend writes ``upload``, ``download`` and ``step``. Core owns the order, liveness
(an intermediate is dropped after its last reader), control flow, constants, donation and aliasing.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ptir.backend.checked import downloaded, stepped
from ptir.backend.contract import (
    Backend,
    Device,
    Executable,
    Handle,
    OpQuery,
    Options,
    Queue,
)
from ptir.backend.control import CONTROL, bind_control, helper_steps
from ptir.backend.entries import OFFICIAL
from ptir.backend.explanation import (
    UPDATES,
    Access,
    Explanation,
    Part,
    read_sizes,
    written_bytes,
)
from ptir.backend.lifetimes import Storage
from ptir.errors import UnsupportedError
from ptir.ir.attributes import Attributes
from ptir.ir.location import Location, note_place
from ptir.ir.program import Block, Instruction, Program
from ptir.ops.profiles import profiles_of_dtypes
from ptir.ops.record import OPS, is_own
from ptir.ops.verify import verify
from ptir.types import TensorType

StepFunction = Callable[..., Any]


class Interpreter(Backend):
    """Base of level 1 backends."""

    stages = True
    ops: Collection[str] | None = None
    """The ops that ``step`` runs, on the element types of the claimed profiles; None: all on all.

    Core runs constants and control flow by itself, on the same element types.
    """

    def devices(self) -> Sequence[Device]:
        """By default one device, called after the backend, that ranks with the reference."""
        return (Device(0, self.name, "reference"),)

    @abstractmethod
    def step(
        self, instruction: Instruction, operands: Sequence[Handle], device: Device
    ) -> tuple[Handle, ...]:
        """Run one instruction on handles and return its results' handles: a tuple, always.

        Each result has exactly the dtype and the shape of ``instruction.types``. Operands stay as
        they are, since others may read them. Results are new memory; only those of ops with the
        trait ``view`` may share their first operand's. Other exceptions than those of
        ``ptir.errors`` become a ``DeviceError`` that names the op.
        """

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """By default what ``ops`` says is taken and every composite left to its lowering."""
        if query.is_composite:
            return "composites are lowered"
        if self.ops is None:
            return None
        if query.op not in (*CONTROL, "constant") and query.op not in self.ops:
            return f"{query.op} is not among the ops of the backend"
        dtypes = [type.dtype for type in (*query.operands, *query.results)]
        unclaimed = profiles_of_dtypes(dtypes) - self.claimed(device)
        return f"the profile {min(unclaimed)} is not claimed" if unclaimed else None

    def prepare(
        self, instruction: Instruction, device: Device, reusable: frozenset[int]
    ) -> StepFunction:
        """A function of the operands' handles that runs ``instruction``.

        It returns one handle, or a tuple where the op has several results. ``reusable`` are the
        operand positions whose memory no one reads afterwards: they may be overwritten. Such an
        operand may be a view that a step of the backend's own returned: of a ``broadcast_to`` many
        elements share one place, so write only to what is dense and as large as the result.
        """
        return stepped(self.name, self.step, instruction, device)

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """Check every instruction against ``refusal`` and bind it to its step function.

        A program that was not verified is, first: raises ``VerifyError``.
        """
        verify(program)
        check_supported(self, program.main, device)
        return InterpretedProgram(program, BlockRunner(self, program.main, device, options))


def query_of(block: Block, instruction: Instruction) -> OpQuery:
    """The capability question that an instruction of ``block`` asks."""
    types = tuple(block.types[v] for v in instruction.operands)
    return OpQuery(instruction.op, unmarked(instruction).attributes, types, instruction.types)


def unmarked(instruction: Instruction) -> Instruction:
    """``instruction`` without the select pass's mark, which is no attribute of the functional."""
    if "implementation" not in instruction.attributes:
        return instruction
    kept = {k: v for k, v in instruction.attributes.items() if k != "implementation"}
    return replace(instruction, attributes=Attributes(kept))


def check_supported(backend: Backend, block: Block, device: Device) -> None:
    """Raise ``UnsupportedError`` for the first instruction that the backend refuses."""
    for instruction in block.instructions:
        check_instruction(backend, block, instruction, device)
        if instruction.op in CONTROL:
            query = query_of(block, instruction)
            for step, types in helper_steps(instruction, query.operands):
                asked = OpQuery(step.op, step.attributes, types, step.types)
                _check(backend, asked, device, instruction.location)
            for region in instruction.regions:
                check_supported(backend, region, device)


def check_instruction(
    backend: Backend, block: Block, instruction: Instruction, device: Device
) -> None:
    """Raise ``UnsupportedError`` where the backend refuses an instruction of ``block``."""
    _check(backend, query_of(block, instruction), device, instruction.location)


def _check(backend: Backend, query: OpQuery, device: Device, at: Location) -> None:
    reason = backend.refusal(query, device)
    if reason is not None:
        types = ", ".join(map(str, query.operands))
        error = UnsupportedError(
            f"{backend.name}: {query.name}({types}): {reason} on device {device.name!r};"
            f" choose another backend or device (see `ptir backends`){_for_authors(backend, query)}"
        )
        note_place(error, at)
        raise error


def _for_authors(backend: Backend, query: OpQuery) -> str:
    """What else to do for whoever wrote the refused op in a plugin, and for the backend's author.

    Our own backends and ops are as they are for everybody who meets this.
    """
    record = None if query.is_composite else OPS.get(query.op)
    steps = ""
    if record is not None and not is_own(record.module) and record.decomposition is None:
        steps += f", give {query.op} of {record.module} a decomposition"
    if backend.name not in OFFICIAL:
        steps += f", or take it in {backend.name} (`ptir-conformance support` lists what it takes)"
    return steps


@dataclass(frozen=True)
class Step:
    """One bound instruction: operand slots, result slots, slots that die with it."""

    run: StepFunction
    operands: tuple[int, ...]
    results: tuple[int, ...]
    dead: tuple[int, ...]


@dataclass
class InterpretedProgram(Executable):
    """A program bound to an interpreter backend."""

    program: Program
    runner: BlockRunner

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Run the steps in order on ``inputs``."""
        return self.runner(*inputs)

    @property
    def workspace_bytes(self) -> int:
        """Most bytes of intermediates at once."""
        return self.runner.workspace_bytes()

    def reads(self) -> Sequence[Collection[int]]:
        """The inputs that each op reads, and those behind the outputs."""
        return self.runner.reads()

    def run_staged(
        self, inputs: Sequence[Handle | None], drive: Callable[[Queue], None]
    ) -> tuple[Handle, ...]:
        """The steps in order, some at a time."""
        return self.runner.staged(inputs, drive)

    def timed(
        self, inputs: Sequence[Handle], wait: Callable[[], None]
    ) -> tuple[tuple[Handle, ...], tuple[float, ...]]:
        """One run, and the seconds of each op."""
        seconds: list[float] = []

        def timing(step: Step, operands: Sequence[Handle]) -> Any:
            began = time.perf_counter()
            results = step.run(*operands)
            wait()
            seconds.append(time.perf_counter() - began)
            return results

        return self.runner(*inputs, call=timing), tuple(seconds)

    def explain(self) -> Explanation:
        """Every op as a part of its own."""
        block = self.program.main
        numbered = enumerate(block.numbered())
        made = ((n, r, i) for n, (r, i) in numbered if i.op != "constant")
        return Explanation(tuple(_part(block, *one) for one in made))


def _part(block: Block, position: int, results: Sequence[int], instruction: Instruction) -> Part:
    """One op: it reads its operands and writes its results, unless it is a view."""
    types = [block.types[v] for v in instruction.operands]
    if instruction.op != "composite" and "view" in OPS[instruction.op].traits:
        return Part("op", instruction.op, (position,), (), ())
    sizes = read_sizes(instruction, types, instruction.types[0].size)
    reads = [
        Access(value, -(-size * type.nbytes // max(1, type.size)))
        for value, size, type in zip(instruction.operands, sizes, types, strict=True)
    ]
    if instruction.name in UPDATES:
        target = instruction.operands[0]
        written = Access(target, written_bytes(block, instruction, block.types[results[0]]))
        return Part("op", instruction.name, (position,), tuple(reads[1:]), (written,))
    writes = tuple(Access(value, block.types[value].nbytes) for value in results)
    return Part("op", instruction.name, (position,), tuple(reads), writes)


def _called(step: Step, operands: Sequence[Handle]) -> Any:
    return step.run(*operands)


class BlockRunner:
    """A block bound to steps; callable with its inputs' handles."""

    def __init__(
        self,
        backend: Interpreter,
        block: Block,
        device: Device,
        options: Options,
        region: bool = False,
    ) -> None:
        self._backend = backend
        self._block = block
        self._device = device
        self._checked = options.check_indices
        self._storage = Storage(block, options)
        self._outputs = block.outputs
        self._copied = self._storage.copied_outputs(region)
        self._constants: list[tuple[int, Handle]] = []
        self._steps: list[Step] = []
        for position, (results, instruction) in enumerate(block.numbered()):
            if instruction.op == "constant":
                literal = instruction.attributes["value"]
                self._constants.append((results[0], backend.upload(literal.numpy(), device)))
                continue
            run = self._bind(instruction, self._storage.reusable(position))
            dead = self._storage.dead_after(position)
            self._steps.append(Step(run, instruction.operands, results, dead))
        self._size = len(block.types)

    def _bind(self, instruction: Instruction, reusable: frozenset[int]) -> StepFunction:
        backend, device = self._backend, self._device
        types = [self._block.types[v] for v in instruction.operands]
        if instruction.op in CONTROL:
            options = Options(check_indices=self._checked)
            regions = [
                BlockRunner(backend, block, device, options, region=True)
                for block in instruction.regions
            ]
            return bind_control(backend, device, instruction, types, regions)
        run = backend.prepare(unmarked(instruction), device, reusable)
        bounds = OPS[instruction.op].bounds if self._checked else None
        if bounds is None:
            return run
        operand, greatest = bounds(types, instruction.attributes)
        return self._checking(run, instruction.op, operand, types[operand], greatest)

    def _checking(
        self,
        run: StepFunction,
        name: str,
        operand: int,
        type: TensorType,
        greatest: Sequence[int],
    ) -> StepFunction:
        """``run`` after a look at the places in one operand."""
        from ptir.ops.numerics import check_indices

        def checked(*operands: Handle) -> Any:
            self._backend.stats(self._device).host_syncs += 1
            indices = downloaded(self._backend, operands[operand], self._device, type)
            check_indices(name, indices, greatest)
            return run(*operands)

        return checked

    def __call__(
        self, *inputs: Handle, call: Callable[[Step, Sequence[Handle]], Any] = _called
    ) -> tuple[Handle, ...]:
        """The outputs' handles; intermediates are dropped after their last reader."""
        slots = self._slots(inputs)
        self._run(slots, self._steps, call)
        return self._results(slots)

    def workspace_bytes(self) -> int:
        """Most bytes of intermediates at once, as far as steps make them."""
        return self._storage.most_bytes()

    def reads(self) -> tuple[frozenset[int], ...]:
        """The inputs whose memory each step uses, and behind the steps those of the outputs."""
        lists = [*(step.operands for step in self._steps), self._outputs]
        return tuple(map(self._storage.inputs_behind, lists))

    def staged(
        self, inputs: Sequence[Handle | None], drive: Callable[[Queue], None]
    ) -> tuple[Handle, ...]:
        """The outputs' handles of a run whose steps are driven, some at a time."""
        slots, results = self._slots(inputs), tuple[Handle, ...]()

        def queue(first: int, end: int, handles: Mapping[int, Handle]) -> None:
            nonlocal results
            for number, handle in handles.items():
                slots[number] = handle
            self._run(slots, self._steps[first:end], _called)
            if end > len(self._steps):
                results = self._results(slots)
            for number in handles:
                slots[number] = None

        drive(queue)
        return results

    def _slots(self, inputs: Sequence[Handle | None]) -> list[Any]:
        slots: list[Any] = [None] * self._size
        slots[: len(inputs)] = inputs
        for number, handle in self._constants:
            slots[number] = handle
        return slots

    @staticmethod
    def _run(
        slots: list[Any], steps: Sequence[Step], call: Callable[[Step, Sequence[Handle]], Any]
    ) -> None:
        for step in steps:
            results = call(step, [slots[v] for v in step.operands])
            if len(step.results) == 1:
                slots[step.results[0]] = results
            else:
                for number, handle in zip(step.results, results, strict=True):
                    slots[number] = handle
            for number in step.dead:
                slots[number] = None

    def _results(self, slots: Sequence[Any]) -> tuple[Handle, ...]:
        backend, device, copied = self._backend, self._device, self._copied
        return tuple(
            backend.copy(slots[v], device) if copied[i] else slots[v]
            for i, v in enumerate(self._outputs)
        )
