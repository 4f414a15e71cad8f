"""Contractions by matrix instructions: as exact as f32, at every edge, and faults are found."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from opencl_runs import Array, normal, run, with_parameters

from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture import call
from ptir.capture.plan import PLANS
from ptir.errors import DeviceError
from ptir.functional.rounded import part
from ptir.ops.rounded import PAIRS
from ptir.runtime import load_model
from ptir.switches import SCHEDULE
from ptir.types import F32
from ptir_backend_cupy import dialect
from ptir_backend_cupy.dialect import CudaC
from ptir_backend_cupy.matrices import MATRICES

pytestmark = pytest.mark.usefixtures("built_anew")

BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
UNIT: Final = 2.0**-24
"""The unit roundoff of f32."""


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The bodies of all kernels of groups that are written."""
    PLANS.clear()
    grouped, seen = CudaC.grouped, []

    def noting(self: CudaC, name: str, arguments: Any, members: int, body: str) -> str:
        seen.append(body)
        return grouped(self, name, arguments, members, body)

    monkeypatch.setattr(CudaC, "grouped", noting)
    return seen


def multiplied(texts: list[str]) -> bool:
    """Whether kernels have the instruction."""
    return any("multiply_" in text for text in texts)


def exact(x: Array, weight: Array) -> tuple[Array, Array]:
    """The product in f64, and the sums of magnitudes."""
    wide = x.astype(np.float64), weight.astype(np.float64)
    with np.errstate(all="ignore"):
        return wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])


def within(found: Array, wanted: Array, magnitude: Array, depth: int, unit: float = 0.0) -> None:
    """What conformance asks of sums: bounds of each, and of the mean error of all."""
    error = found.astype(np.float64) - wanted
    own = np.abs(wanted) * unit
    assert (np.abs(error) <= depth * UNIT * magnitude * 1.001 + own + 1e-300).all()
    if not unit:
        mean = (error / (UNIT * magnitude)).mean()
        assert abs(mean) <= 2 * np.sqrt(depth / found.size), mean


def product(target: Target, x: Array, weight: Array) -> Array:
    """x @ weight, the weight being a parameter, which is packed."""
    return with_parameters(
        target, lambda x, w: F.linear(x, w.astype("f32"), layout="io"), x, weight
    )


@pytest.mark.parametrize("rows", [9, 16, 17, 33, 64, 70])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 32), (34, 40), (72, 86), (160, 130)])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_products_of_f32_are_as_exact_as_f32(
    host: Target, texts: list[str], rows: int, inputs: int, outputs: int, dtype: Any
) -> None:
    x = normal(rows, inputs) * np.exp2(normal(rows, 1, seed=3) * 20)
    weight = (normal(inputs, outputs, seed=1) * 0.1).astype(dtype)
    within(product(host, x, weight), *exact(x, weight), inputs)
    assert multiplied(texts)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_long_sums_of_one_sign_do_not_drift(host: Target, dtype: Any) -> None:
    """The instruction cuts where f32 rounds: each slice loses a little, the sum of slices not."""
    x, weight = np.abs(normal(64, 2048)), np.abs(normal(2048, 64, seed=1)).astype(dtype)
    wanted, _ = exact(x, weight)
    error = (product(host, x, weight) - wanted) / (UNIT * wanted)
    assert -2 < error.mean() < 0
    assert np.abs(error).max() < 16


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_subnormal_and_largest_activations_lose_nothing(host: Target, dtype: Any) -> None:
    exponents = np.array([-149, -140, -133, -126, -120, -110, 0, 100, 127])
    x = np.zeros((len(exponents), 32), np.float32)
    x[:, 5] = np.ldexp(np.float32(1 + 2**-1 + 2**-11 + 2**-23), exponents)
    weight = np.zeros((32, 32), dtype)
    weight[5] = [0.5, 1, -1, 0.75] * 8
    wanted = exact(x, weight)[0]
    found = product(host, x, weight).astype(np.float64)
    assert (np.abs(found - wanted) <= np.maximum(np.abs(wanted) * 2 * UNIT, 2.0**-150)).all()


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_what_is_not_finite_comes_out_as_in_f32(host: Target, dtype: Any) -> None:
    x, weight = normal(20, 40), normal(40, 48, seed=1).astype(dtype)
    x[2, 3], x[4, 5], x[6, 7], x[8, :] = np.inf, -np.inf, np.nan, 1.0
    weight[9, 10], weight[11, 12] = np.inf, np.nan
    x[10, 9] = 0.0
    wanted, _ = exact(x, weight)
    found = product(host, x, weight)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    special = ~np.isfinite(wanted)
    assert np.array_equal(found[special], wanted[special], equal_nan=True)
    np.testing.assert_allclose(found[~special], wanted[~special], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [9, 17, 40])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("group", "zero"), [(32, -8), (64, -3), (128, 0), (16, -8), (32, None)])
@pytest.mark.parametrize("layout", ["io", "oi"])
def test_products_of_quantized_weights(
    host: Target, texts: list[str], rows: int, bits: int, group: int, zero: int | None, layout: str
) -> None:
    """Whole numbers are exact in bf16: scales come later. Other biases are left to f32."""
    inputs, outputs, per = 256, 50, 32 // bits
    rng, axis = np.random.default_rng(bits), 0 if layout == "io" else 1
    values = rng.integers(0, 2**bits, (inputs, outputs)).astype(np.uint32)
    shifts = (np.arange(per) * bits).astype(np.uint32).reshape(1, per, 1)
    words = (values.reshape(-1, per, outputs) << shifts).sum(1, dtype=np.uint32)
    scale = normal(inputs // group, outputs) * 0.1
    bias = normal(*scale.shape, seed=1) if zero is None else scale * np.float32(zero)
    dense = values * np.repeat(scale, group, 0).astype(np.float64) + np.repeat(bias, group, 0)
    x = normal(rows, inputs)

    def body(x: Any, words: Any, scale: Any, bias: Any) -> Any:
        given = bias if zero is None else scale * float(zero)
        weight = F.dequantize(words, scale, given, bits=bits, group=group, axis=axis)
        return F.linear(x, weight, layout=layout)

    stored = [p if axis == 0 else np.ascontiguousarray(p.T) for p in (words, scale, bias)]
    found = with_parameters(host, body, x, *stored)
    sizes = (values + abs(zero or 0)) * np.repeat(np.abs(scale), group, 0)
    sizes = sizes.astype(np.float64) + np.repeat(np.abs(bias), group, 0)
    within(found, x.astype(np.float64) @ dense, np.abs(x).astype(np.float64) @ sizes, inputs)
    assert multiplied(texts) == (zero is not None and group % 32 == 0)


@pytest.mark.parametrize("rows", [1, 8, 9, 17, 70])
@pytest.mark.parametrize("schedule", ["coop", "serial"])
def test_products_of_rounded_activations(
    host: Target, texts: list[str], rows: int, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEDULE, schedule)
    x, weight = normal(rows, 72), (normal(72, 86, seed=1) * 0.1).astype(BF16)

    def body(x: Any, w: Any) -> Any:
        return part(PAIRS, (x * 2.0).astype("bf16"), w, layout="io")[0]

    found = with_parameters(host, body, x, weight)
    within(found, *exact((x * np.float32(2)).astype(BF16), weight), 72)
    assert multiplied(texts) == (schedule == "coop" and rows > 8)
    assert bool(texts) == (schedule == "coop")


def test_fast_takes_the_products_of_bf16(host: Target) -> None:
    exact_, fast = (
        load_model("demo", backend=host, dtype="bf16", fast=fast).forward("Before we proceed")
        for fast in (False, True)
    )
    lost = np.abs(fast - exact_).max() / np.abs(exact_).max()
    assert 1e-4 < lost < 4e-3, "activations are rounded, and no more"


CONTRACTIONS: Final[dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]] = {
    "rows and columns": ((33, 40), (40, 50), {"lhs_contract": (1,), "rhs_contract": (0,)}),
    "rows and rows": ((33, 40), (50, 40), {"lhs_contract": (1,), "rhs_contract": (1,)}),
    "columns and columns": ((40, 36), (40, 52), {"lhs_contract": (0,), "rhs_contract": (0,)}),
    "pairs that are no words": ((17, 22), (22, 21), {"lhs_contract": (1,), "rhs_contract": (0,)}),
    "batches": ((3, 20, 34), (3, 34, 70), {"lhs_contract": (2,), "rhs_contract": (1,),
                                           "lhs_batch": (0,), "rhs_batch": (0,)}),
    "two axes": ((19, 3, 16), (3, 16, 24), {"lhs_contract": (1, 2), "rhs_contract": (0, 1)}),
    "axes that change places": ((19, 3, 4), (4, 3, 24), {"lhs_contract": (1, 2),
                                                         "rhs_contract": (1, 0)}),
    "a single row": ((1, 64), (64, 70), {"lhs_contract": (1,), "rhs_contract": (0,)}),
}  # fmt: skip


@pytest.mark.parametrize("shape", CONTRACTIONS)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("widened", [False, True])
def test_contractions_of_16_bits(
    host: Target, texts: list[str], shape: str, dtype: Any, widened: bool
) -> None:
    left, right, how = CONTRACTIONS[shape]
    x, y = normal(*left).astype(dtype), normal(*right, seed=1).astype(dtype)
    result = {"dtype": F32} if widened else {}
    found = run(host, lambda x, y: call("dot_general", x, y, **how, **result), x, y)
    assert found.dtype == (np.float32 if widened else dtype)
    names = _einsum(how, len(left), len(right))
    wide = x.astype(np.float64), y.astype(np.float64)
    wanted, size = np.einsum(names, *wide), np.einsum(names, *map(np.abs, wide))
    depth = int(np.prod([left[a] for a in how["lhs_contract"]]))
    unit = 0.0 if widened else 2.0**-8 if dtype == BF16 else 2.0**-11
    within(found, wanted, size, depth, unit)
    assert multiplied(texts)


def _einsum(how: dict[str, Any], left: int, right: int) -> str:
    names = [chr(97 + n) for n in range(left)]
    others = [chr(110 + n) for n in range(right)]
    for key in ("contract", "batch"):
        for a, b in zip(how.get(f"lhs_{key}", ()), how.get(f"rhs_{key}", ()), strict=True):
            others[b] = names[a]
    summed = {names[a] for a in how["lhs_contract"]}
    batch = [names[a] for a in how.get("lhs_batch", ())]
    free = [n for n in (*names, *others) if n not in summed and n not in batch]
    return f"{''.join(names)},{''.join(others)}->{''.join((*batch, *free))}"


def test_f32_and_odd_depths_have_no_instruction(host: Target, texts: list[str]) -> None:
    how = {"lhs_contract": (1,), "rhs_contract": (0,)}
    for dtype, depth in ((np.dtype(np.float32), 32), (BF16, 33)):
        x, y = normal(20, depth).astype(dtype), normal(depth, 20).astype(dtype)
        run(host, lambda x, y: call("dot_general", x, y, **how, dtype=None), x, y)
    assert texts and not multiplied(texts)


def test_a_device_without_the_instruction_gets_none(
    host: Target, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = host.backend.opened(host.device).device  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "dialect", CudaC(matrices=False))
    assert "mma.sync" not in device.dialect.prelude()
    x, weight = normal(20, 64), normal(64, 64, seed=1).astype(BF16)
    within(product(host, x, weight), *exact(x, weight), 64)
    assert texts and not multiplied(texts)


Plant = Callable[[pytest.MonkeyPatch], list[int]]
"""Plants a mistake; the list holds, for each place where it could be, how often it was made."""


def _matrices(**wrong: Any) -> Plant:
    """An instruction that is described with a mistake."""

    def plant(patch: pytest.MonkeyPatch) -> list[int]:
        described = replace(dialect.TOGETHER, matrices=replace(MATRICES, **wrong))
        patch.setattr(CudaC, "together", described)
        return [1]

    return plant


def _in_kernels(old: str, new: str) -> Plant:
    """A mistake in the text of every kernel of groups."""

    def plant(patch: pytest.MonkeyPatch) -> list[int]:
        grouped, made = CudaC.grouped, [0]

        def wrong(self: CudaC, name: str, arguments: Any, members: int, body: str) -> str:
            changed, times = re.subn(old, new, body)
            made.append(times)
            return grouped(self, name, arguments, members, changed)

        patch.setattr(CudaC, "grouped", wrong)
        return made

    return plant


COPIES: Final = r"copies_done\(\);\s*__syncthreads\(\);"

FAULTS: Final[dict[str, Plant]] = {
    "left rows exchanged": _matrices(left=((8, 0), (0, 0), (8, 4), (0, 4))),
    "left halves exchanged": _matrices(left=((0, 4), (8, 4), (0, 0), (8, 0))),
    "right halves exchanged": _matrices(right=((0, 4), (0, 0))),
    "columns of sums exchanged": _matrices(sums=((0, 1), (0, 0), (8, 1), (8, 0))),
    "rows of sums exchanged": _matrices(sums=((8, 0), (8, 1), (0, 0), (0, 1))),
    "a fragment of the next column": _matrices(right=((1, 0), (1, 4))),
    "copies not waited for": _matrices(copied=""),
    "no barrier behind copies": _in_kernels(COPIES, "copies_done();"),
    "rows not checked": _in_kernels(r" < 17\b", " < 64"),
    "outputs not checked": _in_kernels(r" < 86\b", " < 128"),
    "depth not checked": _in_kernels(r" < 36\b", " < 64"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(
    host: Target, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    x, weight = normal(17, 72), normal(72, 86, seed=1).astype(BF16)
    within(product(host, x, weight), *exact(x, weight), 72)
    PLANS.clear()
    made = FAULTS[fault](monkeypatch)
    try:
        with pytest.raises((AssertionError, DeviceError)):
            within(product(host, x, weight), *exact(x, weight), 72)
    finally:
        PLANS.clear()
    assert sum(made), "the mistake was made"


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
            weights = np.exp(scores - scores.max())
            result[row, head, t] = weights / weights.sum() @ wide[2][row, head // share, at]
    return result


ATTENTION: Final[dict[str, tuple[tuple[int, ...], tuple[int, ...], list[int], dict[str, Any]]]] = {
    # batch, heads, steps, depth; key heads, capacity; starts
    "one block": ((1, 2, 16, 16), (2, 32), [0], {}),
    "grouped heads": ((2, 4, 9, 32), (2, 40), [3, 0], {}),
    "several blocks": ((1, 2, 70, 64), (1, 150), [60], {}),
    "a window": ((1, 2, 40, 32), (2, 100), [37], {"window": 21}),
    "no causality": ((1, 1, 33, 48), (1, 77), [10], {"causal": False}),
    "a soft cap": ((1, 2, 20, 16), (2, 33), [5], {"soft_cap": 2.0, "scale": 1.0}),
    "large heads": ((1, 1, 40, 128), (1, 90), [30], {}),
}


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
        return F.attention(q, k.astype("f32"), v.astype("f32"), start=start, length=length, **how)

    found = run(host, body, q, k, v, start, length)
    wanted = attended(q, k, v, start, length, how)
    np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=3e-6)
    assert multiplied(texts)


def test_keys_and_values_that_are_not_finite_reach_those_who_see_them(host: Target) -> None:
    q, start = normal(1, 2, 40, 32), np.array([20], np.int32)
    k, v = (normal(1, 1, 70, 32, seed=n).astype(BF16) for n in (1, 2))
    k[0, 0, 45, 3], v[0, 0, 33, 7], v[0, 0, 50, 9], v[0, 0, 65] = np.inf, np.inf, np.nan, np.nan
    q[0, 1, 5, 2], k[0, 0, :, 2] = -np.inf, np.abs(k[0, 0, :, 2])
    k[0, 0, 4:8, 2] = 0.0
    length = start + 40

    def body(q: Any, k: Any, v: Any, start: Any, length: Any) -> Any:
        return F.attention(q, k.astype("f32"), v.astype("f32"), start=start, length=length)

    found = run(host, body, q, k, v, start, length)
    wanted = attended(q, k, v, start, length, {})
    assert np.isnan(wanted).any() and np.isinf(wanted).any() and np.isfinite(wanted).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


HEADS: Final[dict[str, Plant]] = {
    "right halves exchanged": _matrices(right=((0, 4), (0, 0))),
    "rows of sums exchanged": _matrices(sums=((8, 0), (8, 1), (0, 0), (0, 1))),
    "values not turned": _matrices(gather_across=MATRICES.gather),
    "keys turned": _matrices(gather=MATRICES.gather_across),
    "copies not waited for": _matrices(copied=""),
    "no barrier behind copies": _in_kernels(COPIES, "copies_done();"),
    "rows not checked": _in_kernels(r" < 18\b", " < 64"),
    "greatest scores not exchanged": _in_kernels(r"__shfl_xor_sync\(0xffffffffu, now0, 2\)",
                                                 "now0"),
    "weights not summed": _in_kernels(r"__shfl_xor_sync\(0xffffffffu, total1, 1\)", "total1"),
    "sums of old keys kept": _in_kernels(r"fma_of\((o\d_\d), keep\d, ", r"fma_of(\1, 1.0f, "),
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
