"""Every row of the rule table holds bit for bit on awkward values, and fires on its samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import comparing
import ptir.rewrite
from evaluation import awkward, evaluate, same_bits
from ptir.errors import VerifyError
from ptir.ir.attributes import Literal
from ptir.ir.graph import freeze, source
from ptir.ir.program import Block, Port, Program
from ptir.ops.record import op
from ptir.ops.verify import verify
from ptir.rewrite.engine import rewrite
from ptir.rewrite.rule import AnyRule, PlainBuilder, row
from ptir.rewrite.rules import EXACT, FAST_MATH, rules
from ptir.types import TensorType, spec
from together import together

MAKE = PlainBuilder().make


def alike(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Equal dtypes, shapes and bits, any NaN equal to any other."""
    return all(comparing.same_bits(a, b) for a, b in zip(found, wanted, strict=True))


def disagreement(rule: AnyRule) -> str:
    """Where the two sides of a rule differ, or an empty string; a rule must fire to count."""
    blocks = list(rule.programs())
    if not blocks:
        return "has no sample"
    for block in blocks:
        used = {i.op for i in block.instructions}
        counts: dict[str, int] = {}
        after = rewrite(block, [rule], counts)
        if not counts:
            return f"does not fire on its sample {block}"
        verify(Program(after, tuple(Port(f"p{i}") for i in range(len(after.inputs)))))
        for turn in range(16):
            inputs = awkward(block.inputs, turn)
            found, wanted = evaluate(after, inputs), evaluate(block, inputs)
            # NumPy's power drops the sign of a NaN on some processors: any NaN is as good there
            if not (alike(found, wanted) if "pow" in used else same_bits(found, wanted)):
                return f"differs on {block.inputs} at turn {turn}"
    return ""


@together()
@pytest.mark.parametrize("rule", EXACT, ids=lambda r: r.name)
def test_exact_rule_agrees_on_awkward_values(rule: AnyRule) -> None:
    assert disagreement(rule) == "", f"{rule.line}: {rule.name}: {rule.text}"


@pytest.mark.parametrize("rule", FAST_MATH, ids=lambda r: r.name)
def test_harness_catches_every_inexact_rule(rule: AnyRule) -> None:
    assert "differs" in disagreement(rule)


def test_rule_that_never_fires_on_its_sample_is_an_error() -> None:
    never = row("never", "add(x, 0)", "x", {"x": "i32[4]"}, when=lambda b: False)
    assert "does not fire" in disagreement(never)
    assert disagreement(row("no sample", "add(x, 0)", "x")) == "has no sample"


def test_fast_math_is_off_unless_asked_for() -> None:
    assert rules() == EXACT
    assert all(rule.exact for rule in rules())
    assert not any(rule.exact for rule in FAST_MATH)
    assert set(rules(fast_math=True)) == {*EXACT, *FAST_MATH}


def test_rule_names_are_unique_and_lines_are_where_they_are_written() -> None:
    table = rules(fast_math=True)
    assert len({rule.name for rule in table}) == len(table)
    folder = Path(ptir.rewrite.__file__).parent
    for rule in table:
        found = re.fullmatch(r"(\w+\.py):(\d+)", rule.line)
        assert found is not None
        line = (folder / found[1]).read_text(encoding="utf-8").splitlines()[int(found[2]) - 1]
        assert re.search(r"\b(row|node_rule)\(", line), rule.line


def program(name: str, *types: TensorType, **attributes: object) -> Block:
    inputs = [source(t) for t in types]
    return freeze([MAKE(name, inputs, attributes)], inputs)


@pytest.mark.parametrize("number", [0.0, 2.0], ids=str)
def test_float_rules_do_not_fire_on_other_constants(number: float) -> None:
    x = source(spec("f32", 4))
    constant = MAKE("broadcast_to", (_scalar(number),), {"shape": (4,)})
    block = freeze([MAKE("add", (x, constant), {}), MAKE("mul", (x, constant), {})], [x])
    counts: dict[str, int] = {}
    assert rewrite(block, EXACT, counts) == block
    assert counts == {}


def _scalar(number: float):
    return MAKE("constant", (), {"value": Literal.of(np.float32(number))})


def test_repeated_hole_needs_the_same_value() -> None:
    block = program("sub", spec("i32", 4), spec("i32", 4))
    assert rewrite(block, EXACT, {}) == block


def test_commutative_operands_match_in_both_orders() -> None:
    x = source(spec("f32", 4))
    one = MAKE("broadcast_to", (_scalar(1.0),), {"shape": (4,)})
    assert rewrite(freeze([MAKE("mul", (one, x), {})], [x]), EXACT, {}).instructions == ()
    left = freeze([MAKE("div", (one, x), {})], [x])
    assert rewrite(left, EXACT, {}) == left


def test_chain_of_rewrites_reaches_a_fixed_point_and_counts_rules() -> None:
    x = source(spec("f32", 2, 3))
    value = x
    for _ in range(3):
        value = MAKE("transpose", (value,), {"permutation": (1, 0)})
        value = MAKE("neg", (MAKE("neg", (value,), {}),), {})
    counts: dict[str, int] = {}
    after = rewrite(freeze([value], [x]), EXACT, counts)
    assert [i.op for i in after.instructions] == ["transpose"]
    assert counts["neg neg"] == 3


def test_rules_fire_in_regions_but_not_in_lowerings() -> None:
    pair = program("neg", spec("f32", 4))
    inner = source(spec("f32", 4))
    twice = freeze([MAKE("neg", (MAKE("neg", (inner,), {}),), {})], [inner])
    predicate, x = source(spec("bool")), source(spec("f32", 4))
    chosen = op("cond").multi(predicate, x, regions=(twice, pair))[0]
    named = op("composite").multi(chosen, regions=(twice,), name="twice")[0]
    after = rewrite(freeze([named], [predicate, x]), EXACT, {})
    cond, composite = after.instructions
    assert cond.regions[0].instructions == ()
    assert composite.regions == (twice,)


def test_rule_that_feeds_itself_is_named() -> None:
    loop = row("loop", "add(x, y)", "add(y, x)")
    with pytest.raises(VerifyError, match=r"test_rules\.py:\d+: rule 'loop' feeds itself"):
        rewrite(program("add", spec("f32", 4), spec("f32", 4)), [loop], {})


def test_rule_that_changes_a_type_is_named() -> None:
    wrong = row("wrong", "compare(x, y)", "x")
    block = program("compare", spec("f32", 4), spec("f32", 4), direction="lt")
    with pytest.raises(VerifyError, match=r"rule 'wrong' gives f32\[4\], not bool\[4\]"):
        rewrite(block, [wrong], {})
