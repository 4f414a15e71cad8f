"""Recorders: what is called with programs while they are compiled (``codegen.tuning.tune``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ptir.backend.kernel import KernelDevice

if TYPE_CHECKING:
    from ptir.codegen.planning.fuse import FusionPlan

Recorder: TypeAlias = "Callable[[FusionPlan], object]"


@dataclass(eq=False)
class Recorded:
    """A device whose programs may be recorded: what ``tune.tuning`` takes."""

    device: KernelDevice
    recorder: Recorder | None = None
    """What is called with every program that is compiled for the device, while there is one."""
