"""Kernels that follow one another in one launch, done by persistent threads.

Between two launches a CPU's threads go to sleep and wake again, which takes longer than many a
kernel. So what runs without a copy in between becomes one *persistent kernel*, whose *phases* are
the kernels. It is launched with one thread per unit of the device. In every phase the threads claim
workgroups, one by one, until none are left, and wait until those claimed by others are done. A
thread waits only for workgroups that a running thread has claimed: nothing is assumed about how
many run at the same time, and one that comes late finds its phases done.

Two counters belong to a phase, workgroups claimed and workgroups done, each in a cache line of its
own. The last thread to leave sets them all to zero for the next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from ptir.backend.kernel import Argument, Dialect, Language, PersistentPrimitives
from ptir.codegen.expressions.expr import Apply, Const, Expr, Var
from ptir.codegen.expressions.index import ZERO, Index, axis, dynamic
from ptir.codegen.kernel_ir.nodes import (
    Addresses,
    Assign,
    Call,
    Declare,
    Fence,
    For,
    If,
    Let,
    Signal,
    Statement,
    Store,
    Switch,
    While,
    Yield,
)
from ptir.codegen.kernel_ir.values import FetchAdd, Poll, Read
from ptir.codegen.planning.buffer_slot import BufferSlot
from ptir.codegen.planning.plan import MemoryPlan
from ptir.codegen.schedules.kernel import Kernel, KernelCode
from ptir.errors import VerifyError
from ptir.switches import switched_on
from ptir.types import BOOL, I32, U8, TensorType

LINE: Final = 16
"""Counters in a cache line."""
STRIDE: Final = 2 * LINE
"""Counters between phases."""
SPINS_BEFORE_YIELD: Final = 1 << 13
"""How often a thread looks for the others before it gives way to another one, if it can."""
ALL_COUNTERS: Final = "turns"
"""The buffer of a persistent kernel that holds the counters of all its phases."""
ANY: Final = (1 << 31) - 1
"""The workgroups of a phase, where nothing else is known of them."""


@dataclass(frozen=True)
class PersistentKernel:
    """Kernels that run in one launch: their numbers, and the memories that they use in all.

    One of a single kernel is launched as that kernel.
    """

    kernels: tuple[int, ...]
    buffers: tuple[BufferSlot, ...]

    @property
    def counters(self) -> TensorType:
        """The type of its counters; the last one counts the threads that left."""
        return TensorType(I32, (len(self.kernels) * STRIDE + LINE,))


def within(place: BufferSlot, piece: int) -> tuple[BufferSlot, int]:
    """The memory in which a place lies, and its offset there; the arena comes in pieces."""
    if place.kind != "arena":
        return place, 0
    offset = place.number % piece
    return BufferSlot("arena", place.number - offset), offset


def persistent_kernels(
    kernels: Sequence[Kernel | None], plan: MemoryPlan, dialect: Language, piece: int, most: int
) -> tuple[PersistentKernel, ...]:
    """The kernels of a program as persistent kernels, in order.

    A copy ends one, and so do more than ``most`` memories, the counters among them; the arena
    counts once for each ``piece`` bytes. A cooperative kernel is launched alone.
    """
    most = most - 1 if dialect.persistent is not None else 0
    found: list[PersistentKernel] = []
    numbers: list[int] = []
    memories: dict[BufferSlot, None] = {}

    def close() -> None:
        if numbers:
            found.append(PersistentKernel(tuple(numbers), tuple(memories)))
        numbers.clear()
        memories.clear()

    for number, kernel in enumerate(kernels):
        if plan.copies[number]:
            close()
        if kernel is None:
            continue
        own = dict.fromkeys(within(plan.slots[v], piece)[0] for v in kernel.values)
        alone = kernel.workgroup_size > 1
        if alone or len(memories | own) > most:
            close()
        numbers.append(number)
        memories |= own
        if alone:
            close()
    close()
    return tuple(found)


@dataclass(frozen=True)
class Phase:
    """A kernel in a persistent one: its function, its workgroups, and what it uses.

    ``uses`` are the memory and the byte offset of each argument.
    """

    function: int
    workgroups: int
    uses: tuple[tuple[int, int], ...]


def phases(
    persistent: PersistentKernel,
    kernels: Sequence[Kernel | None],
    plan: MemoryPlan,
    piece: int,
    functions: Sequence[int],
) -> tuple[Phase, ...]:
    """The phases of a persistent kernel, given the number of the function of each kernel."""
    place_of = {place: n for n, place in enumerate(persistent.buffers)}
    found: list[Phase] = []
    for number, function in zip(persistent.kernels, functions, strict=True):
        kernel = kernels[number]
        assert kernel is not None
        places = [within(plan.slots[value], piece) for value in kernel.values]
        uses = [(place_of[memory], offset) for memory, offset in places]
        found.append(Phase(function, kernel.workgroups, tuple(uses)))
    return tuple(found)


# --- kernels ---

ITEM, ITEMS, DONE, LOOKS = (Var(I32, name) for name in ("item", "items", "done", "looks"))
KIND, FIRST = Var(I32, "kind"), Var(I32, "first")
COUNTERS, USES = "turn", "uses"
"""The counters of a phase, and the addresses of what all phases use."""


def phase(code: KernelCode) -> KernelCode:
    """What a thread does in a phase: workgroups that it claims, as long as there are some."""
    claim = FetchAdd(COUNTERS, ZERO)
    each = *code.body, Assign(DONE, _next(DONE))
    claimed = While(ITEM, claim, Apply(BOOL, "lt", ITEM, ITEMS), claim, each)
    announced = Signal(COUNTERS, Index({}, LINE), DONE)
    return replace(code, body=(Declare((DONE,), (Const(I32, 0),)), claimed, announced))


def _next(variable: Var) -> Expr:
    return variable + 1


def _spelled(language: Language) -> tuple[Dialect, PersistentPrimitives]:
    """A language as the dialect that it is, and how that spells persistent kernels."""
    primitives = language.persistent
    assert isinstance(language, Dialect), f"{language.name} is no dialect"
    assert primitives is not None, f"{language.name} has no persistent kernels"
    return language, primitives


def device_function(language: Language, name: str, code: KernelCode) -> str:
    """The code of a phase as a function that takes counters, workgroups and buffers.

    Where ``PTIR_VERIFY`` is on, one that is not legal is a ``VerifyError``.
    """
    dialect, primitives = _spelled(language)
    given = replace(code, preamble=(Let(ITEMS, Const(I32, ANY)), *code.preamble))
    _check(f"{name}, a phase,", given, Argument(COUNTERS, I32, True), {COUNTERS: STRIDE * 4})
    listed = "".join(f", {dialect.pointer(a)}{a.name}" for a in code.arguments)
    pointer = dialect.pointer(Argument(COUNTERS, I32, True))
    head = f"{primitives.function} {name}({pointer}{COUNTERS}, const int {ITEMS.name}{listed})"
    return f"{head} {{\n{code.text}\n}}"


Functions: TypeAlias = Sequence[tuple[str, Sequence[Argument]]]
"""The names and arguments of functions, by number."""


def persistent_code(
    language: Language,
    table: str,
    persistent: PersistentKernel,
    made: Sequence[Phase],
    functions: Functions,
    workers: int,
) -> KernelCode:
    """What a thread does in a persistent kernel. ``table`` has a row for each phase (``_rows``)."""
    buffers = [Argument(f"m{n}", U8, True) for n in range(len(persistent.buffers))]
    uses = [use for each in made for use in each.uses]
    row, counters = axis("n", len(made)) * 3, axis("n", len(made)) * STRIDE
    kind, workgroups, first = (Read(I32, table, row + n) for n in range(3))
    claimed = (
        Let(KIND, kind),
        Let(FIRST, first),
        _called(made, functions, counters, dynamic(FIRST, 0, len(uses))),
    )
    waiting = Apply(BOOL, "lt", Poll(ALL_COUNTERS, counters + LINE), ITEMS)
    impatient = If(Apply(BOOL, "gt", LOOKS, Const(I32, SPINS_BEFORE_YIELD)), (Yield(),))
    each_phase = (
        Let(ITEMS, workgroups),
        If(Apply(BOOL, "lt", Poll(ALL_COUNTERS, counters), ITEMS), claimed),
        While(LOOKS, Const(I32, 0), waiting, _next(LOOKS), (impatient,)),
        Fence(),
    )
    left = FetchAdd(ALL_COUNTERS, Index({}, len(made) * STRIDE))
    is_last = Apply(BOOL, "eq", left, Const(I32, workers - 1))
    count = len(made) * 2 + 1
    cleared = Store(I32, ALL_COUNTERS, axis("n", count) * LINE, Const(I32, 0))
    statements = (
        Addresses(USES, tuple(f"m{memory}" for memory, _ in uses), tuple(at for _, at in uses)),
        _counted(len(made), each_phase),
        If(is_last, (_counted(count, (cleared,)),)),
    )
    return KernelCode((), statements, (*buffers, Argument(ALL_COUNTERS, I32, True)), language)


def _counted(end: int, body: tuple[Statement, ...]) -> For:
    return For("n", Const(I32, 0), Const(I32, end), 1, body)


def _called(made: Sequence[Phase], functions: Functions, counters: Index, first: Index) -> Switch:
    """The call of the function of the phase at hand, among those of all phases."""
    numbers = sorted({phase.function for phase in made})
    bodies: list[tuple[Statement, ...]] = []
    for one in numbers:
        name, arguments = functions[one]
        dtypes, written = tuple(a.dtype for a in arguments), tuple(a.written for a in arguments)
        bodies.append((Call(name, ALL_COUNTERS, counters, ITEMS, USES, first, dtypes, written),))
    return Switch(KIND, tuple(numbers), tuple(bodies))


def kernel(
    language: Language,
    name: str,
    persistent: PersistentKernel,
    made: Sequence[Phase],
    functions: Functions,
    workers: int,
) -> str:
    """The text of a persistent kernel; ``VerifyError`` if ``PTIR_VERIFY`` finds it not legal."""
    (dialect, primitives), table = _spelled(language), f"{name}_phases"
    code = persistent_code(language, table, persistent, made, functions, workers)
    nbytes = {ALL_COUNTERS: persistent.counters.nbytes, table: 3 * I32.itemsize * len(made)}
    _check(name, code, Argument(table, I32, False), nbytes)
    rows = primitives.table.format(table, ", ".join(map(str, _rows(made))))
    return f"{rows}\n{dialect.kernel(name, code.arguments, code.text)}"


def _rows(made: Sequence[Phase]) -> Iterator[int]:
    """Function, workgroups and first use of each phase."""
    first = 0
    for phase in made:
        yield from (phase.function, phase.workgroups, first)
        first += len(phase.uses)


def _check(what: str, code: KernelCode, given: Argument, nbytes: Mapping[str, int]) -> None:
    """Raise ``VerifyError`` for code that is not legal where it finds a memory more."""
    if not switched_on("PTIR_VERIFY"):
        return
    problems = replace(code, arguments=(*code.arguments, given)).faults(1, nbytes)
    if problems:
        raise VerifyError(
            f"{what} is not legal: {problems[0]}; this is a fault of the kernel generator: report"
            " the program (`ptir dump`)"
        )
