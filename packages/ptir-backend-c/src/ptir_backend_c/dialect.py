"""How plain C, with the vector extensions of gcc and clang, spells what the generator writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ptir.backend.clike import BINARY, FUNCTIONS, RELATIONS, TYPES, WRAPPING, CLike
from ptir.backend.kernel import Argument
from ptir.codegen import processor
from ptir.types import BF16, BOOL, F16, I8, I32, DType
from ptir_backend_c import prelude

SHORT: Final = {name: name for name in TYPES} | {
    "bool": "i32",
    "f16": "f32",
    "bf16": "f32",
    "f8e4m3fn": "u8",
    "f8e5m2": "u8",
}
"""What carries a type, as it stands in the names of the prelude: a vector of it is ``vNAME``."""

RECASTS: Final = {"u32": "bits_f32", "u64": "bits_f64", "f32": "float_u32", "f64": "float_u64"}
"""Functions of the prelude that change the type of bits, by what they become."""

FOLDS: Final = frozenset((("add", "f32"), ("add", "i32"), ("add", "u32"), ("max", "i32")))
"""What lanes are combined with by functions of the prelude (folds.h)."""


class PlainC(CLike):
    """C11 with vectors of 16 lanes. Functions stand in the prelude, one for each float type."""

    name = "c"
    lanes = 16

    def __init__(self) -> None:
        self.dots = processor.dots()

    def vector(self, dtype: DType, width: int) -> str:
        """``vi32``, ..."""
        return f"v{SHORT[dtype.name]}"

    def recast(self, dtype: DType, text: str) -> str:
        """A function of the prelude."""
        return f"{RECASTS[dtype.name]}({text})"

    def half_bits(self, text: str) -> str:
        """A function of the prelude."""
        return f"(unsigned short)bits_f16_f32({text})"

    def half_value(self, bits: str) -> str:
        """A function of the prelude."""
        return f"wide_f16_f32({bits})"

    def narrowed(self, dtype: DType, text: str) -> str:
        """A function of the prelude."""
        return f"{dtype.name}_f32({text})"

    def function(self, op: str, dtype: DType, args: Sequence[str]) -> str:
        """A function of the prelude for a type."""
        return f"{op}_{SHORT[dtype.name]}({', '.join(args)})"

    def converted(self, dtype: DType, of: DType, text: str) -> str:
        """C's conversions, but for floats to integers."""
        if of.is_float and not dtype.is_float:
            return f"saturated_{SHORT[of.name]}_{SHORT[dtype.name]}({text})"
        return super().converted(dtype, of, text)

    def splat(self, dtype: DType, width: int, text: str) -> str:
        """A function of the prelude."""
        return _called("splat", dtype, [text])

    def gathered(self, dtype: DType, texts: Sequence[str]) -> str:
        """A vector literal."""
        return f"({self.type(dtype, len(texts))}){{{', '.join(texts)}}}"

    def lane(self, text: str, number: int) -> str:
        """An element of the vector."""
        return f"{text}[{number}]"

    def folded(self, op: str, dtype: DType, text: str) -> str | None:
        """A function of the prelude, where there is one."""
        return f"fold_{op}_v{dtype.name}({text})" if (op, dtype.name) in FOLDS else None

    def wide(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """Operators, functions of the prelude, and conversions between masks and numbers."""
        if op in WIDE:
            return WIDE[op](self, dtype, of, width, args)
        if op in RELATIONS:
            return _mask(f"{args[0]} {RELATIONS[op]} {args[1]}", of)
        if op in FUNCTIONS and dtype.is_float:
            return _called(op, dtype, args)
        if op in WRAPPING:
            return self.wrapped_wide(f"{{}} {WRAPPING[op]} {{}}", dtype, width, args)
        return f"({args[0]} {BINARY[op]} {args[1]})"

    def wrapped_wide(self, form: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """``form`` of the operands as unsigned numbers, brought back."""
        if dtype.is_float:
            return f"({form.format(*args)})"
        text = form.format(*(f"(vu{dtype.bits}){arg}" for arg in args))
        return f"({self.type(dtype, width)})({text})"

    def load(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """A load, widened to what carries it."""
        if width == 1:
            return super().load(dtype, width, buffer, index)
        at = f"load_v{_stored(dtype)}({buffer} + {index})"
        if dtype == BOOL:
            return f"(-__builtin_convertvector({at}, vi32))"
        return widened_wide(dtype, at) if dtype in (F16, BF16) else at

    def prefetch(self, buffer: str, index: str) -> str:
        """Into the core's second cache: streams are longer than the first one."""
        return f"__builtin_prefetch({buffer} + {index}, 0, 2);"

    def store(self, dtype: DType, width: int, buffer: str, index: str, text: str) -> str:
        """A store of what carries the value, narrowed."""
        if width == 1:
            return super().store(dtype, width, buffer, index, text)
        if dtype in (F16, BF16):
            text = words_wide(dtype, text)
        if dtype == BOOL:
            text = f"__builtin_convertvector({text} & 1, vu8)"
        return f"store_v{_stored(dtype)}({buffer} + {index}, {text});"

    def workers(self, name: str, arguments: Sequence[Argument], head: str, each: str) -> str:
        """A function of the buffers' addresses and the item's number.

        With a head, it asks for more items (``turn`` of pool.c).
        """
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


def _called(name: str, dtype: DType, args: Sequence[str]) -> str:
    """A call of the prelude's function of vectors for a type."""
    return f"{name}_v{SHORT[dtype.name]}({', '.join(args)})"


def _stored(dtype: DType) -> str:
    """What elements of a type are in memory, as it stands in the names of the prelude."""
    return {"bool": "u8", "f16": "u16", "bf16": "u16"}.get(dtype.name, SHORT[dtype.name])


def _mask(text: str, of: DType) -> str:
    """A relation as 32-bit masks: vectors give -1, as wide as what was compared."""
    same = SHORT[of.name] in ("f32", "i32", "u32")
    return f"({text})" if same else f"__builtin_convertvector({text}, vi32)"


def widened_wide(dtype: DType, text: str) -> str:
    """The floats behind the bits of 16-bit ones."""
    words = f"__builtin_convertvector({text}, vu32)"
    return f"wide_f16_vf32({words})" if dtype == F16 else f"(vf32)({words} << 16)"


def words_wide(dtype: DType, text: str) -> str:
    """The bits of 16-bit floats, given as what carries them."""
    words = f"bits_f16_vf32({text})" if dtype == F16 else f"((vu32)({text}) >> 16)"
    return f"__builtin_convertvector({words}, vu16)"


Wide = Callable[[PlainC, DType, DType, int, Sequence[str]], str]


def _neg(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    return f"(-{args[0]})" if dtype.is_float else d.wrapped_wide("0 - {}", dtype, width, args)


def _rem(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    return _called("rem", dtype, args) if dtype.is_float else f"({args[0]} % {args[1]})"


def _convert(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """C's conversions, but for floats to integers."""
    if SHORT[dtype.name] == SHORT[of.name]:
        return args[0]
    if of.is_float and not dtype.is_float:
        return f"saturated_v{SHORT[of.name]}_{SHORT[dtype.name]}({args[0]})"
    if (dtype, of) == (I8, I32):
        return f"bytes_vi32({args[0]})"
    return f"__builtin_convertvector({args[0]}, {d.type(dtype, width)})"


def _bits(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """The carrier's bits, or between 16-bit types those of the stored value."""
    text, target = args[0], d.type(dtype, width)
    if dtype.bits == of.bits == 16:
        if of.is_float:
            text = words_wide(of, text)
        if dtype.is_float:
            return widened_wide(dtype, f"(vu16)({text})")
    return f"({target})({text})"


def _fma(d: PlainC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """Contracted for floats; integers wrap."""
    if dtype.is_float:
        return _called("fma", dtype, args)
    product = d.apply("mul", dtype, of, width, args[:2])
    return d.apply("add", dtype, of, width, [product, args[2]])


def _of(name: str) -> Wide:
    """A function of the prelude, named by what it gives."""
    return lambda d, dtype, of, width, args: _called(name, dtype, args)


WIDE: Final[dict[str, Wide]] = {
    "neg": _neg,
    "not": lambda d, dtype, of, width, args: f"(~{args[0]})",
    "rem": _rem,
    "fma": _fma,
    "convert": _convert,
    "bits": _bits,
    "narrow": lambda d, dtype, of, width, args: _called(dtype.name, dtype, args),
    "nearest": lambda d, dtype, of, width, args: _called("nearest", of, args),
    **{name: _of(name) for name in ("select", "max", "min", "dot_bytes", "dot_bf16", "by_power")},
}
"""Wide ops that are neither an operator nor a function of floats."""
