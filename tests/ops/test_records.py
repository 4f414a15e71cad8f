"""Every op record checked from its own table: samples, refusals, decompositions, documentation."""

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

from comparing import assert_same, assert_within, reference, run_block
from ptir import ops
from ptir.errors import PluginError, TypeRuleError
from ptir.ir.graph import Ref, freeze, source
from ptir.ops.classes import ANY
from ptir.ops.record import OPS, define
from ptir.types import TensorType, dtype_of, parse_type
from together import together

RECORDS = [pytest.param(record, id=name) for name, record in OPS.items()]
SAMPLES = [
    pytest.param(record, example, id=f"{name}-{number}")
    for name, record in OPS.items()
    for number, example in enumerate(record.samples)
]
BAD_CALLS = [
    pytest.param(record, call, id=f"{name}-{call.label}-{number}")
    for name, record in OPS.items()
    for number, call in enumerate(record.bad_calls)
]
FAMILIES = sorted(Path(ops.__file__).parent.glob("[a-z]*.py"))


def sources(types):
    return [source(t) for t in types]


@together()
@pytest.mark.parametrize("record", RECORDS)
def test_every_record_is_documented_and_exemplified(record):
    assert record.doc.strip().endswith(".")
    assert record.bad_calls and record.traits
    assert record.samples or record.name == "custom_call"  # which only backends can run
    assert all(attribute.doc for attribute in record.attributes)


@together()
@pytest.mark.parametrize("record", RECORDS)
def test_accuracy_classes_are_from_the_published_set(record):
    kind, _, bound = record.accuracy.partition(":")
    assert kind in ("exact", "rounded", "ulp", "rounded or ulp", "dot", "sum"), record.accuracy
    assert ("ulp" in kind) == bool(bound) and float(bound or 1) >= 1


@together("record")
@pytest.mark.parametrize(("record", "example"), SAMPLES)
def test_meaning_gives_the_literal_results(record, example):
    operands = [a.numpy() for a in example.operands]
    before = [a.copy() for a in operands]
    found = reference(record, operands, example.attributes, example.regions)
    assert_within(record, found, [a.numpy() for a in example.gives])
    assert_same(operands, before)


@together("record")
@pytest.mark.parametrize(("record", "example"), SAMPLES)
def test_type_rule_gives_the_types_of_the_results(record, example):
    operands = sources(a.type for a in example.operands)
    refs = record.multi(*operands, regions=example.regions, **example.attributes)
    assert [r.type for r in refs] == [a.type for a in example.gives]
    (node,) = {ref.node.serial: ref.node for ref in refs}.values()
    assert (node.op, node.operands) == (record.name, tuple(operands))


@together("record")
@pytest.mark.parametrize(
    ("record", "example"), [p for p in SAMPLES if p.values[0].decomposition is not None]
)
def test_decomposition_of_samples_equals_meaning(record, example):
    operands = sources(a.type for a in example.operands)
    attributes = record.bind(example.attributes)
    regions = {"regions": example.regions} if example.regions else {}
    given = record.decomposition(*operands, **attributes, **regions)
    outputs = [given] if isinstance(given, Ref) else list(given)
    block = freeze(outputs, operands)
    arrays = [a.numpy() for a in example.operands]
    assert record.name not in {i.op for i in block.instructions}
    assert block.output_types == tuple(a.type for a in example.gives)
    wanted = reference(record, arrays, attributes, example.regions)
    assert_within(record, run_block(block, arrays), wanted)


@together("record")
@pytest.mark.parametrize(("record", "call"), BAD_CALLS)
def test_bad_call_names_the_call_the_rule_and_the_users_line(record, call):
    types = [parse_type(text) for text in call.operands]
    with pytest.raises(TypeRuleError) as caught:
        line = inspect.currentframe().f_lineno + 1
        record.multi(*sources(types), regions=call.regions, **call.attributes)
    message, _, where = str(caught.value).partition("\n  at ")
    assert where == f"{__file__}:{line}"
    assert caught.value.label == call.label
    shown = "" if call.label == "attribute" else ", ".join(call.operands)
    assert message == f"{record.name}({shown}): {call.message}"


def labels_of(function, seen=()):
    """The constraint labels in a rule and in the functions of its module that it calls."""
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        at = {"require": 1, "fail": 0}.get(name)
        if at is not None and isinstance(node.args[at], ast.Constant):
            found.add(node.args[at].value)
        elif name == "axis":
            found.add("axis")
        elif name in ("integers", "axes"):
            found.add(node.args[0].value)
        inner = function.__globals__.get(name) if isinstance(node.func, ast.Name) else None
        if inspect.isfunction(inner) and inner not in seen:
            found |= labels_of(inner, (*seen, function))
    return found


@together()
@pytest.mark.parametrize("record", RECORDS)
def test_every_constraint_is_violated_by_a_bad_call(record):
    needed = labels_of(record.rule)
    if not record.variadic:
        needed.add("arity")
    if any(allowed != ANY for allowed in record.dtypes.values()):
        needed.add("dtype")
    if any(a.choices for a in record.attributes):
        needed.add("attribute")
    if len(record.operands) == 1:  # same_type has nothing to refuse
        needed -= {"dtypes", "shapes"}
    assert needed <= {call.label for call in record.bad_calls}, needed


def test_unknown_and_missing_attributes_are_refused_by_name():
    x = source(parse_type("f32[2]"))
    with pytest.raises(TypeRuleError, match=r"unknown attribute 'dtyp' \(nearest: dtype\)"):
        ops.cast(x, dtyp="f32")
    with pytest.raises(TypeRuleError, match="attribute 'dtype' is missing: element type"):
        ops.cast(x)


def test_every_op_is_a_builder_of_the_ops_module():
    names = set(dir(ops))
    for name, record in OPS.items():
        public = f"{name}_" if name in ("and", "or", "not", "while") else name
        assert getattr(ops, public) is record
        assert public in names


def test_a_misspelled_op_is_an_attribute_error_with_the_nearest_names():
    with pytest.raises(AttributeError, match=r"unknown op 'ad' \(nearest: .*add"):
        ops.ad  # noqa: B018 - the access itself is what fails


def test_a_name_cannot_be_defined_twice():
    record = OPS["neg"]
    with pytest.raises(PluginError, match="op 'neg' is defined twice; choose another name"):
        define(
            "neg", "x", dtypes=record.dtypes, rule=record.rule, reference=record.reference, doc="."
        )


def test_scalars_and_empty_tensors_are_arrays_of_the_rules_type():
    for record in OPS.values():
        if "elementwise" not in record.traits:
            continue
        example = record.samples[0]
        for shape in ((), (0,), (2, 0)):
            operands = [
                np.resize(a.numpy(), (1,))[0 : int(shape == ())].reshape(shape)
                for a in example.operands
            ]
            types = [TensorType(dtype_of(a), shape) for a in operands]
            (expected,) = record.infer(types, example.attributes)
            (found,) = reference(record, operands, example.attributes, ())
            assert isinstance(found, np.ndarray)
            assert (dtype_of(found), found.shape) == (expected.dtype, shape), record.name
