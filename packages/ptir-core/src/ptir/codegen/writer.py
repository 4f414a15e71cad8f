"""Writes the body of one kernel: expressions with common parts shared, loads and stores.

A body asks for the value of an expression either for one element (*scalar*) or for all lanes at
once (*wide*, while a lane axis is set). Parts that do not depend on the lane stay scalar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Final

from ptir.backend.kernel import Argument, Dialect
from ptir.codegen.expr import (
    Apply,
    Cell,
    Const,
    Coordinate,
    Expr,
    Load,
    Var,
    substitute,
)
from ptir.codegen.index import Axis, Index, number, replaced, spelled
from ptir.codegen.statements import Statements
from ptir.types import F32, I32, U32, DType

WORDS: Final = 4
"""Words of 16 bytes."""


@dataclass(frozen=True)
class Text:
    """An expression in the dialect, and whether it holds a value per lane."""

    text: str
    dtype: DType
    wide: bool


class Writer(Statements[Text]):
    """The body of one kernel under construction, and the buffers that it turned out to use."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.lane: Axis | None = None
        self.arguments: dict[int, Argument] = {}
        self._ahead: dict[int, int] = {}
        self._run: tuple[Axis, int, int] | None = None
        self._run_stores: dict[tuple[str, Index], list[str]] = {}
        """By buffer and first element: words that wait until 16 bytes are complete."""

    @contextmanager
    def lanes(self, lane: Axis | None) -> Iterator[None]:
        """Values asked for inside hold one element per value of ``lane``."""
        before, self.lane = self.lane, None if self.dialect.lanes == 1 else lane
        yield
        self.lane = before

    def fetch_ahead(self, value: int, nbytes: int) -> None:
        """Have wide loads of a value also fetch what lies ``nbytes`` further on; 0: they do not."""
        self._ahead[value] = nbytes

    def parts(self) -> tuple[str, str]:
        """What is the same for every item, and what each item does."""
        assert not self._run_stores, f"stores of 16 bytes left half done: {self._run_stores}"
        return super().parts()

    @contextmanager
    def running(self, block: Index, size: int, place: int) -> Iterator[None]:
        """What is done inside is for place number ``place`` of a run of ``size`` neighbours.

        ``block`` is the run's number. Elements that are neighbours for the whole run are loaded
        16 bytes at once, and stored so.
        """
        (atom,) = block.terms if len(block.terms) == 1 else (None,)
        self._run = (atom, size, place) if isinstance(atom, Axis) else None
        yield
        self._run = None

    # --- names of buffers ---

    def buffer(self, value: int, dtype: DType, written: bool = False) -> str:
        """The argument that holds the value numbered ``value``, as elements of ``dtype``."""
        known = self.arguments.get(value)
        if known is None or (written and not known.written):
            self.arguments[value] = Argument(f"b{len(self.arguments)}", dtype, written)
            if known is not None:
                self.arguments[value] = Argument(known.name, known.dtype, True)
        found = self.arguments[value]
        if found.dtype == dtype:
            return found.name
        return f"(({self.dialect.pointer(Argument('', dtype, written))}){found.name})"

    # --- expressions ---

    def scalar(self, expr: Expr) -> str:
        """The value of an expression for one element."""
        with self.lanes(None):
            return self.value(expr).text

    def wide(self, expr: Expr) -> str:
        """The value of an expression in every lane."""
        return self.widened(self.value(expr))

    def widened(self, text: Text) -> str:
        """``text`` in every lane."""
        if text.wide:
            return text.text
        return self.dialect.splat(text.dtype, self.dialect.lanes, text.text)

    def value(self, expr: Expr) -> Text:
        """The value of an expression, per lane where it depends on the lane."""
        lane = self.lane if self.lane in expr.axes or expr.wide else None
        known = self.known((expr, lane))
        if known is not None:
            return known
        made = self._spelled(expr, lane)
        if isinstance(expr, Apply | Load | Cell):
            made = Text(self.let(expr.dtype, made.wide, made.text), expr.dtype, made.wide)
        return self.remember((expr, lane), made)

    def index(self, index: Index) -> str:
        """An index as the text of an integer."""
        return spelled(index, self.scalar)

    def _spelled(self, expr: Expr, lane: Axis | None) -> Text:
        match expr:
            case Const():
                return Text(self.dialect.literal(expr.dtype, expr.value), expr.dtype, False)
            case Var():
                return Text(expr.name, expr.dtype, expr.wide)
            case Coordinate():
                return self._coordinate(expr, lane)
            case Load() | Cell():
                return self._element(expr, lane)
            case Apply():
                return self._applied(expr)
        raise AssertionError(expr)

    def _applied(self, expr: Apply) -> Text:
        found = [self.value(arg) for arg in expr.args]
        wide = any(text.wide for text in found)
        texts = [self.widened(text) if wide else text.text for text in found]
        width = self.dialect.lanes if wide else 1
        of = expr.args[1 if expr.op == "select" else 0].dtype
        return Text(self.dialect.apply(expr.op, expr.dtype, of, width, texts), expr.dtype, wide)

    def _coordinate(self, expr: Coordinate, lane: Axis | None) -> Text:
        if lane is None:
            one = self.dialect.apply("convert", expr.dtype, I32, 1, [self.index(expr.index)])
            return Text(one, expr.dtype, False)
        return self._per_lane(expr, lane)

    def _element(self, expr: Load | Cell, lane: Axis | None) -> Text:
        if lane is None:
            return Text(self._read(expr, 1), expr.dtype, False)
        if expr.index.coefficient(lane) != 1:
            return self._per_lane(expr, lane)
        first = replaced(expr.index, {lane: number(0)})
        at = type(expr)(expr.dtype, expr.key[2], first)
        self._prefetch(at)
        return Text(self._read(at, self.dialect.lanes), expr.dtype, True)

    def _prefetch(self, expr: Load | Cell) -> None:
        """Fetch what a later load will want, where that was asked for."""
        if not isinstance(expr, Load) or not (nbytes := self._ahead.get(expr.source, 0)):
            return
        index = f"{self.index(expr.index)} + {nbytes // expr.dtype.itemsize}"
        text = self.dialect.prefetch(self.buffer(expr.source, expr.dtype), index)
        if text:
            self.line(text)

    def element(self, expr: Load | Cell) -> str:
        """One element where it lies in memory: a text that can be pointed to."""
        with self.lanes(None):
            return self._read(expr, 1)

    def _read(self, expr: Load | Cell, width: int) -> str:
        if isinstance(expr, Cell):
            return self.dialect.private_load(width, expr.array, self.index(expr.index))
        buffer = self.buffer(expr.source, expr.dtype)
        found = self._of_run(expr, buffer) if self._run is not None and width == 1 else None
        return found or self.dialect.load(expr.dtype, width, buffer, self.index(expr.index))

    def _of_run(self, expr: Load, buffer: str) -> str | None:
        """The element as a part of 16 bytes that are loaded once for its run, where it is one."""
        assert self._run is not None
        run, size, place = self._run
        left = expr.index % WORDS
        if not _is_word(expr.dtype) or size % WORDS or not left.is_constant:
            return None
        if expr.index.coefficient(run) != size:
            return None
        first = expr.index - left.constant
        key = "16 bytes", buffer, first
        known = self.known(key)
        if known is None:
            if left.constant or place % WORDS:
                return None  # the run does not begin where 16 bytes do
            name, at = self.name("w"), self.index(first)
            self.line(self.together.words.format(name, buffer, at))
            known = self.remember(key, Text(name, U32, False))
        word = f"{known.text}.{'xyzw'[left.constant]}"
        return self.dialect.apply("bits", expr.dtype, U32, 1, [word])

    def _per_lane(self, expr: Expr, lane: Axis) -> Text:
        """One scalar per lane, put together."""
        each = [
            self.scalar(substitute(expr, {lane: number(place)}))
            for place in range(self.dialect.lanes)
        ]
        return Text(self.dialect.gathered(expr.dtype, each), expr.dtype, True)

    # --- stores ---

    def store(
        self, value: int, dtype: DType, index: Index, expr: Expr, within: DType | None = None
    ) -> None:
        """Write an element, or one per lane while a lane is set.

        Bytes may be written into wider words of type ``within``; ``index`` counts the bytes.
        """
        lane = self.lane
        buffer = self.buffer(value, within or dtype, written=True)
        if within is not None:
            buffer = f"(({self.dialect.pointer(Argument('', dtype, True))}){buffer})"
        if lane is None and not self._store_of_run(dtype, buffer, index, expr):
            self.line(self.dialect.store(dtype, 1, buffer, self.index(index), self.scalar(expr)))
        if lane is None:
            return
        text = self.wide(expr)
        if index.coefficient(lane) == 1:
            first = self.index(replaced(index, {lane: number(0)}))
            self.line(self.dialect.store(dtype, self.dialect.lanes, buffer, first, text))
            return
        self._scatter(buffer, dtype, index, self.let(dtype, True, text), lane)

    def _store_of_run(self, dtype: DType, buffer: str, index: Index, expr: Expr) -> bool:
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
        words = self._run_stores.setdefault((buffer, first), [])
        words.append(self.dialect.apply("bits", U32, dtype, 1, [self.scalar(expr)]))
        if len(words) == WORDS:
            self.line(self.together.put.format(buffer, self.index(first), *words))
            del self._run_stores[buffer, first]
        return True

    def _scatter(self, buffer: str, dtype: DType, index: Index, name: str, lane: Axis) -> None:
        for place in range(self.dialect.lanes):
            at = self.index(replaced(index, {lane: number(place)}))
            one = self.dialect.lane(name, place)
            self.line(self.dialect.store(dtype, 1, buffer, at, one))

    def put(self, array: str, place: Index, expr: Expr, dtype: DType = F32) -> None:
        """Write an element of a private array, or one per lane while a lane is set.

        The array may hold wider words than the elements (``Dialect.private_store``).
        """
        lane = self.lane
        if lane is None:
            at, text, width = place, self.scalar(expr), 1
        else:
            at, text, width = (
                replaced(place, {lane: number(0)}),
                self.wide(expr),
                self.dialect.lanes,
            )
        self.line(self.dialect.private_store(width, array, self.index(at), text, dtype))

    def total(self, texts: Sequence[str]) -> str:
        """The sum of wide f32 in this order."""
        width = self.dialect.lanes
        return reduce(lambda a, b: self.dialect.apply("add", F32, F32, width, [a, b]), texts)

    def product(self, a: str, b: str) -> str:
        """The product of wide f32."""
        return self.dialect.apply("mul", F32, F32, self.dialect.lanes, [a, b])

    def folded(self, op: str, dtype: DType, name: str) -> str:
        """All lanes of a wide variable combined with ``op``, pairwise, in a fixed order."""
        whole = self.dialect.folded(op, dtype, name)
        if whole is not None:
            return self.let(dtype, False, whole)
        parts = [self.dialect.lane(name, place) for place in range(self.dialect.lanes)]
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [self._combined(op, dtype, parts[i], parts[i + half]) for i in range(half)]
        return parts[0]

    def _combined(self, op: str, dtype: DType, a: str, b: str) -> str:
        return self.let(dtype, False, self.dialect.apply(op, dtype, dtype, 1, [a, b]))


def _is_word(dtype: DType) -> bool:
    """Whether an element lies in memory as one word, as it is carried."""
    return dtype.bits == 32 and dtype.kind != "bool"
