"""How plain C, with the vector extensions of gcc and clang, spells what the generator writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from ptir.backend.kernel import Argument, Dialect
from ptir.codegen import processor
from ptir.types import BF16, BOOL, F16, F32, F64, I8, I32, DType
from ptir_backend_c import prelude

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

STORAGE: Final = TYPES | {
    "bool": "unsigned char",
    "f16": "unsigned short",
    "bf16": "unsigned short",
}

SHORT: Final = {name: name for name in TYPES} | {
    "bool": "i32",
    "f16": "f32",
    "bf16": "f32",
    "f8e4m3fn": "u8",
    "f8e5m2": "u8",
}
"""What carries a type, as it stands in the names of the prelude: a vector of it is ``vNAME``."""

BINARY: Final = {"and": "&", "or": "|", "xor": "^", "div": "/", "shift_right": ">>"}
WRAPPING: Final = {"add": "+", "sub": "-", "mul": "*", "shift_left": "<<"}
"""Operators that overflow: signed numbers go through unsigned ones, which may."""
RELATIONS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

FUNCTIONS: Final = frozenset(
    (
        *("abs", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "erf", "pow"),
        *("floor", "ceil", "round", "rem", "fma"),
    )
)
"""Functions of the prelude, one for each float type."""

FOLDS: Final = frozenset((("add", "f32"), ("add", "i32"), ("add", "u32"), ("max", "i32")))
"""What lanes are combined with by functions of the prelude (folds.h)."""


class PlainC(Dialect):
    """C11 with vectors of 16 lanes."""

    name = "c"
    lanes = 16

    def __init__(self) -> None:
        self.dots = processor.dots()

    def type(self, dtype: DType, width: int = 1) -> str:
        """``float``, ``vi32``, ..."""
        return TYPES[dtype.name] if width == 1 else f"v{SHORT[dtype.name]}"

    def _function(self, name: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """A call of the prelude's function for a type."""
        wide = "v" if width > 1 else ""
        return f"{name}_{wide}{SHORT[dtype.name]}({', '.join(args)})"

    def literal(self, dtype: DType, value: float | int) -> str:
        """Exact: floats in hexadecimal."""
        if dtype == BOOL:
            return "-1" if value else "0"
        if dtype.is_float and dtype.bits > 8:
            return _float(float(value), dtype)
        suffix = {"u32": "u", "i64": "ll", "u64": "ull"}.get(dtype.name, "")
        if value == -(1 << (dtype.bits - 1)) and dtype.bits >= 32:
            return f"({value + 1}{suffix}-1)"
        return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"

    def splat(self, dtype: DType, width: int, text: str) -> str:
        """A function of the prelude."""
        return self._function("splat", dtype, width, [text])

    def gathered(self, dtype: DType, texts: Sequence[str]) -> str:
        """A vector literal."""
        return f"({self.type(dtype, len(texts))}){{{', '.join(texts)}}}"

    def lane(self, text: str, number: int) -> str:
        """An element of the vector."""
        return f"{text}[{number}]"

    def folded(self, op: str, dtype: DType, text: str) -> str | None:
        """A function of the prelude, where there is one."""
        return f"fold_{op}_v{dtype.name}({text})" if (op, dtype.name) in FOLDS else None

    def apply(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """Operators, functions of the prelude, and conversions between masks and numbers."""
        if op in SPECIAL:
            return SPECIAL[op](self, dtype, of, width, args)
        if op in RELATIONS:
            return self._mask(f"{args[0]} {RELATIONS[op]} {args[1]}", of, width)
        if op in FUNCTIONS and dtype.is_float:
            return self._function(op, dtype, width, args)
        if op in WRAPPING:
            return self._wrapped(f"{{}} {WRAPPING[op]} {{}}", dtype, width, args)
        return self._whole(dtype, width, f"{args[0]} {BINARY[op]} {args[1]}")

    def _wrapped(self, form: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """``form`` of the operands as unsigned numbers, brought back."""
        if dtype.is_float:
            return f"({form.format(*args)})"
        if width > 1:
            unsigned = f"(vu{dtype.bits})"
        else:
            unsigned = "(unsigned long long)" if dtype.bits == 64 else "(unsigned)"
        text = form.format(*(unsigned + arg for arg in args))
        return f"({self.type(dtype, width)})({text})"

    def _whole(self, dtype: DType, width: int, text: str) -> str:
        """A scalar integer narrower than ``int`` was promoted: bring it back."""
        narrow = width == 1 and dtype.bits < 32 and not dtype.is_float and dtype != BOOL
        return f"({self.type(dtype)})({text})" if narrow else f"({text})"

    def _mask(self, text: str, of: DType, width: int) -> str:
        """A relation as a 32-bit mask; vectors give -1, as wide as what was compared."""
        if width == 1:
            return f"(-({text}))"
        same = SHORT[of.name] in ("f32", "i32", "u32")
        return f"({text})" if same else f"__builtin_convertvector({text}, vi32)"

    def load(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """A load, widened to what carries it."""
        if width == 1:
            at = f"{buffer}[{index}]"
            if dtype == BOOL:
                return f"(-(int){at})"
        else:
            at = f"load_v{_stored(dtype)}({buffer} + {index})"
            if dtype == BOOL:
                return f"(-__builtin_convertvector({at}, vi32))"
        if dtype in (F16, BF16):
            return self._widened(dtype, width, at)
        return at

    def _widened(self, dtype: DType, width: int, text: str) -> str:
        """The float behind the bits of a 16-bit one."""
        words = f"__builtin_convertvector({text}, vu32)" if width > 1 else f"(unsigned){text}"
        if dtype == F16:
            return self._function("wide_f16", F16, width, [words])
        return f"(vf32)({words} << 16)" if width > 1 else f"float_u32({words} << 16)"

    def _words(self, dtype: DType, width: int, text: str) -> str:
        """The bits of a 16-bit float, given as what carries it."""
        if dtype == F16:
            words = self._function("bits_f16", F16, width, [text])
        else:
            words = f"((vu32)({text}) >> 16)" if width > 1 else f"(bits_f32({text}) >> 16)"
        if width > 1:
            return f"__builtin_convertvector({words}, vu16)"
        return f"(unsigned short){words}"

    def store(self, dtype: DType, width: int, buffer: str, index: str, text: str) -> str:
        """A store of what carries the value, narrowed."""
        if dtype in (F16, BF16):
            text = self._words(dtype, width, text)
        if width == 1:
            return f"{buffer}[{index}] = {text}{' & 1' if dtype == BOOL else ''};"
        if dtype == BOOL:
            text = f"__builtin_convertvector({text} & 1, vu8)"
        return f"store_v{_stored(dtype)}({buffer} + {index}, {text});"

    def private(self, array: str, size: int, dtype: DType = F32) -> str:
        """An array on the stack."""
        return f"{TYPES[dtype.name]} {array}[{size}] __attribute__((aligned(64)));"

    def private_load(self, width: int, array: str, index: str) -> str:
        """Like a load from a buffer."""
        return f"load_vf32({array} + {index})" if width > 1 else f"{array}[{index}]"

    def private_store(
        self, width: int, array: str, index: str, text: str, dtype: DType = F32
    ) -> str:
        """Like a store to a buffer."""
        if dtype.bits < 32:
            return self.store(dtype, width, f"(({STORAGE[dtype.name]} *){array})", index, text)
        if width > 1:
            return f"store_vf32({array} + {index}, {text});"
        return f"{array}[{index}] = {text};"

    def pointer(self, argument: Argument) -> str:
        """A pointer."""
        constant = "" if argument.written else "const "
        return f"{constant}{STORAGE[argument.dtype.name]} *"

    def kernel(self, name: str, arguments: Sequence[Argument], body: str) -> str:
        """A function of the buffers' addresses and the item's number."""
        return self.workers(name, arguments, "", body)

    def workers(self, name: str, arguments: Sequence[Argument], head: str, each: str) -> str:
        """With a head, the function asks for more items (``turn`` of pool.c)."""
        taken = "\n".join(
            f"  {self.pointer(argument)}const {argument.name} = buffers[{place}];"
            for place, argument in enumerate(arguments)
        )
        if not head:
            return f"void {name}(void *const *buffers, const int item) {{\n{taken}\n{each}\n}}"
        return (
            f"void {name}(void *const *buffers, int item, struct turn *turn) {{\n{taken}\n{head}\n"
            f"  do {{\n{each}\n  }} while ((item = turn->next(turn)) >= 0);\n}}"
        )

    def prelude(self) -> str:
        """Types, conversions and functions."""
        return prelude.prelude() + prelude.source("folds.h") + prelude.source("dots.h")


def _stored(dtype: DType) -> str:
    """What elements of a type are in memory, as it stands in the names of the prelude."""
    return {"bool": "u8", "f16": "u16", "bf16": "u16"}.get(dtype.name, SHORT[dtype.name])


def _float(value: float, dtype: DType) -> str:
    suffix = "" if dtype == F64 else "f"
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}__builtin_inf{suffix}())"
    text = value.hex() + suffix
    return f"({text})" if text.startswith("-") else text


Spelling = Callable[[PlainC, DType, DType, int, Sequence[str]], str]


def _neg(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    return f"(-{args[0]})" if dtype.is_float else d._wrapped("0 - {}", dtype, width, args)


def _not(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    return d._whole(dtype, width, f"~{args[0]}")


def _rem(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    if dtype.is_float:
        return d._function("rem", dtype, width, args)
    return d._whole(dtype, width, f"{args[0]} % {args[1]}")


def _select(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    if width > 1:
        return d._function("select", dtype, width, args)
    mask, on_true, on_false = args
    return f"({mask} ? {on_true} : {on_false})"


def _convert(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """C's conversions, but for floats to integers."""
    if SHORT[dtype.name] == SHORT[of.name]:
        return args[0]
    if of.is_float and not dtype.is_float:
        return _saturated(d, dtype, of, width, args[0])
    if width > 1 and (dtype, of) == (I8, I32):
        return f"bytes_vi32({args[0]})"
    if width > 1:
        return f"__builtin_convertvector({args[0]}, {d.type(dtype, width)})"
    return f"(({d.type(dtype)}){args[0]})"


def _saturated(d: PlainC, dtype: DType, of: DType, width: int, text: str) -> str:
    wide = "v" if width > 1 else ""
    return f"saturated_{wide}{SHORT[of.name]}_{SHORT[dtype.name]}({text})"


def _bits(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """The carrier's bits, or between 16-bit types those of the stored value."""
    text, target = args[0], d.type(dtype, width)
    if dtype.bits == of.bits == 16:
        if of.is_float:
            text = d._words(of, width, text)
        if dtype.is_float:
            words = text if width == 1 else f"(vu16)({text})"
            return d._widened(dtype, width, words if width > 1 else f"(unsigned short)({words})")
        return f"({target})({text})"
    if width > 1:
        return f"({target})({text})"
    if of.is_float and of.bits > 8:
        return f"(({target})bits_{SHORT[of.name]}({text}))"
    if dtype.is_float and dtype.bits > 8:
        return f"float_u{32 if SHORT[dtype.name] == 'f32' else 64}({text})"
    return f"(({target})({text}))"


def _fma(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """Contracted for floats; integers wrap."""
    if dtype.is_float:
        return d._function("fma", dtype, width, args)
    product = d.apply("mul", dtype, of, width, args[:2])
    return d.apply("add", dtype, of, width, [product, args[2]])


def _narrow(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    return d._function(dtype.name, dtype, width, args)


def _dot(op: str) -> Spelling:
    return lambda d, dtype, of, width, args: d._function(op, dtype, width, args)


def _extreme(name: str, relation: str) -> Spelling:
    """One of two integers."""

    def spelled(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        a, b = args
        if width > 1:
            return d._function(name, dtype, width, args)
        return d._whole(dtype, width, f"{a} {relation} {b} ? {a} : {b}")

    return spelled


SPECIAL: Final[dict[str, Spelling]] = {
    "neg": _neg,
    "not": _not,
    "rem": _rem,
    "fma": _fma,
    "select": _select,
    "convert": _convert,
    "bits": _bits,
    "narrow": _narrow,
    "dot_bytes": _dot("dot_bytes"),
    "dot_bf16": _dot("dot_bf16"),
    "by_power": _dot("by_power"),
    "nearest": lambda d, dtype, of, width, args: d._function("nearest", of, width, args),
    "max": _extreme("max", ">"),
    "min": _extreme("min", "<"),
}
