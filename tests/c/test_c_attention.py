"""Attention of prompts on C, tiles of queries that end in the middle of keys, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ptir
from functional.models import attention
from ptir import functional as F
from ptir.backend.contract import Target

HEADS, SIZE = 2, 16


def softmax_of_scores(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None
) -> np.ndarray:
    """What each query sees, up to itself, in float64."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(SIZE)
    back = np.arange(q.shape[-2])[:, None] - np.arange(k.shape[-2])
    hidden = (back < 0) | (back >= (window or len(back)))
    weights = np.exp(np.where(hidden, -np.inf, scores))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("tokens", [16, 17, 33, 50, 64, 75, 96])
def test_a_prompt_sees_every_key_up_to_its_own(c: Target, tokens: int, window: int | None) -> None:
    rng = np.random.default_rng(tokens)
    arrays = rng.normal(size=(3, 1, HEADS, tokens, SIZE)).astype("f4")
    attend = ptir.jit(lambda q, k, v: F.attention(q, k, v, window=window))
    found = attend(*(ptir.tensor(one, backend=c) for one in arrays)).numpy()
    wanted = softmax_of_scores(*arrays.astype("f8"), window)
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("size", [SIZE, 20, 2 * SIZE])
@pytest.mark.parametrize("tokens", [48, 64, 75])
def test_a_chunk_in_a_cache_sees_what_is_there(
    c: Target, tokens: int, size: int, dtype: str
) -> None:
    """Rows of other lengths, whose caches hold NaNs behind what was written, and a sink."""
    rng = np.random.default_rng(tokens)
    q = rng.normal(size=(2, 2 * HEADS, tokens, size)).astype("f4")
    k, v = rng.normal(size=(2, 2, HEADS, tokens + 40, size)).astype("f4")
    k, v = (one.astype(ptir.dtype(dtype).numpy) for one in (k, v))
    start, length = np.array([3, 40], "i4"), np.array([tokens - 9, tokens + 40], "i4")
    k[0, :, length[0] :] = v[0, :, length[0] :] = np.nan
    given = {"start": start, "length": length, "sinks": np.arange(4, dtype="f4")}
    operands = {"q": q, "k": k, "v": v, **given}
    attend = ptir.jit(
        lambda k, v, **others: F.attention(
            k=k.astype("f32"), v=v.astype("f32"), **others, soft_cap=3.0
        )
    )
    found = attend(**{name: ptir.tensor(one, backend=c) for name, one in operands.items()}).numpy()
    operands |= {"k": k.astype("f4"), "v": v.astype("f4")}
    wanted = attention(**operands, soft_cap=3.0)
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("tokens", [1, 40])
def test_a_weight_below_the_normal_numbers_is_none(c: Target, tokens: int) -> None:
    """Of scores 95 apart the lower one would add 9e-4 here: products with denormals are slow."""
    q = np.zeros((1, 1, tokens, SIZE), "f4")
    k, v = np.zeros((2, 1, 1, 2, SIZE), "f4")
    q[..., 0], k[..., 1, 0] = 1, -95 * np.sqrt(SIZE)
    v[..., 0, :], v[..., 1, :] = 1, 2.0**127
    attend = ptir.jit(lambda q, k, v: F.attention(q, k, v, causal=False))
    found = attend(*(ptir.tensor(one, backend=c) for one in (q, k, v))).numpy()
    np.testing.assert_array_equal(found, np.ones_like(q))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("size", [SIZE, 20, 4 * SIZE])
@pytest.mark.parametrize("share", [1, 2, 3])
def test_a_token_is_appended_and_seen_by_all_queries_of_its_head(
    c: Target, share: int, size: int, dtype: str
) -> None:
    """Rows of other lengths, one of them empty, a window, a sink, NaNs behind what was written."""
    rng, capacity, start = np.random.default_rng(share), 70, np.array([0, 33, 69], "i4")
    kept = ptir.dtype(dtype).numpy
    q = rng.normal(size=(3, HEADS * share, 1, size)).astype("f4")
    new = rng.normal(size=(2, 3, HEADS, 1, size)).astype("f4").astype(kept)
    caches = rng.normal(size=(2, 3, HEADS, capacity, size)).astype("f4").astype(kept)
    for row, place in enumerate(start):
        caches[:, row, :, place:] = np.nan
    sinks = rng.normal(size=HEADS * share).astype("f4")

    def body(q: Any, k: Any, v: Any, keys: Any, values: Any, start: Any, sinks: Any) -> Any:
        one = (start * 0 + 1).astype("i32")
        keys, values = F.cache_update(keys, k, start, one), F.cache_update(values, v, start, one)
        whole = [each.astype("f32") for each in (keys, values)]
        return F.attention(q, *whole, start=start, length=start + 1, sinks=sinks, window=40)

    given = (q, *new, *caches, start, sinks)
    found = ptir.jit(body)(*(ptir.tensor(one, backend=c) for one in given)).numpy()
    for row, place in enumerate(start):
        caches[:, row, :, place] = new[:, row, :, 0]
    k, v = caches.astype("f4")
    seen = {"start": start, "length": start + 1, "sinks": sinks}
    wanted = attention(q=q, k=k, v=v, **seen, window=40)
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
