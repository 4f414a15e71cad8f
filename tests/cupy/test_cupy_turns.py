"""Many steps in one graph: what turns are bound to, which graphs come again, what is in flight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy

import ptir
from ptir.backend.contract import Target
from ptir.errors import DeviceLost
from ptir.runtime.session import Session
from ptir_backend_cupy import launching
from ptir_backend_cupy.launching import Replay
from turns import turning_operands, turning_step

pytestmark = pytest.mark.turns(2)

FEEDS = {"x": 0, "seen": 1}


def repeated(target: Target, step: Any, turns: int) -> list[list[int]]:
    """The kept element of every turn, read when all are queued; the last results are right too."""
    given = list(turning_operands(target))
    every, (x, seen, _) = step.repeat(turns, FEEDS, 2, *given)
    given, wanted = list(turning_operands(target)), []
    for _ in every:
        given[0], given[1], best = step(*given)
        wanted.append(best.numpy().tolist())
    np.testing.assert_array_equal(x.numpy(), given[0].numpy())
    np.testing.assert_array_equal(seen.numpy(), given[1].numpy())
    found = [one.numpy().tolist() for one in every]
    assert found == wanted
    return found


@pytest.mark.parametrize("turns", [1, 2, 3, 16, 17, 40])
def test_turns_are_runs_in_a_row(cupy: Target, turns: int) -> None:
    assert cupy.backend.runs_per_call(cupy.device) == launching.TURNS == 16
    step = turning_step()
    first = repeated(cupy, step, turns)
    for _ in range(3):
        assert repeated(cupy, step, turns) == first


def test_a_graph_holds_all_turns_and_comes_again(cupy: Target, fake: FakeCupy) -> None:
    step = turning_step()
    given = list(turning_operands(cupy))
    step(given[0], given[1] + 0.0, given[2])
    fake.calls.clear()
    for _ in range(8):  # each result is given back before the next is made
        every, (given[0], given[1], _) = step.repeat(5, FEEDS, 2, *given)
        every[-1].numpy()
    assert fake.calls.count("graph") == 8
    assert fake.calls.count("end_capture") <= 3


def test_a_turn_that_runs_with_the_addresses_of_another_is_seen(
    cupy: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = Replay.bind_slot
    monkeypatch.setattr(Replay, "bind_slot", lambda self, turn: hold(self, max(0, turn - 1)))
    with pytest.raises((AssertionError, DeviceLost)):  # the last turn's memory has no address
        repeated(cupy, turning_step(), 3)


@pytest.mark.parametrize(
    ("tokens", "options"),
    [
        (70, {"temperature": 0.8, "seed": 11}),  # a table of draws ends at 64
        (20, {"temperature": 1.0, "seed": [1, 2]}),
    ],
)
def test_tokens_are_the_references(
    cupy: Target, little: str, tokens: int, options: dict[str, Any]
) -> None:
    prompts = [[5, 3, 9], [1, 2, 3, 4, 5]][: 1 + (tokens == 20)]
    how: dict[str, Any] = {"max_tokens": tokens, "ignore_eos": True, **options}
    here, there = (
        ptir.load_model(little, backend=one).generate_batch(prompts, **how) for one in (cupy, "ref")
    )
    found = [one.token_ids for one in here]
    assert found == [one.token_ids for one in there]
    assert all(len(set(row)) > tokens // 4 for row in found), "they are not all alike"


def test_the_next_steps_are_queued_before_the_tokens_of_these_are_waited_for(
    cupy: Target, little: str
) -> None:
    loaded = ptir.load_model(little, backend=cupy)
    active, left = np.ones(1, np.bool_), []
    with loaded.policies():
        session = Session.of(loaded, 1, 100)
        session.pick(session.prefill([[1, 2, 3]]))
        for ahead in reversed(range(50)):
            session.advance(active, ahead=ahead)
            left.append(len(session._ahead))
    # the first call knows no sizes and takes one step; 16 are added whenever 8 are left
    down = [*range(23, 8, -1)]
    assert left == [*range(16, 8, -1), 24, *down, 24, *down, 9, *range(8, -1, -1)], left
