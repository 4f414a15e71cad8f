"""Plans whose parameters come and go under a budget, stage by stage (``ptir.params.residency``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from ptir import events
from ptir.backend.contract import Feeds, Handle, Options, Queue, Target, repeat_by_runs
from ptir.capture.plan import Deriving, Parameter, Plan, checks_indices, plan_for
from ptir.errors import UsageError
from ptir.ir.program import Program
from ptir.params.residency import ResidencySchedule, Stage, schedule, smallest_room
from ptir.params.source import Array
from ptir.params.store import ParamStore
from ptir.params.streaming import BudgetError, StreamedParameters

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
        packing = max(map(self._packing, self.derived.keys() & self.numbers.keys()), default=0)
        return max(packing, smallest_room(self.reads, self.sizes))

    def _packing(self, name: str) -> int:
        """Bytes that there are at once while a derived parameter is computed."""
        derivation, held, most = self.derived[name], 0, 0
        for port, type in zip(derivation.ports, derivation.block.inputs, strict=True):
            if port.name in self.derived:
                most = max(most, held + self._packing(port.name))
            held += type.nbytes
        return max(most, held + sum(type.nbytes for type in derivation.block.output_types))

    @property
    def schedule(self) -> ResidencySchedule:
        """The table for the room that is left; raises ``UsageError`` where that is too little."""
        room = self.room
        if room not in self._schedules:
            if self.smallest > self.stream.budget:
                raise BudgetError(self._too_small(), self.smallest)
            self._schedules.clear()
            self._schedules[room] = schedule(self.reads, self.sizes, room)
        return self._schedules[room]

    def _too_small(self) -> str:
        return (
            f"device memory {self.stream.budget}: caches and what else a run is given and gives"
            f" take {self.passing} bytes, intermediates {self.stream.workspaces}, and {self.most}"
            " bytes of parameters are needed together; give --device-memory"
            f" {self.smallest} or more, or fewer tokens (-n), --cache-dtype bf16 or --quant int4"
        )

    def run(self, inputs: Sequence[Handle], parameters: Sequence[Handle]) -> tuple[Handle, ...]:
        """Run on the handles of the captured program's inputs; parameters come by themselves."""
        if not events.listening():
            return self._streamed(inputs)
        began = time.perf_counter()
        outputs = self._streamed(inputs)
        self._wait()
        seconds = time.perf_counter() - began
        backend, device = self.target.backend.name, self.target.device.name
        events.emit(events.ProgramRun(self.optimized, backend, device, seconds))
        return outputs

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


def check_together(captures: Sequence[Callable[[], Plan]]) -> None:
    """Capture programs of one model, and see that each runs in the budget beside the others.

    Raises ``BudgetError`` with what the program takes that takes most.
    """
    failed: list[BudgetError] = []
    for _ in range(2):  # the first time not all are known
        failed.clear()
        for capture in captures:
            try:
                plan = capture()
                _ = plan.schedule if isinstance(plan, StreamedPlan) else None
            except BudgetError as error:
                failed.append(error)
    if failed:
        raise max(failed, key=lambda error: error.smallest)


def bound_plan(
    program: Program,
    parameters: Mapping[str, Parameter],
    target: Target,
    options: Options | None = None,
) -> tuple[Plan, tuple[Handle, ...]]:
    """``plan_for``, and the handles of its parameters; none where these come and go by themselves.

    ``parameters`` are what the program's parameter ports stand for.
    """
    streams = {p.store.streamed for p in parameters.values()} - {None}
    if streams:
        for stream in streams:
            assert stream is not None
            stream.drop_all()  # the program's intermediates are allocated where they were
        asked = options or Options(check_indices=checks_indices())
        plan = plan_for(program, target, replace(asked, staged=True))
        return streamed_plan(plan, parameters), ()
    plan = plan_for(program, target, options)
    return plan, plan.bind(parameters)


def streamed_plan(plan: Plan, parameters: Mapping[str, Parameter]) -> StreamedPlan:
    """``plan`` with its parameters under their store's budget.

    What no mapped file has is computed now, one parameter after the other, and written to one.
    Raises ``UsageError`` where the budget is too small or nothing can be written.
    """
    (store,) = {parameter.store for parameter in parameters.values()}
    assert store.streamed is not None
    program = plan.optimized
    kinds = enumerate(zip(program.ports, program.inputs, strict=True))
    numbers = {port.name: n for n, (port, _) in kinds if port.kind == "parameter"}
    names = {number: name for name, number in numbers.items()}
    reads = tuple(
        tuple(names[n] for n in sorted(used) if n in names) for used in plan.executable.reads()
    )
    store.streamed.add_workspace(plan.executable, plan.executable.workspace_bytes)
    made = StreamedPlan(**vars(plan), stream=store.streamed, numbers=numbers, reads=reads)
    _ = made.schedule  # one that cannot run reads nothing
    for name, array in _mapped(plan, store, parameters, made.sizes):
        store.streamed.hold(name, array)
    return made


def _mapped(
    plan: Plan, store: ParamStore, parameters: Mapping[str, Parameter], sizes: Mapping[str, int]
) -> Iterator[tuple[str, Array]]:
    """Every parameter with its array in a mapped file."""
    assert store.streamed is not None
    deriving = Deriving(plan.derived, plan.target, parameters)
    deriving.expect(name for name in sizes if name not in store.streamed)
    find: dict[str, Callable[[], Array | None]] = {}
    for name, nbytes in sizes.items():
        if name in store.streamed:
            continue
        if name in plan.derived:
            compute = partial(_computed, deriving, store, parameters, name)
            find[name] = partial(store.mapped_derived, name, compute, nbytes)
        else:
            find[name] = partial(store.mapped, parameters[name].name)
    missing = [name for name, found in find.items() if found() is None]
    if missing:
        store.save_mapped()
    for name, found in find.items():
        array = found()
        if array is None:
            nbytes = sum(sizes[one] for one in missing)
            raise UsageError(
                f"device memory: {len(missing)} packed parameters of {nbytes} bytes cannot be"
                " written to the cache folder, from which they are to come; free twice as much"
                " there, or set PTIR_CACHE_DIR to a folder with room"
            )
        yield name, array


def _computed(
    deriving: Deriving, store: ParamStore, parameters: Mapping[str, Parameter], name: str
) -> Any:
    """The handle of a derived parameter, nothing of what it comes from left behind."""
    handle = deriving.computed(deriving.derived[name])
    for origin in deriving.stored(name):
        store.source.release(parameters[origin].name)
    return handle
