"""How references are written: without NumPy's warnings, rounded once to the element type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np

from ptir.types import F32, DType, dtype_of

Array = np.ndarray[Any, np.dtype[Any]]
P = ParamSpec("P")


def numeric(body: Callable[P, Any]) -> Callable[P, Array]:
    """``body`` without floating-point warnings, its result an array even when 0-d."""

    @functools.wraps(body)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(body(*args, **kwargs))

    return quiet


def through_f64(function: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """``function`` computed in f64 and rounded once to the operand's dtype."""

    @numeric
    def body(x: Array) -> Any:
        return round_to(np.asarray(function(x.astype(np.float64))), dtype_of(x))

    return body


def round_to(x: Array, target: DType) -> Array:
    """An f64 array rounded once, half to even, to a float dtype."""
    if target.bits < F32.bits:
        x = _round_to_odd(x)
    return x.astype(target.numpy)


def _round_to_odd(x: Array) -> Array:
    """An f64 array as f32, the last bit set where inexact: rounding it again rounds once."""
    nearest = x.astype(np.float32)
    away = np.abs(nearest.astype(np.float64)) > np.abs(x)
    toward_zero = np.where(away, np.nextafter(nearest, np.float32(0)), nearest)
    inexact = toward_zero.astype(np.float64) != x
    bits: Array = np.bitwise_or(toward_zero.view(np.uint32), inexact)
    return bits.view(np.float32)
