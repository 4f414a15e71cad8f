"""Counts of what was rewritten, and where, for whoever listens."""

from __future__ import annotations

from typing import NamedTuple

from ptir.ir.graph import Node
from ptir.ir.location import Location


class Firing(NamedTuple):
    """One rewrite: the rule, or the pattern that was raised; the op that it looked at; where."""

    rule: str
    op: str
    location: Location


class Firings(dict[str, int]):
    """Counts by rule that also remember the places."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Firing] = []


def note(counts: dict[str, int], rule: str, node: Node) -> None:
    """Count one rewrite of what ``node`` computes."""
    counts[rule] = counts.get(rule, 0) + 1
    if isinstance(counts, Firings):
        counts.places.append(Firing(rule, node.op, node.location))
