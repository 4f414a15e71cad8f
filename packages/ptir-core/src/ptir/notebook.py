"""What a notebook shows of an object: one record, a card, as plain text and as HTML.

A class lists what is to be seen of it in ``card``; ``Displayed`` makes the representations of that.
They are bounded, whatever the object holds, and all text in them is escaped. The HTML stands alone
(no script, no style sheet) and takes the page's colors, so it is readable on dark and on light.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MOST_ROWS: Final = 60
"""Rows of a table that are shown."""
MOST_CELL: Final = 200
"""Characters of a fact, a title or a cell that are shown."""
MOST_TEXT: Final = 8_000
"""Characters of a text that are shown."""

_LINE: Final = "1px solid rgba(128,128,128,.35)"
_CELL: Final = f"border:0;border-bottom:{_LINE};padding:1px 10px;color:inherit;background:none;"
_STYLES: Final = {
    "div": f"display:inline-block;box-sizing:border-box;max-width:100%;overflow-x:auto;"
    f"border:{_LINE};border-radius:4px;padding:6px 10px",
    "table": "border-collapse:collapse;margin:4px 0 0 0;color:inherit",
    "pre": "margin:4px 0 0 0;padding:0;max-height:30em;overflow:auto;color:inherit;background:none;"
    "white-space:pre",
    "left": f"{_CELL}text-align:left;white-space:pre",
    "right": f"{_CELL}text-align:right;white-space:pre",
    "note": "opacity:.7;margin-top:4px",
}


@dataclass(frozen=True)
class Card:
    """What is shown: a title, facts (a name and a value each), a table, a text and a note.

    ``rows`` have as many cells as ``columns``; numbers stand to the right. What is longer than
    ``MOST_ROWS``, ``MOST_CELL`` or ``MOST_TEXT`` is cut, and says so.
    """

    title: str
    facts: Sequence[tuple[str, object]] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    text: str = ""
    note: str = ""

    def plain(self) -> str:
        """The card as plain text, columns aligned, without a newline at its end."""
        lines = [_cut(self.title)]
        width = max((len(name) for name, _ in self.facts), default=0)
        lines += [f"  {name:<{width}}  {_shown(value)}" for name, value in self.facts]
        if self.rows:
            lines += self._plain_table()
        lines += [self.more] if self.more else []
        lines += [_cut(self.text, MOST_TEXT)] if self.text else []
        return "\n".join([*lines, self.note] if self.note else lines)

    def html(self) -> str:
        """The card as one HTML element that needs nothing else."""
        parts = [f"<b>{_escaped(_shown(self.title))}</b>"]
        if self.facts:
            rows = ((name, _shown(value)) for name, value in self.facts)
            parts.append(_table("".join(_row(row) for row in rows)))
        if self.rows:
            head = _row(self.columns, self._right, "th")
            parts.append(_table(head + "".join(_row(r, self._right) for r in self._visible)))
        if self.text:
            parts.append(_element("pre", "pre", _escaped(_cut(self.text, MOST_TEXT))))
        notes = (_element("div", "note", _escaped(t)) for t in (self.more, self.note) if t)
        return _element("div", "div", "".join([*parts, *notes]))

    @property
    def more(self) -> str:
        """What says that rows are left out; nothing where all are shown."""
        left = len(self.rows) - MOST_ROWS
        return f"... {left:,} more rows" if left > 0 else ""

    @property
    def _visible(self) -> Sequence[Sequence[object]]:
        return self.rows[:MOST_ROWS]

    @property
    def _right(self) -> list[bool]:
        """Which columns hold numbers."""
        columns = zip(*self._visible, strict=True)
        return [all(isinstance(cell, int | float) for cell in column) for column in columns]

    def _plain_table(self) -> list[str]:
        table = [[*self.columns], *([_shown(cell) for cell in row] for row in self._visible)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, self._right, strict=True)
            ).rstrip()
            for row in table
        ]


class Displayed:
    """Base of what a notebook shows by its ``card``; computes and downloads nothing for it."""

    __slots__ = ()

    @abstractmethod
    def card(self) -> Card:
        """What is shown."""

    def _repr_html_(self) -> str:
        return self.card().html()


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else _cut(str(value))


def _cut(text: str, most: int = MOST_CELL) -> str:
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]}... ({left:,} more characters)"


def _escaped(text: str) -> str:
    import html  # with its table of entities

    return html.escape(text)


def _element(tag: str, style: str, inside: str) -> str:
    return f'<{tag} style="{_STYLES[style]}">{inside}</{tag}>'


def _table(rows: str) -> str:
    return _element("table", "table", rows)


def _row(cells: Sequence[object], right: Sequence[bool] = (), tag: str = "td") -> str:
    sides = right or [False] * len(cells)
    styles = ("right" if side else "left" for side in sides)
    inside = (
        _element(tag, style, _escaped(_shown(c))) for c, style in zip(cells, styles, strict=True)
    )
    return f"<tr>{''.join(inside)}</tr>"
