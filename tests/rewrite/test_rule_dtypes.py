"""Every row of the rule table, with its samples in every dtype: where it fires it is right.

And where it fires in one dtype of a kind, it fires in all of that kind, but for what ``NARROWER``
says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from comparing import same_bits
from evaluation import awkward, evaluate
from ptir.errors import TypeRuleError
from ptir.ir.program import Block
from ptir.rewrite.engine import rewrite
from ptir.rewrite.rule import Rule
from ptir.rewrite.rules import EXACT
from ptir.types import DTYPES, DType, parse_type

ROWS = [rule for rule in EXACT if isinstance(rule, Rule)]
F8 = {"f8e4m3fn", "f8e5m2"}
NARROWER = {"pow 2.0": {"f64"}}


def is_type(value: object) -> bool:
    return isinstance(value, str) and "[" in value


def variants(sample: Mapping[str, Any]) -> Iterator[tuple[DType, dict[str, Any]]]:
    """The sample with its element type replaced, and every combination of its dtype attributes."""
    main = next(
        (
            parse_type(text).dtype
            for text in sample.values()
            if is_type(text) and not text.startswith("bool")
        ),
        DTYPES["bool"],
    )
    attributes = [name for name, value in sample.items() if isinstance(value, DType)]
    for wanted in DTYPES.values():
        given = {
            name: str(parse_type(value).with_dtype(wanted))
            if is_type(value) and parse_type(value).dtype == main
            else value
            for name, value in sample.items()
        }
        for chosen in itertools.product(DTYPES.values(), repeat=len(attributes)):
            yield wanted, {**given, **dict(zip(attributes, chosen, strict=True))}


def blocks(rule: Rule, given: Mapping[str, Any]) -> Block | None:
    """The rule's left side for a sample, or None where no such program can be written."""
    try:
        with np.errstate(all="ignore"):
            (block,) = replace(rule, samples=(given,)).programs()
    except (TypeRuleError, OverflowError, ValueError):
        return None
    return block


@pytest.mark.parametrize("rule", ROWS, ids=lambda r: r.name)
def test_rule_is_exact_in_every_dtype_it_fires_in(rule: Rule) -> None:
    fired: set[str] = set()
    written: set[str] = set()
    seen: set[Block] = set()
    for sample in rule.samples:
        for dtype, given in variants(sample):
            block = blocks(rule, given)
            if block is None or block in seen:
                continue
            seen.add(block)
            written.add(dtype.name)
            counts: dict[str, int] = {}
            with np.errstate(all="ignore"):
                after = rewrite(block, [rule], counts)
            if not counts:
                continue
            fired.add(dtype.name)
            for turn in range(0, 16, 3):
                inputs = awkward(block.inputs, turn)
                with np.errstate(all="ignore"):
                    found, wanted = evaluate(after, inputs), evaluate(block, inputs)
                for one, other in zip(found, wanted, strict=True):
                    assert same_bits(one, other), (rule.line, given, one, other)
    kinds = {DTYPES[name].kind for name in fired}
    assert kinds
    expected = {name for name in written if DTYPES[name].kind in kinds}
    assert fired == expected - NARROWER.get(rule.name, set())
