"""Messages in the form that a template reads, where people write one thing in several.

A content may be a text or parts of it, the arguments of a call an object or JSON, and a message
that only calls has a content of None, or none. Templates take one form and fail with another, or
write it as Python or JSON would. Which one it is, is found by a message of our own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, Final, TypeAlias

Said: TypeAlias = dict[str, Any]
Tried: TypeAlias = Callable[[Sequence[Said]], str | None]
"""The prompt that messages give; None where the template takes them for none."""
Form: TypeAlias = Callable[[Said], Said]

CONTENT, CALLS, FUNCTION, ARGUMENTS = "content", "tool_calls", "function", "arguments"
WORD: Final = "Apple"
_CALL: Final = {"id": "call00001", "type": FUNCTION}
"""Of a call; some templates want an id of nine letters."""
MISREAD: Final = re.compile(r"""\\"pear|'pear'""")
"""Arguments that are written as a text in JSON, or as Python writes them."""
PARTS: Final = re.compile("""['"]type['"]""")
"""A part that is written as Python or JSON writes it."""
NONE: Final = "None"
"""A content that is written as Python writes it."""


def fitted(messages: Sequence[Said], tried: Tried) -> list[Said]:
    """``messages`` in forms that a template takes; as they are, where it takes none."""
    written = _form_of_contents(tried)
    found = [written(one) for one in messages]
    calling = [one for one in found if one.get(CALLS)]
    if not calling:
        return found
    written = _form_of_calls(calling, tried)
    return [written(one) if one.get(CALLS) else one for one in found]


def whole_parts(message: Mapping[str, Any], control: re.Pattern[str]) -> Mapping[str, Any]:
    """A message whose parts of text are one, where a token of ``control`` is spelled across two."""
    content = message.get(CONTENT)
    parts = content if isinstance(content, list) else []
    said = [one.get("text") if isinstance(one, Mapping) else None for one in parts]
    texts = [text for text in said if isinstance(text, str)]
    whole = "".join(texts)
    alone = sum(len(control.findall(text)) for text in texts)
    if len(texts) < len(said) or len(control.findall(whole)) == alone:
        return message
    return {**message, CONTENT: [{"type": "text", "text": whole}]}


def _user(content: Any) -> list[Said]:
    return [{"role": "user", CONTENT: content}]


def _form_of_contents(tried: Tried) -> Form:
    """How contents are written: where a template reads a text alone, as that, or parts alone."""
    parts, text = (tried(_user(one)) or "" for one in ([{"type": "text", "text": WORD}], WORD))
    takes_parts = WORD in parts and not PARTS.search(parts)
    if takes_parts == (WORD in text):
        return lambda one: one
    return _parted if takes_parts else _joined


def _joined(message: Said) -> Said:
    """A message whose content is one text."""
    content = message.get(CONTENT)
    if not isinstance(content, list):
        return message
    return {**message, CONTENT: "".join(part["text"] for part in content)}


def _parted(message: Said) -> Said:
    """A message whose content is parts."""
    content = message.get(CONTENT)
    if not isinstance(content, str):
        return message
    return {**message, CONTENT: [{"type": "text", "text": content}]}


def _form_of_calls(calling: Sequence[Said], tried: Tried) -> Form:
    """How messages that call are written: the first form that is read rightly, or as they are.

    Arguments are an object where a template can read one, as models were shown them.
    """
    contents: list[Form] = [_as_none, _without, _empty]
    if any(CONTENT not in one for one in calling):
        contents = [_without, _as_none, _empty]

    def form(content: Form, argument: Form) -> Form:
        return lambda one: argument(content(one))

    forms = [form(*pair) for pair in product(contents, (_as_object, _as_text))]
    function = {"name": WORD, ARGUMENTS: {"pear": "fig"}}
    own = {"role": "assistant", CONTENT: None, CALLS: [{**_CALL, FUNCTION: function}]}
    before = tried(_user(WORD)) or ""
    for one in forms:
        found = tried([*_user(WORD), one(own)])
        if found is None or MISREAD.search(found) or (NONE in found and NONE not in before):
            continue
        return one
    return lambda one: one


def _changed(message: Said, change: Callable[[Any], Any]) -> Said:
    """A message the arguments of whose calls are changed."""

    def called(call: Any) -> Any:
        if not isinstance(call, Mapping):
            return call
        if isinstance(call.get(FUNCTION), Mapping):
            return {**call, FUNCTION: called(call[FUNCTION])}
        return {**call, ARGUMENTS: change(call[ARGUMENTS])} if ARGUMENTS in call else call

    calls = message[CALLS]
    return {**message, CALLS: [*map(called, calls)] if isinstance(calls, list) else calls}


def _as_text(message: Said) -> Said:
    """Arguments as JSON."""
    return _changed(
        message, lambda one: one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
    )


def _as_object(message: Said) -> Said:
    """Arguments as an object; a text that is none stays."""

    def read(one: Any) -> Any:
        with suppress(ValueError, RecursionError):
            found = json.loads(one) if isinstance(one, str) else one
            return found if isinstance(found, dict) else one
        return one

    return _changed(message, read)


def _as_none(message: Said) -> Said:
    return message if message.get(CONTENT) else {**message, CONTENT: None}


def _without(message: Said) -> Said:
    kept = message.get(CONTENT)
    return message if kept else {name: one for name, one in message.items() if name != CONTENT}


def _empty(message: Said) -> Said:
    return message if message.get(CONTENT) else {**message, CONTENT: ""}
