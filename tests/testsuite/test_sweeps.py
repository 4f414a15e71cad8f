"""Sweeps: derived from any op's record, judged in turns and by threads, named when they fail."""

from __future__ import annotations

import contextlib
import pickle
import re
import threading

import numpy as np
import pytest
from suite_settings import setting_of

from ptir.ops import OPS
from ptir.ops.verify import verify
from ptir.types import parse_type
from ptir_testsuite.corpus.composites import CompositeCall
from ptir_testsuite.corpus.needs import EDGES, LINE, NEEDS, SIZES, parts_of
from ptir_testsuite.corpus.owed import swept
from ptir_testsuite.corpus.resizing import dimensions, rank_of, resized, stretched, with_axis
from ptir_testsuite.corpus.sweeps import LETTERS, sweeps_of
from ptir_testsuite.corpus.variants import from_samples
from ptir_testsuite.corpus.views import VIEWS, view_of
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant
from ptir_testsuite.mutants.score import grade
from ptir_testsuite.mutants.turns import Caching, Crowded, Hoarding, Slicing, Third
from ptir_testsuite.oracles import ORACLES, Given
from ptir_testsuite.oracles.sums import FORMATS, running_sums, sum_of
from ptir_testsuite.running import replay
from ptir_testsuite.running.finding import item_of
from ptir_testsuite.running.items import described, profiles, run_item
from ptir_testsuite.running.judge import evaluated
from ptir_testsuite.running.kinds.lifetime import lifetimes
from ptir_testsuite.running.outcomes import Outcome


def of(op, need=""):
    return [sweep for sweep in sweeps_of(OPS[op]) if need in ("", sweep.need)]


def template_of(op, *types):
    wanted = tuple(map(parse_type, types))
    return next(t for t in from_samples(OPS[op]) if t.types == wanted)


def test_the_contracted_axes_of_a_product_are_one_dimension():
    product = template_of("dot_general", "f32[2,3]", "f32[3,2]")
    assert sorted(dimensions(product)) == [((0, 0),), ((0, 1), (1, 0)), ((1, 1),)]
    larger = resized(product, ((0, 1), (1, 0)), 17)
    assert [t.shape for t in larger.types] == [(2, 17), (17, 2)]


def test_an_axis_grows_with_the_limit_of_its_slice():
    sliced = template_of("slice", "f32[3,4]")
    assert ((0, 0), ("limits", 0)) in dimensions(sliced)


def test_a_size_that_no_type_rule_takes_is_no_call():
    product = template_of("dot_general", "f32[2,3]", "f32[3,2]")
    assert resized(product, ((0, 1),), 17) is None


@pytest.mark.parametrize("op", ["transpose", "dynamic_slice", "broadcast_to", "rng_bits", "pad"])
@pytest.mark.parametrize("front", [True, False])
def test_a_call_gets_one_more_axis(op, front):
    template = next(t for t in from_samples(OPS[op]) if rank_of(t) > 1)
    larger = with_axis(template, 3, front)
    assert rank_of(larger) == rank_of(template) + 1
    assert all(type.size for type in larger.results)


def test_an_axis_of_size_one_is_repeated_by_broadcasts():
    wide = with_axis(template_of("broadcast_to", "f32[3]"), 2, False)
    assert (1, 2) in {t.types[0].shape for t in stretched(wide)}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_of_the_wanted_type(name):
    wanted = parse_type("f32[2,3,4]")
    source, op, attributes = view_of(name, wanted)
    assert OPS[op].infer([source], attributes, ()) == (wanted,)
    assert view_of(name, parse_type("f32[]")) is None


def test_every_op_of_its_own_sizes_is_owed_sweeps_and_has_them():
    for name in ("exp", "reduce", "rng_bits", "quantize"):
        owed = dict(swept(OPS[name], 1))
        assert len([text for text in owed if text.startswith("sizes beside")]) == len(EDGES)
        assert all(owed.values()), owed
    assert not [*swept(OPS["while"], 1)]


def test_an_op_without_its_ranks_is_a_hole(monkeypatch):
    monkeypatch.setitem(NEEDS, "ranks", NEEDS["nan"])
    parts_of.cache_clear()
    try:
        holes = {text for text, met in swept(OPS["exp"], 1) if not met}
    finally:
        monkeypatch.undo()
        parts_of.cache_clear()
    assert {"rank 5", "rank 6"} <= holes


def test_sweeps_are_programs_with_ids_of_their_content_that_find_them():
    found = [*of("exp"), *of("iota")]
    ids = [sweep.id for sweep in found]
    assert len(set(ids)) == len(ids) and {sweep.need for sweep in of("exp")} <= set(NEEDS)
    for sweep in found:
        verify(sweep.program)
        assert pickle.loads(pickle.dumps(sweep)) == sweep
        assert sweep.id.startswith(f"{sweep.op}-{sweep.need}-")
    assert item_of(ids[0]) == found[0] and "core" in profiles(found[0])
    assert "sweep" in described(found[0]) and "f32" in described(found[0])


def test_the_two_sets_of_operands_differ():
    for sweep in (*of("add"), *of("dynamic_slice", "edges")):
        one, other = (sweep.drawn(letter).arrays for letter in LETTERS)
        assert all(
            a.dtype == b.dtype and a.shape == b.shape for a, b in zip(one, other, strict=True)
        )
        assert any(a.tobytes() != b.tobytes() for a, b in zip(one, other, strict=True))


def test_sizes_beside_every_edge_are_met():
    sizes = {n for sweep in of("exp", "edges") for t in sweep.program.inputs for n in t.shape}
    assert set(SIZES) == sizes


def test_nan_is_at_every_place_of_a_line_once():
    (whole, *_) = [p.template for p in of("reduce", "nan")[0].parts]
    assert whole.types[0].shape == (LINE, LINE)
    array = of("reduce", "nan")[0].drawn("A").arrays[0]
    rows, columns = np.nonzero(np.isnan(array))
    assert sorted(rows) == sorted(columns) == list(range(LINE))


def test_an_oracle_that_sees_equal_operands_once_says_the_same():
    values = np.resize(np.linspace(-3, 3, 61, dtype=np.float32), (600,))
    type = parse_type("f32[600]")
    given = Given("exp", (values,), (type,), {}, (type,))
    (one,), (whole,) = evaluated(given), ORACLES["exp"](given)
    assert one.values.tobytes() == whole.values.tobytes()
    assert one.exact.tobytes() == whole.exact.tobytes()


def test_running_sums_are_the_sums_of_what_they_run_over():
    for values in (
        [1.0, -1.0, 2.0**-30, 3e38, 3e38],
        [1.0, np.inf, 2.0, -np.inf, 1.0],
        [np.nan, 1],
    ):
        found = running_sums([float(v) for v in values], FORMATS["f32"])
        for place, one in enumerate(found):
            wanted = sum_of([float(v) for v in values[: place + 1]], FORMATS["f32"])
            assert str(one.outcome) == str(wanted.outcome) or _equal(one.outcome, wanted.outcome)
            assert (one.terms, one.magnitude, one.free) == (
                wanted.terms,
                wanted.magnitude,
                wanted.free,
            )


def _equal(one, other):
    return one[0] * other[1] == other[0] * one[1]


@pytest.mark.parametrize("op", ["add", "reverse", "dynamic_slice"])
def test_a_right_backend_passes(op):
    setting = setting_of(Correct())
    for sweep in of(op):
        found = run_item(sweep, setting)
        assert found.outcome is Outcome.PASS, found.message
        assert found.op == op and found.claimed


FOUND_BY = {
    "one element of a large sum is zero": "add-edges",
    "iota of rank 3 counts down": "iota-ranks",
    "select of rank 4 takes one side": "select-ranks",
    "floor reads a view as if it were dense": "floor-views",
    "maximum misses a NaN behind whole vectors": "maximum-nan",
}
"""The cheapest of the plants that sweeps are to show; ``ptir-conformance mutants`` grades all."""


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_plant_is_rejected_by_a_sweep_of_its_op(name):
    found = grade(MUTANTS[name])
    assert found.right and found.caught.startswith(FOUND_BY[name]), found
    assert found.outcome is Outcome.MISMATCH


def test_a_failure_names_the_value_and_the_sweep():
    setting = setting_of(Mutant(MUTANTS["one element of a large sum is zero"]))
    failed = next(row for s in of("add") if (row := run_item(s, setting)).failed)
    assert "add is wrong in 1 of 5003 elements; worst [2501]" in failed.message
    assert failed.message.endswith(f"case {failed.case}")


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize(
    ("backend", "item", "text"),
    [
        (Third, lambda: of("neg", "ranks")[0], "run 3 of 5 gave other bits"),
        (Slicing, lambda: of("dynamic_slice", "nan")[0], "run 3 of 5 gave other bits"),
        (Caching, lambda: CompositeCall("cache_update", 0), "run 3 of 5 gave other bits"),
        (Hoarding, lambda: [*lifetimes("memory")][1], "a leak: .* the process grew by"),
    ],
    ids=["third run", "starts of a slice", "starts of a cache", "process"],
)
def test_what_runs_leave_behind_is_found(backend, item, text):
    found = run_item(item(), setting_of(backend()))
    assert found.outcome is Outcome.MISMATCH and re.search(text, found.message), found.message


def test_threads_that_share_a_scratch_are_found(monkeypatch):
    """The scratch is left to the other threads for as long as it takes them to come by."""
    met = threading.Barrier(2)

    def wait(_seconds):
        if threading.current_thread() is not threading.main_thread():
            with contextlib.suppress(threading.BrokenBarrierError):
                met.wait(1.0)

    monkeypatch.setattr("ptir_testsuite.mutants.turns.time.sleep", wait)
    found = run_item(of("dot_general", "ranks")[0], setting_of(Crowded()))
    assert found.outcome is Outcome.MISMATCH
    assert "beside other threads" in found.message


def test_a_replay_tells_what_a_sweep_is():
    sweep = of("neg", "ranks")[0]
    lines = list(replay._told(sweep, None, setting_of(Correct()), 4))
    assert lines[0] == "neg: 7 calls, every rank"
    assert lines[1] == "rule: right on operands A and B; runs on ABBAB, then threads at once"
    assert any(line.strip().startswith("program(") for line in lines)
