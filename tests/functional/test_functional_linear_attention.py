"""Linear attention with decays against every token beside every earlier one, in float64."""

from __future__ import annotations

import numpy as np
import pytest

import ptir.functional as F
from functional.evaluate import f32, i32, run
from functional.models import gated_linear_attention
from ptir.errors import TypeRuleError
from together import together

NAME = "gated_linear_attention"
FORMS = pytest.mark.parametrize("form", ["portable", "recurrent", "chunked"])
DECAYS = {
    "none": lambda shape, random: np.zeros(shape),
    "from -20 to 0": lambda shape, random: -20 * random.uniform(size=shape) ** 4,
    "small ones behind large ones": lambda shape, random: np.where(
        np.arange(shape[-1]) % 7 == 3, -20.0, -1e-3 * random.uniform(size=shape)
    ),
}
"""How the logarithms of decays are drawn."""


def operands(B=2, H=2, G=4, T=5, K=8, V=3, decays="from -20 to 0", count=None):
    g = DECAYS[decays]((B, G, T), np.random.default_rng(T)).astype(np.float32)
    q, k = (f32(B, H, T, K, seed=n) for n in (0, 1))
    count = i32(*[T] * B) if count is None else i32(*count)
    return q, k, f32(B, G, T, V, seed=2), g, f32(B, G, K, V, seed=4), count


CASES = [
    {},
    {"T": 0},
    {"T": 1, "count": [1, 0]},
    {"T": 7, "count": [3, 0]},
    {"T": 9, "G": 2, "count": [-1, 99]},
    {"T": 64, "H": 1, "G": 1},
    {"T": 65, "K": 1, "V": 1, "count": [64, 65]},
    {"T": 130, "B": 1, "H": 1, "G": 3, "count": [67]},
    {"B": 0, "count": []},
]


@together()
@pytest.mark.parametrize("form", ["recurrent", "chunked"])
@pytest.mark.parametrize("decays", DECAYS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_what_earlier_tokens_leave(case, decays, form):
    given = operands(**case, decays=decays)
    found = run(F.gated_linear_attention, *given, use={NAME: form})
    for one, other in zip(found, gated_linear_attention(*given), strict=True):
        size = max(1.0, float(np.abs(other).max(initial=0)))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=3e-6 * size)


def test_more_chunks_than_are_written_out_are_a_loop():
    given = operands(B=1, H=1, G=2, T=64 * 17 - 5, K=4, V=2)
    one, other = (
        run(F.gated_linear_attention, *given, use={NAME: form}) for form in ("chunked", "recurrent")
    )
    for found, wanted in zip(one, other, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@FORMS
@pytest.mark.parametrize("T", [1, 5])
def test_a_row_without_tokens_keeps_its_state_bit_for_bit(T, form):
    *given, state, count = operands(T=T, count=[0, T])
    state[0, 0, 0] = [-0.0, np.nan, -np.inf]
    _, after = run(F.gated_linear_attention, *given, state, count, use={NAME: form})
    assert after[0].tobytes() == state[0].tobytes()
    assert after[1].tobytes() != state[1].tobytes()


@FORMS
def test_what_is_no_token_does_not_enter_the_state(form):
    given = operands(T=6, count=[2, 4])
    spoilt = [x.copy() for x in given]
    for x in spoilt[1:4]:  # k, v, g
        for row, real in enumerate(given[-1]):
            x[row, :, real:] = np.nan
    wanted, found = (run(F.gated_linear_attention, *x, use={NAME: form}) for x in (given, spoilt))
    assert found[1].tobytes() == wanted[1].tobytes()


@FORMS
def test_two_steps_leave_what_one_leaves(form):
    *given, state, _ = operands(T=9)
    use = {NAME: form}
    whole, last = run(F.gated_linear_attention, *given, state, i32(9, 9), use=use)
    parts = [x[:, :, :4] for x in given], [x[:, :, 4:] for x in given]
    first, state = run(F.gated_linear_attention, *parts[0], state, i32(4, 4), use=use)
    other, state = run(F.gated_linear_attention, *parts[1], state, i32(5, 5), use=use)
    np.testing.assert_allclose(np.concatenate([first, other], axis=2), whole, atol=1e-5)
    np.testing.assert_allclose(state, last, atol=1e-5)


WRONG = {
    "value heads 3 are not a multiple of key heads 2": {"G": 3},
    "the heads are empty": {"K": 0},
}


@pytest.mark.parametrize(("said", "sizes"), WRONG.items())
def test_heads_that_do_not_fit_are_refused(said, sizes):
    with pytest.raises(TypeRuleError, match=rf"gated_linear_attention\(q f32.*: {said}"):
        run(F.gated_linear_attention, *operands(**sizes))
