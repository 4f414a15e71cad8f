"""Scalar expressions: what one element of a tensor is, as a function of the loop variables.

An expression is a typed, immutable graph of loads, constants, coordinates and scalar ops. Equal
expressions are one object, so common parts are computed once. f16 and bf16
values are carried as f32 and rounded by ``narrow`` after every op; bool is a mask (0 or all ones).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self, TypeAlias

from ptir.codegen.expressions.index import Axis, Index, axes_of, number, replaced
from ptir.types import BF16, BOOL, F16, F32, I32, DType

SCALAR_OPS: Final = frozenset(
    (
        *("add", "sub", "mul", "div", "rem", "neg", "abs", "fma"),
        *("max", "min"),  # of integers, and of wide f32 where a language has them
        *("and", "or", "xor", "not", "shift_left", "shift_right"),
        *("eq", "ne", "lt", "le", "gt", "ge", "select"),
        *("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "pow"),
        *("floor", "ceil", "round", "convert", "bits", "narrow"),
        *("dot_bytes", "dot_signed_bytes", "dot_bf16", "by_power", "nearest", "table_bytes"),
        *("permute_bytes", "select_bytes", "bit_fields", "negate_bytes", "table_words"),
    )
)
"""Every op that may stand in an expression: what a dialect has to spell.

``dot_bytes(a, w, x)`` is i32: a and the four products of the unsigned bytes of w with the signed
bytes of x, both u32; in ``dot_signed_bytes(a, w, x)`` the bytes of w are the signed ones and those
of x the unsigned ones. ``dot_bf16(a, w, x)`` is f32: a and the two products of the bf16 halves of
w and x, in any order of summation. Only what ``Dialect.dots`` holds is written. In wide ones x is
one word for all lanes, spelled as an element in memory, for instructions that take it from there.

Three more are written beside these only: ``by_power(a, p)``, the f32 a times p, which is a power of
two or NaN, and ``nearest(a)``, the i32 nearest to the f32 a, half to even, or any where a is not
finite or does not fit, and ``table_bytes(w, a, b, c, d)``, the u32 whose bytes are those of the
table of 16 that the constants are at the places that the bytes of w, below 16, say.

The others are of wide u32 alone, the last one where ``Language.permutes_words``:
``table_words(w, a, .. p)`` is in each lane the one of 16 constants whose number the lowest four
bits of w say. Four are there where ``Language.permutes_bytes``. ``permute_bytes(w, a, b)``:
the bytes of all lanes of a, then of b, are a table of 128, and the lowest seven bits of each byte
of w say a place in it. ``select_bytes(m, a, b)``: the bytes of a where the highest bit of m's is
set, of b elsewhere. ``bit_fields(w, p)``: each byte has the eight bits of w from the bit on that
the byte of p says; those behind the word's end are any. ``negate_bytes(w, s, m)``: bytes t become
128 - t where bits of both s and m are set in them.
"""


NO_AXES: Final[frozenset[Axis]] = frozenset()


Nodes: TypeAlias = "dict[tuple[Any, ...], Expr]"
"""Nodes by what they are."""


class _Current(threading.local):
    """The nodes among which a thread looks for equal ones."""

    def __init__(self) -> None:
        self.known: Nodes = {}
        self.around: list[Nodes] = []


_CURRENT: Final = _Current()


@contextmanager
def interned(nodes: Nodes) -> Iterator[None]:
    """While it lasts equal expressions are one object; ``nodes`` are those that there are.

    What a thread makes outside of any such context is known until it enters one.
    """
    current = _CURRENT
    current.around.append(current.known if current.around else {})
    current.known = nodes
    try:
        yield
    finally:
        current.known = current.around.pop()


class Expr:
    """Base of the expression nodes; ``dtype`` is the element type that the value stands for.

    Nodes are immutable and *interned*: within one source file equal ones are one object, so that
    they are compared and hashed by identity. Literals and variables are compared by what they say.
    """

    __slots__ = ("axes", "dtype", "key", "wide")
    dtype: DType
    key: tuple[Any, ...]
    axes: frozenset[Axis]
    wide: bool
    """Whether a variable that holds a value per lane stands in it."""

    @classmethod
    def _interned(cls, dtype: DType, *key: Any) -> tuple[Any, bool]:
        """The node with this key and whether it is new."""
        known = _CURRENT.known
        full = (cls, dtype, *key)
        found = known.get(full)
        if found is not None:
            return found, False
        made = known[full] = object.__new__(cls)
        made.dtype = dtype
        made.key = full
        made.wide = False
        return made, True

    @classmethod
    def _of(cls, dtype: DType, *parts: Any, wide: bool = False) -> Self:
        """The node of a class that depends on no loop and whose fields are ``parts``, in order."""
        made, new = cls._interned(dtype, *parts)
        if new:
            made.axes, made.wide = NO_AXES, wide
            for name, part in zip(cls.__annotations__, parts, strict=True):
                setattr(made, name, part)
        return made  # type: ignore[no-any-return]

    @property
    def made_of(self) -> tuple[Any, ...]:
        """What its class makes it of, behind the type where that is given."""
        return self.key[2:]

    # Ops between values of one type; a number becomes a literal of it. Nothing is decided here,
    # as ``compare`` and ``select`` do.

    def _with(self, op: str, other: Expr | float) -> Expr:
        operand = other if isinstance(other, Expr) else constant(self.dtype, other)
        return Apply(self.dtype, op, self, operand)

    def __add__(self, other: Expr | float) -> Expr:
        return self._with("add", other)

    def __sub__(self, other: Expr | float) -> Expr:
        return self._with("sub", other)

    def __mul__(self, other: Expr | float) -> Expr:
        return self._with("mul", other)

    def __truediv__(self, other: Expr | float) -> Expr:
        return self._with("div", other)

    def __and__(self, other: Expr | float) -> Expr:
        return self._with("and", other)

    def __or__(self, other: Expr | float) -> Expr:
        return self._with("or", other)

    def __xor__(self, other: Expr | float) -> Expr:
        return self._with("xor", other)

    def __lshift__(self, other: Expr | float) -> Expr:
        return self._with("shift_left", other)

    def __rshift__(self, other: Expr | float) -> Expr:
        return self._with("shift_right", other)

    def __neg__(self) -> Expr:
        return Apply(self.dtype, "neg", self)

    def __invert__(self) -> Expr:
        return Apply(self.dtype, "not", self)


class _Leaf(Expr):
    """A node that is equal to another by its key."""

    __slots__ = ("_hash",)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Leaf) and self.key == other.key)

    def __hash__(self) -> int:
        return self._hash

    def _keyed(self, dtype: DType, *key: Any) -> None:
        self.dtype, self.axes, self.wide = dtype, NO_AXES, False
        self.key = (type(self), dtype, *key)
        self._hash = hash(self.key)


class Const(_Leaf):
    """A literal: a bool as 0 or 1, NaN and signed zeros apart from their equals."""

    __slots__ = ("value",)
    value: float | int

    def __init__(self, dtype: DType, value: float | int) -> None:
        self.value = value
        self._keyed(dtype, struct.pack("<d", value) if isinstance(value, float) else value)


class Var(_Leaf):
    """A variable of the kernel; ``wide`` ones hold a lane each."""

    __slots__ = ("name",)
    name: str

    def __init__(self, dtype: DType, name: str, wide: bool = False) -> None:
        self.name = name
        self._keyed(dtype, name, wide)
        self.wide = wide


class Coordinate(Expr):
    """An index as a number of an integer type."""

    __slots__ = ("index",)
    index: Index

    def __new__(cls, dtype: DType, index: Index) -> Coordinate:
        """``index`` as data."""
        made, new = cls._interned(dtype, index)
        if new:
            made.index, made.axes = index, frozenset(axes_of(index))
        return made  # type: ignore[no-any-return]


class Load(Expr):
    """The element at a flat position of a value held in memory."""

    __slots__ = ("index", "source")
    source: int
    index: Index

    def __new__(cls, dtype: DType, source: int, index: Index) -> Load:
        """Element ``index`` of the value numbered ``source``."""
        made, new = cls._interned(dtype, source, index)
        if new:
            made.source, made.index, made.axes = source, index, frozenset(axes_of(index))
        return made  # type: ignore[no-any-return]


class Cell(Expr):
    """The element at a position of a private array of the kernel."""

    __slots__ = ("array", "index")
    array: str
    index: Index

    def __new__(cls, dtype: DType, array: str, index: Index) -> Cell:
        """Element ``index`` of the array called ``array``."""
        made, new = cls._interned(dtype, array, index)
        if new:
            made.array, made.index, made.axes = array, index, frozenset(axes_of(index))
        return made  # type: ignore[no-any-return]


class Listed(Expr):
    """One of some numbers that are known where the kernel is written, at a position."""

    __slots__ = ("index", "numbers")
    numbers: tuple[int, ...]
    index: Index

    def __new__(cls, dtype: DType, numbers: tuple[int, ...], index: Index) -> Listed:
        """Number ``index`` of a list of the 32-bit type ``dtype``."""
        made, new = cls._interned(dtype, numbers, index)
        if new:
            made.numbers, made.index, made.axes = numbers, index, frozenset(axes_of(index))
        return made  # type: ignore[no-any-return]


class Apply(Expr):
    """A scalar op applied to expressions."""

    __slots__ = ("args", "op")
    op: str
    args: tuple[Expr, ...]

    def __new__(cls, dtype: DType, op: str, *args: Expr) -> Apply:
        """``op`` on ``args`` with a result of ``dtype``."""
        made, new = cls._interned(dtype, op, *args)
        if new:
            assert op in SCALAR_OPS, op
            made.op, made.args = op, args
            made.axes = NO_AXES
            for arg in args:
                if arg.axes and arg.axes is not made.axes:
                    made.axes |= arg.axes
                made.wide = made.wide or arg.wide
        return made  # type: ignore[no-any-return]


def substitute(expr: Expr, values: Mapping[Axis, Index]) -> Expr:
    """``expr`` with loop variables given other values."""
    done: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if not any(axis in values for axis in node.axes):
            return node
        if node not in done:
            done[node] = _substituted(node)
        return done[node]

    def _substituted(node: Expr) -> Expr:
        match node:
            case Apply():
                return Apply(node.dtype, node.op, *map(visit, node.args))
            case Load():
                return Load(node.dtype, node.source, replaced(node.index, values))
            case Cell():
                return Cell(node.dtype, node.array, replaced(node.index, values))
            case Listed():
                return Listed(node.dtype, node.numbers, replaced(node.index, values))
            case Coordinate():
                return Coordinate(node.dtype, replaced(node.index, values))
        return node

    return visit(expr)


def walk(expr: Expr) -> Iterator[Expr]:
    """``expr`` and everything below it, each once; expressions inside indices included."""
    from ptir.codegen.expressions.index import Dynamic, Quotient, Remainder

    seen: set[Expr] = set()
    pending: list[Any] = [expr]
    while pending:
        node = pending.pop()
        match node:
            case Index():
                pending.extend(node.terms)
            case Quotient() | Remainder():
                pending.append(node.of)
            case Dynamic():
                pending.append(node.value)
            case Expr() if node not in seen:
                seen.add(node)
                yield node
                pending.extend(node.args if isinstance(node, Apply) else ())
                if isinstance(node, Load | Cell | Listed | Coordinate):
                    pending.append(node.index)


def carrier(dtype: DType) -> DType:
    """The type in which values of ``dtype`` are computed."""
    return F32 if dtype in (F16, BF16) else dtype


def is_alike(a: DType, b: DType) -> bool:
    """Whether values of two types are computed in one."""
    return carrier(a) == carrier(b)


def whole_word(dtype: DType) -> DType:
    """As what a value of ``dtype`` is put into an array that has a place of its own for each."""
    return max(carrier(dtype), I32, key=lambda one: one.bits)


def constant(dtype: DType, value: float | int) -> Const:
    """A literal of ``dtype``."""
    return Const(dtype, float(value) if dtype.is_float else int(value))


def as_index(expr: Expr, low: int, high: int) -> Index:
    """An integer expression used as an index, known to lie in ``low .. high``."""
    from ptir.codegen.expressions.index import dynamic

    if isinstance(expr, Coordinate) and low <= expr.index.low and expr.index.high <= high:
        return expr.index
    if isinstance(expr, Const):
        return number(int(expr.value))
    return dynamic(expr, low, high)


def compare(op: str, a: Expr, b: Expr | float) -> Expr:
    """``a op b`` as a mask; decided now where both are known coordinates."""
    limit = b if isinstance(b, Expr) else constant(a.dtype, b)
    decided = _decided(op, a, limit)
    return Apply(BOOL, op, a, limit) if decided is None else Const(BOOL, int(decided))


def _decided(op: str, a: Expr, b: Expr) -> bool | None:
    left, right = _range(a), _range(b)
    if left is None or right is None or op not in ("lt", "le", "gt", "ge"):
        return None
    (low, high), (least, most) = left, right
    if op in ("gt", "ge"):
        (low, high), (least, most) = (least, most), (low, high)
    strict = op in ("lt", "gt")
    if high < least or (not strict and high <= least):
        return True
    if low > most or (strict and low >= most):
        return False
    return None


def _range(expr: Expr) -> tuple[int, int] | None:
    """The range of an integer expression whose value cannot have wrapped."""
    if isinstance(expr, Const) and isinstance(expr.value, int):
        return expr.value, expr.value
    if isinstance(expr, Coordinate):
        return expr.index.bounds
    return None


def select(mask: Expr, on_true: Expr, on_false: Expr) -> Expr:
    """``on_true`` where the mask holds, else ``on_false``."""
    if isinstance(mask, Const):
        return on_true if mask.value else on_false
    if on_true is on_false:
        return on_true
    return Apply(on_true.dtype, "select", mask, on_true, on_false)
