"""Failures on a terminal: those with one cause are one group, and all of them can be listed."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from impostors import Failing
from rich.console import Console
from suite_settings import setting_of

from ptir.backend import raised
from ptir.ops import OPS
from ptir_testsuite.cli import main
from ptir_testsuite.cli import reports as commands
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.mutants import Correct
from ptir_testsuite.reports.failures import SHOWN, examples, groups
from ptir_testsuite.reports.report import Report, show
from ptir_testsuite.reports.schema import require
from ptir_testsuite.running.items import run_item
from ptir_testsuite.running.kinds.lifetime import lifetimes
from ptir_testsuite.running.kinds.refusals import refusals
from ptir_testsuite.running.outcomes import Outcome, Row

pytestmark = pytest.mark.usefixtures("few_ops")


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


class Broken(Correct):
    """One line fails three ops, another one a fourth; a fifth is wrong."""

    name = "broken"

    def step(self, instruction, operands, device):
        if instruction.op in ("add", "mul", "neg"):
            return np.broadcast_to(operands[0], (5, -1))
        if instruction.op == "exp":
            raise KeyError("exp")
        found = super().step(instruction, operands, device)
        return tuple(one + 1 for one in found) if instruction.op == "abs" else found


def failed(backend=None, ops=("exp", "abs", "add", "mul", "neg"), count=3):
    items = [case for op in ops for case in islice(cases_of(OPS[op]), count)]
    return [run_item(item, setting_of(backend or Broken())) for item in items]


PLACE = f"test_failures.py:{line_of('return np.broadcast_to')} in step"
KEY = f"test_failures.py:{line_of('raise KeyError')} in step"


def test_one_line_of_the_authors_code_is_one_group_and_the_largest_comes_first():
    found = groups(failed())
    assert [(group.place, len(group.rows)) for group in found] == [(PLACE, 9), (KEY, 3), ("", 3)]
    assert found[0].head == f"9 failures raised at {PLACE}, of add, mul, neg"
    assert found[2].head == "3 failures of abs: mismatch"
    for row in failed():
        require(row.record(), "a row")


def test_a_group_is_shown_by_one_of_its_failures():
    found = groups(failed())
    lines = list(examples(found))
    assert lines[0] == f"9 failures raised at {PLACE}, of add, mul, neg; one of them:"
    first = found[0].rows[0]
    assert first.op == "add" and f"error [execute] {first.message}" in lines
    assert sum("case " in text for text in lines) == len(found)


def test_of_many_groups_the_smallest_are_counted():
    rows = [replace(row, op=f"op{number}") for number, row in enumerate(failed(ops=["abs"]) * 5)]
    lines = list(examples(groups(rows)))
    left = len(rows) - SHOWN
    assert lines[-1] == f"... and {left} failures in {left} smaller groups"


def test_refusals_and_scripts_belong_to_the_line_too():
    backend = setting_of(Failing())
    script = next(one for one in lifetimes("threads") if "chain" in str(one.script))
    rows = [run_item(one, backend) for one in (next(refusals([OPS["mul"]])), script)]
    (group,) = groups([*rows, *failed(Failing(), ["mul"], 1)])
    assert group.place.startswith("impostors.py:") and len(group.rows) == 3


def test_the_place_is_the_authors_where_a_tool_of_theirs_raised():
    """NumPy's functions are called by the author's line, which is what can be changed."""
    (row,) = failed(ops=["add"], count=1)
    assert row.facts["raised"] == PLACE
    assert "site-packages" in row.trace[-2], "NumPy's frame is the innermost"
    assert f"at {PLACE}" in row.message


def test_a_backend_that_is_installed_is_an_authors_and_its_tools_are_not(monkeypatch):
    paths = SimpleNamespace(files=[Path("mine/ops.py")])
    point = SimpleNamespace(dist=paths)
    listed = {"ptir.backends": [SimpleNamespace(point=point)], "ptir.plugins": []}
    monkeypatch.setattr(raised.entries, "listed", listed.get)
    raised._tops.cache_clear()
    site = "/usr/lib/python3/site-packages"
    answers = {
        f"{site}/mine/ops.py": True,
        f"{site}/torch/nn.py": False,
        "/home/me/mine.py": True,
        f"{Path(io.__file__)}": False,
        "<string>": False,
    }
    try:
        assert {name: raised._is_authors.__wrapped__(name) for name in answers} == answers
    finally:
        raised._tops.cache_clear()


# --- all of them ---


def shown(rows, path=None):
    header = {"backend": "broken", "number": 0, "profiles": [], "narrowed": False, "words": "x"}
    header |= dict.fromkeys(("version", "device", "detail", "spec", "suite", "corpus"), "")
    header |= {
        "slice": None,
        "relaxations": [],
        "imports": [],
        "accuracy": "",
        "total": 9,
        "selected": 9,
    }
    stream = io.StringIO()
    show(Report(header | {"alone": False}, rows), Console(file=stream, width=60), path)
    return stream.getvalue().splitlines()


def test_the_command_that_lists_all_failures_is_named_where_more_than_one_is_not_shown():
    rows = failed()
    assert "to see all failures: add --json FILE, then ptir-conformance failures FILE" in shown(
        rows
    )
    assert "to see all failures: ptir-conformance failures r.jsonl" in shown(rows, Path("r.jsonl"))
    alone = failed(ops=["abs", "add"], count=1)
    assert not [line for line in shown(alone) if "all failures" in line or "one of them" in line]
    again = f"to see the first in full: ptir-conformance replay {groups(rows)[0].rows[0].case}"
    assert [line for line in shown(rows) if line.startswith(again)]


@pytest.fixture
def report(monkeypatch, tmp_path):
    """A file, and the rows that it is read as."""
    path = tmp_path / "report.jsonl"
    path.touch()
    rows = [*failed(), Row("abs-0", "abs", "abs()", (), (), Outcome.PASS)]
    monkeypatch.setattr(commands, "read", lambda path: SimpleNamespace(parsed=rows))
    return path, rows


def test_all_failures_of_a_report_are_listed_by_group(report, capsys):
    path, rows = report
    assert main(["failures", str(path)]) == 1
    out = capsys.readouterr().out
    assert all(f"  {row.case}: " in out for row in rows[:-1]) and "abs-0" not in out
    assert out.count("backends raise only") == 2, "what one line raised is told once"
    assert f"  {rows[-2].case}: {rows[-2].call}\n" in out
    heads = [group.head for group in groups(rows[:-1])]
    assert [line[:-1] for line in out.splitlines() if line.endswith(":")] == heads
    assert out.endswith(f"{path}: {len(rows) - 1} failures\n")
    assert main(["failures", str(path), "--full"]) == 1
    assert all(row.message in capsys.readouterr().out for row in rows[:1])


def test_a_report_without_failures_says_so(report, capsys):
    path, rows = report
    del rows[:-1]
    assert main(["failures", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: no failure\n"
