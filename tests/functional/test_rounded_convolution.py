"""``conv2d=int8``: exact sums of bytes, what rounding them may lose, and what it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ptir
from byte_convolutions import UNIT, Array, Shape, bound_of_rounding, convolved, exact
from ptir import functional as F
from ptir.errors import UsageError
from ptir.nn import Conv2d

SHAPES = [
    Shape((2, 7, 6, 8), (16, 3, 3), padding=(1, 1)),
    Shape((3, 9, 8, 3), (5, 4, 3), strides=(2, 1), padding=(2, 0)),
    Shape((1, 5, 7, 6), (9, 1, 1)),
    Shape((2, 11, 9, 5), (4, 3, 2), padding=(1, 2), dilation=(3, 2)),
    Shape((2, 4, 4, 1), (2, 4, 4)),
]


def run(x: Array, w: Array, shape: Shape, bias: Array | None = None, **how: Any) -> Array:
    """What the implementation gives on the reference."""
    tensors = [ptir.tensor(one, backend="ref") for one in (x, w)]
    more = None if bias is None else ptir.tensor(bias, backend="ref")
    with ptir.overrides(conv2d="force=int8"):
        return F.conv2d(*tensors, more, **{**shape.how, **how}).numpy()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_only_the_stated_steps_round(shape: Shape) -> None:
    x, w, bias = shape.arrays()
    wanted = convolved(x, w, shape)
    bound = 5 * UNIT * (np.abs(wanted) + np.abs(bias))
    assert (np.abs(run(x, w, shape, bias) - (wanted + bias)) <= bound).all()
    as_hwio = run(x, w.transpose(2, 3, 1, 0).copy(), shape, bias, layout="hwio")
    np.testing.assert_array_equal(as_hwio, run(x, w, shape, bias))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rounding_loses_steps_and_no_more(shape: Shape) -> None:
    x, w, _ = shape.arrays(seed=1)
    off = np.abs(run(x, w, shape) - exact(x, w, shape))
    assert (off <= bound_of_rounding(x, w, shape)).all()
    assert off.max() > 0, "something is rounded"


def test_an_image_is_rounded_by_itself() -> None:
    shape = Shape((3, 6, 6, 4), (8, 3, 3), padding=(1, 1))
    x, w, _ = shape.arrays()
    x[2] *= 1000
    together_ = run(x, w, shape)
    for n in range(3):
        np.testing.assert_array_equal(run(x[n : n + 1], w, shape)[0], together_[n])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_kept_to_its_image_and_its_filter(bad: float) -> None:
    shape = Shape((2, 5, 5, 4), (3, 3, 3), padding=(1, 1))
    x, w, _ = shape.arrays()
    whole = run(x, w, shape)
    x[0, 2, 2, 1] = bad
    found = run(x, w, shape)
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1], whole[1])
    w[2, 0, 0, 0] = bad
    found = run(x[1:], w, shape)
    assert np.isnan(found[..., 2]).all()
    np.testing.assert_array_equal(found[..., :2], whole[1:, ..., :2])


def test_zeros_stay_zeros() -> None:
    shape = Shape((2, 5, 5, 4), (3, 3, 3), padding=(1, 1))
    x, w, _ = shape.arrays()
    x[0], w[1] = 0, 0
    found = run(x, w, shape)
    assert not found[0].any() and not found[..., 1].any() and found[1, ..., 0].all()
    x[0] = np.float32(2.0**-101)  # too small for its steps to be numbers
    assert not run(x, w, shape)[0].any()


def test_ranges_whose_halves_are_both_rounded_up_do_not_wrap() -> None:
    """From -1 to 1 zero is 127.5 steps above the least: rounded up, as the greatest is."""
    shape = Shape((1, 4, 4, 4), (2, 1, 1))
    x = np.resize(np.float32([-1, 1, 0, 0.5]), shape.image)
    w = np.ones((2, 4, 1, 1), np.float32)
    found = run(x, w, shape)
    assert (np.abs(found - exact(x, w, shape)) <= bound_of_rounding(x, w, shape)).all()
    assert (found > 0).all()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_filters_may_be_stored_in_16_bits(dtype: str) -> None:
    shape = Shape((1, 5, 5, 4), (3, 3, 3), padding=(1, 1))
    x, w, _ = shape.arrays()
    stored = ptir.tensor(w, backend="ref").astype(dtype)
    tensor = ptir.tensor(x, backend="ref")
    with ptir.overrides(conv2d="force=int8"):
        found = F.conv2d(tensor, stored, **shape.how).numpy()
    np.testing.assert_array_equal(found, run(x, stored.astype("f32").numpy(), shape))


def test_nothing_is_rounded_unasked() -> None:
    shape = Shape((1, 5, 5, 4), (3, 3, 3), padding=(1, 1))
    x, w, _ = shape.arrays()
    tensors = [ptir.tensor(one, backend="ref") for one in (x, w)]
    for policy in ("default", "benchmark(cache=4)", "tuned"):
        with ptir.overrides(conv2d=policy):
            found = F.conv2d(*tensors, **shape.how).numpy()
        np.testing.assert_allclose(found, exact(x, w, shape), rtol=1e-5, atol=1e-5)


def test_an_unknown_implementation_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(UsageError) as raised, ptir.overrides(conv2d="force=int9"):
        pass
    assert "unknown implementation of conv2d 'int9' (nearest: int8)" in str(raised.value)


def test_layers_say_which_of_their_weights_are_filters() -> None:
    assert Conv2d(4, 8, 3).filters() == ("weight",)
    assert Conv2d(8, 8, 3, groups=8).filters() == ()
