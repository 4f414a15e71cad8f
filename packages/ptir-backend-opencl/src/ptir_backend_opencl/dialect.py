"""How OpenCL C spells what the kernel generator writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final

from ptir.codegen.api import EXPONENTIALS, CLike, PersistentPrimitives, Spelling, clike
from ptir.types import DTYPES, F16, F32, F64, I32, DType
from ptir_backend_opencl import dots
from ptir_backend_opencl.functions import DOUBLES, NARROW, UNALIGNED, functions
from ptir_backend_opencl.groups import SUBGROUPS, together

WORDS: Final = clike.WORDS | {
    "i8": "char",
    "i64": "long",
    "u8": "uchar",
    "u16": "ushort",
    "u32": "uint",
    "u64": "ulong",
}

ONE_BY_ONE: Final = frozenset(("sin", "cos"))
"""Built-in functions called per lane: PoCL's vectors get small lanes wrong beside huge ones."""
DOUBLES_ONE_BY_ONE: Final = ONE_BY_ONE | {"pow", "rem"}
"""The same for f64: PoCL's ``pow`` mixes its lanes up there, and its ``fmod`` may not return."""
OWN_OF_DOUBLES: Final = frozenset(("exp",))
"""What is ours for f64 where ``own`` functions are taken."""

ONES: Final = "-(get_work_dim() > 0)"
"""Minus one, which no compiler sees."""
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
"""A serial kernel: workgroups of one thread, each with a tile of its own."""

HAS_DOUBLES: Final = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
NO_DOUBLES: Final = "#define double this_device_has_no_double\n"
"""So that a kernel that slips through fails on every driver, also on one that has them."""


PERSISTENT: Final = PersistentPrimitives(
    function="void",
    table="__constant int {0}[] = {{{1}}};",
    fetch_add="atomic_inc({0})",
    signal="mem_fence(CLK_GLOBAL_MEM_FENCE); atomic_add({0}, {1});",
    poll="(*(volatile __global int *)({0}))",
    yield_thread="",
    fence="mem_fence(CLK_GLOBAL_MEM_FENCE);",
)


YIELD: Final = '__asm__ volatile("syscall" : : "a"(24L) : "rcx", "r11", "memory");'
"""``sched_yield`` of Linux on x86-64, for drivers that compile assembly for the host's threads."""


def _hidden(op: str) -> Spelling:
    """``~x``, or ``-x`` as ``~x + 1``, of wide enough integers without telling the compiler.

    Intel's gets the greater of two single complements wrong, and takes the sign bit of a negation,
    alone or in vectors, for the number being positive.
    """

    def spelled(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        if not dtype.is_integer or dtype.bits < 32:
            plain = f"({'~' if op == 'not' else '-'}{args[0]})"
            return plain if width > 1 else d.filled(clike.SCALAR[op], op, dtype, of, 1, args)
        turned = f"({args[0]} ^ ({d.type(dtype, width)})({ONES}))"
        return turned if op == "not" else as_unsigned("{} + 1", d, dtype, width, [turned])

    return spelled


def as_unsigned(form: str, d: CLike, dtype: DType, width: int, args: Sequence[str]) -> str:
    """Numbers with signs are computed without, where overflow is defined."""
    if dtype.kind != "int" or dtype.bits < 32:
        return f"({form.format(*args)})"
    unsigned = d.type(DTYPES[f"u{dtype.bits}"], width)
    text = form.format(*(f"as_{unsigned}({arg})" for arg in args))
    return f"as_{d.type(dtype, width)}({text})"


def _select(d: CLike, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
    mask, on_true, on_false = args
    bits = DTYPES[clike.CARRIERS[dtype.name]].bits
    kind = {8: "char", 16: "short", 32: "int", 64: "long"}[bits]
    wide = mask if bits == 32 else f"convert_{kind}{width}({mask})"
    return f"select({on_false}, {on_true}, {wide})"


BOTH: Final[dict[str, Spelling]] = {
    "neg": _hidden("neg"),
    "not": _hidden("not"),
    "bits": clike.recast_bits,
    "recast": "as_{type}({0})",
    "saturate": "convert_{type}_sat({0})",
    "narrow": "to_{name}{n}({0})",
    "load_f16": "bits_f16{n}({0})",
    "store_f16": "f16_bits{n}({0})",
}
SCALAR: Final[dict[str, Spelling]] = {
    **clike.SCALAR,
    **BOTH,
    "load_bf16": "as_float((uint){0} << 16)",
    "store_bf16": "(ushort)(as_uint({0}) >> 16)",
}
"""Numbers are converted by casts: a ``convert_`` in a loop of sums crashes Intel's vectorizer."""
WIDE: Final[dict[str, Spelling]] = {
    **clike.WIDE,
    **BOTH,
    "cast": "convert_{type}({0})",
    "load_bool": "(-convert_int{n}({0}))",
    "load_bf16": "as_float{n}(convert_uint{n}({0}) << 16)",
    "store_bool": "convert_uchar{n}({0} & 1)",
    "store_bf16": "convert_ushort{n}(as_uint{n}({0}) >> 16)",
    **dict.fromkeys(("max", "min"), "{op}({args})"),
    **dict.fromkeys(dots.STORES, "{op}_v({args})"),
    "shift_left": "({0} << {1})",
    "select": _select,
    "mask": "convert_int{n}({0})",
    "splat": "({type})({0})",
    "gathered": "({type})({args})",
    "load": "vload{n}(0, {0} + {1})",
    "store": "vstore{n}({2}, 0, ({0} + {1}));",
}


class OpenCLC(CLike):
    """OpenCL C 1.2.

    ``yields``: kernels may give way to another thread (``YIELD``); ``own``: ``exp``, ``tanh`` and
    ``erf`` of f32 and ``exp`` of f64 are ours (``functions``), and so are vectors of narrow types.
    ``dots`` are instructions unless ``spelled`` says that they are written out. ``subgroup``:
    threads that shuffle values (Intel's extension, whose subgroups have a fixed size), or 0.
    ``hidden``: the compiler is not to see that local ids are local ids.
    """

    name = "opencl-c"
    lanes = 16
    types = clike.worded(WORDS)
    stored = clike.worded(WORDS, clike.STORED) | {"f16": "half"}
    suffixes: ClassVar = {"u32": "u", "i64": "l", "u64": "ul"}
    special: ClassVar = {
        "f32": ("(float)NAN", "(INFINITY)", "(-INFINITY)"),
        "f64": ("(double)NAN", "((double)INFINITY)", "((double)-INFINITY)"),
    }
    space = "__global "
    vector = "{type}{n}"
    component = "{0}.s{1:x}"
    scalar_rows = SCALAR
    wide_rows = WIDE
    entry = KERNEL
    persistent = PERSISTENT
    no_unroll = "__attribute__((opencl_unroll_hint(1)))"
    spelled = False

    def __init__(
        self,
        doubles: bool,
        yields: bool = False,
        own: bool = False,
        subgroup: int = 0,
        hidden: bool = False,
    ) -> None:
        self._doubles = doubles
        self._own = own
        self._subgroup = subgroup
        self.workgroup = together(subgroup, hidden)
        if yields:
            self.persistent = replace(PERSISTENT, yield_thread=YIELD)

    def function(self, op: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """Built-in ones, but where a device's are slow, wrong, or wrong in lanes."""
        double = dtype == F64
        if width > 1 and op in (DOUBLES_ONE_BY_ONE if double else ONE_BY_ONE):
            return self.by_lanes(op, dtype, dtype, width, args)
        if op == "rem" and not double:
            return f"rem{_n(width)}({', '.join(args)})"
        if self._own and op in (OWN_OF_DOUBLES if double else EXPONENTIALS):
            return f"{op}_{'v' if width > 1 else ''}{'f64' if double else 'f32'}({args[0]})"
        return super().function(op, dtype, width, args)

    def wrapped(self, op: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """By ``as_``, but single narrow numbers, which C promotes, by casts."""
        if width == 1 and dtype.bits < 32:
            return super().wrapped(op, dtype, width, args)
        return as_unsigned(clike.FORMS[op], self, dtype, width, args)

    def reduce_lanes(self, op: str, dtype: DType, text: str) -> str | None:
        """``max`` and ``add`` of i32 have a function where the device has dot products."""
        known = self.dots and dtype == I32 and op in ("max", "add")
        if not known:
            return None
        return f"fold_max_v({text})" if op == "max" else f"as_int(fold_add_v(as_uint16({text})))"

    def load(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """Halves have a function; vectors of narrow types may be ours."""
        if dtype == F16:
            return f"vload_half{_n(width)}(0, {buffer} + {index})"
        kind = self.storage(dtype)
        if width > 1 and self._own and kind in NARROW:
            at = f"(*(const __global {kind}{width}_at *)({buffer} + {index}))"
            return self.carried(dtype, width, at)
        return super().load(dtype, width, buffer, index)

    def store(
        self, dtype: DType, width: int, buffer: str, index: str, text: str, space: str = "__global "
    ) -> str:
        """Halves are stored as words; vectors of narrow types may be ours."""
        half = dtype == F16  # PoCL's wide vstore_half faults where lines are not aligned
        kind = "ushort" if half else self.storage(dtype)
        own = "_at" if self._own else ""
        if (width > 1 and own and kind in NARROW) or (width == 1 and half):
            to = f"({space}{kind}{_n(width)}{own} *)({buffer} + {index})"
            return f"*{to} = {self.narrowed(dtype, width, text)};"
        if half:
            to = f"({space}ushort *)({buffer} + {index})"
            return f"vstore{width}({self.narrowed(dtype, width, text)}, 0, {to});"
        return super().store(dtype, width, buffer, index, text)

    def private_store(
        self, width: int, array: str, index: str, text: str, dtype: DType = F32
    ) -> str:
        """A store in the private address space."""
        if dtype.bits < 32:
            array = f"(({self.storage(dtype)}{'_at' if self._own else ''} *){array})"
        return self.store(dtype, width, array, index, text, "")

    def prefetch(self, buffer: str, index: str) -> str:
        """``FETCH_AHEAD``, because PoCL's own ``prefetch`` does nothing."""
        return f"FETCH_AHEAD({buffer} + {index});"

    def prelude(self) -> str:
        """Pragmas, conversions of 16-bit floats, and what functions of ours the device takes."""
        own = UNALIGNED + functions() if self._own else ""
        own += DOUBLES if self._own and self._doubles else ""
        beside = dots.functions(self.dots, not self.spelled)
        begin = HAS_DOUBLES if self._doubles else NO_DOUBLES
        return begin + (SUBGROUPS if self._subgroup else "") + PRELUDE + FETCH_AHEAD + own + beside


def _n(width: int) -> str:
    return str(width) if width > 1 else ""
