"""A crash or a hang costs one case, and the run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ptir.ops import OPS
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.models import model_runs
from ptir_testsuite.corpus.programs import drawn_program
from ptir_testsuite.mutants import Correct
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running import workers
from ptir_testsuite.running.items import random_programs
from ptir_testsuite.running.kinds.lifetime import lifetimes
from ptir_testsuite.running.outcomes import Outcome
from ptir_testsuite.running.workers import Order, SuiteDefect, run_in_processes, signal_of

pytestmark = pytest.mark.turns(2)

HERE = Path(__file__).parent


def order(name, monkeypatch):
    """A worker that imports the impostor and registers it by replacing the registry's ``get``."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=":")
    monkeypatch.setenv("PTIR_TEST_IMPOSTOR", name)
    return Order("any", ("impostor_worker",), Correct.claims, Terms())


def results(name, monkeypatch, jobs, timeout):
    cases = list(cases_of(OPS["neg"]))[:12]
    rows = list(run_in_processes(cases, order(name, monkeypatch), jobs, timeout))
    assert sorted(row.case for row in rows) == sorted(case.id for case in cases)
    return {row.case: row for row in rows}, cases


@pytest.mark.parametrize(
    ("name", "outcome", "text"),
    [
        ("Dying", Outcome.CRASH, "the process died with exit code 7"),
        ("Hanging", Outcome.TIMEOUT, "no answer within 1 s"),
    ],
)
def test_the_item_it_was_at_is_blamed_and_the_rest_still_runs(name, outcome, text, monkeypatch):
    rows, cases = results(name, monkeypatch, jobs=1, timeout=1.0)
    for case in cases:
        integers = case.types[0].dtype.name == "i32"
        assert rows[case.id].outcome is (outcome if integers else Outcome.PASS)
        assert text in rows[case.id].message if integers else not rows[case.id].message
    assert outcome in {row.outcome for row in rows.values()}


def test_a_signal_is_called_by_its_name():
    assert (signal_of(-11), signal_of(7), signal_of(None)) == ("SIGSEGV", "", "")


def test_a_worker_killed_from_outside_is_tried_once_more(monkeypatch, tmp_path):
    monkeypatch.setenv("PTIR_TEST_MARK", str(tmp_path / "mark"))
    rows, _ = results("Unlucky", monkeypatch, jobs=1, timeout=60.0)
    assert {row.outcome for row in rows.values()} == {Outcome.PASS}
    causes = [row.facts.get("killed_before") for row in rows.values()]
    assert causes.count("SIGTERM") == 1 and causes.count(None) == len(causes) - 1


def test_an_item_that_is_killed_twice_is_a_crash(monkeypatch):
    rows, cases = results("Shot", monkeypatch, jobs=1, timeout=60.0)
    for case in cases:
        integers = case.types[0].dtype.name == "i32"
        assert rows[case.id].outcome is (Outcome.CRASH if integers else Outcome.PASS)
        assert not integers or rows[case.id].facts == {"killed_before": "SIGKILL"}


@pytest.mark.slice(1)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_device_that_is_lost_is_lost_for_one_item(monkeypatch, jobs):
    """Others run in a process that has one."""
    rows, cases = results("Losing", monkeypatch, jobs, timeout=60.0)
    for case in cases:
        integers = case.types[0].dtype.name == "i32"
        assert rows[case.id].outcome is (Outcome.ERROR if integers else Outcome.PASS)
        assert ("DeviceLost: the device is gone" in rows[case.id].message) is integers


def programs(name, monkeypatch, first=0):
    items = list(random_programs(10, first=first))
    rows = list(run_in_processes(items, order(name, monkeypatch), 1, 60.0))
    assert [row.case for row in rows] == [item.id for item in items]
    return rows


def test_programs_whose_worker_died_while_they_were_together_are_tried_alone(monkeypatch):
    """Alone each of them passes: nobody is blamed for the company that it was in."""
    rows = programs("Crowded", monkeypatch)
    assert {row.outcome for row in rows} == {Outcome.PASS}


def test_a_program_that_kills_its_worker_alone_is_found_among_others(monkeypatch):
    fatal = next(number for number in range(1, 1000) if negates_integers(number))
    rows = programs("Dying", monkeypatch, first=fatal - 1)
    expected = [
        Outcome.CRASH if negates_integers(fatal - 1 + n) else Outcome.PASS for n in range(10)
    ]
    assert [row.outcome for row in rows] == expected and Outcome.PASS in expected


def instructions(number):
    drawn = drawn_program(0, number, Correct.claims)
    return drawn.program.main.instructions


def negates_integers(number):
    return any(i.op == "neg" and i.types[0].dtype.name == "i32" for i in instructions(number))


def test_programs_that_compile_alone_and_not_together_are_an_error(monkeypatch):
    rows = programs("Unsociable", monkeypatch)
    failed = {row.case: (row.outcome, row.phase, row.message) for row in rows if row.failed}
    assert list(failed) == ["program-0-0", "program-0-4", "program-0-8"]
    for outcome, phase, message in failed.values():
        assert (outcome, phase) == (Outcome.ERROR, "compile")
        assert "RuntimeError: too many programs" in message and "compiles alone" in message


def test_programs_that_are_refused_have_the_outcomes_that_they_have_alone(monkeypatch):
    """A refusal of one that is compiled with others is told of that one."""
    rows = programs("Modest", monkeypatch)
    adds = [any(i.op == "add" for i in instructions(number)) for number in range(10)]
    assert [row.outcome for row in rows] == [
        Outcome.UNSUPPORTED if add else Outcome.PASS for add in adds
    ]
    assert len(set(adds)) == 2


def test_ctrl_c_is_for_the_process_that_collects_the_rows(monkeypatch):
    rows, _ = results("Interrupted", monkeypatch, jobs=1, timeout=60.0)
    assert {row.outcome for row in rows.values()} == {Outcome.PASS}


FRESH = """
from test_workers import *
if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        rows, _ = results("Interrupted", patch, jobs=1, timeout=60.0)
    print([row.facts for row in rows.values() if row.facts])
"""


def test_the_first_worker_of_a_process_does_not_hear_ctrl_c_either(tmp_path):
    script = tmp_path / "fresh.py"
    script.write_text(FRESH, encoding="utf-8")
    made = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(HERE), *sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.stdout.strip() == "[]", made.stdout + made.stderr


def test_time_in_which_nobody_listens_is_not_the_fault_of_a_case(monkeypatch):
    cases = list(cases_of(OPS["neg"]))[:12]
    away = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + away[0])
    monkeypatch.setattr("ptir_testsuite.running.workers.time", clock)
    found = []
    for row in run_in_processes(cases, order("Correct", monkeypatch), 2, 60.0):
        found.append(row.outcome)
        away[0] += 1000.0
    assert found == [Outcome.PASS] * len(cases)


def test_two_processes_share_the_work(monkeypatch):
    rows, _ = results("Correct", monkeypatch, jobs=2, timeout=60.0)
    assert {row.outcome for row in rows.values()} == {Outcome.PASS}


def test_models_are_shared_out_one_by_one():
    """Minutes each on a slow compiler: a batch of them would keep one worker busy alone."""
    items = [*list(cases_of(OPS["neg"]))[:3], *list(model_runs("gpt2"))[:3], *lifetimes("walk")]
    pool = workers._Pool(items, Order("any", (), Correct.claims, Terms()), 1.0)
    batches = list(iter(pool._batch, []))
    assert [len(batch) for batch in batches[:4]] == [3, 1, 1, 1]
    assert [item for batch in batches for item in batch] == items


def test_a_device_that_cannot_be_opened_is_no_outcome_of_a_case(monkeypatch):
    broken = Order("any", ("no_such_module",), frozenset(), Terms())
    with pytest.raises(SuiteDefect, match="before it had opened its device"):
        list(run_in_processes(list(cases_of(OPS["neg"]))[:1], broken, 1, 5.0))
