"""Every pass and the whole pipeline keep what random programs compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluation import awkward, evaluate, same_but_for_nan
from ptir.ir.graph import Ref, freeze, source
from ptir.ir.program import Block, Port, Program
from ptir.ops.record import OPS, literal
from ptir.ops.verify import verify
from ptir.passes import PIPELINE, PassContext, optimize
from ptir.types import BF16, BOOL, F32, I32, TensorType, spec

SHAPE = (2, 3)
NUMBERS = {F32: (0.0, -0.0, 1.0, 2.0, float("inf")), I32: (0, 1, -7), BOOL: (True, False)}
UNARY = {F32: ("neg", "abs", "floor", "sqrt"), I32: ("neg", "not", "abs"), BOOL: ("not",)}
BINARY = {
    F32: ("add", "sub", "mul", "div", "minimum", "pow"),
    I32: ("add", "sub", "mul", "div", "rem", "xor", "shift_left"),
    BOOL: ("and", "or", "xor"),
}


def constant(draw: Any, kind: Any) -> Ref:
    number = draw(st.sampled_from(NUMBERS[kind]))
    value = OPS["constant"](value=literal(np.array(number, kind.numpy)))
    return OPS["broadcast_to"](value, shape=SHAPE)


def grown(draw: Any, pool: list[Ref]) -> Ref:
    """One more value made from what is there; all values are of ``SHAPE``."""
    value = draw(st.sampled_from(pool))
    kind = value.type.dtype
    alike = [other for other in pool if other.type == value.type]
    other = draw(st.sampled_from(alike))
    match draw(
        st.sampled_from(["constant", "unary", "binary", "binary", "move", "cast", "choose", "scan"])
    ):
        case "constant":
            number = constant(draw, kind)
            name = draw(st.sampled_from(BINARY[kind]))
            return OPS[name](*draw(st.permutations([value, number])))
        case "unary":
            return OPS[draw(st.sampled_from(UNARY[kind]))](value)
        case "binary":
            return OPS[draw(st.sampled_from(BINARY[kind]))](value, other)
        case "move":
            turned = OPS["transpose"](value, permutation=(1, 0))
            turned = OPS["reshape"](turned, shape=draw(st.sampled_from([(3, 2), (6,)])))
            return OPS["reshape"](turned, shape=SHAPE)
        case "cast":
            wanted = draw(st.sampled_from([F32, I32, BOOL, BF16]))
            return OPS["cast"](OPS["cast"](value, dtype=wanted), dtype=kind)
        case "scan":
            return scanned(draw, value, other)
        case _:
            test = OPS["compare"](value, other, direction=draw(st.sampled_from(["eq", "lt"])))
            if draw(st.booleans()):
                return OPS["select"](test, value, other)
            first = OPS["reduce"](test, axes=(0, 1), kind="any")
            inner = [source(value.type), source(value.type)]
            then = freeze([OPS[BINARY[kind][0]](*inner)], inner)
            otherwise = freeze([OPS[UNARY[kind][0]](OPS[UNARY[kind][0]](inner[1]))], inner)
            return OPS["cond"].multi(first, value, other, regions=(then, otherwise))[0]


def scanned(draw: Any, value: Ref, other: Ref) -> Ref:
    """A scan over the rows of ``other``; ``value`` is carried and used in every row."""
    kind = value.type.dtype
    row = source(TensorType(kind, SHAPE[1:]))
    carry = source(value.type)
    wide = OPS["broadcast_to"](row, shape=SHAPE)
    after = OPS[draw(st.sampled_from(BINARY[kind]))](carry, wide)
    unread = OPS[UNARY[kind][0]](row)
    body = freeze([after, OPS[UNARY[kind][0]](unread)], [carry, row])
    attributes = {"carries": 1, "length": SHAPE[0], "reverse": draw(st.booleans())}
    last, rows = OPS["scan"].multi(value, other, regions=(body,), **attributes)
    return draw(st.sampled_from([last, rows]))


@st.composite
def programs(draw: Any) -> Program:
    """Programs of two inputs (i32, bool) and two parameters (f32), with one composite."""
    types = [TensorType(kind, SHAPE) for kind in (I32, BOOL, F32, F32)]
    inputs = [source(t) for t in types]
    pool = list(inputs)
    for _ in range(draw(st.integers(1, 12))):
        pool.append(grown(draw, pool))
    inner = [source(spec("f32", *SHAPE)), source(spec("f32", *SHAPE))]
    lowering = freeze([OPS["neg"](OPS["sub"](*inner))], inner)
    floats = [value for value in pool if value.type.dtype == F32]
    chosen = [draw(st.sampled_from(floats)) for _ in inner]
    pool.append(OPS["composite"].multi(*chosen, regions=(lowering,), name="difference")[0])
    outputs = [pool[-1], *draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))]
    ports = [Port("i"), Port("b"), Port("v", "parameter"), Port("w", "parameter")]
    return Program(freeze(outputs, inputs), tuple(ports))


def results(program: Program, context: PassContext, arrays: dict[str, Any]) -> tuple[Any, ...]:
    """The outputs of a program, derived parameters computed from their ports."""

    def value(name: str) -> Any:
        if name in arrays:
            return arrays[name]
        derivation = context.derived[name]
        (found,) = evaluate(derivation.block, [value(port.name) for port in derivation.ports])
        return found

    return evaluate(program.main, [value(port.name) for port in program.ports])


def inputs_of(program: Program) -> dict[str, Any]:
    arrays = awkward(program.inputs, rotation=3)
    return {port.name: array for port, array in zip(program.ports, arrays, strict=True)}


quick = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
PASSES = {stage.name: stage for stage in PIPELINE if stage.run is not None}


@pytest.mark.parametrize("name", PASSES)
@quick
@given(program=programs())
def test_pass_keeps_what_a_program_computes(
    name: str, context: PassContext, program: Program
) -> None:
    fresh = replace(context, derived={}, rewrites={})
    after = PASSES[name].run(program, fresh)
    verify(after)
    arrays = inputs_of(program)
    assert same_but_for_nan(results(after, fresh, arrays), results(program, fresh, arrays))


@quick
@given(program=programs())
def test_pipeline_keeps_what_a_program_computes(
    context: PassContext, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    monkeypatch.setenv("PTIR_VERIFY", "1")
    fresh = replace(context, derived={}, rewrites={})
    after = optimize(program, fresh)
    arrays = inputs_of(program)
    assert same_but_for_nan(results(after, fresh, arrays), results(program, fresh, arrays))
    assert [p.name for p in after.ports if p.kind == "input"] == ["i", "b"]
    assert "composite" not in [i.op for i in after.main.instructions]


@quick
@given(program=programs())
def test_canonicalize_and_cse_are_idempotent(context: PassContext, program: Program) -> None:
    for name in ("canonicalize", "cse", "dce"):
        run = PASSES[name].run
        once = run(program, context)
        assert run(once, context) == once


@quick
@given(program=programs())
def test_derived_parameters_never_take_more_memory(context: PassContext, program: Program) -> None:
    fresh = replace(context, derived={})
    after = PASSES["dce"].run(PASSES["lift_params"].run(program, fresh), fresh)
    before = PASSES["dce"].run(program, fresh)
    assert parameter_bytes(after) <= parameter_bytes(before)


def parameter_bytes(program: Program) -> int:
    pairs = zip(program.ports, program.inputs, strict=True)
    return sum(t.nbytes for port, t in pairs if port.kind == "parameter")


def test_blocks_of_random_programs_are_not_all_trivial() -> None:
    seen: list[Block] = []

    @settings(max_examples=50, database=None, derandomize=True)
    @given(program=programs())
    def collect(program: Program) -> None:
        seen.append(program.main)

    collect()
    ops = {i.op for block in seen for i in block.instructions}
    assert {"composite", "cond", "cast", "select", "scan"} <= ops
