"""Which schedule kernels are written in, and what a device gets; **table** ``SCHEDULED``.

A *serial* kernel is one work-item per tile, without barriers. A *cooperative* kernel,
``coop``, is a workgroup of several work-items per tile, which share memory. A class of device
has one of them; ``--schedule`` (the variable ``PTIR_SCHEDULE``) forces one, so that cooperative
kernels can be tested on a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from ptir.backend.contract import OpQuery
from ptir.backend.kernel import KernelDevice
from ptir.errors import UsageError, unknown_name
from ptir.ops.schedules import ATTENTION_SPLIT, CONV2D_WINOGRAD
from ptir.switches import SCHEDULE, SCHEDULES

COOPERATIVE_CLASSES: Final = frozenset(("gpu",))
"""The classes of device (``Traits.device_class``) whose kernels are workgroups."""

LEAST_WORKGROUP_SIZE: Final = 256
"""Threads that a device's workgroups must hold for cooperative kernels: those of a contraction."""

SCHEDULED: Final[Mapping[str, tuple[str, str]]] = {
    ATTENTION_SPLIT: ("coop", "keys are split over work-groups, which serial kernels have none of"),
    CONV2D_WINOGRAD: ("serial", "tiles are transformed in scratch memory of one thread"),
}
"""Composites that are kernels in one schedule alone, and why not in the other."""


def schedule_refusal(query: OpQuery, device: KernelDevice) -> str | None:
    """Why the schedule that ``device`` gets has no kernel for an op, or None."""
    if not query.is_composite or query.name not in SCHEDULED:
        return None
    schedule, reason = SCHEDULED[query.name]
    return None if schedule == schedule_of(device) else reason


def schedule_of(device: KernelDevice) -> str:
    """The schedule of what is compiled now for ``device``; raises ``UsageError``."""
    forced = os.environ.get(SCHEDULE, "")
    most = device.traits.max_workgroup_size if device.dialect.workgroup is not None else 0
    enough = most >= LEAST_WORKGROUP_SIZE
    if forced not in ("", *SCHEDULES):
        raise UsageError(f"{SCHEDULE}: {unknown_name('schedule', forced, SCHEDULES)}")
    if forced == "coop" and not enough:
        found = f"work-groups of at most {most} work-items" if most > 1 else "no work-groups"
        raise UsageError(
            f"{SCHEDULE}=coop: {device.dialect.name} on this device has {found}, and cooperative"
            f" kernels need {LEAST_WORKGROUP_SIZE}; leave --schedule away, or use a backend whose"
            " kernels are work-groups, such as opencl on a GPU"
        )
    if forced:
        return forced
    return "coop" if enough and device.traits.device_class in COOPERATIVE_CLASSES else "serial"
