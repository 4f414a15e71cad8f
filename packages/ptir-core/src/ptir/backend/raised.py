"""Where an error was raised, in the code of whoever wrote a backend.

The innermost frame is often NumPy's, which says nothing to an author: what is wanted is the last
line of their own before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ptir.backend import entries

if TYPE_CHECKING:
    from traceback import FrameSummary

CORE: Final = Path(__file__).resolve().parent.parent
"""The folder of core."""
GROUPS: Final = ("ptir.backends", "ptir.plugins")
"""Entry points whose distributions are of authors; others in ``site-packages`` are their tools."""
INSTALLED: Final = ("site-packages", "dist-packages")


def frames(error: BaseException, without: Iterable[Path] = ()) -> list[FrameSummary]:
    """The frames outside core and the folders ``without``, innermost last.

    Those of the error, and of what it was made from, which was raised further in.
    """
    from traceback import extract_tb

    folders = (CORE, *without)
    found = [
        frame
        for frame in extract_tb(error.__traceback__)
        if not any(Path(frame.filename).resolve().is_relative_to(folder) for folder in folders)
    ]
    return found + (frames(error.__cause__, folders) if error.__cause__ is not None else [])


def place(found: Iterable[FrameSummary]) -> str:
    """``file.py:12 in function`` of the innermost frame of an author, or of any; else nothing."""
    every = list(found)
    if not every:
        return ""
    mine = [frame for frame in every if _is_authors(frame.filename)]
    frame = (mine or every)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"


@cache
def _is_authors(filename: str) -> bool:
    """Whether a file is neither Python's nor of a distribution that is no backend or plugin."""
    import sysconfig

    path = Path(filename)
    kind = next((name for name in INSTALLED if name in path.parts), None)
    if kind is not None:
        return path.parts[path.parts.index(kind) + 1] in _tops()
    standard = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    return path.is_absolute() and not any(path.is_relative_to(folder) for folder in standard)


@cache
def _tops() -> frozenset[str]:
    """The names below ``site-packages`` of what backends and plugins have installed."""
    points = [entry.point for group in GROUPS for entry in entries.listed(group)]
    found = [point.dist for point in points if point is not None and point.dist is not None]
    return frozenset(path.parts[0] for one in found for path in one.files or ())
