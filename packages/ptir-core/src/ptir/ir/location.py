"""Where an instruction comes from: a record, stamped at capture and kept by whatever rewrites.

A location takes no part in what a program means: not in equality, digests or the keys of plans.
Two context variables say what is recorded now: the module that was entered (``entered``), and the
place that a pass or a functional works at (``located``). Where neither is known, the caller's
line outside the package is looked up. Where that is the command line, which calls what nobody
wrote, it is the line of the model.
"""

from __future__ import annotations

import os
import sys
from contextvars import ContextVar, Token
from pathlib import Path
from types import FrameType
from typing import Final, Generic, NamedTuple, TypeVar

from ptir.errors import PtirError

T = TypeVar("T")

_PACKAGE: Final = str(Path(__file__).parent.parent) + os.sep
_COMMANDS: Final = _PACKAGE + "cli" + os.sep
_MODELS: Final = _PACKAGE + "models" + os.sep
_ours: Final[set[str]] = set()
"""The package's own files, as far as they were met."""


class Scope(NamedTuple):
    """A module in its tree: its path, which is where its checkpoint keys begin, and its layer."""

    path: str = ""
    """``h.3.attn``: attribute names, and indices of those that are lists; nothing for the root."""
    layer: str = ""
    """``h.3``: the outermost member of a list on the path; nothing outside of lists."""

    def member(self, name: str) -> Scope:
        """The scope of an attribute."""
        return Scope(f"{self.path}.{name}" if self.path else name, self.layer)

    def item(self, index: int) -> Scope:
        """The scope of an element, where this is that of a list."""
        path = f"{self.path}.{index}"
        return Scope(path, self.layer or path)


ROOT: Final = Scope()


class Location(NamedTuple):
    """Where an instruction comes from; what is not known is empty or 0."""

    file: str = ""
    """Of the innermost caller outside the package; of the model where a command of ours is that.

    Empty for a line of a program that was read.
    """
    line: int = 0
    column: int = 0
    """Of a program that was read without locations; callers have none."""
    scope: str = ""
    """The path of the module that was entered last."""
    layer: str = ""
    """The outermost member of a list on that path, which is what repeats in a model: ``h.3``."""
    functional: str = ""
    """The outermost functional that was called there."""
    implementation: str = ""
    """Which of its implementations was chosen, once one was."""

    def inside(self, functional: str, implementation: str = "") -> Location:
        """Where what a functional is lowered to stands, when this is where it is called.

        Of nested calls the outermost counts; its implementation is filled in once it is known.
        """
        if self.functional and (self.implementation or self.functional != functional):
            return self
        return _made(Location, (*self[:-2], functional, implementation))

    def shared(self, other: Location) -> Location:
        """Where stands what is computed once for two places: at the first, in what holds both."""
        if self == UNKNOWN or self.scope == other.scope:
            return other if self == UNKNOWN else self
        layer = self.layer if self.layer == other.layer else ""
        return self._replace(scope=layer, layer=layer)

    def __str__(self) -> str:
        """For people: ``model.py:7 (h.3.attn, linear=portable)``."""
        place = f"{self.file}:{self.line}" if self.file else ""
        if self.line and not self.file:
            place = f"line {self.line}, column {self.column}"
        chosen = f"={self.implementation}" if self.implementation else ""
        details = ", ".join(part for part in (self.scope, self.functional + chosen) if part)
        return f"{place} ({details})".lstrip() if details else place


_made: Final = tuple.__new__
"""Makes a location of all its parts, in a third of the time: capture does it for every op."""

UNKNOWN: Final = Location()
_RECORDED: Final = "recorded at "
"""How a note begins that says where something was recorded."""
NAMED: Final = ("scope", "layer", "functional", "implementation")
"""The fields that forms of a program write by name, behind the place."""

_scope: ContextVar[Scope] = ContextVar("ptir_scope", default=ROOT)
_place: ContextVar[Location | None] = ContextVar("ptir_place", default=None)


class _Set(Generic[T]):
    """``with``: a context variable has another value. A generator would cost capture more."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token: Token[T] = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


def entered(scope: Scope) -> _Set[Scope]:
    """Inside, what is recorded belongs to this module; one without a path leaves it to others."""
    return _Set(_scope, scope if scope.path else _scope.get())


def located(location: Location) -> _Set[Location | None]:
    """Inside, what is recorded stands at ``location``, whoever calls."""
    return _Set(_place, location)


def caller() -> Location:
    """The line of the innermost caller outside the package, and the module that was entered."""
    frame: FrameType | None = sys._getframe(1)
    file = ""
    while frame is not None:
        inner, file = file, frame.f_code.co_filename
        if file not in _ours:
            if not file.startswith(_PACKAGE):
                file, line = (
                    _model_line() if inner.startswith(_COMMANDS) else (file, frame.f_lineno)
                )
                path, layer = _scope.get()
                return _made(Location, (file, line, 0, path, layer, "", ""))
            _ours.add(file)
        frame = frame.f_back
    return UNKNOWN


def _model_line() -> tuple[str, int]:
    """The innermost line of a model's file that is being run; nothing where there is none."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_MODELS):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def here() -> Location:
    """Where what is recorded now stands."""
    place = _place.get()
    return caller() if place is None else place


def note_place(error: PtirError, location: Location) -> None:
    """Add to an error the line that recorded what it is about, unless a place is noted or unknown.

    What stands further inside is noted first, and stays.
    """
    noted = any(note.startswith(_RECORDED) for note in getattr(error, "__notes__", ()))
    if location != UNKNOWN and not noted:
        error.add_note(f"{_RECORDED}{location}")


def around() -> Location:
    """The place that is worked at, without looking for a caller."""
    return _place.get() or UNKNOWN
