"""What is left at run time of batch norm and of quantized weights when parameters are known."""

from __future__ import annotations

import numpy as np

import ptir.functional as F
from evaluation import evaluate
from ptir.capture import Tensor, lower
from ptir.ir.program import Port, Program
from ptir.passes import PassContext, optimize
from ptir.types import spec

SIZE = 6


def optimized(function, context: PassContext, *types) -> Program:
    """The program of ``function`` after the pipeline; all operands but the first are parameters."""
    block = lower(function, types, {})
    ports = [Port("x"), *(Port(f"p{i}", "parameter") for i in range(1, len(types)))]
    return optimize(Program(block, tuple(ports)), context)


def test_batch_norm_leaves_one_multiplication_and_one_addition(context: PassContext) -> None:
    vector = spec("f32", SIZE)
    types = (spec("f32", 2, 3, 3, SIZE), vector, vector, vector, vector)
    after = optimized(F.batch_norm, context, *types)
    left = [i.op for i in after.main.instructions]
    assert sorted(op for op in left if op != "broadcast_to") == ["add", "mul"]
    assert [port.kind for port in after.ports] == ["input", "parameter", "parameter"]
    assert [t.shape for t in after.main.inputs[1:]] == [(SIZE,), (SIZE,)]


def test_folded_batch_norm_computes_the_same(context: PassContext) -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=SIZE).astype(np.float32) for _ in range(4)]
    values[3] = np.abs(values[3]) + np.float32(0.5)
    x = rng.normal(size=(2, 3, SIZE)).astype(np.float32)
    vector = spec("f32", SIZE)
    after = optimized(F.batch_norm, context, spec("f32", 2, 3, SIZE), *[vector] * 4)
    named = {f"p{i}": value for i, value in enumerate(values, 1)}
    derived = [
        evaluate(d.block, [named[port.name] for port in d.ports])[0]
        for d in (context.derived[port.name] for port in after.ports[1:])
    ]
    weight, bias, mean, variance = (v.astype(np.float64) for v in values)
    wanted = (x - mean) / np.sqrt(variance + 1e-5) * weight + bias
    np.testing.assert_allclose(evaluate(after.main, [x, *derived])[0], wanted, atol=1e-5)


def test_quantized_weights_stay_packed(context: PassContext) -> None:
    def call(x: Tensor, words: Tensor, scale: Tensor, starts: Tensor) -> Tensor:
        return F.quantized_linear(x, words, scale, starts, bits=4, group=16)

    types = (spec("f32", 2, 64), spec("u32", 3, 8), spec("f32", 3, 4), spec("f32", 3, 4))
    after = optimized(call, context, *types)
    assert [i.op for i in after.main.instructions] == ["dequantize", "dot_general"]
    assert [port.name for port in after.ports] == ["x", "p1", "p2", "p3"]
