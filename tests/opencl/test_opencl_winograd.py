"""Convolutions by Winograd's tiles as one kernel, against NumPy in f64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from opencl_runs import Array, close, normal, run, with_parameters
from test_opencl_convolutions import convolved

import ptir
from devices import device
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.ops.overriding import active_overrides
from ptir.ops.schedules import CONV2D_WINOGRAD
from ptir.passes import PassContext, optimize
from ptir.switches import SCHEDULE
from ptir.types import spec


@pytest.fixture(autouse=True)
def by_tiles() -> Iterator[None]:
    with ptir.overrides(conv2d="force=winograd"):
        yield


@pytest.fixture(params=["opencl", "c"])
def target(request: pytest.FixtureRequest, opencl: Target) -> Target:
    return opencl if request.param == "opencl" else device("c")


def taken(target: Target, *shapes: tuple[int, ...]) -> list[str]:
    """The composites of a convolution that the backend takes whole."""
    context = PassContext(target.backend, target.device, active_overrides())
    types = (spec("f32", *shape) for shape in shapes)
    made = optimize(ptir.capture(lambda x, w: F.conv2d(x, w, padding=1), *types), context)
    return [one.name for one in made.main.instructions if one.op == "composite"]


SIZES = [
    ((1, 4, 4, 16), 32),  # whole tiles
    ((2, 5, 7, 20), 40),  # tiles, vectors and panels that are not
    ((3, 3, 29, 3), 17),  # less than a vector of channels
    ((1, 1, 1, 2), 5),  # a tile of which one output is there, no whole panel
    ((1, 33, 30, 8), 16),  # several rows of tiles, the last one half
    ((2, 14, 14, 256), 64),  # channels whose tiles would share cache sets
]


@pytest.mark.slice(3)
@pytest.mark.parametrize(("shape", "outputs"), SIZES, ids=str)
def test_sizes_around_the_tile(
    target: Target, shape: tuple[int, ...], outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_VERIFY", "1")
    x, weight = normal(*shape), normal(3, 3, shape[3], outputs, seed=1)
    assert taken(target, x.shape, weight.shape) == [CONV2D_WINOGRAD]
    given = with_parameters if outputs >= 16 else run
    found = given(target, lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    close(found, convolved(x, weight, low=1, high=1), 5e-4)


@pytest.mark.slice(2)
@pytest.mark.parametrize("sides", [((0, 0), (0, 0)), ((2, 0), (0, 3)), ((1, 2), (2, 1))], ids=str)
@pytest.mark.parametrize("layout", ["hwio", "oihw"])
def test_padding_and_layouts(target: Target, sides: Any, layout: str) -> None:
    x, weight = normal(2, 6, 9, 16), normal(3, 3, 16, 32, seed=1)
    given = weight if layout == "hwio" else np.ascontiguousarray(weight.transpose(3, 2, 0, 1))
    low, high = zip(*sides, strict=True)

    def body(x: Any, weight: Any) -> Any:
        return F.conv2d(x, weight, padding=sides, layout=layout)

    close(with_parameters(target, body, x, given), convolved(x, weight, low=low, high=high), 1e-4)


def test_what_follows_is_in_the_same_kernel(target: Target) -> None:
    x, weight, bias = normal(1, 7, 6, 16), normal(3, 3, 16, 33, seed=1), normal(33, seed=2)
    skip = normal(1, 7, 6, 33, seed=3)

    def body(x: Any, skip: Any, weight: Any, bias: Any) -> Any:
        return F.maximum(F.conv2d(x, weight, bias, padding=1) + skip, 0.0)

    found = with_parameters(target, body, x, weight, bias, beside=(skip,))
    close(found, np.maximum(convolved(x, weight, low=1, high=1) + bias + skip, 0), 1e-4)


@pytest.mark.parametrize("channels", [16, 130, 256])  # 130: its halves are no whole words
def test_filters_in_sixteen_bits_are_transformed_in_f32(target: Target, channels: int) -> None:
    x, size = normal(1, 6, 6, channels), (16 / channels) ** 0.5  # sums are as large as of 16
    weight = (size * normal(3, 3, channels, 32, seed=1)).astype(np.float16)
    found = with_parameters(target, lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    close(found, convolved(x, weight.astype(np.float32), low=1, high=1), 1e-4)


def test_filters_that_are_no_parameters_are_brought_into_panels(target: Target) -> None:
    x, weight = normal(1, 6, 6, 16), normal(3, 3, 16, 32, seed=1)
    found = run(target, lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    close(found, convolved(x, weight, low=1, high=1), 1e-4)


def test_what_is_not_finite_stays_in_its_tiles(target: Target) -> None:
    x, weight = normal(1, 8, 8, 16), normal(3, 3, 16, 32, seed=1)
    x[0, 1, 1, 3] = np.inf
    found = run(target, lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    seen = np.zeros((8, 8), bool)
    seen[:4, :4] = True  # tiles of 2 x 2 outputs that see 4 x 4 inputs, one before the first
    assert np.isfinite(found[0][~seen]).all() and not np.isfinite(found[0, 0:3, 0:3]).any()


def test_workgroups_compute_the_same_in_ops(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEDULE, "coop")
    x, weight = normal(1, 5, 6, 16), normal(3, 3, 16, 32, seed=1)
    assert taken(opencl, x.shape, weight.shape) == []
    found: Array = run(opencl, lambda x, w: F.conv2d(x, w, padding=1), x, weight)
    close(found, convolved(x, weight, low=1, high=1), 1e-4)
