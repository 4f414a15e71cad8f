"""PTIR_CHECK_INDICES=1: what clamps or is dropped otherwise is an error, wherever it is read."""

from __future__ import annotations

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend import Target
from ptir.capture import call
from ptir.errors import DeviceError
from tiny_backend import TinyBackend

TAIL = "; correct the indices, or unset PTIR_CHECK_INDICES to have the op's own rule"
GRID = np.arange(6, dtype=np.float32).reshape(2, 3)


def i32(*values):
    return np.array(values, np.int32)


CALLS = {
    "take": (
        lambda x, i: call("take", x, i, axis=1),
        (GRID, i32(0, 3)),
        "take: index 3 at [1] is outside 0..2",
        (GRID, i32(0, 2)),
    ),
    "gather": (
        lambda x, i: call("gather", x, i, axes=(1, 0)),
        (GRID, i32([2, 1], [2, -1])),
        "gather: index -1 at [1, 1] is outside 0..1",
        (GRID, i32([2, 1], [0, 0])),
    ),
    "dynamic_slice": (
        lambda x, i: call("dynamic_slice", x, i, sizes=(1, 2)),
        (GRID, i32(0, 2)),
        "dynamic_slice: index 2 at [1] is outside 0..1",
        (GRID, i32(1, 1)),
    ),
    "dynamic_update_slice": (
        lambda x, i: call("dynamic_update_slice", x, x[:1, :2], i),
        (GRID, i32(2, 0)),
        "dynamic_update_slice: index 2 at [0] is outside 0..1",
        (GRID, i32(1, 1)),
    ),
    "scatter_reduce": (
        lambda x, i: call("scatter_reduce", x, i, x[:, 0], axes=(0, 1), kind="add"),
        (GRID, i32([0, 0], [1, 3])),
        "scatter_reduce: index 3 at [1, 1] is outside 0..2",
        (GRID, i32([1, 2], [1, 2])),
    ),
    "segment_reduce": (
        lambda x, i: call("segment_reduce", x, i, segments=2, kind="sum"),
        (GRID, i32(0, 2)),
        "segment_reduce: index 2 at [1] is outside 0..1",
        (GRID, i32(1, 1)),
    ),
    "no segments": (
        lambda x, i: call("segment_reduce", x, i, segments=0, kind="sum"),
        (GRID, i32(-1, -1)),
        "segment_reduce: index -1 at [0] is outside 0..-1",
        (GRID[:0], i32()),
    ),
    "embedding": (
        F.embedding,
        (GRID, i32(1, 7)),
        "take: index 7 at [1] is outside 0..1",
        (GRID, i32(1, 0)),
    ),
    "in a region": (
        lambda x, i: F.cond(x.sum() > 0.0, lambda: call("take", x, i, axis=0), lambda: x),
        (GRID, i32(1, 2)),
        "take: index 2 at [1] is outside 0..1",
        (GRID, i32(1, 0)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backend", ["reference", "tiny"])
def test_an_index_outside_is_an_error_only_when_asked(name, backend, reference, monkeypatch):
    function, wrong, message, right = CALLS[name]
    tiny = TinyBackend()
    target = reference if backend == "reference" else Target(tiny, tiny.devices()[0])
    jitted = ptir.jit(function)

    def run(arrays):
        return jitted(*(ptir.tensor(a, backend=target) for a in arrays)).numpy()

    monkeypatch.delenv("PTIR_CHECK_INDICES", raising=False)
    plain = run(right)
    run(wrong)
    monkeypatch.setenv("PTIR_CHECK_INDICES", "1")
    np.testing.assert_array_equal(run(right), plain)
    with pytest.raises(DeviceError) as caught:
        run(wrong)
    assert str(caught.value) == message + TAIL
    monkeypatch.setenv("PTIR_CHECK_INDICES", "0")
    run(wrong)


def test_constant_indices_are_not_folded_out_of_the_check(monkeypatch):
    def function(x):
        return call("take", F.arange(3), F.full((1,), 5), axis=0) + x

    x = ptir.tensor(i32(1))
    assert function(x).numpy().tolist() == [3]
    monkeypatch.setenv("PTIR_CHECK_INDICES", "1")
    with pytest.raises(DeviceError, match=r"take: index 5 at \[0\] is outside 0..2"):
        function(x).numpy()
