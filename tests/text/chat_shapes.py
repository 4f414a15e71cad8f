"""Chat templates in the shapes that models have, written for these tests, and talks to render."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

SPECIAL: Final = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

CHATML = """\
{% for message in messages %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "Functions:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at once") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA = """\
{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}
{%- set front = messages[0]['content'] + '\\n\\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set front = '' -%}{%- set rest = messages -%}{%- endif -%}
{%- for message in rest -%}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
{%- endif -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{ '<start_of_turn>' + role + '\\n' + (front if loop.first else '') -}}
{%- if message['content'] is string -%}
{{ message['content'] | trim }}
{%- elif message['content'] is iterable -%}
{%- for item in message['content'] -%}
{%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the system message roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {{- tool_call.function|tojson }}{{ ", " if not loop.last else "]" + eos_token }}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content|string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user, assistant and tool roles are supported") }}
    {%- endif %}
{%- endfor %}
"""

PHI = """\
{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{% generation %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endgeneration %}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}
"""

HARMONY = """\
{%- macro header(role, channel=none) -%}
    {{- '<|start|>' ~ role }}
    {%- if channel %}{{ '<|channel|>' ~ channel }}{% endif %}
    {{- '<|message|>' }}
{%- endmacro -%}
{%- macro parameters(schema) -%}
    {%- for name, one in schema.properties|dictsort %}
        {{- '  // ' ~ one.description|default('', true) ~ '\\n' if one.description }}
        {{- '  ' ~ name ~ ('?' if name not in schema.required else '') ~ ': ' ~ one.type ~ ',\\n' }}
    {%- endfor %}
{%- endmacro -%}
{{- header('system') }}
{{- 'Knowledge cutoff: 2024-06\\n' }}
{{- 'Reasoning: ' ~ (reasoning_effort | default('medium')) }}
{{- '\\n\\n# Valid channels: analysis, commentary, final.<|end|>' }}
{%- if messages[0].role in ['developer', 'system'] or tools %}
    {{- header('developer') }}
    {%- if messages[0].role in ['developer', 'system'] %}
        {{- '# Instructions\\n\\n' ~ messages[0].content ~ '\\n\\n' }}
    {%- endif %}
    {%- if tools -%}
        {{- '# Tools\\n\\nnamespace functions {\\n' }}
        {%- for tool in tools %}
            {{- 'type ' ~ tool.function.name ~ ' = (_: {\\n' }}
            {{- parameters(tool.function.parameters) ~ '}) => any;\\n' }}
        {%- endfor %}
        {{- '}' }}
    {%- endif %}
    {{- '<|end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if loop.first and message.role in ['developer', 'system'] %}{% continue %}{% endif %}
    {%- if message.role == 'assistant' %}
        {%- set is_last = loop.last %}
        {%- if message.thinking and is_last %}
            {{- header('assistant', 'analysis') ~ message.thinking ~ '<|end|>' }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '<|start|>assistant to=functions.' ~ call.function.name }}
            {{- '<|channel|>commentary json<|message|>' ~ call.function.arguments|tojson }}
            {{- '<|call|>' }}
        {%- else %}
            {{- header('assistant', 'final') ~ message.content ~ '<|end|>' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' }}
        {{- message.content|tojson ~ '<|end|>' }}
    {%- else %}
        {{- header('user') ~ message.content ~ '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""

QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(seeking=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.seeking and message.role == "user" and message.content is string and not (
        message.content.startswith('<tool_response>') and
        message.content.endswith('</tool_response>')) %}
        {%- set ns.seeking = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
            {{- content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}
                {{- '\\n' }}
            {%- endif %}
            {%- if call.function %}
                {%- set call = call.function %}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

SHAPES: Final = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "phi": PHI,
    "harmony": HARMONY,
    "qwen3": QWEN3,
}

SYSTEM = {"role": "system", "content": "Be <brief> & kind.\n"}
USER = {"role": "user", "content": " Who wrote “Faust”? \n"}
ASSISTANT = {"role": "assistant", "content": "Goethe, from 1772 on.\n"}
AGAIN = {"role": "user", "content": "And <|im_end|> 'Egmont'?"}
REASONED = {**ASSISTANT, "reasoning_content": "\nGoethe or Marlowe?\n"}
TAGGED = {"role": "assistant", "content": "<think>\nMarlowe?\n</think>\n\nGoethe."}
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"name": "Faust é"}}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
FOUND = {"role": "tool", "content": '{"year": 1808}'}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Finds a play's year.",
            "parameters": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "Its <name>"},
                    "place": {"type": "string"},
                },
                "required": ["name"],
            },
        },
    }
]
PARTS = {
    "role": "user",
    "content": [{"type": "text", "text": "One "}, {"type": "text", "text": "2"}],
}


class Case(NamedTuple):
    """A talk for a template."""

    shape: str
    what: str
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.shape}: {self.what}"


def _cases() -> list[Case]:
    common = {
        "one message": {"messages": [USER]},
        "to be trained on": {"messages": [USER, ASSISTANT], "add_generation_prompt": False},
        "several": {"messages": [SYSTEM, USER, ASSISTANT, AGAIN]},
    }
    found = [Case(shape, what, given) for shape in SHAPES for what, given in common.items()]
    calls = {"messages": [USER, CALLED, FOUND], "tools": TOOLS}
    found += [Case(shape, "calls", calls) for shape in ("llama3", "mistral", "harmony", "qwen3")]
    for shape in ("harmony", "qwen3"):
        ended = {"messages": [USER, REASONED], "add_generation_prompt": False}
        found.append(Case(shape, "reasoning", ended))
        found.append(Case(shape, "old reasoning", {"messages": [USER, REASONED, AGAIN]}))
    found.append(
        Case("qwen3", "tagged", {"messages": [USER, TAGGED], "add_generation_prompt": False})
    )
    quick = {"messages": [USER], "options": {"enable_thinking": False}}
    low = {"messages": [USER], "options": {"reasoning_effort": "low"}}
    dated = {"messages": [USER], "options": {"date_string": "1 Jan 2030"}}
    found += [Case("qwen3", "no thinking", quick), Case("harmony", "little effort", low)]
    found += [Case("llama3", "a date", dated), Case("gemma", "parts", {"messages": [PARTS]})]
    return found


CASES: Final = _cases()
