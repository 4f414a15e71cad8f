"""Affine quantization: packing, the scale and bias it needs, and linear maps in packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptir.capture import Tensor, call
from ptir.functional.check import STORAGE, Checked
from ptir.functional.define import composite, functional
from ptir.ops.record import type_error
from ptir.types import F32, DType
from ptir.types import dtype as dtype_named
from ptir.weights.tables import Table
from ptir.weights.words import BITS, BITS_IN_WORDS, greatest, words_for


def affine_range(x: Tensor, *, bits: int, group: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """Scale and bias, both f32, that spread 0 .. 2**bits - 1 over the range of each group of x.

    Groups are ``group`` neighbours along ``axis``: the bias is the group's least element, and bias
    + (2**bits - 1) * scale its greatest. A group of equal elements gets scale 0, which ``quantize``
    and ``dequantize`` give back exactly. Raises ``TypeRuleError``.
    """
    checked = Checked("affine_range", f"x:{STORAGE}[...]", x=x)
    at = _axis("affine_range", x, axis)
    checked.require(bits in BITS, "", f"bits is {bits!r}; it must be {BITS_IN_WORDS}")
    group, size = checked.integer("group", group, 1), x.shape[at]
    message = f"group {group} does not divide axis {at} of {size}"
    checked.require(size % group == 0, "x", message)
    split = x.astype(F32).reshape(*x.shape[:at], size // group, group, *x.shape[at + 1 :])
    least, most = split.min(axis=at + 1), split.max(axis=at + 1)
    return (most - least) / float(greatest(bits)), least


def quantize(
    x: Tensor, scale: Tensor, bias: Tensor, *, bits: int, group: int, axis: int = -1
) -> Tensor:
    """``round((x - bias) / scale)`` as values of ``bits`` bits in u32 words along ``axis``.

    Semantics, shapes and packing are those of the op ``quantize``. Raises ``TypeRuleError``.
    """
    how = {"axis": _axis("quantize", x, axis), "group": group, "bits": bits}
    return call("quantize", x, scale, bias, **how)


def dequantize(
    words: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    bits: int,
    group: int,
    axis: int = -1,
    dtype: str | DType = F32,
    table: Sequence[float] | DType | None = None,
) -> Tensor:
    """``value * scale + bias`` of the values in u32 words along ``axis``, as f16, bf16 or f32.

    Values are numbers, or places in a ``table`` of them, or of 8 bits those of a type. Semantics,
    shapes and packing are those of the op ``dequantize``. Raises ``TypeRuleError``.
    """
    how: dict[str, Any] = {"axis": _axis("dequantize", words, axis), "group": group, "bits": bits}
    how["table"] = listed(table)
    return call("dequantize", words, scale, bias, dtype=dtype_named(dtype), **how)


def listed(table: Sequence[float] | DType | None) -> Any:
    """A table as an attribute: a type stays one."""
    return table if table is None or isinstance(table, DType) else tuple(table)


def _axis(name: str, x: Tensor, axis: int) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise type_error(name, [x.type], f"axis {axis} is not in {-x.ndim} <= axis < {x.ndim}")
    return axis % x.ndim


@functional(
    "quantized_linear",
    "linear with a weight of a few bits per value",
    "x[M...,K]",
    N=lambda types, attributes: types[2].shape[0 if attributes["layout"] == "oi" else 1],
)
def _quantized_linear(
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
    how: dict[str, Any] = {"bits": bits, "group": group, "table": table}
    weight = dequantize(words, scale, bias_groups, axis=1 if layout == "oi" else 0, **how)
    operands = (x, weight) if bias is None else (x, weight, bias)
    return composite("linear", *operands, layout=layout)


def quantized_linear(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    bias_groups: Tensor,
    bias: Tensor | None = None,
    *,
    bits: int,
    group: int,
    layout: str = "oi",
    table: Sequence[float] | DType | None = None,
) -> Tensor:
    """``linear`` of x f32[...,K] with a weight that is quantized along its K inputs: f32[...,N].

    Each of the N outputs has K values of ``bits`` bits packed into W words, with a scale and a bias
    for each ``group`` neighbours; see ``quantize``. ``words`` is u32[N,W], ``scale`` and
    ``bias_groups`` are [N,G] in layout "oi"; in layout "io" all three are the other way around. The
    bias is f32[N]. Values may stand for what a ``table`` says; see ``dequantize``. Raises
    ``TypeRuleError``.
    """
    words_axes, axes = {"io": ("W,N", "G,N")}.get(layout, ("N,W", "N,G"))
    grouped = f"scale:{STORAGE}[{axes}] bias_groups:{STORAGE}[{axes}]"
    signature = f"x[...,K] words:u32[{words_axes}] {grouped} bias[N]"
    operands = {"x": x, "words": words, "scale": scale, "bias_groups": bias_groups}
    operands |= {} if bias is None else {"bias": bias}
    checked = Checked("quantized_linear", signature, **operands)
    checked.choice("layout", layout, ("io", "oi"))
    require_words(checked, "K", bits, group)
    how: dict[str, Any] = {"bits": bits, "group": group, "layout": layout}
    how["table"] = listed(table)
    return composite("quantized_linear", *operands.values(), **how)


def require_words(checked: Checked, axis: str, bits: int, group: int) -> None:
    """Refuse a call unless its W words and G groups are those of the values along ``axis``."""
    group = checked.integer("group", group, 1)
    checked.require(bits in BITS, "", f"bits is {bits!r}; it must be {BITS_IN_WORDS}")
    inputs, groups, found = checked[axis], checked["G"], checked["W"]
    message = f"{axis} {inputs} is not G {groups} x group {group}"
    checked.require(inputs == groups * group, "x scale", message)
    needed = words_for(inputs, bits)
    message = f"{axis} {inputs} values of {bits} bits take {needed} words; words has W {found}"
    checked.require(found == needed, "x words", message)
