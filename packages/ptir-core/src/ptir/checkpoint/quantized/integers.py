"""Folders of whole numbers in words: AWQ, GPTQ and MLX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ptir.checkpoint.quantized import records
from ptir.checkpoint.quantized.codes import awq_unpacked, packed, unpacked
from ptir.checkpoint.quantized.fields import Fields
from ptir.checkpoint.quantized.tensors import ModuleTensors, StoredWeight
from ptir.params.source import Array
from ptir.types import BF16, F16, F32, I32, U8, U32
from ptir.weights.record import InputOrder
from ptir.weights.words import WORD, words_for

HALVES: Final = (F16, BF16, F32)
"""Types of scales."""


def group_of(fields: Fields, key: str, inputs: int) -> int:
    """Inputs that share a scale: -1 in a configuration means all."""
    found = fields.whole(key)
    if found < 1 and found != -1:
        fields.refuse(key, "must be a number of inputs, or -1 for all")
    return inputs if found == -1 else found


def check_rows(tensors: ModuleTensors, suffix: str, bits: int, inputs: int, group: int) -> None:
    """Refuse rows that are not whole groups and words."""
    if not records.whole_words(bits, inputs, group):
        tensors.refuse(suffix, f"{inputs} inputs are no whole groups of {group} and words")


def transposed(array: Array) -> Array:
    """[inputs, outputs] as [outputs, inputs]."""
    return np.ascontiguousarray(array.T)


def awq(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    """``qweight`` [inputs, outputs / 8], eight outputs interleaved in a word; zeros alike."""
    bits = fields.whole("bits", (4,), fields.values.get("w_bit"))
    fields.text("version", ("gemm",), "gemm")
    if not fields.flag("zero_point", True):
        fields.refuse("zero_point", "weights without zero points are not read")
    inputs, across = tensors.matrix("qweight", I32)
    outputs = across * WORD // bits
    key = "q_group_size" if "q_group_size" in fields.values else "group_size"
    group = group_of(fields, key, inputs)
    check_rows(tensors, "qweight", bits, inputs, group)
    groups = inputs // group
    scale = tensors.shaped("scales", (groups, outputs), *HALVES)
    tensors.shaped("qzeros", (groups, across), I32)
    by = records.shared(bits, inputs, group)

    def arrays() -> dict[str, Array]:
        return {
            "words": packed(transposed(awq_unpacked(tensors.read("qweight"))), bits),
            "scale": transposed(tensors.read("scales")),
            "zeros": transposed(awq_unpacked(tensors.read("qzeros"))),
        }

    format = records.integers("awq", bits, by, scale, zeros=True)
    return tensors.weight(format, (outputs, inputs), arrays)


GPTQ_BITS: Final = (2, 3, 4, 8)


def gptq(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    """``qweight`` [inputs * bits / 32, outputs]; zeros packed along outputs, minus one in v1."""
    bits = fields.whole("bits", GPTQ_BITS)
    fields.refuse_set(("dynamic",), "modules with settings of their own are not read")
    fields.refuse_set(("is_marlin_format",), "repacked weights are not read; fetch the original")
    fields.text("pack_dtype", ("int32",), "int32")
    key = "format" if "format" in fields.values else "checkpoint_format"
    minus_one = int(fields.text(key, ("gptq", "gptq_v2"), "gptq") == "gptq")
    lines, outputs = tensors.matrix("qweight", I32)
    if lines * WORD % bits:
        tensors.refuse("qweight", f"{lines} words are no whole number of values of {bits} bits")
    inputs = lines * WORD // bits
    group = group_of(fields, "group_size", inputs)
    check_rows(tensors, "qweight", bits, inputs, group)
    groups = inputs // group
    scale = tensors.shaped("scales", (groups, outputs), *HALVES)
    tensors.shaped("qzeros", (groups, words_for(outputs, bits)), I32)
    order = sorted_inputs(tensors, "g_idx", inputs, group)
    by = records.shared(bits, inputs, group)

    def arrays() -> dict[str, Array]:
        zeros = unpacked(tensors.read("qzeros"), bits, outputs)
        words = transposed(tensors.read("qweight")).view(np.uint32)
        return {
            "words": in_order(words, bits, inputs, order),
            "scale": transposed(tensors.read("scales")),
            "zeros": transposed(zeros + np.uint8(minus_one) & np.uint8((1 << bits) - 1)),
        }

    sorted_ = None if order is None else InputOrder(order.tobytes())
    format = records.integers("gptq", bits, by, scale, zeros=True, order=sorted_)
    return tensors.weight(format, (outputs, inputs), arrays)


def sorted_inputs(tensors: ModuleTensors, suffix: str, inputs: int, group: int) -> Array | None:
    """The inputs in the order of their groups; None where that is their own.

    Raises ``CheckpointError`` unless every group has its number of inputs.
    """
    if not tensors.has(suffix):
        return None
    tensors.shaped(suffix, (inputs,), I32)
    groups = np.asarray(tensors.read(suffix))
    order = np.argsort(groups, kind="stable").astype(np.int32)
    if not np.array_equal(groups[order], np.arange(inputs) // group):
        tensors.refuse(suffix, f"every group must have {group} inputs")
    return None if np.array_equal(order, np.arange(inputs)) else order


def in_order(words: Array, bits: int, inputs: int, order: Array | None) -> Array:
    """Words whose inputs are in another order."""
    if order is None:
        return words
    return packed(unpacked(words, bits, inputs)[:, order], bits)


MLX_BITS: Final = (2, 3, 4, 5, 6, 8)
MLX_GROUPS: Final = (16, 32, 64, 128)
MLX_MODES: Final = ("affine", "mxfp4")


def mlx(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    """``weight`` [outputs, words], ``scales``, ``biases`` by group; modules may have their own."""
    fields = mlx_fields(fields, tensors)
    bits, group = fields.whole("bits", MLX_BITS), fields.whole("group_size", MLX_GROUPS)
    outputs, words = tensors.matrix("weight", U32)
    if words * WORD % bits:
        tensors.refuse("weight", f"{words} words are no whole number of values of {bits} bits")
    inputs = words * WORD // bits
    if fields.text("mode", MLX_MODES, "affine") == "mxfp4":
        return _mlx_mxfp4(fields, tensors, (outputs, inputs))
    if inputs % group:
        tensors.refuse("weight", f"{inputs} inputs of {bits} bits are no whole groups of {group}")
    dtype = tensors.shaped("scales", (outputs, inputs // group), *HALVES)
    tensors.shaped("biases", (outputs, inputs // group), dtype)

    def arrays() -> dict[str, Array]:
        return {
            "words": tensors.read("weight"),
            "scale": tensors.read("scales"),
            "bias": tensors.read("biases"),
        }

    return tensors.weight(records.mlx_affine(bits, group, dtype), (outputs, inputs), arrays)


def mlx_fields(fields: Fields, tensors: ModuleTensors) -> Fields:
    """What is said of a module: by itself, or for all."""
    own: Any = fields.values.get(tensors.module)
    if own is None or own is True:
        return fields
    if not isinstance(own, Mapping):
        fields.refuse(tensors.module, "the module is stored quantized")
    return Fields({"mode": fields.values.get("mode"), **own}, f"{fields.where}: {tensors.module}")


def _mlx_mxfp4(fields: Fields, tensors: ModuleTensors, shape: tuple[int, int]) -> StoredWeight:
    fields.whole("bits", (4,))
    group = fields.whole("group_size", (32,))
    if shape[1] % group:
        tensors.refuse("weight", f"{shape[1]} inputs are no whole groups of {group}")
    tensors.shaped("scales", (shape[0], shape[1] // group), U8)

    def arrays() -> dict[str, Array]:
        return {"words": tensors.read("weight"), "scales": tensors.read("scales")}

    return tensors.weight(records.mlx_mxfp4(), shape, arrays)
