"""The causal convolution and the gated delta rule against models that go token by token."""

from __future__ import annotations

import numpy as np
import pytest

import ptir.functional as F
from functional.evaluate import f32, i32, run
from functional.models import causal_conv1d, gated_delta_rule
from together import together

FORMS = pytest.mark.parametrize("form", ["portable", "recurrent", "chunked"])

DECAYS = {
    "none": lambda shape, random: np.zeros(shape),
    "from -20 to 0": lambda shape, random: -20 * random.uniform(size=shape) ** 4,
    "small ones behind large ones": lambda shape, random: np.where(
        np.arange(shape[-1]) % 7 == 3, -20.0, -1e-3 * random.uniform(size=shape)
    ),
}
"""How the logarithms of decays are drawn."""


def operands(B=2, H=2, G=4, T=5, K=8, V=3, decays="from -20 to 0", alike=False, count=None):
    """Operands as models have them: keys of length 1, rates in 0 .. 1."""
    random = np.random.default_rng(T)
    q, k = (f32(B, H, 1 if alike and n else T, K, seed=n) for n in (0, 1))
    k = np.broadcast_to(k / np.linalg.norm(k, axis=-1, keepdims=True), q.shape).copy()
    g = DECAYS[decays]((B, G, T), random).astype(np.float32)
    rates = np.ones((B, G, T)) if alike else random.uniform(size=(B, G, T))
    state = f32(B, G, K, V, seed=4)
    count = i32(*[T] * B) if count is None else i32(*count)
    return q, k, f32(B, G, T, V, seed=2), g, rates.astype(np.float32), state, count


def assert_near(found, wanted, operands):
    q = operands[0]
    for one, other in zip(found, wanted, strict=True):
        size = max(1.0, float(np.abs(other).max(initial=0)), float(np.abs(q).max(initial=0)))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * size)


CASES = [
    {},
    {"T": 0},
    {"T": 1, "count": [1, 0]},
    {"T": 7, "count": [3, 0]},
    {"T": 9, "G": 2, "count": [-1, 99]},
    {"T": 64, "H": 1, "G": 1},
    {"T": 65, "K": 1, "V": 1, "count": [64, 65]},
    {"T": 130, "H": 1, "G": 2, "count": [130, 66]},
    {"B": 0, "count": []},
]


@together()
@pytest.mark.parametrize("form", ["recurrent", "chunked"])
@pytest.mark.parametrize("kind", [*DECAYS, "keys alike"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_delta_rule_is_its_recurrence(case, kind, form):
    alike = kind == "keys alike"
    given = operands(**case, decays="none" if alike else kind, alike=alike)
    found = run(F.gated_delta_rule, *given, use={"gated_delta_rule": form})
    assert_near(found, gated_delta_rule(*given), given)


def test_more_chunks_than_are_written_out_are_a_loop():
    given = operands(B=1, H=1, G=1, T=64 * 17 - 5, K=4, V=2, decays="from -20 to 0")
    found = run(F.gated_delta_rule, *given, use={"gated_delta_rule": "chunked"})
    assert_near(found, gated_delta_rule(*given), given)


@FORMS
@pytest.mark.parametrize("T", [1, 5])
def test_a_row_without_tokens_keeps_its_state_bit_for_bit(T, form):
    *given, state, count = operands(T=T, count=[0, T])
    state[0, 0, 0] = [-0.0, np.nan, -np.inf]
    _, after = run(F.gated_delta_rule, *given, state, count, use={"gated_delta_rule": form})
    assert after[0].tobytes() == state[0].tobytes()
    assert after[1].tobytes() != state[1].tobytes()


@FORMS
def test_what_is_no_token_does_not_enter_the_state(form):
    given = operands(T=6, count=[2, 4])
    spoilt = [x.copy() for x in given]
    for x in spoilt[1:5]:  # k, v, g, beta
        for row, real in enumerate(given[-1]):
            x[row, :, real:] = np.nan
    wanted, found = (
        run(F.gated_delta_rule, *x, use={"gated_delta_rule": form}) for x in (given, spoilt)
    )
    assert found[1].tobytes() == wanted[1].tobytes()


@FORMS
def test_two_steps_leave_what_one_leaves(form):
    *given, state, _ = operands(T=9)
    use = {"gated_delta_rule": form}
    whole, last = run(F.gated_delta_rule, *given, state, i32(9, 9), use=use)
    first, state = run(F.gated_delta_rule, *(x[:, :, :4] for x in given), state, i32(4, 4), use=use)
    other, state = run(F.gated_delta_rule, *(x[:, :, 4:] for x in given), state, i32(5, 5), use=use)
    np.testing.assert_allclose(np.concatenate([first, other], axis=2), whole, atol=1e-5)
    np.testing.assert_allclose(state, last, atol=1e-5)


CONVOLUTIONS = {
    "plain": ((2, 5, 3), 4, (5, 5), True),
    "no bias": ((2, 5, 3), 3, (5, 2), False),
    "one step": ((3, 1, 4), 4, (1, 0, 1), True),
    "one tap": ((2, 4, 3), 1, (4, 0), True),
    "more tokens than there are": ((2, 3, 2), 3, (9, -2), False),
    "no rows": ((0, 3, 2), 3, (), False),
    "no steps": ((2, 0, 2), 3, (0, 1), False),
}


@pytest.mark.parametrize(("shape", "taps", "count", "biased"), CONVOLUTIONS.values())
def test_the_convolution_sees_its_tail_and_leaves_one(shape, taps, count, biased):
    (B, _, C), bias = shape, [f32(shape[2], seed=3)] if biased else []
    x, weight, tail = f32(*shape), f32(C, taps, seed=1), f32(B, taps - 1, C, seed=2)
    y, kept = run(F.causal_conv1d, x, weight, tail, i32(*count), *bias)
    wanted, wanted_tail = causal_conv1d(x, weight, tail, count, *bias)
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)
    assert kept.tobytes() == wanted_tail.tobytes()
