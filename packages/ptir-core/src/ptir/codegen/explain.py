"""What a compiled program does, kernel by kernel: what is fused into each, the bytes it moves."""

from __future__ import annotations

from collections.abc import Iterator

from ptir.backend.explanation import Access, Explanation, Part, read_sizes, written_bytes
from ptir.codegen.compile import Compiled
from ptir.codegen.planning.fuse import Fused
from ptir.codegen.planning.place import Place
from ptir.codegen.planning.plan import Copy
from ptir.codegen.schedules.kernel import Group, Kernel


def explain(compiled: Compiled) -> Explanation:
    """The parts of one run, in the order of ``Compiled.steps``."""
    return Explanation(tuple(_parts(compiled)), compiled.plan.arena)


def _parts(compiled: Compiled) -> Iterator[Part]:
    plan = compiled.plan
    owners = {place: value for value, place in reversed(plan.places.items())}
    for number, kernel in enumerate(compiled.kernels):
        yield from (_copied(copy, owners) for copy in plan.copies[number] if copy.nbytes)
        if kernel is not None:
            yield from _launched(compiled.fused, kernel)
    yield from (_copied(copy, owners) for copy in plan.copies[-1] if copy.nbytes)


def _copied(copy: Copy, owners: dict[Place, int]) -> Part:
    """A copy; memory that no value lies in is an output that repeats another value."""
    source = owners[copy.source]
    target = owners.get(copy.target, source)
    reads, writes = Access(source, copy.nbytes), Access(target, copy.nbytes)
    return Part("copy", "copy", (), (reads,), (writes,))


def _launched(fused: Fused, kernel: Kernel) -> Iterator[Part]:
    """A kernel, and what follows it, which reads nothing that others may: it writes exits."""
    group, *others = kernel.group, *kernel.launches[1:]
    needed, inlined = _needed(fused, group)
    members = {*group.inside, *inlined}
    members |= _passed(fused, group, members)
    types = fused.graph.block.types
    reads = tuple(
        Access(value, -(-elements * types[value].nbytes // max(1, types[value].size)))
        for value, elements in sorted(needed.items())
        if value not in group.exits
    )
    later = {value for other in others for value in other.values}
    writes = tuple(_written(fused, group, value) for value in group.exits if value not in later)
    sizes = kernel.items, kernel.members
    yield Part("kernel", kernel.family, tuple(sorted(members)), reads, writes, *sizes)
    for other in others:
        own = (value for value in group.exits if value in other.values)
        writes = tuple(_written(fused, group, value) for value in own)
        yield Part("kernel", other.family, (), (), writes, other.items, other.members)


def _needed(fused: Fused, group: Group) -> tuple[dict[int, int], set[int]]:
    """Elements read of each value in memory, and the instructions inlined on the way to it."""
    graph = fused.graph
    held: dict[int, int] = {}
    inlined: set[int] = set()
    seen: dict[int, int] = {}
    pending = [(value, graph.type(value).size) for value in group.reads]
    while pending:
        value, needed = pending.pop()
        if seen.get(value, -1) >= needed:
            continue
        seen[value] = needed
        made = graph.instruction(value)
        if made is None or fused.is_stored(value):
            held[value] = max(held.get(value, 0), needed)
            continue
        inlined.add(graph.maker[value])
        types = [graph.type(operand) for operand in made.operands]
        pending.extend(zip(made.operands, read_sizes(made, types, needed), strict=True))
    return held, inlined


def _passed(fused: Fused, group: Group, members: set[int]) -> set[int]:
    """What a kernel need not compute because it reads what lies behind: the panels of a weight."""
    graph = fused.graph
    found: set[int] = set()
    pending = [v for position in members for v in graph.block.instructions[position].operands]
    while pending:
        value = pending.pop()
        position = graph.maker.get(value)
        if position is None or fused.is_stored(value) or position in found | members:
            continue
        found.add(position)
        pending.extend(graph.block.instructions[position].operands)
    return found


def _written(fused: Fused, group: Group, value: int) -> Access:
    made = fused.graph.instruction(value)
    if value not in group.shares or made is None:
        return Access(value, fused.graph.type(value).nbytes)
    nbytes = written_bytes(fused.graph.block, made, fused.graph.type(value))
    return Access(group.shares[value], nbytes)
