"""From a block to built kernels: fuse, write each kernel, plan memory, build once per text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ptir.backend.contract import Options
from ptir.backend.kernel import KernelDevice
from ptir.codegen import together
from ptir.codegen.binaries import built
from ptir.codegen.families import FAMILIES
from ptir.codegen.fuse import Fused, fuse
from ptir.codegen.kernel import Kernel, Site, scratch_value
from ptir.codegen.plan import MemoryPlan, plan_memory
from ptir.codegen.recipe import Call, Part, Recipe
from ptir.codegen.tuned import chosen
from ptir.ir.program import Block


@dataclass(frozen=True)
class Compiled:
    """A block's kernels, built, and the plan of its memory."""

    fused: Fused
    kernels: tuple[Kernel | None, ...]
    """One per group; None where there is nothing to store."""
    plan: MemoryPlan
    source: str
    names: tuple[str, ...]
    built: Any

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
    """Fuse ``block``, write its kernels and build them; raises ``CompileError``."""
    fused = fuse(block)
    site = Site(fused.graph, fused.is_stored, device.dialect, device.traits, chosen(device))
    kernels = tuple(
        FAMILIES[group.family].write(group, site)
        if any(fused.graph.type(value).size for value in group.exits)
        else None
        for group in fused.groups
    )
    reads = [_reads(kernel) for kernel in kernels]
    scratch = [kernel.scratch if kernel else () for kernel in kernels]
    over = [kernel.over if kernel else frozenset[int]() for kernel in kernels]
    plan = plan_memory(fused, reads, scratch, over, options, device.traits.alignment)
    names, source = _source(kernels, device)
    together.notice(device, source, {n: k for n, k in zip(names, kernels, strict=True) if k})
    program = built(device, source) if any(names) else None
    return Compiled(fused, kernels, plan, source, names, program)


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
