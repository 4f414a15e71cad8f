"""The rules of ``--dtype`` and ``--cache-dtype``: which types parameters and caches get."""

from __future__ import annotations

import pytest

from ptir.errors import UsageError
from ptir.params.storage import cache_type, storage_rule
from ptir.types import dtype, spec


@pytest.mark.parametrize(
    ("rule", "stored", "held"),
    [
        ("auto", "f32", "f32"),
        ("auto", "f16", "f16"),
        ("auto", "bf16", "bf16"),
        ("auto", "f64", "f32"),
        ("auto", "f8e4m3fn", "f32"),
        ("auto", "u32", "u32"),
        ("bf16", "f16", "bf16"),
        ("f32", "f16", "f32"),
        ("f16", "i32", "i32"),
    ],
)
def test_a_matrix_is_held_as_its_rule_says(rule: str, stored: str, held: str) -> None:
    assert storage_rule(rule)(spec(stored, 2, 3)) == spec(held, 2, 3)


@pytest.mark.parametrize("rule", ["auto", "f32", "bf16", "f16"])
@pytest.mark.parametrize("stored", ["f32", "f16", "bf16", "f64"])
def test_vectors_of_floats_are_f32(rule: str, stored: str) -> None:
    assert storage_rule(rule)(spec(stored, 5)) == spec("f32", 5)


def test_a_cache_is_f32_unless_another_type_is_named() -> None:
    assert [cache_type(name) for name in ("auto", "f32", "f16")] == [
        dtype("f32"),
        dtype("f32"),
        dtype("f16"),
    ]


def test_unknown_types_name_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"unknown storage dtype 'f64'.*auto, bf16, f16, f32"):
        storage_rule("f64")
    with pytest.raises(UsageError, match=r"unknown cache dtype 'i8'.*auto"):
        cache_type("i8")
