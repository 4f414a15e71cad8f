"""The corpus around overflow and its pairs of attributes: they are there, and tell."""

from __future__ import annotations

import math

import numpy as np
import pytest
from suite_settings import setting_of

from ptir.ops import OPS
from ptir.types import DTYPES
from ptir_testsuite.corpus import coverage
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.edges import above, below, edges, pairs
from ptir_testsuite.corpus.pairs import PAIRED, covering, paired, pairs_of
from ptir_testsuite.mutants import Correct
from ptir_testsuite.oracles.floats import format_of, round_float
from ptir_testsuite.running.execute import run_case

FLOATS = ("f16", "bf16", "f32", "f64")


@pytest.mark.parametrize("name", FLOATS)
def test_edges_are_numbers_of_the_format_and_straddle_overflow(name):
    format = format_of(DTYPES[name])
    found = edges(DTYPES[name])
    assert all(round_float(x, format) == x and math.isfinite(x) for x in found)
    assert {-x for x in found} == set(found) and len(found) > 400
    inside = [x for x in found if _overflows(x, format) is False]
    beyond = [x for x in found if _overflows(x, format) is True]
    assert above(max(inside), format) == min(beyond), "no neighbours on both sides of exp's end"
    for x in (format.largest, format.normal, format.tiny, math.sqrt(format.normal)):
        assert round_float(x, format) in found


def _overflows(x, format):
    """Whether exp leaves the format, for arguments near its end, by NumPy's long doubles."""
    end = np.log(np.longdouble(format.largest))
    if not 0.9 * end < x < 1.1 * end:
        return None
    half = np.ldexp(np.longdouble(1), format.emax - format.precision)
    return bool(np.exp(np.longdouble(x)) >= np.longdouble(format.largest) + half)


@pytest.mark.parametrize("name", FLOATS)
def test_neighbours_are_those_of_numpy(name):
    dtype = DTYPES[name].numpy
    format = format_of(DTYPES[name])
    for x in (1.0, 0.75, format.normal, format.tiny, format.largest, 2.0, format.normal * 3):
        exact = np.array(x, dtype)
        assert below(x, format) == float(np.nextafter(exact, np.array(-np.inf, dtype)))
        if x != format.largest:
            assert above(x, format) == float(np.nextafter(exact, np.array(np.inf, dtype)))


def test_pairs_meet_where_powers_and_products_overflow():
    found = pairs(DTYPES["f64"])
    with np.errstate(all="ignore"):
        powers = {bool(np.isinf(np.power(np.float64(x), y))) for x, y in found if 0 < x != 1}
    assert powers == {False, True}
    assert (math.sqrt(format_of(DTYPES["f64"]).largest),) * 2 in found


def test_every_elementwise_op_of_floats_meets_them():
    for op in OPS.values():
        if "elementwise" not in op.traits or len(op.operands) > 2:
            continue
        dtypes = {c.types[0].dtype.name for c in cases_of(op) if c.origin == "edges"}
        wanted = {d.name for d in op.dtypes[op.operands[0]] if d.is_float}
        assert dtypes == wanted, op.name


# --- pairs of attributes ---


def test_every_pair_meets_in_few_calls():
    values = {"a": (1, 2, 3), "b": (1, 2, 3), "c": (True, False), "d": ("x", "y", "z")}
    calls = list(covering(values))
    met = {pair for call in calls for pair in pairs_of(call)}
    assert len(met) == 3 * 3 + 3 * 2 + 3 * 3 + 3 * 2 + 3 * 3 + 2 * 3
    assert 9 <= len(calls) < 30


def test_what_does_not_fit_is_left_out():
    calls = list(covering({"a": (1, 2), "b": (1, 2)}, lambda call: call["a"] != call["b"]))
    assert sorted((c["a"], c["b"]) for c in calls) == [(1, 2), (2, 1)]


@pytest.mark.parametrize("name", PAIRED)
def test_rows_of_values_are_calls_and_the_corpus_has_them(name):
    assert paired(name), "no call of these rows is taken"
    cases = [c for c in cases_of(OPS[name]) if c.origin.startswith("pairs")]
    assert cases
    for case in cases[::7]:
        found = run_case(case, setting_of(Correct()))
        assert not found.failed, found.message


def test_a_pair_without_a_case_is_a_hole(monkeypatch):
    calls = [c for c in coverage.calls_of(OPS["pad"]) if c.attributes["interior"] is None]
    monkeypatch.setattr(coverage, "calls_of", lambda op: calls)
    holes = [need.text for need in coverage.needs([OPS["pad"]]) if not need.met]
    assert "high = (1, -2) beside interior = (3, 1)" in holes
    monkeypatch.delitem(PAIRED, "pad")
    holes = [need.text for need in coverage.needs([OPS["pad"]]) if not need.met]
    assert "rows of values for pairs of attributes" in holes
