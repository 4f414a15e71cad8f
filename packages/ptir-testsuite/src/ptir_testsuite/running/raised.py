"""What a backend raised, for a reader: the error, from where, and the rule that it breaks."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

import ptir
from ptir.errors import PtirError

OURS: Final = (Path(ptir.__file__).parent, Path(__file__).parent)
"""The folders of core and of the suite, whose frames say nothing about a backend."""

RULE: Final = "backends raise only errors of ptir.errors"


def named(error: BaseException) -> str:
    """The error's class and text."""
    return f"{error.__class__.__name__}: {error}"


def told(phase: str, error: BaseException) -> str:
    """What ``phase`` raised, on the first line also from where, and the rule if it is broken."""
    first, *rest = f"{phase} raised {named(error)}".splitlines()
    frames = _frames(error)
    if frames:
        place = frames[-1]
        first += f" at {Path(place.filename).name}:{place.lineno} in {place.name}"
    if not isinstance(error, PtirError):
        first += f"; {RULE}"
    return "\n".join((first, *rest))


def trace(error: BaseException) -> tuple[str, ...]:
    """The frames outside core and the suite, innermost last: file, line, function, text."""
    lines = (
        (f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}', f"    {frame.line}")
        for frame in _frames(error)
    )
    return tuple(line for pair in lines for line in pair)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Those of the error, and of what core made it from, which was raised further in."""
    found = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).is_relative_to(folder) for folder in OURS)
    ]
    return found + (_frames(error.__cause__) if error.__cause__ is not None else [])
