"""The templates of a model, and messages as they take them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ptir.errors import CheckpointError, UnsupportedError, UsageError, short, unknown_name
from ptir.text.chat_template.forms import fitted, whole_parts
from ptir.text.chat_template.quoting import Marks, QuotedText
from ptir.text.chat_template.renderer import Renderer

Message: TypeAlias = Mapping[str, Any]
"""``role`` and ``content``, and what templates know besides (``tool_calls``, ``name``, ...)."""

DEFAULT: Final = "default"
TOOL_USE: Final = "tool_use"
"""The name of the template that is taken for ``tools``, where a model has one."""
CALLS: Final = "tool_calls"
REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""What templates call an answer's reasoning; the first is what most of them read."""
TEXT: Final = "text"
"""The kind of a part of a content that is no image, sound or film."""


@dataclass(frozen=True)
class ChatTemplates:
    """A model's templates by name, and its special tokens (``bos_token`` and so on), for them.

    ``model`` is what messages call the model.
    """

    templates: Mapping[str, str]
    special: Mapping[str, Any] = field(default_factory=dict)
    model: str = "the model"
    renderer: Renderer = field(default_factory=Renderer, repr=False)

    def chosen(self, name: str | None = None, *, tools: bool = False) -> str:
        """The text of the template called ``name``; without, the one for ``tools``, or the default.

        Raises ``UsageError`` where there is none of that name, or none at all.
        """
        if not self.templates:
            raise UsageError(
                f"model {self.model!r} has no chat template, so it is no model to talk with: let it"
                " continue a text (ptir run), or take a model that is called instruct, chat or it"
            )
        if name is None:
            name = TOOL_USE if tools and TOOL_USE in self.templates else DEFAULT
        if name not in self.templates:
            raise UsageError(
                f"model {self.model!r}: {unknown_name('chat template', name, self.templates)}"
            )
        return self.templates[name]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt that ``messages`` are to the model, as Transformers writes it.

        ``add_generation_prompt`` ends it where the model's answer begins, ``template`` names one of
        several, ``options`` are handed to the template (such as ``enable_thinking``). Raises
        ``UsageError`` for messages that are none or that the template refuses, and
        ``CheckpointError`` for a template that cannot be used.
        """
        text = self.chosen(template, tools=tools is not None)
        variables = {
            **self.special,
            **(options or {}),
            "messages": [self._message(n, one) for n, one in enumerate(checked(messages), 1)],
            "tools": None if tools is None else list(tools),
            "documents": (options or {}).get("documents"),
            "add_generation_prompt": add_generation_prompt,
        }
        _require_json(variables)
        said, rest = variables.pop("messages"), variables
        try:
            found = fitted(said, lambda own: self._tried(text, {**rest, "messages": own}))
            return self.renderer.render(text, {**rest, "messages": found})
        except UsageError as error:
            told = f"the chat template of {self.model!r} refuses these messages: {error}"
            roles = ", ".join(dict.fromkeys(str(one["role"]) for one in messages))
            raise UsageError(f"{told} (their roles: {roles}); change them as it says") from error
        except CheckpointError as error:
            raise CheckpointError(
                f"the chat template of {self.model!r} cannot be used: {error}; fetch the model"
                " again, or give the prompt yourself (--raw)"
            ) from error

    def render_quoting(
        self,
        messages: Sequence[Message],
        control: re.Pattern[str],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> QuotedText:
        """The same, and where messages and tools spell a token that ``control`` finds.

        Such a token is text and none of the template's; other options are those of ``render``.
        """
        said = [whole_parts(one, control) for one in checked(messages)]
        given = said, None if tools is None else [*tools]
        _require_json(given)
        marks = Marks(control, *given, self.templates)
        marked, offered = map(marks.put, given)
        return marks.taken(self.render(marked, tools=offered, **options))

    def _tried(self, template: str, variables: Mapping[str, Any]) -> str | None:
        """What messages of our own give, None where they are not taken.

        Raises ``CheckpointError`` where they pass the limits: others would take as long.
        """
        try:
            return self.renderer.render(template, variables)
        except UsageError:
            return None
        except CheckpointError:
            if not self.renderer.lives:
                raise
            return None

    def _message(self, number: int, message: Message) -> dict[str, Any]:
        """One message without what is None, its reasoning under the names that templates read.

        A content of None stays: templates tell by it a message that only calls.
        """
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            if kind != TEXT:
                raise UnsupportedError(
                    f"message {number} holds a part of type {kind!r}, and model {self.model!r}"
                    " reads text alone: leave it out, or say in words what it shows"
                )
            if not isinstance(part.get(TEXT), str):
                raise UsageError(
                    f"message {number}: {TEXT} {short(part.get(TEXT))} of a part of type {kind!r}:"
                    " it must be a text"
                )
        plain = {
            name: value for name, value in message.items() if value is not None or name == "content"
        }
        thought = next((plain[name] for name in REASONING if name in plain), None)
        if thought is None:
            return plain
        return {"thinking": thought, **plain, REASONING[0]: thought}


def _require_json(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"messages, tools or options hold {error.object[error.start]!r}, which is no character:"
            " give Unicode, as UTF-8 where it is read from a file or a pipe"
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"messages, tools and options are JSON (texts, numbers, lists, objects): {error}"
        ) from error


def checked(messages: Sequence[Message]) -> Sequence[Message]:
    """The same messages; raises ``UsageError`` where they are none, or not messages."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise UsageError(
            f"messages {short(messages)}: give a list of them, each with a role and a content, such"
            " as [{'role': 'user', 'content': 'Hello'}]"
        )
    if not messages:
        raise UsageError("there are no messages; give at least one of role 'user'")
    for number, one in enumerate(messages, 1):
        if not isinstance(one, Mapping) or not isinstance(one.get("role"), str):
            raise UsageError(f"message {number} is {short(one)}: it must have a 'role', a text")
        if not isinstance(one.get("content"), str | list | None):
            raise UsageError(
                f"message {number}: content {short(one['content'])}: it must be a text, or a list"
                " of parts"
            )
        if one.get("content") is None and not one.get(CALLS):
            raise UsageError(
                f"message {number} has no content: it must be a text, or a list of parts; only one"
                f" with {CALLS} can do without"
            )
    return messages


def read_templates(config: Mapping[str, Any]) -> dict[str, str]:
    """The templates by name in what ``tokenizer_config.json`` says; none where it says none.

    ``chat_template`` is a text, or a list of objects with a name and a template. Raises
    ``CheckpointError`` for anything else.
    """
    found = config.get("chat_template")
    if found is None:
        return {}
    if isinstance(found, str):
        return {DEFAULT: found}
    rows = found if isinstance(found, list) else [found]
    named: dict[str, str] = {}
    for row in rows:
        name, text = (row.get(k) if isinstance(row, dict) else None for k in ("name", "template"))
        if not isinstance(name, str) or not isinstance(text, str):
            raise CheckpointError(
                f"chat_template {short(row)}: must be a text, or a list of objects with a 'name'"
                " and a 'template'"
            )
        named[name] = text
    return named


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens in ``tokenizer_config.json``: ``bos_token``, ``eos_token`` and so on."""
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    texts = {
        key: value.get("content") if isinstance(value, Mapping) else value
        for key, value in named.items()
    }
    return {key: text for key, text in texts.items() if isinstance(text, str)}
