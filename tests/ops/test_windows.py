"""Sliding windows against a model that looks every element of every window up, one at a time."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation import evaluate
from ptir.ir.graph import freeze, source
from ptir.ops import numerics as xp
from ptir.ops.record import OPS
from ptir.ops.sliding import WindowDimension
from ptir.types import TensorType, dtype_of

fast = settings(max_examples=150)
AWKWARD = (0.0, -0.0, 1.0, -1.5, 2.0, -3.0, math.inf, -math.inf, math.nan)
POOLS = {
    np.dtype(np.float32): AWKWARD,
    np.dtype(np.float16): AWKWARD,
    np.dtype(ml_dtypes.bfloat16): AWKWARD,
    np.dtype(np.int32): (0, 1, -1, 7, -(2**31), 2**31 - 1, 65537),
    np.dtype(np.uint32): (0, 1, 5, 2**31, 2**32 - 1, 65537),
    np.dtype(np.bool_): (False, True),
    np.dtype(np.float64): AWKWARD,
    np.dtype(np.int8): (0, 1, -1, 7, -128, 127, 33),
    np.dtype(np.uint16): (0, 1, 5, 65535, 257),
    np.dtype(np.int64): (0, 1, -1, -(2**63), 2**63 - 1, 2**33 + 1),
    np.dtype(np.uint64): (0, 1, 2**64 - 1, 2**33 + 1),
}
F8 = (np.dtype(ml_dtypes.float8_e5m2),)


@st.composite
def geometries(draw, rank, sizes):
    """Window attributes for axes of these sizes, that leave nothing below size 0."""

    def each(values):
        return tuple(draw(values) for _ in range(rank))

    geometry = {"window": each(st.integers(1, 3))}
    for name, values in (
        ("strides", st.integers(1, 3)),
        ("base_dilation", st.integers(1, 3)),
        ("window_dilation", st.integers(1, 3)),
        ("low", st.integers(-2, 3)),
        ("high", st.integers(-2, 3)),
    ):
        if draw(st.booleans()):
            geometry[name] = each(values)
    spread = [
        (n - 1) * d + 1 if n else 0
        for n, d in zip(sizes, geometry.get("base_dilation", (1,) * rank), strict=True)
    ]
    for name in ("low", "high"):
        if name in geometry:
            geometry[name] = tuple(
                max(p, -(n // 2)) for p, n in zip(geometry[name], spread, strict=True)
            )
    return geometry


@st.composite
def arrays(draw, shape, dtypes):
    dtype = draw(st.sampled_from(dtypes))
    size, pool = math.prod(shape), POOLS.get(dtype, AWKWARD)
    flat = draw(st.lists(st.sampled_from(pool), min_size=size, max_size=size))
    dense = np.array(flat, np.float32 if pool is AWKWARD else dtype).astype(dtype).reshape(shape)
    return dense.copy(order=draw(st.sampled_from("CF")))


def axis_taps(size, window, stride, low, high, base, dilation):
    """For each window along an axis, the element that each tap sees, None outside the operand."""
    places = [None] * low + [i if not gap else None for i in range(size) for gap in range(base)]
    if size and base > 1:
        places = places[: len(places) - (base - 1)]
    places = places[-low:] if low < 0 else places
    places = places + [None] * high if high >= 0 else places[:high]
    found = []
    for start in range(0, len(places), stride):
        taps = [start + t * dilation for t in range(window)]
        if taps[-1] < len(places):
            found.append([places[tap] for tap in taps])
    return found


def taps_of(sizes, geometry):
    neutral = {"strides": 1, "low": 0, "high": 0, "base_dilation": 1, "window_dilation": 1}
    rank = len(sizes)
    columns = [geometry.get(name, (default,) * rank) for name, default in neutral.items()]
    rows = zip(sizes, geometry["window"], *columns, strict=True)
    return [axis_taps(n, w, s, lo, hi, b, d) for n, w, s, lo, hi, b, d in rows]


def later(candidate, best):
    """Whether a maximum moves on: NaN beats numbers, +0 beats -0."""
    if math.isnan(best) or math.isnan(candidate):
        return math.isnan(candidate)
    if candidate == best == 0:
        return math.copysign(1, candidate) > math.copysign(1, best)
    return candidate > best


def folded(kind, values, dtype):
    """A fold of Python numbers."""
    if dtype == np.bool_:
        return {"any": any, "all": all}[kind](values)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        if kind in ("max", "min"):
            start = ends.min if kind == "max" else ends.max
            return {"max": max, "min": min}[kind]([start, *values])
        total = {"sum": sum, "prod": math.prod}[kind](values)
        return (total - int(ends.min)) % 2 ** (8 * dtype.itemsize) + int(ends.min)
    if kind in ("sum", "prod"):
        total = np.float32(0 if kind == "sum" else 1)
        for value in values:
            total = total + np.float32(value) if kind == "sum" else total * np.float32(value)
        return total
    sign = 1 if kind == "max" else -1
    best = -math.inf
    for value in values:
        best = sign * value if later(sign * value, best) else best
    return sign * best


def reduce_model(x, kind, geometry):
    axes = taps_of(x.shape, geometry)
    wanted = np.empty([len(a) for a in axes], x.dtype)
    with np.errstate(all="ignore"):
        for place in np.ndindex(wanted.shape):
            seen = itertools.product(*(a[i] for a, i in zip(axes, place, strict=True)))
            values = [x[at].item() for at in seen if None not in at]
            wanted[place] = np.asarray(folded(kind, values, x.dtype)).astype(x.dtype)
    return wanted


def same(found, wanted):
    """Equal types and bits, all NaN being one."""
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return False
    if found.dtype.kind in "biu":
        return bool((found == wanted).all())
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    signs = np.signbit(a) == np.signbit(b)
    return bool((((a == b) & signs) | (np.isnan(a) & np.isnan(b))).all())


def decomposed(name, *operands, **attributes):
    record = OPS[name]
    inputs = [source(TensorType(dtype_of(x), x.shape)) for x in operands]
    block = freeze([record.decomposition(*inputs, **record.bind(attributes))], inputs)
    with np.errstate(all="ignore"):
        return evaluate(block, operands)[0]


def inferred(name, x, attributes):
    (type_,) = OPS[name].infer([TensorType(dtype_of(x), x.shape)], OPS[name].bind(attributes))
    return type_.shape


@fast
@given(st.data())
def test_reduce_window_folds_exactly_the_elements_a_window_sees(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=3)))
    x = data.draw(arrays(shape, list(POOLS)))
    kinds = ("any", "all") if x.dtype == np.bool_ else ("sum", "prod", "max", "min")
    kind = data.draw(st.sampled_from(kinds))
    geometry = data.draw(geometries(len(shape), shape))
    wanted = reduce_model(x, kind, geometry)
    if x.dtype.kind not in "iub" and kind in ("sum", "prod"):
        exact = np.abs(wanted.astype(float)) < 2**10  # where no order of the fold can matter
        assert inferred("reduce_window", x, {**geometry, "kind": kind}) == wanted.shape
        for found in (
            xp.reduce_window(x, kind=kind, **geometry),
            decomposed("reduce_window", x, kind=kind, **geometry),
        ):
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            assert np.array_equal(np.isnan(found), np.isnan(wanted))
            assert np.array_equal(found[exact], wanted[exact])
        return
    assert inferred("reduce_window", x, {**geometry, "kind": kind}) == wanted.shape
    assert same(xp.reduce_window(x, kind=kind, **geometry), wanted)
    assert same(decomposed("reduce_window", x, kind=kind, **geometry), wanted)


@fast
@given(st.data())
def test_patches_hold_what_each_tap_sees_and_zero_outside(data):
    rank = data.draw(st.integers(0, 2))
    sizes = tuple(data.draw(st.integers(0, 5)) for _ in range(rank))
    shape = (data.draw(st.integers(0, 2)), *sizes, data.draw(st.integers(0, 3)))
    x = data.draw(arrays(shape, [*POOLS, *F8]))
    geometry = data.draw(geometries(rank, sizes))
    axes = taps_of(sizes, geometry)
    places, window = [len(a) for a in axes], geometry["window"]
    wanted = np.zeros((shape[0], *places, *window, shape[-1]), x.dtype)
    for at in np.ndindex(*places, *window):
        seen = [a[i][t] for a, i, t in zip(axes, at[:rank], at[rank:], strict=True)]
        if None not in seen:
            wanted[(slice(None), *at)] = x[(slice(None), *seen)]
    assert inferred("extract_patches", x, geometry) == wanted.shape
    found = xp.extract_patches(x, **geometry)
    assert same(found, wanted) and not np.may_share_memory(found, x)
    assert same(decomposed("extract_patches", x, **geometry), wanted)


@pytest.mark.parametrize("element", [np.float16, ml_dtypes.bfloat16])
def test_sums_of_narrow_floats_accumulate_in_f32_and_round_once(element):
    ones = np.ones(5000, element)
    wanted = np.array([4097, 4097]).astype(np.float32).astype(element)
    geometry = {"window": (4097,), "strides": (903,)}
    assert same(xp.reduce_window(ones, kind="sum", **geometry), wanted)
    values = np.array([2048, 1, 1, 1], element)
    exact = np.array([2051]).astype(np.float32).astype(element)
    assert same(decomposed("reduce_window", values, kind="sum", window=(4,)), exact)


def test_float_sums_stay_within_the_dot_bound():
    x = np.random.default_rng(3).normal(size=(40, 33)).astype(np.float32)
    geometry = {"window": (7, 9), "strides": (2, 3), "low": (3, 4), "high": (2, 1)}
    wide = np.pad(x.astype(np.float64), ((3, 2), (4, 1)))
    views = np.lib.stride_tricks.sliding_window_view(wide, (7, 9))[::2, ::3]
    bound = 63 * 2.0**-24 * np.abs(views).sum((2, 3))
    for found in (
        xp.reduce_window(x, kind="sum", **geometry),
        decomposed("reduce_window", x, kind="sum", **geometry),
    ):
        assert (np.abs(found - views.sum((2, 3))) <= bound).all()


@pytest.mark.parametrize(
    ("dimension", "count"),
    [
        (WindowDimension(5, 3), 3),
        (WindowDimension(5, 3, 2), 2),
        (WindowDimension(6, 3, 2), 2),
        (WindowDimension(5, 3, 2, 1, 1), 3),
        (WindowDimension(5, 3, 1, 0, 0, 1, 2), 1),
        (WindowDimension(3, 3, 1, 0, 0, 2), 3),
        (WindowDimension(0, 1, 1, 2, 0, 3), 2),
        (WindowDimension(2, 3), 0),
        (WindowDimension(2, 3, 5), 0),
        (WindowDimension(1, 4, 3), 0),
    ],
)
def test_as_many_windows_as_fit(dimension, count):
    assert dimension.count == count
