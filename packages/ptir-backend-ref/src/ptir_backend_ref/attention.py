"""The attention composite: only keys that a query can see are ever read, a block at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from ptir.ops.numerics.arrays import blas_ready
from ptir.types import TensorType
from ptir_backend_ref.threads import PARALLEL, blas_is_tamed, run_all, single_threaded_blas

Array = np.ndarray[Any, np.dtype[Any]]

QUERIES: Final = 128
"""Score rows of one block: with a few hundred keys the block's scores stay in cache."""


@dataclass(frozen=True)
class Attention:
    """One attention instruction; calling it with the operands gives f32[B,H,T,D]."""

    result: TensorType
    scale: float
    causal: bool
    window: int | None
    soft_cap: float | None

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        start: Array,
        length: Array,
        sinks: Array | None = None,
    ) -> Array:
        """Attention of every row; the result's memory is laid out as [B,T,H,D]."""
        B, H, T, D = self.result.shape
        out = np.zeros((B, T, H, D), np.float32).transpose(0, 2, 1, 3)
        call = _Call(self, q, blas_ready(k), blas_ready(v), out, sinks)
        G = k.shape[1]
        if 0 in (B, H, T, D, G):
            return out
        step = max(1, QUERIES // (H // G))
        cut = T * H * k.shape[2] >= PARALLEL and blas_is_tamed()
        groups = [slice(g, g + 1) for g in range(G)] if cut else [slice(0, G)]
        tasks: list[Callable[[], None]] = []
        for row, (at, keys) in enumerate(zip(start.tolist(), length.tolist(), strict=True)):
            for first in reversed(range(0, T, step)):  # the longest blocks of a causal row
                end = min(first + step, T)
                tasks += [partial(call.block, row, at, keys, g, first, end) for g in groups]
        if cut:
            with single_threaded_blas():
                run_all(tasks)
        else:
            _run_here(tasks)
        return out

    def seen(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """The range of keys that any query at positions ``first`` to ``last`` sees."""
        low = 0 if self.window is None else max(0, first - self.window + 1)
        return low, min(keys, last + 1) if self.causal else keys


def _run_here(tasks: list[Callable[[], None]]) -> None:
    for task in tasks:
        task()


@dataclass(frozen=True)
class _Call:
    how: Attention
    q: Array
    k: Array
    v: Array
    out: Array
    sinks: Array | None

    def block(self, row: int, at: int, keys: int, groups: slice, first: int, end: int) -> None:
        """Fill the block's results; what sees nothing keeps its zeros.

        ``at`` is the row's start and ``keys`` its length; queries ``first`` to ``end`` of the
        heads that read the key heads ``groups``.
        """
        p0, p1 = at + first, at + end - 1
        low, high = self.how.seen(p0, p1, min(keys, self.k.shape[2]))
        if low >= high:
            return
        share = self.q.shape[1] // self.k.shape[1]
        heads = slice(groups.start * share, groups.stop * share)
        scores = self.scores(row, heads, groups, slice(first, end), slice(low, high))
        masked = self.mask(scores, p0, p1, low, high)
        result = _weighted(scores, self.v[row, groups, low:high], self.sink(heads, len(scores)))
        out = self.out[row, heads, first:end]
        out[...] = result.reshape(out.shape)
        if masked and not np.isfinite(result).all():
            # Zero times a hidden NaN or infinity is NaN; alone, a query has nothing hidden.
            out[...] = 0
            for t in range(first, end):
                self.block(row, at, keys, groups, t, t + 1)

    def sink(self, heads: slice, groups: int) -> Array | None:
        """The logit of each head's sink, [groups, heads of a group, 1, 1], if there are sinks."""
        return None if self.sinks is None else self.sinks[heads].reshape(groups, -1, 1, 1)

    def scores(self, row: int, heads: slice, groups: slice, queries: slice, seen: slice) -> Array:
        """Scaled scores [groups, heads of a group, queries, keys], fresh memory."""
        q = self.q[row, heads, queries] * np.float32(self.how.scale)
        k = self.k[row, groups, seen]
        flat = np.matmul(q.reshape(len(k), -1, q.shape[-1]), k.transpose(0, 2, 1))
        cap = self.how.soft_cap
        if cap is not None:
            flat /= np.float32(cap)
            np.tanh(flat, out=flat)
            flat *= np.float32(cap)
        scores: Array = flat.reshape(len(k), -1, q.shape[1], k.shape[1])
        return scores

    def mask(self, scores: Array, p0: int, p1: int, low: int, high: int) -> bool:
        """Hide what single queries of the block do not see; whether there was anything."""
        above = max(low, p0 + 1) if self.how.causal else high
        below = low if self.how.window is None else min(high, p1 - self.how.window + 1)
        positions = np.arange(p0, p1 + 1)[:, None]
        if above < high:
            hidden = np.arange(above, high) > positions
            np.copyto(scores[..., above - low :], -np.inf, where=hidden)
        if below > low and self.how.window is not None:
            hidden = np.arange(low, below) <= positions - self.how.window
            np.copyto(scores[..., : below - low], -np.inf, where=hidden)
        return above < high or below > low


def _weighted(scores: Array, v: Array, sink: Array | None) -> Array:
    """Softmax of ``scores`` (overwritten) and a sink times ``v``; rows of only -inf give 0."""
    most = np.maximum.reduce(scores, axis=-1, keepdims=True)
    if sink is not None:
        most = np.maximum(most, sink)
    most[np.isneginf(most)] = 0
    scores -= most
    np.exp(scores, out=scores)
    total = np.add.reduce(scores, axis=-1, keepdims=True)
    if sink is not None:
        total += np.exp(sink - most)
    total[total == 0] = 1
    flat = np.matmul(scores.reshape(len(v), -1, v.shape[1]), v)
    result: Array = flat.reshape(*scores.shape[:-1], v.shape[2])
    result /= total
    return result
