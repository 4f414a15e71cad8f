"""Regions: which runs, how often, on what; composites and custom calls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptir.errors import TypeRuleError, UnsupportedError
from ptir.ir.graph import freeze, source
from ptir.ops import control, layout, movement, reduction
from ptir.ops.numerics import arrays as xp
from ptir.ops.record import OPS
from ptir.types import spec

RECORDS = (control.cond, control.while_, control.composite, control.custom_call)
FLAG = spec("bool")


def run(block, calls=None):
    """A callable for a region that counts how often it ran."""

    def region(*operands):
        if calls is not None:
            calls.append(operands)
        values = list(operands)
        for i in block.instructions:
            regions = {"regions": tuple(map(run, i.regions))} if i.regions else {}
            arguments = [values[v] for v in i.operands]
            results = OPS[i.op].reference(xp, *arguments, **regions, **i.attributes)
            values.extend(results if isinstance(results, tuple) else (results,))
        return tuple(values[v] for v in block.outputs)

    return region


@pytest.mark.parametrize(
    ("record", "case"), [(r, c) for r in RECORDS for c in r.samples], ids=lambda v: ""
)
def test_samples_give_their_literal_results(record, case):
    types = [operand.type for operand in case.operands]
    inferred = record.infer(types, record.bind(case.attributes), case.regions)
    assert inferred == tuple(g.type for g in case.gives)
    operands = [operand.numpy() for operand in case.operands]
    found = record.reference(
        xp, *operands, regions=tuple(map(run, case.regions)), **record.bind(case.attributes)
    )
    assert [x.tolist() for x in found] == [g.values for g in case.gives]


@pytest.mark.parametrize(
    ("record", "case"), [(r, c) for r in RECORDS for c in r.bad_calls], ids=lambda v: ""
)
def test_bad_calls_are_refused_with_their_exact_message(record, case):
    from ptir.types import parse_type

    operands = [source(parse_type(text)) for text in case.operands]
    with pytest.raises(TypeRuleError) as caught:
        record.multi(*operands, regions=case.regions, **case.attributes)
    first = str(caught.value).splitlines()[0]
    assert first == f"{record.name}({', '.join(case.operands)}): {case.message}"
    assert caught.value.label == case.label


def region(build, *types):
    inputs = [source(t) for t in types]
    return freeze(build(*inputs), inputs)


@pytest.mark.parametrize("holds", [True, False])
def test_cond_runs_the_chosen_region_only(holds):
    then, otherwise = [], []
    vector = spec("f32", 3)
    turned = region(lambda x: [layout.reverse(x, axes=(0,))], vector)
    kept = region(lambda x: [x], vector)
    found = control.cond.reference(
        xp,
        np.array(holds),
        np.array([1.0, -2.0, 3.0], np.float32),
        regions=(run(turned, then), run(kept, otherwise)),
    )
    assert found[0].tolist() == ([3.0, -2.0, 1.0] if holds else [1.0, -2.0, 3.0])
    assert (len(then), len(otherwise)) == ((1, 0) if holds else (0, 1))


@settings(max_examples=20)
@given(st.integers(0, 6))
def test_while_runs_its_body_once_per_true_condition(times):
    flags, line = spec("bool", 6), spec("i32", 7)
    asked, done = [], []
    condition = region(lambda f, x: [reduction.reduce(f, axes=(0,), kind="any")], flags, line)

    def build(left, x):
        none = movement.slice(left, starts=(0,), limits=(1,))
        shorter = movement.slice(left, starts=(1,), limits=(6,))
        empty = reduction.reduce(
            movement.slice(none, starts=(0,), limits=(0,)), axes=(0,), kind="any"
        )
        rotated = [movement.slice(x, starts=s, limits=e) for s, e in (((1,), (7,)), ((0,), (1,)))]
        return [
            movement.pad(shorter, empty, low=(0,), high=(1,)),
            movement.concat(*rotated, axis=0),
        ]

    body = region(build, flags, line)
    _, found = control.while_.reference(
        xp,
        np.arange(6) < times,
        np.arange(7, dtype=np.int32),
        regions=(run(condition, asked), run(body, done)),
    )
    assert (len(asked), len(done)) == (times + 1, times)
    assert found.tolist() == [(i + times) % 7 for i in range(7)]


def test_composites_nest_and_print_their_own_name():
    vector = spec("f32", 3)
    inner = region(lambda x: [layout.reverse(x, axes=(0,))], vector)
    outer = region(
        lambda x: control.composite.multi(x, regions=(inner,), name="turn", once=True), vector
    )
    assert outer.instructions[0].name == "turn"
    x = np.array([1, -2, 3], np.float32)
    (found,) = control.composite.reference(xp, x, regions=(run(outer),), name="outer")
    assert found.tolist() == [3, -2, 1]


def test_open_attributes_may_have_any_name():
    x = np.zeros(2, np.float32)
    same = region(lambda x: [x], spec("f32", 2))
    assert control.composite.reference(xp, x, regions=(run(same),), name="a", xp=1)[0] is x


def test_custom_calls_have_the_results_they_declare_and_no_portable_meaning():
    x = source(spec("f32", 2))
    attributes = {"target": "vendor.norms.fused_norm.v12", "results": ("bf16[2,3]", "i32[]")}
    first, second = control.custom_call.multi(x, eps=0.5, **attributes)
    assert (first.type, second.type) == (spec("bf16", 2, 3), spec("i32"))
    assert first.node.attributes["eps"] == 0.5
    with pytest.raises(UnsupportedError) as caught:
        control.custom_call.reference(xp, np.zeros(2), **first.node.attributes)
    assert str(caught.value) == (
        "custom_call 'vendor.norms.fused_norm.v12' has no reference; "
        "use a backend that implements it"
    )


@pytest.mark.parametrize(
    "target", ["a.b.v0", "a.b", "b.v1", "a..b.v1", "a.b.v1.v", "A.b.v1", "a.b.v1\n", ""]
)
def test_custom_call_targets_are_namespaced_and_versioned(target):
    with pytest.raises(TypeRuleError, match="must be namespaced and versioned"):
        control.custom_call(source(spec("f32")), target=target, results=("f32[]",))


def test_variadic_ops_take_no_operands_where_their_rule_allows():
    made = control.custom_call(target="vendor.now.v1", results=("i32[]",))
    assert made.type == spec("i32")
    block = region(lambda: [made])
    assert control.composite(regions=(block,), name="now").type == spec("i32")
    assert control.cond(source(FLAG), regions=(block, block)).type == spec("i32")
