"""ONNX operators that sum products: matrix multiplication, einsum, Fourier transforms, det."""

from __future__ import annotations

import numpy as np

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.types import F32, I32
from ptir_testsuite.witnesses.onnx_import.elementwise import full_like
from ptir_testsuite.witnesses.onnx_import.movement import window
from ptir_testsuite.witnesses.onnx_import.scope import constant
from ptir_testsuite.witnesses.onnx_import.table import Array, Node, onnx_op


@onnx_op("MatMul")
def matmul(node: Node) -> Tensor:
    """NumPy's ``@``."""
    return node[0] @ node[1]


@onnx_op("MatMulInteger")
def matmul_integer(node: Node) -> Tensor:
    """Bytes less their zero points, multiplied as i32."""
    return centred(node[0], node.optional(2), -2) @ centred(node[1], node.optional(3), -1)


def centred(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Elements as i32, less a zero point that may differ along ``axis``."""
    if zero is None:
        return x.astype(I32)
    at = axis % x.ndim
    if zero.ndim == 1 and zero.size > 1:
        zero = zero.reshape(tuple(zero.size if a == at else 1 for a in range(x.ndim)))
    elif zero.ndim < 2:
        zero = zero.reshape(())
    return x.astype(I32) - zero.astype(I32)


@onnx_op("Gemm")
def gemm(node: Node) -> Tensor:
    """Alpha * A @ B + beta * C, either matrix transposed."""
    a, b, c = node[0], node[1], node.optional(2)
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    across, layout = bool(node.attr("transA", 0)), "oi" if node.attr("transB", 0) else "io"
    if a.dtype == F32 and not across and (alpha, beta) == (1.0, 1.0):
        bias = c if c is not None and c.ndim == 1 and c.size > 1 else None
        result = F.linear(a, b, bias, layout=layout)
        return result if c is None or bias is not None else result + c
    contract = {"lhs_contract": (0 if across else 1,), "rhs_contract": (int(layout == "oi"),)}
    result = call("dot_general", a, b, **contract)
    if alpha != 1.0:
        result = result * alpha
    if c is None:
        return result
    return result + (c if beta == 1.0 else c * beta)


@onnx_op("Einsum")
def einsum(node: Node) -> Tensor:
    """Diagonals first, then two operands at a time, then what is left to sum."""
    terms, result = _terms(node.attr("equation"), [x.ndim for x in node.present])
    pairs = [_diagonal(x, labels) for x, labels in zip(node.present, terms, strict=True)]
    x, labels = pairs[0]
    for position, (y, others) in enumerate(pairs[1:], 2):
        later = "".join(found for _, found in pairs[position:]) + result
        x, labels = _contracted(x, labels, y, others, later)
    drop = tuple(a for a, label in enumerate(labels) if label not in result)
    if drop:
        x = call("reduce", x, axes=drop, kind="sum")
        labels = "".join(label for label in labels if label in result)
    return x.transpose(*[labels.index(label) for label in result])


def _terms(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, ``...`` spelled out in upper case letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    rests = [r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True)]
    spelled = "ABCDEFGH"[: max([r for t, r in zip(terms, rests, strict=True) if "..." in t] or [0])]
    if not arrow:
        once = [c for c in sorted(set(left) - set(",.")) if left.count(c) == 1]
        right = ("..." if "..." in left else "") + "".join(once)
    named = [
        t.replace("...", spelled[len(spelled) - r :]) for t, r in zip(terms, rests, strict=True)
    ]
    return named, right.replace("...", spelled)


def _diagonal(x: Tensor, labels: str) -> tuple[Tensor, str]:
    """One axis for each label: repeated ones keep only their diagonal."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            a = labels.index(label)
            b = labels.index(label, a + 1)
            rows, columns = (call("iota", shape=x.shape, dtype=I32, axis=i) for i in (a, b))
            kept = call("select", rows == columns, x, full_like(x, 0))
            x = call("reduce", kept, axes=(b,), kind="sum")
            labels = labels[:b] + labels[b + 1 :]
    return x, labels


def _contracted(x: Tensor, a: str, y: Tensor, b: str, later: str) -> tuple[Tensor, str]:
    shared = [label for label in a if label in b]
    batch = [label for label in shared if label in later]
    summed = [label for label in shared if label not in later]
    product = call(
        "dot_general",
        x,
        y,
        lhs_batch=tuple(map(a.index, batch)),
        rhs_batch=tuple(map(b.index, batch)),
        lhs_contract=tuple(map(a.index, summed)),
        rhs_contract=tuple(map(b.index, summed)),
    )
    free = [label for label in (*a, *b) if label not in shared]
    return product, "".join((*batch, *free))


@onnx_op("Det")
def det(node: Node) -> Tensor:
    """Laplace expansion along the first row; the matrices of the cases are small."""
    return _det(node[0])


def _det(x: Tensor) -> Tensor:
    size, lead = x.shape[-1], x.shape[:-2]
    if size == 1:
        return x.reshape(lead)
    below, total = window(x, x.ndim - 2, 1, size), None
    for column in range(size):
        sides = [window(below, x.ndim - 1, 0, column), window(below, x.ndim - 1, column + 1, size)]
        first = window(window(x, x.ndim - 2, 0, 1), x.ndim - 1, column, column + 1).reshape(lead)
        term = first * _det(F.concat(sides, axis=-1))
        total = term if total is None else total - term if column % 2 else total + term
    assert total is not None
    return total


# --- Fourier ---


def along(x: Tensor, axis: int, matrix: Array) -> Tensor:
    """Every line of ``x`` along an axis multiplied by a constant matrix [out, in]."""
    weights = constant(matrix.astype(x.dtype.numpy))
    product = call("dot_general", x, weights, lhs_contract=(axis,), rhs_contract=(1,))
    order = [*range(axis), x.ndim - 1, *range(axis, x.ndim - 1)]
    return product.transpose(*order)


def fourier(x: Tensor, axis: int, length: int, *, inverse: bool, onesided: bool) -> Tensor:
    """The transform of pairs (real, imaginary) on the last axis, or of reals on one of size 1."""
    have, count = x.shape[axis], length
    whole = onesided and inverse  # the other half of the spectrum is the mirror image
    rows = count if inverse or not onesided else count // 2 + 1
    columns = min(have, count)
    steps = np.outer(np.arange(rows), np.arange(columns)) % count
    weight = np.full(columns, 1.0 / count if inverse else 1.0)
    if whole:
        weight[1 : (count + 1) // 2] *= 2.0
    cosine, sine = _circle(steps, count, 1) * weight, _circle(steps, count, 0) * weight
    sine = sine if inverse else -sine
    x = window(x, axis, 0, columns)
    real = window(x, x.ndim - 1, 0, 1)
    if x.shape[-1] == 1:
        return F.concat([along(real, axis, cosine), along(real, axis, sine)], axis=-1)
    imaginary = window(x, x.ndim - 1, 1, 2)
    result = along(real, axis, cosine) - along(imaginary, axis, sine)
    if whole:
        return result
    other = along(real, axis, sine) + along(imaginary, axis, cosine)
    return F.concat([result, other], axis=-1)


def _circle(steps: Array, count: int, quarter: int) -> Array:
    """Sines of ``steps`` parts of a turn cut into ``count``, plus quarter turns; exact at zeros."""
    parts = (4 * steps + quarter * count) % (4 * count)
    sines = np.sin(parts / count * (np.pi / 2))
    return np.where(parts % (2 * count) == 0, 0.0, sines)


@onnx_op("DFT")
def dft(node: Node) -> Tensor:
    """Along one axis, an input since version 20; padded or cut to a length if one is given."""
    x = node[0]
    given = node.ints(2)
    axis = (node.attr("axis", 1) if node.version < 20 else given[0] if given else -2) % x.ndim
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    mirrored = 2 * (x.shape[axis] - 1) if inverse and onesided else x.shape[axis]
    length = (node.ints(1) or (mirrored,))[0]
    return fourier(x, axis, length, inverse=inverse, onesided=onesided)


@onnx_op("STFT")
def stft(node: Node) -> Tensor:
    """The transform of frames, weighted by a window."""
    x, (step,), weights = node[0], node.ints(1) or (1,), node.optional(2)
    length = node.ints(3)
    size = length[0] if length else weights.shape[0] if weights is not None else x.shape[1]
    starts = range(0, x.shape[1] - size + 1, step)
    frames = [window(x, 1, at, at + size).reshape((x.shape[0], 1, size, 1)) for at in starts]
    framed = F.concat(frames, axis=1)
    if weights is not None:
        framed = framed * weights.reshape((size, 1))
    return fourier(framed, 2, size, inverse=False, onesided=bool(node.attr("onesided", 1)))
