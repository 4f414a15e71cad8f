"""**The statements of a kernel**, every kind of them: what families build and dialects render.

They are equal where they are of one kind and say the same.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, get_args

from ptir.codegen.expressions.expr import Expr, Var
from ptir.codegen.expressions.index import Index
from ptir.types import DType


class Let(NamedTuple):
    """A variable that does not change: its value is what ``value`` is here."""

    variable: Var
    value: Expr


class Declare(NamedTuple):
    """Variables of one type that change, and what they begin with.

    Without values they are written before they are read.
    """

    variables: tuple[Var, ...]
    values: tuple[Expr, ...] = ()


class Assign(NamedTuple):
    """A variable takes another value."""

    variable: Var
    value: Expr


class Array(NamedTuple):
    """An array of ``size`` elements: of the thread, or shared by its workgroup.

    One that has ``numbers`` is a constant.
    """

    name: str
    dtype: DType
    size: int
    shared: bool = False
    numbers: tuple[int, ...] = ()


class Store(NamedTuple):
    """An element of a memory, or one per lane from ``at`` on, takes a value.

    ``memory`` is an argument or an array. An array may hold wider words than the elements: ``at``
    counts elements of ``dtype``.
    """

    dtype: DType
    memory: str
    at: Index
    value: Expr


class LoadWords(NamedTuple):
    """Name 16 bytes of an argument, from an element on whose address 16 divides.

    ``values.Word`` is one of their four words.
    """

    name: str
    dtype: DType
    memory: str
    at: Index


class StoreWords(NamedTuple):
    """Write four u32 to an argument, from an element on whose address 16 divides."""

    dtype: DType
    memory: str
    at: Index
    words: tuple[Expr, ...]


class StorePacked(NamedTuple):
    """The bits of ``mask``, in a word of a memory of u32, become those of ``bits``; others stay.

    Threads and workgroups may do so with other bits of the word at the same time. It is made by
    lowering (``codegen.lowering``), for languages whose memory holds nothing smaller than words.
    """

    memory: str
    at: Index
    mask: Expr
    bits: Expr


class Prefetch(NamedTuple):
    """Have the cache fetch what lies ``ahead`` elements behind ``at``.

    That may be beyond the end of the memory.
    """

    dtype: DType
    memory: str
    at: Index
    ahead: int


class For(NamedTuple):
    """A counted loop: ``variable`` runs from ``first`` up to ``end``, by ``step``.

    ``rolled``: a compiler must leave it as it is.
    """

    variable: str
    first: Expr
    end: Expr
    step: int
    body: tuple[Statement, ...]
    rolled: bool = False


class While(NamedTuple):
    """A loop as long as ``condition`` holds; after each iteration ``variable`` becomes ``after``.

    ``first`` is what the variable begins with where the loop declares it.
    """

    variable: Var
    first: Expr | None
    condition: Expr
    after: Expr
    body: tuple[Statement, ...]
    rolled: bool = False


class If(NamedTuple):
    """Statements where a condition holds, and others where it does not."""

    condition: Expr
    body: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] | None = None


class Scope(NamedTuple):
    """Statements whose variables nobody else sees."""

    body: tuple[Statement, ...]


class Break(NamedTuple):
    """Leave the innermost loop."""


class Barrier(NamedTuple):
    """All threads of the workgroup arrive, and see what the others wrote."""


class LoadMatrices(NamedTuple):
    """Bring four 8 by 8 matrices of 16-bit elements out of a shared array, into u32 variables.

    ``across``: matrices are turned over (``MmaInstruction.load_matrix_transposed``).
    """

    variables: tuple[Var, ...]
    array: str
    at: Index
    across: bool


class Mma(NamedTuple):
    """Add to ``sums`` what the words of a left and of a right matrix of ``dtype`` give."""

    dtype: DType
    sums: tuple[Var, ...]
    left: tuple[Var, ...]
    right: tuple[Var, ...]


class AsyncCopy(NamedTuple):
    """Begin to copy 16 bytes of an argument of words to a shared array.

    16 divides both addresses.
    """

    array: str
    to: Index
    memory: str
    at: Index


class Signal(NamedTuple):
    """Add ``by`` to a counter: who sees it sees all that this thread wrote before."""

    memory: str
    at: Index
    by: Expr


class Fence(NamedTuple):
    """See, from here on, what others wrote before they announced what was seen."""


class Yield(NamedTuple):
    """Give way to other threads, where a language can say so."""


class Switch(NamedTuple):
    """The body whose number a value is."""

    value: Expr
    numbers: tuple[int, ...]
    bodies: tuple[tuple[Statement, ...], ...]


class Addresses(NamedTuple):
    """An array of addresses: each the begin of a memory and bytes behind it."""

    name: str
    memories: tuple[str, ...]
    offsets: tuple[int, ...]


class Call(NamedTuple):
    """Call the function of a phase, given its counters, its workgroups and its buffers.

    The counters lie in ``memory`` from ``at`` on; the addresses of the buffers, of types ``dtypes``
    and perhaps ``written``, in the array ``addresses`` from ``first`` on.
    """

    function: str
    memory: str
    at: Index
    workgroups: Expr
    addresses: str
    first: Index
    dtypes: tuple[DType, ...]
    written: tuple[bool, ...]


class AsyncWait(NamedTuple):
    """Go on when all copies that this thread began are done."""


Statement: TypeAlias = (
    Let
    | Declare
    | Assign
    | Array
    | Store
    | LoadWords
    | StoreWords
    | StorePacked
    | Prefetch
    | For
    | While
    | If
    | Scope
    | Break
    | Barrier
    | LoadMatrices
    | Mma
    | AsyncCopy
    | AsyncWait
    | Signal
    | Fence
    | Yield
    | Switch
    | Addresses
    | Call
)


def _is(one: tuple[object, ...], other: object) -> bool:
    return type(one) is type(other) and tuple.__eq__(one, other)


def _is_not(one: tuple[object, ...], other: object) -> bool:
    return not _is(one, other)


# To a tuple only what it holds counts: a break would be a barrier.
for _kind in get_args(Statement):
    _kind.__eq__, _kind.__ne__, _kind.__hash__ = _is, _is_not, tuple.__hash__
