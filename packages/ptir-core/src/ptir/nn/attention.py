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
    to it, and widened when it is read. Those of ``WindowKeysValues`` hold the positions from its
    third tensor on: they must have room for the steps and hold what the window sees. ``options``
    are those of ``functional.attention``. Returns f32[B,H,T,D] and the extended caches.
    """
    place = _place(cache, start)
    keys, values = (
        F.cache_update(old, new.astype(old.dtype), place, count)
        for old, new in zip(cache[:2], (k, v), strict=True)
    )
    cache = (keys, values, *cache[2:])
    return shared_attention(q, cache, start, count, **options), cache


def shared_attention(
    q: Tensor, cache: LayerTensors, start: Tensor, count: Tensor, **options: Any
) -> Tensor:
    """What ``q`` f32[B,H,T,D] attends to in a cache that already has this step's keys and values.

    The cache is one that ``cached_attention`` returned, of another layer. Query t of row b stands
    at position ``start[b] + t`` and sees nothing from ``start[b] + count[b]`` on. ``options`` are
    those of ``functional.attention``. Returns f32[B,H,T,D].
    """
    keys, values = (kept.astype(q.dtype) for kept in cache[:2])
    place = _place(cache, start)
    return F.attention(q, keys, values, start=place, length=place + count, **options)


def _place(cache: LayerTensors, position: Tensor) -> Tensor:
    """Where positions i32[B] stand in a cache: attention reads distances, so both may be moved."""
    first = cache[2:]
    return position - first[0] if first else position


def slid(cache: LayerTensors, by: Tensor) -> LayerTensors:
    """The tensors of a ``WindowKeysValues`` whose rows have given up their first ``by`` i32[B].

    What stands behind the last position afterwards is not meant to be read.
    """
    keys, values, first = cache
    every = F.full((keys.shape[0],), keys.shape[2], "i32")
    keys, values = (F.cache_update(one, one, 0 - by, every) for one in (keys, values))
    return keys, values, first + by
