"""What a backend raised, for a reader: the error, from where, and the rule that it breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ptir.backend.raised import frames, place
from ptir.errors import PtirError

SUITE: Final = Path(__file__).resolve().parent.parent
"""The folder of the suite, whose frames say nothing about a backend, as those of core."""

RULE: Final = "backends raise only errors of ptir.errors"


def named(error: BaseException) -> str:
    """The error's class and text."""
    return f"{error.__class__.__name__}: {error}"


def told(phase: str, error: BaseException) -> str:
    """What ``phase`` raised, on the first line also from where, and the rule if it is broken.

    An error that core has wrapped says all of this itself, the original first.
    """
    if _is_wrapped(error):
        return f"{phase} raised {error}"
    first, *rest = f"{phase} raised {named(error)}".splitlines()
    if where := raised_at(error):
        first += f" at {where}"
    if not isinstance(error, PtirError):
        first += f"; {RULE}"
    return "\n".join((first, *rest))


def raised_at(error: BaseException) -> str:
    """File, line and function of the backend's code that raised, or nothing."""
    return place(frames(error, (SUITE,)))


def trace(error: BaseException) -> tuple[str, ...]:
    """The frames outside core and the suite, innermost last: file, line, function, text."""
    lines = (
        (f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}', f"    {frame.line}")
        for frame in frames(error, (SUITE,))
    )
    return tuple(line for pair in lines for line in pair)


def _is_wrapped(error: BaseException) -> bool:
    """Whether core has made the error from one that is not of its family, and begins with that."""
    cause = error.__cause__
    if not isinstance(error, PtirError) or cause is None or isinstance(cause, PtirError):
        return False
    return str(error).startswith(type(cause).__name__)
