"""Chat templates: what they render, which of several is taken, and what they may not do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_shapes import CASES, SHAPES, SPECIAL

from ptir.errors import CheckpointError, PtirError, UnsupportedError, UsageError
from ptir.text.chat_template import ChatTemplates, Limits, Renderer, read_templates, special_tokens

EXPECTED: dict[str, str] = json.loads(
    (Path(__file__).parent.parent / "data" / "chat-prompts.json").read_text(encoding="utf-8")
)
HELLO = [{"role": "user", "content": "Hello"}]
RENDERER = Renderer(Limits(seconds=0.3))


def rendered(template: str, messages: Any = HELLO, **options: Any) -> str:
    return ChatTemplates({"default": template}, SPECIAL, "x", RENDERER).render(messages, **options)


@pytest.mark.parametrize("name", SHAPES)
def test_prompts_are_those_that_transformers_writes(name: str) -> None:
    cases = [one for one in CASES if one.shape == name]
    assert len(cases) > 1
    for case in cases:
        assert rendered(SHAPES[name], **case.arguments) == EXPECTED[case.name]


def test_several_templates_go_by_name_and_tools_take_theirs() -> None:
    rows = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    found = read_templates({"chat_template": [*rows, {"name": "rag", "template": "r"}]})
    templates = ChatTemplates(found, {}, "x", RENDERER)
    assert templates.render(HELLO) == "d"
    assert templates.render(HELLO, tools=[{"name": "f"}]) == "t"
    assert templates.render(HELLO, template="rag") == "r"
    with pytest.raises(UsageError, match=r"unknown chat template 'reg' .nearest: rag"):
        templates.render(HELLO, template="reg")


def test_a_model_without_a_template_says_so_and_a_damaged_one_too() -> None:
    with pytest.raises(UsageError, match=r"'m' has no chat template.*ptir run"):
        ChatTemplates(read_templates({}), {}, "m").render(HELLO)
    for wrong in (3, {"default": "x"}, [{"name": "x"}], ["x"]):
        with pytest.raises(CheckpointError, match=r"chat_template .*must be a text, or a list"):
            read_templates({"chat_template": wrong})


def test_special_tokens_are_texts_or_objects() -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None, "x": "y"}
    assert special_tokens(config) == {"bos_token": "<s>", "eos_token": "</s>"}


def test_what_is_none_is_left_out_and_reasoning_has_every_name() -> None:
    assert rendered("{{ messages[0] | tojson }}", [{**HELLO[0], "tool_calls": None}]) == (
        '{"role": "user", "content": "Hello"}'
    )
    said = {"role": "assistant", "content": "a", "reasoning": "r"}
    assert rendered("{{ messages[0].thinking ~ messages[0].reasoning_content }}", [said]) == "rr"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "there are no messages; give at least one of role 'user'"),
        ("Hello", "give a list of them"),
        ([{"content": "x"}], "message 1 is .* must have a 'role'"),
        ([HELLO[0], "x"], "message 2 is 'x': it must have a 'role'"),
        ([{"role": "user", "content": 3}], "message 1: content 3: it must be a text"),
        ([{"role": "user", "content": None}], "message 1 has no content: it must be a text"),
        ([HELLO[0], {"role": "assistant"}], "message 2 has no content.* one with tool_calls can"),
        (
            [{"role": "user", "content": [{"type": "text", "text": None}]}],
            "message 1: text None of a part of type 'text': it must be a text",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 1: text None of a part"),
        ([{"role": "user", "content": "a", "x": {1, 2}}], "are JSON"),
        ([{"role": "user", "content": "a\udcff"}], r"hold '.udcff', which is no character"),
    ],
)
def test_what_is_no_message_is_refused(messages: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rendered("{{ messages }}", messages)


def test_a_message_that_calls_tools_needs_no_content() -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    template = "{{ messages[1].tool_calls[0].function.name }}{{ 'content' in messages[1] }}"
    assert rendered(template, [HELLO[0], calling]) == "fTrue"


def test_an_image_in_a_text_model_is_refused_by_name() -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image", "url": "x.png"}]
    with pytest.raises(UnsupportedError, match=r"message 1 .* 'image', and model 'x' reads text"):
        rendered("{{ messages }}", [{"role": "user", "content": parts}])
    text = [{"role": "user", "content": parts[:1]}]
    assert rendered("{{ messages[0].content[0].text }}", text) == "What is it?"


def test_roles_that_a_template_refuses_are_told_with_what_it_says() -> None:
    refusing = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(UsageError, match=r"'x' refuses .*roles must alternate \(their roles: user"):
        rendered(refusing)


LONG = [
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "0.3 s"),
    ("{{ 10 ** (10 ** 9) }}", "0.3 s|memory"),
    ("{% set n = namespace(x='ab') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}"
     "{% endfor %}", "0.3 s|memory"),
    ("{{ [[[[0] * 9999] * 9999] * 9999] | string }}", "0.3 s|memory"),
    ("{{ 'a' * 10 ** 11 }}", "memory"),
    ("{{ ''.center(10 ** 9) }}", "memory"),
    ("{{ range(10 ** 9) | list }}", "Range too big"),
    ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself"),
    ("{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}", "longer than|0.3 s"),
    ("{{" + "(" * 5000, "calls itself|nested"),
    (" " * (1 << 21), "2097152 characters"),
]  # fmt: skip
REACHING = [
    ("{{ ''.__class__.__mro__ }}", "'__class__' of 'str' object is unsafe"),
    ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    ("{{ raise_exception.__globals__.x }}", "unsafe"),
    ("{{ '{0.__class__.__mro__}'.format(1) }}", "unsafe"),
    ("{{ messages.append(1) }}", "SecurityError|not safely"),
    ("{% include '/etc/passwd' %}", "no loader"),
    ("{{ ", r"unexpected .* \(line 1\)"),
    ("\n{{ messages.foo.bar }}", r"no attribute 'foo' \(line 2\)"),
    ("{{ '\\ud800' }}", "surrogates"),
]


@pytest.mark.parametrize(("template", "says"), LONG + REACHING)
def test_a_template_that_takes_too_much_or_reaches_too_far_is_an_error(
    template: str, says: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"(?s)template of 'x' cannot be used: .*({says})"):
        rendered(template)


def test_filters_that_import_later_work_where_no_file_can_be_opened() -> None:
    template = "{{ 'a <b>c</b>'|striptags }} {{ 'ab cd'|wordwrap(2) }} {{ [1]|pprint }}"
    assert rendered(template) == "a c ab\ncd [1]"


def test_what_ends_the_process_leaves_the_next_prompt_as_it_was() -> None:
    with pytest.raises(CheckpointError):
        rendered(LONG[0][0])
    assert rendered("{{ messages[0].content }}") == "Hello"


def test_a_template_that_got_out_of_its_sandbox_would_open_nothing(tmp_path: Path) -> None:
    """The process itself: what it runs is changed to the worst that a template could do."""
    from ptir.text.chat_template import renderer

    source = renderer.WORKER.read_text(encoding="utf-8")
    worst = (
        "import os\n        found = []\n"
        "        for act in (lambda: open('/etc/passwd'), lambda: open('/dev/null', 'w'),"
        " os.fork):\n"
        "            try:\n                act()\n"
        "            except OSError as error:\n                found.append(error.errno)\n"
        "        return {'text': str(found)}\n        text ="
    )
    changed = tmp_path / "worker.py"
    changed.write_text(source.replace("text =", worst, 1), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renderer, "WORKER", changed)
        found = json.loads(Renderer().render("", {}))
    assert found[:2] == [24, 24]  # EMFILE
    assert os.geteuid() == 0 or found[2] == 11  # EAGAIN; limits of processes do not bind root


def test_jinja2_is_not_imported_by_whoever_renders() -> None:
    code = (
        "import sys; from ptir.text.chat_template import ChatTemplates;"
        "print(ChatTemplates({'default': 'hi'}).render([{'role': 'user', 'content': 'x'}]));"
        "print('jinja2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("hi\nFalse\n", "")


def test_a_python_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(UnsupportedError, match=r"'/nowhere/python' cannot be started.*--raw"):
        Renderer().start()


def test_a_missing_package_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from ptir.text.chat_template import renderer

    monkeypatch.setattr(renderer, "find_spec", lambda name: None)
    with pytest.raises(PtirError, match=r"need jinja2.*pip install jinja2"):
        Renderer().start()


CONTROL = re.compile(r"<\|\w+\|>|\[INST\]")


@pytest.mark.parametrize(
    ("template", "content", "wanted"),
    [
        ("<|a|>{{ messages[0].content }}<|a|>", "x<|a|>", [(6, 11)]),
        ("<|a|>{{ messages[0].content | trim }}", " <|a|><|b|> ", [(5, 10), (10, 15)]),
        ("{{ messages[0].content }}<|a|>{{ messages[0].content }}", "<|b|>", [(0, 5), (10, 15)]),
        ("{{ messages[0] | tojson }}", "[INST]", [(29, 35)]),
        ("{{ messages[0] | tojson(ensure_ascii=true) }}", "<|b|>", []),
        ("{{ messages[0].content }}|a|>", "<|b|><", [(0, 5)]),
    ],
)
def test_tokens_that_messages_spell_are_told_from_the_template_s(
    template: str, content: str, wanted: list[tuple[int, int]]
) -> None:
    templates = ChatTemplates({"default": template})
    messages = [{"role": "user", "content": content}]
    found = templates.render_quoting(messages, CONTROL)
    assert found.text == templates.render(messages)
    assert [(one.start, one.stop) for one in found.quoted] == wanted


def test_a_token_that_a_template_cuts_apart_is_none() -> None:
    templates = ChatTemplates({"default": "{{ messages[0].content[:4] }}<|a|>"})
    found = templates.render_quoting([{"role": "user", "content": "<|b|>"}], CONTROL)
    assert found == ("<|b<|a|>", ())  # a mark counts as a character


def test_tokens_with_quotation_marks_are_found_too() -> None:
    templates = ChatTemplates({"default": "{{ messages[0].content }}"})
    messages = [{"role": "user", "content": 'a<|"|>'}]
    found = templates.render_quoting(messages, re.compile(r'<\|"\|>'))
    assert found == ('a<|"|>', (range(1, 6),))


UNQUOTABLE: dict[str, tuple[Any, str]] = {
    "no JSON": ({"content": "<|a|>", "seen": {1}}, "messages, tools and options are JSON"),
    "no mark is free": (
        {"content": "".join(map(chr, range(0xE000, 0xF900)))},
        "hold every private character",
    ),
}


@pytest.mark.parametrize("case", UNQUOTABLE)
def test_messages_that_cannot_be_quoted_are_refused(case: str) -> None:
    said, words = UNQUOTABLE[case]
    templates = ChatTemplates({"default": "{{ messages[0].content }}"})
    with pytest.raises(UsageError, match=words):
        templates.render_quoting([{"role": "user", **said}], CONTROL)
