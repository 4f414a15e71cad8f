"""Where instructions come from: a record that every form keeps and that means nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import programs

from ptir.errors import VerifyError
from ptir.ir import Block, Port, Program
from ptir.ir.graph import expand, freeze, inline, source
from ptir.ir.jsonform import to_json
from ptir.ir.location import (
    ROOT,
    UNKNOWN,
    Location,
    Scope,
    caller,
    entered,
    here,
    located,
)
from ptir.ir.printer import print_program
from ptir.ops import OPS
from ptir.ops.reading import from_json, parse
from ptir.ops.verify import verify
from ptir.types import spec

SLOW = settings(max_examples=60, suppress_health_check=list(HealthCheck))
X = spec("f32", 4)
CALL = Location("model.py", 7, 0, "h.3.attn", "h.3", "linear", "online")

WORDS = st.text(max_size=6) | st.sampled_from(("work in progress/a b.py", "a=b", '"', "loc(", "#"))
LINES = st.integers(1, 1 << 40)
LOCATIONS = st.builds(Location, WORDS, LINES, st.integers(0, 99), WORDS, WORDS, WORDS, WORDS)


def located_at(block: Block, places: Iterator[Location]) -> Block:
    """The block with the next place for each instruction, those of regions included."""
    made = []
    for one in block.instructions:
        regions = tuple(located_at(region, places) for region in one.regions)
        made.append(replace(one, regions=regions, location=next(places)))
    return replace(block, instructions=tuple(made))


def places(block: Block) -> list[Location]:
    found: list[Location] = []
    for one in block.instructions:
        for region in one.regions:
            found += places(region)
        found.append(one.location)
    return found


@SLOW
@given(programs(), st.data())
def test_written_locations_are_read_again_whatever_they_hold(program: Program, data: Any) -> None:
    drawn = iter(lambda: data.draw(LOCATIONS), None)
    given = replace(program, main=located_at(program.main, drawn))
    text = print_program(given, locations=True)
    value = json.loads(json.dumps(to_json(given, locations=True)))
    for read in (parse(text), from_json(value)):
        assert read == program and read.digest == program.digest
        assert [i.location for i in read.main.instructions] == [
            i.location for i in given.main.instructions
        ]
        if not program.functions:  # equal ones are written once, at the places of the first
            assert places(read.main) == places(given.main)
        assert print_program(read, locations=True) == text


@SLOW
@given(programs(), LOCATIONS)
def test_a_location_is_no_part_of_what_a_program_is(program: Program, location: Location) -> None:
    moved = replace(program, main=located_at(program.main, iter(lambda: location, None)))
    for of in (hash, str, to_json, lambda p: p.digest, lambda p: p.main.digest):
        assert of(moved) == of(program)
    assert moved == program
    assert moved.main.instructions == program.main.instructions


def one(location: Location) -> Program:
    x = source(X)
    block = freeze([OPS["exp"](x)], [x])
    only = replace(block.instructions[0], location=location)
    return Program(replace(block, instructions=(only,)), (Port("x"),))


TEXT = """ptir 1.0

program(%0: f32[4] input "x") -> f32[4] {{
  %1 = exp(%0) : f32[4]{}
  return %1
}}
"""


@pytest.mark.parametrize(
    ("location", "written"),
    [
        (UNKNOWN, ""),
        (Location("model.py", 7), ' loc("model.py":7)'),
        (
            CALL,
            ' loc("model.py":7, scope = "h.3.attn", layer = "h.3", functional = "linear",'
            ' implementation = "online")',
        ),
        (Location(line=3, column=5), ' loc("":3:5)'),
        (Location(functional="exp"), ' loc(functional = "exp")'),
    ],
)
def test_the_text_says_file_line_scope_and_functional(location: Location, written: str) -> None:
    program = one(location)
    assert print_program(program, locations=True) == TEXT.format(written)
    assert str(program) == TEXT.format("")
    if written:
        (read,) = parse(TEXT.format(written)).main.instructions
        assert read.location == location


def test_json_has_the_fields_that_are_known() -> None:
    program = one(CALL._replace(implementation=""))
    (found,) = to_json(program, locations=True)["main"]["instructions"]
    assert found["location"] == {
        "file": "model.py",
        "line": 7,
        "scope": "h.3.attn",
        "layer": "h.3",
        "functional": "linear",
    }
    (bare,) = to_json(one(UNKNOWN), locations=True)["main"]["instructions"]
    assert "location" not in bare
    (read,) = from_json(to_json(program)).main.instructions
    assert read.location == UNKNOWN


def test_an_instruction_that_says_no_place_stands_where_it_was_read() -> None:
    (read,) = parse(TEXT.format("")).main.instructions
    assert read.location == Location(line=4, column=3)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("loc", "expected '(', found 'return'"),
        ("loc(7)", "expected a name such as scope, found '7'"),
        ('loc("m.py")', "expected ':'"),
        ('loc("m.py":"7")', "expected a line or column"),
        ('loc("m.py":-7)', "-7 is no line or column; they count from 1, and 0 is not known"),
        ('loc("m.py":7:-1)', "-1 is no line or column"),
        ('loc("m.py":7, "n.py":8)', "expected a name such as scope"),
        ('loc(scop = "h")', "unknown part of a location 'scop' (nearest: scope)"),
        ('loc(scope = "h", scope = "h")', "'scope' is given twice"),
        ("loc(scope = 3)", "expected a string"),
        ('loc(scope = "h"', "expected ',', found 'return'"),
        (f'loc("m.py":{"9" * 5000})', "limit (4300 digits)"),
    ],
)
def test_a_damaged_location_in_text_is_refused(written: str, said: str) -> None:
    with pytest.raises(VerifyError) as error:
        parse(TEXT.format(" " + written))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "location: expected an object, found None"),
        ({"file": 3}, "location.file: expected a string, found 3"),
        ({"line": "3"}, "location.line: expected an integer, found '3'"),
        ({"line": True}, "location.line: expected an integer, found True"),
        ({"column": -1}, "location.column: -1 is no line or column"),
        ({"scop": "h"}, "location: unknown member 'scop' (nearest: scope)"),
    ],
)
def test_a_damaged_location_in_json_is_refused_with_the_path(value: Any, said: str) -> None:
    damaged = to_json(one(UNKNOWN))
    damaged["main"]["instructions"][0]["location"] = value
    with pytest.raises(VerifyError) as error:
        from_json(damaged)
    assert said in str(error.value)


def test_an_op_cannot_be_called_as_a_location_begins() -> None:
    wrong = replace(one(UNKNOWN).main.instructions[0], op="loc")
    program = one(UNKNOWN)
    with pytest.raises(VerifyError, match="'loc' cannot be an op name"):
        verify(replace(program, main=replace(program.main, instructions=(wrong,))))


def test_errors_name_file_line_scope_and_functional() -> None:
    program = one(CALL)
    wrong = replace(program.main.instructions[0], operands=(5,))
    broken = replace(program, main=replace(program.main, instructions=(wrong,)))
    with pytest.raises(VerifyError) as error:
        verify(broken)
    assert str(error.value).startswith("model.py:7 (h.3.attn, linear=online): program: `%1 = exp(")


@pytest.mark.parametrize(
    ("location", "said"),
    [
        (UNKNOWN, ""),
        (Location("m.py", 7), "m.py:7"),
        (Location("m.py", 7, scope="h.3"), "m.py:7 (h.3)"),
        (Location("m.py", 7, functional="exp"), "m.py:7 (exp)"),
        (Location(line=7, column=2), "line 7, column 2"),
        (Location(functional="exp"), "(exp)"),
    ],
)
def test_for_people_what_is_not_known_is_left_out(location: Location, said: str) -> None:
    assert str(location) == said


def test_the_outermost_functional_counts_and_its_implementation_is_filled_in() -> None:
    line = Location("m.py", 7)
    called = line.inside("attention")
    assert called == line._replace(functional="attention")
    chosen = called.inside("attention", "online")
    assert chosen == called._replace(implementation="online")
    assert chosen.inside("attention", "portable") == chosen
    assert chosen.inside("softmax", "portable") == chosen
    assert called.inside("softmax", "portable") == called


@pytest.mark.parametrize(
    ("scopes", "together"),
    [
        ((("h.0.attn", "h.0"), ("h.0.attn", "h.0")), ("h.0.attn", "h.0")),
        ((("h.0.attn", "h.0"), ("h.0.mlp", "h.0")), ("h.0", "h.0")),
        ((("h.0.attn", "h.0"), ("h.1.attn", "h.1")), ("", "")),
        ((("h.0.attn", "h.0"), ("", "")), ("", "")),
    ],
)
def test_what_is_computed_once_for_two_modules_belongs_to_what_holds_both(
    scopes: Any, together: Any
) -> None:
    first, second = (Location("m.py", n, 0, *scope, "exp") for n, scope in enumerate(scopes, 1))
    assert first.shared(second) == Location("m.py", 1, 0, *together, "exp")
    assert UNKNOWN.shared(first) == first
    assert first.shared(first) == first


def test_a_scope_knows_its_layer_from_the_lists_on_its_path() -> None:
    layer = ROOT.member("h").item(3)
    assert layer == Scope("h.3", "h.3")
    assert layer.member("experts").item(5).member("w1") == Scope("h.3.experts.5.w1", "h.3")
    assert ROOT.member("wte").member("inner") == Scope("wte.inner", "")
    assert ROOT.member("layer1").item(0).member("conv1") == Scope("layer1.0.conv1", "layer1.0")


def test_scopes_and_places_hold_inside_and_end_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError), entered(Scope("h.3", "h.3")), located(CALL):
        assert here() == CALL
        assert (caller().scope, caller().layer) == ("h.3", "h.3")
        with entered(ROOT):  # a module that is in no tree
            assert caller().scope == "h.3"
        1 / 0  # noqa: B018
    assert (here().file, here().scope) == (__file__, "")


# --- graphs ---


def lowering() -> Block:
    x = source(X)
    with located(UNKNOWN):
        return freeze([OPS["neg"](OPS["exp"](x))], [x])


def test_a_lowering_stands_where_it_is_called_in_control_flow_too() -> None:
    x, flag = source(X), source(spec("bool"))
    then = lowering()
    inner, condition = source(X), source(spec("bool"))
    (chosen,) = OPS["cond"].multi(condition, inner, regions=(then, then))
    whole = freeze([chosen], [condition, inner])
    call = OPS["composite"].multi(flag, x, regions=(whole,), name="choose")
    composite = replace(freeze(list(call), [flag, x]).instructions[0], location=CALL)
    made = freeze(expand(composite, [flag, x]), [flag, x])
    assert set(places(made)) == {CALL}
    unnamed = replace(composite, location=Location("m.py", 9))
    made = freeze(expand(unnamed, [flag, x]), [flag, x])
    assert set(places(made)) == {Location("m.py", 9, functional="choose")}


def test_what_a_visit_makes_stands_where_the_visited_instruction_does() -> None:
    x = source(X)
    block = located_at(lowering(), iter([CALL, UNKNOWN]))
    visit = lambda instruction, operands: [OPS["abs"](OPS["sqrt"](operands[0]))]  # noqa: E731
    with located(Location("around.py", 1)):
        outputs = inline(block, [x], visit)
    made = freeze(outputs, [x])
    around = Location("around.py", 1)
    assert [i.location for i in made.instructions] == [CALL, CALL, around, around]
