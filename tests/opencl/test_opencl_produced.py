"""A depthwise convolution and the one before it as one kernel, against NumPy in f64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from opencl_runs import close, normal, with_parameters
from test_opencl_convolutions import convolved

from devices import device
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.codegen.families.convolution import produced, serial
from ptir.codegen.families.convolution.match import choose_tiling
from ptir.codegen.weights.panels import LANES


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small operands are computed where they are read, too; every kernel is verified."""
    monkeypatch.setattr(produced, "LARGE", 0)
    monkeypatch.setattr(produced, "NARROW", 1)
    monkeypatch.setenv("PTIR_VERIFY", "1")
    PLANS.clear()
    yield
    PLANS.clear()


@pytest.fixture(params=["opencl", "c"])
def target(request: pytest.FixtureRequest, opencl: Target) -> Target:
    return opencl if request.param == "opencl" else device("c")


CASES = [
    ((1, 8, 8, 16), 32, 1, 1),  # a panel a piece
    ((2, 9, 7, 5), 48, 2, 1),  # an odd number of panels, channels that fill no vector
    ((1, 20, 31, 24), 144, 2, 1),  # the last piece of rows and tile of pixels are not whole
    ((1, 5, 5, 8), 32, 1, 0),  # no padding, and yet no operand in memory
    ((3, 33, 17, 3), 80, 1, 2),  # more padding than the window needs
    ((1, 7, 7, 40), 240, 1, 1),  # pieces of several panels
    ((1, 1, 1, 16), 32, 1, 1),
]


@pytest.mark.slice(3)
@pytest.mark.parametrize(("shape", "outputs", "stride", "padding"), CASES)
def test_rows_are_computed_where_they_are_read(
    target: Target, shape: tuple[int, ...], outputs: int, stride: int, padding: int
) -> None:
    x, wide, bias = normal(*shape), normal(1, 1, shape[3], outputs, seed=1), normal(outputs, seed=2)
    weight = normal(3, 3, 1, outputs, seed=3)

    def body(x: Any, wide: Any, bias: Any, weight: Any) -> Any:
        made = F.minimum(F.maximum(F.conv2d(x, wide, bias), 0.0), 6.0)
        return F.conv2d(made, weight, padding=padding, strides=stride, groups=outputs)

    found = with_parameters(target, body, x, wide, bias, weight)
    made = np.clip(convolved(x, wide) + bias, 0, 6)
    how = {"low": padding, "high": padding, "strides": stride, "groups": outputs}
    close(found, convolved(made, weight, **how), 1e-4)


STEMS = [
    ((1, 17, 30, 3), 2, 3, {"low": 1, "high": 1, "strides": 2}, 1),  # of networks on photographs
    ((2, 12, 13, 3), 2, 4, {"low": 0, "high": 2, "strides": 2}, 2),  # more padding at one side
    ((1, 9, 40, 5), 1, 2, {"low": 2, "high": 2}, 1),  # rows of nothing but padding
    ((1, 31, 33, 4), 2, 1, {"strides": 3}, 1),  # 1x1, but pixels lie apart
    ((1, 11, 9, 2), 1, 3, {"low": 1, "high": 1, "dilation": 2}, 1),
]


@pytest.mark.slice(3)
@pytest.mark.parametrize(("shape", "stride", "window", "how", "padding"), STEMS)
def test_rows_of_windows_with_few_products_are_computed_too(
    target: Target,
    shape: tuple[int, ...],
    stride: int,
    window: int,
    how: dict[str, int],
    padding: int,
) -> None:
    x, first, bias = (
        normal(*shape),
        normal(window, window, shape[3], 48, seed=1),
        normal(48, seed=2),
    )
    weight = normal(3, 3, 1, 48, seed=3)
    sides = (how.get("low", 0), how.get("high", 0))
    given = {name: value for name, value in how.items() if name not in ("low", "high")}

    def body(x: Any, first: Any, bias: Any, weight: Any) -> Any:
        made = F.maximum(F.conv2d(x, first, bias, padding=(sides, sides), **given), 0.0)
        return F.conv2d(made, weight, padding=padding, strides=stride, groups=48)

    found = with_parameters(target, body, x, first, bias, weight)
    made = np.maximum(convolved(x, first, **how) + bias, 0)
    second = {"low": padding, "high": padding, "strides": stride, "groups": 48}
    close(found, convolved(made, weight, **second), 1e-4)


@pytest.mark.parametrize(("panels", "each"), [(3, 2), (6, 4), (5, 3)])
def test_the_last_piece_may_have_fewer_panels(
    target: Target, panels: int, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*given: Any) -> Any:
        found = choose_tiling(*given)
        pieces = -(-panels // each)
        return replace(found, tiles=each, tile_pieces=pieces, pitch=each * LANES)

    monkeypatch.setattr(serial, "choose_tiling", cut)
    channels = panels * LANES
    x, wide = normal(1, 6, 9, 8), normal(1, 1, 8, channels, seed=1)
    weight = normal(3, 3, 1, channels, seed=3)

    def body(x: Any, wide: Any, weight: Any) -> Any:
        return F.conv2d(F.conv2d(x, wide), weight, padding=1, groups=channels)

    found = with_parameters(target, body, x, wide, weight)
    close(found, convolved(convolved(x, wide), weight, low=1, high=1, groups=channels), 1e-4)


def test_padding_is_zero_behind_what_follows_the_first_convolution(target: Target) -> None:
    """The rows beyond the image are zeros, not what the bias makes of zeros."""
    x, wide, bias = np.zeros((1, 3, 3, 4), "f4"), normal(1, 1, 4, 32), np.ones(32, "f4")
    weight = np.ones((3, 3, 1, 32), "f4")

    def body(x: Any, wide: Any, bias: Any, weight: Any) -> Any:
        return F.conv2d(F.conv2d(x, wide, bias), weight, padding=1, groups=32)

    found = with_parameters(target, body, x, wide, bias, weight)
    assert found[0, :, :, 5].tolist() == [[4, 6, 4], [6, 9, 6], [4, 6, 4]]
