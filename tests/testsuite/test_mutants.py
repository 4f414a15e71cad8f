"""The corpus alone catches every planted fault, and says where it is."""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from suite_settings import setting_of

from corpus_slices import in_turn
from ptir.backend import registry
from ptir.ops import OPS, numerics
from ptir_testsuite.cli import main
from ptir_testsuite.corpus.composites import CompositeCall
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.stored import stored
from ptir_testsuite.mutants import MUTANTS, PLANTED, Correct, Mutant, Row, planting
from ptir_testsuite.mutants.equivalent import EQUIVALENT
from ptir_testsuite.mutants.grading import side_by_side
from ptir_testsuite.mutants.impostors import IMPOSTORS
from ptir_testsuite.mutants.planting import Planted, grade_planted, usable
from ptir_testsuite.mutants.score import IMPORTED, grade, unmask
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.execute import run_case
from ptir_testsuite.running.outcomes import Outcome
from ptir_testsuite.running.workers import Order, SuiteDefect, run_in_processes
from together import together

ROOT = Path(__file__).parents[2]


def first_failure(row):
    setting = setting_of(Mutant(row))
    for name in row.ops:
        for case in cases_of(OPS[name]):
            found = run_case(case, setting)
            if found.failed:
                return case, found
    return None


OF_CASES = [n for n, row in MUTANTS.items() if n not in EQUIVALENT and not row.in_sweeps]
"""The plants that single cases are to show; of the others see ``test_sweeps``."""


@together(lambda name: MUTANTS[name].ops[0])
@pytest.mark.parametrize("name", OF_CASES)
def test_planted_fault_is_caught_with_op_inputs_and_worst_element(name):
    row = MUTANTS[name]
    failure = first_failure(row)
    assert failure is not None, "no case of the corpus notices"
    case, found = failure
    assert found.outcome is Outcome.MISMATCH
    assert case.call in found.message and case.id in found.message
    if found.phase == "compare":
        operands = [operand.rstrip("*") for operand in OPS[case.op].operands]
        assert "worst element" in found.message and "expected" in found.message
        assert all(f"  {operand}" in found.message for operand in operands)
        assert found.facts["expected"] != found.facts["actual"]


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", EQUIVALENT)
def test_what_changes_nothing_is_accepted(name):
    found = grade(MUTANTS[name])
    assert not found.caught and found.tried > 50, found
    assert found.right and found.reason


@pytest.mark.slice(4)
@pytest.mark.parametrize("name", IMPOSTORS)
def test_an_impostor_is_rejected_for_the_right_thing(name):
    found = unmask(name)
    assert found.caught and found.outcome in found.wanted, found
    assert not {Outcome.PASS, Outcome.WAIVED} & set(found.wanted)


def test_the_grade_is_printed(capsys):
    assert main(["mutants", "-k", "five-term"]) == 0
    out = capsys.readouterr().out
    assert "erf by the five-term formula of Abramowitz and Stegun  erf" in out
    assert out.splitlines()[-2] == "0/0 faults in generated kernels rejected"
    assert out.splitlines()[-1] == (
        "1/1 planted faults rejected by the corpus alone, 0/0 impostors with the right outcome;"
        " 0/0 equivalent changes accepted"
    )


SEVERAL = {
    "erf by the five-term formula of Abramowitz and Stegun": "erf-",
    "a maximum takes the number beside a NaN": "mismatch",
    "claims the core and takes nothing": "unsupported",
    "takes the process with it": "crash",
    "never comes back": "timeout",
}
"""What becomes of some faults, in the order in which they are told."""
WORDS = "five-term or maximum and beside or claims and core or takes and process or never and comes"


def test_several_at_a_time_are_judged_as_each_alone_and_told_in_order(capsys):
    if not usable(PLANTED["a maximum takes the number beside a NaN"]):
        pytest.skip("no backend of level 2 works here")
    assert main(["mutants", "-k", WORDS, "--jobs", "3", "--timeout", "0.7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if line.startswith(tuple(SEVERAL))]
    assert len(told) == len(SEVERAL)
    for line, (name, outcome) in zip(told, SEVERAL.items(), strict=True):
        assert line.startswith(name) and outcome in line.removeprefix(name)
    assert lines[-2].startswith("1/1 faults in generated kernels rejected")
    assert "1/1 planted faults" in lines[-1] and "3/3 impostors" in lines[-1]


def test_tasks_give_their_results_in_order_whichever_ends_first():
    begun = threading.Event()

    def late():
        assert begun.wait(60)
        return "late"

    def last():
        begun.set()
        return "last"

    assert side_by_side([lambda: "here"], [late, last], 3) == (["here"], ["late", "last"])
    assert side_by_side([], [lambda: 1, lambda: 2], 1) == ([], [1, 2])


def test_what_a_task_raises_ends_all():
    done, raised, ended = [], threading.Event(), threading.Event()
    rest = [partial(done.append, number) for number in range(9)]

    def wrong():
        raised.set()
        raise SuiteDefect("add-0")

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SuiteDefect, match="add-0"):
        side_by_side([], [wrong, *rest], 1)
    with pytest.raises(KeyboardInterrupt):
        side_by_side([interrupted], [partial(ended.wait, 60), *rest], 2)
    ended.set()
    assert not done, "nothing more is begun"
    with pytest.raises(SuiteDefect, match="add-0"):  # in a thread beside this one
        side_by_side([partial(raised.wait, 60)], [wrong], 2)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are copies on Linux")
def test_a_worker_that_is_a_copy_has_only_its_own_fault_and_the_variables_of_now(monkeypatch):
    items = [case for case in cases_of(OPS["neg"]) if case.types[0].dtype.name == "i32"][:2]
    outcomes = []
    for code in ("7", "", "5"):
        monkeypatch.setenv("PTIR_TEST_EXIT", code)
        order = Order("any", (), Correct.claims, Terms(), ending, imported=IMPORTED)
        found = list(run_in_processes(items, order, 1, 60.0))
        outcomes.append({re.sub("(?s).*exit code ([0-9]+).*", r"\1", f.message) for f in found})
    assert outcomes == [{"7"}, {""}, {"5"}]


class Ending(Correct):
    """Ends the process with the exit code that a variable says, if it says one."""

    def step(self, instruction, operands, device):
        if os.environ["PTIR_TEST_EXIT"]:
            os._exit(int(os.environ["PTIR_TEST_EXIT"]))
        return super().step(instruction, operands, device)


def ending():
    """A backend, and a change of the process that no other process may see."""
    assert not hasattr(numerics, "changed")
    numerics.changed = True
    return Ending()


QUICK = (
    "elements after the last whole vector are not stored",
    "a product and a sum are contracted",
    "panels of packed weights are a word too short",
    "an output keeps the memory of the first run",
)


@pytest.mark.slice(2)
@pytest.mark.parametrize("name", QUICK)
def test_a_fault_in_the_generator_is_caught(name):
    if not usable(PLANTED[name]):
        pytest.skip("no backend of level 2 works here")
    found = grade_planted(PLANTED[name])
    assert found.right and found.caught and found.outcome is Outcome.MISMATCH, found


def test_without_a_fault_the_same_cases_pass(monkeypatch):
    row = Planted(
        "no fault", ("regression",), ("launching.launches:Launch.__init__",), lambda right: right
    )
    if not usable(row):
        pytest.skip("no backend of level 2 works here")
    monkeypatch.setattr(planting, "faulty", unchanged)
    monkeypatch.setattr(
        planting, "_shown", lambda row: iter([*stored(), CompositeCall("linear", 1)])
    )
    found = grade_planted(row)
    assert not found.caught and found.tried > 5, found


def unchanged(name, backend):
    """What ``faulty`` gives, nothing planted."""
    return registry.get(backend).backend


def test_faults_that_no_backend_can_show_are_not_graded_and_say_so(monkeypatch, capsys):
    monkeypatch.setattr(planting.registry, "status_table", lambda: ())
    assert main(["mutants", "-k", "kernels and arena"]) == 3
    out = capsys.readouterr().out
    assert "not graded" in out
    assert "none of the backends that they need (c, opencl) works here" in out


def test_every_planted_place_exists_and_changes():
    assert len(PLANTED) >= 20
    for row in PLANTED.values():
        assert set(row.on) <= set(planting.ON) and row.shows, row.name
        for place in row.places:
            module, _, path = place.partition(":")
            holder = importlib.import_module(planting.CODE + module)
            for name in path.partition("[")[0].split("."):
                holder = getattr(holder, name)
            assert row.wrong(holder) is not holder, place


@pytest.mark.parametrize(
    "page", ["README.md", "docs/guides/conformance.md", "packages/ptir-testsuite/README.md"]
)
def test_pages_tell_the_sizes_of_the_tables(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    faults, kernels, impostors, equal = (
        len(MUTANTS) - len(EQUIVALENT),
        len(PLANTED),
        len(IMPOSTORS),
        len(EQUIVALENT),
    )
    wanted = {
        "README.md": (
            f"{faults} of {faults} in single ops",
            f"{kernels} of {kernels} in generated kernels",
            f"{impostors} of {impostors} backends that lie",
        ),
        "docs/guides/conformance.md": (
            f"{faults}/{faults} planted faults rejected",
            f"{kernels}/{kernels} faults in generated kernels",
            f"{impostors}/{impostors} impostors",
            f"{equal}/{equal} equivalent changes",
        ),
        "packages/ptir-testsuite/README.md": (
            f"| {faults} faults in single ops | {faults} |",
            f"| {kernels} faults in the kernel generator | {kernels} |",
            f"| {impostors} impostors | {impostors}, each",
            f"| {equal} changes that nothing may notice | 0 |",
        ),
    }
    for words in wanted[page]:
        assert words in " ".join(text.split()), f"{page} does not say {words!r}"


def test_a_fault_that_nothing_notices_spoils_the_grade(monkeypatch, capsys):
    monkeypatch.setitem(MUTANTS, "nothing", Row("nothing", ("erf",), lambda call: call.right))
    assert main(["mutants", "-k", "nothing and erf"]) == 1
    out = capsys.readouterr().out
    assert "NOTHING" in out and "0/1 planted faults rejected" in out
    monkeypatch.setitem(EQUIVALENT, "erf by the five-term formula of Abramowitz and Stegun", "no")
    assert main(["mutants", "-k", "five-term"]) == 1
    assert "0/1 equivalent changes accepted" in capsys.readouterr().out


def test_without_a_fault_every_op_passes():
    setting = setting_of(Correct())
    for op in in_turn(list(OPS.values()), 4):
        for number, case in enumerate(cases_of(op)):
            if number % 20 == 0:  # the whole corpus runs on the reference backend elsewhere
                found = run_case(case, setting)
                assert not found.failed, found.message


def test_there_are_faults_in_every_family():
    families = {trait for row in MUTANTS.values() for name in row.ops for trait in OPS[name].traits}
    wanted = {"elementwise", "contraction", "reduction", "scan", "order", "movement", "random"}
    assert wanted <= families
    assert len(MUTANTS) - len(EQUIVALENT) >= 100
    assert set(EQUIVALENT) <= set(MUTANTS)
    control = {op.name for op in OPS.values() if op.regions or op.profile == "extension"}
    untouched = set(OPS) - {name for row in MUTANTS.values() for name in row.ops} - control
    assert untouched <= {"constant", "stop_gradient"}, untouched
