"""CSE and DCE: what is computed twice or for nobody."""

from __future__ import annotations

from dataclasses import replace

from ptir.ir.graph import Ref, freeze, source
from ptir.ir.program import Port, Program
from ptir.ops.record import OPS
from ptir.passes import PassContext
from ptir.passes.cse import cse
from ptir.passes.dce import dce
from ptir.types import BOOL, TensorType, spec

F = spec("f32", 4)


def program(outputs: list[Ref], inputs: list[Ref], *ports: Port) -> Program:
    named = ports or tuple(Port(f"p{number}") for number in range(len(inputs)))
    return Program(freeze(outputs, inputs), named)


def ops(of: Program) -> list[str]:
    return [instruction.op for instruction in of.main.instructions]


def test_equal_instructions_are_computed_once(context: PassContext) -> None:
    x, y = source(F), source(F)
    chains = [OPS["exp"](OPS["add"](x, y)) for _ in range(2)]
    after = cse(program([OPS["mul"](*chains)], [x, y]), context)
    assert ops(after) == ["add", "exp", "mul"]


def test_attributes_types_and_operand_order_keep_instructions_apart(context: PassContext) -> None:
    x, y = source(F), source(F)
    outputs = [
        OPS["sub"](x, y),
        OPS["sub"](y, x),
        *(OPS["compare"](x, y, direction=d) for d in ("lt", "gt")),
        *(OPS["reduce"](x, axes=(0,), kind=k) for k in ("sum", "prod")),
    ]
    assert len(ops(cse(program(outputs, [x, y]), context))) == 6


def test_cse_goes_into_regions_and_compares_them(context: PassContext) -> None:
    x, flag = source(F), source(TensorType(BOOL, ()))
    inner = source(F)
    twice = freeze([OPS["add"](OPS["exp"](inner), OPS["exp"](inner))], [inner])
    once = freeze([OPS["neg"](inner)], [inner])
    conds = [
        OPS["cond"].multi(flag, x, regions=r)[0]
        for r in ((twice, once), (twice, once), (once, twice))
    ]
    after = cse(program(conds, [flag, x]), context)
    assert ops(after) == ["cond", "cond"]
    region = after.main.instructions[0].regions[0]
    assert [i.op for i in region.instructions] == ["exp", "add"]


def test_dce_keeps_unused_inputs_and_drops_unused_parameters(context: PassContext) -> None:
    a, w, b, v = (source(F) for _ in range(4))
    OPS["exp"](w)
    ports = (Port("a"), Port("w", "parameter"), Port("b"), Port("v", "parameter"))
    after = dce(program([OPS["neg"](v)], [a, w, b, v], *ports), context)
    assert [p.name for p in after.ports] == ["a", "b", "v"]
    assert len(after.inputs) == 3


def test_dce_drops_unread_instructions_also_in_regions(context: PassContext) -> None:
    x, flag = source(F), source(TensorType(BOOL, ()))
    inner = source(F)
    full = freeze([OPS["exp"](inner), OPS["neg"](inner)], [inner])
    region = replace(full, outputs=full.outputs[1:])
    made = OPS["cond"].multi(flag, x, regions=(region, region))[0]
    main = freeze([made, OPS["exp"](x)], [flag, x])
    after = dce(Program(replace(main, outputs=main.outputs[:1]), (Port("f"), Port("x"))), context)
    assert ops(after) == ["cond"]
    assert [i.op for i in after.main.instructions[0].regions[0].instructions] == ["neg"]
