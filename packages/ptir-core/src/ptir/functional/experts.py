"""Mixtures of experts: which experts a token goes to, and linear maps by the weights of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptir.capture import Tensor, call, call_multi
from ptir.functional import elementwise as each
from ptir.functional.arrays import arange, take
from ptir.functional.check import STORAGE, Checked
from ptir.functional.define import composite, functional
from ptir.functional.linear import QuantizedWeight, Weight, portable_linear
from ptir.functional.quantized import dequantize, listed, require_words
from ptir.functional.softmax import softmax
from ptir.types import F32, DType
from ptir.weights.tables import Table


def router(
    logits: Tensor, *, count: int, over: str = "all", normalize: bool = True
) -> tuple[Tensor, Tensor]:
    """The ``count`` experts of greatest logit for each token: weights f32[N,K], numbers i32[N,K].

    ``logits`` is f32[N,E]. Weights are softmax probabilities: ``over`` "all" experts, then divided
    by the sum of those chosen if ``normalize``; or over the "chosen" ones alone. The greatest
    comes first. Raises ``TypeRuleError``.
    """
    checked = Checked("router", "logits[N,E]", logits=logits)
    checked.choice("over", over, ("all", "chosen"))
    count, experts = checked.integer("count", count, 1), checked["E"]
    checked.require(count <= experts, "logits", f"count {count} is more than experts E {experts}")
    if over == "chosen":
        best, chosen = call_multi("top_k", logits, k=count)
        return softmax(best, axis=1), chosen
    weights, chosen = call_multi("top_k", softmax(logits, axis=1), k=count)
    return weights / weights.sum(axis=1, keepdims=True) if normalize else weights, chosen


class _Choice:
    """One call: rows of activations, and the experts that each is given to."""

    def __init__(self, x: Tensor, chosen: Tensor, experts: int) -> None:
        self.tokens, self.each = chosen.shape
        self.rows = x if x.ndim == 2 else x.reshape(-1, x.shape[2])
        self.experts = experts
        last = each.minimum(chosen, experts - 1)
        self.chosen = each.maximum(last, 0).reshape(-1)

    @property
    def pairs(self) -> int:
        """Tokens times the experts of each."""
        return self.tokens * self.each

    @property
    def gathers(self) -> bool:
        """Whether weights are gathered: else every expert has a token or so, and all are read."""
        return self.pairs <= self.experts

    def gathered(self, weight: Tensor) -> Tensor:
        """The rows of the chosen experts, one pair after the other: [N*K,O,...]."""
        rows = weight.reshape(self.experts, -1, weight.shape[1])
        return take(rows, self.chosen, axis=0)

    def products(self, weight: Tensor) -> Tensor:
        """Every row times its own weights, which are ``gathered``: f32[N,K,O]."""
        rows, (_, outputs, inputs) = self.rows.shape[0], weight.shape
        own = weight.astype(F32).reshape(rows, self.pairs // max(rows, 1) * outputs, inputs)
        how: dict[str, Any] = {"lhs_batch": (0,), "rhs_batch": (0,)}
        found = call("dot_general", self.rows, own, lhs_contract=(1,), rhs_contract=(2,), **how)
        return found.reshape(self.tokens, self.each, outputs)

    def selected(self, weight: Tensor) -> Tensor:
        """Every row times all weights, of which its experts' are selected: f32[N,K,O]."""
        outputs = weight.shape[0] // self.experts
        found = portable_linear(self.rows, weight, layout="oi")
        found = found.reshape(-1, outputs)
        shared = self.each if self.rows.shape[0] == self.tokens else 1
        row = (arange(self.pairs) // shared) * self.experts
        return take(found, row + self.chosen, axis=0).reshape(self.tokens, self.each, outputs)


@functional("expert_linear", "x @ weight of the experts that each row is given to")
def _expert_linear(x: Tensor, weight: Tensor, chosen: Tensor, *, experts: int) -> Tensor:
    choice = _Choice(x, chosen, experts)
    if choice.gathers:
        return choice.products(choice.gathered(weight))
    return choice.selected(weight)


@functional("quantized_expert_linear", "expert_linear with weights of a few bits per value")
def _quantized_expert_linear(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    bias_groups: Tensor,
    chosen: Tensor,
    *,
    experts: int,
    bits: int,
    group: int,
    table: Table | None = None,
) -> Tensor:
    how: dict[str, Any] = {"bits": bits, "group": group, "table": table}
    choice = _Choice(x, chosen, experts)
    parts = (words, scale, bias_groups)
    if choice.gathers:
        return choice.products(dequantize(*map(choice.gathered, parts), axis=2, **how))
    return choice.selected(dequantize(*parts, axis=1, **how))


def expert_linear(x: Tensor, weight: Weight, chosen: Tensor, *, experts: int) -> Tensor:
    """Rows of x times the weights of the experts that each is given to: f32[N,K,O].

    ``weight`` [experts * O, I] has the weights [O, I] of one expert after the other, stored as f32,
    f16 or bf16 or in words; ``chosen`` i32[N,K] says the experts of a token, and clamps to
    0 .. experts - 1. x is f32[N,I], one row for all experts of a token, or f32[N,K,I], a row for
    each. A backend that takes it whole reads the weights of chosen experts alone. Raises
    ``TypeRuleError``.
    """
    if isinstance(weight, QuantizedWeight) and weight.axis == 1:
        x = x if weight.order is None else take(x, weight.order, axis=-1)
        how: dict[str, Any] = {"bits": weight.bits, "group": weight.group, "table": weight.table}
        parts = (weight.values, weight.scales, weight.bias)
        return quantized_expert_linear(x, *parts, chosen, experts=experts, **how)
    dense = weight.dense() if isinstance(weight, QuantizedWeight) else weight
    signature = f"{_rows(x)} weight:{STORAGE}[M,I] chosen:i32[N,K]"
    checked = Checked("expert_linear", signature, x=x, weight=dense, chosen=chosen)
    _require_experts(checked, "weight", experts)
    return composite("expert_linear", x, dense, chosen, experts=experts)


def quantized_expert_linear(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    bias_groups: Tensor,
    chosen: Tensor,
    *,
    experts: int,
    bits: int,
    group: int,
    table: Sequence[float] | DType | None = None,
) -> Tensor:
    """``expert_linear`` whose weights are quantized along their inputs, as ``quantized_linear`` is.

    ``words`` is u32[experts * O, W], ``scale`` and ``bias_groups`` are [experts * O, G]. Raises
    ``TypeRuleError``.
    """
    grouped = f"scale:{STORAGE}[M,G] bias_groups:{STORAGE}[M,G]"
    signature = f"{_rows(x)} words:u32[M,W] {grouped} chosen:i32[N,K]"
    operands = {"x": x, "words": words, "scale": scale, "bias_groups": bias_groups}
    checked = Checked("quantized_expert_linear", signature, **operands, chosen=chosen)
    _require_experts(checked, "words", experts)
    require_words(checked, "I", bits, group)
    how: dict[str, Any] = {"experts": experts, "bits": bits, "group": group}
    how["table"] = listed(table)
    return composite("quantized_expert_linear", *operands.values(), chosen, **how)


def _rows(x: object) -> str:
    """What x is to be: a row for each token, or for each token and expert."""
    return "x[N,K,I]" if isinstance(x, Tensor) and x.ndim == 3 else "x[N,I]"


def _require_experts(checked: Checked, name: str, experts: int) -> None:
    rows, experts = checked["M"], checked.integer("experts", experts, 1)
    message = f"{name} has {rows} rows, which are no multiple of experts {experts}"
    checked.require(rows % experts == 0, name, message)
