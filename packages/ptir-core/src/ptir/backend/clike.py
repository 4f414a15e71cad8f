"""A dialect with what most C-like languages share: names, operators, every scalar op spelled.

A language made of ``CLike`` says how its wide values and kernels are written, how bits change their
type, and what of the tables here is called otherwise. A wide op that it has no words for is written
lane by lane. Its prelude has ``min`` of two ``int``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from ptir.backend.kernel import Argument, Dialect
from ptir.types import BF16, BOOL, DTYPES, F16, F32, F64, I32, U32, DType

TYPES: Final = {
    "bool": "int",  # carried as a mask
    "i8": "signed char",
    "i16": "short",
    "i32": "int",
    "i64": "long long",
    "u8": "unsigned char",
    "u16": "unsigned short",
    "u32": "unsigned",
    "u64": "unsigned long long",
    "f16": "float",  # carried as f32
    "bf16": "float",
    "f32": "float",
    "f64": "double",
    "f8e4m3fn": "unsigned char",  # only moved
    "f8e5m2": "unsigned char",
}

STORED: Final = {"bool": "unsigned char", "f16": "unsigned short", "bf16": "unsigned short"}
"""What lies in memory where that is not what carries the value."""

SUFFIXES: Final = {"u32": "u", "i64": "ll", "u64": "ull"}

WRAPPING: Final = {"add": "+", "sub": "-", "mul": "*", "shift_left": "<<"}
"""Operators that overflow: signed numbers go through unsigned ones, which may."""
BINARY: Final = WRAPPING | {"div": "/", "and": "&", "or": "|", "xor": "^", "shift_right": ">>"}
RELATIONS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

FUNCTIONS: Final = {
    "abs": "fabs",
    "rem": "fmod",
    "round": "rint",
    **{
        name: name
        for name in (
            *("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "erf", "pow"),
            *("floor", "ceil", "fma"),
        )
    },
}
"""What the op is called for floats, as in C's ``math.h``."""


class CLike(Dialect):
    """A C-like language: tables, and methods that read them. What is abstract has no common form.

    Wide values have ``lanes`` lanes. ``width`` 1 is what the tables and ``scalar`` spell.
    """

    types: ClassVar[Mapping[str, str]] = TYPES
    """What carries each element type."""
    stored: ClassVar[Mapping[str, str]] = STORED
    """What lies in memory, where that is something else."""
    suffixes: ClassVar[Mapping[str, str]] = SUFFIXES
    """What follows the digits of an integer."""
    functions: ClassVar[Mapping[str, str]] = FUNCTIONS
    """What the functions of floats are called."""
    space: ClassVar[str] = ""
    """What a pointer to the device's memory begins with."""
    entry: str
    """A kernel: a template of ``{name}``, ``{arguments}`` and ``{comma}`` (which follows them where
    there are any), ``{head}`` (the same for every item) and ``{each}``, which finds its number in
    ``item``."""

    # --- what has no common form ---

    @abstractmethod
    def vector(self, dtype: DType, width: int) -> str:
        """The type of a wide value."""

    @abstractmethod
    def recast(self, dtype: DType, text: str) -> str:
        """The bits of a scalar as ``dtype``, which is u32, u64, f32 or f64 and as wide."""

    @abstractmethod
    def half_bits(self, text: str) -> str:
        """The bits of an f32 rounded to f16, half to even, as the integer that is stored."""

    @abstractmethod
    def half_value(self, bits: str) -> str:
        """The f32 that is the f16 of these bits, which are an integer of 16 bits or more."""

    # --- names ---

    def type(self, dtype: DType, width: int = 1) -> str:
        """From the table, or the vector's."""
        return self.types[dtype.name] if width == 1 else self.vector(dtype, width)

    def storage(self, dtype: DType) -> str:
        """What elements are in memory."""
        return self.stored.get(dtype.name, self.types[dtype.name])

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
            return self.special(value, dtype)
        text = value.hex() + ("" if dtype == F64 else "f")
        return f"({text})" if text.startswith("-") else text

    def special(self, value: float, dtype: DType) -> str:
        """An infinity or NaN."""
        suffix = "" if dtype == F64 else "f"
        if math.isnan(value):
            return f'__builtin_nan{suffix}("")'
        return f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"

    def pointer(self, argument: Argument) -> str:
        """A pointer."""
        constant = "" if argument.written else "const "
        return f"{self.space}{constant}{self.storage(argument.dtype)} *"

    def kernel(self, name: str, arguments: Sequence[Argument], body: str) -> str:
        """The template without a head."""
        return self.workers(name, arguments, "", body)

    def workers(self, name: str, arguments: Sequence[Argument], head: str, each: str) -> str:
        """The template."""
        listed = ", ".join(f"{self.pointer(a)}{a.name}" for a in arguments)
        head = f"{head}\n" if head else ""
        comma = "," if arguments else ""
        return self.entry.format(name=name, arguments=listed, comma=comma, head=head, each=each)

    # --- ops ---

    def apply(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """One of ``scalar`` and ``wide``."""
        if width == 1:
            return self.scalar(op, dtype, of, args)
        return self.wide(op, dtype, of, width, args)

    def wide(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """Lane by lane."""
        return self.lanewise(dtype, width, lambda _, *one: self.scalar(op, dtype, of, one), *args)

    def lanewise(self, dtype: DType, width: int, one: Callable[..., str], *args: str) -> str:
        """A wide value: in each lane ``one`` of the lane's number and of this lane of ``args``."""
        each = (
            one(str(n), *(self.lane(arg if arg.isidentifier() else f"({arg})", n) for arg in args))
            for n in range(width)
        )
        return self.gathered(dtype, [*each])

    def scalar(self, op: str, dtype: DType, of: DType, args: Sequence[str]) -> str:
        """Operators, functions, and what is spelled in ``SPELLED``."""
        if op in SPELLED:
            return SPELLED[op](self, dtype, of, args)
        if op in RELATIONS:
            return f"(-({args[0]} {RELATIONS[op]} {args[1]}))"
        if op in self.functions and dtype.is_float:
            return self.function(op, dtype, args)
        if op in WRAPPING and not dtype.is_float:
            return self.wrapped(f"{{}} {WRAPPING[op]} {{}}", dtype, args)
        return self.whole(dtype, f"{args[0]} {BINARY[op]} {args[1]}")

    def function(self, op: str, dtype: DType, args: Sequence[str]) -> str:
        """A call of what the table says."""
        return f"{self.functions[op]}({', '.join(args)})"

    def wrapped(self, form: str, dtype: DType, args: Sequence[str]) -> str:
        """``form`` of integers as unsigned ones, brought back."""
        unsigned = self.types["u64" if dtype.bits == 64 else "u32"]
        text = form.format(*(f"({unsigned}){arg}" for arg in args))
        return f"({self.types[dtype.name]})({text})"

    def whole(self, dtype: DType, text: str) -> str:
        """An integer narrower than ``int`` was promoted: bring it back."""
        narrow = dtype.bits < 32 and not dtype.is_float and dtype != BOOL
        return f"({self.types[dtype.name]})({text})" if narrow else f"({text})"

    def converted(self, dtype: DType, of: DType, text: str) -> str:
        """A cast. Floats outside an integer's range become its ends; of NaN nothing is asked."""
        if of.is_float and of.bits > 8 and not dtype.is_float:
            least, most = (self.literal(dtype, end) for end in ends(dtype))
            low, high = (self.literal(of, float(end)) for end in ends(dtype))
            text = f"{text} >= {high} ? {most} : {text} >= {low} ? ({self.type(dtype)}){text} : "
            return self.whole(dtype, text + least)
        return f"(({self.type(dtype)}){text})"

    # --- 16 bits: carried as f32 ---

    def words(self, dtype: DType, text: str) -> str:
        """The bits that are stored of an f16 or bf16, given as what carries it."""
        if dtype == F16:
            return self.half_bits(text)
        return f"({self.types['u16']})({self.recast(U32, text)} >> 16)"

    def widened(self, dtype: DType, text: str) -> str:
        """The f32 behind the stored bits of an f16 or bf16."""
        bits = f"({self.types['u32']}){text}"
        return self.half_value(bits) if dtype == F16 else self.recast(F32, f"{bits} << 16")

    def narrowed(self, dtype: DType, text: str) -> str:
        """An f32 rounded to f16 or bf16, half to even."""
        if dtype == F16:
            return self.half_value(self.half_bits(text))
        bits = self.recast(U32, text)
        rounded = (
            f"{text} == {text} ? {bits} + 0x7fffu + (({bits} >> 16) & 1u) : {bits} | 0x400000u"
        )
        return self.recast(F32, f"({rounded}) & 0xffff0000u")

    # --- memory ---

    def load(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """An element widened to what carries it, or one per lane."""
        if width > 1:
            return self.lanewise(
                dtype, width, lambda lane: self.load(dtype, 1, buffer, f"{index} + {lane}")
            )
        at = f"{buffer}[{index}]"
        if dtype == BOOL:
            return f"(-(int){at})"
        return self.widened(dtype, at) if dtype in (F16, BF16) else at

    def store(self, dtype: DType, width: int, buffer: str, index: str, text: str) -> str:
        """What carries the value, narrowed."""
        if width > 1:
            each = (
                self.store(dtype, 1, buffer, f"{index} + {n}", self.lane("lanes", n))
                for n in range(width)
            )
            return f"{{ const {self.type(dtype, width)} lanes = {text}; {' '.join(each)} }}"
        if dtype in (F16, BF16):
            text = self.words(dtype, text)
        return f"{buffer}[{index}] = {text}{' & 1' if dtype == BOOL else ''};"

    def private(self, array: str, size: int, dtype: DType = F32) -> str:
        """An array on the stack."""
        return f"{self.types[dtype.name]} {array}[{size}] __attribute__((aligned(64)));"

    def private_load(self, width: int, array: str, index: str) -> str:
        """Like a load from a buffer."""
        return self.load(F32, width, array, index) if width > 1 else f"{array}[{index}]"

    def private_store(
        self, width: int, array: str, index: str, text: str, dtype: DType = F32
    ) -> str:
        """Like a store to a buffer."""
        if dtype.bits < 32:
            return self.store(dtype, width, f"(({self.storage(dtype)} *){array})", index, text)
        return self.store(F32 if width > 1 else I32, width, array, index, text)


def ends(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    signed = dtype.name.startswith("i")
    most = 1 << (dtype.bits - signed)
    return (-most if signed else 0), most - 1


Spelling = Callable[[CLike, DType, DType, Sequence[str]], str]


def _neg(d: CLike, dtype: DType, of: DType, args: Sequence[str]) -> str:
    return f"(-{args[0]})" if dtype.is_float else d.wrapped("0 - {}", dtype, args)


def _not(d: CLike, dtype: DType, of: DType, args: Sequence[str]) -> str:
    return d.whole(dtype, f"~{args[0]}")


def _rem(d: CLike, dtype: DType, of: DType, args: Sequence[str]) -> str:
    if dtype.is_float:
        return d.function("rem", dtype, args)
    return d.whole(dtype, f"{args[0]} % {args[1]}")


def _fma(d: CLike, dtype: DType, of: DType, args: Sequence[str]) -> str:
    """Contracted for floats; integers wrap."""
    if dtype.is_float:
        return d.function("fma", dtype, args)
    product = d.scalar("mul", dtype, of, args[:2])
    return d.scalar("add", dtype, of, [product, args[2]])


def _select(d: CLike, dtype: DType, of: DType, args: Sequence[str]) -> str:
    return f"({args[0]} ? {args[1]} : {args[2]})"


def _convert(d: CLike, dtype: DType, of: DType, args: Sequence[str]) -> str:
    same = d.types[dtype.name] == d.types[of.name]
    return args[0] if same else d.converted(dtype, of, args[0])


def _narrow(d: CLike, dtype: DType, of: DType, args: Sequence[str]) -> str:
    return d.narrowed(dtype, args[0])


def _bits(d: CLike, dtype: DType, of: DType, args: Sequence[str]) -> str:
    """The carrier's bits, or between 16-bit types those of the stored value."""
    text, target = args[0], d.type(dtype)
    if dtype.bits == of.bits == 16:
        if of.is_float:
            text = d.words(of, text)
        if dtype.is_float:
            return d.widened(dtype, f"({d.types['u16']})({text})")
        return f"({target})({text})"
    if of.is_float and of.bits > 8:
        return f"(({target}){d.recast(DTYPES[f'u{max(32, of.bits)}'], text)})"
    if dtype.is_float and dtype.bits > 8:
        return d.recast(F64 if dtype == F64 else F32, text)
    return f"(({target})({text}))"


def _extreme(relation: str) -> Spelling:
    """One of two integers: compared, because narrow literals have no type."""
    return lambda d, dtype, of, args: d.whole(
        dtype, f"{args[0]} {relation} {args[1]} ? {args[0]} : {args[1]}"
    )


SPELLED: Final[dict[str, Spelling]] = {
    "neg": _neg,
    "not": _not,
    "rem": _rem,
    "fma": _fma,
    "select": _select,
    "convert": _convert,
    "narrow": _narrow,
    "bits": _bits,
    "max": _extreme(">"),
    "min": _extreme("<"),
}
"""Scalar ops that are neither an operator nor a function of floats."""
