"""Routing and expert products against models that look at one token and one expert at a time."""

from __future__ import annotations

import numpy as np
import pytest

import ptir.functional as F
from functional.evaluate import f32, i32, run
from functional.models import softmax
from ptir import tensor
from ptir.errors import TypeRuleError
from ptir.functional.linear import QuantizedWeight
from together import together

EXPERTS, OUTPUTS, INPUTS = 5, 6, 8


def product(x, weight, chosen):
    """Each token's rows times the weights [E,O,I] of its experts."""
    rows = x[:, None].repeat(chosen.shape[1], 1) if x.ndim == 2 else x
    chosen = np.clip(chosen, 0, len(weight) - 1)
    return np.einsum("nki,nkoi->nko", rows.astype(np.float64), weight[chosen].astype(np.float64))


@together()
@pytest.mark.parametrize("tokens", [1, 2, 9], ids=["gathered", "as many as experts", "selected"])
@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("own_rows", [False, True])
def test_expert_linear_multiplies_with_the_weights_of_the_chosen(tokens, each, own_rows) -> None:
    x = f32(tokens, each, INPUTS) if own_rows else f32(tokens, INPUTS)
    weight = f32(EXPERTS, OUTPUTS, INPUTS, seed=1)
    chosen = np.random.default_rng(2).integers(-2, 8, (tokens, each), np.int32)
    stacked = weight.reshape(-1, INPUTS)
    found = run(F.expert_linear, x, stacked, chosen, experts=EXPERTS)
    np.testing.assert_allclose(found, product(x, weight, chosen), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tokens", [1, 9])
def test_experts_that_are_not_chosen_have_no_influence(tokens) -> None:
    x, weight = f32(tokens, INPUTS), f32(EXPERTS, OUTPUTS, INPUTS, seed=1)
    weight[3] = np.nan
    chosen = i32(*([2, 4] * tokens)).reshape(tokens, 2)
    found = run(F.expert_linear, x, weight.reshape(-1, INPUTS), chosen, experts=EXPERTS)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("tokens", [1, 9])
def test_words_give_what_their_dense_form_gives(tokens) -> None:
    weight, chosen = f32(EXPERTS * OUTPUTS, 16), i32(*range(tokens)).reshape(-1, 1) % EXPERTS
    x = tensor(f32(tokens, 16, seed=3), backend="ref")
    scale, bias = F.affine_range(tensor(weight, backend="ref"), bits=4, group=8)
    words = F.quantize(tensor(weight, backend="ref"), scale, bias, bits=4, group=8)
    held = QuantizedWeight(words, scale, 1, 4, 8, 0, minimum=bias)
    pairs = tensor(chosen, backend="ref")
    found = F.expert_linear(x, held, pairs, experts=EXPERTS).numpy()
    wanted = F.expert_linear(x, held.dense(), pairs, experts=EXPERTS).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@together()
@pytest.mark.parametrize("over", ["all", "chosen"])
@pytest.mark.parametrize("normalize", [False, True])
def test_router_gives_the_probabilities_of_the_greatest(over, normalize) -> None:
    logits = f32(7, 9, scale=3)
    weights, chosen = (
        part.numpy()
        for part in F.router(tensor(logits, backend="ref"), count=3, over=over, normalize=normalize)
    )
    for row, best, found in zip(logits, chosen, weights, strict=True):
        assert best.tolist() == np.argsort(-row)[:3].tolist()
        wanted = softmax(row.astype(np.float64))[best]
        if over == "chosen" or normalize:
            wanted = wanted / wanted.sum()
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: F.expert_linear(wide(1, 8), wide(7, 8), wide(1, 2).astype("i32"), experts=2),
            "weight has 7 rows, which are no multiple of experts 2",
        ),
        (
            lambda: F.expert_linear(wide(1, 8), wide(6, 9), wide(1, 2).astype("i32"), experts=2),
            "I differs, 8 and 9",
        ),
        (lambda: F.router(wide(1, 4), count=5), "count 5 is more than experts E 4"),
        (lambda: F.router(wide(1, 4), count=2, over="none"), "over is 'none'"),
    ],
)
def test_what_does_not_fit_is_refused(call, message) -> None:
    with pytest.raises(TypeRuleError, match=message):
        call()


def wide(*shape):
    """A tensor of the shape."""
    return tensor(f32(*shape), backend="ref")
