"""Codes of a grid looked up 64 at a time, where a processor permutes bytes.

An entry of a grid has four or eight numbers out of very few, so the *fields* of an entry, two or
three bits each that say which one, fill two bytes. The bytes of all entries are *planes* of a few
registers, from which one instruction takes a byte for each of 64 codes (``permute_bytes``); another
spreads the fields of four codes to bytes (``bit_fields``), a third finds the numbers
(``table_bytes``). What comes in: the op ``unpack_vectors`` with a constant table. What goes out:
its words as expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ptir.codegen.expressions.bits import moved
from ptir.codegen.expressions.expr import Apply, Coordinate, Expr, Listed, constant
from ptir.codegen.expressions.index import Index, axis
from ptir.codegen.fusion.graph import Builder, Graph
from ptir.codegen.weights.computed_words import SELECTED, VECTORS
from ptir.codegen.weights.panels import LANES
from ptir.ir.program import Instruction
from ptir.types import I32, U32
from ptir.weights.words import BYTE, ONES, SIGNED, WORD, layout

CODES: Final = WORD // BYTE
"""Codes whose lowest bytes are in a word."""
REGISTER: Final = LANES * CODES
"""Bytes of a register."""
NUMBERS: Final = 16
"""Bytes of the table in which fields are places (``table_bytes``)."""
WIDEST: Final = 3
"""Most bits of a field."""
Element: TypeAlias = Callable[[int, Index], Expr]
"""The word of an operand, by its number, at a place along the packed axis."""


@dataclass(frozen=True)
class Fields:
    """The entries of a grid: fields of ``width`` bits, which are places in ``numbers``.

    ``planes`` hold them, a byte for each entry: first those of an entry's first word, ``members``
    fields in a byte. Where ``lifted``, the highest bit of a code is no part of an entry's number:
    it is that of the fields, above ``width``.
    """

    width: int
    numbers: tuple[int, ...]
    planes: tuple[bytes, ...]
    lifted: bool

    @property
    def members(self) -> int:
        """Fields in a byte of a plane."""
        return 4 if 4 * self.width <= BYTE else 2

    def registers(self, plane: int) -> list[Expr]:
        """The bytes of a plane, 64 in each, for the lanes of a vector."""
        words = tuple(np.frombuffer(self.planes[plane], "<u4").tolist())
        count = len(self.planes[plane]) // REGISTER
        return [Listed(U32, words, axis("lane", LANES) + n * LANES) for n in range(count)]


def fields_of(table: NDArray[np.uint32], bits: int) -> Fields | None:
    """The fields of a table u32[entries, words of each] of codes of ``bits`` bits.

    None where an entry has too many different numbers.
    """
    entries = table.astype("<u4").view(np.uint8)
    behind = np.repeat(entries[-1:], max(0, (1 << bits) - len(entries)), axis=0)
    entries = np.concatenate([entries[: 1 << bits], behind])
    halves = np.split(entries, 2)
    ranked = [np.unique(half, return_inverse=True) for half in halves]
    places = [found.reshape(halves[0].shape) for _, found in ranked]
    lifted = len(entries) > 4 * REGISTER and bool((places[0] == places[1]).all())
    parts = ranked if lifted else [np.unique(entries, return_inverse=True)]
    width = max(1, max(len(numbers) - 1 for numbers, _ in parts).bit_length())
    if width > WIDEST:
        return None
    width = max(2, width)
    filled = [np.pad(numbers, (0, (1 << width) - len(numbers))) for numbers, _ in parts]
    numbers = np.resize(np.concatenate(filled), NUMBERS)
    fields = places[0] if lifted else parts[0][1].reshape(entries.shape)
    members = 4 if 4 * width <= BYTE else 2
    grouped = fields.reshape(len(fields), -1, members).astype(np.uint32)
    packed = (grouped << (np.arange(members, dtype=np.uint32) * width)).sum(axis=2)
    planes = tuple(plane.astype(np.uint8).tobytes() for plane in packed.T)
    return Fields(width, tuple(map(int, numbers)), planes, lifted)


class _Codes(NamedTuple):
    """Four codes of each lane: their lowest bytes, and the rest from bit ``shift`` of bytes on."""

    low: Expr
    high: Expr | None
    shift: int

    def bit(self, number: int, to: int) -> Expr:
        """Their bit of a number at bit ``to`` of each byte; what else is there does not count."""
        if number < BYTE:
            return moved(self.low, to - number)
        assert self.high is not None
        return moved(self.high, to - (number - BYTE) - self.shift)


@dataclass(frozen=True)
class GridWords:
    """The words of bytes of codes of ``bits`` bits, ``each`` of them for a code."""

    fields: Fields
    bits: int
    each: int
    signed: bool

    @property
    def together(self) -> int:
        """Words that loops write out: of codes that are looked up at once, and signs in a word."""
        return max(CODES * self.each, SIGNED if self.signed else 1)

    def word(self, element: Element, place: Index) -> Expr | None:
        """A word of lanes; None where it is not known which of those of a lookup it is."""
        code, word = (place // self.each) % CODES, place % self.each
        if not code.is_constant or not word.is_constant:
            return None
        sign = place % SIGNED
        if self.signed and not sign.is_constant:
            return None
        codes = self._codes(element, place // (CODES * self.each))
        found = self._numbers(codes, code.constant, word.constant)
        if not self.signed:
            return found
        mask = constant(U32, ONES << sign.constant)
        return Apply(U32, "negate_bytes", found, element(2, place // SIGNED), mask)

    def _codes(self, element: Element, chunk: Index) -> _Codes:
        how = layout(self.bits)
        first, inside = chunk // how.chunks * how.words, chunk % how.chunks
        low = element(0, first + inside)
        if not how.high:
            return _Codes(low, None, 0)
        high = element(0, first + how.low_words)
        if inside.is_constant:
            return _Codes(low, high, inside.constant * how.above)
        amount = Apply(U32, "convert", Coordinate(I32, inside * how.above))
        return _Codes(low, high >> amount, 0)

    def _numbers(self, codes: _Codes, code: int, word: int) -> Expr:
        """The word of numbers of one of the codes."""
        fields, width = self.fields, self.fields.width
        count = CODES // fields.members
        found: Expr | None = None
        for n in range(count):
            plane = self._plane(codes, word * count + n)
            own = range(n * fields.members, (n + 1) * fields.members)
            starts = _word(
                code * BYTE + (k - own.start) * width if k in own else 0 for k in range(CODES)
            )
            mask = _word((1 << width) - 1 if k in own else 0 for k in range(CODES))
            part = Apply(U32, "bit_fields", plane, constant(U32, starts)) & mask
            found = part if found is None else found | part
        assert found is not None
        if fields.lifted:
            found = found | self._lifted(codes, code)
        numbers = np.frombuffer(bytes(fields.numbers), "<u4").tolist()
        return Apply(U32, "table_bytes", found, *(constant(U32, one) for one in numbers))

    def _lifted(self, codes: _Codes, code: int) -> Expr:
        """The highest bit of a code in each byte, above its fields."""
        top, width = self.bits - 1, self.fields.width
        held = codes.bit(top, BYTE - 1)
        start = code * BYTE + BYTE - 1 - width
        spread = Apply(U32, "bit_fields", held, constant(U32, start * ONES))
        return spread & (ONES << width)

    def _plane(self, codes: _Codes, plane: int) -> Expr:
        """The byte of a plane for each code: from 128 entries each, which further bits choose."""
        parts = self.fields.registers(plane)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        found: Sequence[Expr] = [Apply(U32, "permute_bytes", codes.low, *pair) for pair in pairs]
        bit = BYTE - 1
        while len(found) > 1:
            mask = codes.bit(bit, BYTE - 1)
            lower, upper = found[::2], found[1::2]
            found = [
                Apply(U32, "select_bytes", mask, b, a) for a, b in zip(lower, upper, strict=True)
            ]
            bit += 1
        return found[0]


def grid_words(graph: Graph, made: Instruction, most: int) -> GridWords | None:
    """How the words of an ``unpack_vectors`` are looked up in registers, where they are.

    ``most`` is how many entries a plane may have (``Tiles.register_entries``).
    """
    _, table, signs = made.operands
    of = graph.instruction(table)
    if of is None or of.op != "constant":
        return None
    shape, bits = graph.type(table).shape, made.attributes["bits"]
    words = np.frombuffer(of.attributes["value"].data, "<u4").reshape(shape)
    fields = fields_of(words, bits)
    if fields is None or len(fields.planes[0]) > most:
        return None
    return GridWords(fields, bits, shape[1], graph.type(signs).size > 0)


def look_up_in_registers(graph: Graph, value: int, builder: Builder, most: int) -> GridWords | None:
    """Have a builder take the words of a value from registers; None where it cannot."""
    made = graph.instruction(value)
    while made is not None and made.op in SELECTED:
        value = made.operands[0]
        made = graph.instruction(value)
    if made is None or made.op != VECTORS or (how := grid_words(graph, made, most)) is None:
        return None
    along = made.attributes["axis"]

    def word(at: tuple[Index, ...]) -> Expr | None:
        def element(operand: int, place: Index) -> Expr:
            return builder.at(made.operands[operand], (*at[:along], place, *at[along + 1 :]))

        return how.word(element, at[along])

    builder.computed[value] = word
    return how


def _word(values: Iterable[int]) -> int:
    return int.from_bytes(bytes(values), "little")
