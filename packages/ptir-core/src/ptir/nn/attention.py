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
    seen = F.attention(
        q,
        keys.astype(q.dtype),
        values.astype(q.dtype),
        start=start,
        length=start + count,
        **options,
    )
    return seen, (keys, values)
