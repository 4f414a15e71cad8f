"""Bounds must hold whatever a backend may answer, and must refuse what it may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from ptir import functional as F
from ptir.capture import Tensor, call, lower, run_program
from ptir.ir.program import Block, Port, Program
from ptir.ops.record import OPS
from ptir.types import DTYPES, TensorType, dtype_of
from ptir_testsuite.witnesses.enclosure import enclose, evaluate
from ptir_testsuite.witnesses.grade import disagreement
from ptir_testsuite.witnesses.rules import RULES
from ptir_testsuite.witnesses.spans import Span, Unbounded
from running import REF

RNG = np.random.default_rng(7)


def f32(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def block_of(function: Callable[..., Any], *arrays: Any) -> Block:
    return lower(function, [TensorType(dtype_of(a), a.shape) for a in arrays], {})


def bounds(function: Callable[..., Any], *arrays: Any) -> tuple[Span, bool]:
    (span,), decided = enclose(block_of(function, *arrays), list(arrays))
    return span, decided


def on_reference(function: Callable[..., Any], *arrays: Any) -> Any:
    names = [f"x{i}" for i in range(len(arrays))]
    program = Program(block_of(function, *arrays), tuple(map(Port, names)))
    return run_program(program, dict(zip(names, arrays, strict=True)), REF)[0]


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, w, b)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.attention(q, k, v, causal=True)


def mixture(x: Tensor, y: Tensor) -> Tensor:
    return F.where(x < y, F.tanh(x * y - 1.0), F.sqrt(F.abs(x / (F.exp(y) + 1.0))))


PROGRAMS = {
    "softmax": (lambda x: F.softmax(x), [f32(4, 9)]),
    "layer_norm": (layer_norm, [f32(3, 8), f32(8), f32(8)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, w, epsilon=1e-5), [f32(3, 8), f32(8)]),
    "gelu": (lambda x: F.gelu(x), [f32(50)]),
    "attention": (attention, [f32(1, 2, 3, 4), f32(1, 2, 3, 4), f32(1, 2, 3, 4)]),
    "matmul": (lambda a, b: a @ b, [f32(3, 30), f32(30, 4)]),
    "mean": (lambda x: x.mean(axis=1), [f32(5, 40)]),
    "mixture": (mixture, [f32(60), f32(60)]),
    "waves": (lambda x: F.sin(x * 3.0) * F.cos(x) - F.log1p(x * x), [f32(60)]),
    "powers": (lambda x: call("pow", F.abs(x), F.abs(x)) / (x * x + 1.0), [f32(60)]),
    "product": (lambda x: call("reduce", x, axes=(0,), kind="prod"), [f32(6, 3)]),
    "ordered": (lambda x: call("top_k", F.exp(x), k=2), [f32(4, 6)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_reference_lies_inside_and_the_bounds_are_tight(name):
    function, arrays = PROGRAMS[name]
    span, decided = bounds(function, *arrays)
    found = on_reference(function, *arrays).astype(np.float64)
    assert not decided
    assert np.all((span.low <= found) & (found <= span.high))
    size = np.max(np.abs(found))
    assert 0 < np.max(span.high - span.low) < 4e-5 * size


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_value_in_double_precision_lies_inside(name):
    function, arrays = PROGRAMS[name]
    span, _ = bounds(function, *arrays)
    wide = [a.astype(np.float64) for a in arrays]
    true = evaluate(block_of(function, *arrays), wide)[0]  # f64 operands, so f64 references
    assert true.dtype == np.float64
    assert np.all((span.low <= true) & (true <= span.high))


UNARY = ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "erf")


@pytest.mark.parametrize("name", UNARY)
def test_one_op_may_err_by_its_class_and_no_more(name):
    x = np.abs(f32(200)) + np.float32(0.01)
    span, _ = bounds(lambda t: call(name, t), x)
    function = {"expm1": mpmath.expm1, "log1p": lambda v: mpmath.log(1 + v), "erf": mpmath.erf}
    function |= {"rsqrt": lambda v: 1 / mpmath.sqrt(v), "reciprocal": lambda v: 1 / v}
    true = np.array([float(function.get(name, getattr(mpmath, name, None))(float(v))) for v in x])
    allowed = float(_class_of(name))
    step = np.spacing(np.abs(true).astype(np.float32)).astype(np.float64)
    for sign in (-1, 1):
        near, far = true + sign * 0.99 * allowed * step, true + sign * 2.1 * allowed * step
        assert np.all((span.low <= near) & (near <= span.high))
        assert np.all((span.low > far) | (far > span.high))


def _class_of(name: str) -> str:
    return OPS[name].accuracy_of(DTYPES["f32"]).rpartition(":")[2]


def test_every_op_that_rounds_has_a_rule():
    rounding = {name for name, op in OPS.items() if op.accuracy != "exact" and op.operands}
    assert rounding <= set(RULES)


def test_exact_programs_and_single_roundings_leave_one_result():
    x, y = f32(64), f32(64)  # of a few, all sums may happen to be exact
    assert bounds(lambda a, b: F.maximum(a, -b), x, y)[1]
    assert bounds(lambda a, b: F.maximum(a + b, -b), x, y)[1]
    assert not bounds(lambda a, b: a + b + b, x, y)[1]
    assert not bounds(lambda a, b: F.exp(a), x, y)[1]


def test_integers_are_exact_beyond_float64():
    x = np.array([2**62 + 1, -(2**63)], np.int64)
    span, decided = bounds(lambda t: t + t, x)
    assert decided and span.exact
    assert span.low.tolist() == [-(2**63) + 2, 0]


def test_a_choice_that_rounding_may_turn_stays_open():
    x = np.array([0.0, 1.0], np.float32)
    span, _ = bounds(lambda t: F.where(F.exp(t) < 1.0, -5.0, 7.0), x)
    assert (span.low.tolist(), span.high.tolist()) == ([-5, 7], [7, 7])


def test_correctly_rounded_ops_alone_lead_to_one_result_which_must_be_met():
    x, y = f32(50), f32(50)

    def chain(a: Tensor, b: Tensor) -> Tensor:
        return F.where(a * b + a < b * 3.0, a - b * b, b + a * a)

    span, decided = bounds(chain, x, y)
    found = on_reference(chain, x, y)
    assert not decided and span.native is not None
    assert disagreement(found, found, span) == ""
    off = np.nextafter(found, np.float32(9))
    assert "outside the enclosure" in disagreement(off, found, span)
    assert disagreement(found, off, span) == ""


def test_rounding_to_whole_numbers_forgets_errors():
    x = f32(20) * 10
    span, _ = bounds(lambda t: F.floor(F.exp(t) + 0.3).astype("i32"), np.minimum(x, 5))
    assert span.exact


def test_a_place_that_depends_on_a_rounded_value_has_no_bound():
    x = np.array([1.0, 2.0, 3.0], np.float32)

    def taken(t: Tensor) -> Tensor:
        return F.take(t, F.where(F.exp(t * 0.0) * 1.0 < 1.0, 0, 1))

    with pytest.raises(Unbounded, match="take at a position"):
        bounds(taken, x)


def test_overflow_and_nan_follow_the_dtype():
    x = np.array([88.0, 89.0, 200.0, np.nan, -np.inf], np.float32)
    span, _ = bounds(lambda t: F.exp(t), x)
    assert np.isfinite(span.high[0]) and np.isinf(span.low[1:3]).all()
    assert np.isnan(span.low[3]) and np.isnan(span.high[3])
    assert span.low[4] <= 0 <= span.high[4]


# --- grading ---

ONE = np.array([1.0], np.float32)


def grade(found: Any, expected: Any, low: Any = None, high: Any = None) -> str:
    span = None if low is None else Span(np.array(low, float), np.array(high, float))
    return disagreement(np.array(found, np.float32), np.array(expected, np.float32), span)


@pytest.mark.parametrize(
    ("found", "expected"),
    [([0.0], [-0.0]), ([np.nan], [1.0]), ([np.inf], [-np.inf]), ([1.0], [1.0000001])],
)
def test_equal_means_every_bit(found, expected):
    assert "must be equal" in grade(found, expected)
    assert grade(found, found) == grade(expected, expected) == ""


def test_nan_and_infinities_come_before_any_bound():
    nan, inf = np.nan, np.inf
    assert grade([nan, inf], [nan, inf], [nan, 1e30], [nan, inf]) == ""
    assert "outside the enclosure" in grade([nan, 1.0], [nan, 1.0], [-1e30, 0], [1e30, 2])
    assert "the witness is outside" in grade([1.0], [nan], [-1e30], [1e30])
    assert "the witness is outside" in grade([1e30], [inf], [0.0], [inf])
    assert "outside the enclosure" in grade([1.0], [nan], [nan], [nan])


def test_the_result_is_held_to_the_bounds_and_the_witness_to_twice_their_width():
    assert grade([1.5], [2.9], [1.0], [2.0]) == ""
    assert "the witness is outside" in grade([1.5], [3.1], [1.0], [2.0])
    assert "outside the enclosure" in grade([2.1], [2.0], [1.0], [2.0])


def test_types_are_compared_first():
    assert disagreement(ONE, ONE.astype(np.float64), None) == "gave float32, expected float64"
    assert disagreement(ONE, ONE.reshape(1, 1), None) == "gave shape [1], expected [1, 1]"


def test_a_maximum_that_drops_nan_is_noticed():
    x, y = (np.array(v, np.float32) for v in ([np.nan, 1.0, -0.0], [2.0, np.nan, 0.0]))
    right = on_reference(lambda a, b: F.maximum(a, b), x, y)
    expected = np.array([np.nan, np.nan, 0.0], np.float32)
    assert disagreement(right, expected, None) == ""
    assert "nan" in disagreement(np.fmax(x, y), expected, None)
