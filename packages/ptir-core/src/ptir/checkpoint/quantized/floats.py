"""Folders of 8-bit floats with scales for a tensor, for each output, or for blocks of both axes."""

from __future__ import annotations

from typing import Final

import numpy as np

from ptir.checkpoint.quantized import records
from ptir.checkpoint.quantized.fields import Fields
from ptir.checkpoint.quantized.tensors import ModuleTensors, StoredWeight
from ptir.params.source import Array
from ptir.types import BF16, DTYPES, F16, F32, DType
from ptir.weights.formats import E4M3, E5M2
from ptir.weights.record import SmallFloat

HALVES: Final = (F16, BF16, F32)
F8: Final[dict[DType, tuple[str, SmallFloat]]] = {
    DTYPES["f8e4m3fn"]: ("e4m3", E4M3),
    DTYPES["f8e5m2"]: ("e5m2", E5M2),
}


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
    name, reading = F8[tensors.type("weight").dtype]
    if block is None:
        held = per_output(tensors, scale, outputs)
        format = records.small_floats(f"fp8-{name}", reading, 0, 1, held)
    else:
        lines, across = -(-outputs // block[0]), -(-inputs // block[1])
        held = tensors.shaped(scale, (lines, across), *HALVES)
        called = f"fp8-{name}-{block[0]}x{block[1]}"
        format = records.small_floats(called, reading, block[1], block[0], held)

    def arrays() -> dict[str, Array]:
        scales = tensors.read(scale)
        return {
            "codes": whole_blocks(tensors.read("weight").view(np.uint8), format.block),
            "scale": spread(scales, outputs) if block is None else scales,
        }

    return tensors.weight(format, (outputs, inputs), arrays)


def per_output(tensors: ModuleTensors, scale: str, outputs: int) -> DType:
    """The type of scales, of which there is one, or one for each output."""
    found = tensors.typed(scale, *HALVES)
    if found.shape not in ((), (1,), (1, 1), (outputs,), (outputs, 1)):
        tensors.refuse(scale, f"one scale, or one for each of {outputs} outputs, is needed")
    return found.dtype


def spread(scales: Array, outputs: int) -> Array:
    """One number for each output [outputs, 1]."""
    return np.ascontiguousarray(np.broadcast_to(scales.reshape(-1, 1), (outputs, 1)))


def whole_blocks(codes: Array, block: int) -> Array:
    """Lines filled up with zeros to whole blocks."""
    missing = -codes.shape[1] % block
    return np.pad(codes, ((0, 0), (0, missing))) if missing else codes
