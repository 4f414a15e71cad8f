"""Pairs of attribute values: rows of values, from which few calls are made in which all pairs meet.

An attribute that is right alone may be wrong beside another one: padding that is cut off where
there are gaps, a stride along the axis that is dilated, a batch with an order. What a type rule
refuses is dropped, and so are pairs that no call can hold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from ptir.ir.attributes import Attributes
from ptir.ops import OPS
from ptir.types import DTYPES, parse_type
from ptir.weights.tables import TYPES
from ptir_testsuite.corpus.variants import Template

Values = Mapping[str, Sequence[Any]]
Row = tuple[tuple[str, ...], Values]
"""Operand types, and the values of each attribute."""

F32, F64 = DTYPES["f32"], DTYPES["f64"]

WINDOWS: Final[Values] = {
    "strides": (None, (1, 2, 3), (2, 1, 1)),
    "low": (None, (0, 1, 2), (1, 0, -1)),
    "high": (None, (1, 0, 2), (0, -1, 1)),
    "base_dilation": (None, (1, 2, 1), (2, 1, 3)),
    "window_dilation": (None, (1, 1, 2), (2, 2, 1)),
}
PATCHES: Final[Values] = {
    name: [v if v is None else v[1:] for v in values] for name, values in WINDOWS.items()
}

_HALVES: Final = (-1.5, -0.0, 0.5, 6.0)
"""A table of floats, for values of two bits."""

PAIRED: Final[dict[str, tuple[Row, ...]]] = {
    "reduce_window": (
        (
            ("f32[5,6,7]",),
            {
                "window": ((2, 3, 2), (1, 2, 3)),
                **WINDOWS,
                "kind": ("sum", "prod", "max", "min"),
            },
        ),
    ),
    "extract_patches": ((("f32[2,6,7,3]",), {"window": ((3, 2), (1, 3)), **PATCHES}),),
    "pad": (
        (
            ("f32[3,5]", "f32[]"),
            {
                "low": ((0, 0), (2, -1), (-1, 3)),
                "high": ((0, 0), (1, -2), (-1, 2)),
                "interior": (None, (0, 2), (3, 1)),
            },
        ),
    ),
    "slice": (
        (
            ("f32[7,9]",),
            {
                "starts": ((0, 0), (2, 5), (6, 1)),
                "limits": ((7, 9), (7, 6), (6, 9)),
                "strides": (None, (1, 3), (4, 2)),
            },
        ),
    ),
    "dot_general": (
        (
            ("f32[3,4,5]", "f32[3,5,4]"),
            {
                "lhs_contract": ((2,), (1,), (1, 2), (2, 1), ()),
                "rhs_contract": ((1,), (2,), (2, 1), (1, 2), ()),
                "lhs_batch": ((), (0,)),
                "rhs_batch": ((), (0,)),
                "dtype": (None, F64),
            },
        ),
        (
            ("bf16[2,3,4]", "bf16[2,4,3]"),
            {
                "lhs_contract": ((2,), (1,), (0,)),
                "rhs_contract": ((1,), (2,), (0,)),
                "lhs_batch": ((), (0,)),
                "rhs_batch": ((), (0,)),
                "dtype": (None, F32),
            },
        ),
    ),
    "sort": ((("f32[3,4,18]",), {"axis": (0, 1, 2), "descending": (False, True)}),),
    "reduce": (
        (
            ("f32[3,4,5]",),
            {
                "axes": ((), (0,), (1,), (2,), (0, 2), (0, 1, 2)),
                "kind": ("sum", "prod", "max", "min"),
            },
        ),
    ),
    "cumulative": ((("f32[3,4,18]",), {"axis": (0, 1, 2), "kind": ("sum", "max")}),),
    "gather": (
        (
            ("f32[2,3,4,5]", "i32[2,3,1]"),
            {"axes": ((0,), (1,), (2,), (3,)), "batch": (0, 1, 2)},
        ),
        (
            ("f32[2,3,4,5]", "i32[2,6,2]"),
            {"axes": ((0, 1), (1, 2), (2, 1), (3, 1)), "batch": (0, 1)},
        ),
    ),
    "scatter_reduce": tuple(
        (
            ("f32[2,3,4]", f"i32{indices}", f"f32{updates}"),
            {
                "axes": ((0,), (1,), (2,), (0, 1), (2, 1)),
                "kind": ("add", "mul", "max", "min", "replace"),
                "batch": (0, 1),
            },
        )
        for indices, updates in (
            ("[6,1]", "[6,3,4]"),
            ("[6,1]", "[6,2,4]"),
            ("[6,1]", "[6,2,3]"),
            ("[6,2]", "[6,4]"),
            ("[6,2]", "[6,2]"),
            ("[2,6,1]", "[2,6,4]"),
            ("[2,6,1]", "[2,6,3]"),
            ("[2,6,2]", "[2,6]"),
        )
    ),
    "segment_reduce": (
        (("f32[7,3]", "i32[7]"), {"segments": (1, 4, 9), "kind": ("sum", "prod", "max", "min")}),
    ),
    "iota": (
        (
            (),
            {
                "shape": ((3, 4), (2, 17)),
                "dtype": (F32, F64, DTYPES["i32"], DTYPES["u8"], DTYPES["bf16"]),
                "axis": (0, 1),
            },
        ),
    ),
    "quantize": tuple(
        (
            ("f32[32,48]", *(f"f32{scales}",) * 2),
            {"axis": (0, 1), "group": (4, 8, 16), "bits": (2, 4, 8)},
        )
        for scales in ("[8,48]", "[4,48]", "[2,48]", "[32,12]", "[32,6]", "[32,3]")
    ),
    "dequantize": tuple(
        (
            ("u32[6,6]", *(f"f32{scales}",) * 2),
            {
                "axis": (0, 1),
                "group": (4, 8, 16),
                "bits": (2, 4, 8),
                "dtype": (F32, DTYPES["bf16"]),
                "table": (None, (0, 1, 255, 127), tuple(range(3, 19)), _HALVES, *TYPES),
            },
        )
        for scales in ("[6,6]", "[6,3]", "[3,6]", "[12,6]", "[6,12]", "[6,24]", "[24,6]")
    ),
    "unpack_vectors": tuple(  # 45 words hold whole periods of codes of every size
        ((f"u32{codes}", "u32[700,2]", f"u32{signs}"), {"axis": (0, 1), "bits": (8, 9, 10, 12)})
        for words in (0, 45, 40, 36, 30)
        for codes, signs in (("[45,2]", f"[{words},2]"), ("[2,45]", f"[2,{words}]"))
    ),
}
"""Rows of values by op."""

MOST: Final = 20_000  # calls of a row that are looked at


def paired(name: str) -> list[Template]:
    """Calls of an op in which every pair of values of its rows meets that can meet."""
    return list(_paired(name, id(OPS[name])))


@cache
def _paired(name: str, _: int) -> tuple[Template, ...]:
    found = (template for row in PAIRED.get(name, ()) for template in _of_row(name, row))
    return tuple({template.key: template for template in found}.values())


def _of_row(name: str, row: Row) -> Iterator[Template]:
    """The calls of a row, each of which brings a pair that none before it has."""
    texts, values = row
    types = tuple(parse_type(text) for text in texts)

    def fits(chosen: Mapping[str, Any]) -> bool:
        return Template(name, types, Attributes(chosen)).fits

    for chosen in covering(values, fits):
        yield Template(name, types, Attributes(OPS[name].bind(chosen)), origin="pairs")


def covering(
    values: Values, fits: Callable[[Mapping[str, Any]], bool] = lambda _: True
) -> Iterator[dict[str, Any]]:
    """Combinations that fit, each of which brings a pair that none before it has."""
    met: set[Pair] = set()
    for chosen in _mixed(values):
        pairs = set(pairs_of(chosen))
        if not pairs <= met and fits(chosen):
            met |= pairs
            yield chosen


Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs_of(attributes: Mapping[str, Any]) -> Iterator[Pair]:
    """The pairs of values in a call."""
    named = [(name, str(value)) for name, value in attributes.items()]
    return itertools.combinations(named, 2)


def _mixed(values: Values) -> Iterator[dict[str, Any]]:
    """Every combination of values, those far apart first, so that few of them hold many pairs."""
    sizes = [len(options) for options in values.values()]
    total = min(MOST, math.prod(sizes))
    step = next(s for s in range(total * 5 // 8 | 1, 2 * total + 2) if math.gcd(s, total) == 1)
    for turn in range(total):
        number, chosen = turn * step % total, dict[str, Any]()
        for name, options in values.items():
            number, place = divmod(number, len(options))
            chosen[name] = options[place]
        yield chosen
