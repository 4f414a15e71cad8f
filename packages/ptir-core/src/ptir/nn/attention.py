"""Attention over a cache of keys and values that every step extends."""

from __future__ import annotations

from typing import Any

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.nn.state import LayerTensors


def cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: LayerTensors,
    start: Tensor,
    count: Tensor,
    **options: Any,
) -> tuple[Tensor, LayerTensors]:
    """What ``q`` f32[B,H,T,D] attends to in a cache that has got ``k`` and ``v`` f32[B,G,T,D].

    The two caches [B,G,C,D] of ``KeysValues`` get the first ``count[b]`` steps of row b at the
    positions from ``start[b]`` on (both i32[B]). They keep their dtype: what is written is rounded
    to it, and widened when it is read. ``options`` are those of ``functional.attention``. Returns
    f32[B,H,T,D] and the extended caches.
    """
    keys, values = (
        F.cache_update(old, new.astype(old.dtype), start, count)
        for old, new in zip(cache, (k, v), strict=True)
    )
    cache = (keys, values)
    return shared_attention(q, cache, start, count, **options), cache


def shared_attention(
    q: Tensor, cache: LayerTensors, start: Tensor, count: Tensor, **options: Any
) -> Tensor:
    """What ``q`` f32[B,H,T,D] attends to in a cache that already has this step's keys and values.

    The cache is one that ``cached_attention`` returned, of another layer. Query t of row b stands
    at position ``start[b] + t`` and sees nothing from ``start[b] + count[b]`` on. ``options`` are
    those of ``functional.attention``. Returns f32[B,H,T,D].
    """
    keys, values = (kept.astype(q.dtype) for kept in cache)
    return F.attention(q, keys, values, start=start, length=start + count, **options)
