"""The fusion pass: which instructions share a kernel, and which values are stored between kernels.

Heroes (reductions, contractions, attention, ...) claim what follows them as long as it has a
single exit; what precedes a kernel is inlined into it down to stored values. A value is stored
when it is an output, when a hero made it, or when several kernels need it and computing it again
would cost more than writing and reading it: the rule saves bytes first, then operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ptir.codegen.elementwise import ELEMENTWISE
from ptir.codegen.families import FAMILIES, elements
from ptir.codegen.families.product import rows_in_memory
from ptir.codegen.families.product_parts import HELD, Product
from ptir.codegen.families.rounding import is_absorbed
from ptir.codegen.families.rows import Rows
from ptir.codegen.graph import CHEAP, Graph, is_free, is_map, weight
from ptir.codegen.kernel import Group
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
        elements.group(graph, value)
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
    """Row programs that only feed products of few rows move into those products."""
    by_exit = {value: group for group in heroes for value in group.exits}
    products = [g for g in heroes if isinstance(g.detail, Product)]
    prologues = {g: p for g in products if (p := _prologue(graph, g, by_exit)) is not None}
    wanted: dict[int, int] = {}
    for group in prologues.values():
        wanted[group.exits[0]] = wanted.get(group.exits[0], 0) + 1
    gone = {v for v, n in wanted.items() if n == len(_kernels_reading(graph, v))}
    gone -= graph.outputs
    kept: list[Group] = []
    for group in heroes:
        prologue = prologues.get(group)
        if prologue is not None and prologue.exits[0] in gone:
            kept.append(_with_prologue(group, prologue))
        elif not set(group.exits) <= gone or not group.exits:
            kept.append(group)
    return kept


def _prologue(graph: Graph, product: Group, by_exit: dict[int, Group]) -> Group | None:
    """The row program whose rows are the activations of a product of few rows."""
    detail: Product = product.detail
    source = graph.behind_views(detail.lhs, by_exit)
    group = by_exit.get(source)
    if group is None or not isinstance(group.detail, Rows) or not detail.is_streamed:
        return None
    rows = group.detail
    same = (rows.count, rows.size) == (detail.rows, detail.inputs)
    fits = rows.count * rows.size <= HELD
    return group if same and fits and _unmoved(graph, detail.lhs, source) else None


def _unmoved(graph: Graph, value: int, source: int) -> bool:
    """Whether the views between two values keep every element where it is in memory."""
    while value != source:
        made = graph.instruction(value)
        if made is None or made.op not in ("reshape", "stop_gradient"):
            return False
        value = made.operands[0]
    return True


def _kernels_reading(graph: Graph, value: int) -> set[int]:
    """The positions, behind views, that read a value."""
    found: set[int] = set()
    pending = [value]
    while pending:
        for position in graph.readers.get(pending.pop(), ()):
            if is_free(graph.block.instructions[position]) or is_absorbed(graph, position):
                pending.extend(graph.results[position])
            else:
                found.add(position)
    return found


def _with_prologue(group: Group, prologue: Group) -> Group:
    detail = replace(group.detail, prologue=prologue)
    own = tuple(v for v in group.reads if v != detail.lhs)
    reads = tuple(dict.fromkeys((*own, *prologue.reads)))
    return replace(group, detail=detail, reads=reads)


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
    claimed = {p for group in heroes for p in group.members}
    claimed |= {
        p
        for group in heroes
        if isinstance(group.detail, Product) and group.detail.prologue is not None
        for p in group.detail.prologue.members
    }
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
    if isinstance(group.detail, Product) and not group.detail.is_held:
        found.add(rows_in_memory(graph, group.detail, made))
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
        from ptir.codegen.graph import splat

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
