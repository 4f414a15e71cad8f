"""Convolution, pooling and batch norm against float64 loops over every output element."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ptir.functional as F
from functional.evaluate import f32, run
from together import together

fast = settings(max_examples=60)


def wide(x):
    return np.asarray(x, np.float64)


def sides(padding):
    """Top, bottom, left and right of a padding in numbers."""
    rows = padding if isinstance(padding, tuple) else (padding, padding)
    return [side for row in rows for side in (row if isinstance(row, tuple) else (row, row))]


def both(value):
    return value if isinstance(value, tuple) else (value, value)


def seen_by(x, window, strides, padding, dilation=1):
    """For every output place, the elements of x[N,H,W,C] that each tap sees; NaN is padding."""
    top, bottom, left, right = sides(padding)
    (kh, kw), (sh, sw), (dh, dw) = both(window), both(strides), both(dilation)
    full = np.full(
        (len(x), x.shape[1] + top + bottom, x.shape[2] + left + right, x.shape[3]), np.nan
    )
    full[:, top : top + x.shape[1], left : left + x.shape[2]] = x
    places_h = range(0, full.shape[1] - (kh - 1) * dh, sh)
    places_w = range(0, full.shape[2] - (kw - 1) * dw, sw)
    taps = np.empty((len(x), len(places_h), len(places_w), kh, kw, x.shape[3]))
    for (i, row), (j, column) in itertools.product(enumerate(places_h), enumerate(places_w)):
        for a, b in np.ndindex(kh, kw):
            taps[:, i, j, a, b] = full[:, row + a * dh, column + b * dw]
    return taps


def convolved(x, weight, bias, groups, **geometry):
    """The convolution of x[N,H,W,C] and weight[KH,KW,I,O] in f64, and its error bound in f32."""
    kh, kw, inputs, outputs = weight.shape
    taps = np.nan_to_num(seen_by(wide(x), (kh, kw), **geometry))
    result = np.zeros((*taps.shape[:3], outputs))
    size = np.zeros_like(result)
    for o in range(outputs):
        first = o // (outputs // groups) * inputs
        products = taps[..., first : first + inputs] * wide(weight)[..., o]
        result[..., o] = products.sum((3, 4, 5))
        size[..., o] = np.abs(products).sum((3, 4, 5))
    terms = kh * kw * inputs + 2
    if bias is not None:
        result, size = result + wide(bias), size + np.abs(wide(bias))
    return result, terms * 2.0**-24 * size


def near(found, wanted, bound):
    assert found.dtype == np.float32 and found.shape == wanted.shape
    assert (np.abs(found - wanted) <= bound + 1e-37).all()


def oihw(weight):
    return np.ascontiguousarray(weight.transpose(3, 2, 0, 1))


CONVOLUTIONS = {
    "one by one": ((2, 4, 5, 3), (1, 1, 3, 4), {}),
    "three by three": ((2, 5, 6, 3), (3, 3, 3, 4), {"padding": 1}),
    "stem": ((1, 11, 13, 3), (7, 7, 3, 2), {"strides": 2, "padding": 3}),
    "strides": ((1, 7, 8, 2), (3, 2, 2, 5), {"strides": (2, 3)}),
    "asymmetric": ((2, 4, 5, 2), (3, 2, 2, 3), {"padding": ((2, 0), (0, 3))}),
    "dilation": ((1, 9, 8, 2), (3, 2, 2, 3), {"dilation": (2, 3), "padding": (1, 2)}),
    "groups": ((2, 5, 4, 6), (3, 3, 2, 9), {"groups": 3, "padding": 1}),
    "depthwise": ((2, 6, 5, 4), (3, 3, 1, 4), {"groups": 4, "strides": 2, "padding": 1}),
    "depthwise, twice": ((1, 5, 5, 3), (2, 3, 1, 6), {"groups": 3}),
    "no images": ((0, 5, 5, 3), (3, 3, 3, 4), {}),
    "no channels": ((1, 5, 5, 0), (3, 3, 0, 4), {}),
    "no outputs": ((1, 5, 5, 2), (3, 3, 2, 0), {}),
}


@together()
@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("layout", ["hwio", "oihw"])
@pytest.mark.parametrize("biased", [False, True])
def test_conv2d_sums_what_each_tap_sees(case, layout, biased) -> None:
    shape, kernel, how = CONVOLUTIONS[case]
    x, weight = f32(*shape), f32(*kernel, seed=1)
    bias = f32(kernel[-1], seed=2) if biased else None
    geometry = {"strides": 1, "padding": 0, "dilation": 1, "groups": 1} | how
    wanted, bound = convolved(x, weight, bias, **geometry)
    stored = weight if layout == "hwio" else oihw(weight)
    given_ = (x, stored, bias) if biased else (x, stored)
    near(run(F.conv2d, *given_, layout=layout, **how), wanted, bound)


@pytest.mark.parametrize("storage", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", ["hwio", "oihw"])
def test_conv2d_computes_with_narrow_weights_as_f32(storage, layout) -> None:
    x, weight = f32(1, 4, 4, 2), f32(3, 3, 2, 3, seed=1).astype(storage)
    stored = weight if layout == "hwio" else oihw(weight)
    wanted, bound = convolved(x, weight, None, 1, strides=1, padding=0)
    near(run(F.conv2d, x, stored, layout=layout), wanted, bound)


@st.composite
def geometries(draw):
    """Keywords of a convolution and sizes of images on which at least one window fits."""
    pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
    how = {"strides": draw(pairs | st.integers(1, 3)), "dilation": draw(pairs | st.integers(1, 3))}
    edges = st.tuples(st.integers(0, 2), st.integers(0, 2))
    how["padding"] = draw(st.integers(0, 2) | edges | st.tuples(edges, edges))
    kernel = draw(pairs)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, both(how["dilation"]), strict=True)]
    top, bottom, left, right = sides(how["padding"])
    least = [max(1, spans[0] - top - bottom), max(1, spans[1] - left - right)]
    return how, kernel, [draw(st.integers(n, n + 4)) for n in least]


@fast
@given(geometries(), st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2))
def test_conv2d_of_any_geometry(case, groups, inputs, outputs, images) -> None:
    how, kernel, sizes = case
    x = f32(images, *sizes, groups * inputs)
    weight = f32(*kernel, inputs, groups * outputs, seed=1)
    wanted, bound = convolved(x, weight, None, groups, **how)
    near(run(F.conv2d, x, weight, groups=groups, **how), wanted, bound)
    near(run(F.conv2d, x, oihw(weight), groups=groups, layout="oihw", **how), wanted, bound)


@pytest.mark.parametrize(
    ("sizes", "kernel", "strides", "dilation", "low", "high"),
    [
        ((5, 5), 3, 1, 1, (1, 1), (1, 1)),
        ((5, 6), 3, 2, 1, (1, 0), (1, 1)),
        ((4, 7), (2, 4), 1, 1, (0, 1), (1, 2)),
        ((9, 9), 3, 1, 2, (2, 2), (2, 2)),
        ((3, 3), 1, 2, 1, (0, 0), (0, 0)),
    ],
)
def test_same_padding_keeps_sizes_divided_by_strides(
    sizes, kernel, strides, dilation, low, high
) -> None:
    x, weight = f32(1, *sizes, 1), f32(*both(kernel), 1, 1, seed=1)
    how = {"strides": strides, "dilation": dilation}
    found = run(F.conv2d, x, weight, padding="same", **how)
    assert found.shape[1:3] == tuple(-(-n // s) for n, s in zip(sizes, both(strides), strict=True))
    explicit = run(F.conv2d, x, weight, padding=((low[0], high[0]), (low[1], high[1])), **how)
    np.testing.assert_array_equal(found, explicit)


POOLS = [
    ((2, 6, 6, 3), 2, {}),
    ((1, 7, 8, 2), (3, 2), {"strides": (1, 3)}),
    ((1, 8, 9, 2), 3, {"strides": 2, "padding": 1}),
    ((1, 5, 5, 1), (3, 4), {"strides": 1, "padding": ((1, 0), (2, 1))}),
    ((2, 4, 4, 1), 4, {}),
    ((0, 4, 4, 2), 2, {}),
]


@pytest.mark.parametrize(("shape", "window", "how"), POOLS)
def test_pools_fold_what_a_window_sees(shape, window, how) -> None:
    x = f32(*shape) - np.float32(3)
    geometry = {"strides": window, "padding": 0} | how
    taps = seen_by(wide(x), window, **geometry)
    flat = taps.reshape(*taps.shape[:3], both(window)[0] * both(window)[1], shape[-1])
    np.testing.assert_array_equal(
        run(F.max_pool2d, x, window=window, **how),
        np.nanmax(flat, 3, initial=-np.inf).astype(np.float32),
    )
    bound = 2.0**-20 * np.abs(np.nan_to_num(flat)).sum(3)
    near(run(F.avg_pool2d, x, window=window, **how), np.nan_to_num(flat).mean(3), bound)
    near(
        run(F.avg_pool2d, x, window=window, count_include_pad=False, **how),
        np.nansum(flat, 3) / np.isfinite(flat).sum(3),
        bound,
    )


@fast
@given(st.data())
def test_pools_of_any_geometry(data) -> None:
    pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))
    window, strides = data.draw(pairs), data.draw(pairs)
    edges = [st.tuples(*[st.integers(0, n // 2)] * 2) for n in window]
    padding = data.draw(st.tuples(*edges))
    sizes = [
        data.draw(st.integers(max(1, n - sum(p)), 8)) for n, p in zip(window, padding, strict=True)
    ]
    x = f32(1, *sizes, 2)
    taps = seen_by(wide(x), window, strides, padding)
    flat = taps.reshape(*taps.shape[:3], window[0] * window[1], 2)
    how = {"strides": strides, "padding": padding}
    found = run(F.max_pool2d, x, window=window, **how)
    np.testing.assert_array_equal(found, np.nanmax(flat, 3).astype(np.float32))
    bound = 2.0**-20 * np.abs(np.nan_to_num(flat)).sum(3)
    near(run(F.avg_pool2d, x, window=window, **how), np.nan_to_num(flat).mean(3), bound)
    near(
        run(F.avg_pool2d, x, window=window, count_include_pad=False, **how),
        np.nanmean(flat, 3),
        bound,
    )


def test_dilated_max_pool_skips_between_taps() -> None:
    x = f32(1, 9, 10, 2)
    taps = seen_by(wide(x), (3, 2), 2, (1, 2), (2, 4))
    found = run(F.max_pool2d, x, window=(3, 2), strides=2, padding=(1, 2), dilation=(2, 4))
    np.testing.assert_array_equal(found, np.nanmax(taps, (3, 4)).astype(np.float32))


def test_max_pool_propagates_nan_and_orders_zeros() -> None:
    x = np.array([np.nan, -1, -0.0, 0.0, -0.0, -0.0], np.float32).reshape(1, 1, 6, 1)
    found = run(F.max_pool2d, x, window=(1, 2)).ravel()
    assert np.isnan(found[0]) and found[1:].tolist() == [0, 0]
    assert np.signbit(found[1:]).tolist() == [False, True]


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 4, 5), (0, 5), (2, 0)])
@pytest.mark.parametrize("epsilon", [1e-5, 0.0, 0.5])
def test_batch_norm_scales_and_shifts_by_channel(shape, epsilon) -> None:
    x, size = f32(*shape, scale=3), shape[-1]
    weight, bias, mean = (f32(size, seed=seed) for seed in (1, 2, 3))
    variance = np.abs(f32(size, seed=4)) + np.float32(0.1)
    factor = wide(weight) / np.sqrt(wide(variance) + epsilon)
    wanted = (wide(x) - wide(mean)) * factor + wide(bias)
    bound = 2.0**-21 * ((np.abs(wide(x)) + np.abs(wide(mean))) * np.abs(factor) + np.abs(bias))
    near(run(F.batch_norm, x, weight, bias, mean, variance, epsilon=epsilon), wanted, bound)
