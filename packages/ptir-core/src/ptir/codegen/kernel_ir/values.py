"""Expressions that stand in kernels only: memory by name, and values that hold an element per lane.

They join the scalar expressions of ``codegen.expressions.expr``. In a kernel nothing depends on a
lane implicitly: a *wide* value says so, and a scalar becomes one by ``Splat``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self, TypeAlias

from ptir.codegen.expressions.expr import NO_AXES, Apply, Const, Coordinate, Expr, Var
from ptir.codegen.expressions.index import Atom, Axis, Dynamic, Index, Quotient, Remainder
from ptir.types import I32, U32, DType


class Read(Expr):
    """Elements of a memory: the one at ``index``, or one per lane from there on.

    ``memory`` is the name of an argument, or of an array of the kernel. An argument's elements are
    read as ``dtype``, whatever the argument holds. The index of an argument may be given in two
    parts: an address in a variable, ``base``, from which it is only a short way.
    """

    __slots__ = ("base", "index", "memory")
    memory: str
    index: Index
    base: Index | None

    def __new__(
        cls, dtype: DType, memory: str, index: Index, wide: bool = False, base: Index | None = None
    ) -> Read:
        """Element ``index`` of ``memory``, counted from ``base``; where ``wide`` those behind."""
        made, new = cls._interned(dtype, memory, index, wide, base)
        if new:
            made.memory, made.index, made.axes, made.wide = memory, index, NO_AXES, wide
            made.base = base
        return made  # type: ignore[no-any-return]

    @property
    def place(self) -> Index:
        """The whole index."""
        return self.index if self.base is None else self.base + self.index


class Splat(Expr):
    """A scalar in every lane."""

    __slots__ = ("of",)
    of: Expr

    def __new__(cls, of: Expr) -> Self:
        """``of``, which is not wide."""
        return cls._of(of.dtype, of, wide=True)


class Gather(Expr):
    """A wide value made of one scalar per lane."""

    __slots__ = ("parts",)
    parts: tuple[Expr, ...]

    def __new__(cls, *parts: Expr) -> Gather:
        """The scalars, as many as there are lanes."""
        made, new = cls._interned(parts[0].dtype, *parts)
        if new:
            made.parts, made.axes, made.wide = parts, NO_AXES, True
        return made  # type: ignore[no-any-return]


class Lane(Expr):
    """One lane of a wide variable."""

    __slots__ = ("number", "of")
    of: Var
    number: int

    def __new__(cls, of: Var, number: int) -> Self:
        """Lane ``number`` of the variable."""
        return cls._of(of.dtype, of, number)


class ReduceLanes(Expr):
    """All lanes of a wide variable combined: lane i with lane i + half, until one is left."""

    __slots__ = ("of", "op")
    op: str
    of: Var

    def __new__(cls, op: str, of: Var) -> Self:
        """The lanes of ``of`` combined by a scalar op."""
        return cls._of(of.dtype, op, of)


class ShuffleXor(Expr):
    """A variable as it is in the thread of the subgroup whose number differs in one bit."""

    __slots__ = ("bit", "of")
    of: Var
    bit: int

    def __new__(cls, of: Var, bit: int) -> Self:
        """``of`` in the thread whose number differs by ``bit``, a power of two."""
        return cls._of(of.dtype, of, bit)


class Word(Expr):
    """One of the four words of a ``LoadWords``."""

    __slots__ = ("number", "of")
    of: str
    number: int

    def __new__(cls, of: str, number: int) -> Self:
        """Word ``number`` (0 to 3) of the 16 bytes called ``of``."""
        return cls._of(U32, of, number)


class FetchAdd(Expr):
    """A counter as it was before one was added to it, in one step."""

    __slots__ = ("index", "memory")
    memory: str
    index: Index

    def __new__(cls, memory: str, index: Index) -> Self:
        """The i32 at ``index`` of an argument."""
        return cls._of(I32, memory, index)


class Poll(Expr):
    """A counter as it is now, whatever was read of it before."""

    __slots__ = ("index", "memory")
    memory: str
    index: Index

    def __new__(cls, memory: str, index: Index) -> Self:
        """The i32 at ``index`` of an argument."""
        return cls._of(I32, memory, index)


class Hoisted(Expr):
    """A scalar that is computed where it stands, inside an index too, and gets no name."""

    __slots__ = ("of",)
    of: Expr

    def __new__(cls, of: Expr) -> Self:
        """``of``, made of values."""
        return cls._of(of.dtype, of)


Node: TypeAlias = Expr | Index | Atom
"""What a value is computed from."""

CHILDREN: Final[Mapping[type, Callable[[Any], Iterable[Node]]]] = {
    **dict.fromkeys((Const, Var, Word, Axis), lambda x: ()),
    **dict.fromkeys((Coordinate, FetchAdd, Poll), lambda x: (x.index,)),
    **dict.fromkeys(
        (Hoisted, Splat, Lane, ReduceLanes, ShuffleXor, Quotient, Remainder), lambda x: (x.of,)
    ),
    Apply: lambda x: x.args,
    Gather: lambda x: x.parts,
    Read: lambda x: (x.place,),
    Index: lambda x: x.terms,
    Dynamic: lambda x: (x.value,),
}
"""By kind: what a value, an index or a term of one is computed from at once."""
