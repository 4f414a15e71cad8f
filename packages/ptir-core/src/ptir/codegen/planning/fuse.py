"""The fusion pass: which instructions share a kernel, and which values are stored between kernels.

Heroes (reductions, contractions, attention, ...) claim what follows them as long as it has a
single exit; what precedes a kernel is inlined into it down to stored values. A value is stored
when it is an output, when a hero made it, or when several kernels need it and computing it again
would cost more than writing and reading it: the rule saves bytes first, then operations.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from ptir.codegen.expressions.elementwise import ELEMENTWISE
from ptir.codegen.families import FAMILIES
from ptir.codegen.families import stored as group_that_stores
from ptir.codegen.fusion.graph import CHEAP, Graph, is_free, is_map, splat, weight
from ptir.codegen.schedules.kernel import Group
from ptir.ir.program import Block

DEEP = 64
"""Most instructions that one element of a map goes through."""


@dataclass(frozen=True)
class Fused:
    """The groups in the order in which they run, and the values that lie in memory."""

    graph: Graph
    groups: tuple[Group, ...]
    stored: frozenset[int]

    def is_stored(self, value: int) -> bool:
        """Whether kernels load the value; inputs and large constants are."""
        return value in self.stored or value not in self.graph.maker


def fuse(block: Block) -> Fused:
    """The kernels of a straight-line block."""
    graph = Graph(block)
    heroes = _absorbed(graph, _heroes(graph))
    stored = _stored(graph, heroes)
    made = {value for group in heroes for value in group.exits}
    maps = [
        group_that_stores(graph, value)
        for value in sorted(stored - made)
        if not _is_constant(graph, value)
    ]
    groups = sorted((*heroes, *maps), key=lambda group: group.position)
    return Fused(graph, tuple(groups), frozenset(stored))


def _is_constant(graph: Graph, value: int) -> bool:
    made = graph.instruction(value)
    return made is not None and made.op == "constant"


def _heroes(graph: Graph) -> list[Group]:
    """A group for each hero that no earlier group took in; families are asked in table order."""
    found: list[Group] = []
    taken = graph.taken
    for family in FAMILIES.values():
        for position in range(len(graph.block.instructions)):
            group = None if position in taken else family.match(graph, position)
            if group is not None and not group.members & taken:
                found.append(group)
                taken |= group.members
    return found


def _absorbed(graph: Graph, heroes: list[Group]) -> list[Group]:
    """Groups whose results only others read that can compute them themselves move into those."""
    made = {value: group for group in heroes for value in group.exits}
    fronts = {
        group: front
        for group in heroes
        if (front := FAMILIES[group.family].prologue_of(graph, group, made)) is not None
    }
    wanted = Counter(prologue.exits[0] for _, prologue in fronts.values())
    gone = {v for v, n in wanted.items() if n == len(_kernels_reading(graph, v))}
    gone -= graph.outputs
    kept: list[Group] = []
    for group in heroes:
        operand, prologue = fronts.get(group, (None, None))
        if prologue is not None and prologue.exits[0] in gone:
            own = (value for value in group.reads if value != operand)
            reads = tuple(dict.fromkeys((*own, *prologue.reads)))
            kept.append(replace(group, prologue=prologue, reads=reads))
        elif not set(group.exits) <= gone or not group.exits:
            kept.append(group)
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
    """Whether readers compute an instruction themselves that could be a kernel's anchor."""
    return any(family.is_inlined(graph, position) for family in FAMILIES.values())


# --- what is stored ---


def _stored(graph: Graph, heroes: list[Group]) -> set[int]:
    """Values that are written to memory: exits, outputs, and what is dear and shared."""
    stored = {value for group in heroes for value in group.exits}
    made = frozenset(stored)
    stored |= {value for value in graph.outputs if value in graph.maker}
    for group in heroes:
        stored |= _exact(graph, group, made)
    consumers: dict[int, set[int]] = {}
    for number, group in enumerate(heroes):
        for value in group.reads:
            consumers.setdefault(value, set()).add(-1 - number)
    claimed = {position for group in heroes for position in group.inside}
    stored |= _deep(graph, stored, claimed)
    for position in reversed(range(len(graph.block.instructions))):
        if position not in claimed:
            _settle(graph, position, stored, consumers, claimed)
    return stored


def _exact(graph: Graph, group: Group, made: frozenset[int]) -> set[int]:
    """Operands that a kernel reads too often, or too directly, to compute them while reading."""
    shared = set(group.shares.values())
    plain = (value for value in group.exact if value not in shared)
    found = shared | {graph.behind_views(value, made) for value in plain}
    found.update(FAMILIES[group.family].in_memory(graph, group, made))
    return {value for value in found if value in graph.maker}


def _deep(graph: Graph, stored: set[int], claimed: set[int]) -> set[int]:
    """Values at which long chains are cut, so that expressions stay readable and builds short."""
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
    graph: Graph,
    position: int,
    stored: set[int],
    consumers: dict[int, set[int]],
    claimed: set[int],
) -> None:
    """Decide about the values of one instruction that no hero claimed; readers are settled."""
    made = graph.block.instructions[position]
    for value in graph.results[position]:
        readers = consumers.get(value, set())
        if value not in stored and _is_shared(graph, value, readers, claimed):
            stored.add(value)
        if value in stored:
            readers = {position}
        if not is_map(made):
            continue
        for operand in made.operands:
            consumers.setdefault(operand, set()).update(readers)


def _is_shared(graph: Graph, value: int, readers: set[int], claimed: set[int]) -> bool:
    made = graph.instruction(value)
    assert made is not None
    if made.op == "constant":
        return bool(readers) and splat(made) is None
    if not readers:  # no kernel needs it
        return False
    if is_free(made) or not (len(readers) > 1 or _is_read_twice(graph, value, claimed)):
        return False
    return _cost(graph, value) > CHEAP


def _is_read_twice(graph: Graph, value: int, claimed: set[int]) -> bool:
    """Whether a map kernel would compute the value at more than one place per element."""
    positions = [p for p in graph.readers.get(value, ()) if p not in claimed]
    readers = [graph.block.instructions[p] for p in positions]
    moved = (is_map(made) and made.op not in ELEMENTWISE for made in readers)
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
