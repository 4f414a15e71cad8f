"""How libraries name a family's tensors, and what their checkpoints mean unless they say so.

An architecture's attributes are the keys of one library. A row for each other one rewrites its keys
to those: torchvision, timm and Transformers name the same tensors of a ResNet in three ways.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ptir.errors import CheckpointError, short
from ptir.params.arranged import Arranged, ArrangedSource, Lines, LinesSource
from ptir.params.source import ParamSource

Rule: TypeAlias = tuple[str, str | Callable[[re.Match[str]], str]]
"""A pattern of whole keys, and what ``re.sub`` makes of one."""
PART: Final = "#"
"""Before the number of a part at the end of a rewritten key: ``qkv.weight#1``."""


@dataclass(frozen=True)
class KeyLayout:
    """The keys of one library.

    ``mark`` is a pattern of keys that no other row of the family has. Keys are rewritten by the
    first of the ``rules`` whose pattern they match; keys of none stay. ``squeezed`` is a pattern of
    parameters that are stored with axes of size 1 besides their own. ``defaults`` are what a
    configuration means that leaves keys out, before those of the family.
    """

    name: str
    mark: str
    rules: Sequence[Rule] = ()
    squeezed: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])


def layout_of(layouts: Sequence[KeyLayout], names: Iterable[str]) -> KeyLayout | None:
    """The row by which tensors of these names are called; None where no mark is among them."""
    held = list(names)
    for layout in layouts:
        mark = re.compile(layout.mark)
        if any(mark.fullmatch(name) for name in held):
            return layout
    return None


def arranged(source: ParamSource, layout: KeyLayout) -> ParamSource:
    """``source`` under the family's own names.

    Raises ``CheckpointError`` where two tensors would be one, or a part of one is missing.
    """
    rules = _compiled(layout)
    parts: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for stored in source.names():
        name, _, number = _rewritten(stored, rules).partition(PART)
        taken = parts[name].setdefault(int(number or 0), stored)
        if taken != stored:
            raise CheckpointError(f"tensors {short(taken)} and {short(stored)} are both {name!r}")
    squeezed = re.compile(layout.squeezed)
    found = {
        name: Arranged(_complete(name, held), squeezed.fullmatch(name) is not None)
        for name, held in parts.items()
    }
    return ArrangedSource(source, found)


def parameter_of(name: str, layout: KeyLayout) -> tuple[str, int | None]:
    """The parameter that a tensor is, and the number of the part of it, where it is one."""
    ours, _, number = _rewritten(name, _compiled(layout)).partition(PART)
    return ours, int(number) if number else None


def restored(
    source: ParamSource, layout: KeyLayout, other: KeyLayout, names: Iterable[str]
) -> ParamSource:
    """``source``, called as ``layout`` says or by the family's own names, as ``other`` calls it.

    ``names`` are all that ``other`` may have; those of no tensor are left out. A parameter that
    ``other`` has in parts is cut in as many of one size.
    """
    known = {parameter_of(name, layout): name for name in source.names()}
    theirs = {name: parameter_of(name, other) for name in names}
    counts = Counter(ours for ours, number in theirs.values() if number is not None)
    found: dict[str, Lines] = {}
    for name, (ours, number) in theirs.items():
        stored, whole = known.get((ours, number)), known.get((ours, None))
        if stored is not None:
            found[name] = Lines(stored, 0, (*source.type(stored).shape, 0)[0])
        elif whole is not None and number is not None:
            rows = source.type(whole).shape[0] // counts[ours]
            found[name] = Lines(whole, number * rows, (number + 1) * rows)
    return LinesSource(source, found)


def _compiled(
    layout: KeyLayout,
) -> list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]:
    return [(re.compile(pattern), made) for pattern, made in layout.rules]


def _rewritten(
    name: str, rules: Iterable[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]
) -> str:
    for pattern, made in rules:
        match = pattern.fullmatch(name)
        if match is not None:
            return match.expand(made) if isinstance(made, str) else made(match)
    return name


def _complete(name: str, held: Mapping[int, str]) -> tuple[str, ...]:
    missing = [number for number in range(max(held) + 1) if number not in held]
    if missing:
        raise CheckpointError(
            f"{short(name)} is stored in parts, of which only {', '.join(held.values())} are there;"
            " fetch the checkpoint again"
        )
    return tuple(held[number] for number in sorted(held))
