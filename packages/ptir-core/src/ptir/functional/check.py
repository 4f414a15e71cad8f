"""What a functional asks of its operands, written as one line of text, and the errors it gives.

What a signature is, ``ptir.ops.signature`` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from ptir.capture import Tensor
from ptir.ops.record import type_error
from ptir.ops.signature import parsed
from ptir.types import TensorType

STORAGE: Final = "f32|f16|bf16"
"""The element types that weights may be stored in."""


@dataclass(frozen=True)
class Operand(TensorType):
    """A type that prints with the operand's name: ``q f32[1,5,2,8]``."""

    name: str = ""

    def __str__(self) -> str:
        return f"{self.name} {super().__str__()}"


class Checked:
    """Operands that fit a signature: ``checked["D"]`` is the size of axis D.

    Raises ``TypeRuleError`` naming the functional, the operand, both shapes and the rule.
    """

    def __init__(self, functional: str, signature: str, **operands: Tensor) -> None:
        self.functional = functional
        self.expected = {e.name: e for e in parsed(signature) if e.name in operands}
        self.types = {n: self._operand(n, tensor) for n, tensor in operands.items()}
        self.sizes: dict[str, int] = {}
        self._owner: dict[str, str] = {}
        for name in self.types:
            self._bind(name)

    def __getitem__(self, axis: str) -> int:
        return self.sizes[axis]

    def require(self, holds: bool, operands: str, message: str) -> None:
        """Refuse the call with ``message``, showing the operands named, unless ``holds``."""
        if not holds:
            self.fail(operands, message)

    def fail(self, operands: str, message: str) -> NoReturn:
        """Raise the error of this call, with the named operands and the caller's line."""
        raise type_error(self.functional, [self.types[n] for n in operands.split()], message)

    def number(
        self,
        name: str,
        value: object,
        *,
        above: float | None = None,
        least: float | None = None,
    ) -> float:
        """A Python number as a finite float, greater than ``above`` and not below ``least``."""
        low, bound = (above, "greater than") if least is None else (least, "at least")
        rule = "a finite number" if low is None else f"a finite number, {bound} {low:g}"
        good = isinstance(value, int | float) and not isinstance(value, bool)
        found = float(value) if good else float("nan")  # type: ignore[arg-type]
        fits = abs(found) < float("inf")
        fits = fits and (above is None or found > above) and (least is None or found >= least)
        self.require(fits, "", f"{name} is {value!r}; it must be {rule}")
        return found

    def choice(self, name: str, value: object, choices: Sequence[str]) -> str:
        """``value``, which must be one of the words in ``choices``."""
        self.require(
            value in choices, "", f"{name} is {value!r}; it must be one of {', '.join(choices)}"
        )
        return str(value)

    def integer(self, name: str, value: object, least: int) -> int:
        """A Python integer of at least ``least``."""
        good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        self.require(good, "", f"{name} is {value!r}; it must be an integer, at least {least}")
        return int(value)  # type: ignore[call-overload, no-any-return]

    def _operand(self, name: str, value: object) -> Operand:
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            message = f"{name} is {kind}, not a Tensor; make one with ptir.tensor({name})"
            raise type_error(self.functional, (), message)
        operand = Operand(value.dtype, value.shape, name)
        allowed = self.expected[name].dtypes
        if value.dtype.name not in allowed:
            message = f"{name} has dtype {value.dtype}; one of {', '.join(allowed)}, see .astype()"
            raise type_error(self.functional, (operand,), message)
        return operand

    def _bind(self, name: str) -> None:
        expected, type = self.expected[name], self.types[name]
        count = len(expected.axes)
        fits = type.rank >= count if expected.open else type.rank == count
        self.require(fits, name, f"{name} has {type.rank} axes; {expected} is needed")
        for axis, size in zip(expected.axes, type.shape[type.rank - count :], strict=True):
            owner = self._owner.setdefault(axis, name)
            if self.sizes.setdefault(axis, size) != size:
                shown = f"{self.expected[owner]} and {expected} are needed"
                self._differ(owner, name, f"{axis} differs, {self[axis]} and {size}; {shown}")

    def _differ(self, owner: str, name: str, message: str) -> NoReturn:
        self.fail(name if owner == name else f"{owner} {name}", message)
