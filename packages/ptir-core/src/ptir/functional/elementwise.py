"""Every elementwise op as a function on tensors, derived from the op table.

Operands are promoted and broadcast together, as the operators of ``Tensor`` do; Python numbers
take the tensors' element type. A new elementwise op appears here without an edit.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from ptir.capture import Tensor, call
from ptir.capture.operands import Scalar
from ptir.capture.promote import broadcast_shapes
from ptir.capture.tensor import unify
from ptir.errors import unknown_name
from ptir.functional.arrays import full
from ptir.ops.classes import dtypes
from ptir.ops.record import OPS, Op, type_error

_BOOL = dtypes("bool")


@cache
def _derived(record: Op) -> Callable[..., Tensor]:
    mixed = [record.dtypes[name] == _BOOL for name in record.operands]

    def function(*operands: Tensor | Scalar, **attributes: Any) -> Tensor:
        _check(record, operands)
        return call(record.name, *_unified(operands, mixed), **attributes)

    function.__name__ = function.__qualname__ = _python_name(record.name)
    function.__doc__ = record.doc
    return function


def _check(record: Op, operands: tuple[object, ...]) -> None:
    names = ", ".join(record.operands)
    if len(operands) != len(record.operands):
        message = f"{len(operands)} operands given; takes {names}"
        raise type_error(record.name, (), message, "arity")
    for name, operand in zip(record.operands, operands, strict=True):
        if not isinstance(operand, Tensor | bool | int | float):
            kind = type(operand).__name__
            message = f"{name} is {kind}, not a Tensor; make one with ptir.tensor({name})"
            raise type_error(record.name, (), message, "operand")
    if not any(isinstance(operand, Tensor) for operand in operands):
        raise type_error(record.name, (), f"none of {names} is a Tensor", "operand")


def _unified(operands: tuple[Tensor | Scalar, ...], flags: list[bool]) -> list[Tensor]:
    """Operands of one shape; those that may only be bool are left out of the promotion."""
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    shape = broadcast_shapes([tensor.shape for tensor in tensors])
    values = [o for o, flag in zip(operands, flags, strict=True) if not flag]
    promoted = iter(_promoted(values))
    unified = [
        _promoted([o])[0] if flag else next(promoted)
        for o, flag in zip(operands, flags, strict=True)
    ]
    return [tensor.broadcast_to(shape) for tensor in unified]


def _promoted(values: list[Tensor | Scalar]) -> tuple[Tensor, ...]:
    if any(isinstance(value, Tensor) for value in values):
        return unify(*values)
    numbers = [value for value in values if not isinstance(value, Tensor)]
    return unify(full((), numbers[0]), *numbers[1:])


def _python_name(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) else name


class _Elementwise(Mapping[str, Callable[..., Tensor]]):
    """The functions by name, derived when first asked for: ops defined later are here too."""

    def __getitem__(self, name: str) -> Callable[..., Tensor]:
        plain = name.removesuffix("_")
        record = OPS.get(plain if keyword.iskeyword(plain) else name)
        if record is None or "elementwise" not in record.traits:
            raise KeyError(name)
        return _derived(record)

    def __iter__(self) -> Iterator[str]:
        chosen = (record for record in OPS.values() if "elementwise" in record.traits)
        return (_python_name(record.name) for record in chosen)

    def __len__(self) -> int:
        return sum(1 for _ in self)


ELEMENTWISE: Final = _Elementwise()


def where(predicate: Tensor, on_true: Tensor | Scalar, on_false: Tensor | Scalar) -> Tensor:
    """``on_true`` where the bool tensor ``predicate`` holds, else ``on_false``; all broadcast."""
    return ELEMENTWISE["select"](predicate, on_true, on_false)


def __getattr__(name: str) -> Callable[..., Tensor]:
    if name not in ELEMENTWISE:
        raise AttributeError(unknown_name("elementwise function", name, ELEMENTWISE))
    return ELEMENTWISE[name]
