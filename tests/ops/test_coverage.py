"""What the op table holds, counted: samples, choices, bad calls; and every dtype runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ptir
from comparing import assert_same, assert_within, reference
from evaluation import evaluate
from ptir.capture import run_program
from ptir.errors import TypeRuleError
from ptir.ir.graph import freeze, source
from ptir.ir.jsonform import to_json
from ptir.ir.program import Port, Program
from ptir.ops.classes import ANY, COMMON, FLOAT, INTEGER, NUMERIC
from ptir.ops.profiles import PROFILES, core_dtypes, primitives, profiles_of
from ptir.ops.reading import from_json
from ptir.ops.record import OPS, literal
from ptir.rewrite.engine import rewrite
from ptir.rewrite.rules import EXACT
from ptir.types import DTYPES, dtype_of
from sample_calls import FOR_ITS_OWN_DTYPE, calls_in
from together import together

RECORDS = [pytest.param(record, id=name) for name, record in OPS.items()]
RUNNABLE = [p for p in RECORDS if p.values[0].samples]


@together()
@pytest.mark.parametrize("record", RUNNABLE)
def test_op_has_two_samples_and_one_for_every_choice(record):
    assert len(record.samples) >= 2
    for attribute in record.attributes:
        shown = {s.attributes.get(attribute.name, attribute.default) for s in record.samples}
        assert set(attribute.choices) <= shown, attribute.name


@together()
@pytest.mark.parametrize("record", RUNNABLE)
def test_optional_attributes_are_given_and_left_out(record):
    for attribute in record.attributes:
        if attribute.default is not ptir.ops.record.REQUIRED:
            given = {attribute.name in sample.attributes for sample in record.samples}
            assert given == {True, False}, attribute.name


def dtypes_in(sample) -> set[str]:
    arrays = (*sample.operands, *sample.gives)
    return {array.dtype for array in arrays}


@together()
@pytest.mark.parametrize("record", RUNNABLE)
def test_samples_show_wide_narrow_and_float_dtypes(record):
    """A sample beyond bool, i32, u32 and f32 for every kind of dtype that the op takes."""
    if record.regions:
        return
    allowed = {d for members in record.dtypes.values() for d in members}
    shown = {DTYPES[name] for sample in record.samples for name in dtypes_in(sample)}
    kinds = [{d.is_float for d in found - core_dtypes()} for found in (allowed, shown)]
    assert kinds[0] <= kinds[1]


def program(record, arrays, attributes, regions):
    inputs = [source(ptir.types.TensorType(dtype_of(a), a.shape)) for a in arrays]
    results = record.multi(*inputs, regions=regions, **attributes)
    ports = tuple(Port(f"p{number}") for number in range(len(inputs)))
    return Program(freeze(list(results), inputs), ports)


EVERY = [
    pytest.param(record, dtype, id=f"{name}-{dtype}")
    for name, record in OPS.items()
    for dtype in DTYPES.values()
    if record.samples and any(dtype in members for members in record.dtypes.values())
]


@pytest.mark.slice(24)
@together("record")
@pytest.mark.parametrize(("record", "dtype"), EVERY)
def test_every_dtype_of_the_record_runs_on_the_reference_backend(record, dtype):
    """As a program: written, read again, through all passes, and run: as the reference says."""
    backend = ptir.backend("ref")
    ran = 0
    for arrays, attributes, regions in calls_in(record, dtype):
        try:
            written = program(record, arrays, attributes, regions)
        except TypeRuleError as error:
            # a sample may ask for what only its own dtype has: a width, a kind, a target
            assert error.label in FOR_ITS_OWN_DTYPE, error
            continue
        assert ptir.parse(str(written)) == written
        assert from_json(json.loads(json.dumps(to_json(written)))) == written
        named = {f"p{number}": array for number, array in enumerate(arrays)}
        found = run_program(written, named, backend)
        with np.errstate(all="ignore"):
            wanted = reference(record, arrays, record.bind(attributes), regions)
        assert_within(record, found, [np.asarray(a) for a in wanted])
        ran += 1
    assert ran


FOLDED = [
    p
    for p in EVERY
    if not p.values[0].regions and p.values[0].operands  # creation has nothing to fold
]


@pytest.mark.slice(24)
@together("record")
@pytest.mark.parametrize(("record", "dtype"), FOLDED)
def test_constants_fold_to_the_meaning_in_every_dtype(record, dtype):
    folds = 0
    for arrays, attributes, _ in calls_in(record, dtype):
        constants = [OPS["constant"](value=literal(array)) for array in arrays]
        try:
            results = record.multi(*constants, **attributes)
        except TypeRuleError:
            continue
        counts: dict[str, int] = {}
        block = rewrite(freeze(list(results), []), EXACT, counts)
        with np.errstate(all="ignore"):
            wanted = reference(record, arrays, record.bind(attributes), ())
        assert_same(evaluate(block, []), [np.asarray(a) for a in wanted])
        folds += bool(counts)
    assert folds or record.name == "broadcast_to"


def test_dtype_classes():
    assert len(ANY) == len(DTYPES) == 15
    assert {d.name for d in ANY - COMMON} == {"f8e4m3fn", "f8e5m2"}
    assert FLOAT | INTEGER == NUMERIC
    f8 = {
        name
        for name, record in OPS.items()
        if any(c >= ANY - COMMON for c in record.dtypes.values())
    }
    assert f8 >= {"cast", "bitcast", "constant", "reshape", "transpose", "slice", "pad", "take"}
    assert not f8 & {"add", "compare", "select", "reduce", "sort", "iota", "dot_general"}


def test_accuracy_of_each_dtype():
    f16, bf16, f32, f64, i8 = (DTYPES[n] for n in ("f16", "bf16", "f32", "f64", "i8"))
    expected = {
        "exp": ("ulp:1", "ulp:3"),
        "sqrt": ("rounded or ulp:1", "rounded or ulp:3"),
        "div": ("rounded or ulp:1", "rounded or ulp:2.5"),
        "add": ("rounded", "rounded"),
        "dot_general": ("dot", "dot"),
        "maximum": ("exact", "exact"),
    }
    for name, (narrow, wide) in expected.items():
        found = [OPS[name].accuracy_of(d) for d in (f16, bf16, f32, f64)]
        assert found == [narrow, narrow, wide, wide]
    assert OPS["pow"].accuracy_of(i8) == OPS["dot_general"].accuracy_of(DTYPES["bool"]) == "exact"


def test_extremes_are_exact_where_sums_are_not():
    for name, kinds in (("reduce", {"max", "min"}), ("cumulative", {"max"})):
        assert OPS[name].accuracy_of(DTYPES["bf16"]) == "dot"
        for kind in ("sum", *kinds):
            wanted = "exact" if kind in kinds else "dot"
            assert OPS[name].accuracy_of(DTYPES["bf16"], {"kind": kind}) == wanted
    for record in OPS.values():
        choices = {c for a in record.attributes if a.name == "kind" for c in a.choices}
        assert set(record.exact_kinds) <= choices
        lost = (choices & {"max", "min"}) - set(record.exact_kinds)
        assert not lost or record.accuracy == "exact", record.name


def test_profiles_of_calls():
    kinds = {"f16", "bf16", "f64", "int8", "int64", "f8"}
    by_dtype = {name: profiles_of(OPS["cast"], [d]) - {"core"} for name, d in DTYPES.items()}
    assert set().union(*by_dtype.values()) == kinds
    assert [n for n, p in by_dtype.items() if not p] == ["bool", "i32", "u32", "f32"]
    assert by_dtype["u16"] == {"int8"} and by_dtype["i64"] == {"int64"}
    assert profiles_of(OPS["sort"], [DTYPES["f16"], DTYPES["i32"]]) == {"sort", "f16"}
    assert profiles_of(OPS["while"], []) == {"control-flow"}
    assert {record.profile for record in OPS.values()} <= set(PROFILES)
    assert all(text and "\n" not in text for text in PROFILES.values())
    assert {record.name for record in primitives("sort")} == {"sort"}
    assert primitives("rng") == ()
