"""How CUDA C++ spells what the kernel generator writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from ptir.backend import clike
from ptir.backend.clike import BINARY, RELATIONS, WRAPPING, CLike
from ptir.backend.kernel import Together
from ptir.types import BF16, BOOL, DTYPES, F16, F32, F64, DType
from ptir_backend_cupy.matrices import MATRICES
from ptir_backend_cupy.prelude import prelude, with_matrices

CARRIED: Final = {"bool": "i32", "f16": "f32", "bf16": "f32", "f8e4m3fn": "u8", "f8e5m2": "u8"}
"""What carries a type that is not itself one of the prelude's."""

OPERATORS: Final = BINARY | {"rem": "%"}
"""Between wide values, where nothing overflows."""
UNARY: Final = {"neg": "-", "not": "~"}

THREADS: Final = 64
"""Threads of a block whose items have nothing to do with each other."""

KERNEL: Final = """\
extern "C" __global__ void __launch_bounds__(THREADS) {name}({arguments}, const int items) {{
  const int item = blockIdx.x * THREADS + threadIdx.x;
  if ((unsigned)item >= items) return;
{head}{each}
}}""".replace("THREADS", str(THREADS))
"""A kernel whose threads are items; the number of items comes last."""

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
    matrices=MATRICES,
)


class CudaC(CLike):
    """CUDA C++ as NVRTC takes it, without headers."""

    name = "cuda"
    lanes = 16
    types: ClassVar = {name: CARRIED.get(name, name) for name in DTYPES}
    stored: ClassVar = {"bool": "u8", "f16": "u16", "bf16": "u16"}
    functions: ClassVar = {op: f"{op}_of" for op in clike.FUNCTIONS}
    entry = KERNEL
    rolled = '_Pragma("unroll 1")'
    together = TOGETHER
    dots = frozenset(("dot_bf16",))

    def __init__(self, matrices: bool = True) -> None:
        """``matrices``: whether the device has tensor cores of the kind that is known."""
        if not matrices:
            self.together, self.dots = replace(TOGETHER, matrices=None), frozenset()

    def vector(self, dtype: DType, width: int) -> str:
        """``vec<i32, 16>``, ..."""
        return f"vec<{self.types[dtype.name]}, {width}>"

    def special(self, value: float, dtype: DType) -> str:
        """Its bits."""
        kind, digits, suffix = ("f64", 12, "ull") if dtype == F64 else ("f32", 4, "u")
        if math.isnan(value):
            high = "7ff8" if dtype == F64 else "7fc0"
        else:
            high = ("f" if value < 0 else "7") + ("ff0" if dtype == F64 else "f80")
        return f"as<{kind}>(0x{high}{'0' * digits}{suffix})"

    def recast(self, dtype: DType, text: str) -> str:
        """A function of the prelude."""
        return f"as<{self.types[dtype.name]}>({text})"

    def half_bits(self, text: str) -> str:
        """A function of the prelude."""
        return f"f16_bits({text})"

    def half_value(self, bits: str) -> str:
        """A function of the prelude."""
        return f"f16_value({bits})"

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

    def wide(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """Operators and functions of the prelude, whose names are those of single values."""
        if op in WIDE:
            return WIDE[op](self, dtype, of, args)
        if op in RELATIONS:
            return f"({args[0]} {RELATIONS[op]} {args[1]})"
        if op in self.functions and dtype.is_float:
            return self.function(op, dtype, args)
        if (op in WRAPPING or op == "neg") and not dtype.is_float:
            return f"wrapping_{op}({', '.join(args)})"
        if op in UNARY:
            return f"({UNARY[op]}{args[0]})"
        return f"({args[0]} {OPERATORS[op]} {args[1]})"

    def converted(self, dtype: DType, of: DType, text: str) -> str:
        """A function of the prelude."""
        return f"convert<{self.type(dtype)}>(({self.type(of)}){text})"

    def words(self, dtype: DType, text: str) -> str:
        """A function of the prelude, for single and wide values."""
        return f"{dtype.name}_bits({text})"

    def widened(self, dtype: DType, text: str) -> str:
        """A function of the prelude, for single and wide values."""
        return f"{dtype.name}_value({text})"

    def narrowed(self, dtype: DType, text: str) -> str:
        """A function of the prelude, for single and wide values."""
        return f"{dtype.name}_rounded({text})"

    def load(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """A load, widened to what carries it."""
        if width == 1:
            return super().load(dtype, 1, buffer, index)
        at = f"load<{width}>({buffer} + {index})"
        if dtype == BOOL:
            return f"(-convert<i32>({at}))"
        return self.widened(dtype, at) if dtype in (F16, BF16) else at

    def store(self, dtype: DType, width: int, buffer: str, index: str, text: str) -> str:
        """A store of what carries the value, narrowed."""
        if width == 1:
            return super().store(dtype, 1, buffer, index, text)
        if dtype in (F16, BF16):
            text = self.words(dtype, text)
        elif dtype == BOOL:
            text = f"convert<u8>(-{text})"
        return f"store({buffer} + {index}, {text});"

    def private(self, array: str, size: int, dtype: DType = F32) -> str:
        """An array of the thread."""
        return f"{self.type(dtype)} {array}[{size}];"

    def prelude(self) -> str:
        """Types, conversions and functions."""
        has_matrices = self.together is not None and self.together.matrices is not None
        return with_matrices() if has_matrices else prelude()


Spelling = Callable[[CudaC, DType, DType, Sequence[str]], str]


def _convert(d: CudaC, dtype: DType, of: DType, args: Sequence[str]) -> str:
    same = d.type(dtype) == d.type(of)
    return args[0] if same else f"convert<{d.type(dtype)}>({args[0]})"


def _bits(d: CudaC, dtype: DType, of: DType, args: Sequence[str]) -> str:
    """The carrier's bits, or between 16-bit types those of the stored value."""
    if dtype.bits != 16 or of.bits != 16:
        return d.recast(dtype, args[0])
    text = d.words(of, args[0]) if of.is_float else f"as<u16>({args[0]})"
    return d.widened(dtype, text) if dtype.is_float else d.recast(dtype, text)


def _fma(d: CudaC, dtype: DType, of: DType, args: Sequence[str]) -> str:
    """Contracted for floats; integers wrap."""
    if dtype.is_float:
        return d.function("fma", dtype, args)
    return f"wrapping_add(wrapping_mul({args[0]}, {args[1]}), {args[2]})"


WIDE: Final[dict[str, Spelling]] = {
    "select": lambda d, dtype, of, args: f"chosen({', '.join(args)})",
    "convert": _convert,
    "bits": _bits,
    "fma": _fma,
    "narrow": lambda d, dtype, of, args: d.narrowed(dtype, args[0]),
    "dot_bf16": lambda d, dtype, of, args: f"dot_bf16({', '.join(args)})",
    "max": lambda d, dtype, of, args: f"greater({', '.join(args)})",
    "min": lambda d, dtype, of, args: f"smaller({', '.join(args)})",
}
"""Wide ops that are neither an operator nor a function of floats."""
