"""The verifier refuses each kind of damage, naming the instruction and the rule it breaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from strategies import TEXT

from ptir.errors import VerifyError
from ptir.ir import Attributes, Block, Instruction, Port, Program
from ptir.ops import OPS
from ptir.ops.reading import parse
from ptir.ops.verify import verify
from ptir.types import F32, TensorType, spec
from together import together

GOOD = parse(TEXT)
SOFTMAX, TOP_K, WHILE = range(3)


def edit(index: int, **changes) -> Program:
    """``GOOD`` with fields of one instruction of its main block replaced."""
    instructions = list(GOOD.main.instructions)
    instructions[index] = replace(instructions[index], **changes)
    return replace(GOOD, main=replace(GOOD.main, instructions=tuple(instructions)))


def in_lowering(**changes) -> Program:
    (block,) = GOOD.main.instructions[SOFTMAX].regions
    (inner,) = block.instructions
    damaged = replace(block, instructions=(replace(inner, **changes),))
    return edit(SOFTMAX, regions=(damaged,))


def in_body(**changes) -> Program:
    condition, body = GOOD.main.instructions[WHILE].regions
    return edit(WHILE, regions=(condition, replace(body, **changes)))


def attributes(index: int, **values) -> Program:
    return edit(index, attributes=Attributes(values))


def without_results() -> Program:
    damaged = edit(WHILE, types=())
    return replace(damaged, main=replace(damaged.main, outputs=()))


NEGATIVE = TensorType(F32, (2, -3))
TOP_K_LINE = "program: `%4, %5 = top_k(%3) {k = 2} : f32[2,2], i32[2,2]`: "
DAMAGE: dict[str, tuple[Callable[[], Program], str]] = {
    "major version": (lambda: replace(GOOD, version=(2, 0)), "ptir 2.0: this build reads ptir 1.x"),
    "port arity": (
        lambda: replace(GOOD, ports=GOOD.ports[:-1]),
        "program has 2 ports for 3 inputs; give each input one",
    ),
    "port kind": (
        lambda: replace(GOOD, ports=(Port("x", "output"), *GOOD.ports[1:])),
        "port 'x' has kind 'output'; one of input, parameter",
    ),
    "undefined output": (
        lambda: replace(GOOD, main=replace(GOOD.main, outputs=(7,))),
        "program: return: %7 is used before it is defined; the last one here is %6",
    ),
    "negative output": (
        lambda: replace(GOOD, main=replace(GOOD.main, outputs=(-1,))),
        "program: return: %-1 is used before it is defined",
    ),
    "use of a later value": (
        lambda: edit(TOP_K, operands=(6,)),
        "program: `%4, %5 = top_k(%6) {k = 2} : f32[2,2], i32[2,2]`: "
        "%6 is used before it is defined; the last one here is %3",
    ),
    "use of its own result": (
        lambda: edit(SOFTMAX, operands=(3,)),
        "%3 is used before it is defined; the last one here is %2",
    ),
    "undefined in a lowering": (
        lambda: in_lowering(operands=(1,)),
        "lowering of softmax: `%1 = exp(%1) : f32[2,3]`: %1 is used before it is defined",
    ),
    "a region that reaches outside": (
        lambda: in_body(outputs=(2,)),
        "region 1 of while: return: %2 is used before it is defined; the last one here is %1",
    ),
    "unknown op": (
        lambda: edit(TOP_K, op="topk"),
        "program: `%4, %5 = topk(%3) {k = 2} : f32[2,2], i32[2,2]`: "
        "unknown op 'topk' (nearest: top_k",
    ),
    "op name": (lambda: edit(TOP_K, op="top k"), "'top k' cannot be an op name"),
    "reserved op name": (lambda: edit(TOP_K, op="return"), "'return' cannot be an op name"),
    "attribute name": (
        lambda: edit(SOFTMAX, attributes=Attributes({"name": "softmax", "a, b": 1})),
        "'a, b' cannot be an attribute name",
    ),
    "attribute depth": (
        lambda: attributes(SOFTMAX, name="softmax", x=eval("(" * 70 + "1" + ",)" * 70)),
        "lists in an attribute are nested more than 64 levels deep",
    ),
    "missing attribute": (lambda: attributes(TOP_K), "attribute 'k' is missing"),
    "unknown attribute": (
        lambda: attributes(TOP_K, k=2, kk=3),
        "top_k(): unknown attribute 'kk' (nearest: k",
    ),
    "attribute of the wrong kind": (lambda: attributes(TOP_K, k="2"), "program: `%4, %5 = top_k"),
    "type rule": (lambda: attributes(TOP_K, k=4), "program: `%4, %5 = top_k(%3) {k = 4}"),
    "result type": (
        lambda: edit(TOP_K, types=(spec("f32", 2, 2), spec("u32", 2, 2))),
        "the result is f32[2,2], i32[2,2], not f32[2,2], u32[2,2]",
    ),
    "result count": (without_results, "`while(%2) : ()`: the result is bool[], not ()"),
    "result type in a lowering": (
        lambda: in_lowering(types=(spec("f32", 3, 2),)),
        "lowering of softmax: `%1 = exp(%0) : f32[3,2]`: the result is f32[2,3], not f32[3,2]",
    ),
    "negative axis size": (
        lambda: edit(SOFTMAX, types=(NEGATIVE,)),
        "type f32[2,-3] has a negative axis size; axis sizes must be >= 0",
    ),
    "negative input size": (
        lambda: Program(Block((NEGATIVE,), (), (0,)), (Port("x"),)),
        "program: inputs: type f32[2,-3] has a negative axis size",
    ),
    "operand arity": (lambda: edit(TOP_K, operands=(3, 3)), TOP_K_LINE[:27]),
    "operand dtype": (
        lambda: in_body(instructions=(Instruction("exp", (0,), Attributes(), (spec("bool"),)),)),
        "region 1 of while: `%1 = exp(%0) : bool[]`: exp(bool[]): operand has dtype bool",
    ),
    "region count": (
        lambda: edit(WHILE, regions=GOOD.main.instructions[WHILE].regions[:1]),
        "`%6 = while(%2) : bool[]`: while(bool[]): 1 regions given; takes 2",
    ),
    "region results": (
        lambda: in_body(outputs=(1, 1)),
        "body gives (bool[], bool[]); the state is (bool[])",
    ),
    "composite without a name": (
        lambda: attributes(SOFTMAX, axis=1),
        "a composite needs a name (a string) and exactly one lowering",
    ),
    "composite without a lowering": (
        lambda: edit(SOFTMAX, regions=()),
        "a composite needs a name (a string) and exactly one lowering",
    ),
    "lowering of other inputs": (
        lambda: edit(SOFTMAX, operands=(1,)),
        "lowering takes (f32[2,3]); the operands are (f32[3])",
    ),
}


def test_the_undamaged_program_verifies():
    verify(GOOD)


@together()
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_with_the_instruction_and_the_rule(kind):
    damaged, message = DAMAGE[kind]
    with pytest.raises(VerifyError, match=re.escape(message)):
        verify(damaged())


def test_the_message_names_no_line_of_the_verifier():
    with pytest.raises(VerifyError) as caught:
        verify(attributes(TOP_K, k=4))
    assert "\n" not in str(caught.value)


def test_an_attribute_left_to_its_default_is_refused(monkeypatch):
    k = replace(OPS["top_k"].attributes[0], default=2)
    monkeypatch.setitem(OPS, "top_k", replace(OPS["top_k"], attributes=(k,)))
    with pytest.raises(VerifyError, match="attribute 'k' is missing; a program spells out every"):
        verify(attributes(TOP_K))


def test_a_rule_that_trips_over_an_attribute_refuses_the_program(monkeypatch):
    careless = replace(OPS["top_k"], rule=lambda call: call.types[0].shape[call["k"]])
    monkeypatch.setitem(OPS, "top_k", careless)
    said = r"top_k.*`: an attribute has a value of the wrong kind \(TypeError: tuple indices must"
    with pytest.raises(VerifyError, match=said) as caught:
        verify(attributes(TOP_K, k="last"))
    assert isinstance(caught.value.__cause__, TypeError)
