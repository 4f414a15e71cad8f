"""ONNX's node cases on the reference backend, and whether their grader notices faults."""

from __future__ import annotations

import fnmatch
import json
import re
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from witnesses import MISSING, faulty, needs_onnx

from corpus_slices import in_turn
from ptir.backend import Device, OpQuery
from ptir.backend.contract import Target
from ptir.ops.profiles import core_dtypes
from ptir_backend_ref import RefBackend
from ptir_testsuite.witnesses import onnx_nodes, principles
from ptir_testsuite.witnesses.__main__ import main
from ptir_testsuite.witnesses.report import Report, Row
from running import REF

pytestmark = needs_onnx


@pytest.fixture(scope="module")
def report():
    """In the gate of one case in ten, others for each slice."""
    cases = tuple(in_turn(onnx_nodes.cases(), 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_nodes, "cases", lambda: cases)
        return onnx_nodes.run(REF)


def test_the_witness_can_be_heard():
    assert not MISSING


def test_no_case_disagrees(report):
    assert report.failures == ()
    assert report.exit_code == 0


def test_no_fewer_cases_agree_than_the_page_says(report, repository):
    text = (repository / "docs" / "results" / "witnesses.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| onnx \|.*?\n\n", text, re.S)
    page = {name: int(count) for name, count in re.findall(r"\| (.+) \| (\d+) \|", table)}
    assert report.total >= page["total"] >= 1884
    assert report.passed >= page["passed"] >= 750
    assert page["total"] == page["passed"] + sum(list(page.values())[3:])


def test_every_remainder_has_a_reason_from_the_closed_list(report):
    from ptir_testsuite.witnesses.onnx_import import Reason

    assert report.total == sum([report.passed, *report.remainder.values()])
    assert set(report.remainder) <= {str(reason) for reason in Reason} | {onnx_nodes.EXPLAINED}
    assert all(row.detail for row in report.rows if row.outcome != "passed")


def test_every_principle_explains_a_case_that_differs(report):
    explained = [row.case for row in report.rows if row.outcome == "explained"]
    assert all(principles.principle(case) for case in explained)
    for pattern, why in principles.ONNX.items():
        cases = [row for row in report.rows if fnmatch.fnmatch(row.case, pattern)]
        assert cases and all(row.outcome in ("explained", "skipped") for row in cases), why


FAULTS = {
    "exp scaled by 1 + 1e-5": ("exp", lambda y, x: y * (1 + 1e-5), "test_exp*"),
    "log off by 9 ulp": ("log", lambda y, x: y * (1 + 9 * 2.0**-23), "test_log*"),
    "tanh clipped": ("tanh", lambda y, x: np.minimum(y, 0.9), "test_*tanh*"),
    "sums scaled": ("reduce", lambda y, x: y * (1 + 1e-5), "test_reduce_sum*"),
    "products scaled": ("dot_general", lambda y, x: y * (1 + 1e-5), "test_gemm*"),
    "dots transposed": ("dot_general", lambda y, x: y[..., ::-1], "test_matmul*"),
    "add off in the last bit": ("add", lambda y, x: np.nextafter(y, 9e9), "test_add"),
    "integers divided downwards": ("div", lambda y, x: x[0] // x[1], "test_div_int32_trunc"),
    "round half away": ("round", lambda y, x: np.floor(x[0] + 0.5), "test_round"),
    "shift by one more": ("shift_right", lambda y, x: y // 2, "test_bitshift_right*"),
    "comparison flipped": ("compare", lambda y, x: ~y, "test_less*"),
    "maximum is the left": ("maximum", lambda y, x: x[0], "test_max_float32"),
    "sort reversed": ("sort", lambda y, x: y[..., ::-1], "test_top_k*"),
    "arg_max takes the last": ("arg_max", lambda y, x: y * 0 + x[0].shape[1] - 1, "test_argmax*"),
    "cast truncates": ("cast", lambda y, x: np.trunc(y.astype("f8")), "test_cast_FLOAT_to_FLOAT16"),
    "take off by one": ("take", lambda y, x: np.roll(y, 1), "test_gather_[01]"),
    "gather off by one": ("gather", lambda y, x: np.roll(y, 1), "test_gather_elements*"),
    "scatter drops": ("scatter_reduce", lambda y, x: x[0], "test_scatternd*"),
    "windows scaled": ("reduce_window", lambda y, x: y * (1 + 1e-5), "test_averagepool_1d*"),
    "patches mixed": ("extract_patches", lambda y, x: y[..., ::-1, :], "test_convtranspose*"),
    "zeros in the pad": ("pad", lambda y, x: y * (y != 1.2), "test_constant_pad"),
    "remainder of Python": ("rem", lambda y, x: np.mod(*x), "test_mod_int64_fmod"),
}


@pytest.mark.slice(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault):
    op, change, select = FAULTS[fault]

    def changed(y, x):
        return change(y, x).astype(y.dtype).reshape(y.shape)

    assert onnx_nodes.run(REF, select).failures == ()
    report = onnx_nodes.run(faulty(op, changed), select)
    assert report.failures
    assert report.exit_code == 1


def test_a_fault_in_a_result_that_a_case_never_has_is_not_noticed():
    """ONNX has no NaN in its maxima: what this witness cannot see is the suite's to find."""
    dropping = faulty("maximum", lambda y, x: np.fmax(*x))
    assert onnx_nodes.run(dropping, "test_max*").failures == ()


def test_a_case_that_agrees_in_spite_of_a_principle_is_an_error(monkeypatch):
    monkeypatch.setitem(principles.ONNX, "test_abs", "of no reason")
    (row,) = onnx_nodes.run(REF, "test_abs").rows
    assert (row.outcome, row.reason) == ("failed", onnx_nodes.STALE)


class CoreOnly(RefBackend):
    """Takes no dtype beyond the core's and no composite."""

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        types = (*query.operands, *query.results)
        wide = [t.dtype.name for t in types if t.dtype not in core_dtypes()]
        reason = f"{wide[0]} is not taken here" if wide else super().refusal(query, device)
        return "composites are not taken here" if query.is_composite else reason


def test_what_a_backend_refuses_is_attempted_and_no_pass():
    backend = CoreOnly()
    target = Target(backend, backend.devices()[0])
    assert onnx_nodes.run(target, "test_gelu_*").remainder == {}
    report = onnx_nodes.run(target, "test_cast_FLOAT_to_DOUBLE")
    (row,) = report.rows
    assert (row.outcome, row.reason) == ("refused", onnx_nodes.REFUSED)
    assert "f64" in row.detail or "cast" in row.detail
    assert (report.attempted, report.passed, report.exit_code) == (1, 0, 3)


def test_a_selection_is_incomplete_and_no_selection_is_no_success():
    assert onnx_nodes.run(REF, "test_abs").exit_code == 3
    assert onnx_nodes.run(REF, "nothing").exit_code == 3


def test_without_onnx_the_report_is_incomplete(monkeypatch):
    monkeypatch.setattr(onnx_nodes, "available", lambda: "onnx is not installed: pip install it")
    report = onnx_nodes.run(REF)
    assert (report.total, report.exit_code) == (0, 3)
    assert "pip install" in report.table()


def test_an_operator_of_the_case_reads_static_inputs_and_drops_them():
    (case,) = [case for case in onnx_nodes.cases() if case.name == "test_slice"]
    imported = onnx_nodes.import_case(case)
    assert list(imported.inputs) == ["x"]
    assert [i.op for i in imported.program.main.instructions] == ["slice"]


@pytest.fixture
def by_name(monkeypatch):
    monkeypatch.setattr("ptir.backend.registry.get", lambda name: REF)


def test_the_command_prints_the_table(by_name):
    done = CliRunner().invoke(main, ["onnx", "--backend", "ref", "--select", "test_abs"])
    assert done.exit_code == 3, done.output
    assert "| passed | 1 |" in done.output


def test_the_command_prints_json(by_name):
    done = CliRunner().invoke(main, ["umath", "--backend", "ref", "--json"])
    assert done.exit_code == 0
    value = json.loads(done.output)
    assert value["passed"] == value["attempted"] > 3000
    assert Counter(row["outcome"] for row in value["rows"])["passed"] == len(
        [row for row in value["rows"] if row["outcome"] == "passed"]
    )


def test_the_command_refuses_what_it_does_not_know(by_name):
    assert CliRunner().invoke(main, ["hearsay", "--backend", "ref"]).exit_code == 2
    refused = CliRunner().invoke(main, ["umath", "--backend", "ref", "--select", "x"])
    assert refused.exit_code == 2
    assert "takes no --select" in refused.output


def test_a_report_counts_rows_that_stand_for_many():
    rows = (
        Row("a", "passed", count=3),
        Row("b", "refused", "why", count=2),
        Row("c", "failed", "x"),
    )
    report = Report("w", "s", "b", rows)
    assert (report.total, report.attempted, report.passed) == (6, 6, 3)
    assert report.remainder == {"why": 2, "x": 1}
    assert report.exit_code == 1
