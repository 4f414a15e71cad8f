"""Folders of 8-bit floats with scales for a tensor, for each output, or for blocks of both axes."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ptir.checkpoint.quantized import records
from ptir.checkpoint.quantized.fields import Fields
from ptir.checkpoint.quantized.tensors import ModuleTensors, StoredWeight
from ptir.params.source import Array
from ptir.types import BF16, DTYPES, F16, F32, DType
from ptir.weights.record import FLOATS
from ptir.weights.words import BYTE

HALVES: Final = (F16, BF16, F32)
F8: Final = {DTYPES["f8e4m3fn"]: "e4m3", DTYPES["f8e5m2"]: "e5m2"}
"""What formats of these types are called after."""


def fp8(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    """``weight`` of 8-bit floats times ``weight_scale_inv``, or ``weight_scale``: both multiply."""
    scale = "weight_scale_inv" if tensors.has("weight_scale_inv") else "weight_scale"
    if tensors.has("weight_scale_inv") and tensors.has("weight_scale"):
        tensors.refuse("weight_scale", "weight_scale_inv is stored too; one of them must be")
    return scaled_floats(tensors, scale, block_size(fields, "weight_block_size"))


def block_size(fields: Fields, key: str) -> tuple[int, int] | None:
    """Outputs and inputs of a block; None where there are none."""
    found = fields.values.get(key)
    if found is None:
        return None
    sizes = isinstance(found, list) and len(found) == 2
    if not sizes or not all(type(one) is int and one > 0 for one in found):
        fields.refuse(key, "must be two sizes, of outputs and inputs")
    return found[0], found[1]


def scaled_floats(
    tensors: ModuleTensors, scale: str, block: tuple[int, int] | None
) -> StoredWeight:
    """8-bit floats times a scale; ``block`` says of how many outputs and inputs."""
    outputs, inputs = tensors.matrix("weight", *F8)
    dtype = tensors.type("weight").dtype
    name, reading = F8[dtype], FLOATS[dtype]
    if block is None:
        held, called = per_output(tensors, scale, outputs), f"fp8-{name}"
        by = records.shared(BYTE, inputs, inputs)
    else:
        lines, across = -(-outputs // block[0]), -(-inputs // block[1])
        held = tensors.shaped(scale, (lines, across), *HALVES)
        called = f"fp8-{name}-{block[0]}x{block[1]}"
        each = math.gcd(inputs, block[1])
        by = records.Shared(each, each)

    def arrays() -> dict[str, Array]:
        codes, scales = tensors.read("weight").view(np.uint8), tensors.read(scale)
        if block is None:
            return {"codes": codes, "scale": spread(scales, outputs)}
        return {"codes": codes, "scale": of_blocks(scales, outputs, inputs, block, by.group)}

    format = records.small_floats(called, reading, by, held)
    return tensors.weight(format, (outputs, inputs), arrays)


def of_blocks(
    scales: Array, outputs: int, inputs: int, block: tuple[int, int], group: int
) -> Array:
    """Scales of blocks as [outputs, groups]: those of each output, for each ``group`` inputs."""
    lines = np.arange(outputs) // block[0]
    columns = np.arange(0, inputs, group) // block[1]
    return np.ascontiguousarray(scales[lines[:, None], columns])


def per_output(tensors: ModuleTensors, scale: str, outputs: int) -> DType:
    """The type of scales, of which there is one, or one for each output."""
    found = tensors.typed(scale, *HALVES)
    if found.shape not in ((), (1,), (1, 1), (outputs,), (outputs, 1)):
        tensors.refuse(scale, f"one scale, or one for each of {outputs} outputs, is needed")
    return found.dtype


def spread(scales: Array, outputs: int) -> Array:
    """One number for each output [outputs, 1]."""
    return np.ascontiguousarray(np.broadcast_to(scales.reshape(-1, 1), (outputs, 1)))
