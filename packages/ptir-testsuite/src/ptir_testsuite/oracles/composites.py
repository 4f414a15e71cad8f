"""Functionals by their textbook formulas in float64, with what their errors are measured against.

A formula gives the result, the magnitude that rounding errors are relative to (where sums cancel
it is larger than the result), and how many roundings one element gathers; one of several results
gives these for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np

from ptir.types import DType
from ptir_testsuite.oracles.floats import FORMATS, Array
from ptir_testsuite.oracles.quantization import bit_places, number_of


@dataclass(frozen=True)
class Found:
    """A result in float64; its error may be ``(roundings + FIXED) * unit * magnitude``."""

    result: Array
    magnitude: Array
    roundings: float = 0.0


FIXED: Final = 32
"""Roundings that every composite may make besides its sums: a few of ops that are off by ULPs."""

NORMAL: Final = FORMATS["f32"].normal
UNIT: Final = FORMATS["f32"].unit

Formula = Callable[..., "Found | tuple[Found, ...]"]

Given = TypeVar("Given", bound=Formula)

FORMULAS: Final[dict[str, Formula]] = {}


def by_formula(name: str, operands: Sequence[Array], attributes: Mapping[str, Any]) -> list[Found]:
    """Every result of the functional called ``name`` on operands in float64, or integers."""
    found = FORMULAS[name](*operands, **attributes)
    return [found] if isinstance(found, Found) else list(found)


def formula(name: str) -> Callable[[Given], Given]:
    """Make the function below the formula of the functional called ``name``."""

    def add(function: Given) -> Given:
        FORMULAS[name] = function
        return function

    return add


_erf: Final = np.vectorize(math.erf, otypes=[np.float64])


@formula("linear")
def _linear(x: Array, weight: Array, bias: Any = 0.0, *, layout: str) -> Found:
    matrix = weight.T if layout == "oi" else weight
    size = np.abs(x) @ np.abs(matrix) + np.abs(bias)
    return Found(x @ matrix + bias, size, len(matrix))


@formula("quantized_linear")
def _quantized_linear(
    x: Array,
    words: Array,
    scale: Array,
    bias_groups: Array,
    bias: Any = 0.0,
    *,
    bits: int,
    group: int,
    layout: str,
    table: tuple[float, ...] | DType | None = None,
) -> Found:
    size = x.shape[-1]
    if layout == "io":
        words, scale, bias_groups = words.T, scale.T, bias_groups.T
    values = np.zeros((len(words), size))
    for row, line in enumerate(words.tolist()):
        stream = sum(word << (32 * i) for i, word in enumerate(line))
        for i in range(size):
            places = enumerate(bit_places(i, bits))
            value = sum((stream >> place & 1) << bit for bit, place in places)
            values[row, i] = number_of(value, table)
    factor, shift = (np.repeat(a, group, axis=1) for a in (scale, bias_groups))
    whole = np.abs(values * factor) + np.abs(shift)
    found = _linear(x, values * factor + shift, bias, layout="oi")
    return Found(found.result, np.abs(x) @ whole.T + np.abs(bias), found.roundings + 2)


@formula("expert_linear")
def _expert_linear(x: Array, weight: Array, chosen: Array, *, experts: int) -> Found:
    tokens, each = chosen.shape
    result = np.zeros((tokens, each, len(weight) // experts))
    size = np.zeros(result.shape)
    for token, place in np.ndindex(tokens, each):
        expert = min(max(int(chosen[token, place]), 0), experts - 1)
        matrix = weight[expert * result.shape[2] :][: result.shape[2]]
        row = x[token] if x.ndim == 2 else x[token, place]
        result[token, place] = matrix @ row
        size[token, place] = np.abs(matrix) @ np.abs(row)
    return Found(result, size, x.shape[-1])


@formula("quantized_expert_linear")
def _quantized_expert_linear(
    x: Array,
    words: Array,
    scale: Array,
    bias_groups: Array,
    chosen: Array,
    *,
    experts: int,
    bits: int,
    group: int,
    table: tuple[float, ...] | DType | None = None,
) -> Found:
    unit = np.eye(x.shape[-1])
    how: dict[str, Any] = {"bits": bits, "group": group, "layout": "oi", "table": table}
    dense = _quantized_linear(unit, words, scale, bias_groups, **how)
    found = _expert_linear(x, dense.result.T, chosen, experts=experts)
    size = _expert_linear(np.abs(x), dense.magnitude.T, chosen, experts=experts)
    return Found(found.result, size.result, found.roundings + 2)


@formula("embedding")
def _embedding(table: Array, ids: Array) -> Found:
    return _exact(table[np.clip(ids, 0, len(table) - 1)])


def _exact(result: Array) -> Found:
    return Found(result, np.zeros(result.shape))


@formula("gelu")
def _gelu(x: Array, *, approximate: str) -> Found:
    if approximate == "none":
        return Found(x / 2 * (1 + _erf(x / math.sqrt(2))), np.abs(x))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return Found(x / 2 * (1 + np.tanh(inner)), np.abs(x))


@formula("silu")
def _silu(x: Array) -> Found:
    result = x / (1 + np.exp(-x))
    lost = np.where(x < math.log(NORMAL), np.abs(x) * NORMAL / UNIT, 0.0)  # exp(-x) is infinite
    return Found(result, np.abs(result) + lost, float(np.abs(x).clip(max=128).max(initial=0.0)))


@formula("swiglu")
def _swiglu(gate: Array, up: Array) -> Found:
    bent = _silu(gate)
    return Found(bent.result * up, bent.magnitude * np.abs(up), bent.roundings)


@formula("layer_norm")
def _layer_norm(x: Array, weight: Array, bias: Array, *, epsilon: float) -> Found:
    mean = x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt(np.square(x - mean).mean(-1, keepdims=True) + epsilon)
    size = (np.abs(x) + np.abs(x).mean(-1, keepdims=True)) * scale * np.abs(weight) + np.abs(bias)
    result = (x - mean) * scale * weight + bias
    return Found(result, size, x.shape[-1])


@formula("rms_norm")
def _rms_norm(x: Array, weight: Array, *, epsilon: float) -> Found:
    result = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * weight
    return Found(result, np.abs(result), x.shape[-1])


@formula("batch_norm")
def _batch_norm(
    x: Array, weight: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float
) -> Found:
    factor = weight / np.sqrt(variance + epsilon)
    size = (np.abs(x) + np.abs(mean)) * np.abs(factor) + np.abs(bias)
    return Found((x - mean) * factor + bias, size)


@formula("softmax")
def _softmax(x: Array, *, axis: int) -> Found:
    top = x.max(axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(top == -np.inf, 0.0, top)
    weights = np.exp(x - top)
    total = weights.sum(axis=axis, keepdims=True)
    result = weights / np.where(total == 0, 1.0, total)
    depth = np.where(np.isfinite(x), np.abs(x - top), 0.0)
    return Found(result, result, float(depth.max(initial=0.0)) + x.shape[axis])


@formula("rope")
def _rope(
    x: Array,
    positions: Array,
    frequencies: Array | None = None,
    *,
    theta: float,
    layout: str,
    rotary: int,
) -> Found:
    half = rotary // 2
    rates = np.array([np.float32(theta ** (-2 * i / rotary)) for i in range(half)], np.float64)
    rates = rates if frequencies is None else frequencies.astype(np.float64)
    angles = positions[:, None, :, None].astype(np.float64) * rates
    pairs: Any = (
        (slice(0, half), slice(half, rotary))
        if layout == "half"
        else (slice(0, rotary, 2), slice(1, rotary, 2))
    )
    first, second = (..., pairs[0]), (..., pairs[1])
    a, b = x[first], x[second]
    result, size = x.copy(), np.zeros(x.shape)
    result[first] = a * np.cos(angles) - b * np.sin(angles)
    result[second] = b * np.cos(angles) + a * np.sin(angles)
    size[first] = size[second] = (np.abs(a) + np.abs(b)) * (1 + np.abs(angles))
    return Found(result, size)


@formula("cache_update")
def _cache_update(cache: Array, new: Array, start: Array, count: Array) -> Found:
    result = cache.copy()
    for row in range(len(cache)):
        for t in range(min(int(count[row]), new.shape[2])):
            at = int(start[row]) + t
            if 0 <= at < cache.shape[2]:
                result[row, :, at] = new[row, :, t]
    return _exact(result)


@formula("attention")
def _attention(
    q: Array,
    k: Array,
    v: Array,
    start: Array,
    length: Array,
    sinks: Array | None = None,
    *,
    scale: float,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
) -> Found:
    batch, heads, queries, width = q.shape
    result, size = np.zeros(q.shape), np.zeros(q.shape)
    most = 0.0
    for row, head, t in np.ndindex(batch, heads, queries):
        group = head // (heads // k.shape[1])
        position = int(start[row]) + t
        seen = [
            j
            for j in range(min(k.shape[2], int(length[row])))
            if (not causal or j <= position) and (window is None or j > position - window)
        ]
        if not seen:
            continue
        scores = k[row, group, seen] @ q[row, head, t] * scale
        sizes = np.abs(k[row, group, seen]) @ np.abs(q[row, head, t]) * abs(scale)
        most = max(most, float(sizes.max()))
        bent = scores if soft_cap is None else soft_cap * np.tanh(scores / soft_cap)
        sink = -np.inf if sinks is None else sinks[head]
        top = max(bent.max(), sink)
        weights = np.exp(bent - top)
        weights /= weights.sum() + np.exp(sink - top)
        result[row, head, t] = weights @ v[row, group, seen]
        size[row, head, t] = np.abs(v[row, group, seen]).max(0)
    return Found(result, size, (most + 1) * width + k.shape[2])


@formula("causal_conv1d")
def _causal_conv1d(
    x: Array, weight: Array, tail: Array, count: Array, bias: Any = 0.0
) -> tuple[Found, Found]:
    taps, (batch, length, _) = weight.shape[1], x.shape
    steps = np.concatenate([tail, x], axis=1)
    result, size = np.zeros(x.shape), np.zeros(x.shape)
    kept = tail.copy()
    for row, t in np.ndindex(batch, length):
        window = steps[row, t : t + taps].T
        result[row, t] = (window * weight).sum(-1) + bias
        size[row, t] = (np.abs(window) * np.abs(weight)).sum(-1) + np.abs(bias)
    for row, real in enumerate(np.clip(count, 0, length)):
        kept[row] = steps[row, real : real + taps - 1]
    return Found(result, size, taps), _exact(kept)


@formula("gated_delta_rule")
def _gated_delta_rule(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, count: Array
) -> tuple[Found, Found]:
    """Errors are held against the longest that a column of S can have become so far."""
    shared = v.shape[1] // q.shape[1]
    result, size = np.zeros(v.shape), np.zeros(v.shape)
    after, most = state.copy(), np.zeros(state.shape)
    for row, head in np.ndindex(v.shape[:2]):
        S, longest = after[row, head], np.linalg.norm(state[row, head], axis=0)
        for t in range(v.shape[2]):
            query, key = q[row, head // shared, t], k[row, head // shared, t]
            if t < count[row]:
                decay, rate = np.exp(g[row, head, t]), beta[row, head, t]
                S *= decay
                delta = rate * (v[row, head, t] - S.T @ key)
                S += np.outer(key, delta)
                longest = longest * decay + np.linalg.norm(key) * rate * np.abs(v[row, head, t])
            result[row, head, t] = S.T @ query
            size[row, head, t] = np.linalg.norm(query) * longest
        most[row, head] = longest * (count[row] > 0)
    roundings = q.shape[3] + v.shape[2]
    return Found(result, size, roundings), Found(after, most, roundings)


@formula("gated_linear_attention")
def _gated_linear_attention(
    q: Array, k: Array, v: Array, g: Array, state: Array, count: Array
) -> tuple[Found, Found]:
    """Errors are held against what the state would be if no terms had opposite signs."""
    shared = v.shape[1] // q.shape[1]
    result, size = np.zeros(v.shape), np.zeros(v.shape)
    after, most = state.copy(), np.abs(state) * (count > 0).reshape(-1, 1, 1, 1)
    for row, head in np.ndindex(v.shape[:2]):
        S, whole = after[row, head], np.abs(state[row, head])
        for t in range(v.shape[2]):
            if t < count[row]:
                decay, term = (
                    np.exp(g[row, head, t]),
                    np.outer(k[row, head // shared, t], v[row, head, t]),
                )
                S[:] = S * decay + term
                whole = whole * decay + np.abs(term)
            query = q[row, head // shared, t]
            result[row, head, t], size[row, head, t] = S.T @ query, whole.T @ np.abs(query)
        most[row, head] = whole * (count[row] > 0)
    roundings = q.shape[3] + v.shape[2]
    return Found(result, size, roundings), Found(after, most, roundings)
