"""Writes the body of one kernel: expressions with common parts shared, loads and stores.

A body asks for the value of an expression either for one element (*scalar*) or for all lanes at
once (*wide*, while a lane axis is set). Parts that do not depend on the lane stay scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, Final

from ptir.backend.kernel import Argument, Language
from ptir.codegen.expressions.expr import (
    Apply,
    Cell,
    Coordinate,
    Expr,
    Listed,
    Load,
    Var,
    substitute,
    walk,
)
from ptir.codegen.expressions.index import (
    Atom,
    Axis,
    Dynamic,
    Index,
    axes_of,
    axis,
    number,
    replaced,
)
from ptir.codegen.kernel_ir.nodes import LoadWords, Prefetch, Statement, Store, StoreWords
from ptir.codegen.kernel_ir.statements import Statements, Whole
from ptir.codegen.kernel_ir.values import Gather, Lane, Read, ReduceLanes, Splat, Word
from ptir.types import F32, U32, DType

WORDS: Final = 4
"""Words of 16 bytes."""
WRITTEN_OUT: Final = 32
"""Most vectors that are written out, not looped over: those of heads of 512."""
COMPUTED: Final = 5
"""Ops from which places of elements are computed for all lanes at once, not lane by lane."""


class Writer(Statements):
    """The body of one kernel under construction, and the buffers that it turned out to use."""

    def __init__(self, dialect: Language) -> None:
        super().__init__(dialect)
        self.lane: Axis | None = None
        self.arguments: dict[int, Argument] = {}
        self._ahead: dict[int, int] = {}
        self._run: tuple[Axis, int, int] | None = None
        self._run_stores: dict[tuple[str, DType, Index], list[Expr]] = {}
        """By buffer, element and first place: words that wait until 16 bytes are complete."""

    @contextmanager
    def lanes(self, lane: Axis | None) -> Iterator[None]:
        """Values asked for inside hold one element per value of ``lane``."""
        before, self.lane = self.lane, None if self.dialect.lanes == 1 else lane
        yield
        self.lane = before

    @contextmanager
    def vectors(self, count: int, first: Whole = 0, end: Whole | None = None) -> Iterator[Index]:
        """A loop over ``count`` vectors, or some of them; gives the place of a lane's element."""
        lanes = self.dialect.lanes
        with self.each("v", count, first, end) as vector, self.lanes(Axis("lane", lanes)):
            yield vector * lanes + axis("lane", lanes)

    def each_vector(self, count: int, body: Callable[[Index], None]) -> None:
        """Call ``body`` with the places of every vector, a few of which are written out.

        Then it is known which half of a rope, or which of what is joined, the places are in: in a
        loop every lane would ask for itself.
        """
        lanes = self.dialect.lanes
        if lanes == 1 or count > WRITTEN_OUT:
            with self.vectors(count) as places:
                body(places)
            return
        for vector in range(count):
            with self.lanes(Axis("lane", lanes)):
                body(axis("lane", lanes) + vector * lanes)

    def each_element(
        self, size: int, body: Callable[[Index], None], written_out: bool = False
    ) -> None:
        """Call ``body`` with every place below ``size``: whole vectors, then single elements.

        Where ``written_out``, vectors are those of ``each_vector``, else a loop.
        """
        lanes = self.dialect.lanes
        if (whole := size // lanes) and written_out:
            self.each_vector(whole, body)
        elif whole:
            with self.vectors(whole) as places:
                body(places)
        for place in range(whole * lanes, size):
            with self.scope():
                body(number(place))

    def prefetch(self, value: int, nbytes: int) -> None:
        """Have wide loads of a value also fetch what lies ``nbytes`` further on; 0: they do not."""
        self._ahead[value] = nbytes

    def body(self) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
        """The preamble, which is the same for every workgroup, and the body that each does."""
        assert not self._run_stores, f"stores of 16 bytes left half done: {self._run_stores}"
        return super().body()

    @contextmanager
    def vectorized_run(self, block: Index, size: int, place: int) -> Iterator[None]:
        """What is done inside is for place number ``place`` of a run of ``size`` neighbours.

        ``block`` is the run's number. Elements that are neighbours for the whole run are loaded
        16 bytes at once, and stored so.
        """
        (atom,) = block.terms if len(block.terms) == 1 else (None,)
        self._run = (atom, size, place) if isinstance(atom, Axis) else None
        yield
        self._run = None

    # --- names of buffers ---

    def memory(self, value: int, dtype: DType, written: bool = False) -> str:
        """The name of the argument that holds the value numbered ``value``.

        Who asks first says as what its elements are declared; others read them as they say.
        """
        known = self.arguments.get(value)
        if known is None:
            known = Argument(f"b{len(self.arguments)}", dtype, written)
        elif not written or known.written:
            return known.name
        made = Argument(known.name, known.dtype, written)
        self.arguments[value] = made
        return made.name

    # --- expressions ---

    def scalar(self, expr: Expr) -> Expr:
        """The value of an expression for one element."""
        before, self.lane = self.lane, None
        found = self.value(expr)
        self.lane = before
        return found

    def wide(self, expr: Expr) -> Expr:
        """The value of an expression in every lane."""
        return self.widened(self.value(expr))

    def widened(self, value: Expr) -> Expr:
        """``value`` in every lane."""
        return value if value.wide else Splat(value)

    def value(self, expr: Expr) -> Expr:
        """The value of an expression, per lane where it depends on the lane.

        What is computed or loaded is named, once in a block and all that are inside of it. What
        stands in kernels only (``kernel_ir.values``) is a value already.
        """
        spelled = SPELLED.get(type(expr))
        if spelled is None:
            return expr
        lane = self.lane if self.lane in expr.axes or expr.wide else None
        if isinstance(expr, Coordinate):
            return spelled(self, expr, lane)
        known = self.known((expr, lane))
        if known is not None:
            return known
        return self.remember((expr, lane), self.let(spelled(self, expr, lane)))

    def index(self, index: Index) -> Index:
        """An index whose values known at run time only are named, or are literals."""
        if not index.is_dynamic:
            return index
        values: dict[Atom, Atom] = {}
        for atom, _ in sorted(index.terms.items(), key=lambda item: -abs(item[1])):
            values[atom] = self._atom(atom)
        return Index({values[atom]: factor for atom, factor in index.terms.items()}, index.constant)

    def _atom(self, atom: Atom) -> Atom:
        if isinstance(atom, Dynamic):
            return Dynamic(self.scalar(atom.value), atom.low, atom.high)
        if isinstance(atom, Axis):
            return atom
        return type(atom)(self.index(atom.of), atom.by)

    def apply(self, op: str, dtype: DType, *args: Expr) -> Expr:
        """A scalar op on values, computed where it stands; lane by lane where one is wide."""
        if any(arg.wide for arg in args):
            args = tuple(map(self.widened, args))
        return Apply(dtype, op, *args)

    def _applied(self, expr: Apply, lane: Axis | None) -> Expr:
        extreme = _extreme(expr) if lane is not None and self.dialect.ordered_extremes else None
        if extreme is not None:  # an instruction, and its mask is no value that anybody needs
            return self.apply(extreme, expr.dtype, *map(self.value, expr.args[1:]))
        return self.apply(expr.op, expr.dtype, *map(self.value, expr.args))

    def _coordinate(self, expr: Coordinate, lane: Axis | None) -> Expr:
        if lane is None:
            return Coordinate(expr.dtype, self.index(expr.index))
        return self._per_lane(expr, lane)

    def _listed(self, expr: Listed, lane: Axis | None) -> Expr:
        return self._element(Cell(expr.dtype, self.constants(expr.numbers), expr.index), lane)

    def _element(self, expr: Load | Cell, lane: Axis | None) -> Expr:
        if lane is None:
            return self._read(expr, False)
        if expr.index.coefficient(lane) != 1:
            return self._looked_up(expr, lane) or self._per_lane(expr, lane)
        first = replaced(expr.index, {lane: number(0)})
        at = type(expr)(expr.dtype, expr.key[2], first)
        self._prefetch(at)
        return self._read(at, self.dialect.lanes > 1)

    def _prefetch(self, expr: Load | Cell) -> None:
        """Fetch what a later load will want, where that was asked for."""
        if not isinstance(expr, Load) or not (nbytes := self._ahead.get(expr.source, 0)):
            return
        index = self.index(expr.index)
        memory = self.memory(expr.source, expr.dtype)
        self.emit(Prefetch(expr.dtype, memory, index, nbytes // expr.dtype.itemsize))

    def element(self, expr: Load | Cell) -> Expr:
        """One element where it lies in memory: read where it stands."""
        before, self.lane = self.lane, None
        found = self._read(expr, False)
        self.lane = before
        return found

    def _read(self, expr: Load | Cell, wide: bool) -> Expr:
        if isinstance(expr, Cell):
            return Read(expr.dtype, expr.array, self.index(expr.index), wide)
        memory = self.memory(expr.source, expr.dtype)
        found = self._of_run(expr, memory) if self._run is not None and not wide else None
        return found or Read(expr.dtype, memory, self.index(expr.index), wide)

    def _of_run(self, expr: Load, memory: str) -> Expr | None:
        """The element as a part of 16 bytes that are loaded once for its run, where it is one."""
        assert self._run is not None
        run, size, place = self._run
        left = expr.index % WORDS
        if not _is_word(expr.dtype) or size % WORDS or not left.is_constant:
            return None
        if expr.index.coefficient(run) != size:
            return None
        first = expr.index - left.constant
        key = "16 bytes", memory, expr.dtype, first
        known = self.known(key)
        if known is None:
            if left.constant or place % WORDS:
                return None  # the run does not begin where 16 bytes do
            name, at = self.name("w"), self.index(first)
            self.emit(LoadWords(name, expr.dtype, memory, at))
            known = self.remember(key, Var(U32, name))
        assert isinstance(known, Var)
        return Apply(expr.dtype, "bits", Word(known.name, left.constant))

    def _looked_up(self, expr: Load | Cell, lane: Axis) -> Expr | None:
        """Elements at places that are computed for all lanes at once, where that takes many ops."""
        varied = [atom for atom in expr.index.terms if lane in axes_of(Index({atom: 1}))]
        place = varied[0] if len(varied) == 1 else None
        if not isinstance(place, Dynamic) or not isinstance(expr, Load):
            return None
        if sum(isinstance(one, Apply) for one in walk(place.value)) < COMPUTED:
            return None
        held = self.value(place.value)
        if not isinstance(held, Var) or not held.wide:
            return None
        rest = expr.index - Index({place: expr.index.terms[place]})
        memory, factor = self.memory(expr.source, expr.dtype), expr.index.terms[place]
        found: list[Expr] = []
        for number_ in range(self.dialect.lanes):
            at = Index({Dynamic(Lane(held, number_), place.low, place.high): factor}) + rest
            found.append(Read(expr.dtype, memory, self.index(at)))
        return Gather(*found)  # the reads stand in it: a dialect may have an instruction for all

    def _per_lane(self, expr: Expr, lane: Axis) -> Expr:
        """One scalar per lane, put together."""
        each = (
            self.scalar(substitute(expr, {lane: number(place)}))
            for place in range(self.dialect.lanes)
        )
        return Gather(*each)

    # --- stores ---

    def store(
        self, value: int, dtype: DType, index: Index, expr: Expr, within: DType | None = None
    ) -> None:
        """Write an element, or one per lane while a lane is set.

        Bytes may be written into wider words of type ``within``; ``index`` counts the bytes.
        """
        lane = self.lane
        memory = self.memory(value, within or dtype, written=True)
        if lane is None:
            if not self._store_of_run(dtype, memory, index, expr):
                self.emit(Store(dtype, memory, self.index(index), self.scalar(expr)))
            return
        found = self.wide(expr)
        if index.coefficient(lane) == 1:
            first = self.index(replaced(index, {lane: number(0)}))
            self.emit(Store(dtype, memory, first, found))
            return
        held = self.let(found)
        for place in range(self.dialect.lanes):
            at = self.index(replaced(index, {lane: number(place)}))
            self.emit(Store(dtype, memory, at, Lane(held, place)))

    def _store_of_run(self, dtype: DType, memory: str, index: Index, expr: Expr) -> bool:
        """Keep an element of a run until its 16 bytes are complete; says whether it is one."""
        if self._run is None or not _is_word(dtype):
            return False
        run, size, place = self._run
        left = index % WORDS
        first = index - left.constant
        if size % WORDS or index.coefficient(run) != size or not left.is_constant:
            return False
        if left.constant != place % WORDS:
            return False  # the run does not begin where 16 bytes do
        words = self._run_stores.setdefault((memory, dtype, first), [])
        words.append(Apply(U32, "bits", self.scalar(expr)))
        if len(words) == WORDS:
            self.emit(StoreWords(dtype, memory, self.index(first), tuple(words)))
            del self._run_stores[memory, dtype, first]
        return True

    def put(self, array: str, place: Index, expr: Expr, dtype: DType = F32) -> None:
        """Write an element of an array of the kernel, or one per lane while a lane is set.

        The array may hold wider words than the elements (``Dialect.private_store``).
        """
        lane = self.lane
        if lane is None:
            at, found = self.index(place), self.scalar(expr)
        else:
            at, found = self.index(replaced(place, {lane: number(0)})), self.wide(expr)
        self.emit(Store(dtype, array, at, found))

    def add_product(self, sum: Var, a: Expr, b: Expr) -> None:
        """A variable grows by a product, lane by lane where it is wide."""
        self.assign(sum, self.apply("fma", sum.dtype, a, b, sum))

    def total(self, values: Sequence[Expr]) -> Expr:
        """The sum of values in this order."""
        return reduce(lambda a, b: self.apply("add", a.dtype, a, b), values)

    def reduce_lanes(self, op: str, held: Var) -> Expr:
        """All lanes of a wide variable combined with ``op``, pairwise, in a fixed order."""
        if self.dialect.reduce_lanes(op, held.dtype, held.name) is not None:
            return self.let(ReduceLanes(op, held))
        parts: list[Expr] = [Lane(held, place) for place in range(self.dialect.lanes)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [
                self.let(Apply(held.dtype, op, parts[i], parts[i + half])) for i in range(half)
            ]
        return parts[0]


SPELLED: Final[Mapping[type, Callable[[Writer, Any, Axis | None], Expr]]] = {
    Coordinate: Writer._coordinate,
    Load: Writer._element,
    Cell: Writer._element,
    Listed: Writer._listed,
    Apply: Writer._applied,
}
"""What of the scalar expressions is more than a value, and how it becomes one."""


def _is_word(dtype: DType) -> bool:
    """Whether an element lies in memory as one word, as it is carried."""
    return dtype.bits == 32 and dtype.kind != "bool"


EXTREMES: Final = {"gt": "max", "lt": "min"}
"""The op that is its first operand where that compares so with the second, else the second."""


def _extreme(expr: Apply) -> str | None:
    """``max`` or ``min`` where two numbers are selected by comparing them with each other."""
    if expr.op != "select" or expr.dtype != F32:
        return None
    mask, *values = expr.args
    if not isinstance(mask, Apply) or [*mask.args] != values:
        return None
    return EXTREMES.get(mask.op)
