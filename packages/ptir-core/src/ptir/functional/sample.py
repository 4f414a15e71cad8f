"""From logits to token ids: penalties, filters and the draw."""

from __future__ import annotations

import math

from ptir.capture import Tensor, call, call_multi
from ptir.functional import elementwise as each
from ptir.functional.arrays import arange, concat, full
from ptir.functional.check import Checked
from ptir.functional.define import composite, functional
from ptir.functional.elementwise import where
from ptir.functional.softmax import shift
from ptir.types import F32, I32


@functional("sample", "a token per row: temperature, top-k, top-p, min-p, then inverse CDF")
def _sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
) -> Tensor:
    B, V = logits.shape
    heat, k, top_p, min_p, uniform = (
        operand.reshape(B, 1) for operand in (temperature, top_k, top_p, min_p, uniform)
    )
    sampled = heat > 0.0
    ordered, order = call_multi("top_k", logits, k=V)
    rank = arange(V).reshape(1, V)
    scaled = (ordered - shift(ordered[:, :1])) / where(sampled, heat, 1.0)
    alive = (ordered > -math.inf) & ((rank < k) | (k <= 0))
    weights = where(alive, each.exp(scaled), 0.0)
    kept = (weights > 0.0) & _in_top_p(weights, top_p) & (weights >= min_p)
    place = _drawn(where(kept | (rank == 0), weights, 0.0), uniform)
    drawn = where(rank == place, order, 0).sum(axis=-1)
    return where(sampled.reshape(B), drawn, logits.argmax(axis=-1))


def _in_top_p(weights: Tensor, top_p: Tensor) -> Tensor:
    """Which elements, greatest first, are needed to reach the share ``top_p`` of the sum."""
    sums = _running(weights)
    before = concat([full((sums.shape[0], 1), 0.0), sums[:, :-1]], axis=1)
    return (before < top_p * sums[:, -1:]) | (top_p >= 1.0)


def _running(weights: Tensor) -> Tensor:
    return call("cumulative", weights, axis=1, kind="sum")


def _drawn(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first place whose running sum exceeds ``uniform`` times the whole: i32[B,1].

    Places without weight are left out, whatever a parallel sum makes of them; if none is left, 0.
    """
    sums = where(weights > 0.0, _running(weights), 0.0)
    beyond = sums > uniform * sums.max(axis=1, keepdims=True)
    return beyond.astype(I32).argmax(axis=1).reshape(weights.shape[0], 1)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
) -> Tensor:
    """One token id per row of logits f32[B,V]: i32[B]. The other operands are [B], one per row.

    Filters apply in this order: ``temperature`` f32 divides the logits (0 takes the first
    greatest logit and ignores the rest); ``top_k`` i32 keeps the k greatest, equal ones by lowest
    index (0: all); ``top_p`` f32 keeps the fewest that reach this share of what is left (1: all);
    ``min_p`` f32 keeps those with at least this fraction of the greatest probability (0: all).
    The greatest always stays. ``uniform`` f32 in [0, 1) then picks by inverse CDF, most likely
    first. A logit of -inf or NaN is never drawn; a row without any other gives its first index
    in descending order, which is 0 for a row of -inf. Raises ``TypeRuleError``.
    """
    signature = "logits[B,V] temperature[B] top_k:i32[B] top_p[B] min_p[B] uniform[B]"
    operands = {
        "logits": logits,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "uniform": uniform,
    }
    checked = Checked("sample", signature, **operands)
    checked.require(checked["V"] > 0, "logits", "the vocabulary is empty; nothing can be drawn")
    return composite("sample", *operands.values())


def repetition_penalty(logits: Tensor, seen: Tensor, penalty: Tensor | float) -> Tensor:
    """Logits f32[B,V] where ``seen`` bool[B,V] holds made less likely by ``penalty`` (f32[B]).

    Positive logits are divided by the penalty, others multiplied; 1 changes nothing. A Python
    number stands for all rows. Raises ``TypeRuleError``. Source: Keskar et al., "CTRL", 2019.
    """
    signature = "logits[B,V] seen:bool[B,V] penalty[B]"
    checked = Checked("repetition_penalty", signature, logits=logits, seen=seen)
    if not isinstance(penalty, Tensor):
        value = checked.number("penalty", penalty, above=0)
        penalty = full((checked["B"],), value, F32)
    operands = {"logits": logits, "seen": seen, "penalty": penalty}
    rows = Checked("repetition_penalty", signature, **operands)["B"]
    factor = penalty.reshape(rows, 1)
    return where(seen, where(logits > 0.0, logits / factor, logits * factor), logits)
