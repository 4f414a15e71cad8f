"""Many steps in one call of the pool: what each turn is bound to, and what stays alive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptir.backend.contract import Target
from ptir.runtime import load_model
from running import REF
from turns import turning_operands, turning_step


@pytest.mark.parametrize("turns", [1, 2, 3, 16, 17, 40])
def test_turns_are_runs_in_a_row(c: Target, turns: int) -> None:
    assert c.backend.runs_per_call(c.device) == 16
    step, operands = turning_step(), turning_operands(c)
    every, (x, seen, _) = step.repeat(turns, {"x": 0, "seen": 1}, 2, *operands)
    given = list(turning_operands(c))
    for one in every:
        given[0], given[1], best = step(*given)
        np.testing.assert_array_equal(one.numpy(), best.numpy())
    np.testing.assert_array_equal(x.numpy(), given[0].numpy())
    np.testing.assert_array_equal(seen.numpy(), given[1].numpy())
    again, (other, _, _) = step.repeat(turns, {"x": 0, "seen": 1}, 2, *turning_operands(c))
    np.testing.assert_array_equal(again[-1].numpy(), every[-1].numpy())
    np.testing.assert_array_equal(other.numpy(), x.numpy())


def test_turns_keep_no_more_memory_than_they_return(c: Target) -> None:
    step = turning_step()
    step.repeat(16, {"x": 0, "seen": 1}, 2, *turning_operands(c))
    before = c.backend.memory_stats(c.device)
    for _ in range(5):
        step.repeat(16, {"x": 0, "seen": 1}, 2, *turning_operands(c))
    after = c.backend.memory_stats(c.device)
    assert before is not None and after is not None
    assert after.peak_bytes == before.peak_bytes


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.8, "seed": 11}, {"temperature": 1.0, "seed": [1, 2]}]
)
def test_tokens_are_the_references(c: Target, options: dict[str, Any]) -> None:
    prompts = ["ROMEO:", "What say you"]
    here = load_model("demo", backend=c).generate_batch(prompts, max_tokens=40, **options)
    there = load_model("demo", backend=REF).generate_batch(prompts, max_tokens=40, **options)
    assert [one.token_ids for one in here] == [one.token_ids for one in there]
