"""The text before the kernels of every source file: types, vectors, conversions and functions."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from ptir.codegen.api import exponentials, read_with

SOURCES: Final = Path(__file__).with_name("csource")

ONE_LANE: Final = """\
#define F f32
#define U u32
#define NAMED(f) f##_f32
#define K(c) (c)
#define LT(a, b) ((a) < (b))
#define SELECT_F(m, a, b) ((m) ? (a) : (b))
#define AS_F as<f32>
#define AS_U as<u32>
#define FMA fmaf
#define MOST(a, b) ((a) > (b) ? (a) : (b))
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
"""


def source(name: str) -> str:
    """A C++ source that travels with the package."""
    return (SOURCES / name).read_text(encoding="utf-8")


@cache
def prelude() -> str:
    """Types and vectors with their conversions, loads, stores and functions, on any device."""
    return "\n".join(
        (source("vectors.h"), read_with(ONE_LANE, exponentials()), source("functions.h"))
    )


@cache
def with_matrices() -> str:
    """``prelude`` and the instructions of tensor cores, for sm_80 and later."""
    return f"{prelude()}\n{source('matrices.h')}"
