"""A program of kernels of many families, one after the other, for planted faults."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptir import functional as F
from ptir.capture import call, call_multi
from ptir.capture.jit import capture
from ptir.ir.program import Program
from ptir.types import spec

ROWS, WIDTH = 6, 37
"""No vector divides either."""


def many(x: Any, weight: Any, places: Any, start: Any) -> Any:
    """``x f32[6,37], weight f32[37,37], places i32[6], start i32[1]`` to two f32[6,37]."""
    y = F.layer_norm(x, weight[0], weight[1])
    padded = call("pad", y, F.full((), -0.5, "f32"), low=(1, 3), high=(2, 0))
    y = y + padded[:ROWS, :WIDTH]
    y = y @ weight + x
    y = y.reshape(WIDTH, 2, 3).transpose(2, 0, 1).reshape(ROWS, WIDTH)
    y = y + F.take(x, places)
    heads = y[:, :32].reshape(1, 2, ROWS, 16)
    y = y + F.attention(heads, heads, heads).reshape(ROWS, 32).sum(axis=1, keepdims=True)
    # The last row ends early: a place too many is the next head's, and not that of others' memory.
    starts, rows = F.concat([start, start * 0]), F.concat([heads, heads])
    cache = F.cache_update(F.full((2, 2, 9, 16), 0.5, "f32"), rows, starts, starts + 1)
    y = y * 0.5 + cache.reshape(18, 32).max(axis=1)[:ROWS].reshape(ROWS, 1)
    y = y + call("dynamic_slice", x, F.concat([start + 1, start]), sizes=(1, 30)).sum()
    y = call("cumulative", y, axis=1, kind="sum") * 0.1
    coarse = F.round(y * 2)
    values, order = call_multi("sort", coarse, axis=1, descending=True)
    y = y + values * 0.1 + order.astype("f32") * 0.01
    rows = places.reshape(ROWS, 1)
    y = y + call("scatter_reduce", y, rows, x, axes=(0,), kind="replace")
    taps = {"window": (3, 3), "low": (1, 1), "high": (1, 1)}
    y = y + call("reduce_window", -F.abs(y), kind="max", **taps)
    spread = {"window": (2, 2), "base_dilation": (2, 2)}
    y = y + call("reduce_window", y, kind="sum", **spread)[:ROWS, :WIDTH]
    return F.softmax(y * 0.05), y - y.max(axis=1, keepdims=True)


def program() -> Program:
    """It, captured."""
    f32 = spec("f32", ROWS, WIDTH)
    return capture(many, f32, spec("f32", WIDTH, WIDTH), spec("i32", ROWS), spec("i32", 1))


def inputs() -> dict[str, Any]:
    """Arrays for its ports: the same every time."""
    rng = np.random.default_rng(5)
    return {
        "x": rng.normal(size=(ROWS, WIDTH)).astype("f4"),
        "weight": (rng.normal(size=(WIDTH, WIDTH)) / 6).astype("f4"),
        "places": np.array([3, 0, 5, 1, 1, 2], "i4"),
        "start": np.array([5], "i4"),
    }
