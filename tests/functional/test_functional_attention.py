"""Attention and the cache update against models that look at one query and one row at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ptir.functional as F
from functional.evaluate import captured, f32, i32, run
from functional.models import attention, cache_update
from ptir.ir.attributes import Attributes
from ptir.ops.implementations import functional
from together import together

USES = pytest.mark.parametrize(
    "use",
    [None, {"attention": "online"}, {"softmax": "online"}],
    ids=["portable", "online", "portable over online softmax"],
)
CASES = {
    "one query, one key": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "heads": ((2, 3, 4, 5), (2, 3, 4, 5), {}),
    "groups": ((2, 6, 3, 4), (2, 2, 7, 4), {}),
    "one group": ((1, 4, 2, 4), (1, 1, 3, 4), {}),
    "many keys": ((1, 2, 3, 4), (1, 1, 150, 4), {"causal": False}),
    "long": ((1, 1, 40, 4), (1, 1, 40, 4), {}),
    "scale": ((1, 2, 3, 4), (1, 2, 3, 4), {"scale": -0.3}),
    "soft cap": ((1, 2, 3, 4), (1, 2, 5, 4), {"soft_cap": 0.7, "scale": 2.0}),
    "window 1": ((1, 2, 6, 4), (1, 2, 6, 4), {"window": 1}),
    "window 3": ((1, 2, 30, 4), (1, 2, 30, 4), {"window": 3}),
    "huge window": ((1, 2, 6, 4), (1, 2, 6, 4), {"window": 2**40}),
    "window, not causal": ((1, 1, 6, 4), (1, 1, 6, 4), {"window": 2, "causal": False}),
    "decoding": ((3, 4, 1, 4), (3, 2, 20, 4), {"start": i32(0, 7, 19), "length": i32(1, 8, 20)}),
    "chunk": ((2, 2, 4, 4), (2, 1, 20, 4), {"start": i32(0, 9), "length": i32(2, 13)}),
    "window chunk": (
        (2, 2, 4, 4),
        (2, 1, 20, 4),
        {"start": i32(3, 14), "length": i32(6, 18), "window": 4},
    ),
    "nothing seen": ((2, 2, 3, 4), (2, 2, 5, 4), {"length": i32(0, -3)}),
    "before the start": ((1, 1, 3, 4), (1, 1, 5, 4), {"start": i32(-2)}),
    "past the end": ((1, 1, 2, 4), (1, 1, 5, 4), {"length": i32(9), "start": i32(50)}),
    "far start": (
        (2, 1, 3, 4),
        (2, 1, 5, 4),
        {"start": i32(2**31 - 1, -(2**31)), "window": 2**31 - 1},
    ),
    "far start, not causal": (
        (2, 1, 3, 4),
        (2, 1, 5, 4),
        {"start": i32(-(2**31), 4 - 2**31), "window": 2**31 - 1, "causal": False},
    ),
    "sinks": ((2, 6, 3, 4), (2, 2, 20, 4), {"sinks": f32(6, seed=5, scale=3)}),
    "a sink of no weight": (
        (1, 2, 3, 4),
        (1, 2, 5, 4),
        {"sinks": np.array([-np.inf, 90.0], np.float32), "length": i32(2)},
    ),
    "sinks, nothing seen": ((2, 2, 3, 4), (2, 2, 5, 4), {"length": i32(0, 3), "sinks": f32(2)}),
    "no rows": ((0, 2, 3, 4), (0, 2, 5, 4), {}),
    "no queries": ((2, 2, 0, 4), (2, 2, 5, 4), {}),
}


@together()
@USES
@pytest.mark.parametrize("case", CASES)
def test_attention_equals_one_query_at_a_time(case, use) -> None:
    query, key, options = CASES[case]
    q, k, v = f32(*query, scale=2), f32(*key, seed=1, scale=2), f32(*key, seed=2)
    found = run(F.attention, q, k, v, use=use, **options)
    np.testing.assert_allclose(found, attention(q, k, v, **options), rtol=1e-5, atol=3e-6)


def test_attention_to_no_keys_is_zero() -> None:
    found = run(F.attention, f32(1, 2, 3, 4), f32(1, 2, 0, 4), f32(1, 2, 0, 4))
    assert found.shape == (1, 2, 3, 4) and not found.any()


@USES
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("causal", [True, False])
def test_keys_beyond_the_length_never_matter(poison, causal, use) -> None:
    q, k, v = f32(3, 4, 2, 4), f32(3, 2, 40, 4, seed=1), f32(3, 2, 40, 4, seed=2)
    options = {"start": i32(0, 3, 30), "length": i32(0, 5, 32), "causal": causal}
    clean = run(F.attention, q, k, v, use=use, **options)
    for b, length in enumerate(options["length"]):
        k[b, :, length:] = v[b, :, length:] = poison
    found = run(F.attention, q, k, v, use=use, **options)
    assert found.tobytes() == clean.tobytes() and np.isfinite(found).all()
    assert not found[0].any() and found[1:].any()


@USES
def test_rows_of_a_batch_do_not_influence_each_other(use) -> None:
    q, k, v = f32(2, 2, 3, 4), f32(2, 2, 20, 4, seed=1), f32(2, 2, 20, 4, seed=2)
    start, length = i32(2, 11), i32(5, 14)
    both = run(F.attention, q, k, v, start=start, length=length, use=use)
    for b in range(2):
        row = slice(b, b + 1)
        one = run(
            F.attention, q[row], k[row], v[row], start=start[row], length=length[row], use=use
        )
        np.testing.assert_array_equal(both[row], one)


def test_cached_decoding_equals_attention_over_the_whole_sequence() -> None:
    q, k, v = f32(1, 2, 6, 4), f32(1, 2, 6, 4, seed=1), f32(1, 2, 6, 4, seed=2)
    whole = run(F.attention, q, k, v)
    keys, values = np.full((1, 2, 9, 4), np.nan, np.float32), np.zeros((1, 2, 9, 4), np.float32)
    for t in range(6):
        step = slice(t, t + 1)
        keys = run(F.cache_update, keys, k[:, :, step], i32(t), i32(1))
        values = run(F.cache_update, values, v[:, :, step], i32(t), i32(1))
        found = run(F.attention, q[:, :, step], keys, values, start=i32(t), length=i32(t + 1))
        np.testing.assert_allclose(found, whole[:, :, step], rtol=1e-6, atol=1e-7)


def online(keys: int):
    """The online implementation, and the types and own attributes of a call with so many keys."""
    block = captured(F.attention, f32(1, 1, 1, 4), f32(1, 1, keys, 4), f32(1, 1, keys, 4))
    call = block.instructions[-1]
    own = Attributes({k: v for k, v in call.attributes.items() if k != "name"})
    implementation = functional("attention").implementations["online"]
    return implementation, [block.types[v] for v in call.operands], own


def test_online_attention_has_a_reason_where_it_does_not_apply() -> None:
    implementation, *call = online(0)
    assert implementation.supports(*call) == "k has no keys; there is no block to start from"
    implementation, *call = online(1)
    assert implementation.supports(*call) is None


def test_online_attention_never_holds_all_scores() -> None:
    implementation, *call = online(512)
    instructions = implementation.lower(*call).instructions
    dots = [i.types[0].shape for i in instructions if i.op == "dot_general"]
    assert max(shape[-1] for shape in dots) == 64 and len(dots) == 16


@settings(max_examples=25)
@given(st.integers(1, 200), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 5.0]))
def test_online_agrees_with_portable_within_the_bound_of_a_dot(keys, seed, scale) -> None:
    q = f32(1, 2, 2, 4, seed=seed, scale=scale)
    k, v = f32(1, 1, keys, 4, seed=seed + 1, scale=scale), f32(1, 1, keys, 4, seed=seed + 2)
    found, wanted = (
        run(F.attention, q, k, v, causal=False, use=use) for use in (None, {"attention": "online"})
    )
    # Sums of ``keys`` and of D products, each with its own rounding, around an exp of a score.
    score = 4 * np.abs(q).max() * np.abs(k).max()
    bound = (keys + 8 + 8 * score) * 2.0**-23 * attention(q, k, np.abs(v), causal=False)
    assert (np.abs(np.subtract(found, wanted, dtype=np.float64)) <= bound).all()


def test_keys_are_not_repeated_for_the_heads_of_a_group() -> None:
    block = captured(F.attention, f32(1, 8, 1, 4), f32(1, 2, 16, 4), f32(1, 2, 16, 4))
    lowering = block.instructions[-1].regions[0]
    sizes = [t.size for t in lowering.types if t.shape[-1:] == (4,)]
    assert max(sizes) == 2 * 16 * 4


def test_attention_keeps_its_attributes_and_fills_its_operands() -> None:
    block = captured(F.attention, f32(2, 1, 1, 4), f32(2, 1, 3, 4), f32(2, 1, 3, 4), window=2)
    call = block.instructions[-1]
    wanted = 'causal = true, name = "attention", scale = 0.5, soft_cap = none, window = 2'
    assert call.op == "composite" and call.attributes.text == wanted
    assert [str(block.types[v]) for v in call.operands[3:]] == ["i32[2]", "i32[2]"]


@settings(max_examples=60)
@given(
    st.tuples(st.integers(0, 3), st.integers(1, 2), st.integers(0, 6), st.integers(0, 5)),
    st.lists(st.integers(-4, 8) | st.sampled_from([2**31 - 1, -(2**31)]), min_size=6, max_size=6),
)
def test_cache_update_writes_what_is_counted_and_nothing_else(sizes, numbers) -> None:
    B, H, C, T = sizes
    cache, new = f32(B, H, C, 2), f32(B, H, T, 2, seed=1)
    start, count = i32(*numbers[:B]), i32(*numbers[3 : 3 + B])
    found = run(F.cache_update, cache, new, start, count)
    assert found.tobytes() == cache_update(cache, new, start, count).tobytes()


def test_cache_update_leaves_nan_beside_it_alone() -> None:
    cache, new = np.full((1, 1, 4, 1), np.nan, np.float32), f32(1, 1, 2, 1)
    new[0, 0, 1] = np.nan
    found = run(F.cache_update, cache, new, i32(1), i32(1))
    assert np.isnan(found.ravel()).tolist() == [True, False, True, True]
