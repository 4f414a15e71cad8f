"""Folders of gpt-oss: the experts of a layer as one tensor of blocks in MXFP4, and their scales."""

from __future__ import annotations

import numpy as np

from ptir.checkpoint.quantized import records
from ptir.checkpoint.quantized.fields import Fields
from ptir.checkpoint.quantized.tensors import ModuleTensors, StoredWeight
from ptir.params.source import Array
from ptir.types import U8

BLOCK_BYTES = 16
"""Bytes of a block: 32 codes of 4 bits, the lower half of a byte first."""


def mxfp4(fields: Fields, tensors: ModuleTensors) -> StoredWeight:
    """The matrix of all experts, one below the other."""
    shape = tensors.typed("blocks", U8).shape
    if len(shape) != 4 or shape[3] != BLOCK_BYTES:
        tensors.refuse("blocks", f"[experts, outputs, blocks, {BLOCK_BYTES}] is needed")
    experts, outputs, blocks, _ = shape
    tensors.shaped("scales", (experts, outputs, blocks), U8)
    rows = experts * outputs

    def arrays() -> dict[str, Array]:
        words = np.ascontiguousarray(tensors.read("blocks")).reshape(rows, -1).view("<u4")
        return {"words": words, "scales": tensors.read("scales").reshape(rows, blocks)}

    return tensors.weight(records.mlx_mxfp4(), (rows, blocks * 32), arrays)
