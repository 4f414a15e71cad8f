"""How CUDA C++ spells what the kernel generator writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from ptir.backend.kernel import Argument, Dialect, Together
from ptir.types import BF16, BOOL, F16, F32, F64, DType
from ptir_backend_cupy.prelude import prelude

CARRIED: Final = {"bool": "i32", "f16": "f32", "bf16": "f32", "f8e4m3fn": "u8", "f8e5m2": "u8"}
"""What carries a type that is not itself one of the prelude's."""
STORED: Final = {"bool": "u8", "f16": "u16", "bf16": "u16", "f8e4m3fn": "u8", "f8e5m2": "u8"}

WRAPPING: Final = frozenset(("add", "sub", "mul", "neg", "shift_left"))
"""What may overflow: functions of the prelude do it to integers."""
BINARY: Final = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "rem": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shift_right": ">>",
}
UNARY: Final = {"neg": "-", "not": "~"}
RELATIONS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FUNCTIONS: Final = frozenset(
    (
        *("abs", "exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "erf", "pow"),
        *("floor", "ceil", "round", "rem", "fma"),
    )
)
"""Functions of floats in the prelude, ``NAME_of``."""

THREADS: Final = 64
"""Threads of a block whose items have nothing to do with each other."""

TOGETHER: Final = Together(
    kernel='extern "C" __global__ void __launch_bounds__({2}) {0}({1})',
    item="blockIdx.x",
    member="threadIdx.x",
    barrier="__syncthreads();",
    shared="__shared__ __align__(16) {0} {1}[{2}];",
    words="const uint4 {0} = *(const uint4 *)({1} + {2});",
    put="*(uint4 *)({0} + {1}) = make_uint4({2}, {3}, {4}, {5});",
    exchange="__shfl_xor_sync(0xffffffffu, {0}, {1})",
    width=32,
)


class CudaC(Dialect):
    """CUDA C++ as NVRTC takes it, without headers."""

    name = "cuda"
    lanes = 16
    rolled = '_Pragma("unroll 1")'
    together = TOGETHER

    def type(self, dtype: DType, width: int = 1) -> str:
        """``f32``, ``vec<i32, 16>``, ..."""
        scalar = CARRIED.get(dtype.name, dtype.name)
        return scalar if width == 1 else f"vec<{scalar}, {width}>"

    def literal(self, dtype: DType, value: float | int) -> str:
        """Exact: floats in hexadecimal."""
        if dtype == BOOL:
            return "-1" if value else "0"
        if dtype.is_float and dtype.bits > 8:
            return _float(float(value), dtype)
        suffix = {"u32": "u", "i64": "ll", "u64": "ull"}.get(dtype.name, "")
        if value == -(1 << (dtype.bits - 1)) and dtype.bits >= 32:
            return f"({value + 1}{suffix}-1)"
        if dtype.bits < 32:
            return f"({self.type(dtype)})({value})"
        return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"

    def splat(self, dtype: DType, width: int, text: str) -> str:
        """A function of the prelude."""
        return text if width == 1 else f"splat<{self.type(dtype)}, {width}>({text})"

    def gathered(self, dtype: DType, texts: Sequence[str]) -> str:
        """A function of the prelude."""
        if len(texts) == 1:
            return texts[0]
        return f"gathered<{self.type(dtype)}>({', '.join(texts)})"

    def lane(self, text: str, number: int) -> str:
        """An element of the vector."""
        return text if self.lanes == 1 else f"{text}[{number}]"

    def apply(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """Operators, functions of the prelude, and conversions between masks and numbers."""
        if op in SPECIAL:
            return SPECIAL[op](self, dtype, of, width, args)
        if op in FUNCTIONS and dtype.is_float:
            return f"{op}_of({', '.join(args)})"
        if op in WRAPPING and not dtype.is_float:
            given = args if width > 1 else [f"({self.type(dtype)}){arg}" for arg in args]
            return f"wrapping_{op}({', '.join(given)})"
        if op in RELATIONS:
            text = f"({args[0]} {RELATIONS[op]} {args[1]})"
            return text if width > 1 else f"(-{text})"
        if op in UNARY:
            return self._whole(dtype, width, f"{UNARY[op]}{args[0]}")
        return self._whole(dtype, width, f"{args[0]} {BINARY[op]} {args[1]}")

    def _whole(self, dtype: DType, width: int, text: str) -> str:
        """A scalar integer narrower than ``int`` was promoted: bring it back."""
        narrow = width == 1 and dtype.bits < 32 and not dtype.is_float and dtype != BOOL
        return f"({self.type(dtype)})({text})" if narrow else f"({text})"

    def load(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """A load, widened to what carries it."""
        at = f"{buffer}[{index}]" if width == 1 else f"load<{width}>({buffer} + {index})"
        if dtype in (F16, BF16):
            return f"{dtype.name}_value({at})"
        if dtype == BOOL:
            return f"(-convert<i32>({at}))"
        return at

    def store(self, dtype: DType, width: int, buffer: str, index: str, text: str) -> str:
        """A store of what carries the value, narrowed."""
        if dtype in (F16, BF16):
            text = f"{dtype.name}_bits({text})"
        if dtype == BOOL:
            text = f"convert<u8>(-{text})"
        if width == 1:
            return f"{buffer}[{index}] = {text};"
        return f"store({buffer} + {index}, {text});"

    def private(self, array: str, size: int, dtype: DType = F32) -> str:
        """An array of the thread."""
        return f"{self.type(dtype)} {array}[{size}];"

    def private_load(self, width: int, array: str, index: str) -> str:
        """Like a load from a buffer."""
        return f"load<{width}>({array} + {index})" if width > 1 else f"{array}[{index}]"

    def private_store(
        self, width: int, array: str, index: str, text: str, dtype: DType = F32
    ) -> str:
        """Like a store to a buffer."""
        if dtype.bits < 32:
            return self.store(dtype, width, f"(({_stored(dtype)} *){array})", index, text)
        if width > 1:
            return f"store({array} + {index}, {text});"
        return f"{array}[{index}] = {text};"

    def pointer(self, argument: Argument) -> str:
        """A pointer."""
        constant = "" if argument.written else "const "
        return f"{constant}{_stored(argument.dtype)} *"

    def kernel(self, name: str, arguments: Sequence[Argument], body: str) -> str:
        """A kernel whose threads are items; the number of items comes last."""
        listed = "".join(f"{self.pointer(a)}{a.name}, " for a in arguments)
        return (
            f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}({listed}'
            f"const int items) {{\n  const int item = blockIdx.x * {THREADS} + threadIdx.x;\n"
            f"  if (item >= items) return;\n{body}\n}}"
        )

    def prelude(self) -> str:
        """Types, conversions and functions."""
        return prelude()


def _stored(dtype: DType) -> str:
    """What elements of a type are in memory."""
    return STORED.get(dtype.name, dtype.name)


def _float(value: float, dtype: DType) -> str:
    kind, bits, suffix = ("f64", 64, "") if dtype == F64 else ("f32", 32, "f")
    if math.isnan(value):
        return f"as<{kind}>(0x{'7ff8' if bits == 64 else '7fc0'}{'0' * (bits // 4 - 4)}{_U[bits]})"
    if math.isinf(value):
        high = (
            ("fff0" if value < 0 else "7ff0") if bits == 64 else ("ff80" if value < 0 else "7f80")
        )
        return f"as<{kind}>(0x{high}{'0' * (bits // 4 - 4)}{_U[bits]})"
    text = value.hex() + suffix
    return f"({text})" if text.startswith("-") else text


_U: Final = {32: "u", 64: "ull"}

Spelling = Callable[[CudaC, DType, DType, int, Sequence[str]], str]


def _select(d: CudaC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    mask, on_true, on_false = args
    if width > 1:
        return f"chosen({mask}, {on_true}, {on_false})"
    return d._whole(dtype, width, f"{mask} ? {on_true} : {on_false}")


def _convert(d: CudaC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    if d.type(dtype) == d.type(of):
        return args[0]
    given = args[0] if width > 1 else f"({d.type(of)}){args[0]}"
    return f"convert<{d.type(dtype)}>({given})"


def _bits(d: CudaC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """The carrier's bits, or between 16-bit types those of the stored value."""
    text = args[0] if width > 1 else f"({d.type(of)}){args[0]}"
    if dtype.bits != 16 or of.bits != 16:
        return f"as<{d.type(dtype)}>({text})"
    text = f"{of.name}_bits({text})" if of.is_float else f"as<u16>({text})"
    return f"{dtype.name}_value({text})" if dtype.is_float else f"as<{d.type(dtype)}>({text})"


def _fma(d: CudaC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """Contracted for floats; integers wrap."""
    if dtype.is_float:
        return f"fma_of({', '.join(args)})"
    product = d.apply("mul", dtype, of, width, args[:2])
    return d.apply("add", dtype, of, width, [product, args[2]])


def _narrow(d: CudaC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    return f"{dtype.name}_rounded({args[0]})"


def _extreme(name: str) -> Spelling:
    """One of two integers."""

    def spelled(d: CudaC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        if width > 1:
            return f"{name}({', '.join(args)})"
        return f"{name}<{d.type(dtype)}>({', '.join(args)})"

    return spelled


SPECIAL: Final[dict[str, Spelling]] = {
    "select": _select,
    "convert": _convert,
    "bits": _bits,
    "fma": _fma,
    "narrow": _narrow,
    "max": _extreme("greater"),
    "min": _extreme("smaller"),
}
