"""Kernels that follow one another in one launch, done by workers that stay.

Between two launches a CPU's threads go to sleep and wake again, which takes longer than many a
kernel. So what runs without a copy in between becomes one kernel, a *chain*, whose *phases* are
the kernels. It is launched with one work-item per unit of the device, a *worker*. In every phase
workers claim items, one by one, until none are left, and wait until those claimed by others are
done. A worker waits only for items that a running worker has claimed: nothing is assumed about how
many run at the same time, and one that comes late finds its phases done.

Two counters belong to a phase, items claimed and items done, each in a cache line of its own. The
last worker to leave sets them all to zero for the next run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ptir.backend.kernel import Argument, Dialect, Staying
from ptir.codegen.kernel import Kernel
from ptir.codegen.plan import MemoryPlan
from ptir.codegen.recipe import Place
from ptir.types import I32, U8, TensorType

LINE: Final = 16
"""Counters in a cache line."""
STRIDE: Final = 2 * LINE
"""Counters between phases."""
PATIENCE: Final = 1 << 13
"""How often a worker looks for the others before it gives way to another thread, if it can."""
TURNS: Final = "turns"


@dataclass(frozen=True)
class Chain:
    """Kernels that run in one launch: their numbers, and the memories that they use in all.

    A chain of one kernel is launched as that kernel.
    """

    kernels: tuple[int, ...]
    memories: tuple[Place, ...]

    @property
    def counters(self) -> TensorType:
        """The type of its counters; the last one counts the workers that left."""
        return TensorType(I32, (len(self.kernels) * STRIDE + LINE,))


def within(place: Place, piece: int) -> tuple[Place, int]:
    """The memory in which a place lies, and its offset there; the arena comes in pieces."""
    if place.kind != "arena":
        return place, 0
    offset = place.number % piece
    return Place("arena", place.number - offset), offset


def chained(
    kernels: Sequence[Kernel | None], plan: MemoryPlan, dialect: Dialect, piece: int, most: int
) -> tuple[Chain, ...]:
    """The kernels of a program as chains, in order.

    A copy ends a chain, and so do more than ``most`` memories, the counters among them; the arena
    counts once for each ``piece`` bytes. A kernel of work-groups is launched alone.
    """
    most = most - 1 if dialect.staying is not None else 0
    found: list[Chain] = []
    numbers: list[int] = []
    memories: dict[Place, None] = {}

    def close() -> None:
        if numbers:
            found.append(Chain(tuple(numbers), tuple(memories)))
        numbers.clear()
        memories.clear()

    for number, kernel in enumerate(kernels):
        if plan.copies[number]:
            close()
        if kernel is None:
            continue
        own = dict.fromkeys(within(plan.places[v], piece)[0] for v in kernel.values)
        alone = kernel.members > 1
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
    """A kernel in a chain: its function, its items, and memory and byte offset of each argument."""

    function: int
    items: int
    uses: tuple[tuple[int, int], ...]


def phases(
    chain: Chain,
    kernels: Sequence[Kernel | None],
    plan: MemoryPlan,
    piece: int,
    functions: Sequence[int],
) -> tuple[Phase, ...]:
    """The phases of a chain, given the number of the function of each of its kernels."""
    place_of = {place: n for n, place in enumerate(chain.memories)}
    found: list[Phase] = []
    for number, function in zip(chain.kernels, functions, strict=True):
        kernel = kernels[number]
        assert kernel is not None
        places = [within(plan.places[value], piece) for value in kernel.values]
        uses = [(place_of[memory], offset) for memory, offset in places]
        found.append(Phase(function, kernel.items, tuple(uses)))
    return tuple(found)


# --- text ---


def function(dialect: Dialect, staying: Staying, name: str, kernel: Kernel) -> str:
    """A kernel as a function that claims items as long as there are some."""
    listed = "".join(f", {dialect.pointer(a)}{a.name}" for a in kernel.arguments)
    turn = dialect.pointer(Argument("turn", I32, True))
    claim = staying.claim.format("turn")
    lines = (
        f"{staying.function} {name}({turn}turn, const int items{listed}) {{",
        *((kernel.code.head_text,) if kernel.code.head else ()),
        "  int done = 0;",
        f"  for (int item = {claim}; item < items; item = {claim}) {{",
        kernel.code.each_text,
        "    done += 1;",
        "  }",
        f"  {staying.announce.format(f'turn + {LINE}', 'done')}",
        "}",
    )
    return "\n".join(lines)


def kernel(
    dialect: Dialect,
    staying: Staying,
    name: str,
    chain: Chain,
    made: Sequence[Phase],
    functions: Sequence[tuple[str, Sequence[Argument]]],
    workers: int,
) -> str:
    """The kernel of a chain. ``functions`` are the names and arguments of its functions."""
    buffers = [Argument(f"m{n}", U8, True) for n in range(len(chain.memories))]
    arguments = (*buffers, Argument(TURNS, I32, True))
    uses = [use for phase in made for use in phase.uses]
    bytes_at, turn = (dialect.pointer(Argument("", dtype, True)) for dtype in (U8, I32))
    listed = ", ".join(
        f"m{memory} + {offset}" if offset else f"m{memory}" for memory, offset in uses
    )
    last = f"{TURNS} + {len(made) * STRIDE}"
    table = staying.table.format(f"{name}_phases", ", ".join(map(str, _rows(made))))
    lines = (
        f"  {bytes_at}const uses[] = {{{listed}}};",
        f"  for (int n = 0; n < {len(made)}; n += 1) {{",
        f"    {turn}turn = {TURNS} + n * {STRIDE};",
        f"    const int items = {name}_phases[n * 3 + 1];",
        f"    if ({staying.seen.format('turn')} < items) {{",
        f"      {bytes_at}const *use = uses + {name}_phases[n * 3 + 2];",
        f"      switch ({name}_phases[n * 3]) {{",
        *_cases(dialect, made, functions),
        "      }",
        "    }",
        f"    for (int looks = 0; {staying.seen.format(f'turn + {LINE}')} < items; looks += 1) {{",
        f"      if (looks > {PATIENCE}) {{ {staying.pause} }}",
        "    }",
        f"    {staying.fence}",
        "  }",
        f"  if ({staying.claim.format(last)} == {workers - 1}) {{",
        f"    for (int n = 0; n < {len(made) * 2 + 1}; n += 1) {TURNS}[n * {LINE}] = 0;",
        "  }",
    )
    return f"{table}\n{dialect.kernel(name, arguments, chr(10).join(lines))}"


def _rows(made: Sequence[Phase]) -> Iterator[int]:
    """Function, items and first use of each phase."""
    first = 0
    for phase in made:
        yield from (phase.function, phase.items, first)
        first += len(phase.uses)


def _cases(
    dialect: Dialect, made: Sequence[Phase], functions: Sequence[tuple[str, Sequence[Argument]]]
) -> Iterator[str]:
    for number in sorted({phase.function for phase in made}):
        name, arguments = functions[number]
        given = "".join(f", ({dialect.pointer(a)})use[{n}]" for n, a in enumerate(arguments))
        yield f"        case {number}: {name}(turn, items{given}); break;"
