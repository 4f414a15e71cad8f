"""Movement and indexing oracles: for each result index, the operand index that it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptir_testsuite.oracles.expected import Expected, exactly
from ptir_testsuite.oracles.floats import Array
from ptir_testsuite.oracles.table import Given, oracle

Index = tuple[int, ...]
Where = Callable[[Given, Index], Index]


def moved(*names: str) -> Callable[[Where], Where]:
    """Make "result index to operand index" the oracle of ops that only move their first operand."""

    def add(where: Where) -> Where:
        def expect(given: Given) -> list[Expected]:
            source, (result,) = given.arrays[0], given.results
            out = np.empty(result.shape, source.dtype)
            for index in np.ndindex(*result.shape):
                out[index] = source[where(given, index)]
            return [exactly(out)]

        oracle(*names)(expect)
        return where

    return add


@moved("transpose")
def _transpose(given: Given, index: Index) -> Index:
    source = [0] * len(index)
    for place, axis in enumerate(given["permutation"]):
        source[axis] = index[place]
    return tuple(source)


@moved("broadcast_to")
def _broadcast_to(given: Given, index: Index) -> Index:
    shape = given.types[0].shape
    aligned = index[len(index) - len(shape) :]
    return tuple(0 if size == 1 else i for i, size in zip(aligned, shape, strict=True))


@moved("slice")
def _slice(given: Given, index: Index) -> Index:
    steps = given["strides"] or (1,) * len(index)
    return tuple(s + i * k for s, i, k in zip(given["starts"], index, steps, strict=True))


@moved("reverse")
def _reverse(given: Given, index: Index) -> Index:
    shape, axes = given.types[0].shape, given["axes"]
    return tuple(shape[a] - 1 - i if a in axes else i for a, i in enumerate(index))


@moved("tile")
def _tile(given: Given, index: Index) -> Index:
    return tuple(i % size for i, size in zip(index, given.types[0].shape, strict=True))


@moved("reshape")
def _reshape(given: Given, index: Index) -> Index:
    (result,) = given.results
    flat = 0
    for i, size in zip(index, result.shape, strict=True):
        flat = flat * size + i
    source = []
    for size in reversed(given.types[0].shape):
        flat, place = divmod(flat, size)
        source.append(place)
    return tuple(reversed(source))


@moved("take")
def _take(given: Given, index: Index) -> Index:
    indices, axis = given.arrays[1], given["axis"]
    end = axis + indices.ndim
    chosen = int(indices[index[axis:end]])
    last = given.types[0].shape[axis] - 1
    return (*index[:axis], min(max(chosen, 0), last), *index[end:])


@moved("dynamic_slice")
def _dynamic_slice(given: Given, index: Index) -> Index:
    begins = window_start(given.arrays[1], given.types[0].shape, given["sizes"])
    return tuple(b + i for b, i in zip(begins, index, strict=True))


def window_start(starts: Array, shape: Index, sizes: Index) -> Index:
    """Where a window begins: each start moved into 0 .. axis size - window size."""
    return tuple(
        min(max(int(s), 0), n - k) for s, n, k in zip(starts.tolist(), shape, sizes, strict=True)
    )


@oracle("dynamic_update_slice")
def _dynamic_update_slice(given: Given) -> list[Expected]:
    operand, update, starts = given.arrays
    begins = window_start(starts, operand.shape, update.shape)
    out = operand.copy()
    for index in np.ndindex(*update.shape):
        out[tuple(b + i for b, i in zip(begins, index, strict=True))] = update[index]
    return [exactly(out)]


@oracle("concat")
def _concat(given: Given) -> list[Expected]:
    axis, (result,) = given["axis"], given.results
    out = np.empty(result.shape, given.arrays[0].dtype)
    offset = 0
    for part in given.arrays:
        for index in np.ndindex(*part.shape):
            out[(*index[:axis], index[axis] + offset, *index[axis + 1 :])] = part[index]
        offset += part.shape[axis]
    return [exactly(out)]


@oracle("pad")
def _pad(given: Given) -> list[Expected]:
    (operand, value), (result,) = given.arrays, given.results
    gaps = given["interior"] or (0,) * operand.ndim
    out = np.full(result.shape, value[()], operand.dtype)
    for index in np.ndindex(*operand.shape):
        place = tuple(
            low + i * (gap + 1) for low, i, gap in zip(given["low"], index, gaps, strict=True)
        )
        if all(0 <= p < n for p, n in zip(place, result.shape, strict=True)):
            out[place] = operand[index]
    return [exactly(out)]


@oracle("constant")
def _constant(given: Given) -> list[Expected]:
    literal = given["value"]
    array = np.frombuffer(literal.data, literal.type.dtype.numpy).reshape(literal.type.shape)
    return [exactly(array)]


def lines(array: Array, axis: int) -> list[tuple[Any, Array]]:
    """The lines along an axis, each with the index expression that writes it back."""
    others = [range(n) if a != axis else (slice(None),) for a, n in enumerate(array.shape)]
    grid = np.ndindex(*(len(o) for o in others))
    places = [tuple(o[i] for o, i in zip(others, at, strict=True)) for at in grid]
    return [(place, array[place]) for place in places]
