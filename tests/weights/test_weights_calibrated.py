"""GPTQ and AWQ on single matrices, beside a slow textbook version and what ``gguf`` decodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from ptir.errors import QuantizationError
from ptir.weights import FORMATS
from ptir.weights.awq import (
    SHARES,
    Weighed,
    clipped,
    clipping,
    output_error,
    scales_tried,
    searched,
)
from ptir.weights.decode import decode
from ptir.weights.gptq import INPUTS, ROWS, factor_of, gptq
from ptir.weights.quantizers import ROUNDERS, quantize
from together import together

Array = np.ndarray[Any, Any]


def inputs_of(count: int, rows: int = 400, seed: int = 1) -> Array:
    """Inputs [rows, count] that depend on one another, some channels much larger than others."""
    draw = np.random.default_rng(seed)
    mixed = draw.standard_normal((rows, count)) @ draw.standard_normal((count, count))
    return mixed * np.exp(draw.standard_normal(count))


def matrix(outputs: int, inputs: int, seed: int = 2) -> Array:
    return np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)


def textbook_q4_0(weights: Array, hessian: Array, damping: float, order: Array) -> Array:
    """GPTQ as its paper derives it from optimal brain surgery, in f64 and without Cholesky.

    The inverse of the sum is kept whole; the row and the column of each input leave it by an
    elimination step. Q4_0 is written out here: 16 numbers of a scale in f16 from the weight that is
    farthest from 0, which becomes -8.
    """
    left = weights.astype(np.float64)
    inverse = np.linalg.inv(hessian + damping * np.diagonal(hessian).mean() * np.eye(len(hessian)))
    result = np.empty_like(left)
    in_order = (order == np.arange(len(order))).all()
    for place in order:
        block = place // 32 * 32
        if in_order and place == block:
            scales = q4_0_scales(left[:, block : block + 32])
        elif not in_order:
            scales = q4_0_scales(weights[:, block : block + 32])
        codes = np.clip(np.rint(left[:, place] / scales), -8, 7)
        result[:, place] = codes * scales
        error = (left[:, place] - result[:, place]) / inverse[place, place]
        left -= np.outer(error, inverse[place])
        inverse -= np.outer(inverse[:, place], inverse[place]) / inverse[place, place]
    return result


def q4_0_scales(block: Array) -> Array:
    rounded = block.astype(np.float32)
    farthest = rounded[np.arange(len(rounded)), np.abs(rounded).argmax(1)]
    scales: Array = (farthest / -8).astype(np.float16).astype(np.float64)
    return scales


@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_is_what_the_textbook_gives(act_order: bool) -> None:
    x, weights = inputs_of(2 * INPUTS + 32), matrix(24, 2 * INPUTS + 32)
    hessian = x.T @ x
    factor = factor_of(hessian, damping=0.01, act_order=act_order)
    found = decode(FORMATS["Q4_0"], gptq(FORMATS["Q4_0"], weights, factor))
    wanted = textbook_q4_0(weights, hessian, 0.01, factor.order)
    assert (np.diff(np.diagonal(hessian)[factor.order]) <= 0).all() == act_order
    assert (np.abs(found - wanted) < 1e-6).mean() > 0.995  # a tie in f32 moves what is behind it
    errors = [output_error(one - weights, hessian) for one in (found, wanted)]
    assert errors[0] == pytest.approx(errors[1], rel=0.01)


@pytest.mark.parametrize("act_order", [False, True])
@together("name")
@pytest.mark.parametrize("name", ROUNDERS)
def test_gptq_is_closer_than_rounding_in_every_format(name: str, act_order: bool) -> None:
    format, x, weights = FORMATS[name], inputs_of(512), matrix(40, 512)
    hessian = x.T @ x
    plain = decode(format, quantize(format, weights))
    arrays = gptq(format, weights, factor_of(hessian, act_order=act_order))
    found = decode(format, arrays)
    assert output_error(found - weights, hessian) < 0.75 * output_error(plain - weights, hessian)
    if "blocks" in arrays:
        kind = GGMLQuantizationType[name]
        np.testing.assert_array_equal(quants.dequantize(arrays["blocks"], kind), found)


def test_inputs_that_do_not_depend_on_each_other_are_rounded_to_nearest() -> None:
    format, weights = FORMATS["int4"], matrix(8, 64)
    found = gptq(format, weights, factor_of(np.diag(np.linspace(1, 9, 64))))
    np.testing.assert_array_equal(decode(format, found), decode(format, quantize(format, weights)))


def test_rows_and_threads_do_not_change_what_comes() -> None:
    format, x, weights = FORMATS["Q4_K"], inputs_of(256), matrix(ROWS + 7, 256)
    factor = factor_of(x.T @ x)
    whole = gptq(format, weights, factor, processors=3)["blocks"]
    np.testing.assert_array_equal(whole, gptq(format, weights, factor)["blocks"])


def test_damping_is_raised_for_a_sum_without_a_factor() -> None:
    x = inputs_of(64, rows=8)
    singular = x.T @ x
    assert factor_of(singular, damping=0.01).damping == 0.01
    assert factor_of(singular, damping=0.0).damping > 0.0
    upper = factor_of(singular, damping=0.01).upper
    mean = np.diagonal(singular).mean()
    np.testing.assert_allclose(
        upper.T @ upper @ (singular + 0.01 * mean * np.eye(64)), np.eye(64), atol=1e-6
    )


REFUSED = {
    "nan": (np.full((32, 32), np.nan), "holds NaN or infinity"),
    "infinity": (np.diag(np.full(32, np.inf)), "holds NaN or infinity"),
    "nothing": (np.zeros((32, 32)), "all activations are 0"),
    "indefinite": (1 - 50 * np.eye(32)[::-1] + np.eye(32), "no Cholesky factor with damping 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_sums_without_a_factor_are_refused(case: str) -> None:
    hessian, message = REFUSED[case]
    with pytest.raises(QuantizationError, match=message):
        factor_of(hessian)


def test_weights_that_a_format_does_not_hold_are_refused() -> None:
    x = inputs_of(32)
    with pytest.raises(QuantizationError, match="Q4_0 has scales in f16"):
        gptq(FORMATS["Q4_0"], np.full((2, 32), 1e9, np.float32), factor_of(x.T @ x))


# --- AWQ ---


def weighed(name: str, outputs: int, inputs: int) -> tuple[Weighed, Array]:
    x = inputs_of(inputs)
    return Weighed(FORMATS[name], matrix(outputs, inputs), x.T @ x), np.abs(x).mean(0)


def test_no_scales_are_tried_first_and_all_are_balanced() -> None:
    one, magnitudes = weighed("Q4_0", 24, 96)
    tried = list(scales_tried(magnitudes, np.abs(one.weights).mean(0)))
    np.testing.assert_array_equal(tried[0], 1)
    for scales in tried:
        assert scales.min() > 0 and scales.max() * scales.min() == pytest.approx(1, rel=1e-5)
    assert len({scales.tobytes() for scales in tried}) > 30


@pytest.mark.parametrize("name", ["Q4_0", "int4", "Q4_K", "MXFP4"])
def test_scales_and_clipping_each_make_the_error_less(name: str) -> None:
    one, magnitudes = weighed(name, 48, 256)
    best = searched([one], magnitudes, lambda values: values)
    assert best.useful and best.after < 0.97 * best.before
    shares = clipping(one, best.scales, processors=2)
    assert set(np.unique(shares)) <= set(np.array(SHARES, np.float32))
    again = decode(one.format, quantize(one.format, clipped(one.weights * best.scales, shares)))
    assert output_error(again / best.scales - one.weights, one.hessian) < best.after


def test_inputs_that_must_share_a_scale_do() -> None:
    one, magnitudes = weighed("Q4_0", 24, 64)
    pairs = np.arange(64) // 2
    best = searched([one], magnitudes, lambda v: (np.bincount(pairs, v) / 2)[pairs])
    np.testing.assert_array_equal(best.scales[::2], best.scales[1::2])
    assert len(set(best.scales.tolist())) > 8


def test_clipping_cuts_extremes_and_nothing_else() -> None:
    weights = np.array([[4.0, -1.0, 2.0, -8.0, 1.0, 1.0]], np.float32)
    found = clipped(weights, np.array([[0.5, 1.0]], np.float32))
    np.testing.assert_array_equal(found, [[2, -1, 2, -8, 1, 1]])
