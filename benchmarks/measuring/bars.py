"""The bars: what backends of generated kernels have to reach, and the table that shows it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

FORMATS: dict[str, tuple[str, str | None]] = {
    "f32": ("f32", None),
    "bf16": ("bf16", None),
    "int8": ("f32", "int8"),
    "int4": ("f32", "int4"),
}
"""The storage type and the quantization of each weight format."""


@dataclass(frozen=True)
class Bars:
    """What a backend has to reach, by weight format.

    ``share``: decoding, weights read per second over the probe of the same round; ``decode`` and
    ``prefill``: over llama.cpp.
    """

    share: dict[str, float]
    decode: dict[str, float]
    prefill: dict[str, float]


FIRST = Bars(
    {"f32": 0.78, "bf16": 0.66, "int8": 0.62, "int4": 0.50},
    {"f32": 0.93, "bf16": 0.92, "int8": 0.98, "int4": 0.94},
    {"f32": 1.6, "bf16": 1.0, "int8": 1.6, "int4": 1.0},
)
SECOND = Bars(
    {"f32": 0.88, "bf16": 0.85, "int8": 0.85, "int4": 0.82},
    {"f32": 1.05, "bf16": 1.15, "int8": 1.35, "int4": 1.6},
    {"f32": 1.8, "bf16": 1.1, "int8": 1.75, "int4": 1.1},
)


def between(low: Bars, high: Bars, part: float) -> Bars:
    """Bars that lie ``part`` of the way from one to the other."""
    tables = ((getattr(low, f.name), getattr(high, f.name)) for f in fields(Bars))
    return Bars(*({n: a[n] + part * (b[n] - a[n]) for n in a} for a, b in tables))


BARS = {"first": FIRST, "three-quarters": between(FIRST, SECOND, 0.75), "second": SECOND}
"""By name (``--bars``)."""
USUAL = {"c": "second"}
"""The name by backend; ``first`` for every other."""
FAST_PREFILL_LLAMA = {"bf16": 1.8, "int8": 4.0, "int4": 2.4}
"""With dot implementations (``--fast``)."""
PREFILL_REFERENCE = 2.0
ROWS = 0.85
"""Layer norm and softmax over copying."""
REPLAY_SECONDS = 3e-6
"""Of the host, for each launch."""
MEMORY = 1.15
"""Peak device bytes over parameters and cache."""
COLD_SECONDS = 1.5
"""From a cold process to the first token, with kernels built before."""

COMPILE_SECONDS = 2.0
"""Capturing and compiling a whole step, with nothing built before."""
DEMO = 1.2
"""A cold process to its first token, over the reference, with kernels built before."""
PROMPTS = 2.5
"""Tokens a second of four prompts at once, over one."""
CONVOLUTIONS = 1.0
"""PyTorch's time for all convolutions of ResNet34 over ours."""
GROWTH = 1.25
"""What a token costs more in a long context, over reading the cache: our own measure of "only"."""


@dataclass(frozen=True)
class Row:
    """One line of the table: samples of a figure, and the bar where it has one."""

    subject: str
    figure: str
    samples: Sequence[float]
    unit: str = ""
    bar: float | None = None
    at_most: bool = False
    digits: int | None = None
    """Behind the point, where the number's size does not decide."""

    @property
    def median(self) -> float:
        """What is compared with the bar."""
        return statistics.median(self.samples)

    @property
    def verdict(self) -> str:
        """``pass``, ``short`` or nothing."""
        if self.bar is None:
            return ""
        met = self.median <= self.bar if self.at_most else self.median >= self.bar
        return "pass" if met else "short"

    def json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "subject": self.subject,
            "figure": self.figure,
            "median": self.median,
            "min": min(self.samples),
            "max": max(self.samples),
            "samples": list(self.samples),
            "unit": self.unit,
            "bar": self.bar,
            "at_most": self.at_most,
            "verdict": self.verdict,
        }

    def cells(self) -> tuple[str, ...]:
        """For people."""
        low, high = self._said(min(self.samples)), self._said(max(self.samples))
        spread = f"{low.split()[0]} to {high}" if len(self.samples) > 1 else ""
        sign = "<=" if self.at_most else ">="
        bar = "" if self.bar is None else f"{sign} {self._said(self.bar)}"
        return self.subject, self.figure, self._said(self.median), spread, bar, self.verdict

    def _said(self, value: float) -> str:
        if self.unit == "%":
            return f"{value:.0%}"
        digits = self.digits
        if digits is None:
            digits = 0 if value >= 1000 else 1 if value >= 10 else 2
        return f"{value:.{digits}f}{' ' + self.unit if self.unit else ''}"


HEADINGS = ("", "figure", "median", "spread", "bar", "")


def table(rows: Sequence[Row]) -> str:
    """The rows as text in columns; a subject is said once."""
    lines = [HEADINGS]
    for number, row in enumerate(rows):
        again = number and rows[number - 1].subject == row.subject
        cells = row.cells()
        lines.append(("" if again else cells[0], *cells[1:]))
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    padded = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)
