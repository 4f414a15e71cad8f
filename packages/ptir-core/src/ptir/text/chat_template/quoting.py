"""What messages say is text: special tokens that they spell are told from those of the template.

Each is put between two marks before a template writes the messages, and the marks are taken out of
the prompt again, where they say what has to stay letters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ptir.errors import UsageError

PRIVATE: Final = range(0xE000, 0xF900)
"""Characters without a meaning of their own."""


class QuotedText(NamedTuple):
    """A text, and where in it special tokens are spelled that are only letters."""

    text: str
    quoted: tuple[range, ...] = ()


class Marks:
    """Two characters that none of ``given``, which are JSON, holds.

    ``control`` finds special tokens in a text.
    """

    def __init__(self, control: re.Pattern[str], *given: Any) -> None:
        held = json.dumps(given, ensure_ascii=False)
        free = [chr(one) for one in PRIVATE if chr(one) not in held]
        if len(free) < 2:
            raise UsageError(
                "messages hold every private character (U+E000 to U+F8FF): leave some of them out"
            )
        self._control, (self._open, self._close) = control, free[:2]

    def put(self, value: Any) -> Any:
        """The same JSON with marks around all special tokens in its texts and names."""
        if isinstance(value, str):
            return self._control.sub(rf"{self._open}\g<0>{self._close}", value)
        if isinstance(value, Mapping):
            return {self.put(name): self.put(one) for name, one in value.items()}
        return [self.put(one) for one in value] if isinstance(value, list | tuple) else value

    def taken(self, text: str) -> QuotedText:
        """A text without the marks, and what stood between them.

        Marks that a template has cut apart, or written as JSON's escapes, say nothing. One that
        counts characters counts them, too.
        """
        both = self._open + self._close
        escaped = "|".join(rf"\\u{ord(one):04x}" for one in both)
        text = re.sub(escaped, "", text, flags=re.IGNORECASE)
        parts, quoted, length = [], [], 0
        for part in re.split(f"({self._open}[^{both}]*{self._close})", text):
            plain = part.strip(both) if part.startswith(self._open) else part
            plain = re.sub(f"[{both}]", "", plain)
            if part != plain and self._control.fullmatch(plain):
                quoted.append(range(length, length + len(plain)))
            parts.append(plain)
            length += len(plain)
        return QuotedText("".join(parts), tuple(quoted))
