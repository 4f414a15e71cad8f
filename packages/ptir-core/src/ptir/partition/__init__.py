"""Programs partitioned among workers: cores of one device; several devices are planned for alone.

``partition`` splits an optimized program as tensor parallelism does and finds itself how;
``PartitionedBackend`` runs what it gives on any backend, one worker after the other.
"""

from ptir.partition.build import partition
from ptir.partition.costs import Costs
from ptir.partition.execute import PartitionedBackend, PartitionedProgram
from ptir.partition.phases import (
    InputShard,
    Partition,
    Phase,
    PhaseOutput,
    ProgramOutput,
    WorkerProgram,
)
from ptir.sharding.placement import REPLICATED, Partial, Placement, Replicated, Split

__all__ = [
    "REPLICATED",
    "Costs",
    "InputShard",
    "Partial",
    "Partition",
    "PartitionedBackend",
    "PartitionedProgram",
    "Phase",
    "PhaseOutput",
    "Placement",
    "ProgramOutput",
    "Replicated",
    "Split",
    "WorkerProgram",
    "partition",
]
