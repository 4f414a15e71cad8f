"""Text and JSON give back the very same program, and equality sees everything that matters."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from strategies import NAN_PAYLOAD, TEXT, programs

from ptir.errors import VerifyError
from ptir.ir import Attributes, Block, Instruction, Literal, Port, Program, freeze
from ptir.ir.graph import source
from ptir.ir.jsonform import from_json_unverified, to_json
from ptir.ir.parser import parse_unverified
from ptir.ir.printer import print_program
from ptir.ir.structure import MAX_DEPTH
from ptir.ops import OPS
from ptir.ops.reading import from_json, parse
from ptir.ops.verify import verify
from ptir.types import F32, I32, TensorType, spec

SLOW = settings(max_examples=150, suppress_health_check=list(HealthCheck))
X = spec("f32", 2, 3)


def same(found: Program, wanted: Program) -> None:
    assert found == wanted
    assert found.digest == wanted.digest
    assert found.functions.keys() == wanted.functions.keys()


def program(*outputs, inputs) -> Program:
    return Program(freeze(outputs, inputs), tuple(Port(n) for n in "xwyz"[: len(inputs)]))


def attribute(value) -> Program:
    return called(x=value)


def called(**attributes) -> Program:
    x = source(X)
    call = OPS["custom_call"].multi(x, target="a.b.v1", results=("f32[2]",), **attributes)
    return program(*call, inputs=[x])


def softmax_pair() -> Program:
    x, inner = source(X), source(X)
    lowering = freeze([OPS["exp"](inner)], [inner])
    first = OPS["composite"].multi(x, name="softmax", axis=1, regions=(lowering,))
    again = freeze([OPS["exp"](inner)], [inner])
    second = OPS["composite"].multi(*first, name="softmax", axis=0, regions=(again,))
    return program(*second, inputs=[x])


@SLOW
@given(programs())
def test_parsing_the_printed_text_gives_the_same_program(p):
    text = print_program(p)
    same(parse(text), p)
    assert print_program(parse(text)) == text


@SLOW
@given(programs())
def test_reading_the_json_form_gives_the_same_program(p):
    same(from_json(json.loads(json.dumps(to_json(p), allow_nan=False))), p)


@SLOW
@given(programs())
def test_every_program_built_with_ops_verifies_in_each_form(p):
    for form in (p, parse(str(p)), from_json(to_json(p))):
        verify(form)


@SLOW
@given(programs())
def test_locations_are_comments_that_parsing_skips(p):
    same(parse(print_program(p, locations=True)), p)


def test_the_text_form_is_the_documented_one():
    x, w = source(X), source(spec("f32", 3))
    inner = source(X)
    lowering = freeze([OPS["exp"](inner)], [inner])
    (y,) = OPS["composite"].multi(x, name="softmax", axis=1, regions=(lowering,))
    values, indices = OPS["top_k"].multi(y, k=2)
    flag, held = source(spec("bool")), source(spec("bool"))
    condition, body = freeze([flag], [flag]), freeze([OPS["not"](held)], [held])
    start = source(spec("bool"))
    (end,) = OPS["while"].multi(start, regions=(condition, body))
    p = Program(
        freeze([values, indices, end], [x, w, start]),
        (Port("x"), Port("ln.weight", "parameter"), Port("go")),
    )
    assert str(p) == TEXT


@pytest.mark.parametrize("form", [lambda p: parse(str(p)), lambda p: from_json(to_json(p))])
def test_equal_lowerings_are_printed_once_and_shared_after_reading(form):
    p = softmax_pair()
    assert str(p).count("function @") == 1
    first, second = form(p).main.instructions
    assert first.regions[0] is second.regions[0]


def test_many_ports_are_printed_one_a_line():
    refs = [source(X) for _ in range(9)]
    p = Program(freeze(refs, refs), tuple(Port(f"layers.{n}.weight") for n in range(9)))
    assert '\n  %8: f32[2,3] input "layers.8.weight"\n) -> ' in str(p)
    same(parse(str(p)), p)


@pytest.mark.parametrize(("size", "kept"), [(256, 0), (257, 1)])
def test_literals_above_1024_bytes_go_to_the_side_mapping(size, kept):
    value = Literal(TensorType(F32, (size,)), bytes(range(256)) * 4 + bytes(4 * size - 1024))
    p = program(OPS["constant"](value=value), inputs=[])
    side: dict[str, Literal] = {}
    text = print_program(p, side)
    assert (len(side), text.count('file"')) == (kept, kept)
    same(parse(text, side), p)
    same(parse(str(p)), p)


def test_a_side_literal_that_is_missing_or_changed_is_refused():
    value = Literal(TensorType(F32, (300,)), bytes(1200))
    side: dict[str, Literal] = {}
    text = print_program(program(OPS["constant"](value=value), inputs=[]), side)
    (digest,) = side
    with pytest.raises(VerifyError, match=f"literal '{digest}' is not in the side file"):
        parse(text)
    changed = Literal(value.type, b"\1" + bytes(1199))
    with pytest.raises(VerifyError, match=r"line 4, column \d+: .* was changed"):
        parse(text, {digest: changed})
    other = Literal(TensorType(I32, (300,)), bytes(1200))
    with pytest.raises(VerifyError, match="in the side file is i32"):
        parse(text, {digest: other})


def swapped(first: int, second: int) -> Program:
    refs = [source(X), source(X)]
    return program(OPS["add"](refs[first], refs[second]), inputs=refs)


def renamed(*ports: Port) -> Program:
    refs = [source(X), source(X)]
    return Program(freeze([OPS["add"](*refs)], refs), ports)


def typed(type: TensorType) -> Program:
    return Program(Block((type,), (), (0,)), (Port("x"),))


def literal(type: TensorType, data: bytes) -> Program:
    return attribute(Literal(type, data))


def region(block: Block) -> Program:
    x = source(X)
    return program(*OPS["composite"].multi(x, name="f", regions=(block,)), inputs=[x])


DIFFERENT = {
    "wiring": (swapped(0, 1), swapped(1, 0)),
    "sharing": (swapped(0, 1), swapped(0, 0)),
    "port names": (renamed(Port("x"), Port("w")), renamed(Port("w"), Port("x"))),
    "port kinds": (renamed(Port("x"), Port("w")), renamed(Port("x"), Port("w", "parameter"))),
    "int and float": (attribute(1), attribute(1.0)),
    "int and bool": (attribute(1), attribute(True)),
    "float and bool": (attribute(0.0), attribute(False)),
    "int and text": (attribute(1), attribute("1")),
    "none and text": (attribute(None), attribute("none")),
    "dtype and text": (attribute(F32), attribute("f32")),
    "zeros": (attribute(0.0), attribute(-0.0)),
    "NaN bits": (attribute(math.nan), attribute(NAN_PAYLOAD)),
    "list and item": (attribute((1,)), attribute(1)),
    "list nesting": (attribute(((1,), 2)), attribute((1, (2,)))),
    "attribute names": (called(x=1), called(y=1)),
    "text in text": (called(x="1, y = 2"), called(x="1", y=2)),
    "literal bits": (literal(X, bytes(24)), literal(X, bytes(23) + b"\x80")),
    "literal type": (
        literal(spec("bf16", 2), bytes(4)),
        literal(spec("f32", 1), bytes(4)),
    ),
    "types": (typed(X), typed(spec("f32", 3, 2))),
    "dtypes": (typed(X), typed(spec("i32", 2, 3))),
    "region": (region(Block((X,), (), (0,))), region(freeze([OPS["exp"](s := source(X))], [s]))),
    "outputs": (
        Program(Block((X, X), (), (0, 1)), (Port("x"), Port("w"))),
        Program(Block((X, X), (), (1, 0)), (Port("x"), Port("w"))),
    ),
    "minor version": (typed(X), Program(typed(X).main, (Port("x"),), (1, 3))),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_programs_that_differ_have_other_digests_and_are_unequal_in_every_form(what):
    for pair in (
        DIFFERENT[what],
        [parse(str(p)) for p in DIFFERENT[what]],
        [from_json(json.loads(json.dumps(to_json(p)))) for p in DIFFERENT[what]],
    ):
        one, other = pair
        assert one != other
        assert one.digest != other.digest
        assert str(one) != str(other)


def tower(levels: int) -> Program:
    block = Block((X,), (), (0,))
    for _ in range(levels - 1):
        call = Instruction("composite", (0,), Attributes({"name": "f"}), (X,), (block,))
        block = Block((X,), (call,), (1,))
    return Program(block, (Port("x"),))


def test_nesting_up_to_the_limit_round_trips():
    p = tower(MAX_DEPTH)
    verify(p)
    same(parse(str(p)), p)
    same(from_json(json.loads(json.dumps(to_json(p)))), p)


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 3000])
@pytest.mark.parametrize("use", [verify, print_program, to_json])
def test_deeper_nesting_is_refused_and_not_a_crash(use, levels):
    with pytest.raises(VerifyError, match="blocks are nested more than 64 levels deep"):
        use(tower(levels))


@pytest.mark.parametrize("name", ["two words", "", 'quote " @', "softmax_☃", "softmax\n"])
def test_a_composite_name_that_is_no_identifier_is_quoted(name):
    block = Block((X,), (), (0,))
    call = Instruction("composite", (0,), Attributes({"name": name}), (X,), (block,))
    p = Program(Block((X,), (call,), (1,)), (Port("x"),))
    same(parse_unverified(str(p)), p)
    same(from_json_unverified(json.loads(json.dumps(to_json(p)))), p)


def doubling(levels, width=2):
    """A tower in which every level applies the one below it twice: few blocks, many paths."""
    block = Block((X,), (), (0,))
    for level in range(levels):
        calls = tuple(
            Instruction("composite", (i,), Attributes({"name": f"f{level}"}), (X,), (block,))
            for i in range(width)
        )
        block = Block((X,), calls, (width,))
    return Program(block, (Port("x"),))


def test_equality_looks_at_shared_regions_once():
    """2**60 paths: whatever walks each of them would never end."""
    one, other = doubling(60), doubling(60)
    assert one.main is not other.main and one == other and hash(one) == hash(other)
    assert doubling(59) != doubling(60)
    again = parse(str(one))
    assert again == one and again.main.instructions == one.main.instructions


def test_equal_blocks_are_told_apart_by_their_contents_if_their_digests_agree():
    """A digest that collides must not make different programs one."""
    one, other = doubling(3), doubling(3)
    inner = other.main.instructions[0].regions[0]
    changed = replace(inner, outputs=(1,))
    calls = tuple(replace(i, regions=(changed,)) for i in other.main.instructions)
    other = replace(other, main=replace(other.main, instructions=calls))
    for block, same_as in ((changed, inner), (other.main, one.main)):
        block.__dict__["digest"] = same_as.digest
    assert one.main != other.main
