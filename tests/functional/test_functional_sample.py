"""Sampling against a plain Python model of the filters and the draw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ptir.functional as F
from functional.evaluate import i32, run
from functional.models import distribution, draw

ROW = np.log(np.array([1, 4, 2, 8, 1], np.float32))  # weights over 16, most likely first: 3 1 2 0 4


def sample(logits, uniform, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> list[int]:
    """Tokens for each of several uniform numbers, one row each."""
    count = len(uniform)
    rows = np.broadcast_to(np.asarray(logits, np.float32), (count, len(logits))).copy()
    settings = (np.full(count, value, np.float32) for value in (top_p, min_p))
    heat, k = np.full(count, temperature, np.float32), np.full(count, top_k, np.int32)
    return run(F.sample, rows, heat, k, *settings, np.asarray(uniform, np.float32)).tolist()


LAST = 1 - 2.0**-24


def test_a_draw_inverts_the_cumulative_distribution_exactly() -> None:
    uniform = [0, 7.9 / 16, 8.1 / 16, 11.9 / 16, 12.1 / 16, 13.9 / 16, 14.1 / 16, 15.1 / 16, LAST]
    assert sample(ROW, uniform) == [3, 3, 1, 1, 2, 2, 0, 4, 4]


def test_a_draw_on_a_boundary_belongs_to_the_next_token() -> None:
    assert sample([0, 0, 0, 0], [0.0, 0.25, 0.5, 0.75]) == [0, 1, 2, 3]


def test_the_share_of_a_fine_grid_is_the_probability() -> None:
    logits = np.array([0, 0, 0, 0, -np.inf, 0, 0, 0, 0], np.float32)
    found = sample(logits, (np.arange(64) + 0.5) / 64)
    assert found == [token for token in (0, 1, 2, 3, 5, 6, 7, 8) for _ in range(8)]


@pytest.mark.parametrize("uniform", [0.0, 0.3, LAST])
def test_temperature_zero_is_the_first_greatest_logit(uniform) -> None:
    assert sample([1, 3, -2, 3], [uniform], temperature=0.0, top_k=3, min_p=1.0) == [1]
    assert sample([1, 3, np.nan, 3], [uniform], temperature=0.0) == [2]


def test_low_temperature_sharpens_and_never_overflows() -> None:
    assert sample([1e30, 2e30, -1e30], [0.0, LAST], temperature=1e-30) == [1, 1]
    assert sample([0, 1, -np.inf], [0.0, 0.45, 0.55], temperature=np.inf) == [1, 1, 0]


def test_top_k_breaks_ties_by_index() -> None:
    found = sample([2, 5, 5, 5, 1], [0.0, 0.49, 0.51, LAST], top_k=2)
    assert found == [1, 1, 2, 2]
    assert set(sample([2, 5, 5, 5, 1], np.linspace(0, 0.999, 50), top_k=1)) == {1}
    assert sample(ROW, [LAST], top_k=99) == [4]


def test_top_p_keeps_the_fewest_that_reach_the_share() -> None:
    grid = np.linspace(0, LAST, 200)
    assert set(sample(ROW, grid, top_p=0.49)) == {3}
    assert set(sample(ROW, grid, top_p=0.51)) == {3, 1}
    assert set(sample(ROW, grid, top_p=0.80)) == {3, 1, 2}
    assert set(sample(ROW, grid, top_p=0.0)) == {3}


def test_min_p_is_relative_to_the_greatest() -> None:
    grid = np.linspace(0, LAST, 200)
    assert set(sample(ROW, grid, min_p=0.24)) == {3, 1, 2}
    assert set(sample(ROW, grid, min_p=0.26)) == {3, 1}
    assert set(sample(ROW, grid, min_p=1.0)) == {3}
    assert set(sample(ROW, grid, min_p=2.0)) == {3}
    assert set(sample([1, 0, 1], grid, min_p=1.0)) == {0, 2}


def test_filters_apply_in_order() -> None:
    grid = np.linspace(0, LAST, 200)
    # Temperature first: at 0.5 the weights are squared, so 3 alone has 64/86 of the whole.
    assert set(sample(ROW, grid, temperature=0.5, top_p=0.7)) == {3}
    # Top-k before top-p: of 8 and 4 alone, 8 has two thirds; of all, only half.
    assert set(sample(ROW, grid, top_k=2, top_p=0.6)) == {3}


def test_rows_have_their_own_settings() -> None:
    logits = np.stack([ROW, ROW, ROW])
    half = np.array([0.99, 0.99, 0.99], np.float32)
    found = run(
        F.sample,
        logits,
        np.array([1, 0, 1], np.float32),
        i32(0, 0, 2),
        np.array([1, 1, 1], np.float32),
        np.zeros(3, np.float32),
        half,
    )
    assert found.tolist() == [4, 3, 1] and found.dtype == np.int32


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_possible_token_gives_the_first(temperature) -> None:
    assert sample([-np.inf] * 4, [0.0, LAST], temperature=temperature) == [0, 0]


def test_a_nan_logit_is_never_drawn() -> None:
    assert set(sample([np.nan, 1, 2], np.linspace(0, LAST, 50))) == {1, 2}


def test_a_single_token_is_always_drawn() -> None:
    assert sample([-3.5], [0.0, LAST]) == [0, 0]


def test_no_rows_give_no_tokens() -> None:
    nothing = np.zeros(0, np.float32)
    found = run(F.sample, np.zeros((0, 3), np.float32), nothing, i32(), nothing, nothing, nothing)
    assert found.shape == (0,)


@settings(max_examples=200)
@given(
    st.lists(
        st.integers(-40, 40).map(lambda n: n / 8) | st.just(-np.inf), min_size=1, max_size=12
    ).filter(lambda logits: max(logits) > -np.inf),
    st.sampled_from([0.1, 0.7, 1.0, 2.0]),
    st.integers(0, 14),
    st.sampled_from([0.05, 0.3, 0.9, 1.0]),
    st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    st.integers(0, 2**24 - 1).map(lambda n: n / 2**24),
)
def test_sample_equals_a_plain_model(logits, temperature, top_k, top_p, min_p, uniform) -> None:
    heat, share, least = (float(np.float32(x)) for x in (temperature, top_p, min_p))
    kept, filtered = distribution(logits, heat, top_k, share, least)
    wanted, drawn = draw(kept, uniform)
    found = sample(logits, [uniform], temperature, top_k, top_p, min_p)[0]
    if filtered > 1e-5:
        assert found in [token for token, _ in kept]
    assume(filtered > 1e-5 and drawn > 1e-5)
    assert found == wanted
