"""Quantized weights end to end on the reference backend, and on one that has no dequantize."""

from __future__ import annotations

import numpy as np
import pytest
from composite_calls import DEVICE

import ptir
import ptir.functional as F
from ptir.backend import Device, OpQuery, Options
from ptir.capture import lower
from ptir.ir.program import Port, Program
from ptir.passes import PassContext, optimize
from ptir.types import spec
from ptir.weights.words import BITS
from ptir_backend_ref import backend
from ptir_backend_ref.backend import RefBackend

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("bits", BITS)
def test_a_weight_is_packed_and_multiplied_on_the_backend(bits: int) -> None:
    weight, x, bias = (
        RANDOM.standard_normal(s).astype(np.float32) for s in ((24, 64), (3, 64), 24)
    )
    how = {"bits": bits, "group": 32}
    stored = ptir.tensor(weight, backend="ref")
    scale, least = F.affine_range(stored, **how)
    words = F.quantize(stored, scale, least, **how)
    given = (ptir.tensor(x, backend="ref"), words, scale, least, ptir.tensor(bias, backend="ref"))
    found = F.quantized_linear(*given, **how).numpy()
    step = np.repeat(scale.numpy().astype(float), 32, axis=1)
    low = np.repeat(least.numpy().astype(float), 32, axis=1)
    rounded = np.rint((weight - low) / step) * step + low
    np.testing.assert_allclose(found, x.astype(float) @ rounded.T + bias, atol=2e-5)
    assert words.shape == (24, 2 * bits)


class WithoutDequantize(RefBackend):
    """The reference backend, but for one op."""

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        return "not here" if query.op == "dequantize" else super().refusal(query, device)


@pytest.mark.parametrize("bits", BITS)
def test_a_backend_without_dequantize_computes_the_same(bits: int) -> None:
    words = RANDOM.integers(0, 2**32, (6, 2 * bits), dtype=np.uint32)
    scale, start = (RANDOM.standard_normal((6, 4)).astype(np.float32) for _ in range(2))
    types = (spec("u32", 6, 2 * bits), spec("f32", 6, 4), spec("f32", 6, 4))
    block = lower(lambda *given: F.dequantize(*given, bits=bits, group=16), types, {})
    program = Program(block, (Port("words"), Port("scale"), Port("start")))
    results = []
    for target in (backend, WithoutDequantize()):
        plan = optimize(program, PassContext(target, DEVICE))
        names = {i.op for i in plan.main.instructions}
        assert ("dequantize" in names) == (target is backend)
        run = target.compile(plan, DEVICE, Options()).run
        results.append(run([words, scale, start])[0])
    assert results[0].tobytes() == results[1].tobytes() and np.isfinite(results[0]).all()
