"""A backend that claims no profile and takes a few ops: the rest is unsupported, and no failure."""

from __future__ import annotations

import itertools

import pytest
from suite_settings import setting_of

from ptir.errors import UnsupportedError
from ptir.ops import OPS
from ptir_testsuite.corpus.composites import CompositeCall
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.models import model_runs
from ptir_testsuite.mutants import Correct
from ptir_testsuite.reports import badge
from ptir_testsuite.reports.report import (
    CONFORMANT,
    INCOMPLETE,
    NOT_CONFORMANT,
    Report,
    headline,
)
from ptir_testsuite.reports.schema import require
from ptir_testsuite.running.execute import run_case
from ptir_testsuite.running.items import random_programs, run_item
from ptir_testsuite.running.kinds.lifetime import lifetimes
from ptir_testsuite.running.kinds.refusals import refusals
from ptir_testsuite.running.outcomes import Outcome

REGIONS = [op for op in OPS.values() if op.regions and op.name != "composite"]


class Few(Correct):
    """Takes what it lists, and claims nothing."""

    name = "few"
    claims = frozenset()
    ops = frozenset({"add", "mul"})


class NoOp(Few):
    """Lists nothing; constants and control flow are run by core."""

    name = "no-op"
    ops = frozenset()


class Claiming(Few):
    """Claims what it does not take."""

    claims = frozenset({"core", "control-flow"})


def rows_of(backend, items):
    return [run_item(item, setting_of(backend)) for item in items]


def scans(count=8):
    """Calls that slice and stack rows, which the backend does not take."""
    return list(cases_of(OPS["scan"]))[:count]


@pytest.mark.slice(5)
@pytest.mark.parametrize("backend", [Few(), NoOp()], ids=lambda one: one.name)
@pytest.mark.parametrize(
    "items",
    [
        scans(),
        [next(cases_of(op)) for op in REGIONS],
        [next(refusals([op])) for op in REGIONS],
        [next(lifetimes(kind)) for kind in ("walk", "tensors", "threads", "rivals", "repeat")],
        list(lifetimes("rivals")),
        [CompositeCall("gelu", 0), CompositeCall("softmax", 0)],
        list(random_programs(12)),
        [next(model_runs())],
    ],
    ids=["scans", "regions", "refusals", "lifetimes", "rivals", "composites", "programs", "models"],
)
def test_what_is_not_taken_is_unsupported_and_no_failure(backend, items):
    failed = [f"{row.case}: {row.message}" for row in rows_of(backend, items) if row.failed]
    assert failed == []


def test_the_reason_names_the_op_that_a_loop_lacks():
    row = run_case(scans(1)[0], setting_of(Few()))
    assert (row.outcome, row.phase) == (Outcome.UNSUPPORTED, "compile")
    assert "slice is not among the ops of the backend" in row.message


def test_within_a_claim_the_same_is_refused_though_claimed():
    claiming = rows_of(Claiming(), [scans(1)[0], next(lifetimes("tensors"))])
    assert [row.outcome for row in claiming] == [Outcome.UNSUPPORTED] * 2
    assert all(row.failed for row in claiming)


def test_a_backend_that_takes_a_loop_and_then_refuses_it_is_not_excused():
    class Fickle(Correct):
        def compile(self, program, device, options):
            raise UnsupportedError("not today")

    row = run_case(scans(1)[0], setting_of(Fickle()))
    assert row.outcome is Outcome.ERROR and "not today" in row.message


# --- the verdict ---


def report(backend, items):
    """A report of some items as if they were the whole corpus."""
    rows = rows_of(backend, items)
    header = {"profiles": sorted(backend.claims), "selected": len(rows), "total": len(rows)}
    header |= {"spec": "1.0", "backend": backend.name, "words": "", "alone": False, "slice": None}
    found = Report(header, rows)
    require(found.footer() | {"digest": "0" * 32}, "the footer")
    return found


def adds():
    return itertools.islice(cases_of(OPS["add"]), 8)


def test_few_ops_that_are_right_are_conformant_and_the_verdict_says_what_is_claimed():
    found = report(Few(), [*adds(), *scans()])
    assert (found.exit_code, found.verdict) == (CONFORMANT, "conformant (no profile claimed)")
    assert headline(found).startswith("attempted 16/16: 5 pass, 11 unsupported; ")
    assert badge.color_of(found) == badge.RESERVED
    assert badge.message_of(found) == "conformant (no profile claimed), 16/16"


def test_few_ops_one_of_which_is_wrong_are_not_conformant():
    class Wrong(Few):
        def step(self, instruction, operands, device):
            return tuple(found + 1 for found in super().step(instruction, operands, device))

    assert report(Wrong(), adds()).exit_code == NOT_CONFORMANT


def test_what_passes_without_an_op_of_the_backend_is_no_success():
    """Constants, loops around nothing, copies by decomposition, and calls that ptir refuses."""
    items = [next(cases_of(OPS[name])) for name in ("constant", "cond", "stop_gradient")]
    found = report(NoOp(), [*items, *refusals([OPS["add"]]), *random_programs(4)])
    assert set(found.counts) == {Outcome.PASS}
    said = "incomplete: no op of the backend ran"
    assert (found.exit_code, found.verdict) == (INCOMPLETE, said)


def test_a_row_says_that_its_op_was_decomposed():
    rows = {
        name: run_case(next(cases_of(OPS[name])), setting_of(backend))
        for name, backend in {"sub": Few(), "add": Few(), "stop_gradient": NoOp()}.items()
    }
    assert rows["stop_gradient"].facts == {"decomposed": True}
    assert rows["add"].facts == {}
    require(rows["stop_gradient"].record(), "a row")
