"""Programs shared by several workers: cores of one device, or devices of one machine.

``partition`` splits an optimized program as tensor parallelism does and finds itself how;
``SharedBackend`` runs what it gives on any backend, one worker after the other.
"""

from ptir.partition.build import partition
from ptir.partition.costs import Costs
from ptir.partition.execute import PartitionedProgram, SharedBackend
from ptir.partition.phases import Left, Local, Output, Partition, Phase, Window
from ptir.partition.placement import WHOLE, Partial, Placement, Replicated, Split

__all__ = [
    "WHOLE",
    "Costs",
    "Left",
    "Local",
    "Output",
    "Partial",
    "Partition",
    "PartitionedProgram",
    "Phase",
    "Placement",
    "Replicated",
    "SharedBackend",
    "Split",
    "Window",
    "partition",
]
