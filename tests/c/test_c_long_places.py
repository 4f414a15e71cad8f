"""Tensors of more elements than 32 bits count, as Gemma 4's table of each layer's embeddings is.

They are zeros that nobody wrote, so that they take no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend import registry
from ptir.capture.tensor import Tensor, from_host

ROWS, WIDTH = 262144, 8960
AT = np.array([3, ROWS - 1, 240000, 100], np.int32)
"""Rows that hold numbers, some of them behind the first 2^31 elements."""

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def rows() -> Array:
    found = np.zeros((ROWS, WIDTH), np.int8)
    for at in AT:
        found[at] = (np.arange(WIDTH) + at) % 97
    return found


Ours = Callable[[Tensor, Tensor], Tensor]
WORKS: dict[str, tuple[Ours, Callable[[Array], Array]]] = {
    "rows": (lambda x, at: F.take(x, at), lambda x: x[AT]),
    "every second of a row": (lambda x, at: x[ROWS - 1 :, ::2], lambda x: x[-1:, ::2]),
    "a sum of rows": (
        lambda x, at: x[240000:240002].astype("f32").sum(axis=1),
        lambda x: x[240000:240002].astype(np.float32).sum(1),
    ),
    "a transposed part": (
        lambda x, at: x[ROWS - 4 :, WIDTH - 32 :].transpose(1, 0),
        lambda x: x[-4:, -32:].T,
    ),
}


@pytest.mark.parametrize("work", WORKS)
def test_places_beyond_32_bits_are_read(work: str, rows: Array) -> None:
    target = registry.get("c")
    ours, numpys = WORKS[work]
    given = from_host(rows, target, borrow=True), ptir.tensor(AT, backend=target)
    found = ptir.jit(lambda x, at: ours(x, at).astype("f32") + 1.0)(*given)
    np.testing.assert_array_equal(found.numpy(), numpys(rows).astype(np.float32) + 1)
