"""``exp``, ``tanh`` and ``erf`` of f32 as text that dialects put into their preludes.

``exponentials.h`` says what the text must be given: a dialect defines those macros twice, for one
lane and for all of its lanes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

EXPONENTIALS: Final = ("exp", "tanh", "erf")
"""The functions that the text defines."""


@cache
def exponentials() -> str:
    """The text."""
    return Path(__file__).with_suffix(".h").read_text(encoding="utf-8")


def read_with(macros: str, *texts: str) -> str:
    """Texts with ``macros`` defined in front of them, and not behind them."""
    names = [
        line.split()[1].partition("(")[0]
        for line in macros.splitlines()
        if line.startswith("#define")
    ]
    return "\n".join((macros, *texts, *(f"#undef {name}" for name in names), ""))
