"""NumPy's umath tables on the reference backend, and whether their grader notices faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from witnesses import faulty

from ptir.ops.record import OPS
from ptir.types import DTYPES
from ptir_testsuite.witnesses import umath
from running import REF

FUNCTIONS = ("cos", "exp", "expm1", "log", "log1p", "sin", "tanh")


@pytest.fixture(scope="module")
def report():
    return umath.run(REF)


def test_every_row_of_our_functions_is_within_its_accuracy_class(report):
    assert report.failures == ()
    assert not report.incomplete
    passed = {row.case for row in report.rows if row.outcome == "passed"}
    ours = {f"{f} {d}" for f in FUNCTIONS for d in ("f32", "f64") if DTYPES[d] in _dtypes(f)}
    assert passed == ours


def _dtypes(function: str):
    return OPS[function].dtypes["operand"]


def test_the_rows_of_our_functions_are_all_there(report):
    counts = {row.case: row.count for row in report.rows}
    f32 = sum(counts[f"{function} f32"] for function in FUNCTIONS)
    f64 = sum(counts[f"{function} f64"] for function in FUNCTIONS)
    assert (f32, f64) == (3699, 3947)


def test_what_is_not_tried_has_a_reason(report):
    assert report.total == sum([report.passed, *report.remainder.values()])
    assert set(report.remainder) <= {umath.NO_OP, umath.NO_DTYPE}


def test_a_numpy_without_tables_is_incomplete_and_no_pass(tmp_path):
    report = umath.run(REF, tmp_path / "nothing")
    assert report.total == 0
    assert str(tmp_path) in report.incomplete
    assert report.exit_code == 3


FAULTS = {
    "exp scaled by 1 + 1e-6": ("exp", lambda y, x: (y * (1 + 1e-6)).astype(y.dtype)),
    "log of zero finite": ("log", lambda y, x: np.nan_to_num(y, neginf=-103.0)),
    "sin loses the sign of zero": ("sin", lambda y, x: y + y.dtype.type(0)),
    "tanh gives NaN at the end": ("tanh", lambda y, x: np.where(np.abs(y) == 1, np.nan, y)),
    "cos of large angles": ("cos", lambda y, x: np.where(np.abs(x[0]) > 1e4, 0, y)),
    "subnormals flushed": ("expm1", lambda y, x: np.where(np.abs(y) < 1.2e-38, y * 0, y)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault):
    op, change = FAULTS[fault]
    report = umath.run(faulty(op, lambda y, x: change(y, x).astype(y.dtype)))
    assert {row.case.split()[0] for row in report.failures} == {op}
    assert report.exit_code == 1


def test_a_result_of_another_type_is_noticed():
    report = umath.run(faulty("exp", lambda y, x: y.astype(np.float16)))
    assert {row.reason for row in report.failures} == {umath.NO_RESULT}
    assert "gave an array of float16[129]; it must be float32[129]" in report.failures[0].detail


def test_distance_counts_representable_numbers():
    def distance(a: float, b: float) -> float:
        pair = (np.array([v], np.float32) for v in (a, b))
        return float(umath.distance(*pair)[0])

    tiny = np.float32(1e-45)
    assert distance(1.0, np.nextafter(np.float32(1), np.float32(2))) == 1
    assert distance(-tiny, tiny) == 2
    assert distance(0.0, -0.0) == distance(np.nan, 1.0) == distance(np.inf, 3e38) == np.inf
    assert distance(np.nan, np.nan) == distance(np.inf, np.inf) == distance(-0.0, -0.0) == 0


def test_a_malformed_table_names_its_line(tmp_path: Path):
    table = tmp_path / "umath-validation-set-exp.csv"
    table.write_text(
        "dtype,input,output,ulperrortol\nnp.float32,0x0,0x3f800000,1\nnp.float8,1,2,3\n"
    )
    with pytest.raises(ValueError, match=r"exp\.csv:3: 'np\.float8,1,2,3' is not"):
        list(umath.read(table))
