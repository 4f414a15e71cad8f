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
from ptir.codegen.lowering.algebra import bits, choose, found, left, op, right, test, word
from ptir.codegen.lowering.rewriting import Body, Rewriter
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

    def lets(self, one: nodes.Let) -> None:
        """A variable of two words as two variables."""
        if one.variable.dtype not in LONG:
            super().lets(one)
            return
        for variable, value in zip(_named(one.variable), self.pair(one.value), strict=True):
            self.emit(nodes.Let(variable, value))

    def declared(self, one: nodes.Declare) -> None:
        """Variables of two words as two each."""
        if one.variables[0].dtype not in LONG:
            super().declared(one)
            return
        variables = tuple(half for variable in one.variables for half in _named(variable))
        values = tuple(half for value in one.values for half in self.pair(value))
        self.emit(nodes.Declare(variables, values))

    def assigned(self, one: nodes.Assign) -> None:
        """Both are computed before either changes."""
        if one.variable.dtype not in LONG:
            super().assigned(one)
            return
        values = [self._held(half) for half in self.pair(one.value)]
        for variable, value in zip(_named(one.variable), values, strict=True):
            self.emit(nodes.Assign(variable, value))

    def array(self, one: nodes.Array) -> None:
        """An array of twice as many words."""
        if one.dtype in LONG:
            self.arrays[one.name] = one
            self.emit(one._replace(dtype=U32, size=2 * one.size))
        else:
            super().array(one)

    def stored(self, one: nodes.Store) -> None:
        """A store of two words."""
        if one.dtype not in LONG:
            super().stored(one)
            return
        at, pair = self.index(one.at) * 2, self.pair(one.value)
        for half, value in enumerate(self._held(each) for each in pair):
            self.emit(nodes.Store(U32, one.memory, at + half, value))

    def turned(self, one: nodes.While) -> None:
        """A loop of a long is one that its body leaves."""
        if one.variable.dtype not in LONG:
            super().turned(one)
            return
        begun = () if one.first is None else (nodes.Declare((one.variable,), (one.first,)),)
        leave = nodes.If(Apply(BOOL, "not", one.condition), (nodes.Break(),))
        body = (leave, *one.body, nodes.Assign(one.variable, one.after))
        again = Var(BOOL, self.name())
        loop = nodes.While(again, Const(BOOL, 1), again, again, body, one.rolled)
        self.scoped(nodes.Scope((*begun, loop)))

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

    def applied(self, one: Apply) -> Expr:
        """What gives 32 bits or a truth value; pairs are made in ``pair``."""
        long = [arg.dtype in LONG for arg in one.args]
        if not any(long):
            return super().applied(one)
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
        found = PAIRS[type(expr)](self, expr)
        return Pair(self.let(found.low), self.let(found.high))

    def pair_applied(self, one: Apply) -> Pair:
        """A scalar op that gives 64 bits."""
        if one.op == "convert":
            return self._extended(one.dtype, one.args[0])
        if one.op == "select":
            mask = self.let(self.expr(one.args[0]))
            a, b = map(self.pair, one.args[1:])
            return Pair(choose(mask, a.low, b.low), choose(mask, a.high, b.high))
        return OPS[one.op](self, one.dtype, [self.pair(arg) for arg in one.args])

    def pair_read(self, one: Read) -> Pair:
        """Two words of an argument or array."""
        at = self.index(one.place) * 2
        return Pair(Read(U32, one.memory, at), Read(U32, one.memory, at + 1))

    def pair_cell(self, one: Cell) -> Pair:
        """Two words of an array."""
        at = self.index(one.index) * 2
        return Pair(Cell(U32, one.array, at), Cell(U32, one.array, at + 1))

    def pair_placed(self, one: Coordinate) -> Pair:
        """An index, which is an i32."""
        return _signed(self.let(Coordinate(I32, self.index(one.index))))

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
        high = self.let(op("floor", op("mul", size, Const(F32, 2.0**-32))))
        low = op("sub", size, op("mul", high, Const(F32, 2.0**32)))
        whole = Pair(*(self.let(Apply(U32, "convert", half)) for half in (low, high)))
        below = self.let(test("lt", value, Const(F32, 0.0)))
        signed = dtype.kind == "int"
        beyond = self.let(test("ge", size, Const(F32, 2.0 ** (63 if signed else 64))))
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
            below = self.let(test("lt", bits(I32, value.high), Const(I32, 0)))
            minus = Pair(*map(self.let, self.negated(value)))
            value = Pair(
                self.let(choose(below, minus.low, value.low)),
                self.let(choose(below, minus.high, value.high)),
            )
        power: Expr = word(127 + 32)
        for step in (32, 16, 8, 4, 2, 1):
            most = word((1 << (32 - step)) - 1) if step < 32 else word(0)
            short = self.let(test("le", value.high, most))
            moved = Pair(word(0), value.low) if step == 32 else self._left(value, word(step))
            value = Pair(
                self.let(choose(short, moved.low, value.low)),
                self.let(choose(short, moved.high, value.high)),
            )
            lower = op("sub", power, word(step))
            power = self.let(choose(short, lower, power))
        lost = choose(test("ne", value.low, word(0)), word(1), word(0))
        digits = Apply(F32, "convert", op("or", value.high, lost))
        size = op("mul", digits, bits(F32, left(power, 23)))
        return size if below is None else choose(below, op("neg", self.let(size)), self.let(size))

    # --- arithmetic: operands are short ---

    def negated(self, a: Pair) -> Pair:
        """Zero minus a."""
        return self.less(ZERO, a)

    def more(self, a: Pair, b: Pair) -> Pair:
        """The sum of two pairs."""
        low = self.let(op("add", a.low, b.low))
        carried = choose(test("lt", low, a.low), word(1), word(0))
        return Pair(low, op("add", op("add", a.high, b.high), carried))

    def less(self, a: Pair, b: Pair) -> Pair:
        """The difference of two pairs."""
        borrowed = choose(test("lt", a.low, b.low), word(1), word(0))
        high = op("sub", op("sub", a.high, b.high), borrowed)
        return Pair(op("sub", a.low, b.low), high)

    def times(self, a: Pair, b: Pair) -> Pair:
        """The product: of the low words by halves of them."""
        (a0, a1), (b0, b1) = (
            (self.let(op("and", x.low, word(0xFFFF))), self.let(right(x.low, 16))) for x in (a, b)
        )
        low, cross, other = (self.let(op("mul", *ab)) for ab in ((a0, b0), (a0, b1), (a1, b0)))
        halves = (op("and", x, word(0xFFFF)) for x in (cross, other))
        middle = self.let(op("add", op("add", right(low, 16), next(halves)), next(halves)))
        high = op("add", op("mul", a1, b1), right(middle, 16))
        for x in (right(cross, 16), right(other, 16)):
            high = op("add", high, x)
        for x, y in ((a.low, b.high), (a.high, b.low)):
            high = op("add", high, op("mul", x, y))
        return Pair(op("mul", a.low, b.low), high)

    def _left(self, a: Pair, amount: Expr) -> Pair:
        """Moved to the left by 0 to 31."""
        back = op("sub", word(31), amount)
        high = op("or", left(a.high, amount), right(right(a.low, 1), back))
        return Pair(left(a.low, amount), high)

    def moved_left(self, a: Pair, by: Pair) -> Pair:
        """Moved to the left by 0 to 63."""
        amount = self.let(op("and", by.low, word(31)))
        far = self.let(test("ge", by.low, word(32)))
        near = self._left(a, amount)
        low = self.let(near.low)
        return Pair(choose(far, word(0), low), choose(far, low, near.high))

    def moved_right(self, dtype: DType, a: Pair, by: Pair) -> Pair:
        """Moved to the right by 0 to 63; a sign stays."""
        amount = self.let(op("and", by.low, word(31)))
        far = self.let(test("ge", by.low, word(32)))
        top = bits(I32, a.high) if dtype == I64 else a.high
        high = self.let(bits(U32, right(top, amount)))
        sign = bits(U32, right(top, 31)) if dtype == I64 else word(0)
        back = op("sub", word(31), amount)
        low = op("or", right(a.low, amount), left(left(a.high, 1), back))
        return Pair(choose(far, high, low), choose(far, sign, high))

    def divided(self, dtype: DType, a: Pair, b: Pair) -> tuple[Pair, Pair]:
        """The quotient towards zero and the remainder, bit by bit from the top."""
        signs: list[Expr] = []
        if dtype == I64:
            signs = [self.let(test("lt", bits(I32, x.high), Const(I32, 0))) for x in (a, b)]
            a, b = (self._turned(x, sign) for x, sign in zip((a, b), signs, strict=True))
        name = self.name()
        halves = [Var(U32, f"{name}_{part}") for part in ("q", "p", "r", "s")]
        rest, whole = Pair(*halves[2:]), Pair(*halves[:2])
        self.emit(nodes.Declare(tuple(halves), (a.low, a.high, word(0), word(0))))
        before, self._out = self._out, []
        one = self._left(rest, word(1))
        shifted = Pair(self.let(op("or", one.low, right(whole.high, 31))), self.let(one.high))
        doubled = Pair(*map(self.let, self._left(whole, word(1))))
        fits = self.let(_related("ge", U64, shifted, b))
        smaller = Pair(*map(self.let, self.less(shifted, b)))
        next_whole = op("or", doubled.low, choose(fits, word(1), word(0)))
        values = [next_whole, doubled.high]
        values += [choose(fits, x, y) for x, y in zip(smaller, shifted, strict=True)]
        for variable, value in zip(halves, values, strict=True):
            self.emit(nodes.Assign(variable, value))
        body, self._out = tuple(self._out), before
        self.emit(nodes.For(f"{name}_i", Const(I32, 0), Const(I32, 64), 1, body, rolled=True))
        if not signs:
            return whole, rest
        other = self.let(Apply(BOOL, "xor", *signs))
        return self._turned(whole, other), self._turned(rest, signs[0])

    def _turned(self, a: Pair, sign: Expr) -> Pair:
        """-a where ``sign`` holds, else a."""
        minus = Pair(*map(self.let, self.negated(a)))
        low, high = (choose(sign, x, y) for x, y in zip(minus, a, strict=True))
        return Pair(self.let(low), self.let(high))


def _named(variable: Var) -> tuple[Var, Var]:
    """The variables of the two halves."""
    return Var(U32, f"{variable.name}_low"), Var(U32, f"{variable.name}_high")


def _literal(one: Const) -> Pair:
    value = int(one.value)
    return Pair(word(value), word(value >> 32))


def _signed(value: Expr) -> Pair:
    """An i32 with its sign in every bit above."""
    return Pair(bits(U32, value), bits(U32, right(value, 31)))


def _related(relation: str, dtype: DType, a: Pair, b: Pair) -> Expr:
    """A comparison: the high words decide unless they are equal."""
    if relation in ("gt", "le"):
        return _related({"gt": "lt", "le": "ge"}[relation], dtype, b, a)
    same = test("eq", a.high, b.high)
    if relation in ("eq", "ne"):
        equal = Apply(BOOL, "and", test("eq", a.low, b.low), same)
        return equal if relation == "eq" else Apply(BOOL, "not", equal)
    high = (bits(I32, x.high) if dtype == I64 else x.high for x in (a, b))
    below = Apply(BOOL, "and", same, test("lt", a.low, b.low))
    below = Apply(BOOL, "or", test("lt", *high), below)
    return below if relation == "lt" else Apply(BOOL, "not", below)


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

PAIRS: Final[dict[type, Callable[[Longs, Expr], Pair]]] = {
    Const: lambda r, x: _literal(x),  # type: ignore[arg-type]  # the table's key says what it is
    Var: lambda r, x: Pair(*_named(x)),  # type: ignore[arg-type]
    Apply: lambda r, x: r.pair_applied(x),  # type: ignore[arg-type]
    Read: lambda r, x: r.pair_read(x),  # type: ignore[arg-type]
    Cell: lambda r, x: r.pair_cell(x),  # type: ignore[arg-type]
    Coordinate: lambda r, x: r.pair_placed(x),  # type: ignore[arg-type]
}
"""How each expression of 64 bits becomes a pair."""


def without(body: Body) -> Body:
    """The kernel with pairs of words for 64-bit integers."""
    return Longs(body).rewritten()


def remaining(body: Body) -> list[str]:
    """Where 64-bit integers still stand."""
    return found(body, *LONG)
