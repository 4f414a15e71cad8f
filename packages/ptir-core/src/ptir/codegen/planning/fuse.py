"""The fusion pass: which instructions share a kernel, and which values are stored between kernels.

Heroes (reductions, contractions, attention, ...) claim what follows them as long as it has a
single output; what precedes a kernel is inlined into it down to stored values. A value is stored
when it is an output, when a hero made it, or when several kernels need it and computing it again
would cost more than writing and reading it: the rule saves bytes first, then operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ptir.codegen.expressions.elementwise import ELEMENTWISE
from ptir.codegen.families import FAMILIES
from ptir.codegen.families import stored as fusion_that_stores
from ptir.codegen.fusion.graph import CHEAP, Graph, is_free, is_map, splat, weight
from ptir.codegen.schedules.kernel import Fusion
from ptir.ir.program import Block, Instruction

DEEP = 64
"""Most instructions that one element of a map goes through."""


@dataclass(frozen=True)
class FusionPlan:
    """The fusions in the order in which they run, and the values that lie in memory."""

    graph: Graph
    fusions: tuple[Fusion, ...]
    materialized: frozenset[int]
    reasons: Mapping[int, str] = field(default_factory=dict[int, str], compare=False, repr=False)
    """Of each value in memory that a kernel computes, why it is not in its readers' registers."""

    def is_stored(self, value: int) -> bool:
        """Whether kernels load the value; inputs and large constants are."""
        return value in self.materialized or value not in self.graph.maker


def fuse(
    block: Block, apart: Sequence[frozenset[int]] = (), cooperative: bool = False
) -> FusionPlan:
    """The kernels of a straight-line block, of which none reads inputs of two groups of ``apart``.

    That holds for kernels that no hero is in; heroes have at most one weight.
    """
    graph = Graph(block, cooperative=cooperative)
    heroes = _with_prologues(graph, _hero_fusions(graph))
    reasons = _materialized(graph, heroes, apart)
    stored = reasons.keys()
    made = {value for fusion in heroes for value in fusion.outputs}
    maps = [
        fusion_that_stores(graph, value)
        for value in sorted(stored - made)
        if not graph.is_constant(value)
    ]
    fusions = sorted((*heroes, *maps), key=lambda fusion: fusion.position)
    return FusionPlan(graph, tuple(fusions), frozenset(stored), reasons)


def _hero_fusions(graph: Graph) -> list[Fusion]:
    """A fusion for each hero that no earlier one took in; families are asked in table order."""
    found: list[Fusion] = []
    taken = graph.taken
    for family in FAMILIES.values():
        for position in range(len(graph.block.instructions)):
            fusion = None if position in taken else family.match(graph, position)
            if fusion is not None and not fusion.instructions & taken:
                found.append(fusion)
                taken |= fusion.instructions
    return found


def _with_prologues(graph: Graph, heroes: list[Fusion]) -> list[Fusion]:
    """Fusions whose results only others read that can compute them themselves go into those."""
    made = {value: fusion for fusion in heroes for value in fusion.outputs}
    fronts = {
        fusion: front
        for fusion in heroes
        if (front := FAMILIES[fusion.family].prologue_of(graph, fusion, made)) is not None
    }
    wanted = Counter(prologue.outputs[0] for _, prologue in fronts.values())
    gone = {v for v, n in wanted.items() if n == len(_kernels_reading(graph, v))}
    gone -= graph.outputs
    kept: list[Fusion] = []
    for fusion in heroes:
        operand, prologue = fronts.get(fusion, (None, None))
        if prologue is not None and prologue.outputs[0] in gone:
            own = (value for value in fusion.inputs if value != operand)
            reads = tuple(dict.fromkeys((*own, *prologue.inputs)))
            kept.append(replace(fusion, prologue=prologue, inputs=reads))
        elif not set(fusion.outputs) <= gone or not fusion.outputs:
            kept.append(fusion)
    return kept


def _kernels_reading(graph: Graph, value: int) -> set[int]:
    """The positions, behind views, that read a value."""
    found: set[int] = set()
    pending = [value]
    while pending:
        for position in graph.readers.get(pending.pop(), ()):
            if is_free(graph.block.instructions[position]) or _is_inlined(graph, position):
                pending.extend(graph.results[position])
            else:
                found.add(position)
    return found


def _is_inlined(graph: Graph, position: int) -> bool:
    """Whether readers compute an instruction themselves that could be a kernel's hero."""
    return any(family.is_inlined(graph, position) for family in FAMILIES.values())


# --- what is stored ---


OUTPUT: Final = "it is an output of the program"
HERO: Final = "its kernel computes a whole {family} before anybody can read it"
NEEDED: Final = "{family} reads it more than once, or where it lies"
APART: Final = "the kernel that reads it must not read weights of two stages"
LONG: Final = "the expression behind it is as long as one kernel's may be"
SHARED: Final = "several kernels read it, and computing it in each would cost more than memory"
CONSTANT: Final = "it is a constant of many numbers"
"""Why a value lies in memory."""


def _materialized(
    graph: Graph, heroes: list[Fusion], apart: Sequence[frozenset[int]]
) -> dict[int, str]:
    """Values that are written to memory, and why: outputs of any kind, what is dear and shared."""
    families = {value: fusion.family for fusion in heroes for value in fusion.outputs}
    reasons = {value: HERO.format(family=family) for value, family in families.items()}
    made = frozenset(reasons)
    reasons.update((value, OUTPUT) for value in graph.outputs if value in graph.maker)
    for fusion in heroes:
        why = NEEDED.format(family=fusion.family)
        _because(reasons, _must_materialize(graph, fusion, made), why)
    consumers: dict[int, set[int]] = {}
    for number, fusion in enumerate(heroes):
        for value in fusion.inputs:
            consumers.setdefault(value, set()).add(-1 - number)
    claimed = {position for fusion in heroes for position in fusion.all_instructions}
    stored = {*reasons}
    _because(reasons, _apart(graph, stored, claimed, apart), APART)
    stored = {*reasons}
    _because(reasons, _deep(graph, stored, claimed), LONG)
    stored = {*reasons}
    for position in reversed(range(len(graph.block.instructions))):
        if position not in claimed:
            _settle(graph, position, stored, consumers, claimed)
    later = stored - reasons.keys()
    _because(reasons, filter(graph.is_constant, later), CONSTANT)
    _because(reasons, later, SHARED)
    return reasons


def _because(reasons: dict[int, str], values: Iterable[int], why: str) -> None:
    """Note why values are stored; what was found first counts."""
    for value in values:
        reasons.setdefault(value, why)


def _must_materialize(graph: Graph, fusion: Fusion, made: frozenset[int]) -> set[int]:
    """Operands that a kernel reads too often, or too directly, to compute them while reading."""
    shared = set(fusion.output_aliases.values())
    plain = (value for value in fusion.materialized if value not in shared)
    found = shared | {graph.behind_views(value, made) for value in plain}
    found.update(FAMILIES[fusion.family].in_memory(graph, fusion, made))
    return {value for value in found if value in graph.maker}


def _apart(
    graph: Graph, stored: set[int], claimed: set[int], groups: Sequence[frozenset[int]]
) -> set[int]:
    """Values to store so that no map reads inputs of two groups."""
    behind: dict[int, frozenset[int]] = {}
    for number, group in enumerate(groups):
        for value in group:
            behind[value] = behind.get(value, frozenset()) | {number}
    found: set[int] = set()
    for position, made in enumerate(graph.block.instructions if groups else ()):
        if position in claimed or not is_map(made):
            continue
        read = [behind.get(operand, frozenset[int]()) for operand in made.operands]
        if len(frozenset[int]().union(*read)) > 1:
            mixed = {v for v, of in zip(made.operands, read, strict=True) if of}
            found |= {v for v in mixed if v in graph.maker}
            behind.update({v: frozenset() for v in mixed if v in graph.maker})
            read = [behind.get(operand, frozenset[int]()) for operand in made.operands]
        for value in graph.results[position]:
            behind[value] = frozenset() if value in stored else frozenset[int]().union(*read)
    return found


def _deep(graph: Graph, stored: set[int], claimed: set[int]) -> set[int]:
    """Values at which deep expressions are cut, so that they stay readable and builds short."""
    found: set[int] = set()
    depths: dict[int, int] = {}
    for position, made in enumerate(graph.block.instructions):
        if position in claimed or not is_map(made):
            continue
        (value,) = graph.results[position]
        steps = made.types[0].dtype.bits if made.op == "pow" else 1
        depth = steps + max((depths.get(operand, 0) for operand in made.operands), default=0)
        if value in stored:
            depth = 0
        elif depth > DEEP * (4 if is_free(made) else 1):
            found.add(value)
            depth = 0
        depths[value] = depth
    return found


def _settle(
    graph: Graph, position: int, stored: set[int], consumers: dict[int, set[int]], claimed: set[int]
) -> None:
    """Decide about the values of one instruction that no hero claimed; readers are settled."""
    made = graph.block.instructions[position]
    for value in graph.results[position]:
        readers = consumers.get(value, set())
        live = _live_readers(graph, value, stored, consumers, claimed)
        if value not in stored and _is_shared(graph, value, readers, live):
            stored.add(value)
        if value in stored:
            readers = {position}
        if not is_map(made):
            continue
        for operand in made.operands:
            consumers.setdefault(operand, set()).update(readers)


def _live_readers(
    graph: Graph, value: int, stored: set[int], consumers: dict[int, set[int]], claimed: set[int]
) -> list[Instruction]:
    """The instructions that no hero claimed, read a value and are computed for some kernel."""
    return [
        graph.block.instructions[position]
        for position in graph.readers.get(value, [])
        if position not in claimed
        and any(consumers.get(one) or one in stored for one in graph.results[position])
    ]


def _is_shared(graph: Graph, value: int, readers: set[int], live: list[Instruction]) -> bool:
    made = graph.instruction(value)
    assert made is not None
    if made.op == "constant":
        return bool(readers) and splat(made) is None
    if not readers:  # no kernel needs it
        return False
    if is_free(made) or not (len(readers) > 1 or _is_read_twice(live)):
        return False
    return _cost(graph, value) > CHEAP and not _is_of_packed(graph, value)


def _is_of_packed(graph: Graph, value: int) -> bool:
    """Whether packed parameters alone make a value: they would be expanded anew in every run."""

    def enters(value: int) -> bool:
        made = graph.instruction(value)
        return made is not None and is_map(made) and made.op != "composite"

    ends = {v for v in graph.walk(value, enters=enters) if not enters(v)}
    return bool(ends) and all(map(graph.is_map, ends))


def _is_read_twice(readers: list[Instruction]) -> bool:
    """Whether a map kernel would compute the value at more than one place per element.

    A dequantization reads the scale and the bias of a group at one place.
    """
    moved = (is_map(one) and one.op not in (*ELEMENTWISE, "dequantize") for one in readers)
    return len(readers) > 1 and any(moved)


def _cost(graph: Graph, value: int) -> int:
    """Elementwise ops behind one element of ``value``, up to a little more than is cheap."""
    total, pending = 0, [value]
    while pending and total <= CHEAP:
        made = graph.instruction(pending.pop())
        if made is not None and is_map(made):
            total += weight(made)
            pending.extend(made.operands)
    return total
