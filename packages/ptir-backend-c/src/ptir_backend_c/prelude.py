"""The text before the kernels of every source file: types, conversions and functions in plain C.

Nothing is included from the system, so a small kernel compiles in the time that headers would take.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).with_name("csource")

ONE_LANE: Final = """\
#define F float
#define I int
#define U unsigned
#define NAMED(f) f##_f32
#define K(c) (c)
#define K_U(c) (c)
#define LT(a, b) (-((a) < (b)))
#define GE(a, b) (-((a) >= (b)))
#define EQ(a, b) (-((a) == (b)))
#define SELECT_F select_f32
#define SELECT_U select_u32
#define AS_F float_u32
#define AS_U bits_f32
#define TO_F (float)
"""

ALL_LANES: Final = """\
#define F vf32
#define I vi32
#define U vu32
#define NAMED(f) f##_vf32
#define K(c) splat_vf32(c)
#define K_U(c) splat_vu32(c)
#define LT(a, b) ((a) < (b))
#define GE(a, b) ((a) >= (b))
#define EQ(a, b) ((a) == (b))
#define SELECT_F select_vf32
#define SELECT_U select_vu32
#define AS_F (vf32)
#define AS_U (vu32)
#define TO_F(x) __builtin_convertvector(x, vf32)
"""

ONE_DOUBLE: Final = """\
#define D double
#define DI long long
#define DU unsigned long long
#define W float
#define NAMED(f) f##_d1
#define K(c) (c)
#define BELOW(a, b) ((a) < (b))
#define ABOVE(a, b) ((a) > (b))
#define EQUAL(a, b) ((a) == (b))
#define SELECT_D(m, a, b) ((m) ? (a) : (b))
#define AS_D float_u64
#define AS_DU bits_f64
#define TO_D (double)
#define WIDE (double)
#define NARROW (float)
"""

EIGHT_DOUBLES: Final = """\
typedef double vd8 __attribute__((vector_size(64)));
typedef long long vi8x8 __attribute__((vector_size(64)));
typedef unsigned long long vu8x8 __attribute__((vector_size(64)));
typedef float vf32x8 __attribute__((vector_size(32)));
INLINE vd8 select_d8(vi8x8 m, vd8 a, vd8 b) {
  return (vd8)((m & (vi8x8)a) | (~m & (vi8x8)b));
}
#define D vd8
#define DI vi8x8
#define DU vu8x8
#define W vf32x8
#define NAMED(f) f##_d8
#define K(c) ((vd8){c, c, c, c, c, c, c, c})
#define BELOW(a, b) ((a) < (b))
#define ABOVE(a, b) ((a) > (b))
#define EQUAL(a, b) ((a) == (b))
#define SELECT_D select_d8
#define AS_D (vd8)
#define AS_DU (vu8x8)
#define TO_D(x) __builtin_convertvector(x, vd8)
#define WIDE(x) __builtin_convertvector(x, vd8)
#define NARROW(x) __builtin_convertvector(x, vf32x8)
"""


def source(name: str) -> str:
    """A C source that travels with the package."""
    return (SOURCES / name).read_text(encoding="utf-8")


@cache
def prelude() -> str:
    """Everything that kernels may use."""
    functions, doubles = source("functions.h"), source("doubles.h")
    parts = [source("vectors.h")]
    for macros, text in (
        (ONE_LANE, functions),
        (ALL_LANES, functions),
        (ONE_DOUBLE, doubles),
        (EIGHT_DOUBLES, doubles),
    ):
        parts += [macros, text, _undefined(macros)]
    parts.append(source("lanes.h"))
    return "\n".join(parts)


def _undefined(macros: str) -> str:
    names = [line.split()[1].partition("(")[0] for line in macros.splitlines() if "#define" in line]
    return "".join(f"#undef {name}\n" for name in names)
