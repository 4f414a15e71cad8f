"""Plans: programs optimized and compiled for a target, cached under everything they depend on.

The key holds the program itself, so a hit is verified by equality, not only by digest.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

from ptir import events
from ptir.backend.contract import Executable, Feeds, Handle, Options, Target, repeat_by_runs
from ptir.capture.derived_runs import Run, StoredRange
from ptir.capture.observed import observed
from ptir.capture.optimized import optimized
from ptir.capture.plan_key import PlanKey, why_missed
from ptir.errors import VerifyError
from ptir.ir.location import UNKNOWN, located
from ptir.ir.program import Block, Port, Program
from ptir.ops.overriding import active_overrides
from ptir.ops.policies import Overrides
from ptir.ops.verify import verify
from ptir.params.mapped_files import BoundParameters, check_whole
from ptir.params.rows import Rows
from ptir.params.store import ParamStore
from ptir.passes.context import Derivation, PassContext
from ptir.passes.pipeline import pipeline_key
from ptir.passes.remembered import choices_revision
from ptir.switches import switched_on

CAPACITY: Final = 1024


@dataclass(frozen=True)
class Parameter:
    """A stored parameter: the payload of a source node and what a parameter port stands for."""

    store: ParamStore
    name: str


@dataclass(frozen=True)
class Plan:
    """A captured program, what became of it, and its executable."""

    captured: Program
    optimized: Program
    executable: Executable
    target: Target
    derived: Mapping[str, Derivation] = field(repr=False)
    donated: frozenset[int] = frozenset()
    incarnation: int = 0
    options: Options = field(default_factory=Options, repr=False)
    rows: Mapping[str, Rows] = field(default_factory=dict[str, Rows], repr=False)
    """What its parameter ports of rows are, under a budget."""
    whole: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Why parameters are not cut by rows, though the budget asks for it."""
    name: str = ""
    """What the program is called: the function that was captured."""
    choices: int | None = None
    """The revision of the timed choices that it follows; None where it follows none."""

    @property
    def is_stale(self) -> bool:
        """Whether the device was lost since, with the executable, or choices were timed anew."""
        if self.choices is not None and self.choices != choices_revision():
            return True
        return self.target.backend.incarnation(self.target.device) != self.incarnation

    def bind(self, parameters: Mapping[str, Parameter]) -> tuple[Handle, ...]:
        """Handles for the optimized program's parameter ports, loading what is not resident.

        ``parameters`` maps the captured program's parameter port names to what they stand for.
        """
        typed = zip(self.optimized.ports, self.optimized.inputs, strict=True)
        sizes = {port.name: type.nbytes for port, type in typed if port.kind == "parameter"}
        deriving = Deriving(self.derived, self.target, parameters)
        deriving.expect(name for name in sizes if deriving.is_missing(name))
        found: dict[str, Handle] = {}
        # The largest first: what one is derived from is on the device beside it for a while.
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            if name in self.derived:
                found[name] = deriving.handle(name, sizes[name])
            else:
                found[name] = parameters[name].store.handle(parameters[name].name)
        stores = dict.fromkeys(parameter.store for parameter in parameters.values())
        for store in stores:
            store.save_computed()
        mappings = (mapping for store in stores for mapping in store.mappings)
        return BoundParameters((found[name] for name in sizes), mappings, parameters)

    @cached_property
    def weights(self) -> int:
        """Bytes of the parameters that a run reads."""
        typed = zip(self.optimized.ports, self.optimized.inputs, strict=True)
        return sum(type.nbytes for port, type in typed if port.kind == "parameter")

    def run(self, inputs: Sequence[Handle], parameters: Sequence[Handle]) -> tuple[Handle, ...]:
        """Run on the handles of the captured program's inputs and of ``bind``'s parameters.

        Raises ``CheckpointError`` where a file that some of these are read from was cut.
        """
        _check_whole(parameters)
        if not events.listening():
            return self.executable.run([*inputs, *parameters])

        def submit() -> tuple[tuple[Handle, ...], tuple[float, ...]]:
            given = [*inputs, *parameters]
            if events.times_parts():
                return self.executable.timed(given, self._wait)
            return self.executable.run(given), ()

        return observed(self, self.target, inputs, parameters, submit)

    def repeat(
        self,
        inputs: Sequence[Handle],
        parameters: Sequence[Handle],
        feeds: Feeds,
        count: int,
        keep: int,
    ) -> tuple[list[Handle], tuple[Handle, ...]]:
        """``Executable.repeat`` on the handles that ``run`` takes; while heard, run by run."""
        _check_whole(parameters)
        if not events.listening():
            return self.executable.repeat([*inputs, *parameters], feeds, count, keep)
        return repeat_by_runs(lambda given: self.run(given, parameters), inputs, feeds, count, keep)

    def _wait(self) -> None:
        self.target.backend.synchronize(self.target.device)


def _check_whole(parameters: Sequence[Handle]) -> None:
    if isinstance(parameters, BoundParameters):
        check_whole(parameters.mappings)


@dataclass(frozen=True)
class Deriving:
    """Computes derived parameters; those that are derived alike share an executable.

    What is expected is built together, and only once the first of it has to be computed: a later
    process finds the values on disk and builds nothing.
    """

    derived: Mapping[str, Derivation]
    target: Target
    parameters: Mapping[str, Parameter]
    executables: dict[Block, Executable] = field(default_factory=dict[Block, Executable])
    expected: dict[Block, Program] = field(default_factory=dict[Block, Program])

    def expect(self, names: Iterable[str]) -> None:
        """Those of ``names`` that are derived, and what they are derived from, may be computed."""
        for name in names:
            if name in self.derived:
                derivation = self.derived[name]
                self.expected.setdefault(derivation.block, _program(derivation))
                self.expect(port.name for port in derivation.ports)

    def is_missing(self, name: str) -> bool:
        """Whether a derived parameter is not on the device yet."""
        if name not in self.derived:
            return False
        origin = self.origin(name)
        return not origin.store.has_derived(origin.name, name, str(self.target))

    def handle(self, name: str, nbytes: int) -> Handle:
        """The handle of a derived parameter, computed now if it is not resident."""
        origin = self.origin(name)

        def compute() -> Handle:
            return self.computed(self.derived[name])

        return origin.store.derive(origin.name, name, str(self.target), compute, nbytes)

    def computed(self, derivation: Derivation) -> Handle:
        """What a derivation gives, computed now."""
        handles = [self._operand(port.name) for port in derivation.ports]
        if derivation.block not in self.executables:
            self._build(derivation)
        return self.executables[derivation.block].run(handles)[0]

    def in_runs(self, runs: Iterable[Run]) -> Iterator[Handle]:
        """A derived parameter, run by run: what is stored is not kept, nor are earlier runs."""
        for run in runs:
            given = [self._places(place) for place in run.given]
            if run.block not in self.executables:
                ports = tuple(Port(f"x{number}") for number in range(len(given)))
                program, device = Program(run.block, ports), self.target.device
                self.executables[run.block] = self.target.backend.compile(
                    program, device, Options()
                )
            yield self.executables[run.block].run(given)[0]

    def _places(self, place: StoredRange) -> Handle:
        parameter = self.parameters[place.port]
        return parameter.store.range_handle(parameter.name, place.axis, place.first, place.end)

    def _build(self, derivation: Derivation) -> None:
        """Executables of a derivation and of all that is expected beside it."""
        wanted = {derivation.block: _program(derivation), **self.expected}
        left = {block: made for block, made in wanted.items() if block not in self.executables}
        options, backend = Options(), self.target.backend
        given = [(program, options) for program in left.values()]
        made = backend.compile_all(given, self.target.device)
        self.executables.update(zip(left, made, strict=True))

    def _operand(self, name: str) -> Handle:
        """What a derivation reads: another derived parameter, or a stored one, not kept for it."""
        if name in self.derived:
            return self.computed(self.derived[name])
        return self.parameters[name].store.handle(self.parameters[name].name, keep=False)

    def stored(self, name: str) -> Iterator[str]:
        """The stored parameters that a derived one comes from."""
        for port in self.derived[name].ports:
            if port.name in self.derived:
                yield from self.stored(port.name)
            else:
                yield port.name

    def origin(self, name: str) -> Parameter:
        """The first stored parameter that a derived one comes from; its store keeps the result."""
        while name in self.derived:
            name = self.derived[name].ports[0].name
        return self.parameters[name]


def _program(derivation: Derivation) -> Program:
    return Program(derivation.block, tuple(Port(port.name) for port in derivation.ports))


class PlanCache:
    """Plans by key, the least recently used leaving first; safe to use from several threads."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.compiled = 0
        self._capacity = capacity
        self._plans: OrderedDict[PlanKey, Plan] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, program: Program, target: Target, options: Options, name: str = "") -> Plan:
        """The plan for ``program``, compiled now, as ``name``, unless it is cached."""
        overrides = active_overrides()
        key = PlanKey(
            program,
            f"{target}#{id(target.backend)}",
            target.device.index,
            options,
            overrides,
            pipeline_key(),
        )
        with self._lock:
            plan = self._plans.get(key)
            missed = plan is None or plan.is_stale
            if events.listening():
                why = why_missed(key, self._plans) if missed else ""
                events.emit(events.CacheLookup("plans", name, not missed, why))
            if plan is None or missed:
                plan = compile_plan(program, target, options, overrides, name)
                self._plans[key] = plan
                self.compiled += 1
                if len(self._plans) > self._capacity:
                    self._plans.popitem(last=False)
            self._plans.move_to_end(key)
            return plan

    def forget(self, executables: Collection[Executable]) -> None:
        """Forget the plans of some executables, which hold memory."""
        gone = {id(executable) for executable in executables}
        with self._lock:
            for key in [key for key, plan in self._plans.items() if id(plan.executable) in gone]:
                del self._plans[key]

    def clear(self) -> None:
        """Forget every plan."""
        with self._lock:
            self._plans.clear()


PLANS: Final = PlanCache()


def compile_plan(
    program: Program, target: Target, options: Options, overrides: Overrides, name: str = ""
) -> Plan:
    """Optimize and compile ``program``, whose parameters stand behind its inputs.

    It is verified first: passes and backends rely on what it says. Raises ``VerifyError``.
    """
    verify(program)
    _check_order(program)
    where = target.backend.name, target.device.name
    if events.listening():
        events.emit(events.ProgramCompiling(program, name, *where, overrides))
    began = time.perf_counter()
    context = PassContext(
        target.backend, target.device, overrides, check_indices=options.check_indices
    )
    made = optimized(program, context)
    rows, whole = dict[str, Rows](), dict[str, str]()
    with located(UNKNOWN):
        if options.largest:
            made, rows, whole, options = _cut(made, target, options)
        executable = _compiled(made, target, options)
    seconds = time.perf_counter() - began
    derived = dict(context.derived)
    incarnation = target.backend.incarnation(target.device)
    follows = any(one.policy.kind in ("benchmark", "tuned") for one in overrides)
    choices = choices_revision() if follows else None
    given = options.donated, incarnation, options, rows, whole, name, choices
    plan = Plan(program, made, executable, target, derived, *given)
    if events.listening():
        events.emit(events.ProgramCompiled(program, made, *where, seconds, plan, overrides))
    return plan


def _cut(
    program: Program, target: Target, options: Options
) -> tuple[Program, dict[str, Rows], dict[str, str], Options]:
    """The program with parameters cut by rows, what they are, why others are not; its options."""
    from ptir.passes.cut_parameters import cut_parameters

    backend = target.backend
    made = cut_parameters(
        program,
        options.largest,
        backend.cut_unit,
        backend.composite_ranges(),
        options.check_indices,
    )
    return made.program, {**made.rows}, {**made.whole}, replace(options, apart=made.apart)


def _compiled(program: Program, target: Target, options: Options) -> Executable:
    """The program; cut where its parameters come and go and the backend only runs it whole."""
    backend, device = target.backend, target.device
    options = replace(options, largest=0)
    if not options.staged or backend.stages:
        return backend.compile(program, device, options)
    from ptir.backend.cut import CutProgram

    def compile(piece: Program, its: Options) -> Executable:
        return backend.compile(piece, device, its)

    return CutProgram(program, options, compile, lambda handle: backend.copy(handle, device))


def _check_order(program: Program) -> None:
    """Raise ``VerifyError`` for an input behind a parameter: a plan is run on inputs, then those.

    Capture and every pass keep that order; a program that was written by hand may not.
    """
    for first, second in pairwise(program.ports):
        if first.kind == "parameter" and second.kind == "input":
            raise VerifyError(
                f"input {second.name!r} stands behind parameter {first.name!r}; a plan takes inputs"
                " first, then parameters: put them in that order, or call all of them inputs"
            )


def plan_for(
    program: Program, target: Target, options: Options | None = None, name: str = ""
) -> Plan:
    """The cached plan of ``program`` on ``target`` under the overrides in force.

    Without ``options``, indices are checked if the environment asks for it. ``name`` is what traces
    and profiles call it.
    """
    return PLANS.get(program, target, options or Options(check_indices=checks_indices()), name)


def checks_indices() -> bool:
    """Whether ``PTIR_CHECK_INDICES=1`` asks for an error where an index is outside."""
    return switched_on("PTIR_CHECK_INDICES")
