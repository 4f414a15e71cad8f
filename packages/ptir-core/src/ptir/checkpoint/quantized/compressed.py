"""Folders of compressed-tensors: whole numbers in words or bytes, floats of 8 and 4 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from ptir.checkpoint.quantized import records
from ptir.checkpoint.quantized.codes import unpacked
from ptir.checkpoint.quantized.fields import Fields
from ptir.checkpoint.quantized.floats import (
    HALVES,
    block_size,
    per_output,
    scaled_floats,
    spread,
)
from ptir.checkpoint.quantized.integers import check_rows, in_order, sorted_inputs
from ptir.checkpoint.quantized.tensors import ModuleTensors, StoredWeight
from ptir.params.source import Array
from ptir.types import DTYPES, F32, I8, I32, I64, U8, DType
from ptir.weights.record import InputOrder
from ptir.weights.words import BITS, words_for

SIGN: Final = np.uint8(1 << 7)
"""The bit that makes numbers in two's complement such as are counted from -128."""
PACK_BITS: Final = tuple(bits for bits in BITS if bits > 1)
UNREAD: Final = ("sparsity_config", "transform_config", "kv_cache_scheme")
"""Parts of a configuration that change what a model computes."""


def compressed(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    """A weight of the only group of settings."""
    for key in UNREAD:
        fields.refuse_set((key,), "is not read; fetch the model without it")
    groups = fields.inner("config_groups")
    if len(groups.values) != 1:
        groups.refuse(next(iter(groups.values), "group_0"), "there must be one group of settings")
    group = groups.inner(next(iter(groups.values)))
    formats = group if group.values.get("format") is not None else fields
    return STORED[formats.text("format", STORED)](group.inner("weights"), tensors)


def _scheme(fields: Fields, kind: str, bits: tuple[int, ...], strategies: tuple[str, ...]) -> int:
    """Check what is said of weights; their bits."""
    fields.text("type", (kind,))
    fields.text("strategy", strategies)
    return fields.whole("num_bits", bits)


def _group(fields: Fields, inputs: int) -> int:
    return fields.whole("group_size") if fields.text("strategy", STRATEGIES) == "group" else inputs


STRATEGIES: Final = ("tensor", "channel", "group")


def _scales(tensors: ModuleTensors, outputs: int, groups: int) -> DType:
    """The type of scales by group, or of one or one for each output where there is one group."""
    if groups == 1:
        return per_output(tensors, "weight_scale", outputs)
    return tensors.shaped("weight_scale", (outputs, groups), *HALVES)


def _read_scales(tensors: ModuleTensors, outputs: int, groups: int) -> Array:
    found = tensors.read("weight_scale")
    return spread(found, outputs) if groups == 1 else found


def _pack_quantized(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    bits = _scheme(fields, "int", PACK_BITS, STRATEGIES)
    symmetric = fields.flag("symmetric", True)
    tensors.shaped("weight_shape", (2,), I64, I32)
    outputs, inputs = (int(size) for size in tensors.read("weight_shape"))
    if outputs < 1 or inputs < 1:
        tensors.refuse("weight_shape", f"says {outputs} outputs of {inputs} inputs")
    tensors.shaped("weight_packed", (outputs, words_for(inputs, bits)), I32)
    group = _group(fields, inputs)
    check_rows(tensors, "weight_packed", bits, inputs, group)
    groups = inputs // group
    scale = _scales(tensors, outputs, groups)
    if not symmetric:
        tensors.shaped("weight_zero_point", (words_for(outputs, bits), groups), I32)
    order = sorted_inputs(tensors, "weight_g_idx", inputs, group)

    def arrays() -> dict[str, Array]:
        words = tensors.read("weight_packed").view(np.uint32)
        found = {
            "words": in_order(words, bits, inputs, order),
            "scale": _read_scales(tensors, outputs, groups),
        }
        if not symmetric:
            zeros = np.ascontiguousarray(tensors.read("weight_zero_point").T)
            found["zeros"] = np.ascontiguousarray(unpacked(zeros, bits, outputs).T)
        return found

    format = records.integers(
        "ct",
        bits,
        records.shared(bits, inputs, group),
        scale,
        zeros=not symmetric,
        lowest=-(1 << (bits - 1)) if symmetric else 0,
        order=None if order is None else InputOrder(order.tobytes()),
    )
    return tensors.weight(format, (outputs, inputs), arrays)


def _int_quantized(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    _scheme(fields, "int", (8,), STRATEGIES)
    symmetric = fields.flag("symmetric", True)
    outputs, inputs = tensors.matrix("weight", I8)
    group = _group(fields, inputs)
    check_rows(tensors, "weight", 8, inputs, group)
    groups = inputs // group
    scale = _scales(tensors, outputs, groups)
    if not symmetric:
        zero = tensors.typed("weight_zero_point", I8).shape
        if zero != tensors.type("weight_scale").shape:
            tensors.refuse("weight_zero_point", "the shape of weight_scale is needed")

    def arrays() -> dict[str, Array]:
        codes = tensors.read("weight").view(np.uint8)
        found = {
            "codes": codes if symmetric else codes ^ SIGN,
            "scale": _read_scales(tensors, outputs, groups),
        }
        if not symmetric:
            zeros = tensors.read("weight_zero_point").view(np.uint8) ^ SIGN
            found["zeros"] = spread(zeros, outputs) if groups == 1 else zeros
        return found

    by = records.shared(8, inputs, group)
    format = records.signed_bytes("ct", by, scale, zeros=not symmetric)
    return tensors.weight(format, (outputs, inputs), arrays)


def _float_quantized(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    _scheme(fields, "float", (8,), ("tensor", "channel", "block"))
    blocks = fields.text("strategy", ("tensor", "channel", "block")) == "block"
    size = block_size(fields, "block_structure") if blocks else None
    if blocks and size is None:
        fields.refuse("block_structure", "must be two sizes where the strategy is block")
    return scaled_floats(tensors, "weight_scale", size)


NVFP4_GROUP: Final = 16


def _nvfp4(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    """4-bit floats; a scale is an 8-bit float divided by one of the tensor."""
    _scheme(fields, "float", (4,), ("tensor_group",))
    fields.whole("group_size", (NVFP4_GROUP,))
    outputs, half = tensors.matrix("weight_packed", U8)
    inputs = 2 * half
    if inputs % NVFP4_GROUP:
        tensors.refuse("weight_packed", f"{inputs} inputs are no whole groups of {NVFP4_GROUP}")
    tensors.shaped("weight_scale", (outputs, inputs // NVFP4_GROUP), DTYPES["f8e4m3fn"])
    if tensors.typed("weight_global_scale", F32).size != 1:
        tensors.refuse("weight_global_scale", "one number is needed")

    def arrays() -> dict[str, Array]:
        whole = tensors.read("weight_global_scale").reshape(())
        scale = tensors.read("weight_scale").astype(np.float32) / whole
        return {"codes": tensors.read("weight_packed"), "scale": scale}

    return tensors.weight(records.nvfp4(), (outputs, inputs), arrays)


STORED: Final[dict[str, Callable[[Fields, ModuleTensors], StoredWeight]]] = {
    "pack-quantized": _pack_quantized,
    "int-quantized": _int_quantized,
    "float-quantized": _float_quantized,
    "nvfp4-pack-quantized": _nvfp4,
}
"""By the ``format`` of a configuration."""
