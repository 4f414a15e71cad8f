"""Which programs are partitioned among a device's units, and the artifact of those that are.

A program is partitioned where its products have few rows, so that reading weights is what takes
time, and where the partition is cheaper than kernels one after the other, whose workgroups are
claimed by whichever unit is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ptir.backend.contract import Backend, Device, Options
from ptir.backend.kernel import KernelDevice
from ptir.codegen.artifact.record import Artifact
from ptir.codegen.partitioned.link import Linker
from ptir.codegen.partitioned.outputs import with_gathered_outputs
from ptir.codegen.partitioned.program import ProgramBinder
from ptir.codegen.partitioned.shard_views import NotPartitioned, unpacked
from ptir.codegen.planning.fuse import fuse
from ptir.codegen.schedules.tiles import FEW
from ptir.codegen.tuning.recorder import Recorder
from ptir.codegen.weights.experts import DENSE, WORDS
from ptir.ir.program import Block, Program
from ptir.ops.rounded import BYTES, PAIRS, WINDOWS
from ptir.partition.build import partition
from ptir.partition.costs import SERVER
from ptir.partition.phases import Partition

LAUNCH_SECONDS: Final = 1e-6
"""Lost to a kernel whose workgroups are claimed: until another thread's last one is done."""
UNEVEN: Final = 0.1
"""What shares that are settled beforehand lose: cores are not equally fast all the time, and parts
of panels are read slower than whole ones. Measured: ``docs/internals/partition.md``."""
LEAST_BYTES: Final = 1 << 20
"""Bytes of weights from which partitioning is looked at."""


@dataclass(frozen=True)
class PartitionedArtifact:
    """A partitioned program: its partition and what it comes down to."""

    partition: Partition
    artifact: Artifact


def partitioned(
    program: Program,
    backend: Backend,
    device: Device,
    opened: KernelDevice,
    options: Options,
    recorder: Recorder | None = None,
) -> PartitionedArtifact | str:
    """The program partitioned among the units of ``opened``, or why it is not."""
    workers, always = opened.traits.compute_units, opened.partitioning == "always"
    if opened.partitioning == "never":
        return opened.not_partitioned_reason
    if workers < 2 - always:
        return "there is one worker"
    if options.check_indices or options.aliases:
        return "indices are checked" if options.check_indices else "inputs may be one memory"
    if reason := _refused(program, always):
        return reason
    try:
        whole = unpacked(program)
        made = partition(whole.program, workers, SERVER)
        kernels = len(fuse(program.main).fusions)
        apart, together = made.even + kernels * LAUNCH_SECONDS, made.seconds * (1 + UNEVEN)
        figures = f"{len(made.phases)} phases, {1e3 * together:.3f} ms; {kernels} kernels apart,"
        figures += f" {1e3 * apart:.3f} ms"
        if together >= apart and not always:
            return figures
        binder = ProgramBinder(made, whole.packed, backend, device, options.donated)
        return PartitionedArtifact(made, _linked(made, binder, opened, recorder, figures))
    except NotPartitioned as reason:
        return str(reason)


def _linked(
    made: Partition,
    binder: ProgramBinder,
    opened: KernelDevice,
    recorder: Recorder | None,
    figures: str,
) -> Artifact:
    programs = [
        [binder.program(phase, worker) for worker in range(made.workers)]
        for phase in range(len(made.phases))
    ]
    phases, outputs = with_gathered_outputs(made, programs)
    linker = Linker(made, opened, phases, outputs, recorder)
    return linker.artifact(f"shared by {made.workers}: {figures}")


def _refused(program: Program, always: bool) -> str:
    """Why a program is not even looked at, or nothing."""
    if any(i.name in (BYTES, PAIRS, WINDOWS) for i in program.main.instructions):
        return "its activations are rounded for dot instructions"
    if any(i.name in (DENSE, WORDS) for i in program.main.instructions):
        return "which experts' weights it reads is known when it runs"
    if always:
        return ""
    typed = zip(program.ports, program.inputs, strict=True)
    if sum(type.nbytes for port, type in typed if port.kind == "parameter") < LEAST_BYTES:
        return "its weights are small"
    rows = list(_rows(program.main))
    if not rows or max(rows) > FEW:
        return f"products of more than {FEW} rows" if rows else "no products"
    return ""


def _rows(block: Block) -> Iterator[int]:
    """The rows of every product."""
    for instruction in block.instructions:
        if instruction.op == "dot_general" and not instruction.attributes["lhs_batch"]:
            lhs = block.types[instruction.operands[0]]
            kept = set(range(lhs.rank)) - set(instruction.attributes["lhs_contract"])
            yield math.prod(lhs.shape[axis] for axis in kept)
