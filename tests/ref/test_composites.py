"""Each composite that the reference backend takes whole, against a float64 model of its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from composite_calls import composite, refusal

from together import together

RANDOM = np.random.default_rng(7)
f32, i32 = np.float32, np.int32


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * scale).astype(f32)


def assert_near(found: np.ndarray, wanted: np.ndarray, ulps: float, scale: Any = None) -> None:
    """Equal NaNs, and finite differences within ``ulps`` units of ``scale`` (default: wanted)."""
    size = np.abs(wanted) if scale is None else np.broadcast_to(scale, wanted.shape)
    unit = np.maximum(size, 1e-30) * 2.0**-23
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    error = np.abs(found.astype(np.float64) - wanted) / unit
    assert np.nanmax(error, initial=0) <= ulps


# Shapes on both sides of the sizes from which work is cut into blocks and spread over threads.
ROWS = [(0, 5), (1, 1), (7,), (3, 0), (2, 3, 40), (1, 768), (200, 96), (190, 700)]


@together()
@pytest.mark.parametrize("layout", ["io", "oi"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(5,), (0, 5), (1, 5), (2, 0), (2, 3, 8), (1, 1, 300), (300, 40)])
def test_linear_is_the_product_plus_bias(shape: tuple[int, ...], biased: bool, layout: str) -> None:
    x, weight, bias = normal(*shape), normal(shape[-1], 600), normal(600)
    stored = weight if layout == "io" else np.ascontiguousarray(weight.T)
    operands = (x, stored, bias) if biased else (x, stored)
    found = composite("linear", *operands, shape=(*shape[:-1], 600), layout=layout)
    X, W, b = x.astype(float), weight.astype(float), bias * float(biased)
    bound = np.abs(X) @ np.abs(W) + np.abs(b)
    assert_near(found, X @ W + b, 4 + shape[-1] / 4, bound)


@pytest.mark.parametrize("layout", ["io", "oi"])
@pytest.mark.parametrize("rows", [1, 2, 40])
def test_a_large_linear_in_pieces_is_the_product_plus_bias(rows: int, layout: str) -> None:
    x, weight, bias = normal(rows, 1100), normal(1100, 1000), normal(1000)
    stored = weight if layout == "io" else np.ascontiguousarray(weight.T)
    found = composite("linear", x, stored, bias, shape=(rows, 1000), layout=layout)
    X, W = x.astype(float), weight.astype(float)
    assert_near(found, X @ W + bias, 20, np.abs(X) @ np.abs(W) + 1)


def test_linear_takes_views_with_any_strides() -> None:
    x, weight = normal(8, 6)[::2, ::-1], np.broadcast_to(normal(6, 1), (6, 3))
    found = composite("linear", x, weight, shape=(4, 3), layout="io")
    assert_near(found, x.astype(float) @ weight.astype(float), 40, 10.0)


@pytest.mark.parametrize("shape", ROWS)
def test_layer_norm_centres_and_scales_rows(shape: tuple[int, ...]) -> None:
    x, weight, bias = normal(*shape) * 3 + 1, normal(shape[-1]), normal(shape[-1])
    x = x.astype(f32)
    found = composite("layer_norm", x, weight, bias, epsilon=1e-5)
    X = x.astype(float)
    if X.size:
        centred = X - X.mean(-1, keepdims=True)
        X = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    assert_near(found, X * weight + bias, 40, 1 + np.abs(X).max(initial=0))


@pytest.mark.parametrize("shape", ROWS)
def test_rms_norm_scales_rows(shape: tuple[int, ...]) -> None:
    x, weight = normal(*shape, scale=1e-2), normal(shape[-1])
    found = composite("rms_norm", x, weight, epsilon=1e-4)
    X = x.astype(float)
    scale = np.sqrt((X**2).sum(-1, keepdims=True) / max(1, shape[-1]) + 1e-4)
    assert_near(found, X / scale * weight, 16)


@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("first", [False, True])
def test_softmax_sums_to_one_along_its_axis(shape: tuple[int, ...], first: bool) -> None:
    x, axis = normal(*shape, scale=20), 0 if first else len(shape) - 1
    found = composite("softmax", x, axis=axis)
    X = x.astype(float)
    if X.size:
        X = np.exp(X - X.max(axis, keepdims=True))
        X /= X.sum(axis, keepdims=True)
    assert_near(found, X, 300, X + 1e-6)


FLAT = [(), (0,), (1,), (3, 5), (70, 300), (500, 310)]


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[float])(x)


@pytest.mark.parametrize("shape", FLAT)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_is_its_formula(shape: tuple[int, ...], approximate: str) -> None:
    x = np.asarray(normal(*shape, scale=3))
    found = composite("gelu", x, approximate=approximate)
    X = x.astype(float)
    if approximate == "none":
        gate = erf(X / math.sqrt(2))
    else:
        gate = np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X**3))
    assert_near(found, X / 2 * (1 + gate), 8, np.abs(X) + 1e-7)


@pytest.mark.parametrize("shape", FLAT)
def test_silu_and_swiglu_gate_with_the_logistic_function(shape: tuple[int, ...]) -> None:
    x, up = np.asarray(normal(*shape, scale=4)), np.asarray(normal(*shape))
    X = x / (1 + np.exp(-x.astype(float)))
    assert_near(composite("silu", x), X, 12)
    assert_near(composite("swiglu", x, up), X * up, 14)


def test_activations_propagate_nan() -> None:
    x = np.array([np.nan, 1, -200], f32)
    for call in (("gelu", "none"), ("gelu", "tanh")):
        assert np.isnan(composite(call[0], x, approximate=call[1])).tolist() == [True, False, False]
    assert np.isnan(composite("silu", x)).tolist() == [True, False, False]
    assert np.isnan(composite("softmax", x, axis=0)).all()


def test_embedding_clamps_ids() -> None:
    table, ids = normal(5, 3), np.array([[0, 4], [-7, 99]], i32)
    found = composite("embedding", table, ids, shape=(2, 2, 3))
    np.testing.assert_array_equal(found, table[[[0, 4], [0, 4]]])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary", [0, 6, 8])
def test_rope_turns_pairs_by_position(layout: str, rotary: int) -> None:
    x, positions = normal(2, 3, 4, 8), np.array([[0, 1, 2, 3], [70, 5, 900, -1]], i32)
    found = composite("rope", x, positions, theta=10000.0, layout=layout, rotary=rotary)
    wanted = x.astype(float)
    for pair in range(rotary // 2):
        angle = positions[:, None, :] * 10000.0 ** (-2 * pair / rotary)
        a, b = (pair, pair + rotary // 2) if layout == "half" else (2 * pair, 2 * pair + 1)
        turned = (x[..., a] + 1j * x[..., b]) * np.exp(1j * angle)
        wanted[..., a], wanted[..., b] = turned.real, turned.imag
    assert_near(found, wanted, 3 + 900 / 4, 4.0)
    assert_near(found[0], wanted[0], 8, 4.0)
    given = (10000.0 ** (-2 * np.arange(rotary // 2) / max(1, rotary))).astype(np.float32)
    attributes = {"theta": 3.0, "layout": layout, "rotary": rotary}
    np.testing.assert_array_equal(composite("rope", x, positions, given, **attributes), found)


# --- attention ---


def attention_model(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    start: Any,
    length: Any,
    sinks: np.ndarray,
    *,
    how: dict[str, Any],
) -> np.ndarray:
    B, H, T, D = q.shape
    out = np.zeros((B, H, T, D))
    for b, h, t in np.ndindex(B, H, T):
        position, g = start[b] + t, h * k.shape[1] // H
        keys = [
            j
            for j in range(min(length[b], k.shape[2]))
            if (not how["causal"] or j <= position)
            and (how["window"] is None or j > position - how["window"])
        ]
        scores = np.array([q[b, h, t].astype(float) @ k[b, g, j] for j in keys]) * how["scale"]
        if how["soft_cap"] is not None:
            scores = how["soft_cap"] * np.tanh(scores / how["soft_cap"])
        if keys:
            top = max(scores.max(), sinks[h])
            weights = np.exp(scores - top)
            total = weights.sum() + np.exp(sinks[h] - top)
            out[b, h, t] = weights @ v[b, g, keys].astype(float) / total
    return out


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, start: Any, length: Any, **given: Any
) -> Any:
    how = {"scale": 0.3, "causal": True, "window": None, "soft_cap": None, **given}
    sinks = how.pop("sinks", None)
    rows = np.array(start, i32), np.array(length, i32)
    operands = (q, k, v, *rows, *(() if sinks is None else (sinks,)))
    none = np.full(q.shape[1], -np.inf, np.float32)
    wanted = attention_model(q, k, v, *rows, none if sinks is None else sinks, how=how)
    return composite("attention", *operands, **how), wanted


@together()
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize(
    ("heads", "groups", "T", "C", "start", "length"),
    [
        (2, 2, 1, 9, [4, 8], [5, 9]),
        (6, 2, 1, 9, [0, 8], [1, 3]),
        (4, 2, 7, 20, [0, 11], [7, 18]),
        (3, 1, 50, 60, [0, 10], [50, 33]),
        (1, 1, 130, 131, [1], [131]),
        (2, 1, 3, 4, [-2, 50], [99, 4]),
    ],
)
def test_attention_sees_exactly_the_keys_it_may(
    heads: int,
    groups: int,
    T: int,
    C: int,
    start: list[int],
    length: list[int],
    causal: bool,
    window: int | None,
    soft_cap: float | None,
    sunk: bool,
) -> None:
    B = len(start)
    q, k, v = normal(B, heads, T, 8), normal(B, groups, C, 8), normal(B, groups, C, 8)
    given: dict[str, Any] = {"causal": causal, "window": window, "soft_cap": soft_cap}
    given |= {"sinks": normal(heads)} if sunk else {}
    found, wanted = attend(q, k, v, start, length, **given)
    assert_near(found, wanted, 64, 4.0)


def test_long_attention_over_threads_equals_the_model() -> None:
    q, k, v = normal(1, 4, 150, 8), normal(1, 2, 260, 8), normal(1, 2, 260, 8)
    found, wanted = attend(q, k, v, [100], [250])
    assert_near(found, wanted, 64, 4.0)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("T", [1, 6])
def test_keys_beyond_length_never_influence(T: int, poison: float) -> None:
    q, k, v = normal(2, 2, T, 4), normal(2, 2, 12, 4), normal(2, 2, 12, 4)
    for causal in (False, True):
        clean, wanted = attend(q, k, v, [2, 0], [5, 6], causal=causal)
        dirty_k, dirty_v = k.copy(), v.copy()
        for row, length in enumerate((5, 6)):
            dirty_k[row, :, length:] = dirty_v[row, :, length:] = poison
        dirty, _ = attend(q, dirty_k, dirty_v, [2, 0], [5, 6], causal=causal)
        np.testing.assert_array_equal(dirty, clean)
        assert_near(clean, wanted, 64, 4.0)


@pytest.mark.parametrize("window", [None, 2])
def test_keys_hidden_by_position_never_influence(window: int | None) -> None:
    q, k, v = normal(1, 4, 6, 4), normal(1, 2, 6, 4), normal(1, 2, 6, 4)
    clean, _ = attend(q, k, v, [0], [6], window=window)
    k[:, :, 3], v[:, :, 3] = np.nan, np.inf
    found, _ = attend(q, k, v, [0], [6], window=window)
    sees = [3, 4] if window else [3, 4, 5]
    hidden = [t for t in range(6) if t not in sees]
    np.testing.assert_allclose(found[:, :, hidden], clean[:, :, hidden], rtol=1e-5)
    assert np.isnan(found[:, :, sees]).all()


def test_a_fully_masked_row_gives_zero() -> None:
    q, k, v = normal(2, 2, 4, 4), normal(2, 1, 5, 4), normal(2, 1, 5, 4)
    assert not attend(q, k, v * np.nan, [0, 0], [0, -3])[0].any()
    found, _ = attend(q, k, v, [-2, 9], [5, 4], window=3)
    assert not found[0, :, :2].any() and found[0, :, 2:].all() and not found[1].any()


@pytest.mark.parametrize("zero", range(4))
def test_attention_of_nothing_is_zeros(zero: int) -> None:
    sizes = [1, 2, 3, 4]
    sizes[zero] = 0
    B, H, T, D = sizes
    q, k = normal(B, H, T, D), normal(B, H, 5, D)
    found, _ = attend(q, k, k, [0] * B, [5] * B)
    assert found.shape == (B, H, T, D)


# --- cache ---


@pytest.mark.parametrize("reuse", [False, True])
def test_cache_update_writes_only_inside_count_and_capacity(reuse: bool) -> None:
    start, count = np.array([0, 4, -2, 6, 1, -9], i32), np.array([2, 3, 3, 3, 0, 3], i32)
    cache, new = normal(6, 2, 6, 4), normal(6, 2, 3, 4)
    wanted = cache.copy()
    for b, t in np.ndindex(6, 3):
        if t < count[b] and 0 <= start[b] + t < 6:
            wanted[b, :, start[b] + t] = new[b, :, t]
    before = cache.copy()
    reusable = frozenset({0}) if reuse else frozenset()
    found = composite("cache_update", cache, new, start, count, reusable=reusable)
    np.testing.assert_array_equal(found, wanted)
    assert np.shares_memory(found, cache) == reuse
    if not reuse:
        np.testing.assert_array_equal(cache, before)


def test_count_beyond_the_new_entries_writes_them_all() -> None:
    cache, new = np.zeros((1, 1, 8, 1), f32), np.ones((1, 1, 3, 1), f32)
    found = composite("cache_update", cache, new, np.array([2], i32), np.array([50], i32))
    assert found.ravel().tolist() == [0, 0, 1, 1, 1, 0, 0, 0]


# --- memory ---

X = normal(30, 24)
V = normal(24)
LIKE_INPUT = [
    ("layer_norm", (X, V, V), {"epsilon": 1e-5}),
    ("rms_norm", (X, V), {"epsilon": 1e-5}),
    ("softmax", (X,), {"axis": 1}),
    ("softmax", (X,), {"axis": 0}),
    ("gelu", (X,), {"approximate": "none"}),
    ("gelu", (X,), {"approximate": "tanh"}),
    ("silu", (X,), {}),
    ("swiglu", (X, X + 1), {}),
]


@pytest.mark.parametrize(("name", "operands", "how"), LIKE_INPUT)
def test_operands_stay_unless_they_may_be_reused(
    name: str, operands: tuple[np.ndarray, ...], how: dict[str, Any]
) -> None:
    kept = [x.copy() for x in operands]
    wanted = composite(name, *operands, **how)
    for operand, copy in zip(operands, kept, strict=True):
        np.testing.assert_array_equal(operand, copy)
        assert not np.shares_memory(wanted, operand)
    in_place = composite(name, *kept, reusable=frozenset({0}), **how)
    np.testing.assert_array_equal(in_place, wanted)


@pytest.mark.parametrize(("name", "operands", "how"), LIKE_INPUT)
def test_a_read_only_operand_is_never_written(
    name: str, operands: tuple[np.ndarray, ...], how: dict[str, Any]
) -> None:
    x = np.broadcast_to(operands[0][:1], operands[0].shape)
    found = composite(name, x, *operands[1:], reusable=frozenset({0}), **how)
    wanted = composite(name, x.copy(), *operands[1:], **how)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize(("name", "operands", "how"), LIKE_INPUT)
def test_strided_operands_give_the_same(
    name: str, operands: tuple[np.ndarray, ...], how: dict[str, Any]
) -> None:
    x = np.asfortranarray(operands[0])
    found = composite(name, x, *operands[1:], reusable=frozenset({0}), **how)
    np.testing.assert_allclose(found, composite(name, *operands, **how), rtol=1e-4)


# --- claims ---


def test_composites_in_other_dtypes_or_with_other_attributes_are_left_to_their_lowering() -> None:
    x, w = normal(2, 3), normal(3, 3)
    assert refusal("linear", x, w, layout="io") is None
    refused = [
        refusal("linear", x, w.astype(np.float16), layout="io"),
        refusal("linear", x, w, layout="ii"),
        refusal("linear", x, layout="io"),
        refusal("linear", x, w, w, w, layout="io"),
        refusal("gelu", x, approximate="sigmoid"),
        refusal("silu", x, beta=2.0),
        refusal("rms_norm", x, x[0]),
        refusal("sample", x),
    ]
    assert [isinstance(reason, str) for reason in refused] == [True] * 8
    assert refused[0] == "linear is taken whole for (f32, f32, f32) only"
    assert refused[1] == "linear is taken whole with layout one of ('io', 'oi') only"
    assert refused[5] == "silu is taken whole with [] only"
    assert refused[7] == "sample is left to its lowering"
