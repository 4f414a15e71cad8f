"""Rows of C-like dialects: templates are filled in; what has no row is told or done by lanes."""

from __future__ import annotations

import pytest

from ptir.codegen.api import CLike, clike
from ptir.types import BF16, BOOL, F16, F32, F64, I32


class Small(CLike):
    """A language without operators between vectors."""

    name = "small"
    lanes = 4
    vector = "four_{carrier}"
    entry = "{name}({arguments}){head}{each}"
    scalar_rows = clike.SCALAR | {"recast": "bits_{operand}_{result}({0})"}

    def prelude(self) -> str:
        return ""

    def gathered(self, dtype: object, texts: object) -> str:
        return f"[{', '.join(texts)}]"  # type: ignore[attr-defined]


class Vectors(Small):
    """The same with such operators."""

    wide_rows = clike.WIDE | {"mask": "narrow({0})", "sqrt": "root{n}_{v}{result}_{name}({args})"}


def test_a_template_knows_types_operands_and_lanes() -> None:
    assert Vectors().apply("sqrt", BF16, BF16, 4, ["a"]) == "root4_vf32_bf16(a)"
    assert Small().load(BF16, 1, "b", "i") == "bits_u32_f32((unsigned)b[i] << 16)"
    assert Small().type(BOOL, 4) == "four_i32"


def test_masks_of_wide_lanes_are_converted_where_they_are_not_32_bits() -> None:
    assert Vectors().apply("lt", BOOL, F32, 4, ["a", "b"]) == "(a < b)"
    assert Vectors().apply("lt", BOOL, F16, 4, ["a", "b"]) == "(a < b)"
    assert Vectors().apply("lt", BOOL, F64, 4, ["a", "b"]) == "narrow(a < b)"
    assert Vectors().apply("lt", BOOL, F64, 1, ["a", "b"]) == "(-(a < b))"


def test_a_language_without_wide_rows_works_by_lanes() -> None:
    lanes = ", ".join(f"(int)((unsigned)a[{n}] + (unsigned)b[{n}])" for n in range(4))
    assert Small().apply("add", I32, I32, 4, ["a", "b"]) == f"[{lanes}]"
    assert (
        Vectors().apply("add", I32, I32, 4, ["a", "b"]) == "(four_i32)((four_u32)a + (four_u32)b)"
    )


def test_a_row_that_is_missing_is_named_with_its_table() -> None:
    with pytest.raises(LookupError, match="small: scalar_rows has no 'half_bits': add how"):
        Small().store(F16, 1, "b", "i", "x")
    with pytest.raises(LookupError, match="small: wide_rows has no 'cast': add how"):
        Vectors().apply("convert", F32, I32, 4, ["a"])
