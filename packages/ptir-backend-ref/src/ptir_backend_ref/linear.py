"""The linear composite: one row goes to BLAS whole, more rows in pieces on our own threads.

A matrix-vector product lasts about as long as waking a sleeping thread, so BLAS's threads, which
spin between calls, are a third faster there than ours; its order of sums depends on how many they
are. Other products are cut by shape alone and every piece is a single-threaded BLAS call, so that
some rows of a weight give what they give with all, where a cut is between pieces (``cut_unit``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from ptir.ir import Instruction
from ptir.ops.numerics.arrays import blas_ready
from ptir_backend_ref.threads import blas_is_tamed, run_all, single_threaded_blas, thread_count

Array = np.ndarray[Any, np.dtype[Any]]

LEAST: Final = 1 << 19  # multiply-adds from which waking a thread pays
COLUMNS: Final = 384  # result columns of one piece of a matrix-matrix product


def linear(instruction: Instruction, reusable: frozenset[int]) -> Callable[..., Array]:
    """``x @ weight + bias`` into fresh memory."""
    turned = instruction.attributes["layout"] == "oi"
    shape = instruction.types[0].shape
    rows = math.prod(shape[:-1])
    cut = rows * shape[-1] > 0 and blas_is_tamed()

    def run(x: Array, weight: Array, bias: Array | None = None) -> Array:
        matrix = blas_ready(weight.T if turned else weight)
        flat = blas_ready(x.reshape(rows, x.shape[-1]))
        if rows == 1 and thread_count() > 1:
            product: Array = np.matmul(flat, matrix)
        else:
            with single_threaded_blas():
                if cut:
                    return in_pieces(flat, matrix, bias).reshape(shape)
                product = np.matmul(flat, matrix)
        if bias is not None:
            product += bias
        return product.reshape(shape)

    return run


def in_pieces(x: Array, matrix: Array, bias: Array | None, columns: int = COLUMNS) -> Array:
    """``x @ matrix + bias``, a piece for every few ``columns`` of the result."""
    product = np.empty((len(x), matrix.shape[1]), x.dtype)
    parts = [slice(at, at + columns) for at in range(0, matrix.shape[1], columns)]
    tasks = [partial(_columns, x, matrix, bias, product, part) for part in parts]
    if len(x) * matrix.size >= LEAST:
        run_all(tasks)
    else:
        for task in tasks:
            task()
    return product


def _columns(x: Array, matrix: Array, bias: Array | None, product: Array, part: slice) -> None:
    out = np.matmul(x, matrix[:, part], out=product[:, part])
    if bias is not None:
        out += bias[part]
