"""From a block to kernels: fuse, write each kernel, plan memory; equal texts are written once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptir.backend.contract import Options
from ptir.codegen.artifact.record import Artifact, BufferBinding, Command
from ptir.codegen.artifact.source import SourceFile
from ptir.codegen.context import Context
from ptir.codegen.expressions.expr import interned
from ptir.codegen.planning.buffer_slot import BufferSlot
from ptir.codegen.planning.deduplicate import write_kernels
from ptir.codegen.planning.fuse import FusionPlan, fuse
from ptir.codegen.planning.persistent import PersistentKernel, persistent_kernels, phases
from ptir.codegen.planning.plan import MemoryPlan, plan_memory
from ptir.codegen.schedules.kernel import Kernel
from ptir.errors import UnsupportedError, VerifyError
from ptir.ir.program import Block, Instruction
from ptir.switches import switched_on


@dataclass(frozen=True)
class Compiled:
    """A block's kernels, written, and the plan of its memory."""

    fused: FusionPlan
    kernels: tuple[Kernel | None, ...]
    """One per fusion; None where there is nothing to store."""
    plan: MemoryPlan
    persistent: tuple[PersistentKernel, ...]
    """The kernels as they are launched, in order."""
    source: str
    names: tuple[tuple[str, ...], ...]
    """The names of each persistent kernel's launches in the source; of one kernel, all of its."""
    workers: int
    """Threads of a persistent kernel."""
    max_allocation: int
    """Bytes of an allocation of the arena."""

    def artifact(self) -> Artifact:
        """The artifact: all that is needed to bind and run it."""
        constants = (self.fused.graph.instruction(value) for value in self.plan.constants)
        return Artifact(
            self.source,
            tuple(self._commands()),
            self.plan.outputs,
            self.plan.arena,
            tuple(made.attributes["value"] for made in constants if made is not None),
        )

    def _commands(self) -> Iterator[Command]:
        """Everything that one run queues, in order."""
        last = 0
        for persistent, names in zip(self.persistent, self.names, strict=True):
            yield from self._copies(range(last, persistent.kernels[0] + 1))
            last = persistent.kernels[-1] + 1
            yield from self._launches(persistent, names)
        yield from self._copies(range(last, len(self.kernels) + 1))

    def _launches(self, persistent: PersistentKernel, names: Sequence[str]) -> Iterator[Command]:
        kernel = self.kernels[persistent.kernels[0]]
        assert kernel is not None
        if len(persistent.kernels) == 1:
            for name, each in zip(names, kernel.launches, strict=True):
                parts = (
                    BufferBinding(self.plan.slots[v], self._nbytes(kernel, v)) for v in each.values
                )
                yield Command(name, each.workgroups, tuple(parts), each.workgroup_size)
            return
        memories = (BufferBinding(place, self._owned_bytes(place)) for place in persistent.buffers)
        counters = BufferBinding(BufferSlot("counters", 0), persistent.counters.nbytes)
        (name,) = names
        yield Command(name, self.workers, (*memories, counters))

    def _owned_bytes(self, place: BufferSlot) -> int:
        """The bytes of a memory that is the program's own: a whole allocation of the arena."""
        left = self.plan.arena - place.number
        return min(self.max_allocation, left) if place.kind == "arena" else 0

    def _copies(self, steps: range) -> Iterator[Command]:
        for copy in (copy for step in steps for copy in self.plan.copies[step]):
            if copy.nbytes:
                ends = (BufferBinding(place, copy.nbytes) for place in (copy.source, copy.target))
                yield Command("", 0, tuple(ends))

    def _nbytes(self, kernel: Kernel, value: int) -> int:
        """The bytes behind an argument of a kernel."""
        type = kernel.scratch_types.get(value) or self.fused.graph.type(value)
        return max(1, type.nbytes)


def compile_block(block: Block, context: Context, options: Options) -> Compiled:
    """Fuse ``block``, write its kernels and plan its memory; raises ``UnsupportedError``."""
    with interned(context.source.nodes):
        return _compiled(block, context, options)


def _compiled(block: Block, context: Context, options: Options) -> Compiled:
    traits, source = context.traits, context.source
    fused = fuse(block, options.apart, context.schedule == "coop")
    if context.recorder is not None:
        context.recorder(fused)
    kernels = write_kernels(fused, context.emit_context(fused))
    if switched_on("PTIR_VERIFY"):
        _verify(fused, kernels)
    _check_sizes(fused, kernels, traits.aligned_allocation_bytes)
    reads = [_reads(kernel) for kernel in kernels]
    scratch = [kernel.scratch if kernel else () for kernel in kernels]
    over = [kernel.may_alias if kernel else frozenset[int]() for kernel in kernels]
    plan = plan_memory(fused, reads, scratch, over, options, traits)
    most = 0 if context.apart else traits.max_persistent_buffers
    persistent = persistent_kernels(
        kernels, plan, source.dialect, traits.aligned_allocation_bytes, most
    )
    names = _named_in(source, kernels, persistent, plan)
    return Compiled(
        fused, kernels, plan, persistent, source.text, names, source.workers, source.piece
    )


def _check_sizes(plan: FusionPlan, kernels: Sequence[Kernel | None], largest: int) -> None:
    """Raise ``UnsupportedError`` for a value in memory that no allocation can hold."""
    graph = plan.graph
    inputs = {value: f"input {value}" for value in range(len(graph.block.inputs))}
    made = {value: _named(graph.instruction(value)) for value in sorted(plan.materialized)}
    found = [(graph.type(value), what) for value, what in (inputs | made).items()]
    found += [(t, f"scratch of a {k.family} kernel") for k in kernels if k for t in k.scratch]
    for type, what in found:
        if type.nbytes > largest:
            raise UnsupportedError(
                f"{what}: {type} takes {type.nbytes} bytes in memory and the device's largest"
                f" allocation is {largest} bytes; use a smaller batch, context or dtype, or another"
                " device"
            )


def _verify(plan: FusionPlan, kernels: Sequence[Kernel | None]) -> None:
    """Raise ``VerifyError`` for a kernel that is not legal."""
    for kernel in (each for one in kernels if one is not None for each in one.launches):
        scratch = kernel.scratch_types
        types = (scratch.get(v) or plan.graph.type(v) for v in kernel.values if v >= 0 or scratch)
        nbytes = {a.name: t.nbytes for a, t in zip(kernel.arguments, types, strict=False)}
        if problems := kernel.code.faults(kernel.workgroup_size, nbytes):
            more = f"; and {len(problems) - 1} more" if problems[1:] else ""
            raise VerifyError(
                f"a {kernel.family} kernel for {_named(_first(plan, kernel))} is not legal:"
                f" {problems[0]}{more}; this is a fault of the kernel generator: report the program"
                " (`ptir dump`)"
            )


def _first(plan: FusionPlan, kernel: Kernel) -> Instruction:
    return plan.graph.block.instructions[kernel.fusion.position]


def _named(made: Instruction | None) -> str:
    """An instruction for people."""
    if made is None:
        return "input"
    where = str(made.location)
    return f"the result of {made.name}" + (f" at {where}" if where else "")


def _reads(kernel: Kernel | None) -> tuple[int, ...]:
    """The stored values that a kernel needs before it runs, those it writes over included."""
    if kernel is None:
        return ()
    outputs = set(kernel.fusion.outputs)
    used = (value for each in kernel.launches for value in each.values)
    read = (value for value in used if value >= 0 and value not in outputs)
    return (*read, *kernel.fusion.output_aliases.values())


def _named_in(
    source: SourceFile,
    kernels: Sequence[Kernel | None],
    launched: Sequence[PersistentKernel],
    plan: MemoryPlan,
) -> tuple[tuple[str, ...], ...]:
    """The names of each persistent kernel in the source; what has equal text is written once."""
    names: list[tuple[str, ...]] = []
    for persistent in launched:
        found = [k for n in persistent.kernels if (k := kernels[n]) is not None]
        if len(found) == 1:
            names.append(tuple(source.kernel(each) for each in found[0].launches))
        else:
            functions = [source.function(kernel) for kernel in found]
            made = phases(persistent, kernels, plan, source.piece, functions)
            names.append((source.persistent_kernel(persistent, made),))
    return tuple(names)
