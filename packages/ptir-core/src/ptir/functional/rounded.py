"""Linear maps of rounded activations: what processors have dot instructions for.

Never chosen by default: the results differ from the exact ones by what rounding the activations
loses (docs/reference/accuracy.md). Each implementation lowers to a composite that a backend with
the instruction takes whole; its own lowering is the same numbers in ordinary ops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ptir.capture import Tensor
from ptir.functional import elementwise as each
from ptir.functional.define import implementation, internal_composite, lowering
from ptir.functional.elementwise import where
from ptir.functional.linear import portable_linear
from ptir.functional.quantized import dequantize
from ptir.ir.attributes import Attributes
from ptir.ops.implementations import INTERNAL_COMPOSITES
from ptir.ops.rounded import BYTES, LEAST, MOST, PAIRS, ROUND
from ptir.types import BF16, F32, I8, I32, TensorType
from ptir.weights import QUANTIZERS
from ptir.weights.tables import Table, has_floats

FAST: Final[Mapping[str, tuple[str, str]]] = {
    "bf16": ("linear", "bf16"),
    **dict.fromkeys(QUANTIZERS, ("quantized_linear", "int8")),
}
"""What ``--fast`` chooses by the format of the weights: a functional and its implementation."""


def _bf16_weights(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    found = types[1].dtype
    return None if found == BF16 else f"the weight is {found.name}; bf16 takes bf16 weights"


@implementation("linear", "bf16", supports=_bf16_weights, accuracy="narrower")
def _linear_bf16(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, layout: str) -> Tensor:
    """Activations rounded to bf16, for weights in bf16: products exact, sums in f32."""
    result = internal_composite(PAIRS, x.astype(BF16), weight, layout=layout)[0]
    return result if bias is None else result + bias


def _pairs(x: Tensor, weight: Tensor, *, layout: str) -> Tensor:
    return portable_linear(x.astype(F32), weight, layout=layout)


def _whole_weights(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    table: Any = attributes.get("table")
    if not has_floats(table):
        return None
    return "the weights are floats; int8 takes whole numbers"


@implementation("quantized_linear", "int8", supports=_whole_weights, accuracy="narrower")
def _linear_int8(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    bias_groups: Tensor,
    bias: Tensor | None = None,
    *,
    bits: int,
    group: int,
    layout: str,
    table: Table | None = None,
) -> Tensor:
    """Activations rounded to int8 in groups like the weights' are; their sums are exact."""
    rounded = internal_composite(ROUND, x, group=group)
    how: dict[str, Any] = {"bits": bits, "group": group, "layout": layout}
    how |= {} if table is None else {"table": table}
    result = internal_composite(BYTES, *rounded, words, scale, bias_groups, **how)[0]
    return result if bias is None else result + bias


def round_to_bytes(x: Tensor, *, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Values i8[...,K], scales f32[...,G] and sums of values i32[...,G] of x f32[...,K].

    Each ``group`` neighbours are scaled so that the greatest becomes 127 in size, then rounded,
    half to even. A group of nothing above ``LEAST`` becomes zeros; the scale of one that is not
    finite is not a number.
    """
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // group, group)
    most = each.abs(groups).max(axis=-1)
    factor = where(most > LEAST, MOST / most, 0.0)
    values = each.round(groups * factor.reshape(*factor.shape, 1)).astype(I8)
    sums = values.astype(I32).sum(axis=-1)
    scales = where(most < math.inf, most * (1 / MOST), math.nan)
    return values.reshape(*x.shape), scales, sums


def _bytes(
    values: Tensor,
    scales: Tensor,
    sums: Tensor,
    words: Tensor,
    scale: Tensor,
    bias_groups: Tensor,
    *,
    bits: int,
    group: int,
    layout: str,
    table: Table | None = None,
) -> Tensor:
    groups = values.astype(F32).reshape(*scales.shape, group)
    x = (groups * scales.reshape(*scales.shape, 1)).reshape(*values.shape)
    axis = 1 if layout == "oi" else 0
    how: dict[str, Any] = {"bits": bits, "group": group, "axis": axis, "table": table}
    weight = dequantize(words, scale, bias_groups, **how)
    return portable_linear(x, weight, layout=layout)


INTERNAL_COMPOSITES.update(
    {
        ROUND: lowering(round_to_bytes),
        BYTES: lowering(_bytes),
        PAIRS: lowering(_pairs),
    }
)
