"""Plans whose parameters come and go under a budget, stage by stage (``ptir.params.residency``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Final

from ptir import events
from ptir.backend.contract import Feeds, Handle, Options, Queue, Target, repeat_by_runs
from ptir.capture.derived_runs import runs_of
from ptir.capture.observed import observed
from ptir.capture.plan import PLANS, Deriving, Parameter, Plan, plan_for
from ptir.errors import UsageError
from ptir.ir.program import Program
from ptir.params.mapped_files import BoundParameters
from ptir.params.residency import ResidencySchedule, Stage, schedule, smallest_room
from ptir.params.source import Array
from ptir.params.store import ParamStore
from ptir.params.streaming import BudgetError, StreamedParameters, alternatives
from ptir.switches import WEIGHTS_LIMIT, limited_bytes
from ptir.units import binary

LITTLE: Final = 1 << 14
"""Bytes of tokens, positions and a sampler's draws that a session keeps on the device."""


@dataclass(frozen=True)
class StreamedPlan(Plan):
    """A plan that has its parameters under the budget of ``stream``."""

    stream: StreamedParameters = field(kw_only=True)
    numbers: Mapping[str, int] = field(kw_only=True)
    """The input that each parameter is."""
    reads: tuple[tuple[str, ...], ...] = field(kw_only=True)
    """The parameters that each launch reads."""
    _schedules: dict[int, ResidencySchedule] = field(
        default_factory=dict[int, ResidencySchedule], repr=False, kw_only=True
    )

    @property
    def is_stale(self) -> bool:
        """Whether its device was lost, or weights are cut finer by now."""
        return super().is_stale or self.options.largest != self.stream.largest

    def give_up(self) -> None:
        """Hold no memory any more: it is stale, and whoever asks for it captures anew."""
        object.__setattr__(self, "executable", None)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every parameter."""
        types = self.optimized.inputs
        return {name: types[number].nbytes for name, number in self.numbers.items()}

    @property
    def passing(self) -> int:
        """Bytes of what a run is given and gives, caches above all.

        What is not donated counts four times: the last run's results may still be there, and what
        is computed of logits takes as much as two of them. A session's own tensors are few.
        """
        parameters = set(self.numbers.values())
        given = [t.nbytes for n, t in enumerate(self.optimized.inputs) if n not in parameters]
        written = sum(given[n] for n in self.donated if n < len(given))
        made = sum(type.nbytes for type in self.optimized.outputs)
        return sum(given) + 4 * max(0, made - written) + LITTLE

    @property
    def room(self) -> int:
        """Bytes of the budget that are left for parameters while this runs."""
        return self.stream.budget - self.stream.workspaces - self.passing

    @property
    def smallest(self) -> int:
        """The smallest budget with which it runs."""
        return self.stream.workspaces + self.passing + self.most

    @property
    def most(self) -> int:
        """Bytes of parameters that must be resident together: of a launch, or to pack one."""
        return max(self._packing, smallest_room(self.reads, self.sizes))

    @cached_property
    def _packing(self) -> int:
        """Most bytes that there are at once while a derived parameter is computed."""
        names = {self.rows[name].parameter if name in self.rows else name for name in self.numbers}
        return max(map(self._at_once, names & self.derived.keys()), default=0)

    def _at_once(self, name: str) -> int:
        runs = runs_of(self.derived, name, self.options.largest)
        if runs is not None:
            return runs.nbytes
        derivation, held, most = self.derived[name], 0, 0
        for port, type in zip(derivation.ports, derivation.block.inputs, strict=True):
            if port.name in self.derived:
                most = max(most, held + self._at_once(port.name))
            held += type.nbytes
        return max(most, held + sum(type.nbytes for type in derivation.block.output_types))

    @property
    def schedule(self) -> ResidencySchedule:
        """The table for the room that is left; raises ``UsageError`` where that is too little."""
        room = self.room
        if room not in self._schedules:
            if self.smallest > self.stream.budget:
                raise BudgetError(self._too_small(), self.smallest, room, self.stream)
            self._schedules.clear()
            self._schedules[room] = schedule(self.reads, self.sizes, room)
        return self._schedules[room]

    def _too_small(self) -> str:
        savings = self.stream.savings
        return (
            f"device memory {self.stream.budget}: caches and what else a run is given and gives"
            f" take {self.passing} bytes, intermediates {self.stream.workspaces}, and {self.most}"
            f" bytes of parameters are needed together{self._largest_launch()}; give"
            f" --device-memory {self.smallest} or more"
            f"{alternatives([*savings.state, *savings.weights])}"
        )

    def _largest_launch(self) -> str:
        """What is read together that takes most, and why it is not cut by rows."""
        sizes = self.sizes
        names = max(self.reads, key=lambda read: sum(sizes[n] for n in read), default=())
        if self._packing > sum(sizes[name] for name in names) or not names:
            return " to pack one"
        largest = max(names, key=sizes.__getitem__)
        why = self.whole.get(largest, "")
        return f" ({sizes[largest]} of {self.title(largest)}" + (f", {why})" if why else ")")

    def title(self, name: str) -> str:
        """A parameter for people: the stored ones behind it, and which rows."""
        rows = self.rows.get(name)
        stored = self.stored(name if rows is None else rows.parameter)
        if rows is None:
            return " + ".join(stored)
        return "{} rows {} to {} of {}".format(" + ".join(stored), *rows.outputs)

    def stored(self, name: str) -> tuple[str, ...]:
        """The stored parameters behind a parameter."""
        if name not in self.derived:
            return (name,)
        found = (one for port in self.derived[name].ports for one in self.stored(port.name))
        return tuple(dict.fromkeys(found))

    def run(self, inputs: Sequence[Handle], parameters: Sequence[Handle]) -> tuple[Handle, ...]:
        """Run on the handles of the captured program's inputs; parameters come by themselves."""
        if not events.listening():
            return self._streamed(inputs)
        return observed(self, self.target, inputs, parameters, lambda: (self._streamed(inputs), ()))

    def repeat(
        self,
        inputs: Sequence[Handle],
        parameters: Sequence[Handle],
        feeds: Feeds,
        count: int,
        keep: int,
    ) -> tuple[list[Handle], tuple[Handle, ...]]:
        """Run by run: parameters come and go between them."""
        return repeat_by_runs(lambda given: self.run(given, parameters), inputs, feeds, count, keep)

    def _streamed(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        given = [*inputs, *[None] * (len(self.optimized.inputs) - len(inputs))]
        with self.stream.lock:
            self.stream.renew()
            drive = partial(self._drive, self.schedule)
            try:
                return self.executable.run_staged(given, drive)
            except BaseException:
                self.stream.drop_all()
                raise

    def _drive(self, table: ResidencySchedule, queue: Queue) -> None:
        """Queue the stages; what the next one reads begins to come behind each."""
        for number, stage in enumerate(table.stages):
            self._stage(table, stage, table.stages[(number + 1) % len(table.stages)], queue)

    def _stage(
        self, table: ResidencySchedule, stage: Stage, following: Stage, queue: Queue
    ) -> None:
        """One of them; no handle of it is held behind it."""
        handles, coming = self.stream.enter(
            _sized(stage, table), _sized(following, table), table.room
        )
        queue(stage.first, stage.end, {self.numbers[n]: h for n, h in handles.items()})
        self.stream.begin(coming)


def _sized(stage: Stage, table: ResidencySchedule) -> dict[str, int]:
    return {name: table.sizes[name] for name in stage.needed}


_together: Final = ContextVar("ptir_together", default=False)
"""Whether programs are judged together: one that fails alone says nothing about the cut."""


def check_together(captures: Sequence[Callable[[], Plan]]) -> None:
    """Capture programs of one model, and see that each runs in the budget beside the others.

    Weights are cut finer until they do. Raises ``BudgetError`` with what the program takes that
    takes most.
    """
    token, before = _together.set(True), None
    try:
        while True:  # what is found counts when it is found twice: then all are known
            failed, seen = _tried(captures)
            if seen != before:
                before = seen
            elif not failed:
                return
            else:
                error = max(failed, key=lambda one: one.smallest)
                if not _cut_finer(error.stream, min(one.room for one in failed)):
                    _start_over(error.stream)
                    raise error
    finally:
        _together.reset(token)


def _tried(captures: Sequence[Callable[[], Plan]]) -> tuple[list[BudgetError], list[int]]:
    """The programs that do not run beside the others, and which each is or how much it needs."""
    failed: list[BudgetError] = []
    seen: list[int] = []
    for capture in captures:
        try:
            plan = capture()
            _ = plan.schedule if isinstance(plan, StreamedPlan) else None
            seen.append(id(plan.executable))
        except BudgetError as error:
            failed.append(error)
            seen.append(-error.smallest)
    return failed, seen


def _cut_finer(stream: StreamedParameters, room: int) -> bool:
    """Have weights cut finer, if that is possible; plans that are stale then give up memory."""
    finer = stream.cut_finer(room)
    if finer:
        _give_up(stream)
    return finer


def _start_over(stream: StreamedParameters) -> None:
    """Nothing finer helps: the next program is cut as coarsely as the first."""
    stream.cut_as_at_first()
    _give_up(stream)


def _give_up(stream: StreamedParameters) -> None:
    """Have no plan, and nobody who keeps plans, hold what was compiled for the cut before."""
    plans, executables = stream.forget_users()
    PLANS.forget(executables)
    for plan in plans:
        plan.give_up()


def bound_streamed_plan(
    program: Program,
    parameters: Mapping[str, Parameter],
    target: Target,
    options: Options,
    name: str,
    stream: StreamedParameters,
) -> tuple[StreamedPlan, BoundParameters]:
    """``ptir.capture.bound.bound_plan`` for parameters that come and go under a budget."""
    while True:
        stream.drop_all()  # the program's intermediates are allocated where they were
        staged = replace(options, staged=True, largest=stream.largest)
        try:
            plan = streamed_plan(plan_for(program, target, staged, name), parameters)
            return plan, BoundParameters((), (), parameters)
        except BudgetError as error:
            if not _cut_finer(stream, error.room):
                if not _together.get():
                    _start_over(stream)
                raise


def streamed_plan(plan: Plan, parameters: Mapping[str, Parameter]) -> StreamedPlan:
    """``plan`` with its parameters under their store's budget.

    What no mapped file has is computed now, one parameter after the other, and written to one.
    Raises ``UsageError`` where the budget is too small or nothing can be written.
    """
    (store,) = {parameter.store for parameter in parameters.values()}
    stream = store.streamed
    assert stream is not None
    program = plan.optimized
    kinds = enumerate(zip(program.ports, program.inputs, strict=True))
    numbers = {port.name: n for n, (port, _) in kinds if port.kind == "parameter"}
    names = {number: name for name, number in numbers.items()}
    reads = tuple(
        tuple(names[n] for n in sorted(used) if n in names) for used in plan.executable.reads()
    )
    made = StreamedPlan(**vars(plan), stream=stream, numbers=numbers, reads=reads)
    stream.add_user(made)
    stream.add_workspace(plan.executable, plan.executable.workspace_bytes)
    _ = made.schedule  # one that cannot run reads nothing
    for name, array in _mapped(made, store, parameters):
        stream.hold(name, array)
    return made


def _mapped(
    plan: StreamedPlan, store: ParamStore, parameters: Mapping[str, Parameter]
) -> Iterator[tuple[str, Array]]:
    """Every parameter with its array in a mapped file; rows of one are a part of that one's."""
    assert store.streamed is not None
    types = dict(zip((p.name for p in plan.optimized.ports), plan.optimized.inputs, strict=True))
    new = {n: plan.rows.get(n) for n in plan.numbers if n not in store.streamed}
    sizes = {
        n if rows is None else rows.parameter: (types[n] if rows is None else rows.whole).nbytes
        for n, rows in new.items()
    }
    deriving, largest = Deriving(plan.derived, plan.target, parameters), plan.options.largest
    find: dict[str, Callable[[], Array | None]] = {}
    for name, nbytes in sizes.items():
        if name in plan.derived:
            compute = partial(_computed, deriving, store, parameters, name, largest)
            find[name] = partial(store.mapped_derived, name, compute, nbytes)
        else:
            find[name] = partial(store.mapped, parameters[name].name, largest)
    missing = [name for name, found in find.items() if found() is None]
    if missing:
        own = [name for name in missing if name in plan.derived]
        deriving.expect(name for name in own if runs_of(plan.derived, name, largest) is None)
        store.save_mapped()
    arrays: dict[str, Array] = {}
    for name, found in find.items():
        array = found()
        if array is None:
            nbytes = sum(sizes[one] for one in missing)
            raise UsageError(
                f"device memory: {len(missing)} packed parameters of {nbytes} bytes cannot be"
                " written to the cache folder, from which they are to come; free twice as much"
                f" there, or set PTIR_CACHE_DIR to a folder with room{_limited()}"
            )
        arrays[name] = array
    for name, rows in new.items():
        yield name, arrays[name] if rows is None else arrays[rows.parameter][rows.first : rows.end]


def _limited() -> str:
    """What else may be in the way of writing: the limit that was set."""
    said = limited_bytes(WEIGHTS_LIMIT)
    return "" if said is None else f", and raise {WEIGHTS_LIMIT}, which is {binary(said)}"


def _computed(
    deriving: Deriving,
    store: ParamStore,
    parameters: Mapping[str, Parameter],
    name: str,
    largest: int,
) -> Iterator[Any]:
    """The handle of a derived parameter, or of its runs; nothing of what it comes from is left."""
    runs = runs_of(deriving.derived, name, largest)
    every = [deriving.computed(deriving.derived[name])] if runs is None else deriving.in_runs(runs)
    for handle in every:
        yield handle
        for origin in deriving.stored(name):
            store.source.release(parameters[origin].name)
