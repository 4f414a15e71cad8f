"""Programs from outside: what is read is verified, and no backend compiles what is not."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import ptir
from ptir.backend import Options
from ptir.capture import call
from ptir.errors import OutOfMemory, TypeRuleError, VerifyError
from ptir.ir.attributes import Literal
from ptir.ir.graph import freeze, source
from ptir.ir.jsonform import to_json
from ptir.ir.parser import parse_unverified
from ptir.ir.program import Port, Program
from ptir.ops import OPS
from ptir.ops.reading import from_json, parse
from ptir.ops.verify import verify
from ptir.passes.context import PassContext
from ptir.passes.pipeline import optimize
from ptir.passes.select import select
from ptir.types import BOOL, F32, MAX_BYTES, MAX_RANK, U32, TensorType, spec

GOOD = """ptir 1.0
program(%0: f32[2,3] input "x") -> f32[2,3] {
  %1 = mul(%0, %0) : f32[2,3]
  return %1
}
"""
LOOP = """ptir 1.0
program(%0: bool[] input "x", %1: f32[1] input "y") -> f32[3] {
  %2, %3 = while(%0, %1) : bool[], f32[3] region (%0: bool[], %1: f32[1]) -> bool[] {
    return %0
  } region (%0: bool[], %1: f32[1]) -> bool[], f32[1] {
    %2 = not(%0) : bool[]
    return %2, %1
  }
  return %3
}
"""
SCAN = """ptir 1.0
program(%0: f32[] input "x", %1: f32[4] input "y") -> f32[] {
  %2 = scan(%0, %1) {carries = 1, length = 5, reverse = false} : f32[] \
region (%0: f32[], %1: f32[]) -> f32[] {
    %2 = add(%0, %1) : f32[]
    return %2
  }
  return %2
}
"""
BAD = {
    "a result that is larger than it is": (
        GOOD.replace("%0) : f32[2,3]", "%0) : f32[2,2147483648]").replace(
            "-> f32[2,3]", "-> f32[2,2147483648]"
        ),
        "line 3, column 3: program: `%1 = mul(%0, %0) : f32[2,2147483648]`: the result is f32[2,3]",
    ),
    "a state that grows in a loop": (
        LOOP,
        "line 3, column 3: program: `%2, %3 = while(%0, %1) : bool[], f32[3]`: the result is ",
    ),
    "a body that gives another type than the state": (
        LOOP.replace("bool[], f32[1] {", "bool[], bool[] {").replace("%2, %1", "%2, %2"),
        "body gives (bool[], bool[]); the state is (bool[], f32[1])",
    ),
    "a scan of more rows than there are": (
        SCAN,
        "line 3, column 3: program: `%2 = scan(%0, %1) {carries = 1, length = 5, reverse = false}",
    ),
    "an unknown op": (GOOD.replace("mul", "mull"), "unknown op 'mull' (nearest: mul"),
    "an input that no memory holds": (
        GOOD.replace("f32[2,3]", "f32[4611686018427387904,4]"),
        "type f32[4611686018427387904,4] spans 73786976294838206464 bytes; a tensor spans at most",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def reference():
    return ptir.backend("ref")


def unverified(text: str) -> Program:
    return parse_unverified(text)


@pytest.mark.parametrize("what", BAD)
def test_what_is_read_is_verified(what):
    text, message = BAD[what]
    with pytest.raises(VerifyError, match=re.escape(message)):
        parse(text)
    assert ptir.parse is parse


@pytest.mark.parametrize("what", [w for w in BAD if not w.startswith("an input")])
def test_json_that_is_read_is_verified(what):
    value = to_json(unverified(BAD[what][0]))
    with pytest.raises(VerifyError):
        from_json(value)


@pytest.mark.parametrize("name", ["ref", "c"])
@pytest.mark.parametrize("what", BAD)
def test_backends_refuse_what_is_not_verified(what, name):
    target = ptir.backend(name)
    with pytest.raises(VerifyError):
        target.backend.compile(unverified(BAD[what][0]), target.device, Options())


@pytest.mark.parametrize("what", [w for w in BAD if not w.startswith("an input")])
def test_running_refuses_what_is_not_verified(what):
    program = unverified(BAD[what][0])
    arrays = {
        port.name: np.zeros(type.shape, type.dtype.numpy)
        for port, type in zip(program.ports, program.inputs, strict=True)
    }
    with pytest.raises(VerifyError):
        ptir.run_program(program, arrays, "ref")


def test_a_block_is_verified_once_and_a_changed_one_again(monkeypatch):
    program = parse(GOOD)
    assert program.main.verified

    def never(call):
        raise TypeRuleError("looked at again")

    monkeypatch.setitem(OPS, "mul", replace(OPS["mul"], rule=never))
    verify(program)
    verify(Program(program.main, (Port("other"),)))
    changed = replace(program.main, outputs=(0,))
    assert not changed.verified and changed != program.main
    with pytest.raises(VerifyError, match="looked at again"):
        verify(replace(program, main=changed))


def test_a_refused_block_is_not_marked():
    program = unverified(BAD["an unknown op"][0])
    for _ in range(2):
        with pytest.raises(VerifyError, match="unknown op"):
            verify(program)
    assert not program.main.verified


def test_the_mark_does_not_spare_the_ports():
    program = parse(GOOD)
    with pytest.raises(VerifyError, match="program has 2 ports for 1 inputs"):
        verify(replace(program, ports=(*program.ports, *program.ports)))


# --- sizes ---

F4, ONE = spec("f32", 4), spec("f32")
LARGE = {
    "broadcast_to": ((F4,), {"shape": (2**62, 4)}),
    "iota": ((), {"shape": (2**62,), "dtype": F32, "axis": 0}),
    "pad": ((F4, ONE), {"low": (2**62,), "high": (0,), "interior": (0,)}),
    "concat": ((spec("u8", 2**55), spec("u8", 2**55), spec("u8", 1)), {"axis": 0}),
    "tile": ((F4,), {"repeats": (2**60,)}),
    "rng_bits": ((spec("u32", 2),), {"shape": (2**60,)}),
    "cast": ((spec("u8", 2**55),), {"dtype": F32}),
    "dot_general": (
        (spec("f32", 2**30, 1), spec("f32", 1, 2**30)),
        {"lhs_contract": (1,), "rhs_contract": (0,)},
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_result_that_no_memory_holds_is_refused_by_its_type_rule(name):
    types, attributes = LARGE[name]
    op = OPS[name]
    known = {a.name for a in op.attributes}
    assert known >= set(attributes), known
    with pytest.raises(TypeRuleError, match=rf"{name}\(.*result 0 spans [0-9]+ bytes; a tensor"):
        op.infer(types, op.bind(attributes))


def test_a_tensor_that_no_memory_holds_is_refused_where_it_is_asked_for(reference):
    with pytest.raises(TypeRuleError, match=r"broadcast_to\(f32\[4\]\): result 0 spans"):
        call(
            "broadcast_to",
            ptir.tensor(np.zeros(4, np.float32), backend=reference),
            shape=(2**62, 4),
        )


WINDOW = {"kind": "sum", "window": (2**31,)}


@pytest.mark.parametrize(
    ("name", "types", "attributes", "message"),
    [
        ("reduce_window", (F4,), WINDOW, "has 2147483648 taps; at most 1048576 are taken"),
        (
            "reduce_window",
            (F4,),
            WINDOW | {"window": (2,), "low": (2**62,)},
            "padded operand spans",
        ),
        (
            "quantize",
            (spec("f32", 2, 0), spec("f32", 1, 0), spec("f32", 2, 0)),
            {"axis": 1, "group": 2**62, "bits": 4},
            "it must be an integer in 1 <= group < 2**31",
        ),
    ],
)
def test_what_a_rule_computes_with_is_bounded(name, types, attributes, message):
    with pytest.raises(TypeRuleError, match=re.escape(message)):
        OPS[name].infer(types, OPS[name].bind(attributes))


def test_sizes_end_where_the_bound_is():
    assert not TensorType(F32, (MAX_BYTES // 4,)).excess
    assert TensorType(F32, (MAX_BYTES // 4, 2)).excess
    assert not TensorType(F32, (1,) * MAX_RANK).excess
    assert f"{MAX_RANK + 1} axes" in TensorType(F32, (1,) * (MAX_RANK + 1)).excess


def test_an_axis_of_size_zero_does_not_hide_the_others():
    assert "spans" in TensorType(F32, (2**62, 0, 4)).excess


@pytest.mark.parametrize("size", [MAX_BYTES // 8, 2**45])
@pytest.mark.parametrize("name", ["iota", "rng_bits", "broadcast_to"])
def test_memory_that_cannot_be_had_is_out_of_memory(name, size, reference):
    types = {"rng_bits": (spec("u32", 2),), "broadcast_to": (spec("u8", 1),)}.get(name, ())
    attributes = {"shape": (size,)} | ({"dtype": U32, "axis": 0} if name == "iota" else {})
    inputs = [source(type) for type in types]
    program = Program(
        freeze([OPS[name](*inputs, **attributes)], inputs), tuple(map(Port, "x"[: len(types)]))
    )
    arrays = {"x": np.zeros(types[0].shape, types[0].dtype.numpy)} if types else {}
    with pytest.raises(OutOfMemory, match="ref: "):
        ptir.run_program(program, arrays, reference)


# --- constants ---


def test_a_bool_is_zero_or_one():
    assert Literal(TensorType(BOOL, (2,)), b"\0\1").numpy().tolist() == [False, True]
    with pytest.raises(TypeRuleError, match="a byte of it is neither 0 nor 1"):
        Literal(TensorType(BOOL, (2,)), b"\1\2")
    made = "%0 = constant() {value = bool[] 0x02} : bool[]"
    text = f"ptir 1.0 program() -> bool[] {{\n {made} return %0 }}"
    with pytest.raises(VerifyError, match=r"line 2, column 27: literal bool\[\]: a byte of it"):
        parse(text)


# --- composites ---

SOFTMAX = """ptir 1.0
function @softmax_0(%0: f32[2,3]) -> f32[2,3] {{
  %1 = neg(%0) : f32[2,3]
  return %1
}}
program(%0: f32[2,3] input "x") -> f32[2,3] {{
  %1 = composite softmax(%0) {{{attributes}}} @softmax_0 : f32[2,3]
  return %1
}}
"""


@pytest.mark.parametrize("attributes", ["axis = 1", "axes = 1", 'axis = "x"', "axis = 7", ""])
def test_a_composite_that_is_not_what_its_name_says_is_what_its_lowering_says(
    attributes, reference
):
    x = np.array([[1, -2, 3], [0, 5, -6]], np.float32)
    text = SOFTMAX.format(attributes=attributes).replace(" {}", "")
    (found,) = ptir.run_program(parse(text), {"x": x}, reference)
    assert found.tolist() == (-x).tolist()


@pytest.mark.parametrize("name", ["round_to_bytes", "product_of_bytes", "linear", "rope"])
@pytest.mark.parametrize("attributes", ["", "{group = 32}", '{implementation = "backend"}'])
def test_no_name_of_ours_makes_a_composite_more_than_its_lowering(name, attributes):
    text = SOFTMAX.format(attributes=attributes).replace("{}", "").replace("{{", "{")
    text = text.replace("composite softmax", f"composite {name}").replace("}}", "}")
    program = parse(text)
    target = ptir.backend("c")
    after = optimize(program, PassContext(target.backend, target.device))
    assert [i.op for i in after.main.instructions] == ["neg"]


def test_a_functional_that_was_read_is_still_taken_by_its_name(reference):
    program = ptir.capture(lambda x: ptir.functional.softmax(x), spec("f32", 2, 3))
    context = PassContext(reference.backend, reference.device)
    (call_read,) = select(parse(str(program)), context).main.instructions
    assert call_read.attributes["implementation"] == "backend"
