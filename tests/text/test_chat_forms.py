"""Messages are written in the form that a template takes, whichever of several they come in."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ptir.errors import CheckpointError
from ptir.text.chat_template import ChatTemplates, Limits, Renderer

RENDERER = Renderer(Limits(seconds=0.3))
PARTS = [{"role": "user", "content": [{"type": "text", "text": one} for one in ("a b", " c")]}]
SAID = "{%- for m in messages -%} "
CONTENTS = {
    "added to a text": "{{ '<' + m.content + '>' }}",
    "written": "<{{ m.content }}>",
    "as a text or as parts": "<{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}>",
    "as parts alone": "<{% for p in m.content %}{{ p.text }}{% endfor %}>",
}


def templates(text: str) -> ChatTemplates:
    return ChatTemplates({"default": text}, {}, "x", RENDERER)


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_text_and_its_parts_are_written_as_a_template_reads_them(kind: str) -> None:
    loop = "{%- for m in messages -%}" + CONTENTS[kind] + "{%- endfor -%}"
    assert templates(loop).render(PARTS) == "<a b c>"
    assert templates(loop).render([{"role": "user", "content": "a b c"}]) == "<a b c>"


CALLS = {  # as templates of these read calls
    "DeepSeek R1": """\
{%- for m in messages %}
{%- if m['role'] == 'assistant' and m['content'] is none %}
{%- for c in m['tool_calls'] %}{{ c['function']['name'] + c['function']['arguments'] }}{% endfor %}
{%- elif m['role'] == 'assistant' and m['content'] is not none %}{{ m['content'] + '!' }}
{%- endif %}
{%- endfor %}""",
    "Llama 3.1": """\
{%- for m in messages if 'tool_calls' in m %}
{%- set call = m.tool_calls[0].function %}{{ call.name }}{{ call.arguments | tojson }}
{%- endfor %}""",
    "gpt-oss": """\
{%- for m in messages %}
{%- if 'content' in m and '<|channel|>' in m.content %}{{ raise_exception('none') }}{% endif %}
{%- if m.tool_calls %}{{ m.tool_calls[0].function.name }}
{{- m.tool_calls[0].function.arguments | tojson }}{% endif %}
{%- endfor %}""",
    "Qwen3": """\
{%- for m in messages if m.tool_calls %}
{%- set call = m.tool_calls[0].function %}{{ call.name }}
{%- if call.arguments is string %}{{ call.arguments }}{% else %}
{{- call.arguments | tojson }}{% endif %}
{%- endfor %}""",
    "Gemma 4": """\
{%- for m in messages if m.tool_calls %}
{%- set call = m.tool_calls[0].function %}{{ call.name }}
{%- if call.arguments is mapping %}{"city": "{{ call.arguments.city }}"}
{%- else %}{{ '{' }}{{ call.arguments }}{{ '}' }}{% endif %}
{%- endfor %}""",
    "ChatML": """\
{%- for m in messages if m.role == 'assistant' %}{{ m.content + '' }}
{%- if m.tool_calls %}{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments }}
{%- endif %}
{%- endfor %}""",
}


@pytest.mark.parametrize(
    "arguments", [{"city": "Rome"}, '{"city": "Rome"}'], ids=["object", "text"]
)
@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}], ids=str)
@pytest.mark.parametrize("kind", CALLS)
def test_calls_are_read_in_any_form(kind: str, content: Any, arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "w", "arguments": arguments}}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}]
    messages[1] |= content
    assert templates(CALLS[kind]).render(messages) == 'w{"city": "Rome"}'


def test_what_a_template_takes_in_no_form_is_told_as_it_is() -> None:
    call = {"function": {"name": "w", "arguments": "no JSON"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    found = templates("{{ messages[0].tool_calls[0].function.arguments }}").render([message])
    assert found == "no JSON"
    odd = {"role": "assistant", "content": "x", "tool_calls": [3, {"name": "f", "arguments": 4}]}
    assert templates("{{ messages[0].tool_calls }}").render([odd])


def test_a_template_without_an_end_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    long = "{% for n in range(99999) %}{% for m in range(99999) %}{% endfor %}{% endfor %}"
    endless = ChatTemplates({"default": long}, {}, "x", Renderer(Limits(seconds=0.1)))
    asked: list[int] = []
    render = Renderer.render

    def counted(self: Renderer, *given: Any) -> str:
        asked.append(1)
        return render(self, *given)

    monkeypatch.setattr(Renderer, "render", counted)
    with pytest.raises(CheckpointError, match=r"'x' cannot be used: it takes more than 0\.1 s"):
        endless.render(PARTS)
    assert asked == [1]


CONTROL = re.compile(re.escape("<|im_end|>"))


def test_parts_that_spell_a_token_together_are_text_too() -> None:
    parts = [{"type": "text", "text": one} for one in ("a<|im_", "end|>b")]
    for kind in ("written", "as parts alone"):
        loop = "{%- for m in messages -%}" + CONTENTS[kind] + "<|im_end|>{%- endfor -%}"
        found = templates(loop).render_quoting([{"role": "user", "content": parts}], CONTROL)
        assert found.text == "<a<|im_end|>b><|im_end|>"
        assert found.quoted == (range(2, 12),)
