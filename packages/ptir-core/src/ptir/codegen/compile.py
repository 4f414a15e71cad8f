"""From a block to kernels: fuse, write each kernel, plan memory; equal texts are written once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ptir.backend.contract import Options
from ptir.backend.kernel import KernelDevice
from ptir.codegen import together, tune
from ptir.codegen.families import FAMILIES
from ptir.codegen.fuse import Fused, fuse
from ptir.codegen.kernel import Kernel, Site, scratch_value
from ptir.codegen.plan import MemoryPlan, plan_memory
from ptir.codegen.recipe import Call, Part, Recipe
from ptir.codegen.tuned import chosen
from ptir.errors import UnsupportedError
from ptir.ir.program import Block, Instruction


@dataclass(frozen=True)
class Compiled:
    """A block's kernels, written, and the plan of its memory."""

    fused: Fused
    kernels: tuple[Kernel | None, ...]
    """One per group; None where there is nothing to store."""
    plan: MemoryPlan
    source: str
    names: tuple[str, ...]

    def recipe(self) -> Recipe:
        """All that is needed to run it."""
        constants = (self.fused.graph.instruction(value) for value in self.plan.constants)
        return Recipe(
            self.source,
            tuple(self._calls()),
            self.plan.outputs,
            self.plan.arena,
            tuple(made.attributes["value"] for made in constants if made is not None),
        )

    def _calls(self) -> Iterator[Call]:
        """Everything that one run queues, in order."""
        for number, kernel in enumerate(self.kernels):
            yield from self._copies(number)
            if kernel is not None:
                parts = (Part(self.plan.places[v], self._nbytes(kernel, v)) for v in kernel.values)
                yield Call(self.names[number], kernel.items, tuple(parts))
        yield from self._copies(len(self.kernels))

    def _copies(self, number: int) -> Iterator[Call]:
        for copy in self.plan.copies[number]:
            if copy.nbytes:
                yield Call("", 0, (Part(copy.source, copy.nbytes), Part(copy.target, copy.nbytes)))

    def _nbytes(self, kernel: Kernel, value: int) -> int:
        """The bytes behind an argument of a kernel."""
        scratch = {scratch_value(kernel.group, n): type for n, type in enumerate(kernel.scratch)}
        type = scratch[value] if value in scratch else self.fused.graph.type(value)
        return max(1, type.nbytes)


def compile_block(block: Block, device: KernelDevice, options: Options) -> Compiled:
    """Fuse ``block``, write its kernels and plan its memory; raises ``UnsupportedError``."""
    fused = fuse(block)
    tune.notice(device, fused)
    site = Site(fused.graph, fused.is_stored, device.dialect, device.traits, chosen(device))
    kernels = tuple(
        FAMILIES[group.family].write(group, site)
        if any(fused.graph.type(value).size for value in group.exits)
        else None
        for group in fused.groups
    )
    _check_sizes(fused, kernels, device.traits.piece)
    reads = [_reads(kernel) for kernel in kernels]
    scratch = [kernel.scratch if kernel else () for kernel in kernels]
    over = [kernel.over if kernel else frozenset[int]() for kernel in kernels]
    plan = plan_memory(fused, reads, scratch, over, options, device.traits)
    names, source = _source(kernels, device)
    together.notice(device, source, {n: k for n, k in zip(names, kernels, strict=True) if k})
    return Compiled(fused, kernels, plan, source, names)


def _check_sizes(fused: Fused, kernels: Sequence[Kernel | None], largest: int) -> None:
    """Raise ``UnsupportedError`` for a value in memory that no allocation can hold."""
    graph = fused.graph
    inputs = {value: f"input {value}" for value in range(len(graph.block.inputs))}
    made = {value: _named(graph.instruction(value)) for value in sorted(fused.stored)}
    found = [(graph.type(value), what) for value, what in (inputs | made).items()]
    found += [(t, f"scratch of a {k.family} kernel") for k in kernels if k for t in k.scratch]
    for type, what in found:
        if type.nbytes > largest:
            raise UnsupportedError(
                f"{what}: {type} takes {type.nbytes} bytes in memory and the device's largest"
                f" allocation is {largest} bytes; use a smaller batch, context or dtype, or another"
                " device"
            )


def _named(made: Instruction | None) -> str:
    """An instruction for people."""
    if made is None:
        return "input"
    return f"the result of {made.name}" + (f" at {made.location}" if made.location else "")


def _reads(kernel: Kernel | None) -> tuple[int, ...]:
    """The stored values that a kernel needs before it runs, those it writes over included."""
    if kernel is None:
        return ()
    exits = set(kernel.group.exits)
    read = (value for value in kernel.values if value >= 0 and value not in exits)
    return (*read, *kernel.group.shares.values())


def _source(
    kernels: tuple[Kernel | None, ...], device: KernelDevice
) -> tuple[tuple[str, ...], str]:
    """Each kernel's name and the source file; kernels of equal text are written once."""
    known: dict[str, str] = {}
    texts = [device.dialect.prelude()]
    names: list[str] = []
    for kernel in kernels:
        if kernel is None:
            names.append("")
            continue
        text = kernel.text(device.dialect, "NAME")
        if text not in known:
            known[text] = f"{kernel.family}_{len(known)}"
            texts.append(kernel.text(device.dialect, known[text]))
        names.append(known[text])
    return tuple(names), "\n\n".join(texts)
