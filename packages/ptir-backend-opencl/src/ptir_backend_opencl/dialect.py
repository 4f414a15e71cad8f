"""How OpenCL C spells what the kernel generator writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from ptir.backend import clike
from ptir.backend.clike import BINARY, RELATIONS, CLike
from ptir.backend.kernel import Staying
from ptir.codegen.exponentials import EXPONENTIALS
from ptir.types import BF16, BOOL, DTYPES, F16, F32, F64, I32, DType
from ptir_backend_opencl import dots
from ptir_backend_opencl.functions import DOUBLES, NARROW, UNALIGNED, functions
from ptir_backend_opencl.groups import SUBGROUPS, together

TYPES: Final = clike.TYPES | {
    "i8": "char",
    "i64": "long",
    "u8": "uchar",
    "u16": "ushort",
    "u32": "uint",
    "u64": "ulong",
    "f8e4m3fn": "uchar",
    "f8e5m2": "uchar",
}

ONE_BY_ONE: Final = frozenset(("sin", "cos"))
"""Built-in functions called per lane: PoCL's vectors get small lanes wrong beside huge ones."""
DOUBLES_ONE_BY_ONE: Final = ONE_BY_ONE | {"pow", "rem"}
"""The same for f64: PoCL's ``pow`` mixes its lanes up there, and its ``fmod`` may not return."""
OWN_OF_DOUBLES: Final = frozenset(("exp",))
"""What is ours for f64 where ``own`` functions are taken."""

WRAPPING: Final = frozenset(("add", "sub", "mul", "neg"))
"""What may overflow: a compiler takes for granted that it does not where numbers have signs."""
FORMS: Final = {"neg": "-{}", "not": "~{}", "rem": "{} % {}"} | {
    op: f"{{}} {sign} {{}}" for op, sign in BINARY.items()
}
"""Operators of vectors."""

ONES: Final = "-(get_work_dim() > 0)"
"""Minus one, which no compiler sees."""
HIDDEN: Final = frozenset(("not", "neg"))
"""What is made with it of integers: Intel's compiler gets the greater of two single complements
wrong, and takes the sign bit of a negation, alone or in vectors, for the number being positive."""

NARROWING: Final = """\
static float{n} to_bf16{n}(float{n} x) {{
  uint{n} u = as_uint{n}(x);
  u = select(u + 0x7fffu + ((u >> 16) & 1u), u | 0x400000u, {isnan});
  return as_float{n}(u & 0xffff0000u);
}}
static float{n} to_f16{n}(float{n} x) {{
  ushort t[{width}] __attribute__((aligned(64)));
  vstore_half{n}_rte(x, 0, (half *)t);
  uint{n} nan = (as_uint{n}(x) & 0xffffe000u) | 0x400000u;
  return as_float{n}(select(as_uint{n}(vload_half{n}(0, (half *)t)), nan, {isnan}));
}}
static ushort{n} f16_bits{n}(float{n} x) {{
  ushort t[{width}] __attribute__((aligned(64)));
  vstore_half{n}_rte(x, 0, (half *)t);
  uint{n} u = as_uint{n}(x), nan = ((u >> 16) & 0x8000u) | ((u >> 13) & 0x3ffu) | 0x7e00u;
  return select({load}, convert_ushort{n}(nan), convert_ushort{n}({isnan}));
}}
static float{n} bits_f16{n}(ushort{n} x) {{
  ushort t[{width}] __attribute__((aligned(64)));
  {store};
  return vload_half{n}(0, (half *)t);
}}
"""
"""f32 rounded to 16 bits, half to even, and widened again; ``half`` arithmetic is not needed.

PoCL's scalar ``vstore_half`` makes every NaN 0x7fff on processors without AVX-512, its vectors do
not. No NaN is taken from it, and stores are made of ``f16_bits``: a NaN keeps its sign and the ten
first bits that it says, in a vector and beside one, in a register and in memory.
"""

REMAINDER: Final = """\
static float{n} rem{n}(float{n} a, float{n} b) {{
  float{n} r = fmod(a, b);
  return fabs(r) >= fabs(b) ? copysign((float{n})(0.0f), a) : r;
}}
"""
"""``fmod`` of f32: Intel's leaves the divisor itself of some of its multiples below 2^-125."""

PRELUDE: Final = "#pragma OPENCL FP_CONTRACT OFF\n" + "".join(
    (NARROWING + REMAINDER).format(
        n=n, width=n or 1, isnan=f"as_uint{n}({isnan})", load=load, store=store
    )
    for n, isnan, load, store in (
        ("", "-isnan(x)", "t[0]", "t[0] = x"),
        ("16", "isnan(x)", "vload16(0, t)", "vstore16(x, 0, t)"),
    )
)

FETCH_AHEAD: Final = """\
#ifdef __clang__  /* PoCL's prefetch does nothing */
#define FETCH_AHEAD(p) __builtin_prefetch((const void *)(size_t)(p), 0, 2)
#else
#define FETCH_AHEAD(p) prefetch(p, 16)
#endif
"""

KERNEL: Final = """\
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void {name}({arguments}) {{
  const int item = get_global_id(0);
{head}{each}
}}"""
"""A kernel of work-groups of one: an item is a tile."""

HAS_DOUBLES: Final = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
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


class OpenCLC(CLike):
    """OpenCL C 1.2.

    ``yields``: kernels may give way to another thread (``YIELD``); ``own``: ``exp``, ``tanh`` and
    ``erf`` of f32 and ``exp`` of f64 are ours (``functions``), and so are vectors of narrow types.
    ``dots`` are instructions unless ``spelled`` says that they are written out. ``subgroup``:
    members that exchange values (Intel's extension, whose subgroups have a fixed size), or 0.
    """

    name = "opencl-c"
    lanes = 16
    types = TYPES
    stored: ClassVar = {"bool": "uchar", "f16": "half", "bf16": "ushort"}
    suffixes: ClassVar = {"u32": "u", "i64": "l", "u64": "ul"}
    space = "__global "
    entry = KERNEL
    functions = clike.FUNCTIONS | {"max": "max", "min": "min"}
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

    def vector(self, dtype: DType, width: int) -> str:
        """``float16``, ``int16``, ..."""
        return f"{TYPES[dtype.name]}{width}"

    def special(self, value: float, dtype: DType) -> str:
        """A macro."""
        if math.isnan(value):
            return f"({'double' if dtype == F64 else 'float'})NAN"
        sign = "-" if value < 0 else ""
        return f"((double){sign}INFINITY)" if dtype == F64 else f"({sign}INFINITY)"

    def recast(self, dtype: DType, text: str) -> str:
        """A built-in function."""
        return f"as_{TYPES[dtype.name]}({text})"

    def half_bits(self, text: str) -> str:
        """A function of the prelude."""
        return f"f16_bits({text})"

    def half_value(self, bits: str) -> str:
        """A function of the prelude."""
        return f"bits_f16({bits})"

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
            return self.lanewise(
                dtype, width, lambda _, *lane: self.scalar(op, dtype, of, lane), *args
            )
        if op in SPECIAL:
            return SPECIAL[op](self, dtype, of, width, args)
        if op in HIDDEN and dtype.is_integer and dtype.bits >= 32:
            return self._turned(op, dtype, args[0], width)
        if op == "rem" and dtype.is_float and dtype != F64:
            return f"rem{_n(width)}({', '.join(args)})"
        if self._own and op in (OWN_OF_DOUBLES if dtype == F64 else EXPONENTIALS):
            kind = "f64" if dtype == F64 else "f32"
            return f"{op}_{'v' if width > 1 else ''}{kind}({args[0]})"
        return super().apply(op, dtype, of, width, args)

    def wide(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """As a single one; masks are 32 bits wide, whatever was compared."""
        if op in RELATIONS:
            bits = 32 if of in (F16, BF16, BOOL) else of.bits
            text = f"({args[0]} {RELATIONS[op]} {args[1]})"
            return text if bits == 32 else f"convert_int{width}{text}"
        if op not in FORMS or (dtype.is_float and op == "rem"):
            return self.function(op, dtype, args)
        if op in WRAPPING:
            return self.wrapped(FORMS[op], dtype, args, width)
        return f"({FORMS[op].format(*args)})"

    def wrapped(self, form: str, dtype: DType, args: Sequence[str], width: int = 1) -> str:
        """Numbers with signs are computed without, where overflow is defined."""
        if width == 1 and dtype.bits < 32:
            return super().wrapped(form, dtype, args)
        if dtype.kind != "int" or dtype.bits < 32:
            return f"({form.format(*args)})"
        plain = self.type(DTYPES[f"u{dtype.bits}"], width)
        bits = (f"as_{plain}({arg})" for arg in args)
        return f"as_{self.type(dtype, width)}({form.format(*bits)})"

    def _turned(self, op: str, dtype: DType, text: str, width: int) -> str:
        """``~x``, or ``-x`` as ``~x + 1``, made without telling the compiler."""
        turned = f"({text} ^ ({self.type(dtype, width)})({ONES}))"
        return turned if op == "not" else self.wrapped("{} + 1", dtype, [turned], width)

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
        kind = self.storage(dtype)
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
        n, kind = _n(width), self.storage(dtype)
        if dtype == F16:  # PoCL's wide vstore_half faults where lines are not aligned
            text, kind = f"f16_bits{n}({text})", "ushort"
        if dtype == F16 and width == 1:
            return f"*({space}ushort{'_at' if self._own else ''} *)({buffer} + {index}) = {text};"
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

    def private_store(
        self, width: int, array: str, index: str, text: str, dtype: DType = F32
    ) -> str:
        """Like a store to a buffer."""
        if dtype.bits < 32:
            array = f"(({self.storage(dtype)}{'_at' if self._own else ''} *){array})"
        return self.store(dtype, width, array, index, text, "")

    def prefetch(self, buffer: str, index: str) -> str:
        """A macro of the prelude."""
        return f"FETCH_AHEAD({buffer} + {index});"

    def prelude(self) -> str:
        """Nothing is contracted but what says ``fma``."""
        own = UNALIGNED + functions() if self._own else ""
        own += DOUBLES if self._own and self._doubles else ""
        beside = dots.functions(self.dots, not self.spelled)
        begin = HAS_DOUBLES if self._doubles else NO_DOUBLES
        return begin + (SUBGROUPS if self._subgroup else "") + PRELUDE + FETCH_AHEAD + own + beside


def _n(width: int) -> str:
    return str(width) if width > 1 else ""


Spelling = Callable[[OpenCLC, DType, DType, int, Sequence[str]], str]


def _select(d: OpenCLC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    if width == 1:
        return d.scalar("select", dtype, of, args)
    mask, on_true, on_false = args
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
        return d.function("fma", dtype, args)
    product = d.apply("mul", dtype, of, width, args[:2])
    return d.apply("add", dtype, of, width, [product, args[2]])


def _narrow(d: OpenCLC, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    return f"{'to_f16' if dtype == F16 else 'to_bf16'}{_n(width)}({args[0]})"


def _beside(name: str) -> Spelling:
    """A function of wide values that stands in the prelude where there are dot products."""
    return lambda d, dtype, of, width, args: f"{name}_v({', '.join(args)})"


SPECIAL: Final[dict[str, Spelling]] = {
    "fma": _fma,
    "select": _select,
    "convert": _convert,
    "bits": _bits,
    "narrow": _narrow,
    **{name: _beside(name) for name in dots.STORES},
}
