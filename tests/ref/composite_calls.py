"""Runs one instruction on the reference backend, as a composite or as an op."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir.backend import OpQuery
from ptir.ir import Attributes, Instruction
from ptir.types import TensorType, dtype_of
from ptir_backend_ref import backend

DEVICE = backend.devices()[0]


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(dtype_of(array), array.shape)


def refusal(name: str, *operands: np.ndarray, **attributes: Any) -> str | None:
    given = Attributes({"name": name, **attributes})
    types = tuple(type_of(x) for x in operands)
    return backend.refusal(OpQuery("composite", given, types, ()), DEVICE)


def composite(
    name: str,
    *operands: np.ndarray,
    shape: tuple[int, ...] | None = None,
    reusable: frozenset[int] = frozenset(),
    **attributes: Any,
) -> np.ndarray:
    """The composite's result; in the first operand's type unless ``shape`` is given."""
    assert refusal(name, *operands, **attributes) is None
    result = type_of(operands[0]).with_shape(operands[0].shape if shape is None else shape)
    given = Attributes({"name": name, **attributes})
    instruction = Instruction("composite", tuple(range(len(operands))), given, (result,))
    return run(instruction, operands, reusable)


def run(
    instruction: Instruction,
    operands: tuple[np.ndarray, ...],
    reusable: frozenset[int] = frozenset(),
) -> np.ndarray:
    function = backend.prepare(instruction, DEVICE, reusable)
    with np.errstate(all="ignore"):
        result = function(*operands)
    assert isinstance(result, np.ndarray)
    assert type_of(result) == instruction.types[0]
    return result
