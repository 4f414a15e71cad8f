"""Text and JSON from outside: every mistake is an error of the family, placed and explained."""

from __future__ import annotations

import copy
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import TEXT, programs

from ptir.errors import PtirError, VerifyError
from ptir.ir.jsonform import to_json
from ptir.ops.reading import from_json, parse
from ptir.ops.verify import verify
from together import together

SLOW = settings(max_examples=300, suppress_health_check=list(HealthCheck))

SYNTAX = [
    ("ptir 1.0", "ptir 2.0", "line 1, column 6: ptir 2.0: this build reads ptir 1.x;"),
    ("ptir 1.0", "ptir 0.9", "line 1, column 6: ptir 0.9: this build reads ptir 1.x;"),
    ("ptir 1.0", "ptir one", "line 1, column 6: expected a version such as 1.0, found 'one'"),
    ("ptir 1.0", "", "line 3, column 1: expected 'ptir', found 'function'"),
    ("%1 = exp", "%2 = exp", "line 4, column 3: expected %1, the next value in order, found '%2'"),
    ("exp(%0)", "exp(%1)", "line 4, column 12: %1 is used before it is defined; the last one"),
    ("return %1\n}", "return %7\n}", "line 5, column 10: %7 is used before it is defined"),
    ("exp(%0) : f32", "exp(%0) f32", "line 4, column 16: expected ':', found 'f32[2,3]'"),
    ("exp(%0) : f32[2,3]", "exp(%0) : f33[2,3]", "line 4, column 18: unknown dtype 'f33' (nearest"),
    ("exp(%0) : f32[2,3]", "exp(%0) : f32[2,-3]", "line 4, column 18: expected a type such as"),
    (
        "-> f32[2,3] {",
        "-> f32[3,2] {",
        "line 3, column 38: the block returns f32[2,3], not f32[3,2]",
    ),
    ("@softmax_0(%0: ", "@softmax_1(%0: ", "unknown function '@softmax_0' (nearest: @softmax_1"),
    (
        'input "x"',
        'output "x"',
        "line 8, column 22: expected 'input' or 'parameter', found",
    ),
    ('input "go"', 'input "go', "line 8, column 84: no token starts with '\"'"),
    ('input "x"', r'input "\q"', r"line 8, column 28: Invalid \escape in the string"),
    ("{axis = 1}", "{axis = 1, axis = 2}", "line 9, column 41: attribute 'axis' is given twice"),
    ("{axis = 1}", '{name = "b"}', "line 9, column 31: attribute 'name' is given twice"),
    ("{axis = 1}", "{axis 1}", "line 9, column 36: expected '=', found '1'"),
    ("{axis = 1}", "{axis = }", "line 9, column 38: expected an attribute value, found '}'"),
    ("{axis = 1}", "{axis = 1e999}", "line 9, column 38: 1e999 is out of range for a 64-bit float"),
    ("{axis = 1}", "{axis = nan(0000000000000001)}", "does not hold the bits of a NaN"),
    ("{axis = 1}", "{axis = !f31}", "line 9, column 38: unknown dtype 'f31'"),
    ("{axis = 1}", "{axis = f32[2] 0x00}", "literal f32[2]: 1 bytes given, 8 needed"),
    ("{axis = 1}", "{axis = f32[2] 0x000}", "line 9, column 38: non-hexadecimal"),
    ("{axis = 1}", "{axis = f32[2]}", "line 9, column 44: expected the literal's bytes as 0x"),
    ("{axis = 1}", "{axis = f32[999999,999999,999999] 0x00}", "1 bytes given, 3999988000011999996"),
    ("{axis = 1}", f"{{axis = {'9' * 5000}}}", "Exceeds the limit"),
    (
        "{axis = 1}",
        f"{{axis = {'[' * 5000}}}",
        "lists in an attribute are nested more than 64",
    ),
    ("composite softmax", "composite", "line 9, column 17: expected the name of the composite"),
    ("} @softmax_0", "}", "line 9, column 41: expected the composite's lowering"),
    ("%4, %5 =", "%4 =", "1 results are named for 2 types; name each result: %4, %5"),
    ("exp(%0)", "return(%0)", "line 4, column 8: 'return' cannot be an op name"),
    ("return %4, %5, %6\n}\n", "return %4, %5, %6\n", "expected ',', found the end of the text"),
    ("return %4, %5, %6\n}\n", "return %4, %5, %6\n}}", "the end of the text after the program"),
    ("program(", "function @softmax_0() -> () { return }\nprogram(", "@softmax_0 is defined twice"),
    ("program(", "procedure(", "expected 'function' or 'program', found 'procedure'"),
    ("top_k", "top~k", "line 10, column 15: no token starts with '~'"),
]


@together()
@pytest.mark.parametrize(("old", "new", "message"), SYNTAX)
def test_a_mistake_in_the_text_is_placed_and_explained(old, new, message):
    assert old in TEXT
    with pytest.raises(VerifyError, match=re.escape(message)):
        parse(TEXT.replace(old, new, 1))


def test_comments_and_blank_lines_mean_nothing():
    spaced = "# a program\n\n" + TEXT.replace("\n", '   # } " @ %9\r\n\n').replace(", ", " ,\n\t")
    assert parse(spaced) == parse(TEXT)


def test_a_hash_inside_a_string_is_no_comment():
    assert parse(TEXT.replace('"x"', '"#x"')).ports[0].name == "#x"


def nested(levels: int) -> str:
    opening = "%1 = cond(%0) : f32[] region (%0: f32[]) -> f32[] {" * levels
    return f'ptir 1.0 program(%0: f32[] input "x") -> f32[] {{ {opening}'


def chained(levels: int) -> str:
    lines = ["ptir 1.0", "function @f0() -> () { return }"]
    for n in range(1, levels):
        lines.append(f"function @f{n}() -> () {{ composite a() @f{n - 1} : () return }}")
    return "\n".join(lines)


@pytest.mark.parametrize("text", [nested(5000), chained(5000)], ids=["regions", "lowerings"])
def test_deep_nesting_is_an_error_and_not_a_crash(text):
    with pytest.raises(VerifyError, match=r"line \d+, column \d+: blocks are nested more than 64"):
        parse(text)


def test_deep_nesting_in_json_is_an_error_and_not_a_crash():
    value = to_json(parse(TEXT))
    regions = value["main"]["instructions"][2]["regions"]
    for _ in range(2000):
        block = copy.copy(regions[0])
        call = {"op": "f", "operands": [], "attributes": {}, "types": [], "regions": [block]}
        regions[0] = {**block, "instructions": [call]}
    with pytest.raises(VerifyError, match="blocks are nested more than 64 levels deep"):
        from_json(value)


def test_lowerings_that_double_at_each_level_are_read_and_verified_once_each():
    lines = ["ptir 1.0", "function @f0(%0: f32[]) -> f32[] { return %0 }"]
    for n in range(1, 60):
        call = f"composite a(%0) @f{n - 1} : f32[]"
        lines.append(f"function @f{n}(%0: f32[]) -> f32[] {{ %1 = {call} %2 = {call} return %2 }}")
    call = "%1 = composite a(%0) @f59 : f32[]"
    lines.append(f'program(%0: f32[] input "x") -> f32[] {{ {call} return %1 }}')
    p = parse("\n".join(lines))
    verify(p)
    assert str(p).count("function") == len(from_json(to_json(p)).functions) == 60


def _edited(draw, text: str) -> str:
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 6)))
        pieces = st.text(max_size=3) | st.sampled_from(PIECES) | st.just(text[start : end + 9])
        text = text[:start] + draw(pieces) + text[end:]
    return text


PIECES = ("%0", "%1", "{", "}", "(", ")", "[", ",", "0", "-", '"', "f32[]", "none", "[[1]]", "true")


@SLOW
@given(st.data())
def test_edited_text_is_refused_or_is_a_valid_program(data):
    text = _edited(data.draw, data.draw(st.just(TEXT) | programs().map(str)))
    try:
        p = parse(text)
        verify(p)
    except PtirError:
        return
    assert parse(str(p)) == p


JSON_DAMAGE = [
    (["ptir"], [2, 0], "ptir 2.0: this build reads ptir 1.x;"),
    (["ptir"], [1, -1], "ptir 1.-1: the minor version must be 0 to 999999"),
    (["ptir"], [1], "program.ptir: expected [major, minor], found [1]"),
    (["ptir"], "1.0", "program.ptir: expected an array, found '1.0'"),
    (["main"], None, "program.main: expected an object, found None"),
    (["mian"], 1, "program: unknown member 'mian' (nearest: main)"),
    (["functions", 0, "name"], 3, "program.functions[0].name: expected a string, found 3"),
    (
        ["main", "inputs", 0],
        "f32[2,,3]",
        "main.inputs[0]: expected a type such as f32[2,3]",
    ),
    (["main", "inputs", 0], "f31[2]", "program.main.inputs[0]: unknown dtype 'f31'"),
    (["main", "outputs", 0], True, "program.main.outputs[0]: expected an integer, found True"),
    (["main", "outputs", 0], -1, "program: return: %-1 is used before it is defined"),
    (["main", "instructions", 0, "operands", 0], 3, "%3 is used before it is defined; the last"),
    (["main", "instructions", 1, "op"], "a b", "'a b' cannot be an op name"),
    (["main", "instructions", 0, "op"], "exp", "expected an object, found 'softmax_0'"),
    (["main", "instructions", 0, "attributes", "axis"], 1.5, '(floats are {"float": "1.0"})'),
    (["main", "instructions", 0, "attributes", "axis"], {"float": "1"}, "axis: expected an attr"),
    (["main", "instructions", 0, "attributes", "a b"], 1, "'a b' cannot be an attribute name"),
    (["main", "instructions", 0, "attributes", "name"], 1, "a composite needs a name (a string)"),
    (
        ["main", "instructions", 0, "attributes", "axis"],
        {"literal": "f32[2]", "hex": "00"},
        "axis: literal f32[2]: 1 bytes given, 8 needed",
    ),
    (["main", "instructions", 0, "regions", 0], "softmax", "unknown function 'softmax' (nearest"),
    (["main", "instructions", 0, "regions"], [], "a composite needs a name (a string) and exactly"),
    (["ports", 0, "kind"], "output", "program.ports[0]: unknown kind 'output' (nearest: input)"),
    (["ports"], [], "program has 0 ports for 3 inputs"),
]


@pytest.mark.parametrize(("path", "value", "message"), JSON_DAMAGE)
def test_damaged_json_is_refused_with_the_path(path, value, message):
    damaged = copy.deepcopy(to_json(parse(TEXT)))
    target = damaged
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    with pytest.raises(VerifyError, match=re.escape(message)):
        from_json(damaged)


@pytest.mark.parametrize("value", [None, 3, [], {}, "ptir 1.0"])
def test_json_that_is_no_program_is_refused(value):
    with pytest.raises(VerifyError, match="program: "):
        from_json(value)


def _places(value, found):
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        found.append((value, key))
        if isinstance(item, dict | list):
            _places(item, found)
    return found


JUNK = st.sampled_from((None, True, -1, 0, 1, 99, 2.5, "", "f32[]", "exp", [], [0], {}, [[]]))


@SLOW
@given(st.data())
def test_edited_json_is_refused_or_is_a_valid_program(data):
    original = data.draw(st.just(parse(TEXT)) | programs())
    value = json.loads(json.dumps(to_json(original)))
    for _ in range(data.draw(st.integers(1, 2))):
        holder, key = data.draw(st.sampled_from(_places(value, [])))
        holder[key] = copy.deepcopy(data.draw(JUNK))
    try:
        p = from_json(value)
        verify(p)
    except PtirError:
        return
    assert parse(str(p)) == p
