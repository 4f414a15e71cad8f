"""No 64-bit integers: each is a pair of u32, the low word first, also in memory.

Where an index is one, the range that it is known to have proves that the low word is all of it.
Division is written out as a loop of 64 steps; everything else is straight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, NamedTuple

from ptir.codegen.expressions.expr import Apply, Cell, Const, Coordinate, Expr, Var
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.lowering.algebra import bits, choose, op, test, word
from ptir.codegen.lowering.rewriting import Rewriter
from ptir.types import BOOL, F32, I32, I64, U32, U64, DType

LONG: Final = (I64, U64)
RELATIONS: Final = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


class Pair(NamedTuple):
    """A 64-bit integer: two u32."""

    low: Expr
    high: Expr


ZERO: Final = Pair(word(0), word(0))


class Longs(Rewriter):
    """Makes pairs of words of 64-bit integers, in variables and in memory."""

    types: ClassVar = {I64: U32, U64: U32}

    # --- statements ---

    def visit_let(self, one: nodes.Let) -> None:
        """A variable of two words as two variables."""
        if one.variable.dtype not in LONG:
            self.anew(one)
            return
        for variable, value in zip(_named(one.variable), self.pair(one.value), strict=True):
            self.emit(nodes.Let(variable, value))

    def visit_declare(self, one: nodes.Declare) -> None:
        """Variables of two words as two each."""
        if one.variables[0].dtype not in LONG:
            self.anew(one)
            return
        variables = tuple(half for variable in one.variables for half in _named(variable))
        values = tuple(half for value in one.values for half in self.pair(value))
        self.emit(nodes.Declare(variables, values))

    def visit_assign(self, one: nodes.Assign) -> None:
        """Both are computed before either changes."""
        if one.variable.dtype not in LONG:
            self.anew(one)
            return
        values = [self._held(half) for half in self.pair(one.value)]
        for variable, value in zip(_named(one.variable), values, strict=True):
            self.emit(nodes.Assign(variable, value))

    def visit_array(self, one: nodes.Array) -> None:
        """An array of twice as many words."""
        if one.dtype in LONG:
            self.arrays[one.name] = one
            self.emit(one._replace(dtype=U32, size=2 * one.size))
        else:
            super().visit_array(one)

    def visit_store(self, one: nodes.Store) -> None:
        """A store of two words."""
        if one.dtype not in LONG:
            super().visit_store(one)
            return
        at, pair = self.index(one.at) * 2, self.pair(one.value)
        for half, value in enumerate(self._held(each) for each in pair):
            self.emit(nodes.Store(U32, one.memory, at + half, value))

    def visit_while(self, one: nodes.While) -> None:
        """A loop of a long is one that its body leaves."""
        if one.variable.dtype not in LONG:
            super().visit_while(one)
            return
        begun = () if one.first is None else (nodes.Declare((one.variable,), (one.first,)),)
        leave = nodes.If(~one.condition, (nodes.Break(),))
        body = (leave, *one.body, nodes.Assign(one.variable, one.after))
        again = Var(BOOL, self.name())
        loop = nodes.While(again, Const(BOOL, 1), again, again, body, one.rolled)
        self.visit_scope(nodes.Scope((*begun, loop)))

    def _held(self, value: Expr) -> Expr:
        """A value that what follows does not change."""
        if isinstance(value, Const):
            return value
        variable = Var(value.dtype, self.name())
        self.emit(nodes.Let(variable, value))
        return variable

    # --- expressions ---

    def place(self, expr: Expr) -> Expr:
        """The low word: the range of the index says that it is all."""
        return bits(I32, self.pair(expr).low) if expr.dtype in LONG else self.expr(expr)

    def visit_apply(self, one: Apply) -> Expr:
        """What gives 32 bits or a truth value; pairs are made in ``pair``."""
        long = [arg.dtype in LONG for arg in one.args]
        if not any(long):
            return super().visit_apply(one)
        if one.op in RELATIONS:
            a, b = map(self.pair, one.args)
            return _related(one.op, one.args[0].dtype, a, b)
        assert one.op == "convert", f"{one.op} of {one.args[0].dtype} gives {one.dtype}"
        value = self.pair(one.args[0])
        if one.dtype == F32:
            return self._float(one.args[0].dtype, value)
        return bits(one.dtype, value.low)

    def pair(self, expr: Expr) -> Pair:
        """A 64-bit value, whose halves are short."""
        found = self._halves(expr)
        return Pair(self.let(found.low), self.let(found.high))

    def _halves(self, expr: Expr) -> Pair:
        match expr:
            case Const():
                return Pair(word(int(expr.value)), word(int(expr.value) >> 32))
            case Var():
                return Pair(*_named(expr))
            case Read():  # two words of an argument or array
                at = self.index(expr.place) * 2
                return Pair(Read(U32, expr.memory, at), Read(U32, expr.memory, at + 1))
            case Cell():
                at = self.index(expr.index) * 2
                return Pair(Cell(U32, expr.array, at), Cell(U32, expr.array, at + 1))
            case Coordinate():  # an index is an i32
                return _signed(self.let(Coordinate(I32, self.index(expr.index))))
            case Apply():
                return self._applied(expr)
        raise AssertionError(f"{expr} of {expr.dtype} is no pair")

    def _applied(self, one: Apply) -> Pair:
        """A scalar op that gives 64 bits."""
        if one.op == "convert":
            return self._extended(one.dtype, one.args[0])
        if one.op == "select":
            mask = self.let(self.expr(one.args[0]))
            a, b = map(self.pair, one.args[1:])
            return Pair(choose(mask, a.low, b.low), choose(mask, a.high, b.high))
        return OPS[one.op](self, one.dtype, [self.pair(arg) for arg in one.args])

    # --- conversions ---

    def _extended(self, dtype: DType, of: Expr) -> Pair:
        """Any number as a pair."""
        if of.dtype in LONG:
            return self.pair(of)
        value = self.let(self.expr(of))
        if of.dtype == F32:
            return self._of_float(dtype, value)
        return _signed(value) if of.dtype.kind == "int" else Pair(bits(U32, value), word(0))

    def _of_float(self, dtype: DType, value: Expr) -> Pair:
        """A float without what is behind its point; beyond the ends, the ends."""
        size = self.let(op("abs", value))
        high = self.let(op("floor", size * 2.0**-32))
        low = size - high * 2.0**32
        whole = Pair(*(self.let(Apply(U32, "convert", half)) for half in (low, high)))
        below = self.let(test("lt", value, 0.0))
        signed = dtype.kind == "int"
        beyond = self.let(test("ge", size, 2.0 ** (63 if signed else 64)))
        minus = Pair(*map(self.let, self.negated(whole))) if signed else ZERO
        most = (Pair(word(0), word(1 << 31)), Pair(word(-1), word((1 << 31) - 1)))
        ends = most if signed else (ZERO, Pair(word(-1), word(-1)))
        halves = zip(minus, whole, *ends, strict=True)
        return Pair(
            *(
                choose(beyond, choose(below, least, top), choose(below, negative, positive))
                for negative, positive, least, top in halves
            )
        )

    def _float(self, of: DType, value: Pair) -> Expr:
        """The nearest f32: digits moved to the top of a word, the lost ones marked in its last."""
        below: Expr | None = None
        if of.kind == "int":
            below = self.let(test("lt", bits(I32, value.high), 0))
            value = self._turned(value, below)
        power: Expr = word(127 + 32)
        for step in (32, 16, 8, 4, 2, 1):
            most = word((1 << (32 - step)) - 1) if step < 32 else word(0)
            short = self.let(test("le", value.high, most))
            moved = Pair(word(0), value.low) if step == 32 else self._left(value, word(step))
            value = Pair(
                self.let(choose(short, moved.low, value.low)),
                self.let(choose(short, moved.high, value.high)),
            )
            power = self.let(choose(short, power - step, power))
        lost = choose(test("ne", value.low, 0), word(1), word(0))
        size = Apply(F32, "convert", value.high | lost) * bits(F32, power << 23)
        return size if below is None else choose(below, -self.let(size), self.let(size))

    # --- arithmetic: operands are short ---

    def negated(self, a: Pair) -> Pair:
        """Zero minus a."""
        return self.less(ZERO, a)

    def more(self, a: Pair, b: Pair) -> Pair:
        """The sum of two pairs."""
        low = self.let(a.low + b.low)
        carried = choose(test("lt", low, a.low), word(1), word(0))
        return Pair(low, a.high + b.high + carried)

    def less(self, a: Pair, b: Pair) -> Pair:
        """The difference of two pairs."""
        borrowed = choose(test("lt", a.low, b.low), word(1), word(0))
        return Pair(a.low - b.low, a.high - b.high - borrowed)

    def times(self, a: Pair, b: Pair) -> Pair:
        """The product: of the low words by halves of them."""
        (a0, a1), (b0, b1) = ((self.let(x.low & 0xFFFF), self.let(x.low >> 16)) for x in (a, b))
        low, cross, other = self.let(a0 * b0), self.let(a0 * b1), self.let(a1 * b0)
        middle = self.let((low >> 16) + (cross & 0xFFFF) + (other & 0xFFFF))
        high = a1 * b1 + (middle >> 16) + (cross >> 16) + (other >> 16)
        return Pair(a.low * b.low, high + a.low * b.high + a.high * b.low)

    def _left(self, a: Pair, amount: Expr) -> Pair:
        """Moved to the left by 0 to 31."""
        high = (a.high << amount) | ((a.low >> 1) >> (word(31) - amount))
        return Pair(a.low << amount, high)

    def moved_left(self, a: Pair, by: Pair) -> Pair:
        """Moved to the left by 0 to 63."""
        amount = self.let(by.low & 31)
        far = self.let(test("ge", by.low, 32))
        near = self._left(a, amount)
        low = self.let(near.low)
        return Pair(choose(far, word(0), low), choose(far, low, near.high))

    def moved_right(self, dtype: DType, a: Pair, by: Pair) -> Pair:
        """Moved to the right by 0 to 63; a sign stays."""
        amount = self.let(by.low & 31)
        far = self.let(test("ge", by.low, 32))
        top = bits(I32, a.high) if dtype == I64 else a.high
        high = self.let(bits(U32, top >> bits(top.dtype, amount)))
        sign = bits(U32, top >> 31) if dtype == I64 else word(0)
        low = (a.low >> amount) | ((a.high << 1) << (word(31) - amount))
        return Pair(choose(far, high, low), choose(far, sign, high))

    def divided(self, dtype: DType, a: Pair, b: Pair) -> tuple[Pair, Pair]:
        """The quotient towards zero and the remainder, bit by bit from the top."""
        signs: list[Expr] = []
        if dtype == I64:
            signs = [self.let(test("lt", bits(I32, x.high), 0)) for x in (a, b)]
            a, b = (self._turned(x, sign) for x, sign in zip((a, b), signs, strict=True))
        name = self.name()
        halves = [Var(U32, f"{name}_{part}") for part in ("q", "p", "r", "s")]
        rest, whole = Pair(*halves[2:]), Pair(*halves[:2])
        self.emit(nodes.Declare(tuple(halves), (a.low, a.high, word(0), word(0))))
        before, self._out = self._out, []
        one = self._left(rest, word(1))
        shifted = Pair(self.let(one.low | (whole.high >> 31)), self.let(one.high))
        doubled = Pair(*map(self.let, self._left(whole, word(1))))
        fits = self.let(_related("ge", U64, shifted, b))
        smaller = Pair(*map(self.let, self.less(shifted, b)))
        values = [doubled.low | choose(fits, word(1), word(0)), doubled.high]
        values += [choose(fits, x, y) for x, y in zip(smaller, shifted, strict=True)]
        for variable, value in zip(halves, values, strict=True):
            self.emit(nodes.Assign(variable, value))
        body, self._out = tuple(self._out), before
        self.emit(nodes.For(f"{name}_i", Const(I32, 0), Const(I32, 64), 1, body, rolled=True))
        if not signs:
            return whole, rest
        other = self.let(signs[0] ^ signs[1])
        return self._turned(whole, other), self._turned(rest, signs[0])

    def _turned(self, a: Pair, sign: Expr) -> Pair:
        """-a where ``sign`` holds, else a."""
        minus = Pair(*map(self.let, self.negated(a)))
        low, high = (choose(sign, x, y) for x, y in zip(minus, a, strict=True))
        return Pair(self.let(low), self.let(high))


def _named(variable: Var) -> tuple[Var, Var]:
    """The variables of the two halves."""
    return Var(U32, f"{variable.name}_low"), Var(U32, f"{variable.name}_high")


def _signed(value: Expr) -> Pair:
    """An i32 with its sign in every bit above."""
    return Pair(bits(U32, value), bits(U32, value >> 31))


def _related(relation: str, dtype: DType, a: Pair, b: Pair) -> Expr:
    """A comparison: the high words decide unless they are equal."""
    if relation in ("gt", "le"):
        return _related({"gt": "lt", "le": "ge"}[relation], dtype, b, a)
    same = test("eq", a.high, b.high)
    if relation in ("eq", "ne"):
        equal = test("eq", a.low, b.low) & same
        return equal if relation == "eq" else ~equal
    high = (bits(I32, x.high) if dtype == I64 else x.high for x in (a, b))
    below = test("lt", *high) | (same & test("lt", a.low, b.low))
    return below if relation == "lt" else ~below


def _by_word(name: str) -> Operation:
    """Bits do not know of each other."""
    return lambda r, dtype, x: Pair(*(op(name, *halves) for halves in zip(*x, strict=True)))


def _extreme(relation: str) -> Operation:
    """One of two."""

    def chosen(r: Longs, dtype: DType, x: Sequence[Pair]) -> Pair:
        mask = r.let(_related(relation, dtype, *x))
        return Pair(*(choose(mask, *halves) for halves in zip(*x, strict=True)))

    return chosen


Operation = Callable[[Longs, DType, Sequence[Pair]], Pair]

OPS: Final[dict[str, Operation]] = {
    "add": lambda r, dtype, x: r.more(*x),
    "sub": lambda r, dtype, x: r.less(*x),
    "neg": lambda r, dtype, x: r.negated(*x),
    "mul": lambda r, dtype, x: r.times(*x),
    "fma": lambda r, dtype, x: r.more(Pair(*map(r.let, r.times(*x[:2]))), x[2]),
    "div": lambda r, dtype, x: r.divided(dtype, *x)[0],
    "rem": lambda r, dtype, x: r.divided(dtype, *x)[1],
    "shift_left": lambda r, dtype, x: r.moved_left(*x),
    "shift_right": lambda r, dtype, x: r.moved_right(dtype, *x),
    "max": _extreme("gt"),
    "min": _extreme("lt"),
    "bits": lambda r, dtype, x: x[0],
    **{name: _by_word(name) for name in ("and", "or", "xor", "not")},
}
"""What each op is of pairs."""
