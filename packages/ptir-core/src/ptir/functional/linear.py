"""Weights applied to values: linear maps and embedding lookups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ptir.capture import Tensor, call
from ptir.functional.arrays import concat, full, take
from ptir.functional.check import STORAGE, Checked
from ptir.functional.define import composite, functional, implementation
from ptir.functional.quantized import quantized_linear
from ptir.ir.attributes import Attributes
from ptir.ops.record import literal, type_error
from ptir.types import F32, U32, TensorType
from ptir.weights.tables import Table
from ptir.weights.vectors import DIGITS, FIFTHS_GROUP, FIFTHS_WORDS, Fifths, Vectors
from ptir.weights.words import NIBBLES, ODD_NIBBLES


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight in words with a scale per group, as ``linear`` and ``embedding`` take it.

    Groups lie along ``axis``. Scales are floats; or whole numbers, each times a float that several
    groups share, ``super_scale``. All are times ``factor``, and an element is for ``sharing``
    groups. With the ``code`` ``NIBBLES`` minima are in the upper halves of the scales' bytes.
    Values are numbers, or stand for what a ``table`` says (``ptir.weights.tables``). The bias of a
    group is its ``minimum``, held as its scale is, or without one its scale times ``-zero``.

    ``order`` i32[inputs] says which input each one in the words is, where that is not its place.
    With ``vectors`` the words hold codes that stand for several values of 8 bits each, negated
    about the zero point where a bit of ``signs`` is set.
    """

    words: Tensor
    scale: Tensor
    axis: int
    bits: int
    group: int
    zero: int
    table: Table | None = None
    minimum: Tensor | None = None
    super_scale: Tensor | None = None
    super_minimum: Tensor | None = None
    factor: float = 1.0
    code: str = ""
    sharing: int = 1
    vectors: Vectors | Fifths | None = None
    signs: Tensor | None = None
    order: Tensor | None = None

    @property
    def values(self) -> Tensor:
        """The words of values: as they are stored, or what their codes stand for."""
        vectors = self.vectors
        if vectors is None:
            return self.words
        if isinstance(vectors, Fifths):
            return _digits(self.words, self.axis)
        signs = self.signs
        if signs is None:
            shape = self.words.shape
            signs = full((*shape[: self.axis], 0, *shape[self.axis + 1 :]), 0, dtype=U32)
        table = call("constant", value=literal(vectors.words()))
        return call("unpack_vectors", self.words, table, signs, axis=self.axis, bits=vectors.bits)

    @property
    def scales(self) -> Tensor:
        """The scale of each group."""
        scale = self.scale.astype(U32) & 15 if self.code == NIBBLES else self.scale
        if self.code == ODD_NIBBLES:
            scale = _odd_nibbles(scale, self.axis)
        found = _shared_factor(scale, self.super_scale, self.axis)
        found = found.astype(F32) if found.dtype.bits < 16 else found
        if self.factor != 1.0:
            found = found.astype(F32) * self.factor
        return _repeated(found, self.axis, self.sharing)

    @property
    def bias(self) -> Tensor:
        """The bias of each group: as it is stored, or its scale times the negative zero point."""
        if self.code == NIBBLES:
            return _shared_factor(self.scale.astype(U32) >> 4, self.super_minimum, self.axis)
        if self.minimum is None:
            return self.scales * float(-self.zero)
        return _shared_factor(self.minimum, self.super_minimum, self.axis)

    def dense(self) -> Tensor:
        """The weight as f32: recorded where it is used, computed by whoever reads it."""
        how = {"axis": self.axis, "bits": self.bits, "group": self.group, "dtype": F32}
        how["table"] = self.table
        found = call("dequantize", self.values, self.scales, self.bias, **how)
        if self.order is None:
            return found
        return take(found, call("sort", self.order, axis=0)[1], axis=self.axis)


def _digits(x: Tensor, axis: int) -> Tensor:
    """The digits of base 3 of words of ``Fifths`` along an axis, a byte each.

    The part of a byte's fraction behind its first d digits, times 3, has the next one in front;
    two bytes of a word have room for that at a time.
    """
    import numpy as np

    before, after = x.shape[:axis], x.shape[axis + 1 :]
    groups, tail = x.shape[axis] // FIFTHS_WORDS, (1,) * len(after)
    shape = (*before, groups, FIFTHS_WORDS, DIGITS, *after)
    spread = x.reshape(*before, groups, FIFTHS_WORDS, 1, *after).broadcast_to(*shape)
    powers = (3 ** np.arange(DIGITS)).astype(np.uint32).reshape(DIGITS, *tail)
    times = call("constant", value=literal(powers)).broadcast_to(*shape)
    even, odd = (
        (((half & 0x00FF00FF) * times & 0x00FF00FF) * 3 >> 8) & 0x00030003
        for half in (spread, spread >> 8)
    )
    digits = even | odd << 8
    flat = digits.reshape(*before, groups, FIFTHS_WORDS * DIGITS, *after)
    each = FIFTHS_GROUP // 4
    starts, limits = (0,) * flat.ndim, (*before, groups, each, *after)
    kept = call("slice", flat, starts=starts, limits=limits, strides=None) & 0x03030303
    return kept.reshape(*before, groups * each, *after)


def _odd_nibbles(x: Tensor, axis: int) -> Tensor:
    """Two numbers of each byte along an axis, the lower half first: one more than twice a half."""
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    shape = (*before, 2, *after)
    spread = x.astype(U32).reshape(*before, 1, *after).broadcast_to(*shape)
    moved = spread >> (call("iota", shape=shape, dtype=U32, axis=axis + 1) * 4)
    halves = (moved & 15) * 2 + 1
    return halves.reshape(*before[:-1], 2 * before[-1], *after).astype(F32)


def _repeated(x: Tensor, axis: int, count: int) -> Tensor:
    """Every element ``count`` times along an axis."""
    if count == 1:
        return x
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    spread = x.reshape(*before, 1, *after).broadcast_to(*before, count, *after)
    return spread.reshape(*before[:-1], before[-1] * count, *after)


def _shared_factor(scale: Tensor, factor: Tensor | None, axis: int) -> Tensor:
    """``scale`` as it is, or times a factor that neighbours along ``axis`` share."""
    if factor is None:
        return scale
    before, after = factor.shape[:axis], factor.shape[axis + 1 :]
    count = factor.shape[axis]
    each = factor.astype(F32).reshape(*before, count, 1, *after)
    spread = each.broadcast_to(*before, count, scale.shape[axis] // count, *after)
    return scale.astype(F32) * spread.reshape(*scale.shape)


_PARTS: Final = ("words", "signs", "scale", "minimum", "super_scale", "super_minimum")
"""The tensors of a weight in words."""

Weight = Tensor | QuantizedWeight
"""What ``linear`` and ``embedding`` take as weights."""


def concat_weights(weights: Sequence[Weight], axis: int) -> Weight:
    """Weights one after the other along ``axis``, the one of their outputs, as one weight.

    Products of one x by several weights are one product by the joined weight, which depends on
    parameters alone and is therefore made once, when they are loaded. Raises ``TypeRuleError``.
    """
    quantized = [weight for weight in weights if isinstance(weight, QuantizedWeight)]
    if not quantized:
        return concat([_dense(weight) for weight in weights], axis)
    if len({_form(weight) for weight in weights}) > 1 or quantized[0].axis == axis:
        kinds = [w.words.type if isinstance(w, QuantizedWeight) else w.type for w in weights]
        rule = f"weights must be stored alike, in groups along another axis than {axis}"
        raise type_error("concat_weights", kinds, f"{rule}; join those that are")
    parts = {name: [getattr(weight, name) for weight in quantized] for name in _PARTS}
    joined: dict[str, Any] = {
        name: concat(found, axis) for name, found in parts.items() if found[0] is not None
    }
    return replace(quantized[0], **joined)


def stored_alike(weights: Sequence[Weight]) -> list[list[int]]:
    """The numbers of neighbouring weights that ``concat_weights`` can make one, run by run."""
    runs: list[list[int]] = []
    for number, weight in enumerate(weights):
        if runs and _form(weights[runs[-1][-1]]) == _form(weight):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _form(weight: Weight) -> object:
    """Equal for weights that are stored alike: in floats of a type, or in words of one kind.

    A weight whose inputs have an order of their own is like no other.
    """
    if not isinstance(weight, QuantizedWeight):
        return weight.dtype
    if weight.order is not None:
        return object()
    parts = [getattr(weight, name) for name in _PARTS]
    types = [None if part is None else part.dtype for part in parts]
    how = (weight.table, weight.factor, weight.code, weight.sharing, weight.vectors)
    return (weight.axis, weight.bits, weight.group, weight.zero, *how, *types)


def _dense(weight: Weight) -> Tensor:
    return weight.dense() if isinstance(weight, QuantizedWeight) else weight


SIGNATURES: Final = {
    layout: f"x[M...,K] weight:{STORAGE}[{axes}] bias[N]"
    for layout, axes in (("io", "K,N"), ("oi", "N,K"))
}
"""The operands of ``linear`` by layout."""


@functional("linear", "x @ weight + bias over the last axis of x", SIGNATURES)
def portable_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, layout: str
) -> Tensor:
    """``x @ weight + bias`` in ops: a contraction and an addition."""
    contract = (0 if layout == "io" else 1,)
    result = call(
        "dot_general",
        x,
        weight.astype(F32),
        lhs_contract=(x.ndim - 1,),
        rhs_contract=contract,
    )
    return result if bias is None else result + bias


ROWS: Final = 8
"""Most rows for which each output is a sum of its own."""


def _few_rows(types: Sequence[TensorType], attributes: Attributes) -> str | None:
    if attributes["layout"] != "oi":
        return "the inputs of an output are not neighbours; layout oi is taken"
    rows = types[0].size // max(1, types[0].shape[-1])
    return None if rows <= ROWS else f"x has {rows} rows; at most {ROWS} are taken"


@implementation("linear", "rows", supports=_few_rows)
def _linear_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, layout: str) -> Tensor:
    """Each output by itself, a sum along its row of the weight as it is stored: no panels."""
    products = x.reshape(*x.shape[:-1], 1, x.shape[-1]) * weight.astype(F32)
    result = products.sum(axis=-1)
    return result if bias is None else result + bias


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None, *, layout: str = "io") -> Tensor:
    """``x @ weight + bias`` over the last axis: x f32[..., K] gives f32[..., N].

    The weight is [K, N] in layout "io" and [N, K] in layout "oi"; it may be stored as f32, f16 or
    bf16 and is computed with as f32. The bias is f32[N]. A quantized weight makes it a
    ``quantized_linear``. Raises ``TypeRuleError``.
    """
    if isinstance(weight, QuantizedWeight):
        return _quantized(x, weight, bias, layout)
    signature = SIGNATURES.get(layout, SIGNATURES["io"])
    operands = {"x": x, "weight": weight} | ({} if bias is None else {"bias": bias})
    checked = Checked("linear", signature, **operands)
    checked.choice("layout", layout, ("io", "oi"))
    return composite("linear", *operands.values(), layout=layout)


def _quantized(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, layout: str) -> Tensor:
    """The product with a weight in words, or with its dense form where groups lie along outputs."""
    if weight.axis != {"io": 0, "oi": 1}.get(layout):
        return linear(x, weight.dense(), bias, layout=layout)
    how: dict[str, Any] = {"bits": weight.bits, "group": weight.group, "table": weight.table}
    x = x if weight.order is None else take(x, weight.order, axis=-1)
    return quantized_linear(
        x, weight.values, weight.scales, weight.bias, bias, layout=layout, **how
    )


_TABLE: Final = f"table:{STORAGE}[V,D] ids:i32[T...]"


@functional("embedding", "rows of a table by index", _TABLE)
def _embedding(table: Tensor, ids: Tensor) -> Tensor:
    return call("take", table, ids, axis=0).astype(F32)


def embedding(table: Weight, ids: Tensor) -> Tensor:
    """Row ``ids[...]`` of ``table`` [V, D] as f32[..., D].

    The table may be stored as f32, f16 or bf16; ids are i32 of any shape and clamp to 0 .. V - 1.
    Raises ``TypeRuleError``.
    """
    table = _dense(table)
    checked = Checked("embedding", _TABLE, table=table, ids=ids)
    checked.require(checked["V"] > 0, "table", "table has no rows; at least one is needed")
    return composite("embedding", table, ids)
