"""What a pass may look at besides the program: where it will run and what was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ptir.backend.contract import Backend, Derivation, Device
from ptir.ir.program import Program
from ptir.ops.policies import Overrides


@dataclass
class PassContext:
    """The target, the overrides in force, derived parameters by port name, and rule counts.

    With ``check_indices`` what reads places from operands must stay visible, so that it is checked.
    """

    backend: Backend
    device: Device
    overrides: Overrides = ()
    check_indices: bool = False
    derived: dict[str, Derivation] = field(default_factory=dict[str, Derivation])
    rewrites: dict[str, int] = field(default_factory=dict[str, int])


Pass = Callable[[Program, PassContext], Program]

__all__ = ["Derivation", "Pass", "PassContext"]
