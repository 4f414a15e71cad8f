"""Running folds, windows and random words against NumPy, at sizes around a vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opencl_runs import Array, close, normal, run

from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture import call
from ptir.ops import numerics


@pytest.mark.slice(3)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        *(((2, 1), 1), ((3, 16), 1), ((2, 47), 1), ((40, 32), 0), ((2, 33, 3), 1)),
        ((2, 300), 1),  # longer than a group of members
    ],
)
def test_running_sums_and_maxima(opencl: Target, shape: tuple[int, ...], axis: int) -> None:
    x = normal(*shape)
    found = run(opencl, lambda x: call("cumulative", x, axis=axis, kind="sum"), x)
    close(found, np.cumsum(x.astype(np.float64), axis), 1e-5)
    x[..., x.shape[-1] // 2] = np.nan
    found = run(opencl, lambda x: call("cumulative", x, axis=axis, kind="max"), x)
    assert np.array_equal(found, np.maximum.accumulate(x, axis), equal_nan=True)


@pytest.mark.parametrize("size", [100, 300])
def test_running_sums_of_integers_wrap_and_negative_zeros_stay(opencl: Target, size: int) -> None:
    x = np.random.default_rng(0).integers(-128, 127, (2, size), np.int8, endpoint=True)
    found = run(opencl, lambda x: call("cumulative", x, axis=1, kind="sum"), x)
    assert np.array_equal(found, np.cumsum(x, 1, dtype=np.int8))
    zeros = np.full((1, size), -0.0, np.float32)
    assert np.signbit(run(opencl, lambda x: call("cumulative", x, axis=1, kind="sum"), zeros)).all()


def test_a_running_maximum_orders_the_zeros(opencl: Target) -> None:
    x = np.array([[-1.0, -0.0, 0.0, -0.0, -2.0] * 8], np.float32)
    found = run(opencl, lambda x: call("cumulative", x, axis=1, kind="max"), x)
    assert np.signbit(found[0, :2]).all() and not np.signbit(found[0, 2:]).any()


@pytest.mark.slice(2)
@pytest.mark.parametrize("shape", [(), (3,), (63,), (64,), (65,), (7, 191)])
def test_random_words_are_those_of_the_definition(opencl: Target, shape: tuple[int, ...]) -> None:
    key = np.array([123, 4_000_000_000], np.uint32)
    found = run(opencl, lambda key: call("rng_bits", key, shape=shape), key)
    assert np.array_equal(found, numerics.rng_bits(key, shape=shape))


def test_floats_from_random_words_are_uniform(opencl: Target) -> None:
    def body(key: Any) -> Any:
        return (call("rng_bits", key, shape=(1000,)) >> 8).astype("f32") * 2.0**-24

    key = np.array([5, 6], np.uint32)
    wanted = (numerics.rng_bits(key, shape=(1000,)) >> 8) * 2.0**-24
    assert np.array_equal(run(opencl, body, key), wanted)


def pooled(x: Array, fold: Any, outside: float) -> Array:
    """3 x 3 windows two apart over x [N,H,W,C] padded by one."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=outside)
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    return np.asarray(fold(seen[:, ::2, ::2], axis=(-2, -1)))


@pytest.mark.slice(2)
@pytest.mark.parametrize("channels", [3, 16, 20])
def test_pooling_and_what_follows_it(opencl: Target, channels: int) -> None:
    x = normal(2, 9, 12, channels)
    x[0, 4, 5, 0] = np.nan
    how: dict[str, Any] = {"strides": 2, "padding": 1}
    found = run(opencl, lambda x: F.max_pool2d(x, 3, **how), x)
    assert np.array_equal(found, pooled(x, np.max, -np.inf), equal_nan=True)
    x = normal(2, 9, 12, channels)
    found = run(opencl, lambda x: F.maximum(F.avg_pool2d(x, 3, **how) * 2.0, 0.0), x)
    close(found, np.maximum(pooled(x.astype(np.float64), np.mean, 0.0) * 2, 0))


def test_averages_over_leading_axes(opencl: Target) -> None:
    x = normal(2, 7, 7, 40)
    close(run(opencl, lambda x: x.mean(axis=(1, 2)), x), x.astype(np.float64).mean((1, 2)))


def test_patches_of_every_geometry(opencl: Target) -> None:
    x = normal(2, 7, 9, 3)
    how = {"strides": (1, 2), "low": (-1, 2), "high": (2, 0)}
    how |= {"base_dilation": (2, 1), "window_dilation": (2, 3), "window": (2, 3)}
    found = run(opencl, lambda x: call("extract_patches", x, **how), x)
    assert np.array_equal(found, numerics.extract_patches(x, **how))
