"""The dialect of a C-like language: methods that read its tables of names and rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from ptir.backend.clike import names
from ptir.backend.kernel import Argument, Dialect
from ptir.types import BOOL, DTYPES, F32, F64, I32, U32, DType


class CLike(Dialect):
    """A C-like language: tables, and methods that read them.

    Wide values have ``lanes`` lanes; those of one lane are scalars. ``scalar_rows`` needs rows for
    ``recast`` (the bits of a scalar as the type of the result, which is as wide), ``half_bits`` (an
    f32 rounded to f16, half to even, as the integer that is stored) and ``half_value`` (the f32
    that is the f16 of an integer's low 16 bits), or rows for what is made of these.
    """

    types: ClassVar[Mapping[str, str]] = names.worded(names.WORDS)
    """What carries each element type."""
    stored: ClassVar[Mapping[str, str]] = names.worded(names.WORDS, names.STORED)
    """What lies in memory."""
    suffixes: ClassVar[Mapping[str, str]] = names.SUFFIXES
    """What follows the digits of an integer."""
    special: ClassVar[Mapping[str, tuple[str, str, str]]] = names.SPECIAL
    """NaN, infinity and its negative, by carrier."""
    functions: ClassVar[Mapping[str, str]] = names.FUNCTIONS
    """What the functions of floats are called."""
    call: ClassVar[str] = "{function}({args})"
    """A row: a call of one of ``functions``."""
    space: ClassVar[str] = ""
    """What a pointer to the device's memory begins with."""
    vector: ClassVar[str]
    """The type of a wide value: a template of ``{type}`` (of a lane), its name ``{carrier}``, and
    ``{n}``."""
    component: ClassVar[str] = "{0}[{1}]"
    """A lane of a wide variable."""
    array: ClassVar[str] = "{type} {name}[{size}] __attribute__((aligned(64)));"
    """A private array."""
    constant: ClassVar[str] = "const"
    """What stands in front of an array that never changes."""
    scalar_rows: ClassVar[Mapping[str, Spelling]]
    """Rows of scalars: ``SCALAR`` and what is spelled otherwise."""
    wide_rows: ClassVar[Mapping[str, Spelling]] = {}
    """Rows of wide values: ``WIDE`` and what differs. Nothing: all is done lane by lane. ``mask``
    is how a relation of lanes of other than 32 bits becomes masks of 32."""
    entry: ClassVar[str]
    """A kernel: a template of ``{name}``, ``{arguments}`` and ``{comma}`` (which follows them where
    there are any), ``{head}`` (the same for every workgroup) and ``{each}``, which finds the
    workgroup's number in ``item``."""

    # --- names ---

    def type(self, dtype: DType, width: int = 1) -> str:
        """From the table, or the vector's."""
        word = self.types[dtype.name]
        if width == 1:
            return word
        return self.vector.format(type=word, carrier=names.CARRIERS[dtype.name], n=width)

    def storage(self, dtype: DType) -> str:
        """What elements are in memory."""
        return self.stored[dtype.name]

    def literal(self, dtype: DType, value: float | int) -> str:
        """Exact: floats in hexadecimal."""
        if dtype == BOOL:
            return "-1" if value else "0"
        if dtype.is_float and dtype.bits > 8:
            return self._float(float(value), dtype)
        suffix = self.suffixes.get(dtype.name, "")
        if value == -(1 << (dtype.bits - 1)) and dtype.bits >= 32:
            return f"({value + 1}{suffix}-1)"
        return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"

    def _float(self, value: float, dtype: DType) -> str:
        if not math.isfinite(value):
            nan, infinity, negative = self.special[names.CARRIERS[dtype.name]]
            return nan if math.isnan(value) else negative if value < 0 else infinity
        text = value.hex() + ("" if dtype == F64 else "f")
        return f"({text})" if text.startswith("-") else text

    def pointer(self, argument: Argument) -> str:
        """A pointer."""
        constant = "" if argument.written else "const "
        return f"{self.space}{constant}{self.storage(argument.dtype)} *"

    def kernel(self, name: str, arguments: Sequence[Argument], body: str) -> str:
        """The template without a head."""
        return self.kernel_with_preamble(name, arguments, "", body)

    def kernel_with_preamble(
        self, name: str, arguments: Sequence[Argument], preamble: str, body: str
    ) -> str:
        """The template."""
        listed = ", ".join(f"{self.pointer(a)}{a.name}" for a in arguments)
        preamble = f"{preamble}\n" if preamble else ""
        comma = "," if arguments else ""
        return self.entry.format(name=name, arguments=listed, comma=comma, head=preamble, each=body)

    # --- ops ---

    def spell(self, row: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """A row for these types and operands; raises ``LookupError`` where there is none."""
        rows = self._rows(width)
        if row not in rows:
            kind = "scalar_rows" if width == 1 else "wide_rows"
            raise LookupError(f"{self.name}: {kind} has no {row!r}: add how it is spelled")
        return self.filled(rows[row], row, dtype, of, width, args)

    def _rows(self, width: int) -> Mapping[str, Spelling]:
        return self.scalar_rows if width == 1 else self.wide_rows

    def filled(
        self, spelling: Spelling, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]
    ) -> str:
        """A template filled in, or what a function says."""
        if not isinstance(spelling, str):
            return spelling(self, dtype, of, width, args)
        return spelling.format(
            *args,
            args=", ".join(args),
            op=op,
            function=self.functions.get(op, op),
            type=self.type(dtype, width),
            result=names.CARRIERS[dtype.name],
            operand=names.CARRIERS[of.name],
            stored=names.STORED[dtype.name],
            name=dtype.name,
            n=width if width > 1 else "",
            v="v" if width > 1 else "",
        )

    def apply(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """Its row, or an operator, or a function of floats."""
        rows = self._rows(width)
        if not rows:
            return self.by_lanes(op, dtype, of, width, args)
        if op in rows:
            return self.filled(rows[op], op, dtype, of, width, args)
        if op in names.RELATIONS:
            return self._relation(f"{args[0]} {names.RELATIONS[op]} {args[1]}", of, width)
        if op in self.functions and dtype.is_float:
            return self.function(op, dtype, width, args)
        return self.operator(op, dtype, width, args)

    def by_lanes(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """The op of each lane, put together."""
        return self.lanewise(dtype, width, lambda _, *one: self.apply(op, dtype, of, 1, one), *args)

    def lanewise(self, dtype: DType, width: int, one: Callable[..., str], *args: str) -> str:
        """A wide value: in each lane ``one`` of the lane's number and of this lane of ``args``."""
        each = (
            one(str(n), *(self.lane(arg if arg.isidentifier() else f"({arg})", n) for arg in args))
            for n in range(width)
        )
        return self.gathered(dtype, [*each])

    def _relation(self, text: str, of: DType, width: int) -> str:
        """A comparison as a mask; between wide values it is one, as wide as what was compared."""
        if width == 1:
            return f"(-({text}))"
        same = DTYPES[names.CARRIERS[of.name]].bits == 32
        return f"({text})" if same else self.spell("mask", BOOL, of, width, [text])

    def function(self, op: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """A call of what the table says."""
        return self.filled(self.call, op, dtype, dtype, width, args)

    def operator(self, op: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """An operator between numbers; integers wrap where they overflow."""
        if dtype.is_float or op not in names.WRAPPING:
            return self.whole(dtype, width, names.FORMS[op].format(*args))
        return self.wrapped(op, dtype, width, args)

    def wrapped(self, op: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """One of ``FORMS`` of integers as unsigned ones, brought back."""
        bits = dtype.bits if width > 1 else max(32, dtype.bits)
        unsigned = self.type(DTYPES[f"u{bits}"], width)
        text = names.FORMS[op].format(*(f"({unsigned}){arg}" for arg in args))
        return f"({self.type(dtype, width)})({text})"

    def whole(self, dtype: DType, width: int, text: str) -> str:
        """A single integer narrower than ``int`` was promoted: bring it back."""
        narrow = width == 1 and dtype.bits < 32 and not dtype.is_float and dtype != BOOL
        return f"({self.types[dtype.name]})({text})" if narrow else f"({text})"

    # --- wide values ---

    def splat(self, dtype: DType, width: int, text: str) -> str:
        """Its row."""
        return text if width == 1 else self.spell("splat", dtype, dtype, width, [text])

    def gathered(self, dtype: DType, texts: Sequence[str]) -> str:
        """Its row."""
        if len(texts) == 1:
            return texts[0]
        return self.spell("gathered", dtype, dtype, len(texts), texts)

    def lane(self, text: str, number: int) -> str:
        """The template."""
        return text if self.lanes == 1 else self.component.format(text, number)

    # --- memory ---

    def load(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """Elements as they lie there, and as what carries them; without a row lane by lane."""
        if "load" not in self._rows(width):
            return self.lanewise(
                dtype, width, lambda lane: self.load(dtype, 1, buffer, f"{index} + {lane}")
            )
        return self.carried(dtype, width, self.spell("load", dtype, dtype, width, [buffer, index]))

    def store(self, dtype: DType, width: int, buffer: str, index: str, text: str) -> str:
        """What carries the elements, narrowed; without a row lane by lane."""
        if "store" not in self._rows(width):
            each = (
                self.store(dtype, 1, buffer, f"{index} + {n}", self.lane("lanes", n))
                for n in range(width)
            )
            return f"{{ const {self.type(dtype, width)} lanes = {text}; {' '.join(each)} }}"
        text = self.narrowed(dtype, width, text)
        return self.spell("store", dtype, dtype, width, [buffer, index, text])

    def carried(self, dtype: DType, width: int, text: str) -> str:
        """What carries an element, from what lies in memory."""
        if names.STORED[dtype.name] == names.CARRIERS[dtype.name]:
            return text
        return self.spell(f"load_{dtype.name}", dtype, dtype, width, [text])

    def narrowed(self, dtype: DType, width: int, text: str) -> str:
        """What lies in memory, from what carries an element."""
        if names.STORED[dtype.name] == names.CARRIERS[dtype.name]:
            return text
        return self.spell(f"store_{dtype.name}", dtype, dtype, width, [text])

    def private(self, array: str, size: int, dtype: DType = F32) -> str:
        """The template."""
        return self.array.format(type=self.types[dtype.name], name=array, size=size)

    def constants(self, array: str, numbers: Sequence[int]) -> str:
        """The template of an array, and what it begins with."""
        declared = self.private(array, len(numbers), U32).rstrip(";")
        return f"{self.constant} {declared} = {{{', '.join(f'{n}u' for n in numbers)}}};"

    def private_load(self, width: int, array: str, index: str, dtype: DType = F32) -> str:
        """Like a load from a buffer."""
        return self.load(dtype if width > 1 else F32, width, array, index)

    def private_store(
        self, width: int, array: str, index: str, text: str, dtype: DType = F32
    ) -> str:
        """Like a store to a buffer."""
        if dtype.bits < 32:
            return self.store(dtype, width, f"(({self.storage(dtype)} *){array})", index, text)
        return self.store(F32 if width > 1 else I32, width, array, index, text)


Spelling = str | Callable[[CLike, DType, DType, int, Sequence[str]], str]
"""A row: a template, or a function of the dialect, the types of the result and of the first
operand, the width, and the operands."""
