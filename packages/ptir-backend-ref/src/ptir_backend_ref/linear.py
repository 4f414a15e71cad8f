"""The linear composite: pieces of one product on our threads, each a single-threaded BLAS call.

BLAS's own threads spin while they wait, long after a call too, which costs a multiple of the
product where anything else wants the core; ours sleep. Pieces depend on shapes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from ptir.ir import Instruction
from ptir.ops.numerics.arrays import blas_ready
from ptir_backend_ref.threads import blas_is_tamed, run_all, single_threaded_blas

Array = np.ndarray[Any, np.dtype[Any]]

LEAST: Final = 1 << 19  # multiply-adds from which waking a thread pays
STREAM: Final = 1 << 19  # weights of one piece of a matrix-vector product
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
        with single_threaded_blas():
            if cut and rows * matrix.size >= LEAST:
                return _in_pieces(flat, matrix, bias).reshape(shape)
            product: Array = np.matmul(flat, matrix)
        if bias is not None:
            product += bias
        return product.reshape(shape)

    return run


def _in_pieces(x: Array, matrix: Array, bias: Array | None) -> Array:
    """Cut so that every piece reads whole stretches of the weight's memory."""
    by_row = matrix.strides[1] == matrix.itemsize
    if len(x) == 1 and by_row:
        return _summed(x, matrix, bias)
    width = COLUMNS if len(x) > 1 else max(1, STREAM // len(matrix))
    product = np.empty((len(x), matrix.shape[1]), x.dtype)
    columns = [slice(at, at + width) for at in range(0, matrix.shape[1], width)]
    run_all([partial(_columns, x, matrix, bias, product, part) for part in columns])
    return product


def _columns(x: Array, matrix: Array, bias: Array | None, product: Array, part: slice) -> None:
    out = np.matmul(x, matrix[:, part], out=product[:, part])
    if bias is not None:
        out += bias[part]


def _summed(x: Array, matrix: Array, bias: Array | None) -> Array:
    """One row times a row-major matrix: partial sums over stretches of the matrix's rows."""
    height = max(1, STREAM // matrix.shape[1])
    stretches = [slice(at, at + height) for at in range(0, len(matrix), height)]
    sums = np.empty((len(stretches), 1, matrix.shape[1]), x.dtype)
    run_all(
        [
            partial(np.matmul, x[:, part], matrix[part], out=sums[index])
            for index, part in enumerate(stretches)
        ]
    )
    total: Array = np.add.reduce(sums, axis=0)
    if bias is not None:
        total += bias
    return total
