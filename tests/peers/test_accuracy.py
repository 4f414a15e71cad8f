"""``ptir eval --workload accuracy``: right classes, how they are given, and what is no class."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ptir.cli.eval_options import truth_of
from ptir.errors import UnsupportedError, UsageError
from ptir.peers.workloads import Input, answers
from running import Command, command

__all__ = ["command"]

LABELS = ("cat", "dog", "2", "dog", "owl", "emu", "bee")
SCORES = [[0, 9, 1, 2, 3, 4, 5], [6, 1, 2, 9, 4, 5, 0], [9, 8, 7, 6, 5, 4, 3]]


def model(scores: Any) -> Any:
    rows = [np.array(row, np.float32) for row in scores]
    return SimpleNamespace(
        name="m", reads_texts=False, forward=lambda number: rows[int(number)][None]
    )


INPUTS = [Input(f"i{n}", np.array(n)) for n in range(3)]


def test_right_answers_and_those_in_the_first_five_are_counted() -> None:
    found = answers(model(SCORES), None, INPUTS, [1, 0, 5])  # the sixth of the last
    assert (found.count, found.ours, found.ours_in_five) == (3, 1, 2)
    assert found.theirs is None and found.same is None


def test_answers_stand_beside_the_peers() -> None:
    theirs: Any = SimpleNamespace(peer=SimpleNamespace(output=model(SCORES[::-1]).forward))
    found = answers(model(SCORES), theirs, INPUTS, [1, 3, 0])
    assert (found.ours, found.theirs, found.same) == (3, 1, 1)
    assert found.differing == (("i0", 1, 1, 0), ("i2", 0, 0, 1))


def test_one_score_is_no_class() -> None:
    with pytest.raises(UnsupportedError, match="one score and no classes"):
        answers(model([[0.5]]), None, INPUTS[:1], [0])


def test_classes_are_told_by_name_or_number(tmp_path: Path) -> None:
    file = tmp_path / "truth.txt"
    file.write_text("owl\n 0 \ndog\n2\n6\n", encoding="utf-8")
    assert truth_of(file, 5, LABELS) == [4, 0, 1, 2, 6]  # the class called 2 is number 2


WRONG = {
    "short": ("cat\ndog\n", "has 2 right classes, and there are 3 inputs"),
    "long": ("cat\n" * 4, "has 4 right classes, and there are 3 inputs"),
    "unknown": ("cat\ndoog\n1\n", "line 2: unknown class 'doog' (nearest: dog, dog)"),
    "beyond": ("cat\n7\n1\n", "line 2: unknown class '7'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_of_classes_are_refused(case: str, tmp_path: Path) -> None:
    held, message = WRONG[case]
    file = tmp_path / "truth.txt"
    file.write_text(held, encoding="utf-8")
    with pytest.raises(UsageError, match=r"truth\.txt") as caught:
        truth_of(file, 3, LABELS)
    assert message in str(caught.value)


def test_a_classifier_of_texts_is_measured(tmp_path: Path, command: Command) -> None:
    file = tmp_path / "truth.txt"
    file.write_text("0\n1\n2\n", encoding="utf-8")
    arguments = ("a dog", "a cat", "an owl", "--workload", "accuracy", "--truth", file)
    value = command("eval", "random:bert-tiny-classifier", *arguments, "--json").value
    assert value["count"] == 3 and value["ours_in_five"] is None and 0 <= value["ours"] <= 3
    done = command("eval", "random:bert-tiny-classifier", *arguments[1:])
    assert done.code == 2 and "has 3 right classes, and there are 2 inputs" in done.err
    done = command("eval", "demo", *arguments)
    assert done.code == 4 and "cannot classify" in done.err
