"""What a compiled program does, kernel by kernel: what is fused into each, the bytes it moves."""

from __future__ import annotations

from collections.abc import Iterator

from ptir.backend.explanation import Access, Explanation, Part, read_sizes, written_bytes
from ptir.codegen.compile import Compiled
from ptir.codegen.planning.buffer_slot import BufferSlot
from ptir.codegen.planning.fuse import FusionPlan
from ptir.codegen.planning.plan import Copy
from ptir.codegen.schedules.kernel import Fusion, Kernel


def explain(compiled: Compiled) -> Explanation:
    """The parts of one run, in the order of ``Compiled.steps``."""
    reasons = dict(compiled.fused.reasons)
    return Explanation(tuple(_parts(compiled)), compiled.plan.arena, stored=reasons)


def _parts(compiled: Compiled) -> Iterator[Part]:
    plan = compiled.plan
    owners = {place: value for value, place in reversed(plan.slots.items())}
    for number, kernel in enumerate(compiled.kernels):
        yield from (_copied(copy, owners) for copy in plan.copies[number] if copy.nbytes)
        if kernel is not None:
            yield from _launched(compiled.fused, kernel)
    yield from (_copied(copy, owners) for copy in plan.copies[-1] if copy.nbytes)


def _copied(copy: Copy, owners: dict[BufferSlot, int]) -> Part:
    """A copy; memory that no value lies in is an output that repeats another value."""
    source = owners[copy.source]
    target = owners.get(copy.target, source)
    reads, writes = Access(source, copy.nbytes), Access(target, copy.nbytes)
    return Part("copy", "copy", (), (reads,), (writes,))


def _launched(plan: FusionPlan, kernel: Kernel) -> Iterator[Part]:
    """A kernel, and what follows it, which reads nothing that others may: it writes outputs."""
    fusion, *others = kernel.fusion, *kernel.launches[1:]
    needed = _needed(plan, fusion)
    computed = fusion.all_instructions | _inlined(plan, fusion)
    types = plan.graph.block.types
    reads = tuple(
        Access(value, -(-elements * types[value].nbytes // max(1, types[value].size)))
        for value, elements in sorted(needed.items())
        if value not in fusion.outputs
    )
    later = {value for other in others for value in other.values}
    writes = tuple(_written(plan, fusion, value) for value in fusion.outputs if value not in later)
    sizes = kernel.workgroups, kernel.workgroup_size
    yield Part("kernel", kernel.family, tuple(sorted(computed)), reads, writes, *sizes)
    for other in others:
        own = (value for value in fusion.outputs if value in other.values)
        writes = tuple(_written(plan, fusion, value) for value in own)
        yield Part("kernel", other.family, (), (), writes, other.workgroups, other.workgroup_size)


def _needed(plan: FusionPlan, fusion: Fusion) -> dict[int, int]:
    """Elements read of each value in memory.

    They are followed from the results, of which a kernel may select a few of what it is given.
    """
    graph, members = plan.graph, frozenset(fusion.all_instructions)
    held: dict[int, int] = {}
    seen: dict[int, int] = {}
    pending = [(value, graph.type(value).size) for value in fusion.outputs]
    while pending:
        value, needed = pending.pop()
        if seen.get(value, -1) >= needed:
            continue
        seen[value] = needed
        made, position = graph.instruction(value), graph.maker.get(value)
        if made is None or (plan.is_stored(value) and position not in members):
            held[value] = max(held.get(value, 0), needed)
            continue
        types = [graph.type(operand) for operand in made.operands]
        pending.extend(zip(made.operands, read_sizes(made, types, needed), strict=True))
    return held


def _inlined(plan: FusionPlan, fusion: Fusion) -> set[int]:
    """The instructions between a kernel's own and what lies in memory.

    Some it need not compute because it reads what lies behind: the panels of a weight.
    """
    graph, own = plan.graph, fusion.all_instructions
    read = (v for position in own for v in graph.block.instructions[position].operands)

    def is_inlined(value: int) -> bool:
        return not plan.is_stored(value) and graph.maker[value] not in own

    behind = graph.walk(*read, enters=is_inlined)
    return {graph.maker[value] for value in behind if is_inlined(value)}


def _written(plan: FusionPlan, fusion: Fusion, value: int) -> Access:
    made = plan.graph.instruction(value)
    if value not in fusion.output_aliases or made is None:
        return Access(value, plan.graph.type(value).nbytes)
    nbytes = written_bytes(plan.graph.block, made, plan.graph.type(value))
    return Access(fusion.output_aliases[value], nbytes)
