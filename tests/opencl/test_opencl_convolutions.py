"""Convolutions against NumPy in f64: geometry, groups, stored weights, what joins the kernel."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from opencl_runs import Array, close, normal, run, with_parameters

from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture import call


def convolved(
    x: Array,
    weight: Array,
    *,
    strides: Any = 1,
    low: Any = 0,
    high: Any = 0,
    spread: Any = 1,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    """x [N, spatial..., C] with weight [taps..., C / groups, O] in f64, tap by tap."""
    n = x.ndim - 2
    strides, low, high, spread, dilation = (
        (value,) * n if isinstance(value, int) else value
        for value in (strides, low, high, spread, dilation)
    )
    sizes = [(size - 1) * gap + 1 for size, gap in zip(x.shape[1:-1], spread, strict=True)]
    wide = np.zeros((x.shape[0], *sizes, x.shape[-1]))
    wide[(slice(None), *(slice(None, None, gap) for gap in spread))] = x
    padding = [(0, 0), *((max(0, a), max(0, b)) for a, b in zip(low, high, strict=True)), (0, 0)]
    wide = np.pad(wide, padding)
    for axis, (a, b) in enumerate(zip(low, high, strict=True), 1):
        wide = np.take(wide, range(max(0, -a), wide.shape[axis] - max(0, -b)), axis)
    taps, (own, outputs) = weight.shape[:n], weight.shape[n:]
    spans = [(k - 1) * d + 1 for k, d in zip(taps, dilation, strict=True)]
    places = [
        (size - span) // stride + 1
        for size, span, stride in zip(wide.shape[1:-1], spans, strides, strict=True)
    ]
    result = np.zeros((x.shape[0], *places, outputs))
    each = outputs // groups
    for tap in itertools.product(*map(range, taps)):
        seen = wide[
            (
                slice(None),
                *(
                    slice(k * d, k * d + (count - 1) * stride + 1, stride)
                    for k, d, count, stride in zip(tap, dilation, places, strides, strict=True)
                ),
            )
        ]
        for g in range(groups):
            part = seen[..., g * own : (g + 1) * own]
            chosen = weight[tap][:, g * each : (g + 1) * each].astype(np.float64)
            result[..., g * each : (g + 1) * each] += part @ chosen
    return result


@pytest.mark.slice(3)
@pytest.mark.parametrize(
    ("width", "channels", "outputs"),
    [(1, 3, 16), (6, 5, 17), (7, 16, 40), (14, 20, 64), (15, 16, 1), (29, 3, 33), (4, 256, 32)],
)
def test_sizes_around_the_tile(opencl: Target, width: int, channels: int, outputs: int) -> None:
    x, weight = normal(2, 5, width, channels), normal(3, 3, channels, outputs, seed=1)
    given = with_parameters if outputs >= 16 else run
    found = given(opencl, lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    close(found, convolved(x, weight, low=1, high=1), 5e-4)


GEOMETRIES: dict[str, dict[str, Any]] = {
    "valid": {"padding": "valid"},
    "strided": {"strides": (2, 3), "padding": ((1, 2), (0, 3))},
    "dilated": {"dilation": (2, 3), "padding": 2},
    "both": {"strides": 2, "dilation": 2, "padding": ((3, 0), (1, 1))},
}


@pytest.mark.slice(2)
@pytest.mark.parametrize(
    ("named", "groups", "layout", "stored"),
    [
        ("valid", 1, "oihw", True),
        ("valid", 32, "hwio", False),
        ("strided", 1, "hwio", False),
        ("strided", 2, "oihw", True),
        ("strided", 32, "oihw", False),
        ("dilated", 1, "hwio", True),
        ("dilated", 4, "oihw", False),
        ("both", 2, "hwio", False),
        ("both", 32, "oihw", True),
    ],
)
def test_geometry_and_groups(
    opencl: Target, named: str, groups: int, layout: str, stored: bool
) -> None:
    how = GEOMETRIES[named]
    x, weight = normal(2, 13, 19, 32), normal(3, 2, 32 // groups, 64 if groups < 32 else 32, seed=1)
    padding = how.get("padding", 0)
    sides = ((padding, padding),) * 2 if isinstance(padding, int) else padding
    sides = ((0, 0), (0, 0)) if padding == "valid" else sides
    low, high = zip(*sides, strict=True)
    strides, dilation = (
        (value, value) if isinstance(value, int) else value
        for value in (how.get("strides", 1), how.get("dilation", 1))
    )
    wanted = convolved(
        x, weight, strides=strides, low=low, high=high, dilation=dilation, groups=groups
    )
    given = weight if layout == "hwio" else np.ascontiguousarray(weight.transpose(3, 2, 0, 1))

    def body(x: Any, weight: Any) -> Any:
        return F.conv2d(x, weight, groups=groups, layout=layout, **how)

    one = with_parameters(opencl, body, x, given) if stored else run(opencl, body, x, given)
    close(one, wanted, 1e-4)


@pytest.mark.slice(2)
@pytest.mark.parametrize(("channels", "padding"), [(2, 1), (15, 0), (16, 1), (17, 1), (96, 0)])
def test_depthwise_around_a_vector_of_channels(opencl: Target, channels: int, padding: int) -> None:
    x, weight = normal(2, 9, 17, channels), normal(3, 3, 1, channels, seed=1)

    def body(x: Any, weight: Any) -> Any:
        return F.conv2d(x, weight, groups=channels, padding=padding, strides=(1, 2))

    wanted = convolved(x, weight, groups=channels, low=padding, high=padding, strides=(1, 2))
    close(run(opencl, body, x, weight), wanted, 1e-5)
    if channels >= 16:
        close(with_parameters(opencl, body, x, weight), wanted, 1e-5)


@pytest.mark.slice(1)
@pytest.mark.parametrize(("dtype", "groups"), [("float16", 1), ("bfloat16", 2), ("float16", 32)])
def test_weights_of_sixteen_bits(opencl: Target, dtype: str, groups: int) -> None:
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    x, weight = normal(1, 8, 9, 32), normal(3, 3, 32 // groups, 32, seed=1).astype(kind)
    if groups == 32:  # an even number of taps: two to a word
        weight = weight[:2, :3]

    def body(x: Any, weight: Any) -> Any:
        return F.conv2d(x, weight, groups=groups, padding=1)

    wanted = convolved(x, weight.astype(np.float64), groups=groups, low=1, high=1)
    close(with_parameters(opencl, body, x, weight), wanted, 1e-4)


@pytest.mark.slice(2)
@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("stored", [True, False], ids=["parameter", "input"])
def test_patches_times_weights_with_any_number_of_axes(
    opencl: Target, spatial: int, stored: bool
) -> None:
    x = normal(2, *(7, 9, 6)[-spatial:], 5)
    weight = normal(*(2, 3, 2)[-spatial:], 5, 33, seed=1)
    how = {"strides": (1, 2, 1), "low": (1, -1, 2), "high": (0, 2, -1)}
    how |= {"base_dilation": (2, 1, 3), "window_dilation": (1, 2, 2)}
    how = {name: values[-spatial:] for name, values in how.items()}
    inner = tuple(range(spatial + 1, 2 * spatial + 2))

    def body(x: Any, weight: Any) -> Any:
        patches = call("extract_patches", x, window=weight.shape[:spatial], **how)
        return call(
            "dot_general",
            patches,
            weight,
            lhs_contract=inner,
            rhs_contract=tuple(range(spatial + 1)),
        )

    found = with_parameters(opencl, body, x, weight) if stored else run(opencl, body, x, weight)
    named = {"strides": how["strides"], "low": how["low"], "high": how["high"]}
    wanted = convolved(
        x, weight, **named, spread=how["base_dilation"], dilation=how["window_dilation"]
    )
    close(found, wanted, 1e-4)


def test_what_follows_joins_and_what_precedes_is_computed_on_the_way(opencl: Target) -> None:
    x, weight = normal(2, 6, 11, 20), normal(3, 3, 20, 36, seed=1)
    bias, scale, shift = (normal(36, seed=n) for n in (2, 3, 4))
    mean, spread = normal(36, seed=5), np.abs(normal(36, seed=6)) + 0.5
    skip = normal(2, 6, 11, 36, seed=7)

    def body(x: Any, skip: Any, *given: Any) -> Any:
        weight, bias, *norm = given
        made = F.conv2d(F.maximum(x, 0.0) * 2.0, weight, bias, padding=1)
        return F.maximum(F.batch_norm(made, *norm) + skip, 0.0)

    found = run(opencl, body, x, skip, weight, bias, scale, shift, mean, spread)
    made = convolved(np.maximum(x, 0) * 2, weight, low=1, high=1) + bias
    made = (made - mean) / np.sqrt(spread.astype(np.float64) + 1e-5) * scale + shift + skip
    close(found, np.maximum(made, 0), 2e-4)


def test_padding_is_multiplied_like_any_zero(opencl: Target) -> None:
    x, weight = normal(1, 4, 5, 3), normal(3, 3, 3, 16, seed=1)
    weight[0, 0] = np.inf
    found = run(opencl, lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    assert np.isnan(found[0, 0]).all() and np.isnan(found[0, :, 0]).all()
    assert not np.isfinite(found).any()


def test_images_that_several_items_share(opencl: Target) -> None:
    x, weight = normal(1, 56, 56, 64), normal(3, 3, 64, 64, seed=1)
    found = with_parameters(opencl, lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    close(found, convolved(x, weight, low=1, high=1), 3e-4)
    deep = normal(3, 3, 1, 64, seed=2)
    found = run(opencl, lambda x, w: F.conv2d(x, w, padding=1, groups=64), x, deep)
    close(found, convolved(x, deep, low=1, high=1, groups=64), 1e-5)
