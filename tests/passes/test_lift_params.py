"""Parameter-only values are computed once, and never take more memory than they replace."""

from __future__ import annotations

import numpy as np

from ptir.ir.graph import Ref, freeze, source
from ptir.ir.program import Port, Program
from ptir.ops.record import OPS, literal
from ptir.passes import PassContext
from ptir.passes.dce import dce
from ptir.passes.lift_params import lift_params
from ptir.types import BF16, F32, TensorType, spec

F = spec("f32", 4)


def program(outputs: list[Ref], inputs: list[Ref], parameters: str) -> Program:
    """Inputs called x0, x1, ...; those whose digits are in ``parameters`` are parameters."""
    ports = [
        Port(f"x{number}", "parameter" if str(number) in parameters else "input")
        for number in range(len(inputs))
    ]
    return Program(freeze(outputs, inputs), tuple(ports))


def lifted(before: Program, context: PassContext) -> Program:
    return dce(lift_params(before, context), context)


def ops(of: Program) -> list[str]:
    return [instruction.op for instruction in of.main.instructions]


def derived(of: Program) -> list[str]:
    return [port.name for port in of.ports if port.name.startswith("derived:")]


def sources(*types: TensorType) -> list[Ref]:
    return [source(t) for t in types]


def constant(number: float, type: TensorType) -> Ref:
    value = OPS["constant"](value=literal(np.array(number, type.dtype.numpy)))
    return OPS["broadcast_to"](value, shape=type.shape)


def test_maximal_value_is_derived_with_its_derivation(context: PassContext) -> None:
    x, w, v = sources(F, F, F)
    scale = OPS["rsqrt"](OPS["add"](v, constant(1e-5, F)))
    before = program([OPS["mul"](x, OPS["mul"](w, scale))], [x, w, v], "12")
    after = lifted(before, context)
    assert ops(after) == ["mul"]
    (name,) = derived(after)
    assert [port.name for port in after.ports] == ["x0", name]
    derivation = context.derived[name]
    assert [port.name for port in derivation.ports] == ["x1", "x2"]
    found = [i.op for i in derivation.block.instructions]
    assert sorted(found) == ["add", "broadcast_to", "constant", "mul", "rsqrt"]


def test_value_that_depends_on_an_input_is_not_derived(context: PassContext) -> None:
    x, w = sources(F, F)
    before = program([OPS["exp"](OPS["add"](x, w))], [x, w], "1")
    assert lift_params(before, context) == before


def test_broadcast_is_never_derived_but_what_it_spreads_is(context: PassContext) -> None:
    x, w = sources(spec("f32", 3, 4), F)
    spread = OPS["broadcast_to"](OPS["exp"](w), shape=(3, 4))
    after = lifted(program([OPS["add"](x, spread)], [x, w], "1"), context)
    assert ops(after) == ["broadcast_to", "add"]
    assert len(derived(after)) == 1


def test_parameter_still_read_elsewhere_is_not_replaced(context: PassContext) -> None:
    x, w = sources(F, F)
    before = program([OPS["add"](x, OPS["exp"](w)), OPS["mul"](x, w)], [x, w], "1")
    assert derived(lifted(before, context)) == []


def test_two_values_of_one_parameter_must_fit_together(context: PassContext) -> None:
    x, w = sources(F, F)
    both = [OPS["add"](x, OPS["exp"](w)), OPS["mul"](x, OPS["sin"](w))]
    assert derived(lifted(program(both, [x, w], "1"), context)) == []
    y = source(spec("f32", 2))
    halves = [
        OPS["slice"](OPS["exp"](w), starts=(at,), limits=(at + 2,), strides=None) for at in (0, 2)
    ]
    outputs = [OPS["add"](y, half) for half in halves]
    assert len(derived(lifted(program(outputs, [y, w], "1"), context))) == 2


def test_up_cast_stays_unless_the_backend_lifts_casts(context: PassContext, backend) -> None:
    x, w = sources(F, F.with_dtype(BF16))
    wide = OPS["exp"](OPS["cast"](w, dtype=F32))
    before = program([OPS["mul"](x, wide)], [x, w], "1")
    assert ops(lifted(before, context)) == ["cast", "exp", "mul"]
    backend.lifts_casts = True
    after = lifted(before, context)
    assert ops(after) == ["mul"]
    assert [p.name for p in after.ports] == ["x0", *derived(after)]


def test_lifting_casts_does_not_lift_other_growth(context: PassContext, backend) -> None:
    backend.lifts_casts = True
    x, w = sources(spec("f32", 3, 4), F.with_dtype(BF16))
    spread = OPS["broadcast_to"](OPS["cast"](w, dtype=F32), shape=(3, 4))
    after = lifted(program([OPS["mul"](x, OPS["exp"](spread))], [x, w], "1"), context)
    assert ops(after) == ["broadcast_to", "exp", "mul"]


def test_down_cast_is_derived(context: PassContext) -> None:
    x, w = sources(F.with_dtype(BF16), F)
    narrow = OPS["cast"](w, dtype=BF16)
    same = OPS["concat"](x, narrow, axis=0)
    assert ops(lifted(program([same], [x, w], "1"), context)) == ["concat"]


def test_view_of_a_parameter_stays_where_it_costs_nothing(context: PassContext) -> None:
    x, w = sources(spec("f32", 2, 3), spec("f32", 3, 2))
    turned = OPS["transpose"](w, permutation=(1, 0))
    before = program([OPS["add"](x, turned)], [x, w], "1")
    assert lift_params(before, context) == before
    after = lifted(program([OPS["add"](x, OPS["exp"](turned))], [x, w], "1"), context)
    assert ops(after) == ["add"]


def test_what_is_reshaped_is_derived_and_reshaped_where_it_is_read(context: PassContext) -> None:
    """Backends know weights by their shapes: joined words of digits are packed as others are."""
    x, v, w = sources(spec("f32", 4, 2, 2), spec("f32", 2, 4), spec("f32", 2, 4))
    joined = OPS["concat"](v, w, axis=0)
    twice = OPS["add"](x, OPS["reshape"](joined, shape=(4, 2, 2)))
    after = lifted(program([twice], [x, v, w], "12"), context)
    assert ops(after) == ["reshape", "add"]
    (name,) = derived(after)
    types = dict(zip([port.name for port in after.ports], after.inputs, strict=True))
    assert types[name] == spec("f32", 4, 4)


def test_equal_derivations_share_one_port(context: PassContext) -> None:
    x, w = sources(F, F)
    outputs = [OPS["add"](x, OPS["floor"](w)), OPS["mul"](x, OPS["floor"](w))]
    after = lift_params(program(outputs, [x, w], "1"), context)
    names = [port.name for port in after.ports]
    assert len(set(names)) == len(names)


def test_derived_output_and_same_digest_for_same_derivation(context: PassContext) -> None:
    x, w = sources(F, F)
    before = program([OPS["neg"](w)], [x, w], "1")
    after = lifted(before, context)
    assert ops(after) == []
    assert derived(lifted(before, context)) == derived(after)
    renamed = Program(before.main, (Port("x0"), Port("other", "parameter")))
    assert derived(lifted(renamed, context)) != derived(after)
