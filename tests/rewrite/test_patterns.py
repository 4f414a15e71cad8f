"""Every spelling is raised to its functional and nothing that only looks like one."""

from __future__ import annotations

import subprocess
import sys

import more_spellings  # noqa: F401  fills both tables
import near_misses  # noqa: F401  fills the table
import numpy as np
import pytest
from spellings import NEAR_MISSES, SPELLINGS, Written

from evaluation import evaluate
from ptir.ir.program import Block
from ptir.rewrite.cse import cse_block
from ptir.rewrite.engine import rewrite
from ptir.rewrite.patterns import Patterns
from ptir.rewrite.raising import raised
from ptir.rewrite.rules import EXACT
from ptir.rewrite.skeleton import VIEWS
from ptir.rewrite.worth import SIGNS
from together import together


def simplified(written: Written) -> Block:
    """As the passes before ``raise`` leave it."""
    return cse_block(rewrite(written.block(), EXACT, {}))


def composites(block: Block) -> dict[str, dict[str, object]]:
    return {i.name: dict(i.attributes) for i in block.instructions if i.op == "composite"}


@pytest.mark.slice(6)
@together(lambda written: written.functional)
@pytest.mark.parametrize("written", SPELLINGS, ids=lambda w: w.name)
def test_spelling_is_raised(written: Written) -> None:
    block = simplified(written)
    after = raised(block, {})
    found = composites(after)
    assert written.functional in found, written.source
    (attributes,) = [a for name, a in found.items() if name == written.functional]
    for name, value in written.attributes.items():
        if isinstance(value, float):
            value = pytest.approx(value, rel=1e-6)
        assert attributes[name] == value, name
    left = [i.name for i in after.instructions if i.name not in VIEWS]
    assert len(left) <= 6, left
    rng = np.random.default_rng(1)
    arrays = [
        rng.integers(0, 5, t.shape).astype("i4")
        if t.dtype.kind == "int"
        else np.abs(rng.standard_normal(t.shape, "f4")) + 0.1 * rng.standard_normal(t.shape, "f4")
        for t in block.inputs
    ]
    arrays = [np.abs(a) for a in arrays] if written.functional == "batch_norm" else arrays
    (wanted,), (given,) = evaluate(block, arrays), evaluate(after, arrays)
    np.testing.assert_allclose(given, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.slice(5)
@together(lambda written: written.functional)
@pytest.mark.parametrize("written", NEAR_MISSES, ids=lambda w: w.name)
def test_near_miss_is_not_raised(written: Written) -> None:
    after = raised(simplified(written), {})
    assert written.functional not in composites(after), written.source


def test_there_are_enough_of_both() -> None:
    assert len(SPELLINGS) >= 40
    assert len({w.name for w in SPELLINGS}) == len(SPELLINGS)
    assert len(NEAR_MISSES) >= 40
    assert len({w.name for w in NEAR_MISSES}) == len(NEAR_MISSES)


ADDED_PATTERN = """
import ptir
from ptir import functional as F
from ptir.passes.pipeline import pipeline_key
from ptir.rewrite.patterns import PatternRow, define_pattern
from ptir.rewrite.patterns import Patterns
from ptir.rewrite.raising import raised
from ptir.rewrite.worth import SIGNS

@F.functional("hard_sigmoid", "min(max(x / 6 + 1 / 2, 0), 1)")
def hard(x):
    return F.minimum(F.maximum(x * 0.125 + 0.5, 0.0), 1.0)

before = pipeline_key()
define_pattern(PatternRow("hard_sigmoid", "x[...]", ("maximum", "minimum"), {"": ("f32[2,3]",)}))
assert pipeline_key() != before
code = lambda x: F.minimum(F.maximum(x * 0.125 + 0.5, 0.0), 1.0)
program = ptir.capture(code, ptir.spec("f32", 8))
assert [i.name for i in raised(program.main, {}).instructions] == ["hard_sigmoid"]
"""


def test_a_pattern_that_is_added_is_found_and_is_part_of_the_key_of_plans() -> None:
    """Whatever ops it is of, and whatever was compiled before."""
    done = subprocess.run([sys.executable, "-c", ADDED_PATTERN], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_pattern_of_ours_has_a_sign() -> None:
    for pattern in Patterns.values():
        names = [name for need in pattern.row.needs for name in need.split("|")]
        assert any(set(need.split("|")) <= SIGNS for need in pattern.row.needs), names
