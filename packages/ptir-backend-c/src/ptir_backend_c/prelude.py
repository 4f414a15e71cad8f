"""The text before the kernels of every source file: types, conversions and functions in plain C.

Nothing is included from the system, so a small kernel compiles in the time that headers would take.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from ptir.codegen.api import exponentials, read_with

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
#define FMA fma_f32
#define MOST(a, b) ((a) > (b) ? (a) : (b))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
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
#define FMA fma_vf32
#define MOST max_vf32
#define LEAST min_vf32
#ifdef __AVX512F__
#define SCALEF(x, k) __builtin_ia32_scalefps512_mask(x, k, x, -1, 4)
#endif
"""

DOUBLES: Final = """\
#if defined(__AVX512F__)
#define SOME 8
#elif defined(__AVX__)
#define SOME 4
#else
#define SOME 2
#endif
typedef double vd __attribute__((vector_size(8 * SOME)));
typedef long long vdi __attribute__((vector_size(8 * SOME)));
typedef unsigned long long vdu __attribute__((vector_size(8 * SOME)));
typedef float vdf __attribute__((vector_size(4 * SOME)));
INLINE vd select_vd(vdi m, vd a, vd b) { return (vd)((m & (vdi)a) | (~m & (vdi)b)); }
INLINE vd splat_vd(double x) { vd v; for (int i = 0; i < SOME; ++i) v[i] = x; return v; }
"""
"""As many f64 as a register holds."""

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

SOME_DOUBLES: Final = """\
#define D vd
#define DI vdi
#define DU vdu
#define W vdf
#define NAMED(f) f##_vd
#define K(c) splat_vd(c)
#define BELOW(a, b) ((a) < (b))
#define ABOVE(a, b) ((a) > (b))
#define EQUAL(a, b) ((a) == (b))
#define SELECT_D select_vd
#define AS_D (vd)
#define AS_DU (vdu)
#define TO_D(x) __builtin_convertvector(x, vd)
#define WIDE(x) __builtin_convertvector(x, vd)
#define NARROW(x) __builtin_convertvector(x, vdf)
"""


def source(name: str) -> str:
    """A C source that travels with the package."""
    return (SOURCES / name).read_text(encoding="utf-8")


@cache
def prelude() -> str:
    """Vectors, and the functions of f32 and f64 for one lane and for all of them."""
    functions, doubles = source("functions.h"), source("doubles.h")
    return "\n".join(
        (
            source("vectors.h"),
            read_with(ONE_LANE, functions, exponentials()),
            read_with(ALL_LANES, functions, exponentials()),
            read_with(ONE_DOUBLE, doubles),
            DOUBLES,
            read_with(SOME_DOUBLES, doubles),
            source("lanes.h"),
        )
    )
