"""Attention by matrix instructions: as exact as f32, whatever is seen, and faults are found."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from matrix_plants import COPIES, Plant, described, in_kernels, multiplied
from opencl_runs import Array, normal, run

from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.errors import DeviceError
from ptir_backend_cupy.matrices import MATRICES

pytestmark = [pytest.mark.usefixtures("built_anew"), pytest.mark.turns(2)]

BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)


def seen(position: int, length: int, capacity: int, causal: bool, window: int | None) -> list[int]:
    """The keys that a query at a position sees."""
    keys = range(max(0, min(length, capacity)))
    return [
        j
        for j in keys
        if (not causal or j <= position) and (window is None or j > position - window)
    ]


def attended(q: Array, k: Array, v: Array, start: Array, length: Array, how: Any) -> Array:
    """Attention in f64, query by query."""
    wide = [x.astype(np.float64) for x in (q, k, v)]
    result = np.zeros(q.shape)
    share = q.shape[1] // k.shape[1]
    scale = how.get("scale") or q.shape[3] ** -0.5
    for row, head, t in np.ndindex(*q.shape[:3]):
        window = how.get("window")
        at = seen(start[row] + t, length[row], k.shape[2], how.get("causal", True), window)
        if not at:
            continue
        with np.errstate(all="ignore"):
            scores = wide[1][row, head // share, at] @ wide[0][row, head, t] * scale
            if how.get("soft_cap"):
                scores = how["soft_cap"] * np.tanh(scores / how["soft_cap"])
            sink = how["sinks"][head] if "sinks" in how else -np.inf
            weights = np.exp(np.append(scores, sink) - max(scores.max(), sink))
            weights = (weights / weights.sum())[:-1]
            result[row, head, t] = weights @ wide[2][row, head // share, at]
    return result


def recorded(how: dict[str, Any]) -> dict[str, Any]:
    """The options of attention with their arrays as constants of the program."""
    return {name: F.constant(x) if isinstance(x, np.ndarray) else x for name, x in how.items()}


ATTENTION: Final[dict[str, tuple[tuple[int, ...], tuple[int, ...], list[int], dict[str, Any]]]] = {
    # batch, heads, steps, depth; key heads, capacity; starts
    "one block": ((1, 2, 16, 16), (2, 32), [0], {}),
    "grouped heads": ((2, 4, 9, 32), (2, 40), [3, 0], {}),
    "several blocks": ((1, 2, 70, 64), (1, 150), [60], {}),
    "a window": ((1, 2, 40, 32), (2, 100), [37], {"window": 21}),
    "no causality": ((1, 1, 33, 48), (1, 77), [10], {"causal": False}),
    "a soft cap": ((1, 2, 20, 16), (2, 33), [5], {"soft_cap": 2.0, "scale": 1.0}),
    "sinks": ((2, 4, 9, 32), (2, 40), [3, 0], {"sinks": normal(4, seed=7) * 3}),
    "large heads": ((1, 1, 40, 128), (1, 90), [30], {}),
}


@pytest.mark.slice(3)
@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_attention_over_narrow_keys_is_as_exact_as_f32(
    host: Target, texts: list[str], case: str, dtype: str
) -> None:
    (batch, heads, steps, depth), (groups, capacity), starts, how = ATTENTION[case]
    q = normal(batch, heads, steps, depth)
    kind = BF16 if dtype == "bf16" else F16
    k, v = (normal(batch, groups, capacity, depth, seed=n).astype(kind) for n in (1, 2))
    start = np.array(starts, np.int32)
    length = start + steps

    def body(q: Any, k: Any, v: Any, start: Any, length: Any) -> Any:
        keys, values = k.astype("f32"), v.astype("f32")
        return F.attention(q, keys, values, start=start, length=length, **recorded(how))

    found = run(host, body, q, k, v, start, length)
    wanted = attended(q, k, v, start, length, how)
    np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=3e-6)
    assert multiplied(texts)


@pytest.mark.parametrize("how", [{}, {"sinks": normal(2, seed=7)}])
def test_keys_and_values_that_are_not_finite_reach_those_who_see_them(
    host: Target, how: dict[str, Any]
) -> None:
    q, start = normal(1, 2, 40, 32), np.array([20], np.int32)
    k, v = (normal(1, 1, 70, 32, seed=n).astype(BF16) for n in (1, 2))
    k[0, 0, 45, 3], v[0, 0, 33, 7], v[0, 0, 50, 9], v[0, 0, 65] = np.inf, np.inf, np.nan, np.nan
    q[0, 1, 5, 2], k[0, 0, :, 2] = -np.inf, np.abs(k[0, 0, :, 2])
    k[0, 0, 4:8, 2] = 0.0
    length = start + 40

    def body(q: Any, k: Any, v: Any, start: Any, length: Any) -> Any:
        keys, values = k.astype("f32"), v.astype("f32")
        return F.attention(q, keys, values, start=start, length=length, **recorded(how))

    found = run(host, body, q, k, v, start, length)
    wanted = attended(q, k, v, start, length, how)
    assert np.isnan(wanted).any() and np.isinf(wanted).any() and np.isfinite(wanted).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


HEADS: Final[dict[str, Plant]] = {
    "right halves exchanged": described(right=((0, 4), (0, 0))),
    "rows of sums exchanged": described(sums=((8, 0), (8, 1), (0, 0), (0, 1))),
    "values not turned": described(load_matrix_transposed=MATRICES.load_matrix),
    "keys turned": described(load_matrix=MATRICES.load_matrix_transposed),
    "copies not waited for": described(async_wait=""),
    "no barrier behind copies": in_kernels(COPIES, "copies_done();"),
    "rows not checked": in_kernels(r" < 18\b", " < 64"),
    "greatest scores not exchanged": in_kernels(r"__shfl_xor_sync\(0xffffffffu, now0, 2\)",
                                                 "now0"),
    "weights not summed": in_kernels(r"__shfl_xor_sync\(0xffffffffu, total1, 1\)", "total1"),
    "sums of old keys kept": in_kernels(r"fma_of\((o\d_\d), keep\d, ", r"fma_of(\1, 1.0f, "),
}  # fmt: skip


def prompt(target: Target) -> None:
    """A prompt of grouped heads whose rows fill no block; raises where its attention is wrong."""
    start, length = np.array([40], np.int32), np.array([49], np.int32)
    q = normal(1, 2, 9, 32) * 3
    k, v = (normal(1, 1, 80, 32, seed=n).astype(BF16) for n in (1, 2))

    def body(q: Any, k: Any, v: Any, start: Any, length: Any) -> Any:
        return F.attention(q, k.astype("f32"), v.astype("f32"), start=start, length=length)

    found = run(target, body, q, k, v, start, length)
    np.testing.assert_allclose(found, attended(q, k, v, start, length, {}), rtol=3e-6, atol=3e-6)


@pytest.mark.slice(2)
@pytest.mark.parametrize("fault", HEADS)
def test_a_fault_planted_in_attention_is_caught(
    host: Target, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    prompt(host)
    PLANS.clear()
    made = HEADS[fault](monkeypatch)
    try:
        with pytest.raises((AssertionError, DeviceError)):
            prompt(host)
    finally:
        PLANS.clear()
    assert sum(made), "the mistake was made"
