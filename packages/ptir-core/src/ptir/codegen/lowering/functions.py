"""No ``expm1``, ``log1p``, ``erf``, no exact ``rem``, no ``pow`` of negative numbers: written out.

So is ``tanh``, which WebGPU may have as not a number where it is 1. It and ``erf`` are those of
``exponentials.h``. A language that reorders sums of floats gives a few last digits less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Final

from ptir.codegen.expressions.expr import Apply, Const, Expr, Var
from ptir.codegen.kernel_ir.nodes import Assign, Declare, Let, While
from ptir.codegen.lowering.algebra import bits, choose, op, test, word
from ptir.codegen.lowering.rewriting import Body, Rewriter, Seen
from ptir.types import F32, I32, U32

POWER: Final = "pow"
SIZE, INFINITY = 0x7FFFFFFF, 0x7F800000


class Functions(Rewriter):
    """Writes out functions of f32."""

    @classmethod
    def remaining(cls, body: Body) -> list[str]:
        """Functions that still stand there; ``pow`` where its base may be negative."""
        return sorted({x.op for x in Seen(body).expressions if isinstance(x, Apply) and _stands(x)})

    def visit_apply(self, one: Apply) -> Expr:
        """An op of the table, or the op itself."""
        made = WRITTEN.get(one.op) if one.dtype == F32 else None
        if made is None:
            return super().visit_apply(one)
        return made(self, *(self.let(self.expr(arg)) for arg in one.args))

    def power(self, a: Expr, b: Expr) -> Expr:
        """``pow`` of the size; of a negative number the sign is that of an odd exponent's."""
        size = self.let(Apply(F32, POWER, op("abs", a), b))
        odd = test("ne", op("floor", b * 0.5), b * 0.5)
        whole = test("eq", op("floor", b), b)
        below = choose(whole, choose(odd, -size, size), _number(math.nan))
        signed = choose(test("lt", bits(I32, a), 0), below, size)
        infinite = test("eq", op("abs", b), math.inf)
        found = choose(infinite | (test("eq", a, 0.0) & ~whole), size, signed)
        one = test("eq", b, 0.0) | test("eq", a, 1.0)
        return choose(one | (test("eq", a, -1.0) & infinite), _number(1.0), found)

    def remainder(self, a: Expr, b: Expr) -> Expr:
        """``fmod``: exact, by whole numbers, up to eight doublings at a time."""
        x, y = (self.let(bits(U32, one) & SIZE) for one in (a, b))
        (mx, ex), (my, ey) = (self._digits(one) for one in (x, y))
        name = self.name()
        rest, left_over = Var(U32, f"{name}_r"), Var(U32, f"{name}_n")
        steps = choose(test("gt", ex, ey), ex - ey, word(0))
        divisor = self.let(choose(test("eq", y, 0), word(1), my))
        self.emit(Declare((rest, left_over), (op("rem", mx, divisor), steps)))
        step = Var(U32, f"{name}_s")
        body = (
            Let(step, op("min", left_over, word(8))),
            Assign(rest, op("rem", rest << step, divisor)),
            Assign(left_over, left_over - step),
        )
        self.emit(While(left_over, None, test("gt", left_over, 0), left_over, body, True))
        power = self.let(bits(I32, ey) - 150)
        half = self.let(power >> 1)
        size = Apply(F32, "convert", rest) * _power(half) * _power(power - half)
        found = choose(test("lt", x, y), a, _signed(size, a))
        none = test("ge", x, INFINITY) | test("gt", y, INFINITY) | test("eq", y, 0)
        return choose(none, _number(math.nan), found)

    def _digits(self, size: Expr) -> tuple[Expr, Expr]:
        """The digits of a float as a whole number, and the exponent that goes with them."""
        exponent = self.let(size >> 23)
        digits, normal = size & ((1 << 23) - 1), test("gt", exponent, 0)
        whole = self.let(choose(normal, digits | (1 << 23), digits))
        return whole, self.let(choose(normal, exponent, word(1)))


def _power(exponent: Expr) -> Expr:
    """Two to a power from -126 to 127."""
    return bits(F32, (exponent + 127) << 23)


def _signed(size: Expr, of: Expr) -> Expr:
    """A size with the sign of a number."""
    sign = bits(U32, of) & (1 << 31)
    return bits(F32, bits(U32, size) | sign)


def _number(value: float) -> Expr:
    return Const(F32, value)


def _fma(a: Expr, b: Expr, c: Expr) -> Expr:
    return op("fma", a, b, c)


def _tanh(r: Functions, x: Expr) -> Expr:
    """Near zero a polynomial, else 1 - 2 / (exp(2x) + 1) (``exponentials.h``)."""
    size = r.let(op("abs", x))
    s = r.let(size * size)
    digits = [float.fromhex(one) for one in TANGENT]
    p = reduce(lambda p, c: _fma(p, s, _number(c)), digits[1:], _number(digits[0]))
    near = _fma(p * s, size, size)
    twice = r.let(size + size)
    power = op("exp", choose(test("gt", twice, 40.0), _number(40.0), twice))
    far = _number(1.0) - _number(2.0) / (power + 1.0)
    found = choose(test("lt", _number(0.6875), size), far, near)
    return choose(test("eq", x, x), _signed(found, x), x)


def _expm1(r: Functions, x: Expr) -> Expr:
    """Near zero the first terms of its series."""
    terms = [1 / math.factorial(n) for n in range(10, 0, -1)]
    series = reduce(lambda p, c: _fma(p, x, _number(_f32(c))), terms[1:], _number(_f32(terms[0])))
    return choose(test("lt", op("abs", x), 0.5), series * x, op("exp", x) - 1.0)


def _log1p(r: Functions, x: Expr) -> Expr:
    """The logarithm of 1 + x, times what rounding that sum did to x."""
    sum_ = r.let(x + 1.0)
    moved = x / (sum_ - 1.0)
    found = op("log", sum_) * moved
    far = test("gt", sum_, 2.0**24)
    return choose(test("eq", sum_, 1.0), x, choose(far, op("log", sum_), found))


def _erf(r: Functions, x: Expr) -> Expr:
    """Two polynomials, the second in an exponential."""
    size = r.let(op("abs", x))
    t = r.let(choose(test("lt", _number(4.0), size), _number(4.0), size))
    s = r.let(t * t)
    low = _fma(t, _number(-1.72853470e-5), _number(3.83197126e-4))
    high = _fma(t, _number(-3.88396438e-3), _number(2.42546219e-2))
    far = _fma(low, s, high)
    for digits in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        far = _fma(far, t, _number(digits))
    far = _number(1.0) - op("exp", _fma(far, t, -t))
    near = _fma(s, _number(-5.96761703e-4), _number(4.99119423e-3))
    for digits in (-2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1):
        near = _fma(near, s, _number(digits))
    found = choose(test("lt", _number(0.927734375), t), far, _fma(near, t, t))
    return choose(test("eq", x, x), _signed(found, x), x)


def _f32(value: float) -> float:
    """The nearest f32."""
    import struct

    return float(struct.unpack("<f", struct.pack("<f", value))[0])


TANGENT: Final = (
    *("0x1.eb0cf6p-10", "-0x1.01556cp-7", "0x1.612d16p-6"),
    *("-0x1.b9b17cp-5", "0x1.110f10p-3", "-0x1.55554ep-2"),
)
"""The polynomial of ``tanh``, from the highest power down."""

WRITTEN: Final[dict[str, Callable[..., Expr]]] = {
    "tanh": _tanh,
    "expm1": _expm1,
    "log1p": _log1p,
    "erf": _erf,
    POWER: Functions.power,
    "rem": Functions.remainder,
}
"""The functions that are written out, by the op."""


def _stands(x: Apply) -> bool:
    if x.op == POWER and x.dtype == F32:
        base = x.args[0]
        return not (isinstance(base, Apply) and base.op == "abs")
    return x.op in WRITTEN and x.dtype == F32
