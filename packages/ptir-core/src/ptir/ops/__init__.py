"""The op set: every record as a builder, ``ops.add(a, b)`` on graph values.

Importing a family module adds its records to ``OPS``; names are looked up there, so adding an op
edits its family file only. Names that Python reserves take an underscore: ``ops.and_``.
"""

from __future__ import annotations

import keyword

from ptir.errors import unknown_name
from ptir.ops import (
    arithmetic,
    contraction,
    control,
    convert,
    creation,
    indexing,
    layout,
    logic,
    loops,
    movement,
    order,
    places,
    quantization,
    random,
    reduction,
    scatter,
    transcendental,
    unary,
    vectors,
    window_folds,
    window_patches,
)
from ptir.ops.record import OPS, Op, op

__all__ = [
    "OPS",
    "Op",
    "arithmetic",
    "contraction",
    "control",
    "convert",
    "creation",
    "indexing",
    "layout",
    "logic",
    "loops",
    "movement",
    "op",
    "order",
    "places",
    "quantization",
    "random",
    "reduction",
    "scatter",
    "transcendental",
    "unary",
    "vectors",
    "window_folds",
    "window_patches",
]


def __getattr__(name: str) -> Op:
    plain = name.removesuffix("_")
    found = OPS.get(plain if keyword.iskeyword(plain) else name)
    if found is None:
        raise AttributeError(unknown_name("op", name, OPS))
    return found


def __dir__() -> list[str]:
    return [*globals(), *(f"{name}_" if keyword.iskeyword(name) else name for name in OPS)]
