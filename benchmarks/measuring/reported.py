"""What a benchmark prints and keeps: a table of each part as it is done, and JSON after each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from measuring import bars
from measuring.bars import Row
from measuring.origin import origin
from measuring.others import Others

IDLE = 0.05
"""The most of the processors that others may take from figures that count."""


@dataclass
class Reported:
    """The rows so far; ``given`` is the command line, with ``json`` where they are kept."""

    given: argparse.Namespace
    rows: list[Row] = field(default_factory=list[Row])

    def add(self, measure: Callable[[], list[Row]]) -> None:
        """Measure a part, print it, and say where others took too much of the processors."""
        others = Others()
        more = measure()
        if (taken := others.share()) is not None:
            more.append(Row(more[0].subject, "processors taken by others", [taken], "%"))
        self.rows.extend(more)
        print(bars.table(more))
        if taken is not None and taken > IDLE:
            print(f"! others took {taken:.0%} of the processors: measure again")
        print(flush=True)
        if self.given.json:
            found = origin(self.given) | {"rows": [row.json() for row in self.rows]}
            self.given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def judge(self) -> None:
        """Print how many bars are reached, and which are not."""
        judged = [row for row in self.rows if row.verdict]
        short = [f"{row.subject}: {row.figure}" for row in judged if row.verdict == "short"]
        print(f"{len(judged) - len(short)} of {len(judged)} bars reached")
        print("".join(f"  short: {one}\n" for one in short), end="")
