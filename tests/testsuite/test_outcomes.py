"""Every outcome of the closed set is earned, and impostors are told apart from honest backends."""

from __future__ import annotations

import json

import pytest
from impostors import (
    Failing,
    Fickle,
    Flushing,
    Little,
    Modest,
    Nothing,
    Rude,
    Zeros,
)
from suite_settings import setting_of

from ptir.ops import OPS
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.mutants import Correct
from ptir_testsuite.reports.files import write
from ptir_testsuite.reports.report import CONFORMANT, INCOMPLETE, NOT_CONFORMANT, Report, headline
from ptir_testsuite.reports.runner import Programs, Wish, run
from ptir_testsuite.running.execute import run_case
from ptir_testsuite.running.outcomes import Outcome

pytestmark = pytest.mark.usefixtures("few_ops")


def rows_of(backend, op, count=20, **terms):
    cases = [case for case, _ in zip(cases_of(OPS[op]), range(count), strict=False)]
    return [run_case(case, setting_of(backend, **terms)) for case in cases]


def outcomes(rows):
    return {row.outcome for row in rows}


def test_unclaimed_and_refused_is_unsupported_and_no_pass():
    rows = rows_of(Little(), "sort", 80)
    assert outcomes(rows) == {Outcome.UNSUPPORTED}
    assert {row.failed for row in rows if row.profiles == ("sort",)} == {True}, "it claims sort"
    assert {row.failed for row in rows if row.profiles == ("bf16", "sort")} == {False}
    rows = rows_of(Little(), "neg")
    assert outcomes(rows) == {Outcome.UNSUPPORTED}
    assert not any(row.failed for row in rows)
    assert "only add is taken" in rows[0].message


def test_what_works_although_it_is_refused_is_an_unexpected_pass():
    rows = rows_of(Modest(), "add")
    assert outcomes(rows) == {Outcome.UNEXPECTED_PASS}
    assert all(row.failed for row in rows)


def test_a_refusal_must_be_the_typed_error():
    (row,) = rows_of(Rude(), "add", 1)
    assert (row.outcome, row.phase) == (Outcome.WRONG_ERROR, "compile")
    assert "compile raised KeyError: 'add'; it must raise UnsupportedError" in row.message


def test_an_error_names_its_phase():
    (row,) = rows_of(Failing(), "mul", 1)
    assert (row.outcome, row.phase) == (Outcome.ERROR, "execute")
    assert "execute raised DeviceError: the device is gone" in row.message


def test_other_bits_in_the_second_run_are_a_mismatch():
    (row,) = rows_of(Fickle(), "mul", 1)
    assert row.outcome is Outcome.MISMATCH
    assert "two runs gave different bits" in row.message


def test_zeros_everywhere_fail_every_family():
    for op in ("add", "dot_general", "reduce", "transpose", "sort", "rng_bits"):
        assert Outcome.MISMATCH in outcomes(rows_of(Zeros(), op)), op


def test_flushing_passes_only_where_it_is_named():
    cases = {"relaxed": {"relaxations": ("flush-to-zero",)}, "strict": {}}
    for op in ("mul", "exp", "maximum", "neg"):
        strict = outcomes(rows_of(Flushing(), op, 60, **cases["strict"]))
        relaxed = outcomes(rows_of(Flushing(), op, 60, **cases["relaxed"]))
        assert Outcome.MISMATCH in strict and relaxed == {Outcome.PASS}, op


def report(backend, installed, **wish):
    installed(backend)
    wished = {"words": "rsqrt", "jobs": 0, "programs": Programs(0)} | wish
    return run(Wish("any", **wished))


def test_a_backend_that_does_nothing_is_not_conformant(installed):
    found = report(Nothing(), installed)
    assert found.exit_code == NOT_CONFORMANT
    assert found.executed == 0
    assert set(found.counts) == {Outcome.UNSUPPORTED}


def test_claiming_nothing_and_doing_nothing_is_no_success(installed):
    class Silent(Nothing):
        claims = frozenset()

    found = report(Silent(), installed)
    assert (found.exit_code, found.failures) == (INCOMPLETE, [])
    assert found.verdict == "incomplete: nothing was executed"


def test_a_part_of_the_corpus_never_makes_conformant(installed):
    found = report(Correct(), installed)
    assert found.counts[Outcome.PASS] == len(found.rows) > 20
    assert found.exit_code == INCOMPLETE
    found.header["words"] = ""
    assert found.exit_code == CONFORMANT


def test_nothing_executed_is_no_success():
    empty = Report({"total": 5, "selected": 0, "words": "", "slice": None, "alone": False})
    assert (empty.exit_code, empty.verdict) == (INCOMPLETE, "incomplete: nothing was executed")
    assert headline(empty) == "attempted 0/5: nothing; incomplete: nothing was executed"


def test_rows_and_denominators_are_in_the_report(installed, tmp_path):
    found = report(Correct(), installed)
    write(found, tmp_path / "rows.jsonl")
    lines = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    header, *rows, footer = map(json.loads, lines)
    assert header["kind"] == "header" and header["backend"] == "correct"
    assert {"corpus", "accuracy", "spec", "profiles", "relaxations", "device"} <= set(header)
    assert len(rows) == footer["attempted"] == footer["selected"] < footer["total"]
    assert footer["outcomes"]["pass"] == len(rows)
    assert {"id", "op", "outcome", "phase", "worst_ulp"} <= set(rows[0])


def test_a_sum_of_nothing_is_no_share_of_its_bound(installed, tmp_path):
    found = report(Correct(), installed, words="dot_general and f64[0]")
    assert {row.worst_share for row in found.rows} == {0.0}
    write(found, tmp_path / "rows.jsonl")


@pytest.mark.parametrize("claims", [frozenset({"core"}), frozenset({"core", "f16"})])
def test_claims_narrow_the_run_to_whole_profiles(installed, claims):
    found = report(Correct(), installed, claims=claims)
    assert {name for row in found.rows for name in row.profiles} == claims
