"""What one step of a model does on its target: run it, count, and time it part by part."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from ptir import events
from ptir.backend.contract import MemoryStats, RunStats
from ptir.backend.explanation import Explanation
from ptir.capture.build import Captured
from ptir.capture.plan import Plan
from ptir.capture.streamed import StreamedPlan
from ptir.errors import UnsupportedError, UsageError
from ptir.nn.state import WindowKeysValues
from ptir.params.residency import ResidencySchedule
from ptir.params.rows import Rows
from ptir.runtime.layers import Layered, LayerPart, Section
from ptir.runtime.recorded import image_size, recorded_images, recorded_step, recorded_texts
from ptir.runtime.session import Session
from ptir.runtime.steps import chunk_sizes

if TYPE_CHECKING:
    from ptir.runtime.handle import Model
    from ptir.runtime.image_model import ImageModel
    from ptir.runtime.text_model import TextModel


@dataclass(frozen=True)
class Packed:
    """Parameters kept in a form of their own, and the bytes of that form."""

    count: int
    nbytes: int


@dataclass(frozen=True)
class Streamed:
    """Parameters under a budget: the table of a step, and what there was of them."""

    budget: int
    schedule: ResidencySchedule
    resident: int
    """Most bytes of parameters that were resident at once, in any step so far."""
    fetched: int
    """Bytes that were fetched so far."""
    reads: Mapping[str, int]
    """How often each parameter was fetched so far."""
    rows: Mapping[str, tuple[tuple[str, ...], Rows]]
    """What is rows of a parameter, by name, and the stored ones behind that."""


class Kept(NamedTuple):
    """How many tokens a cache has room for, its bytes, and layers that keep a window by places."""

    capacity: int = 0
    nbytes: int = 0
    windows: Mapping[int, int] = MappingProxyType({})

    @staticmethod
    def of(session: Session, model: Model) -> Kept:
        """That of a session of one row."""
        capacity, states = session.capacity, model.states()
        windows = Counter(
            state.places(capacity) for state in states if isinstance(state, WindowKeysValues)
        )
        del windows[capacity]
        carried = model.state_types(1, capacity)
        nbytes = sum(type.nbytes for types in carried for type in types)
        return Kept(capacity, nbytes, dict(windows))


NOTHING: Final = Kept()


class Planned(Protocol):
    """What has run a step by the last of its plans."""

    @property
    def plans(self) -> Sequence[Plan]:
        """The plans, oldest first."""
        ...


@dataclass(frozen=True)
class Step:
    """A step of a model.

    ``name`` is ``decode`` or ``prefill``, ``images``, ``texts``, or ``windows`` of speech.
    ``start`` gives what runs it, again and again.
    """

    name: str
    rows: int
    """Texts, images or windows that are computed together."""
    tokens: int
    """Of all rows; of images and windows there is one each."""
    start: Callable[[], Callable[[], object]]
    planned: Planned
    captured: Callable[[], Captured]
    """Captures it anew."""
    position: int = 0
    kept: Kept = NOTHING
    cached: range = range(0)
    """Inputs that are keys and values besides those that a step consumes: it leaves them."""


@dataclass(frozen=True)
class StepReport:
    """One step of a model: its parts by layer, and what was counted and timed while it ran.

    ``step``, ``rows``, ``tokens`` and ``captured`` are those of a ``Step``.
    """

    step: str
    rows: int
    tokens: int
    position: int
    capacity: int
    plan: Plan
    captured: Callable[[], Captured]
    sections: tuple[Section, ...]
    explanation: Explanation
    elsewhere: tuple[str, ...]
    """Ops that no part accounts for."""
    counted: RunStats
    """What the backend counted during one step."""
    seconds: float
    """Of a whole step, the median."""
    memory: MemoryStats | None
    resident: int
    """Bytes of the parameters that the step reads, as they are resident."""
    cache: int
    """Bytes of the cache."""
    packed: Packed
    streamed: Streamed | None = None
    """How the parameters come and go, under a budget."""
    windows: Mapping[int, int] = field(default_factory=dict[int, int])
    """Layers whose cache has fewer places than ``capacity``, since a window sees no more, by
    places."""

    @property
    def kernels(self) -> int:
        """Kernels of one step, by its description; a launch may run several."""
        return sum(part.kind == "kernel" for part in self.explanation.parts)


def weights_read(plan: Plan) -> int | None:
    """Bytes of parameters that one run of ``plan`` reads, or None where nobody can tell."""
    return _total(plan, lambda part: part.moved.weights)


def flops_of_run(plan: Plan) -> int | None:
    """Operations of one run by definition (``ptir.ops.flops``), or None where nobody can tell."""
    return _total(plan, lambda part: part.flops)


def _total(plan: Plan, counted: Callable[[LayerPart], int]) -> int | None:
    explanation = plan.executable.explain()
    if explanation is None:
        return None
    layered = Layered(plan.optimized, explanation, plan.derived, frozenset())
    return sum(counted(w) * s.count for s in layered.sections() for w in s.works)


def explain_decode(model: Model, position: int, repeats: int) -> StepReport:
    """A decode step of one row after ``position`` tokens, timed whole and by parts."""
    return explained(model, decode_step(model, position, repeats), repeats)


def explain_prefill(model: Model, length: int, repeats: int) -> StepReport:
    """The first chunk of a prompt of ``length`` tokens."""
    return explained(model, prefill_step(model, length), repeats)


def explain_images(model: ImageModel, batch: int, repeats: int) -> StepReport:
    """One run over ``batch`` prepared images of the size that the model's have."""
    return explained(model, images_step(model, batch), repeats)


def decode_step(model: Model, position: int, repeats: int) -> Step:
    """A token of one row after ``position`` others, and as many more as ``repeats`` take."""
    session = _session(model, position + 3 + 2 * repeats)
    capacity = session.capacity

    def start() -> Callable[[], object]:
        session.pick(session.prefill([random_tokens(model, position)]))
        return partial(session.advance, np.ones(1, np.bool_))

    return Step(
        "decode",
        1,
        1,
        start,
        model.steps.advance(1, capacity),
        lambda: recorded_step(model, 1, 1, capacity),
        position,
        Kept.of(session, model),
    )


def prefill_step(model: Model, length: int) -> Step:
    """The first chunk of a prompt of ``length`` tokens.

    Every run has a session of its own: one that holds the prompt already would take it in again
    behind the first, and see as many more keys.
    """
    kept = Kept.of(_session(model, length), model)
    size, real = chunk_sizes(length)[0]
    prompt = random_tokens(model, real)

    def run() -> object:
        return _session(model, length).prefill([prompt])

    return Step(
        "prefill",
        1,
        size,
        lambda: run,
        model.steps.extend(1, kept.capacity),
        lambda: recorded_step(model, 1, size, kept.capacity),
        kept=kept,
    )


def images_step(model: ImageModel, batch: int) -> Step:
    """A run over ``batch`` prepared images of the size that the model's have."""
    pixels = np.zeros((batch, *image_size(model), 3), np.float32)
    captured = partial(recorded_images, model, batch)
    run = partial(model.forward, pixels)
    return Step("images", batch, batch, lambda: run, model, captured)


def texts_step(model: TextModel, batch: int, length: int) -> Step:
    """A run over ``batch`` texts of ``length`` tokens: embedding them, or what its head scores.

    Raises ``UsageError`` for more tokens than the model takes.
    """
    if length > model.context:
        raise UsageError(f"{length} tokens do not fit the context of {model.context}; use fewer")
    tokens = np.array([random_tokens(model, length)] * batch, np.int32)
    captured = partial(recorded_texts, model, batch, length)
    run = partial(model.computed, tokens)
    return Step("texts", batch, batch * length, lambda: run, model.network, captured)


def _session(model: Model, needed: int) -> Session:
    if needed > model.context:
        raise UsageError(f"{needed} tokens do not fit the context of {model.context}; use fewer")
    return Session.of(model, 1, needed)


def random_tokens(model: Model, count: int) -> list[int]:
    """Seeded token ids."""
    size = int(model.checkpoint.config["vocab_size"])
    tokens: list[int] = np.random.default_rng(0).integers(0, size, count).tolist()
    return tokens


@dataclass(frozen=True)
class _Measured:
    counted: RunStats
    seconds: float
    parts: tuple[float, ...]
    memory: MemoryStats | None


def _measured(
    model: Model, step: Callable[[], object], planned: Planned, repeats: int
) -> _Measured:
    """Counters of one step, its seconds, and its parts' seconds: medians after one warm-up."""
    backend, device = model.target.backend, model.target.device
    runs: list[events.ProgramRun] = []

    def listen(event: events.Event) -> None:
        own = planned.plans[-1].optimized  # a cache that slides runs another program
        if isinstance(event, events.ProgramRun) and event.program is own:
            runs.append(event)

    step()
    backend.synchronize(device)
    before = RunStats(**vars(backend.stats(device)))
    step()
    backend.synchronize(device)
    after = backend.stats(device)
    counted = RunStats(**{name: n - getattr(before, name) for name, n in vars(after).items()})
    memory = backend.memory_stats(device)
    remove = events.subscribe(listen)
    try:
        for _ in range(repeats):
            step()
        whole = [run.seconds for run in runs]
        runs.clear()
        with events.timing_parts():
            for _ in range(repeats):
                step()
    finally:
        remove()
    columns = zip(*(run.parts for run in runs), strict=True)
    parts = tuple(statistics.median(column) for column in columns)
    return _Measured(counted, statistics.median(whole), parts, memory)


def explained(model: Model, step: Step, repeats: int) -> StepReport:
    """The step run, counted, and timed whole and by parts, ``repeats`` times each.

    Raises ``UnsupportedError`` for a backend that does not say what it does.
    """
    measured = _measured(model, step.start(), step.planned, repeats)
    kept, plan = step.kept, step.planned.plans[-1]
    explanation = plan.executable.explain()
    if explanation is None:
        raise UnsupportedError(
            f"{model.target.backend.name} does not say what a run of this program does (the host"
            " drives its control flow, or the backend lacks Executable.explain); `ptir dump"
            " --optimized` shows the program"
        )
    program, inputs = plan.optimized, [p for p in plan.optimized.ports if p.kind == "input"]
    donated = frozenset((*(n for n in plan.donated if n < len(inputs)), *step.cached))
    layered = Layered(program, explanation, plan.derived, donated, measured.parts, plan.rows)
    ports = list(zip(program.ports, program.inputs, strict=True))
    parameters = [(p.name, t.nbytes) for p, t in ports if p.kind == "parameter"]
    behind = {name: rows.parameter for name, rows in plan.rows.items()}
    packed = [nbytes for name, nbytes in parameters if behind.get(name, name) in plan.derived]
    return StepReport(
        step.name,
        step.rows,
        step.tokens,
        step.position,
        kept.capacity,
        plan,
        step.captured,
        layered.sections(),
        explanation,
        layered.unaccounted,
        measured.counted,
        measured.seconds,
        measured.memory,
        sum(nbytes for _, nbytes in parameters),
        kept.nbytes,
        Packed(len(packed), sum(packed)),
        _streamed(plan),
        kept.windows,
    )


def _streamed(plan: Plan) -> Streamed | None:
    if not isinstance(plan, StreamedPlan):
        return None
    stream = plan.stream
    counted = stream.counters
    return Streamed(
        stream.budget,
        plan.schedule,
        stream.resident.peak,
        counted.bytes_read,
        {name: counted.loads[name] for name in plan.sizes},
        {name: (plan.stored(rows.parameter), rows) for name, rows in plan.rows.items()},
    )
