"""Every kernel family against NumPy in f64, at sizes around the vector and the tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opencl_runs import Array, close, normal, run, with_parameters, words_of

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture import call
from ptir.capture.creation import tensor
from ptir.errors import UnsupportedError
from ptir.ir.graph import freeze, source
from ptir.ir.program import Port, Program
from ptir.ops import OPS
from ptir.ops.record import Op, Sample
from ptir.passes.context import PassContext
from ptir.passes.pipeline import optimize
from ptir.weights.words import BITS


def test_every_sample_of_every_op_that_is_taken(opencl: Target) -> None:
    backend, device = opencl.backend, opencl.device
    context = PassContext(backend, device)
    samples: list[tuple[Op, Sample]] = []
    programs: list[tuple[Program, Options]] = []
    for op in OPS.values():
        for sample in op.samples[:2]:
            if sample.regions or not sample.operands:
                continue
            inputs = [source(a.type) for a in sample.operands]
            ports = tuple(Port(f"x{i}") for i in range(len(inputs)))
            results = op.multi(*inputs, **sample.attributes)
            program = Program(freeze(list(results), inputs), ports)
            try:
                programs.append((optimize(program, context), Options()))
            except UnsupportedError:
                continue
            samples.append((op, sample))
    assert len(samples) > 80
    # In one source file: to start a compiler for each would take most of the time.
    for (op, sample), made in zip(samples, backend.compile_all(programs, device), strict=True):
        given = made.run([backend.upload(a.numpy(), device) for a in sample.operands])
        for result, wanted in zip(given, sample.gives, strict=True):
            found, expected = backend.download(result, device), wanted.numpy()
            assert found.dtype == expected.dtype, op.name
            close(found.astype(np.float64), expected.astype(np.float64), 2e-6)


@pytest.mark.slice(3)
@pytest.mark.parametrize("size", [1, 15, 16, 17, 47, 160])
@pytest.mark.parametrize("rows", [1, 3])
def test_softmax_and_norms(opencl: Target, rows: int, size: int) -> None:
    x, w, b = normal(rows, size), normal(size, seed=1), normal(size, seed=2)
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    close(run(opencl, F.softmax, x), e / e.sum(1, keepdims=True))
    centred = wide - wide.mean(1, keepdims=True)
    norm = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * w + b
    found = run(opencl, lambda x, w, b: F.layer_norm(x, w, b, epsilon=1e-5), x, w, b)
    close(found, norm, 1e-4)


@pytest.mark.slice(3)
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2), (1, 2)])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_reductions_along_any_axes(opencl: Target, axes: tuple[int, ...], kind: str) -> None:
    x = normal(3, 18, 21) * 0.1 + 1
    found = run(opencl, lambda x: call("reduce", x, axes=axes, kind=kind), x)
    wanted = getattr(np, kind)(x.astype(np.float64), axis=axes)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_arg_max_takes_the_first_nan_then_the_first_greatest(opencl: Target, axis: int) -> None:
    x = np.round(normal(37, 53) * 2)
    x[5, 40], x[5, 50], x[30, 7] = np.nan, np.nan, np.nan
    found = run(opencl, lambda x: x.argmax(axis), x)
    assert np.array_equal(found, np.argmax(x, axis))


@pytest.mark.slice(3)
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 21])
@pytest.mark.parametrize("layout", ["io", "oi"])
def test_products_with_packed_weights(opencl: Target, rows: int, layout: str) -> None:
    weight, bias = normal(72, 86, seed=1), normal(86, seed=2)
    stored = weight if layout == "io" else np.ascontiguousarray(weight.T)
    x = normal(rows, 72)
    found = product(opencl, x, stored, bias, layout)
    close(found, np.maximum(x.astype(np.float64) @ weight + bias, 0), 1e-4)


def product(target: Target, x: Array, weight: Array, bias: Array, layout: str) -> Array:
    """relu(x @ weight + bias) with the weight as a parameter, which is what gets packed."""

    def body(x: Any, weight: Any, bias: Any) -> Any:
        return F.maximum(F.linear(x, weight, bias, layout=layout), 0.0)

    return with_parameters(target, body, x, weight, bias)


@pytest.mark.slice(3)
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 21])
@pytest.mark.parametrize("layout", ["io", "oi"])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("affine", [False, True])
def test_products_with_quantized_weights(
    opencl: Target, rows: int, layout: str, bits: int, affine: bool
) -> None:
    rng = np.random.default_rng(bits)
    inputs, outputs, group = 64, 50, 32 if bits > 3 else 16
    axis = 0 if layout == "io" else 1
    values = rng.integers(0, 2**bits, (inputs, outputs))
    words = words_of(values, bits)
    scale = (rng.standard_normal((inputs // group, outputs)) * 0.1).astype(np.float32)
    bias = rng.standard_normal(scale.shape).astype(np.float32) if affine else scale * -8
    dense = values * np.repeat(scale, group, 0) + np.repeat(bias, group, 0)
    x = normal(rows, inputs)

    def body(x: Any, words: Any, scale: Any, bias: Any) -> Any:
        given = bias if affine else scale * -8.0
        weight = F.dequantize(words, scale, given, bits=bits, group=group, axis=axis)
        return F.tanh(F.linear(x, weight, layout=layout))

    stored = [p if axis == 0 else np.ascontiguousarray(p.T) for p in (words, scale, bias)]
    found = with_parameters(opencl, body, x, *stored)
    close(found, np.tanh(x.astype(np.float64) @ dense), 2e-4)


@pytest.mark.slice(2)
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("affine", [False, True])
def test_products_with_weights_whose_values_are_places_in_a_table(
    opencl: Target, rows: int, bits: int, affine: bool
) -> None:
    """Any bytes, the least and the greatest among them; rows of the weight are looked up too."""
    rng = np.random.default_rng(bits)
    inputs, outputs, group = 64, 50, 32
    table = rng.permutation(256)[: 2**bits]
    table[:2] = (255, 0)
    places = rng.integers(0, 2**bits, (inputs, outputs))
    scale = (rng.standard_normal((inputs // group, outputs)) * 0.01).astype(np.float32)
    bias = rng.standard_normal(scale.shape).astype(np.float32) if affine else scale * -128
    dense = table[places] * np.repeat(scale, group, 0) + np.repeat(bias, group, 0)
    x, rows_of = normal(rows, inputs), np.array([0, 17, 49], np.int32)

    def body(x: Any, words: Any, scale: Any, bias: Any) -> Any:
        given = bias if affine else scale * -128.0
        how: dict[str, Any] = {"bits": bits, "group": group, "table": table.tolist()}
        weight = F.dequantize(words, scale, given, axis=1, **how)
        found = F.take(weight, F.constant(rows_of).astype("i32"), axis=0)
        return F.concat([F.linear(x, weight, layout="oi"), F.linear(x, found, layout="oi")], -1)

    stored = [np.ascontiguousarray(p.T) for p in (words_of(places, bits), scale, bias)]
    wanted = x.astype(np.float64) @ dense
    close(with_parameters(opencl, body, x, *stored), np.hstack([wanted, wanted[:, rows_of]]), 2e-4)


@pytest.mark.slice(2)
@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("layout", ["io", "oi"])
def test_scales_and_biases_that_are_inputs_are_not_read_beyond_their_end(
    opencl: Target, rows: int, layout: str
) -> None:
    """The last panel has more outputs than they have; only weights are filled up with zeros."""
    rng = np.random.default_rng(3)
    inputs, outputs, group = 64, 50, 32
    axis, shape = (0, (2, outputs)) if layout == "io" else (1, (outputs, 2))
    words = rng.integers(0, 2**32, (inputs // 4, outputs), np.uint32)
    values = words.view(np.uint8).reshape(inputs // 4, outputs, 4).transpose(0, 2, 1)
    x, scale, bias = normal(rows, inputs), normal(*shape), normal(*shape)

    def body(x: Any, scale: Any, bias: Any, words: Any) -> Any:
        weight = F.dequantize(words, scale, bias, bits=8, group=group, axis=axis)
        return F.linear(x, weight, layout=layout)

    stored = words if axis == 0 else np.ascontiguousarray(words.T)
    found = with_parameters(opencl, body, x, stored, beside=(scale, bias))
    by, start = (v.astype(np.float64) if axis == 0 else v.T for v in (scale, bias))
    dense = values.reshape(inputs, outputs) * np.repeat(by, group, 0)
    close(found, x @ (dense + np.repeat(start, group, 0)), 1e-5 * float(np.abs(dense).max()))


@pytest.mark.parametrize(
    ("letters", "a", "b"),
    [
        ("mk,kn->mn", (5, 33), (33, 40)),
        ("mk,nk->mn", (5, 33), (7, 33)),
        ("bmk,bkn->bmn", (2, 3, 17), (2, 17, 16)),
        ("bhqd,bhkd->bhqk", (2, 2, 3, 8), (2, 2, 5, 8)),
        ("km,kn->mn", (4, 3), (4, 19)),
    ],
)
def test_contractions(opencl: Target, letters: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right, _ = letters.replace("->", ",").split(",")
    batch = [c for c in left if c in right and c in letters.split("->")[1]]
    inner = [c for c in left if c in right and c not in batch]
    attributes = {
        "lhs_batch": tuple(left.index(c) for c in batch),
        "rhs_batch": tuple(right.index(c) for c in batch),
        "lhs_contract": tuple(left.index(c) for c in inner),
        "rhs_contract": tuple(right.index(c) for c in inner),
    }
    x, y = normal(*a), normal(*b, seed=1)
    found = run(opencl, lambda x, y: call("dot_general", x, y, **attributes), x, y)
    close(found, np.einsum(letters, x.astype(np.float64), y.astype(np.float64)), 1e-4)


def attention(q: Array, k: Array, v: Array, start: Array, length: Array, **how: Any) -> Array:
    """Attention in f64, query by query."""
    B, H, T, D = q.shape
    result = np.zeros(q.shape)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                g, here = h // (H // k.shape[1]), start[b] + t
                seen = [
                    j
                    for j in range(min(length[b], k.shape[2]))
                    if (not how.get("causal", True) or j <= here)
                    and (how.get("window") is None or j > here - how["window"])
                ]
                if not seen:
                    continue
                keys, values = (x[b, g, seen].astype(np.float64) for x in (k, v))
                scores = keys @ q[b, h, t].astype(np.float64) * D**-0.5
                if how.get("soft_cap"):
                    scores = np.tanh(scores / how["soft_cap"]) * how["soft_cap"]
                sink = how["sinks"][h] if "sinks" in how else -np.inf
                weights = np.exp(np.append(scores, sink) - max(scores.max(), sink))
                result[b, h, t] = (weights / weights.sum())[:-1] @ values
    return result


def recorded(how: dict[str, Any]) -> dict[str, Any]:
    """The options of attention with their arrays as constants of the program."""
    return {name: F.constant(x) if isinstance(x, np.ndarray) else x for name, x in how.items()}


@pytest.mark.slice(3)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"causal": False},
        {"window": 5},
        {"soft_cap": 1.5},
        {"window": 3, "soft_cap": 2.0},
        {"sinks": normal(4, seed=7) * 2, "window": 5},
    ],
)
@pytest.mark.parametrize(
    ("heads", "groups", "steps", "size"), [(4, 2, 5, 16), (2, 2, 1, 8), (3, 1, 21, 32)]
)
def test_attention(
    opencl: Target, heads: int, groups: int, steps: int, size: int, how: dict[str, Any]
) -> None:
    capacity = 40
    q = normal(2, heads, steps, size)
    k, v = normal(2, groups, capacity, size, seed=1), normal(2, groups, capacity, size, seed=2)
    start, length = np.array([0, 17], np.int32), np.array([steps, 17 + steps], np.int32)
    for row in range(2):
        k[row, :, length[row] :], v[row, :, length[row] :] = np.nan, np.nan

    def body(q: Any, k: Any, v: Any, start: Any, length: Any) -> Any:
        return F.attention(q, k, v, start=start, length=length, **recorded(how))

    how = how | ({"sinks": how["sinks"][:heads]} if "sinks" in how else {})
    found = run(opencl, body, q, k, v, start, length)
    close(found, attention(q, k, v, start, length, **how), 1e-4)


def test_a_query_that_sees_nothing_gives_zero(opencl: Target) -> None:
    q, k = normal(1, 1, 2, 16), np.full((1, 1, 8, 16), np.nan, np.float32)
    none = np.zeros(1, np.int32)
    body = lambda q, k, s, n: F.attention(q, k, k, start=s, length=n)  # noqa: E731
    assert not run(opencl, body, q, k, none, none).any()


def _without_combination(names: list[str]) -> list[str]:
    """The kernels of a program, without the one that brings parts of attention together."""
    pairs = zip(["", *names], names, strict=False)
    return [name for before, name in pairs if not before == name == "attention"]


@pytest.mark.slice(1)
@pytest.mark.parametrize("steps", [1, 3, 20])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_narrow_cache_is_read_as_it_lies(opencl: Target, dtype: str, steps: int) -> None:
    def body(q: Any, new: Any, cache: Any, start: Any, count: Any) -> Any:
        keys, values = (
            F.cache_update(old, each.astype(old.dtype), start, count)
            for old, each in ((cache[0], new), (cache[1], new * 2.0))
        )
        wide = (keys.astype("f32"), values.astype("f32"))
        return F.attention(q, *wide, start=start, length=start + count), (keys, values)

    def parts(dtype: str) -> tuple[list[str], Any, Any]:
        step = ptir.jit(body, donate=("cache",))
        stored = [tensor(x, backend=opencl).astype(dtype) for x in old]
        rows = [tensor(np.array([n], np.int32), backend=opencl) for n in (17, steps)]
        seen, (keys, values) = step(*(tensor(x, backend=opencl) for x in (q, new)), stored, *rows)
        (plan,) = step.plans
        explanation = plan.executable.explain()
        assert explanation is not None
        narrow = [x.astype("f32").numpy() for x in (keys, values)]
        return [part.name for part in explanation.parts], seen.numpy(), narrow

    q, new = normal(1, 4, steps, 32), normal(1, 2, steps, 32, seed=1)
    old = [normal(1, 2, 40, 32, seed=seed) for seed in (2, 3)]
    names, found, (keys, values) = parts(dtype)
    # Nothing widens a whole cache.
    assert _without_combination(names) == _without_combination(parts("f32")[0])
    at, after = np.array([17]), np.array([17 + steps])
    close(found, attention(q, keys, values, at, after), 1e-4)


@pytest.mark.parametrize("start", [-2, 0, 6, 9, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("count", [0, 2, 3, 100, -1])
def test_cache_update_writes_what_it_should_and_nothing_else(
    opencl: Target, start: int, count: int
) -> None:
    cache, new = normal(1, 2, 8, 20), normal(1, 2, 3, 20, seed=1)
    wanted = cache.copy()
    for t in range(3):
        if t < count and 0 <= start + t < 8:
            wanted[:, :, start + t] = new[:, :, t]
    rows = [np.array([n], np.int32) for n in (start, count)]
    assert np.array_equal(run(opencl, F.cache_update, cache, new, *rows), wanted)


@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize("packed", [True, False])
def test_what_needs_other_elements_of_a_contraction_is_no_part_of_its_kernel(
    opencl: Target, rows: int, packed: bool
) -> None:
    """Each element of the sum is of two places of the product."""
    x, weight = normal(rows, 48), normal(48, 40, seed=1)

    def body(x: Any, w: Any) -> Any:
        found = F.linear(x, w, layout="io")
        return found + call("reverse", found, axes=[1])

    found = with_parameters(opencl, body, x, weight) if packed else run(opencl, body, x, weight)
    wanted = x.astype(np.float64) @ weight.astype(np.float64)
    close(found, wanted + wanted[:, ::-1], 1e-5)
