"""Kernels of experts: the weights of those that are chosen, and of no other."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from opencl_runs import Array, close, normal, with_parameters, words_of

from ptir import functional as F
from ptir.backend.contract import Target

EXPERTS, OUTPUTS, INPUTS = 6, 48, 64


def choice(tokens: int, each: int) -> Array:
    """Different experts for each token, of which the second is nobody's."""
    draws = np.random.default_rng(tokens)
    return np.stack([draws.permutation([0, 2, 3, 4, 5])[:each] for _ in range(tokens)])


def wanted(x: Array, weight: Array, chosen: Array) -> Array:
    """Row by row, in f64."""
    rows = x[:, None].repeat(chosen.shape[1], 1) if x.ndim == 2 else x
    stacked = weight.reshape(EXPERTS, OUTPUTS, INPUTS).astype(np.float64)
    return np.einsum("nki,nkoi->nko", rows.astype(np.float64), stacked[chosen])


@pytest.mark.slice(4)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize(("tokens", "each"), [(1, 3), (3, 2), (20, 4)])
@pytest.mark.parametrize("own_rows", [False, True])
def test_experts_multiply_with_the_weights_of_the_chosen_alone(
    opencl: Target, dtype: Any, tokens: int, each: int, own_rows: bool
) -> None:
    chosen = choice(tokens, each)
    x = normal(tokens, each, INPUTS) if own_rows else normal(tokens, INPUTS)
    weight = normal(EXPERTS * OUTPUTS, INPUTS, seed=1).astype(dtype)
    weight[OUTPUTS : 2 * OUTPUTS] = np.nan

    def body(x: Any, chosen: Any, weight: Any) -> Any:
        return F.expert_linear(x, weight, chosen.astype("i32"), experts=EXPERTS) * 2.0 + 1.0

    found = with_parameters(opencl, body, x, weight, beside=[chosen.astype(np.float32)])
    close(found, wanted(x, np.nan_to_num(weight, nan=0), chosen) * 2 + 1, 1e-4)


@pytest.mark.slice(4)
@pytest.mark.parametrize(("bits", "tabled"), [(4, False), (4, True), (6, False), (8, False)])
@pytest.mark.parametrize(("tokens", "each"), [(1, 3), (3, 2), (20, 4)])
@pytest.mark.parametrize("stored_bias", [False, True])
def test_experts_in_words_are_read_as_they_lie(
    opencl: Target, bits: int, tabled: bool, tokens: int, each: int, stored_bias: bool
) -> None:
    group, draws = 32, np.random.default_rng(3)
    values = draws.integers(0, 1 << bits, (EXPERTS * OUTPUTS, INPUTS))
    table = tuple(range(1, 128, 8)) if tabled else None
    scale, bias = (normal(EXPERTS * OUTPUTS, INPUTS // group, seed=n) for n in (1, 2))
    scale[OUTPUTS : 2 * OUTPUTS] = np.nan
    chosen, x = choice(tokens, each), normal(tokens, INPUTS)

    def body(x: Any, chosen: Any, words: Any, scale: Any, bias: Any) -> Any:
        how: dict[str, Any] = {"bits": bits, "group": group, "table": table, "experts": EXPERTS}
        least = bias if stored_bias else scale * -8.0
        return F.quantized_expert_linear(x, words, scale, least, chosen.astype("i32"), **how)

    words = words_of(values.T, bits).T.copy()
    beside = [chosen.astype(np.float32)]
    found = with_parameters(opencl, body, x, words, scale, bias, beside=beside)
    numbers = np.array(table)[values] if table else values
    known = np.nan_to_num(scale, nan=0).astype(np.float64)
    least = bias if stored_bias else known * -8
    weight = numbers * known.repeat(group, 1) + least.repeat(group, 1)
    right = wanted(x, weight, chosen)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5 * np.abs(right).max())
