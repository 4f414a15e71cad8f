"""Runs records by their reference and compares arrays, bit for bit or within an accuracy class."""

from __future__ import annotations

import re

import numpy as np

from ptir.ops import numerics
from ptir.ops.record import OPS
from ptir.types import DTYPES, dtype_of


def results(value):
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def run_block(block, arrays):
    """The outputs of a frozen block, each instruction by its op's reference."""
    values = list(arrays)
    for instruction in block.instructions:
        operands = [values[v] for v in instruction.operands]
        values += results(
            reference(OPS[instruction.op], operands, instruction.attributes, instruction.regions)
        )
    return tuple(values[v] for v in block.outputs)


def reference(record, arrays, attributes, regions):
    """The results of an op on arrays."""
    extra = dict(attributes)
    if regions:
        extra["regions"] = tuple(bounded(block) for block in regions)
    return results(record.reference(numerics, *arrays, **extra))


def bounded(block):
    """A region as a function that refuses to run forever."""
    turns = iter(range(100))

    def region(*arrays):
        assert next(turns, None) is not None, "a sample's loop does not end"
        return run_block(block, arrays)

    region.output_types = block.output_types
    return region


def same_bits(found, expected):
    """Whether arrays agree in dtype, shape and every bit, any NaN equal to any other."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if not dtype_of(found).is_float:
        return bool((found == expected).all())
    with np.errstate(invalid="ignore"):  # which ml_dtypes reports of the f8 types
        both_nan = np.isnan(found) & np.isnan(expected)
    unsigned = f"u{found.dtype.itemsize}"
    bits = (np.ascontiguousarray(a).reshape(a.shape).view(unsigned) for a in (found, expected))
    return bool((np.equal(*bits) | both_nan).all())


def assert_same(found, expected):
    """Every array equal to its counterpart bit for bit."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, np.ndarray)
        assert same_bits(one, other), f"\n{one!r}\n{other!r}"


def assert_within(record, found, expected):
    """As ``assert_same``, but for f64 results of ops with an ulp bound, which must be within it.

    Narrower results are rounded from f64, so the reference gives the nearest; f64 ones are as
    good as the library functions of the machine.
    """
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        bound = re.fullmatch(r"ulp:(.+)", record.accuracy) if one.dtype == np.float64 else None
        if bound is None:
            assert_same([one], [other])
        else:
            assert ulps(one, other) <= float(bound[1]), f"\n{one!r}\n{other!r}"


def ulps(found, expected):
    """The greatest distance in units of the last place; infinite where a special value differs."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    kind = dtype_of(found)
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), expected.astype(np.float64)
        special = ~(np.isfinite(a) & np.isfinite(b)) | (b == 0)
        alike = (a == b) & (np.signbit(a) == np.signbit(b)) | np.isnan(a) & np.isnan(b)
        unit = np.exp2(np.maximum(np.frexp(b)[1], SMALLEST[kind.name]) - BITS[kind.name])
        apart = np.where(special, np.where(alike, 0, np.inf), np.abs(a - b) / unit)
    return float(apart.max(initial=0))


BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}  # of the significand
SMALLEST = {"f16": -13, "bf16": -125, "f32": -125, "f64": -1021}  # frexp of the least normal

FLOATS = tuple(DTYPES[name] for name in BITS)
