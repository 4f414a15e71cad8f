"""Our own ``exp``, ``tanh``, ``erf`` and narrow vectors, where those that are built in are slower.

PoCL's are SLEEF's, and its ``erf`` of a vector is one lane at a time. The text is the kernel
generator's (``ptir.codegen.expressions.exponentials``), so a value is what the C backend gives.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from ptir.codegen.api import EXPONENTIALS, exponentials, read_with

ONE_LANE: Final = """\
#define F float
#define U uint
#define NAMED(f) f##_f32
#define K(c) (c)
#define SELECT_F(m, a, b) ((m) ? (a) : (b))
#define AS_F as_float
#define AS_U as_uint
"""

ALL_LANES: Final = """\
#define F float16
#define U uint16
#define NAMED(f) f##_vf32
#define K(c) ((float16)(c))
#define SELECT_F(m, a, b) select(b, a, m)
#define AS_F as_float16
#define AS_U as_uint16
#ifdef __AVX512F__
typedef float f32_lanes __attribute__((vector_size(64)));
#define LANES(x) __builtin_astype(x, f32_lanes)
#define SCALEF(x, k) \\
  as_float16(__builtin_ia32_scalefps512_mask(LANES(x), LANES(k), LANES(x), -1, 4))
#endif
"""

BOTH: Final = """\
#define INLINE static inline __attribute__((always_inline))
#define FMA fma
#define LT(a, b) ((a) < (b))
#define MOST(a, b) SELECT_F((a) > (b), a, b)
#define LEAST(a, b) SELECT_F((a) < (b), a, b)
"""


NARROW: Final = {"char": 1, "uchar": 1, "short": 2, "ushort": 2}
"""Stored types and their bytes whose ``vload16`` and ``vstore16`` PoCL does one by one."""
OF_A_TYPE: Final = """\
typedef {0} {0}_at __attribute__((may_alias));
typedef {0} {0}16_at __attribute__((ext_vector_type(16), aligned({1}), may_alias));
"""
UNALIGNED: Final = "".join(OF_A_TYPE.format(kind, size) for kind, size in NARROW.items())
"""Vectors of these as Clang writes and reads them at once wherever they lie, also within words."""

EXP_OF_DOUBLES: Final = """\
static inline double{n} exp_{lanes}(double{n} x) {{
  double{n} y = exp(x > 709.78 ? 0.5 * x : x);
  return x > 709.78 ? y * y : y;
}}
"""
DOUBLES: Final = "".join(
    EXP_OF_DOUBLES.format(n=n, lanes=lanes) for n, lanes in (("", "f64"), ("16", "vf64"))
)
"""``exp`` of f64: PoCL's is infinite from 709.782711 on, where the largest are still finite."""


@cache
def functions() -> str:
    """The functions, or the built-in ones where the processor has no instruction for ``fma``."""
    texts = [read_with(BOTH + macros, exponentials()) for macros in (ONE_LANE, ALL_LANES)]
    built_in = [
        f"#define {name}_{lanes} {name}\n" for name in EXPONENTIALS for lanes in ("f32", "vf32")
    ]
    has_fma = "#if defined(__FMA__) || defined(__aarch64__)\n"
    return "".join((has_fma, *texts, "#else\n", *built_in, "#endif\n"))
