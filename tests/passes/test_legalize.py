"""What the backend refuses is inlined or decomposed; where neither helps, the error says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluation import awkward, evaluate, same_bits
from ptir.backend.explanation import functional_of
from ptir.backend.interpreter import check_supported
from ptir.errors import UnsupportedError
from ptir.ir.graph import freeze, source
from ptir.ir.location import Location
from ptir.ir.program import Block, Port, Program
from ptir.ops.record import OPS
from ptir.passes import PassContext
from ptir.passes.legalize import legalize
from ptir.types import spec

F = spec("f32", 4)


def refusing(*names: str):
    return lambda query: f"no {query.op}" if query.op in ("composite", *names) else None


def ops(block: Block) -> list[str]:
    return [instruction.op for instruction in block.instructions]


def single(name: str, *, count: int = 1, **attributes: object) -> Program:
    inputs = [source(F) for _ in range(count)]
    outputs = OPS[name].multi(*inputs, **attributes)
    ports = tuple(Port(f"p{number}") for number in range(count))
    return Program(freeze(list(outputs), inputs), ports)


def test_refused_op_is_decomposed_until_accepted(context: PassContext, backend) -> None:
    backend.refuses = refusing("clamp", "top_k", "is_finite")
    before = single("clamp", count=3)
    after = legalize(before, context)
    assert ops(after.main) == ["maximum", "minimum"]
    inputs = awkward(before.inputs, 5)
    assert same_bits(evaluate(after.main, inputs), evaluate(before.main, inputs))
    assert ops(legalize(single("top_k", k=2), context).main) == ["sort", "slice", "slice"]


def test_accepted_op_is_left_alone(context: PassContext) -> None:
    before = single("clamp", count=3)
    assert legalize(before, context) == before


def test_refusal_without_decomposition_names_everything(context: PassContext, backend) -> None:
    backend.refuses = refusing("sin")
    with pytest.raises(UnsupportedError, match=r"paper: sin\(f32\[4\]\): no sin on device 'paper'"):
        legalize(single("sin"), context)


def test_refused_part_of_a_decomposition_is_named(context: PassContext, backend) -> None:
    backend.refuses = refusing("clamp", "maximum")
    with pytest.raises(UnsupportedError, match=r"paper: maximum\("):
        legalize(single("clamp", count=3), context)


def test_refused_custom_call_is_an_error(context: PassContext, backend) -> None:
    backend.refuses = refusing("custom_call")
    call = single("custom_call", target="vendor.fused.v1", results=("f32[4]",))
    with pytest.raises(UnsupportedError, match=r"custom_call\(f32\[4\]\): no custom_call"):
        legalize(call, context)


def test_decomposition_that_leads_back_is_refused(
    context: PassContext, backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    circular = replace(OPS["sin"], decomposition=lambda x: OPS["sin"](x))
    monkeypatch.setitem(OPS, "sin", circular)
    backend.refuses = refusing("sin")
    with pytest.raises(UnsupportedError, match="no sin"):
        legalize(single("sin"), context)


def test_nested_composites_and_regions_are_legalized(context: PassContext, backend) -> None:
    backend.refuses = refusing("clamp")
    inner = [source(F) for _ in range(3)]
    lowering = freeze([OPS["clamp"](*inner)], inner)
    named = OPS["composite"].multi(*inner, regions=(lowering,), name="limit")[0]
    outer = freeze([named], inner)
    flag, inputs = source(spec("bool")), [source(F) for _ in range(3)]
    made = OPS["cond"].multi(flag, *inputs, regions=(outer, lowering))[0]
    ports = tuple(Port(f"p{number}") for number in range(4))
    after = legalize(Program(freeze([made], [flag, *inputs]), ports), context)
    cond = after.main.instructions[0]
    assert [ops(region) for region in cond.regions] == [["maximum", "minimum"]] * 2


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_refused_scan_becomes_a_loop_with_its_body_legalized(
    context: PassContext, backend, length: int, reverse: bool
) -> None:
    backend.refuses = refusing("scan", "clamp")
    carry, row, closed = source(F), source(spec("f32")), source(F)
    wide = OPS["broadcast_to"](row, shape=(4,))
    after = OPS["add"](OPS["clamp"](closed, carry, wide), OPS["mul"](carry, wide))
    body = freeze(
        [after, closed, OPS["reduce"](carry, axes=(0,), kind="sum")], [carry, closed, row]
    )
    inputs = [source(F), source(F), source(spec("f32", length))]
    attributes = {"carries": 2, "length": length, "reverse": reverse}
    results = OPS["scan"].multi(*inputs, regions=(body,), **attributes)
    before = Program(freeze(list(results), inputs), tuple(Port(f"p{i}") for i in range(3)))
    after = legalize(before, context)
    found = [i.op for i in after.main.instructions]
    assert ("while" in found) == bool(length) and "scan" not in found
    loops = [i for i in after.main.instructions if i.op == "while"]
    assert all("clamp" not in ops(loop.regions[1]) for loop in loops)
    arrays = awkward(before.inputs, 3)
    assert same_bits(evaluate(after.main, arrays), evaluate(before.main, arrays))


def test_scan_needs_the_steps_that_drive_it(context: PassContext, backend) -> None:
    backend.refuses = refusing("concat")
    x = source(spec("f32", 2, 4))
    inner = source(F)
    body = freeze([OPS["neg"](inner)], [inner])
    (rows,) = OPS["scan"].multi(x, regions=(body,), carries=0, length=2)
    with pytest.raises(
        UnsupportedError, match=r"paper: concat\(f32\[1,4\], f32\[1,4\]\): no concat"
    ):
        check_supported(backend, freeze([rows], [x]), context.device)


def test_composite_given_to_the_backend_stays(context: PassContext, backend) -> None:
    backend.refuses = lambda query: None
    x = source(F)
    inner = source(F)
    lowering = freeze([OPS["exp"](inner)], [inner])
    kinds = ("backend", "portable")
    made = [
        OPS["composite"].multi(x, regions=(lowering,), name="e", implementation=kind)[0]
        for kind in kinds
    ]
    after = legalize(Program(freeze(made, [x]), (Port("x"),)), context)
    assert ops(after.main) == ["composite", "exp"]


def test_inlined_instructions_point_at_the_call(context: PassContext) -> None:
    x = source(F)
    inner = source(F)
    lowering = freeze([OPS["exp"](inner)], [inner])
    main = freeze([OPS["composite"].multi(x, regions=(lowering,), name="e")[0]], [x])
    line = Location("model.py", 7, scope="h.1", layer="h.1")
    here = replace(main, instructions=(replace(main.instructions[0], location=line),))
    after = legalize(Program(here, (Port("x"),)), context)
    assert after.main.instructions[0].location == line._replace(functional="e")


def test_inlined_instructions_name_the_outermost_functional(context: PassContext) -> None:
    x, middle, inner = source(F), source(F), source(F)
    lowest = freeze([OPS["exp"](inner)], [inner])
    low = freeze([OPS["composite"].multi(middle, regions=(lowest,), name="low")[0]], [middle])
    main = freeze([OPS["composite"].multi(x, regions=(low,), name="high")[0]], [x])
    after = legalize(Program(main, (Port("x"),)), context)
    (made,) = after.main.instructions
    assert (made.op, functional_of(made)) == ("exp", "high")
