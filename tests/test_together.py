"""Parameter sets that share a test: all of them run, and those that fail are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from together import together

SEEN: list[tuple[int, str]] = []


@together("a")
@pytest.mark.parametrize("b", ["x", "y"])
@pytest.mark.parametrize("a", range(3))
def test_each(a: int, b: str) -> None:
    SEEN.append((a, b))


def test_every_set_ran_in_a_test_of_its_group(subtests: pytest.Subtests) -> None:
    (mark,) = test_each.pytestmark
    assert mark.args == ("group", ["0", "1", "2"])
    SEEN.clear()
    for group in mark.args[1]:
        test_each(subtests=subtests, group=group)
    assert sorted(SEEN) == [(a, b) for a in range(3) for b in "xy"]


def odd(number: int, folder: str) -> None:
    assert number % 2, f"{number} in {folder} is even"


def test_all_that_fail_are_named_with_what_they_said(subtests: pytest.Subtests) -> None:
    rows = [pytest.param(1, id="one"), pytest.param(2, id="two"), 3, 4]
    every = together()(pytest.mark.parametrize("number", rows)(odd))
    with pytest.raises(AssertionError) as caught:
        every(subtests=subtests, folder="here")
    text = str(caught.value)
    assert text.startswith("2 of 4 fail:\ntwo: AssertionError: 2 in here is even")
    assert "\n4: AssertionError: 4 in here is even" in text and f"\n  at {__file__}:" in text


def test_a_group_is_named_by_a_function_of_the_set() -> None:
    by_half = together(lambda number: str(number // 2))
    mark = by_half(pytest.mark.parametrize("number", range(5))(odd)).pytestmark[0]
    assert mark.args == ("group", ["0", "1", "2"])


def test_a_set_with_a_mark_is_refused() -> None:
    rows = [pytest.param(1, marks=pytest.mark.slow)]
    with pytest.raises(AssertionError, match="a test of its own"):
        together()(pytest.mark.parametrize("number", rows)(odd))


SKIPPING = """
import pytest
from together import together

def of(rows):
    @together()
    @pytest.mark.parametrize("number", rows)
    def skips_or(number):
        if number == 2:
            pytest.skip("two is elsewhere")
        assert number != 1, "one fails"

    return skips_or

test_0, test_1, test_2 = of([1, 2, 3]), of([2, 1]), of([2, 2])
test_3, test_4, test_5 = of([2, 3]), of([2, 3, 2]), of([3])
"""


def test_a_set_that_skips_hides_no_other_and_is_counted(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "test_it.py").write_text(SKIPPING, encoding="utf-8")
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    options = ("-rA", "-c", repository / "pyproject.toml", "-p", "no:cacheprovider")
    made = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "no:xdist", tmp_path],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = made.stdout.splitlines()
    passed = [line[-1] for line in lines if line.startswith("PASSED")]
    failed = [line.partition("test_it.py::test_")[2][:1] for line in lines if line[:6] == "FAILED"]
    assert (passed, failed) == (["3", "4", "5"], ["0", "1"]), made.stdout
    assert any(line.startswith("SUBSKIPPED[2] [5] ") for line in lines), made.stdout
    assert lines[-1].strip("= ").startswith("2 failed, 3 passed, 6 skipped in "), made.stdout
