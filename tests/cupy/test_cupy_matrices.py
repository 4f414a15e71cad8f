"""Contractions by matrix instructions: as exact as f32, at every edge, and faults are found."""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest
from matrix_plants import COPIES, Plant, described, in_kernels, multiplied
from opencl_runs import Array, normal, run, with_parameters, words_of

from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture import call
from ptir.capture.plan import PLANS
from ptir.errors import DeviceError
from ptir.functional.define import internal_composite
from ptir.ops.rounded import PAIRS
from ptir.runtime import load_model
from ptir.switches import SCHEDULE
from ptir.types import F32
from ptir.weights.words import BITS
from ptir_backend_cupy.dialect import CudaC

pytestmark = [pytest.mark.usefixtures("built_anew"), pytest.mark.turns(2)]

BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
UNIT: Final = 2.0**-24
"""The unit roundoff of f32."""


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


@pytest.mark.slice(4)
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


@pytest.mark.slice(1)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_long_sums_of_one_sign_do_not_drift(host: Target, dtype: Any) -> None:
    """The instruction cuts where f32 rounds: each slice loses a little, the sum of slices not."""
    x, weight = np.abs(normal(64, 2048)), np.abs(normal(2048, 64, seed=1)).astype(dtype)
    wanted, _ = exact(x, weight)
    error = (product(host, x, weight) - wanted) / (UNIT * wanted)
    assert -2 < error.mean() < 0
    assert np.abs(error).max() < 16


@pytest.mark.slice(1)
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


@pytest.mark.slice(1)
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


@pytest.mark.slice(4)
@pytest.mark.parametrize("rows", [9, 17, 40])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(("group", "zero"), [(32, -8), (64, -3), (128, 0), (16, -8), (32, None)])
@pytest.mark.parametrize("layout", ["io", "oi"])
def test_products_of_quantized_weights(
    host: Target, texts: list[str], rows: int, bits: int, group: int, zero: int | None, layout: str
) -> None:
    """Whole numbers are exact in bf16: scales come later. Other biases are left to f32."""
    inputs, outputs = 256, 50
    rng, axis = np.random.default_rng(bits), 0 if layout == "io" else 1
    values = rng.integers(0, 2**bits, (inputs, outputs)).astype(np.uint32)
    words = words_of(values, bits)
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


@pytest.mark.slice(2)
@pytest.mark.parametrize("rows", [1, 8, 9, 17, 70])
@pytest.mark.parametrize("schedule", ["coop", "serial"])
def test_products_of_rounded_activations(
    host: Target, texts: list[str], rows: int, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SCHEDULE, schedule)
    x, weight = normal(rows, 72), (normal(72, 86, seed=1) * 0.1).astype(BF16)

    def body(x: Any, w: Any) -> Any:
        return internal_composite(PAIRS, (x * 2.0).astype("bf16"), w, layout="io")[0]

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


@pytest.mark.slice(4)
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


FAULTS: Final[dict[str, Plant]] = {
    "left rows exchanged": described(left=((8, 0), (0, 0), (8, 4), (0, 4))),
    "left halves exchanged": described(left=((0, 4), (8, 4), (0, 0), (8, 0))),
    "right halves exchanged": described(right=((0, 4), (0, 0))),
    "columns of sums exchanged": described(sums=((0, 1), (0, 0), (8, 1), (8, 0))),
    "rows of sums exchanged": described(sums=((8, 0), (8, 1), (0, 0), (0, 1))),
    "a fragment of the next column": described(right=((1, 0), (1, 4))),
    "copies not waited for": described(async_wait=""),
    "no barrier behind copies": in_kernels(COPIES, "copies_done();"),
    "rows not checked": in_kernels(r" < 17\b", " < 64"),
    "outputs not checked": in_kernels(r" < 86\b", " < 128"),
    "depth not checked": in_kernels(r" < 36\b", " < 64"),
}  # fmt: skip


@pytest.mark.slice(3)
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
