"""Devices whose largest allocation is small: parameters in parts, an arena in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from test_opencl_families import close, normal, with_parameters

import ptir
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.plan import PLANS, plan_for
from ptir.errors import UnsupportedError, UsageError
from ptir.runtime.recorded import recorded_step
from ptir_backend_opencl.backend import OpenCLBackend
from ptir_backend_opencl.platforms import WITHOUT


@pytest.fixture
def small(opencl: Target, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """The device under test with a largest allocation of 64 KiB."""
    monkeypatch.setenv(WITHOUT, "largest=64KiB")
    backend = OpenCLBackend()
    PLANS.clear()
    yield Target(backend, backend.devices()[0])
    PLANS.clear()


def largest(target: Target) -> int:
    return target.backend.opened(target.device).device.traits.max_allocation_bytes  # type: ignore[attr-defined, no-any-return]


def test_the_mask_lowers_the_largest_allocation(small: Target) -> None:
    assert largest(small) == 64 << 10
    assert small.backend.capabilities(small.device)["largest_allocation_bytes"] == 64 << 10


@pytest.mark.parametrize("word", ["largest=", "largest=0", "largest=64MB", "largest=-1", "largest"])
def test_a_mask_that_is_no_size_is_refused(
    opencl: Target, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setenv(WITHOUT, word)
    with pytest.raises(UsageError, match=rf"{WITHOUT}.*{word}"):
        OpenCLBackend().opened(opencl.device)


@pytest.mark.slice(2)
@pytest.mark.parametrize("layout", ["io", "oi"])
@pytest.mark.parametrize("rows", [1, 12])
def test_a_product_with_a_weight_in_parts(small: Target, layout: str, rows: int) -> None:
    weight, bias, x = normal(72, 1000, seed=1), normal(1000, seed=2), normal(rows, 72)
    assert weight.nbytes > 4 * largest(small)
    stored = weight if layout == "io" else np.ascontiguousarray(weight.T)
    found = with_parameters(
        small, lambda x, w, b: F.tanh(F.linear(x, w, b, layout=layout)), x, stored, bias
    )
    close(found, np.tanh(x.astype(np.float64) @ weight + bias), 1e-4)


def test_rows_of_a_table_in_parts(small: Target) -> None:
    table, x = normal(3000, 16, seed=1), np.array([[0.0, 1023, 1024], [2999, 1500, 7]], np.float32)

    def body(x: Any, table: Any) -> Any:
        return F.embedding(table, F.cast(x, dtype=ptir.dtype("i32"))) * 2.0

    found = with_parameters(small, body, x, table)
    np.testing.assert_array_equal(found, table[x.astype(int)] * 2)


@pytest.mark.parametrize(("dtype", "quant"), [("f32", None), ("bf16", "int4")])
def test_gpt2_in_parts_gives_the_same_tokens(
    opencl: Target, small: Target, monkeypatch: pytest.MonkeyPatch, dtype: str, quant: str | None
) -> None:
    monkeypatch.setenv(WITHOUT, "largest=1MiB")
    tight = Target(OpenCLBackend(), small.device)
    found = {}
    for name, target in (("whole", opencl), ("parts", tight)):
        model = ptir.load_model("random:gpt2-tiny", backend=target, dtype=dtype, quant=quant)
        found[name] = model.generate([5, 100, 7, 9], max_tokens=6, temperature=0.0).token_ids
        plan = plan_for(recorded_step(model, 1, 1, 64).program, target)
        packed = [
            t.nbytes
            for p, t in zip(plan.optimized.ports, plan.optimized.inputs, strict=True)
            if p.kind == "parameter"
        ]
        if name == "parts":
            assert max(packed) <= 1 << 20 < sum(packed)
    assert found["parts"] == found["whole"]


def test_intermediates_lie_in_several_allocations(small: Target) -> None:
    x = normal(100, 120)

    def body(x: Any) -> Any:
        a, b, c = (x * n @ x.transpose(1, 0) for n in (1.0, 2.0, 3.0))
        return (a @ b.transpose(1, 0)) @ c, a @ x, b @ x

    target = [ptir.tensor(x, backend=small)]
    found = [each.numpy() for each in ptir.jit(body)(*target)]
    wide = x.astype(np.float64)
    meant = wide @ wide.T
    close(found[0] / 1e4, meant @ (2 * meant).T @ (3 * meant) / 1e4, 1e-3)
    close(found[1], meant @ wide, 1e-2)


def test_a_result_that_is_too_large_is_refused_by_name(small: Target) -> None:
    x = ptir.tensor(normal(100, 120), backend=small)
    words = r"the result of .*: f32\[120,200\] takes 96000 bytes"
    with pytest.raises(UnsupportedError, match=words):
        ptir.jit(lambda x: F.concat([x.transpose(1, 0)] * 2, axis=1) * 2.0)(x).numpy()
