"""A rule with a condition leaves alone what only looks like its left side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ptir.ir.attributes import Literal
from ptir.ir.graph import source
from ptir.rewrite.constants import uniform
from ptir.rewrite.engine import rewrite
from ptir.rewrite.pattern import Make
from ptir.rewrite.rule import PlainBuilder, Rule
from ptir.rewrite.rules import EXACT
from ptir.types import BF16, BOOL, DTYPES, F16, F32, F64, I32, I64, U8, U32, spec
from together import together

I16 = DTYPES["i16"]

MAKE: Make = PlainBuilder().make
CONDITIONAL = {rule.name: rule for rule in EXACT if isinstance(rule, Rule) and rule.when}

F, N, B = {"x": "f32[4]"}, {"x": "i32[4]"}, {"x": "bool[4]"}
FF, BF = {**F, "y": "f32[4]"}, {"x": "bf16[4]"}
X, X3 = {"x": "f32[2,3]"}, {"x": "f32[2,3,4]"}
NONE = {"low": (0, 0), "high": (0, 0), "gaps": None}

NEAR_MISSES = (
    *(
        ("div by a power of two", {**F, "c": c})
        for c in (3.0, 0.0, -0.0, 2.0**-127, 2.0**127, float("inf"), float("nan"))
    ),
    ("div by a power of two", {**N, "c": 4}),
    *(("div by a power of two", {"x": "f16[4]", "c": c}) for c in (2.0**15, 2.0**-15)),
    *(("div by a power of two", {"x": "bf16[4]", "c": c}) for c in (2.0**127, 2.0**-127)),
    ("div by a power of two", {"x": "f64[4]", "c": 2.0**1023}),
    ("pow 2.0", {"x": "f64[4]"}),
    ("abs neg", {"x": "u32[4]"}),
    ("abs neg", {"x": "u8[4]"}),
    ("sub itself", F),
    ("add neg", FF),
    ("sub neg", FF),
    ("xor itself", B),
    ("xor itself, bool", N),
    *(("compare itself, holds", {**F, "d": d}) for d in ("eq", "le", "ge")),
    *(("compare itself, holds", {**N, "d": d}) for d in ("ne", "lt", "gt")),
    *(("compare itself, fails", {**F, "d": d}) for d in ("ne", "lt", "gt")),
    *(("compare itself, fails", {**N, "d": d}) for d in ("eq", "le", "ge")),
    *(("not compare", {**FF, "d": d}) for d in ("lt", "le", "gt", "ge")),
    ("cast to itself", {**F, "d": I32}),
    ("cast and back", {**F, "m": BF16, "d": F32}),
    ("cast and back", {**F, "m": I32, "d": F32}),
    ("cast and back", {**N, "m": F32, "d": I32}),
    ("cast and back", {**BF, "m": F16, "d": BF16}),
    ("cast and back", {**N, "m": BOOL, "d": I32}),
    ("cast and back", {**BF, "m": F32, "d": F16}),
    ("cast and back", {**N, "m": I16, "d": I32}),
    ("cast and back", {"x": "i64[4]", "m": F64, "d": I64}),
    ("cast through a wider type", {**F, "m": BF16, "d": I32}),
    ("cast through a wider type", {"x": "i8[4]", "m": F32, "d": U8}),
    ("cast through a wider type", {"x": "f16[4]", "m": BF16, "d": F32}),
    ("cast through a wider type", {**N, "m": U32, "d": F32}),
    ("cast through a wider type", {**N, "m": F32, "d": U32}),
    ("cast through a wider type", {**BF, "m": I32, "d": F32}),
    ("bitcast to itself", {**F, "d": I32}),
    ("reshape to itself", {**X, "s": (3, 2)}),
    ("transpose by nothing", {**X, "p": (1, 0)}),
    ("transpose of axes of one", {**X3, "p": (0, 2, 1)}),
    ("transpose of axes of one", {"x": "f32[2,1,3]", "p": (2, 1, 0)}),
    ("broadcast to itself", {"x": "f32[2,1]", "s": (2, 3)}),
    ("broadcast to itself", {"x": "f32[3]", "s": (1, 3)}),
    ("slice of everything", {**X, "s": (0, 1), "l": (2, 3), "t": None}),
    ("slice of everything", {**X, "s": (0, 0), "l": (2, 2), "t": None}),
    ("slice of everything", {**X, "s": (0, 0), "l": (2, 3), "t": (1, 2)}),
    ("reverse nothing", {**X, "a": (1,)}),
    *(
        ("pad by nothing", {**X, "y": "f32[]", **NONE, name: (0, 1)})
        for name in ("low", "high", "gaps")
    ),
    ("tile once", {**X, "r": (1, 2)}),
    ("reduce no axes", {**F, "k": "sum"}),
)


@together()
@pytest.mark.parametrize(("name", "given"), NEAR_MISSES)
def test_near_miss_is_left_alone(name: str, given: dict[str, object]) -> None:
    rule = replace(CONDITIONAL[name], samples=(given,))
    counts: dict[str, int] = {}
    for block in rule.programs():
        rewrite(block, [rule], counts)
    assert counts == {}


def test_every_condition_has_a_near_miss() -> None:
    assert {name for name, _ in NEAR_MISSES} == set(CONDITIONAL)


def constant(*values: float):
    literal = Literal.of(np.array(values, np.float32))
    return MAKE("constant", (), {"value": literal})


def test_uniform_is_known_only_where_every_bit_agrees() -> None:
    assert uniform(constant(2.0, 2.0, 2.0)) == 2.0
    for values in ((2.0, 1.0, 2.0), (2.0, 2.0, 1.0), (0.0, 0.0, -0.0), ()):
        assert uniform(constant(*values)) is None
    spread = MAKE("broadcast_to", (constant(1.0, 1.0, 3.0),), {"shape": (2, 3)})
    assert uniform(spread) is None
    assert uniform(source(spec("f32", 3))) is None
