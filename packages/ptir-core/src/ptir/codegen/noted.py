"""Programs that are noted while they are compiled, for whoever measures them (``codegen.tune``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ptir.backend.kernel import KernelDevice

if TYPE_CHECKING:
    from ptir.codegen.fuse import Fused

NOTED: Final[dict[int, list[Fused]]] = {}
"""What was noted of each device that is measured, by its identity."""


def is_on(device: KernelDevice) -> bool:
    """Whether programs are noted at the moment."""
    return id(device) in NOTED


def notice(device: KernelDevice, fused: Fused) -> None:
    """Note a program where somebody asked for it."""
    if is_on(device):
        NOTED[id(device)].append(fused)
