"""ONNX operators that act element by element: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.capture.promote import broadcast_shapes
from ptir.capture.tensor import full as scalar
from ptir.types import BOOL, F32, DType
from ptir_testsuite.witnesses.onnx_import.table import Node, Reason, element, onnx_op, refuse

UNARY: Final = {
    **{name: name.lower() for name in ("Abs", "Neg", "Sign", "Exp", "Log", "Sqrt", "Sin", "Cos")},
    **{name: name.lower() for name in ("Tanh", "Erf", "Floor", "Ceil", "Round", "Not")},
    "Reciprocal": "reciprocal",
    "BitwiseNot": "not",
}
BINARY: Final = {
    **{"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"},
    **{"And": "and", "Or": "or", "Xor": "xor"},
    **{"BitwiseAnd": "and", "BitwiseOr": "or", "BitwiseXor": "xor"},
}
COMPARE: Final = {
    **{"Equal": "eq", "Less": "lt", "LessOrEqual": "le"},
    **{"Greater": "gt", "GreaterOrEqual": "ge"},
}
FOLDED: Final = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def broadcast(*tensors: Tensor) -> list[Tensor]:
    """The tensors in their common shape."""
    shape = broadcast_shapes([tensor.shape for tensor in tensors])
    return [tensor.broadcast_to(shape) for tensor in tensors]


def legacy(node: Node) -> list[Tensor]:
    """Two operands; before version 7 ``broadcast`` and ``axis`` say how they align."""
    a, b = node[0], node[1]
    if node.version < 7 and node.attr("broadcast", 0):
        axis = node.attr("axis", a.ndim - b.ndim)
        b = b.reshape((*b.shape, *[1] * (a.ndim - axis % max(a.ndim, 1) - b.ndim)))
    return broadcast(a, b)


def full_like(x: Tensor, value: Any) -> Tensor:
    """A constant in the type of ``x``."""
    return scalar(value, x.dtype, x.shape)


@onnx_op(*UNARY)
def unary(node: Node) -> Tensor:
    """One op."""
    return call(UNARY[node.op], node[0])


@onnx_op(*BINARY)
def binary(node: Node) -> Tensor:
    """One op on operands of one shape."""
    return call(BINARY[node.op], *legacy(node))


@onnx_op(*COMPARE)
def compare(node: Node) -> Tensor:
    """One comparison."""
    return call("compare", *legacy(node), direction=COMPARE[node.op])


@onnx_op(*FOLDED)
def folded(node: Node) -> Tensor:
    """Two operands at a time, from the left."""
    return reduce(lambda a, b: call(FOLDED[node.op], a, b), broadcast(*node.present))


@onnx_op("Mean")
def mean(node: Node) -> Tensor:
    """The sum divided by the count."""
    total = reduce(lambda a, b: a + b, broadcast(*node.present))
    return total / float(len(node.present))


@onnx_op("Mod")
def mod(node: Node) -> Tensor:
    """The divisor's sign, as in Python, or with ``fmod`` the dividend's, as in C."""
    a, b = broadcast(node[0], node[1])
    return call("rem", a, b) if node.attr("fmod", 0) else a % b


@onnx_op("Pow")
def power(node: Node) -> Tensor:
    """The result has the base's type; mixed types meet in the float."""
    base, exponent = legacy(node)
    if base.dtype == exponent.dtype:
        return call("pow", base, exponent)
    if exponent.dtype.is_float:
        wide = exponent.dtype
        return call("pow", base.astype(wide), exponent).astype(base.dtype)
    return call("pow", base, exponent.astype(base.dtype))


@onnx_op("BitShift")
def bit_shift(node: Node) -> Tensor:
    """Left or right."""
    name = {"LEFT": "shift_left", "RIGHT": "shift_right"}[node.attr("direction")]
    return call(name, *broadcast(node[0], node[1]))


@onnx_op("Where")
def where(node: Node) -> Tensor:
    """All three broadcast."""
    return call("select", *broadcast(node[0], node[1], node[2]))


@onnx_op("IsNaN")
def is_nan(node: Node) -> Tensor:
    """What differs from itself."""
    return call("compare", node[0], node[0], direction="ne")


@onnx_op("IsInf")
def is_inf(node: Node) -> Tensor:
    """Infinities of the wanted signs."""
    x, found = node[0], full_like(node[0].astype(BOOL), False)
    for name, value in (("detect_positive", math.inf), ("detect_negative", -math.inf)):
        if node.attr(name, 1):
            found = found | (x == value)
    return found


@onnx_op("Clip")
def clip(node: Node) -> Tensor:
    """Between two bounds, either of which may be missing; the upper one wins."""
    x = node[0]
    for name, given, bound in (("maximum", 1, "min"), ("minimum", 2, "max")):
        limit = node.optional(given)
        if limit is None and node.attr(bound) is not None:
            limit = scalar(node.attr(bound), x.dtype)
        if limit is not None:
            x = call(name, *broadcast(x, limit))
    return x


@onnx_op("Identity", "Dropout")
def identity(node: Node) -> tuple[Tensor, ...]:
    """The operand; for a dropout outside training also a mask that keeps everything."""
    training = node.static(2)
    if node.op == "Dropout" and training is not None and bool(training):
        ratio = node.static(1)
        if ratio is None or float(ratio) != 0.0:
            raise refuse("Dropout in training", Reason.TRAINING)
    return (node[0], full_like(node[0].astype(BOOL), True))


@onnx_op("Cast", "CastLike")
def cast(node: Node) -> Tensor:
    """One conversion; to float8 ONNX saturates unless told otherwise."""
    like = node.optional(1)
    to = like.dtype if like is not None else element(int(node.attr("to")))
    return cast_to(node[0], to, bool(node.attr("saturate", 1)))


def cast_to(x: Tensor, to: DType, saturate: bool = True) -> Tensor:
    """A cast; with ``saturate``, what is beyond a float8 type becomes its greatest number."""
    if not (to.name.startswith("f8") and saturate and x.dtype.is_float):
        return x.astype(to)
    import ml_dtypes

    greatest = float(ml_dtypes.finfo(to.numpy).max)  # type: ignore[no-untyped-call]
    wide = x if x.dtype.bits >= 32 else x.astype("f32")
    bounded = call("clamp", full_like(wide, -greatest), wide, full_like(wide, greatest))
    return bounded.astype(to)


@onnx_op("BitCast")
def bit_cast(node: Node) -> Tensor:
    """The same bits."""
    to = element(int(node.attr("to")))
    if to == BOOL or node[0].dtype == BOOL:
        return cast_to(node[0], to)
    return call("bitcast", node[0], dtype=to)


# --- trigonometry and exponentials made of ours ---


@onnx_op("Tan")
def tan(node: Node) -> Tensor:
    """Sine over cosine."""
    return F.sin(node[0]) / F.cos(node[0])


@onnx_op("Sinh")
def sinh(node: Node) -> Tensor:
    """Half of exp(x) - exp(-x), by expm1, which does not cancel near zero."""
    grown = F.expm1(node[0])
    return (grown + grown / (grown + 1.0)) * 0.5


@onnx_op("Cosh")
def cosh(node: Node) -> Tensor:
    """Half of exp(x) + exp(-x)."""
    return (F.exp(node[0]) + F.exp(-node[0])) * 0.5


@onnx_op("Asinh")
def asinh(node: Node) -> Tensor:
    """Odd; for positive x log1p(x + x*x / (1 + sqrt(x*x + 1)))."""
    x = F.abs(node[0])
    square = x * x
    return F.sign(node[0]) * F.log1p(x + square / (F.sqrt(square + 1.0) + 1.0))


@onnx_op("Acosh")
def acosh(node: Node) -> Tensor:
    """log1p(t + sqrt(2 t + t t)) with t = x - 1."""
    t = node[0] - 1.0
    return F.log1p(t + F.sqrt(t * 2.0 + t * t))


@onnx_op("Atanh")
def atanh(node: Node) -> Tensor:
    """Half of log1p(2 x / (1 - x))."""
    x = node[0]
    return F.log1p(x * 2.0 / (1.0 - x)) * 0.5


# --- activations ---


def sigmoid_of(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return 1.0 / (F.exp(-x) + 1.0)


def softplus_of(x: Tensor) -> Tensor:
    """log(1 + exp(x)) without overflow."""
    return F.maximum(x, 0.0) + F.log1p(F.exp(-F.abs(x)))


ACTIVATION: Final[dict[str, Callable[[Tensor, float, float], Tensor]]] = {
    "Relu": lambda x, a, b: F.maximum(x, 0.0 if x.dtype.is_float else 0),
    "Sigmoid": lambda x, a, b: sigmoid_of(x),
    "Tanh": lambda x, a, b: F.tanh(x),
    "HardSigmoid": lambda x, a, b: F.maximum(F.minimum(x * a + b, 1.0), 0.0),
    "HardSwish": lambda x, a, b: x * F.maximum(F.minimum(x * (1 / 6) + 0.5, 1.0), 0.0),
    "Elu": lambda x, a, b: F.where(x < 0.0, F.expm1(x) * a, x),
    "Selu": lambda x, a, b: F.where(x <= 0.0, F.expm1(x) * a, x) * b,
    "Celu": lambda x, a, b: F.maximum(x, 0.0) + F.minimum(F.expm1(x / a) * a, 0.0),
    "LeakyRelu": lambda x, a, b: F.where(x < 0.0, x * a, x),
    "ThresholdedRelu": lambda x, a, b: F.where(x > a, x, 0.0),
    "Softplus": lambda x, a, b: softplus_of(x),
    "Softsign": lambda x, a, b: x / (F.abs(x) + 1.0),
    "Mish": lambda x, a, b: x * F.tanh(softplus_of(x)),
    "Swish": lambda x, a, b: x * sigmoid_of(x * a),
}
DEFAULTS: Final[dict[str, dict[str, float]]] = {
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Elu": {"alpha": 1.0},
    "Selu": {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875},
    "Celu": {"alpha": 1.0},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "Swish": {"alpha": 1.0},
}


def activation(name: str, x: Tensor, given: dict[str, float]) -> Tensor:
    """An activation function by its ONNX name, with what is not given at its default."""
    numbers = [given.get(key, value) for key, value in DEFAULTS.get(name, {}).items()]
    return ACTIVATION[name](x, *[*numbers, 0.0, 0.0][:2])


@onnx_op(*(name for name in ACTIVATION if name != "Tanh"))
def activated(node: Node) -> Tensor:
    """One activation function; for a plain swish our own."""
    if node.op == "Swish" and node[0].dtype == F32 and node.attr("alpha", 1.0) == 1.0:
        return F.silu(node[0])
    return activation(node.op, node[0], node.attributes)


@onnx_op("SwiGLU")
def swiglu(node: Node) -> Tensor | None:
    """Our own where it says the same; else the body that ONNX defines."""
    plain = node[0].dtype == F32 and node.attr("alpha", 1.0) == 1.0
    return F.swiglu(node[0], node[1]) if plain else None


@onnx_op("PRelu")
def prelu(node: Node) -> Tensor:
    """A slope of its own for each negative element."""
    x, slope = broadcast(node[0], node[1])
    return F.where(x < 0.0, x * slope, x)


@onnx_op("Gelu")
def gelu(node: Node) -> Tensor:
    """Exact or by tanh."""
    return F.gelu(node[0], approximate=node.attr("approximate", "none"))


@onnx_op("Binarizer")
def binarizer(node: Node) -> Tensor:
    """1 above a threshold, else 0."""
    x = node[0]
    above = call("compare", x, full_like(x, node.attr("threshold", 0.0)), direction="gt")
    return above.astype(x.dtype)


@onnx_op("Shrink")
def shrink(node: Node) -> Tensor:
    """Towards zero by ``bias``, and zero within ``lambd`` of it."""
    x, bias, edge = node[0], node.attr("bias", 0.0), node.attr("lambd", 0.5)
    return F.where(x < -edge, x + bias, F.where(x > edge, x - bias, full_like(x, 0.0)))
