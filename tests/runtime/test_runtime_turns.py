"""Several steps in one call: the same tokens, whatever ends a row, and `repeat` underneath."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir.backend.contract import Executable
from ptir.capture.jit import jit
from ptir.errors import CaptureError
from running import REF, small

PROMPTS = [[5, 6, 7], [11], [3, 90, 2, 8, 41]]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Makes the reference take five steps in a call; the list says how many each call took."""
    taken: list[int] = []
    repeat = Executable.repeat

    def counted(self: Any, inputs: Any, feeds: Any, turns: int, keep: int) -> Any:
        taken.append(turns)
        return repeat(self, inputs, feeds, turns, keep)

    monkeypatch.setattr(Executable, "repeat", counted)
    with monkeypatch.context() as patched:
        patched.setattr(type(REF.backend), "runs_per_call", lambda self, device: 5)
        yield taken


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.9, "seed": 4}, {"temperature": 1.1, "seed": [1, 2, 3]}]
)
def test_tokens_are_those_of_one_step_at_a_time(
    tmp_path: Path, turns: list[int], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    loaded = small(tmp_path)
    found = loaded.generate_batch(PROMPTS, max_tokens=20, **options)
    assert turns == [5, 5, 5, 3]  # the first call of a kind knows no sizes and takes one
    monkeypatch.setattr(type(REF.backend), "runs_per_call", lambda self, device: 1)
    for one, other in zip(
        found, loaded.generate_batch(PROMPTS, max_tokens=20, **options), strict=True
    ):
        assert one.token_ids == other.token_ids


def test_draws_go_on_where_a_table_of_them_ends(
    tmp_path: Path, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, options = small(tmp_path, n_positions=160), {"temperature": 1.2, "seed": 3}
    found = loaded.generate([1, 2], max_tokens=150, **options)
    assert max(turns) == 5 and min(turns) < 5
    monkeypatch.setattr(type(REF.backend), "runs_per_call", lambda self, device: 1)
    assert loaded.generate([1, 2], max_tokens=150, **options).token_ids == found.token_ids


def test_a_row_that_ends_within_a_call_ends_there(
    tmp_path: Path, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = small(tmp_path)
    alone = [loaded.generate(prompt, max_tokens=18) for prompt in PROMPTS]
    first = alone[0].token_ids
    ending = next(token for token in first[3:] if token not in first[:3])
    monkeypatch.setattr(type(loaded), "eos_ids", (ending,))
    turns.clear()
    ended = loaded.generate_batch(PROMPTS, max_tokens=18)
    assert turns and ended[0].finish_reason == "stop"
    for one, other in zip(ended, alone, strict=True):
        wanted = other.token_ids
        stop = wanted.index(ending) if ending in wanted else len(wanted)
        assert one.token_ids == wanted[:stop]


@pytest.mark.parametrize("options", [{"logprobs": 2}, {"repetition_penalty": 1.3}])
def test_what_needs_every_token_on_the_host_takes_one_step_at_a_time(
    tmp_path: Path, turns: list[int], options: dict[str, Any]
) -> None:
    small(tmp_path).generate(PROMPTS[0], max_tokens=8, **options)
    assert not turns


def test_no_call_reads_more_than_the_budget(
    tmp_path: Path, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = small(tmp_path)
    loaded.generate([1], max_tokens=3)
    (plan,) = loaded.steps.advance(1, 40).plans
    turns.clear()
    monkeypatch.setattr(type(REF.backend), "budget", lambda self, device: 3 * plan.weights + 1)
    loaded.generate([1], max_tokens=11)
    assert turns == [3, 3, 3]
    turns.clear()
    monkeypatch.setattr(type(REF.backend), "budget", lambda self, device: plan.weights - 1)
    loaded.generate([1], max_tokens=11)
    assert not turns


# --- repeat of a jitted function ---


@jit(donate=("total",))
def _step(x: Any, total: Any, by: Any) -> Any:
    return x * by, total + x.sum(), (x > 3.0).astype("i32")


def _operands() -> tuple[Any, ...]:
    arrays = np.arange(4, dtype="f4"), np.zeros((), "f4"), np.float32(1.5)
    return tuple(ptir.tensor(a, backend=REF) for a in arrays)


def test_repeat_is_calls_in_a_row() -> None:
    x, total, by = _operands()
    every, (last, sum_, _) = _step.repeat(4, {"x": 0, "total": 1}, 2, x, total, by)
    wanted, expected = np.arange(4, dtype="f4"), np.float32(0)
    for flags in every:
        np.testing.assert_array_equal(flags.numpy(), wanted > 3)
        expected += wanted.sum()
        wanted = wanted * np.float32(1.5)
    np.testing.assert_array_equal(last.numpy(), wanted)
    assert sum_.numpy() == expected and len(every) == 4
    with pytest.raises(CaptureError, match="donated"):
        total.numpy()
    np.testing.assert_array_equal(x.numpy(), np.arange(4))


def test_repeat_needs_what_is_donated_fed_back() -> None:
    with pytest.raises(CaptureError, match="'total' is donated to the first call"):
        _step.repeat(2, {"x": 0}, 2, *_operands())


def test_repeat_keeps_types() -> None:
    with pytest.raises(CaptureError, match=r"'x' is \(f32\[4\]\) and element 2 .*\(i32\[4\]\)"):
        _step.repeat(2, {"x": 2, "total": 1}, 2, *_operands())


@pytest.mark.parametrize(
    ("turns", "feeds", "keep", "said"),
    [
        (0, {"x": 0, "total": 1}, 2, "0 runs; ask for at least one"),
        (2, {"x": 0, "total": 7}, 2, "no element 7.*its elements are 0, 1, 2"),
        (2, {"x": 0, "total": 1}, 5, "no element 5"),
        (2, {"y": 0, "total": 1}, 2, "feeds names 'y'; the arguments are x, total, by"),
    ],
)
def test_repeat_says_what_it_cannot_feed(
    turns: int, feeds: dict[str, int], keep: int, said: str
) -> None:
    with pytest.raises(CaptureError, match=said):
        _step.repeat(turns, feeds, keep, *_operands())


def test_repeat_keeps_a_tensor() -> None:
    pairs = jit(lambda x: ((x, x + 1.0), x))
    with pytest.raises(CaptureError, match="element 0 of the result is 2 tensors"):
        pairs.repeat(2, {"x": 1}, 0, _operands()[0])
