"""Folders of bitsandbytes: 4-bit codebooks over blocks of all weights in a line, 8-bit numbers."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from ptir.checkpoint.json_text import parse_json_object
from ptir.checkpoint.quantized import records
from ptir.checkpoint.quantized.fields import Fields
from ptir.checkpoint.quantized.floats import spread
from ptir.checkpoint.quantized.tensors import ModuleTensors, StoredWeight
from ptir.params.source import Array
from ptir.types import F32, I8, U8
from ptir.weights.decode import quantity_of, raw_bytes
from ptir.weights.record import Codebook

KINDS: Final = ("nf4", "fp4")
STATE: Final = "weight.quant_state.bitsandbytes__"
BLOCKS: Final = (32, 64, 128, 256, 512, 1024, 2048, 4096)
NESTED: Final = 256
GREATEST: Final = float(np.finfo(np.float32).max)
"""Values of an 8-bit codebook."""


def bitsandbytes(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    """The weight of a module, which is of 8 bits where it has ``SCB``."""
    if tensors.has("SCB"):
        return _int8(tensors)
    kinds = [kind for kind in KINDS if tensors.has(STATE + kind)]
    if len(kinds) != 1:
        tensors.type(STATE + KINDS[0])
        tensors.refuse(STATE + KINDS[0], "one quant_state is needed")
    return _four(tensors, kinds[0])


def _int8(tensors: ModuleTensors) -> StoredWeight:
    """``weight`` i8 times the greatest size of its output, divided by 127."""
    outputs, inputs = tensors.matrix("weight", I8)
    tensors.shaped("SCB", (outputs,), F32)
    if tensors.has("weight_format") and np.any(tensors.read("weight_format")):
        tensors.refuse("weight_format", "only rows (0) are read")
    by = records.shared(8, inputs, inputs)

    def arrays() -> dict[str, Array]:
        codes = tensors.read("weight").view(np.uint8)
        return {"codes": codes, "scale": spread(tensors.read("SCB"), outputs)}

    format = records.signed_bytes("bnb", by, F32, zeros=False, factor=1.0 / 127.0)
    return tensors.weight(format, (outputs, inputs), arrays)


def _state(tensors: ModuleTensors, kind: str) -> Fields:
    """The quant_state, JSON in bytes, as far as it must be as the tensors are."""
    suffix = STATE + kind
    tensors.typed(suffix, U8)
    name = tensors.names[suffix]
    state = Fields(parse_json_object(tensors.read(suffix).tobytes(), name), name)
    state.text("quant_type", (kind,))
    state.whole("blocksize", BLOCKS)
    return state


def _sizes(state: Fields) -> tuple[int, int]:
    shape: Any = state.values.get("shape")
    pair = isinstance(shape, list) and len(shape) == 2
    if not pair or not all(type(size) is int and size > 0 for size in shape):
        state.refuse("shape", "must be the two sizes of a matrix")
    return shape[0], shape[1]


def _four(tensors: ModuleTensors, kind: str) -> StoredWeight:
    state = _state(tensors, kind)
    block, shape = state.whole("blocksize"), _sizes(state)
    size = math.prod(shape)
    blocks = -(-size // block)
    if tensors.typed("weight", U8).size != -(-size // 2):
        tensors.refuse("weight", f"{-(-size // 2)} bytes are needed for {list(shape)}")
    values = _codebook(tensors, "weight.quant_map", 1 << 4)
    nested = _nested(tensors, state, blocks) if tensors.has("weight.nested_absmax") else None
    tensors.shaped("weight.absmax", (blocks,), F32 if nested is None else U8)

    def line() -> dict[str, Array]:
        codes = tensors.read("weight").reshape(-1)
        whole = np.zeros(blocks * block // 2, np.uint8)
        whole[: codes.size] = codes
        found = {"codes": whole[None], "absmax": tensors.read("weight.absmax")[None]}
        if nested is not None:
            found["nested_absmax"] = tensors.read("weight.nested_absmax")[None]
        return found

    name = f"bnb-{kind}-b{block}" + ("" if nested is None else "-nested")
    flat = records.codebook4(name, block, values, nested, expanded=records.ONE_LINE)
    if shape[1] % block:
        return tensors.weight(flat, shape, line, flat=True)

    def rows() -> dict[str, Array]:
        """No block goes on in the next row; scales of scales become their product."""
        found = line()
        assert flat.value.scale is not None
        scale = quantity_of(flat.value.scale, raw_bytes(flat, found), block)
        codes = found["codes"].reshape(shape[0], -1)
        return {"codes": codes, "absmax": scale.reshape(shape[0], -1)}

    return tensors.weight(records.codebook4(name, block, values, None), shape, rows)


def _nested(tensors: ModuleTensors, state: Fields, blocks: int) -> tuple[Codebook, int, float]:
    """The codebook of scales, how many share a scale of their own, and what is added."""
    every = state.whole("nested_blocksize", BLOCKS)
    state.text("nested_dtype", ("float32",))
    offset = state.values.get("nested_offset")
    if isinstance(offset, bool) or not isinstance(offset, float | int):
        state.refuse("nested_offset", "must be a number that f32 holds")
    if not abs(offset) <= GREATEST:  # NaN neither
        state.refuse("nested_offset", "must be a number that f32 holds")
    tensors.shaped("weight.nested_absmax", (-(-blocks // every),), F32)
    return _codebook(tensors, "weight.nested_quant_map", NESTED), every, float(offset)


def _codebook(tensors: ModuleTensors, suffix: str, count: int) -> Codebook:
    tensors.shaped(suffix, (count,), F32)
    values = tensors.read(suffix)
    if not np.isfinite(values).all():
        tensors.refuse(suffix, "a value is NaN or infinite")
    return Codebook(tuple(values.tolist()))
