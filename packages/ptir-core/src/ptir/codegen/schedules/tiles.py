"""The numbers that schedules are written with: **table** ``TILES``, one row per class of device.

A row says how much of a contraction a thread holds in registers and how finely work is cut. What is
measured on a device (``ptir warmup --tune``) takes the place of its row; nothing else changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ptir.errors import PluginError, unknown_name

FEW: Final = 8
"""Most rows of a contraction that is a gemv rather than a gemm: its tiles are panels alone."""


@dataclass(frozen=True)
class Tiles:
    """What one device is written for."""

    gemm_rows: int = 8
    """Rows of a gemm's tile."""
    gemm_panels: int = 3
    """Panels of 16 outputs of a gemm's tile; ``gemm_rows * gemm_panels`` vectors are held."""
    int8_rows: int = 4
    """Rows of the tile of a gemm of bytes, which holds two vectors for each result."""
    int8_panels: int = 3
    """Panels of such a tile."""
    slice_rows: int = 2
    """Rows of the tile of a gemm of int8 slices: three vectors are held for each result."""
    slice_panels: int = 2
    """Panels of such a tile."""
    convolution_pixels: int = 14
    """Neighbouring pixels of a convolution's tile."""
    convolution_panels: int = 2
    """Panels of such a tile; of a depthwise one it is one. Their product of vectors is held."""
    convolution_tiles_ahead: int = 1
    """Tiles ahead that the cache fetches pixels of a 1x1 convolution; 0: nor panels of weights."""
    accumulators: int = 4
    """Sums that a gemv keeps apart, all rows together, to hide an addition's delay."""
    prefetch_bytes: int = 8192
    """Bytes ahead of a gemv's loads that the cache fetches weights; 0: it does not."""
    quantized_prefetch_bytes: int = 8192
    """The same of weights of few bits: more is computed between loads, so fewer are on the way."""
    register_entries: int = 1024
    """Most entries of a grid that are looked up in registers, not gathered from memory."""
    attention_keys: int = 16
    """Keys whose scores attention holds at once: as many as a vector has lanes."""
    attention_vectors: int = 2
    """Vectors of queries of a tile of attention, whose sums of 8 keys are held."""
    independent_workgroup_size: int = 64
    """Threads of a workgroup that have nothing to do with each other."""
    map_workgroup_size: int = 128
    """Threads of a workgroup of a map, which have a run of neighbours each."""
    row_workgroup_size: int = 256
    """Most threads of a workgroup that has a row: a power of two."""
    row_elements_per_thread: int = 8
    """Elements of a row from which another thread pays."""
    sort_workgroup_size: int = 256
    """Threads of a workgroup that sorts or runs along a line: a power of two."""
    attention_workgroup_size: int = 128
    """Threads of a workgroup of attention: a power of two."""
    attention_block_rows: int = 16
    """Most query rows that a workgroup of attention has: a power of two."""
    attention_block_keys: int = 32
    """Most keys that pass through its shared memory at once: a power of two."""
    min_keys_per_split: int = 256
    """Least keys that a workgroup attends to where the keys of a query are split over several."""
    workgroups_per_unit: int = 4
    """Serial workgroups per unit, so that a late one delays little."""
    min_work: int = 1 << 13
    """Elementary operations below which another serial workgroup does not pay."""


_SIX: Final = {
    "gemm_rows": 6,
    "gemm_panels": 1,
    "attention_vectors": 1,
    "convolution_pixels": 6,
    "convolution_panels": 1,
}
"""Tiles of six vectors of 16 lanes, where there are few registers or short ones."""

TILES: Final[dict[str, Tiles]] = {
    "cpu-avx512": Tiles(),  # 32 registers of 16 lanes: 24 sums, 3 weights, 1 factor
    # Zen 4 is slower with it where weights are floats, and gathers take twice as long as on Intel's
    "cpu-avx512-amd": Tiles(prefetch_bytes=0, register_entries=2048),
    "cpu-avx2": Tiles(**_SIX),  # 16 registers of 8 lanes, so a vector is two of them
    "cpu-avx2-amd": Tiles(**_SIX, prefetch_bytes=0, quantized_prefetch_bytes=0),
    "cpu-neon": Tiles(**_SIX),  # 32 registers of 4 lanes, so a vector is four of them
    "gpu": Tiles(
        gemm_rows=4,
        gemm_panels=1,
        attention_vectors=1,
        convolution_tiles_ahead=0,
        prefetch_bytes=0,
        quantized_prefetch_bytes=0,
    ),  # a thread has few registers, and there are many threads
}
"""By class of device (``Traits.device_class``)."""
LEAST: Final = dict.fromkeys(
    ("prefetch_bytes", "quantized_prefetch_bytes", "convolution_tiles_ahead"), 0
)
"""The least that a number may be, where that is not 1."""


def tiles_of(device_class: str) -> Tiles:
    """The row of a class; raises ``PluginError`` with the nearest ones."""
    if device_class not in TILES:
        raise PluginError(unknown_name("class of device", device_class, TILES))
    return TILES[device_class]
