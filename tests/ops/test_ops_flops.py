"""FLOPs of programs are those that one counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import ptir
from ptir import functional as F
from ptir.ops.flops import block_flops


def of(function: Callable[..., Any], *types: tuple[Any, ...]) -> int:
    specs = [ptir.spec(*one) for one in types]
    return block_flops(ptir.capture(function, *specs).main)


@pytest.mark.parametrize(
    ("function", "types", "wanted"),
    [
        (lambda x, w: x @ w, [("f32", 3, 5), ("f32", 5, 7)], 2 * 3 * 5 * 7),
        (lambda x, w: x @ w, [("f16", 4, 3, 5), ("f16", 4, 5, 7)], 4 * 2 * 3 * 5 * 7),
        (lambda x: F.exp(x) * x, [("f32", 6)], 12),
        (lambda x: x + x, [("i32", 6)], 0),
        (lambda x: x.astype("f32"), [("f16", 6)], 0),
        (lambda x: x.sum(axis=1), [("f32", 4, 6)], 24),
        (lambda x: x.T.reshape(24)[3:9], [("f32", 4, 6)], 0),
        (lambda x, i: F.take(x, i), [("f32", 4, 6), ("i32", 9)], 0),
        (lambda x, w, b: F.linear(x, w, b), [("f32", 2, 5), ("f32", 5, 7), ("f32", 7)], 154),
    ],
)
def test_an_op_counts_what_it_computes(
    function: Callable[..., Any], types: list[tuple[Any, ...]], wanted: int
) -> None:
    assert of(function, *types) == wanted


def test_a_composite_counts_what_its_lowering_does() -> None:
    # per row of 8: a maximum (8), subtract (8), exp (8), a sum (8), divide (8)
    assert of(lambda x: F.softmax(x), ("f32", 3, 8)) == 3 * 5 * 8


def test_a_body_counts_as_often_as_it_runs() -> None:
    def body(carry: Any, row: Any) -> tuple[Any, Any]:
        return carry + row, carry

    found = of(lambda x, rows: F.scan(body, x, rows)[0], ("f32", 4), ("f32", 5, 4))
    assert found == 5 * 4
