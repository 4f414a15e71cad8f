"""Scaled dot product attention over a key/value cache, and the update of that cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from ptir.capture import Tensor, call
from ptir.functional import elementwise as each
from ptir.functional.arrays import arange, concat, full
from ptir.functional.check import Checked
from ptir.functional.define import (
    composite,
    functional,
    implementation,
    internal_composite,
    lowering,
)
from ptir.functional.elementwise import where
from ptir.functional.softmax import blocks, divisor, shift, softmax
from ptir.ir.attributes import Attributes
from ptir.ops.implementations import INTERNAL_COMPOSITES
from ptir.ops.schedules import ATTENTION_SPLIT
from ptir.types import I32, TensorType

_LIMIT: Final = 2**31 - 1


class _Heads:
    """One attention call with the query heads of a group folded into its rows: no key repeats."""

    def __init__(
        self,
        q: Tensor,
        start: Tensor,
        length: Tensor,
        *,
        groups: int,
        scale: float,
        causal: bool,
        window: int | None,
        soft_cap: float | None,
    ) -> None:
        self.B, self.H, self.T, self.D = q.shape
        self.grouped = (self.B, groups, self.H // groups * self.T)
        self.window = None if window is None or window > _LIMIT else window
        self.q = q.reshape(*self.grouped, self.D)
        self.start, self.length = start, length
        self.scale, self.causal, self.soft_cap = scale, causal, soft_cap

    def scores(self, k: Tensor, positions: Tensor) -> Tensor:
        """Scores of the keys k[B,G,J,D] at ``positions`` i32[J]: [B,H,T,J], -inf where masked."""
        count = positions.shape[0]
        dots = call(
            "dot_general",
            self.q,
            k,
            lhs_contract=(3,),
            rhs_contract=(3,),
            lhs_batch=(0, 1),
            rhs_batch=(0, 1),
        )
        scores = dots.reshape(self.B, self.H, self.T, count) * self.scale
        if self.soft_cap is not None:
            scores = each.tanh(scores / self.soft_cap) * self.soft_cap
        return where(self.seen(positions), scores, -math.inf)

    def seen(self, positions: Tensor) -> Tensor:
        """Which keys each query sees: bool[B,1,T,J] or broadcastable to it.

        Keys are compared by their offset from the query, so that no start can overflow.
        """
        start = self.start.reshape(self.B, 1, 1, 1)
        offset = positions - arange(self.T).reshape(self.T, 1)
        seen = positions < self.length.reshape(self.B, 1, 1, 1)
        if self.causal:
            seen = seen & (offset <= start)
        if self.window is not None:
            seen = seen & (offset > each.maximum(start, self.window - _LIMIT - 1) - self.window)
        return seen

    def values(self, weights: Tensor, v: Tensor, positions: Tensor) -> Tensor:
        """The sum of weights[B,H,T,J] times v[B,G,J,D], in which rows beyond length count as 0."""
        count = positions.shape[0]
        stored = positions.reshape(count, 1) < self.length.reshape(self.B, 1, 1, 1)
        result = call(
            "dot_general",
            weights.reshape(*self.grouped, count),
            where(stored, v, 0.0),
            lhs_contract=(3,),
            rhs_contract=(2,),
            lhs_batch=(0, 1),
            rhs_batch=(0, 1),
        )
        return result.reshape(self.B, self.H, self.T, self.D)

    def split_scores(self, k: Tensor, parts: int) -> Tensor:
        """``scores`` of all keys, in equal parts: [B,H,T,P,J]."""
        keys = k.shape[2]
        scores = self.scores(k, arange(keys))
        return scores.reshape(self.B, self.H, self.T, parts, keys // parts)

    def split_values(self, weights: Tensor, v: Tensor) -> Tensor:
        """``values`` of each part of weights[B,H,T,P,J] by itself: [B,H,T,P,D]."""
        parts, keys = weights.shape[3:]
        groups, rows = self.grouped[1:]
        length = self.length.reshape(self.B, 1, 1, 1)
        stored = arange(parts * keys).reshape(parts * keys, 1) < length
        result = call(
            "dot_general",
            weights.reshape(self.B, groups, rows, parts, keys),
            where(stored, v, 0.0).reshape(self.B, groups, parts, keys, self.D),
            lhs_contract=(4,),
            rhs_contract=(3,),
            lhs_batch=(0, 1, 3),
            rhs_batch=(0, 1, 2),
        )
        ordered = result.transpose(0, 1, 3, 2, 4)
        return ordered.reshape(self.B, self.H, self.T, parts, self.D)

    def sink(self, sinks: Tensor) -> Tensor:
        """The logit f32[H] of each head's sink, for every query: [B,H,T,1]."""
        return sinks.reshape(1, self.H, 1, 1).broadcast_to(self.B, self.H, self.T, 1)


_SIGNATURE: Final = "q[B,H,T,D] k[B,G,C,D] v[B,G,C,D] start:i32[B] length:i32[B]"


@functional(
    "attention", "softmax of scaled, masked query-key products, applied to the values", _SIGNATURE
)
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor,
    length: Tensor,
    sinks: Tensor | None = None,
    *,
    scale: float,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
) -> Tensor:
    heads = _Heads(
        q,
        start,
        length,
        groups=k.shape[1],
        scale=scale,
        causal=causal,
        window=window,
        soft_cap=soft_cap,
    )
    positions = arange(k.shape[2])
    scores = heads.scores(k, positions)
    if sinks is None:
        return heads.values(softmax(scores), v, positions)
    weights = softmax(concat([scores, heads.sink(sinks)], -1))
    return heads.values(weights[..., : k.shape[2]], v, positions)


def _has_keys(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    return "k has no keys; there is no block to start from" if types[1].shape[2] == 0 else None


@implementation("attention", "online", supports=_has_keys)
def _attention_online(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor,
    length: Tensor,
    sinks: Tensor | None = None,
    **attributes: Any,
) -> Tensor:
    """Keys in blocks with a running maximum and sum, never all scores at once (Dao et al. 2022)."""
    heads = _Heads(q, start, length, groups=k.shape[1], **attributes)
    greatest = full((*q.shape[:3], 1), -math.inf)
    total = full((*q.shape[:3], 1), 0.0)
    if sinks is not None:
        greatest = heads.sink(sinks)
        total = each.exp(greatest - shift(greatest))
    result = full(q.shape, 0.0)
    for block in blocks(k.shape[2]):
        positions = arange(k.shape[2])[block]
        scores = heads.scores(k[:, :, block], positions)
        before, greatest = (
            greatest,
            each.maximum(greatest, scores.max(axis=-1, keepdims=True)),
        )
        kept, weights = (
            each.exp(before - shift(greatest)),
            each.exp(scores - shift(greatest)),
        )
        total = total * kept + weights.sum(axis=-1, keepdims=True)
        result = result * kept + heads.values(weights, v[:, :, block], positions)
    return result / divisor(total)


SPLITS: Final = (8, 4, 2)
"""Into how many equal parts keys are split: the first that divides them."""


def _has_parts(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    keys = types[1].shape[2]
    even = keys > 0 and any(keys % parts == 0 for parts in SPLITS)
    return None if even else f"{keys} keys are no two equal parts"


@implementation("attention", "split", supports=_has_parts)
def _attention_split(*operands: Tensor, **attributes: Any) -> Tensor:
    """Keys in equal parts side by side, each with its own maximum and sum (Dao et al. 2023)."""
    return internal_composite(ATTENTION_SPLIT, *operands, **attributes)[0]


def _in_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: Tensor,
    length: Tensor,
    sinks: Tensor | None = None,
    **attributes: Any,
) -> Tensor:
    heads = _Heads(q, start, length, groups=k.shape[1], **attributes)
    count = next(parts for parts in SPLITS if k.shape[2] % parts == 0)
    scores = heads.split_scores(k, count)
    most = scores.max(axis=-1, keepdims=True)
    weights = each.exp(scores - shift(most))
    greatest = most.max(axis=3, keepdims=True)
    sink = None if sinks is None else heads.sink(sinks)
    if sink is not None:
        greatest = each.maximum(greatest, sink.reshape(*sink.shape, 1))
    factors = each.exp(most - shift(greatest))
    total = (weights.sum(axis=-1, keepdims=True) * factors).sum(axis=3)
    if sink is not None:
        total = total + each.exp(sink - shift(greatest.reshape(sink.shape)))
    result = (heads.split_values(weights, v) * factors).sum(axis=3)
    return result / divisor(total)


INTERNAL_COMPOSITES[ATTENTION_SPLIT] = lowering(_in_parts, _has_parts)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    start: Tensor | None = None,
    length: Tensor | None = None,
    scale: float | None = None,
    causal: bool = True,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of q f32[B,H,T,D] to k and v f32[B,G,C,D], H a multiple of G: f32[B,H,T,D].

    Query head h uses key head h // (H // G). Query t of row b sits at position ``start[b] + t``
    (start i32[B], zeros by default). It sees key j if ``j < length[b]`` (length i32[B], C by
    default), if ``causal`` only up to its own position, and with ``window`` W only the last W
    positions. Scores are multiplied by ``scale`` (1 / sqrt(D) by default), then bent by
    ``soft_cap`` c to c * tanh(score / c). Keys and values at or beyond the length have no
    influence, even if NaN; a query that sees nothing gives 0. ``sinks`` f32[H] is one more score
    for each query head, neither scaled nor bent, which has a weight in every query's softmax and
    no value. Raises ``TypeRuleError``.
    """
    start = full(_rows(q), 0, I32) if start is None else start
    length = full(_rows(q), _axis_size(k, 2), I32) if length is None else length
    operands = {"q": q, "k": k, "v": v, "start": start, "length": length}
    signature = _SIGNATURE
    if sinks is not None:
        operands["sinks"], signature = sinks, f"{_SIGNATURE} sinks[H]"
    checked = Checked("attention", signature, **operands)
    H, G, D = (checked[axis] for axis in "HGD")
    checked.require(D > 0, "q", "the heads are empty; D must be at least 1")
    grouped = G > 0 and H % G == 0
    checked.require(grouped, "q k", f"query heads {H} are not a multiple of key heads {G}")
    factor = 1 / math.sqrt(D) if scale is None else scale
    attributes = {
        "scale": checked.number("scale", factor),
        "causal": bool(causal),
        "window": None if window is None else checked.integer("window", window, 1),
        "soft_cap": None if soft_cap is None else checked.number("soft_cap", soft_cap, above=0),
    }
    return composite("attention", *operands.values(), **attributes)


def _axis_size(tensor: object, axis: int) -> int:
    """The size of an axis, or 0 where the check that follows will refuse the operand."""
    return tensor.shape[axis] if isinstance(tensor, Tensor) and axis < tensor.ndim else 0


def _rows(q: object) -> tuple[int]:
    return (_axis_size(q, 0),)


@functional("cache_update", "writes new rows into a cache, from a start on, as many as counted")
def _cache_update(cache: Tensor, new: Tensor, start: Tensor, count: Tensor) -> Tensor:
    (B, H, C, D), T = cache.shape, new.shape[2]
    if T == 0 or B == 0:
        return cache
    step = arange(C) - start.reshape(B, 1)
    written = (step >= 0) & (step < T) & (step < count.reshape(B, 1))
    rows = where(written, step, 0) + (arange(B) * T).reshape(B, 1)
    flat = new.transpose(0, 2, 1, 3).reshape(B * T, H, D)
    moved = call("take", flat, rows, axis=0).transpose(0, 2, 1, 3)
    return where(written.reshape(B, 1, C, 1), moved, cache)


def cache_update(cache: Tensor, new: Tensor, start: Tensor, count: Tensor) -> Tensor:
    """``cache`` [B,H,C,D] with the rows of ``new`` [B,H,T,D] written into it, both of one dtype.

    That is f32, f16 or bf16. Row b gets its first ``count[b]`` steps at the positions from
    ``start[b]`` on (both i32[B]). What falls outside 0 .. C - 1 is dropped and
    nothing else changes. Raises ``TypeRuleError``.
    """
    signature = "cache:f32|f16|bf16[B,H,C,D] new:f32|f16|bf16[B,H,T,D] start:i32[B] count:i32[B]"
    checked = Checked("cache_update", signature, cache=cache, new=new, start=start, count=count)
    rule = "new and the cache must have one dtype, see .astype()"
    checked.require(new.dtype == cache.dtype, "cache new", rule)
    return composite("cache_update", cache, new, start, count)
