"""What a block is compiled with: all that is looked at beside the block and its options."""

from __future__ import annotations

from dataclasses import dataclass

from ptir.backend.kernel import KernelDevice, Traits
from ptir.codegen.artifact.source import SourceFile
from ptir.codegen.planning.fuse import FusionPlan
from ptir.codegen.schedules.kernel import EmitContext
from ptir.codegen.schedules.schedules import schedule_of
from ptir.codegen.schedules.tiles import Tiles
from ptir.codegen.schedules.tuned_tiles import tiles_for
from ptir.codegen.tuning.recorder import Recorder


@dataclass(frozen=True)
class Context:
    """The device as schedules see it, and where kernels go."""

    source: SourceFile
    """The file that the kernels are written into; several blocks may share one."""
    traits: Traits
    tiles: Tiles
    schedule: str
    apart: bool = False
    """Whether every kernel is launched by itself, also where the device has persistent kernels."""
    recorder: Recorder | None = None
    """What is called with every program that is fused."""

    @staticmethod
    def of(
        device: KernelDevice,
        source: SourceFile | None = None,
        recorder: Recorder | None = None,
        apart: bool = False,
    ) -> Context:
        """The context of a device as it is; without ``source`` a file of its own."""
        into = source or SourceFile(device)
        return Context(into, device.traits, tiles_for(device), schedule_of(device), apart, recorder)

    def emit_context(self, plan: FusionPlan) -> EmitContext:
        """What families may look at while they write kernels of a program."""
        cooperative = self.schedule == "coop"
        dialect, traits, tiles = self.source.dialect, self.traits, self.tiles
        return EmitContext(plan.graph, plan.is_stored, dialect, traits, tiles, cooperative)
