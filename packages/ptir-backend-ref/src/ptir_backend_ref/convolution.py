"""The conv2d composite: patches and BLAS block by block, depthwise filters tap by tap.

A block's patches fill a cache, so memory stays bounded whatever the images' size; blocks are cut by
shape alone and every product is a single-threaded BLAS call where BLAS can be told so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ptir.ir import Instruction
from ptir.ops.numerics.arrays import blas_ready
from ptir_backend_ref.images import Block, blocks, over_blocks, padded, windows
from ptir_backend_ref.linear import LEAST, in_pieces
from ptir_backend_ref.threads import BLOCK, PARALLEL, blas_is_tamed, single_threaded_blas

Array = np.ndarray[Any, np.dtype[Any]]
Kernel = Callable[..., Array]

PATCHES: Final = 1 << 18  # elements of one block's patches
COLUMNS: Final = 128  # result channels of one piece where all patches fit in one block


def conv2d(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """Convolution of images [N,H,W,C]; see ``ptir.functional.conv2d``."""
    how, shape = instruction.attributes, instruction.types[0].shape
    groups, by_output = how["groups"], how["layout"] == "oihw"

    def run(x: Array, weight: Array, bias: Array | None = None) -> Array:
        kernel = weight.shape[2:] if by_output else weight.shape[:2]
        result = np.empty(shape, np.float32)
        if not result.size:
            return result
        if not weight.size:
            result[...] = 0 if bias is None else bias
            return result
        image = padded(x, how["low"], how["high"], 0)
        taps = windows(image, shape[1:3], kernel, how["strides"], how["dilation"])
        filters = weight if by_output else weight.transpose(3, 2, 0, 1)
        if groups > 1 and filters.shape[1] == 1:
            _depthwise(taps, filters[:, 0], bias, result)
        elif groups > 1:
            _grouped(taps, filters, bias, result, groups)
        else:
            _plain(taps, filters, bias, result)
        return result

    return run


def _plain(taps: Array, filters: Array, bias: Array | None, result: Array) -> None:
    """Patches [places,K] times filters [K,O]; the order of K is whichever copies less."""
    outputs, *kernel = filters.shape
    places, depth = math.prod(result.shape[:3]), math.prod(kernel)
    if places < outputs and filters.flags.c_contiguous:
        taps = taps.transpose(0, 1, 2, 5, 3, 4)
    else:
        filters = filters.transpose(0, 2, 3, 1)
    matrix = blas_ready(filters.reshape(outputs, depth).T)
    cut = list(blocks(result.shape, result.shape[2] * depth, PATCHES))
    large = places * depth * outputs >= LEAST and blas_is_tamed()
    with single_threaded_blas():
        if large and len(cut) == 1:
            patches = blas_ready(taps.reshape(places, depth))
            result[...] = in_pieces(patches, matrix, bias, COLUMNS).reshape(result.shape)
            return

        def piece(block: Block) -> None:
            part = result[block]
            patches = blas_ready(taps[block].reshape(-1, depth))
            np.matmul(patches, matrix, out=part.reshape(-1, outputs))
            if bias is not None:
                part += bias

        over_blocks(piece, cut, large)


def _grouped(taps: Array, filters: Array, bias: Array | None, result: Array, groups: int) -> None:
    """Patches [G,places,K] times filters [G,K,O/G]."""
    outputs, *kernel = filters.shape
    depth = math.prod(kernel)
    matrices = np.ascontiguousarray(filters.transpose(0, 2, 3, 1))
    matrices = matrices.reshape(groups, outputs // groups, depth).transpose(0, 2, 1)
    split = _split_channels(taps, groups)
    cut = list(blocks(result.shape, result.shape[2] * depth * groups, PATCHES))
    large = result.size * depth >= LEAST and blas_is_tamed()

    def piece(block: Block) -> None:
        part = result[block]
        patches = split[block].transpose(5, 0, 1, 2, 3, 4, 6).reshape(groups, -1, depth)
        product = np.matmul(patches, matrices).transpose(1, 0, 2)
        part[...] = product.reshape(part.shape)
        if bias is not None:
            part += bias

    with single_threaded_blas():
        over_blocks(piece, cut, large)


def _split_channels(taps: Array, groups: int) -> Array:
    """Windows [...,C] as a view [...,G,C/G]."""
    *axes, channels = taps.shape
    *steps, step = taps.strides
    size = channels // groups
    return np.lib.stride_tricks.as_strided(
        taps, (*axes, groups, size), (*steps, step * size, step), writeable=False
    )


def _depthwise(taps: Array, filters: Array, bias: Array | None, result: Array) -> None:
    """Each channel times its own filters, tap by tap: no patches are ever copied."""
    channels = taps.shape[5]
    each = result.shape[3] // channels
    weights = filters.transpose(1, 2, 0).reshape(*filters.shape[1:], channels, each)
    split = result.reshape(*result.shape[:3], channels, each)
    cut = list(blocks(result.shape, math.prod(result.shape[2:]), BLOCK))

    def piece(block: Block) -> None:
        part, seen = split[block], taps[block][..., None]
        product = np.empty_like(part)
        np.multiply(seen[:, :, :, 0, 0], weights[0, 0], out=part)
        for at in list(np.ndindex(*weights.shape[:2]))[1:]:
            part += np.multiply(seen[:, :, :, *at], weights[at], out=product)
        if bias is not None:
            part += bias.reshape(channels, each)

    over_blocks(piece, cut, result.size * filters[0].size >= PARALLEL)
