"""In which types a model's parameters and caches are held on a device: the rules of ``--dtype``."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

from ptir.errors import UsageError, unknown_name
from ptir.types import F32, DType, TensorType
from ptir.types import dtype as dtype_named

AUTO: Final = "auto"
"""As the file stores it, where the target takes that."""
STORAGE: Final = ("f32", "bf16", "f16")
"""What matrices and caches can be held as: what functionals take."""

TypeRule = Callable[[TensorType], TensorType]
"""From the stored type of a parameter to the one that programs see."""


def as_stored(stored: TensorType) -> TensorType:
    """The stored type, whatever it is."""
    return stored


def held_type(
    stored: TensorType, dtype: DType | None, taken: Container[str] = STORAGE
) -> TensorType:
    """The type on a device of a model's parameter: floats of a matrix in ``dtype``.

    Without one they stay as they are stored; types that are not ``taken`` become f32. Vectors
    (biases, norm scales) are always f32: they cost few bytes, and functionals take them as f32.
    """
    if not stored.dtype.is_float:
        return stored
    if stored.rank < 2:
        return stored.with_dtype(F32)
    if dtype is not None:
        return stored.with_dtype(dtype)
    return stored if stored.dtype.name in taken else stored.with_dtype(F32)


def storage_rule(name: str, taken: Container[str] = STORAGE) -> TypeRule:
    """The rule called ``name``: a type of ``STORAGE``, or ``auto``, which keeps what is ``taken``.

    Raises ``UsageError``.
    """
    dtype = None if name == AUTO else named_type(name, "storage")
    return lambda stored: held_type(stored, dtype, taken)


def cache_type(name: str) -> DType:
    """The type of keys and values; ``auto`` is f32, because 16 bits change results.

    docs/results/rounding.md has the measurements. Raises ``UsageError``.
    """
    return F32 if name == AUTO else named_type(name, "cache")


def named_type(name: str, what: str) -> DType:
    """The type of ``STORAGE`` called ``name``; raises ``UsageError`` with the names there are."""
    if name not in STORAGE:
        raise UsageError(unknown_name(f"{what} dtype", name, (AUTO, *STORAGE)))
    return dtype_named(name)
