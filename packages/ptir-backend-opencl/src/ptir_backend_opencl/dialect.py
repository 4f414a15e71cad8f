"""How OpenCL C spells what the kernel generator writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from ptir.backend.kernel import Argument, Dialect, Staying
from ptir.codegen.exponentials import EXPONENTIALS
from ptir.types import BF16, BOOL, DTYPES, F16, F32, F64, I32, DType
from ptir_backend_opencl import dots
from ptir_backend_opencl.functions import NARROW, UNALIGNED, functions
from ptir_backend_opencl.groups import SUBGROUPS, together

TYPES: Final = {
    "bool": "int",  # carried as a mask
    "i8": "char",
    "i16": "short",
    "i32": "int",
    "i64": "long",
    "u8": "uchar",
    "u16": "ushort",
    "u32": "uint",
    "u64": "ulong",
    "f16": "float",  # carried as f32
    "bf16": "float",
    "f32": "float",
    "f64": "double",
    "f8e4m3fn": "uchar",  # only moved
    "f8e5m2": "uchar",
}

STORAGE: Final = TYPES | {"bool": "uchar", "f16": "half", "bf16": "ushort"}

BINARY: Final = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shift_left": "<<",
    "shift_right": ">>",
}

RELATIONS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

FUNCTIONS: Final = {
    "abs": "fabs",
    "exp": "exp",
    "expm1": "expm1",
    "log": "log",
    "log1p": "log1p",
    "sqrt": "sqrt",
    "sin": "sin",
    "cos": "cos",
    "tanh": "tanh",
    "erf": "erf",
    "pow": "pow",
    "floor": "floor",
    "ceil": "ceil",
    "round": "rint",
}

ONE_BY_ONE: Final = frozenset(("sin", "cos"))
"""Built-in functions called per lane: PoCL's vectors get small lanes wrong beside huge ones."""
DOUBLES_ONE_BY_ONE: Final = ONE_BY_ONE | {"pow", "rem"}
"""The same for f64: PoCL's ``pow`` mixes its lanes up there, and its ``fmod`` may not return."""

WRAPPING: Final = frozenset(("add", "sub", "mul", "neg"))
"""What may overflow: a compiler takes for granted that it does not where numbers have signs."""

ONES: Final = "-(get_work_dim() > 0)"
"""Minus one, which no compiler sees: Intel's gets the greater of two complements wrong."""

NARROWING: Final = """\
float{n} to_bf16{n}(float{n} x) {{
  uint{n} u = as_uint{n}(x);
  u = select(u + 0x7fffu + ((u >> 16) & 1u), u | 0x400000u, {isnan});
  return as_float{n}(u & 0xffff0000u);
}}
float{n} to_f16{n}(float{n} x) {{
  ushort t[{width}] __attribute__((aligned(64)));
  vstore_half{n}_rte(x, 0, (half *)t);
  return vload_half{n}(0, (half *)t);
}}
ushort{n} f16_bits{n}(float{n} x) {{
  ushort t[{width}] __attribute__((aligned(64)));
  vstore_half{n}_rte(x, 0, (half *)t);
  return {load};
}}
float{n} bits_f16{n}(ushort{n} x) {{
  ushort t[{width}] __attribute__((aligned(64)));
  {store};
  return vload_half{n}(0, (half *)t);
}}
"""
"""f32 rounded to 16 bits, half to even, and widened again; ``half`` arithmetic is not needed."""

PRELUDE: Final = "#pragma OPENCL FP_CONTRACT OFF\n" + "".join(
    NARROWING.format(n=n, width=n or 1, isnan=f"as_uint{n}({isnan})", load=load, store=store)
    for n, isnan, load, store in (
        ("", "-isnan(x)", "t[0]", "t[0] = x"),
        ("16", "isnan(x)", "vload16(0, t)", "vstore16(x, 0, t)"),
    )
)

KERNEL: Final = "__kernel __attribute__((reqd_work_group_size(1, 1, 1)))\n"

DOUBLES: Final = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
NO_DOUBLES: Final = "#define double this_device_has_no_double\n"
"""So that a kernel that slips through fails on every driver, also on one that has them."""


STAYING: Final = Staying(
    function="void",
    table="__constant int {0}[] = {{{1}}};",
    claim="atomic_inc({0})",
    announce="mem_fence(CLK_GLOBAL_MEM_FENCE); atomic_add({0}, {1});",
    seen="(*(volatile __global int *)({0}))",
    pause="",
    fence="mem_fence(CLK_GLOBAL_MEM_FENCE);",
)


YIELD: Final = '__asm__ volatile("syscall" : : "a"(24L) : "rcx", "r11", "memory");'
"""``sched_yield`` of Linux on x86-64, for drivers that compile assembly for the host's threads."""


class OpenCLC(Dialect):
    """OpenCL C 1.2.

    ``yields``: kernels may give way to another thread (``YIELD``); ``own``: ``exp``, ``tanh`` and
    ``erf`` of f32 are ours (``functions``), and so are vectors of narrow types. ``dots`` are
    instructions unless ``spelled`` says that they are written out. ``subgroup``: members that
    exchange values (Intel's extension, whose subgroups have a fixed size), or 0.
    """

    name = "opencl-c"
    lanes = 16
    staying = STAYING
    rolled = "__attribute__((opencl_unroll_hint(1)))"
    spelled = False

    def __init__(
        self, doubles: bool, yields: bool = False, own: bool = False, subgroup: int = 0
    ) -> None:
        self._doubles = doubles
        self._own = own
        self._subgroup = subgroup
        self.together = together(subgroup)
        if yields:
            self.staying = replace(STAYING, pause=YIELD)

    def type(self, dtype: DType, width: int = 1) -> str:
        """``float``, ``int16``, ..."""
        return TYPES[dtype.name] + (str(width) if width > 1 else "")

    def literal(self, dtype: DType, value: float | int) -> str:
        """Exact: floats in hexadecimal."""
        if dtype == BOOL:
            return "-1" if value else "0"
        if dtype.is_float and dtype.bits > 8:
            return _float(float(value), dtype)
        suffix = {"u32": "u", "i64": "l", "u64": "ul"}.get(dtype.name, "")
        if value == -(1 << (dtype.bits - 1)) and dtype.bits >= 32:
            return f"({value + 1}{suffix}-1)"
        return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"

    def splat(self, dtype: DType, width: int, text: str) -> str:
        """A cast of the scalar to the vector type."""
        return text if width == 1 else f"({self.type(dtype, width)})({text})"

    def gathered(self, dtype: DType, texts: Sequence[str]) -> str:
        """A vector literal."""
        if len(texts) == 1:
            return texts[0]
        return f"({self.type(dtype, len(texts))})({', '.join(texts)})"

    def lane(self, text: str, number: int) -> str:
        """A component."""
        return text if self.lanes == 1 else f"{text}.s{number:x}"

    def apply(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """Operators, built-in functions, and the conversions between masks and numbers."""
        if width > 1 and op in (DOUBLES_ONE_BY_ONE if dtype == F64 else ONE_BY_ONE):
            lanes = ([self.lane(f"({arg})", n) for arg in args] for n in range(width))
            return self.gathered(dtype, [self.apply(op, dtype, of, 1, lane) for lane in lanes])
        if op in WRAPPING and dtype.kind == "int" and dtype.bits >= 32:
            return self._wrapped(op, dtype, width, args)
        if op in SPECIAL:
            return SPECIAL[op](self, dtype, of, width, args)
        if op in RELATIONS:
            return self._mask(f"{args[0]} {RELATIONS[op]} {args[1]}", of, width)
        if op == "mul" and width == 1 and dtype.bits < 32 and dtype.is_integer:
            args = [f"(uint){arg}" for arg in args]  # a product of shorts may not fit an int
        if op in BINARY:
            return self._whole(dtype, width, f"{args[0]} {BINARY[op]} {args[1]}")
        if op == "neg":
            return self._whole(dtype, width, f"-{args[0]}")
        if op == "not":
            return self._complement(dtype, width, args[0])
        if self._own and op in EXPONENTIALS and dtype != F64:
            return f"{op}_{'v' if width > 1 else ''}f32({args[0]})"
        return f"{FUNCTIONS[op]}({', '.join(args)})"

    def _wrapped(self, op: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """Computed without signs, where overflow is defined."""
        plain = DTYPES[f"u{dtype.bits}"]
        bits = [f"as_{self.type(plain, width)}({arg})" for arg in args]
        return f"as_{self.type(dtype, width)}({self.apply(op, plain, plain, width, bits)})"

    def _complement(self, dtype: DType, width: int, text: str) -> str:
        """Of a single integer as wide as a register, without telling the compiler."""
        if width == 1 and dtype.is_integer and dtype.bits >= 32:
            return f"({text} ^ ({self.type(dtype)})({ONES}))"
        return self._whole(dtype, width, f"~{text}")

    def _whole(self, dtype: DType, width: int, text: str) -> str:
        """A scalar integer narrower than ``int`` was promoted: bring it back."""
        narrow = width == 1 and dtype.bits < 32 and not dtype.is_float and dtype != BOOL
        return f"({self.type(dtype)})({text})" if narrow else f"({text})"

    def _mask(self, text: str, of: DType, width: int) -> str:
        """A relation as a 32-bit mask; vectors give -1, as wide as what was compared."""
        if width == 1:
            return f"(-({text}))"
        bits = 32 if of in (F16, BF16, BOOL) else of.bits
        return f"({text})" if bits == 32 else f"convert_int{width}({text})"

    def folded(self, op: str, dtype: DType, text: str) -> str | None:
        """A function of the prelude, beside dot products."""
        known = self.dots and dtype == I32 and op in ("max", "add")
        if not known:
            return None
        return f"fold_max_v({text})" if op == "max" else f"as_int(fold_add_v(as_uint16({text})))"

    def load(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """A load, widened to what carries it."""
        if dtype == F16:
            return f"vload_half{_n(width)}(0, {buffer} + {index})"
        at = self._wide(dtype, width, buffer, index) if width > 1 else f"{buffer}[{index}]"
        if dtype == BF16:
            return f"as_float{_n(width)}(convert_uint{_n(width)}({at}) << 16)"
        if dtype == BOOL:
            return f"(-convert_int{_n(width)}({at}))"
        return at

    def _wide(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """Neighbours as they are stored."""
        kind = STORAGE[dtype.name]
        if self._own and kind in NARROW:
            return f"(*(const __global {kind}{width}_at *)({buffer} + {index}))"
        return f"vload{width}(0, {buffer} + {index})"

    def store(
        self,
        dtype: DType,
        width: int,
        buffer: str,
        index: str,
        text: str,
        space: str = "__global ",
    ) -> str:
        """A store of what carries the value, narrowed."""
        n, kind = _n(width), STORAGE[dtype.name]
        if dtype == F16 and width > 1:  # PoCL's wide vstore_half faults where lines are not aligned
            text, kind = f"f16_bits{n}({text})", "ushort"
        elif dtype == F16:
            return f"vstore_half_rte({text}, 0, {buffer} + {index});"
        if dtype == BF16:
            text = f"convert_ushort{n}(as_uint{n}({text}) >> 16)"
        if dtype == BOOL:
            text = f"convert_uchar{n}({text} & 1)"
        if width > 1 and self._own and kind in NARROW:
            return f"*({space}{kind}{width}_at *)({buffer} + {index}) = {text};"
        if width > 1:
            cast = f"({space}ushort *)" if dtype == F16 else ""
            return f"vstore{width}({text}, 0, {cast}({buffer} + {index}));"
        return f"{buffer}[{index}] = {text};"

    def private(self, array: str, size: int, dtype: DType = F32) -> str:
        """An array of the work-item."""
        return f"{TYPES[dtype.name]} {array}[{size}] __attribute__((aligned(64)));"

    def private_load(self, width: int, array: str, index: str) -> str:
        """Like a load from a buffer."""
        return f"vload{width}(0, {array} + {index})" if width > 1 else f"{array}[{index}]"

    def private_store(
        self, width: int, array: str, index: str, text: str, dtype: DType = F32
    ) -> str:
        """Like a store to a buffer."""
        if dtype.bits < 32:
            kind = STORAGE[dtype.name] + ("_at" if self._own else "")
            array = f"(({kind} *){array})"
            return self.store(dtype, width, array, index, text, "")
        if width > 1:
            return f"vstore{width}({text}, 0, {array} + {index});"
        return f"{array}[{index}] = {text};"

    def pointer(self, argument: Argument) -> str:
        """A pointer to global memory."""
        constant = "" if argument.written else "const "
        return f"__global {constant}{STORAGE[argument.dtype.name]} *"

    def kernel(self, name: str, arguments: Sequence[Argument], body: str) -> str:
        """A kernel of work-groups of one: an item is a tile."""
        listed = ", ".join(f"{self.pointer(a)}{a.name}" for a in arguments)
        return f"{KERNEL}void {name}({listed}) {{\n  const int item = get_global_id(0);\n{body}\n}}"

    def prelude(self) -> str:
        """Nothing is contracted but what says ``fma``."""
        own = UNALIGNED + functions() if self._own else ""
        beside = dots.functions(self.dots, not self.spelled)
        begin = DOUBLES if self._doubles else NO_DOUBLES
        return begin + (SUBGROUPS if self._subgroup else "") + PRELUDE + own + beside


def _n(width: int) -> str:
    return str(width) if width > 1 else ""


def _float(value: float, dtype: DType) -> str:
    suffix = "" if dtype == F64 else "f"
    if math.isnan(value):
        return f"({'double' if dtype == F64 else 'float'})NAN"
    if math.isinf(value):
        sign = "-" if value < 0 else ""
        return f"((double){sign}INFINITY)" if dtype == F64 else f"({sign}INFINITY)"
    text = value.hex() + suffix
    return f"({text})" if text.startswith("-") else text


Spelling = Callable[[OpenCLC, DType, DType, int, Sequence[str]], str]


def _rem(d: OpenCLC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    return f"fmod({args[0]}, {args[1]})" if dtype.is_float else f"({args[0]} % {args[1]})"


def _select(d: OpenCLC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    mask, on_true, on_false = args
    if width == 1:
        return f"({mask} ? {on_true} : {on_false})"
    bits = 32 if dtype in (F16, BF16, BOOL) else dtype.bits
    kind = {8: "char", 16: "short", 32: "int", 64: "long"}[bits]
    wide = mask if bits == 32 else f"convert_{kind}{width}({mask})"
    return f"select({on_false}, {on_true}, {wide})"


def _convert(d: OpenCLC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    if TYPES[dtype.name] == TYPES[of.name]:
        return args[0]
    saturate = "_sat" if of.is_float and not dtype.is_float else ""
    return f"convert_{d.type(dtype, width)}{saturate}({args[0]})"


def _bits(d: OpenCLC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """The carrier's bits, or between 16-bit types those of the stored value."""
    text, n = args[0], _n(width)
    if dtype.bits != 16 or of.bits != 16:
        return f"as_{d.type(dtype, width)}({text})"
    if of == F16:
        text = f"f16_bits{n}({text})"
    elif of == BF16:
        text = f"convert_ushort{n}(as_uint{n}({text}) >> 16)"
    else:
        text = f"as_ushort{n}({text})"
    if dtype == F16:
        return f"bits_f16{n}({text})"
    if dtype == BF16:
        return f"as_float{n}(convert_uint{n}({text}) << 16)"
    return f"as_{d.type(dtype, width)}({text})"


def _fma(d: OpenCLC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    """Contracted for floats; integers wrap."""
    if dtype.is_float:
        return f"fma({', '.join(args)})"
    product = d.apply("mul", dtype, of, width, args[:2])
    return d.apply("add", dtype, of, width, [product, args[2]])


def _narrow(d: OpenCLC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    return f"{'to_f16' if dtype == F16 else 'to_bf16'}{_n(width)}({args[0]})"


def _extreme(name: str, relation: str) -> Spelling:
    """One of two integers: single ones are compared, because narrow literals have no type."""

    def spelled(d: OpenCLC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        a, b = args
        if width > 1:
            return f"{name}({a}, {b})"
        return d._whole(dtype, width, f"{a} {relation} {b} ? {a} : {b}")

    return spelled


def _beside(name: str) -> Spelling:
    """A function of wide values that stands in the prelude where there are dot products."""
    return lambda d, dtype, of, width, args: f"{name}_v({', '.join(args)})"


SPECIAL: Final[dict[str, Spelling]] = {
    "rem": _rem,
    "fma": _fma,
    "select": _select,
    "convert": _convert,
    "bits": _bits,
    "narrow": _narrow,
    "max": _extreme("max", ">"),
    "min": _extreme("min", "<"),
    **{name: _beside(name) for name in dots.STORES},
}
