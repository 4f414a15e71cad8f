"""What calibration is asked for, and what it found: what writers of quantized models take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptir.params.source import Array, ParamSource
from ptir.runtime.calibration.text import SAMPLES
from ptir.weights.gptq import DAMPING


@dataclass(frozen=True)
class Calibration:
    """How weights are to be quantized for what they meet in a text.

    ``method`` is a row of ``METHODS``; up to ``samples`` windows of ``window`` tokens are read, of
    more in ``file`` those that ``seed`` draws. ``damping`` and ``act_order`` are GPTQ's.
    """

    method: str
    file: Path
    samples: int = SAMPLES
    window: int | None = None
    seed: int = 0
    damping: float = DAMPING
    act_order: bool = True


@dataclass
class Calibrated:
    """What calibration found, by the names of a model's parameters.

    ``arrays`` are matrices that are quantized already, as their formats' records have them, rows
    in the order of outputs; what is not there is rounded, from ``source``. ``adapted`` are the
    matrices that ``source`` has as they are best rounded; ``clipped`` says why some of these have
    only their extremes cut, and no scales. ``rounded`` says why others have nothing from
    calibration, ``unreached`` which experts of a matrix no token came to.
    """

    source: ParamSource
    arrays: dict[str, Mapping[str, Array]] = field(default_factory=dict)
    adapted: list[str] = field(default_factory=list)
    clipped: dict[str, str] = field(default_factory=dict)
    rounded: dict[str, str] = field(default_factory=dict)
    unreached: dict[str, list[int]] = field(default_factory=dict)
    windows: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def calibrated(self) -> list[str]:
        """The matrices that were quantized for the text."""
        return [*self.arrays, *self.adapted]

    def summary(self) -> dict[str, Any]:
        """All but the weights, for programs."""
        names = ("windows", "tokens", "seconds", "calibrated", "clipped", "rounded", "unreached")
        return {name: getattr(self, name) for name in names}

    def said(self) -> list[str]:
        """The same in lines for people."""
        count, every = len(self.calibrated), len(self.calibrated) + len(self.rounded)
        lines = [
            f"calibrated {count} of {every} matrices on {self.windows} window(s),"
            f" {self.tokens} tokens, in {self.seconds:.1f} s"
        ]
        for what, reasons in (("clipped only", self.clipped), ("rounded to nearest", self.rounded)):
            for why in dict.fromkeys(reasons.values()):
                names = [name for name, said in reasons.items() if said == why]
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                lines.append(f"{what}: {names[0]}{more}: {why}")
        if self.unreached:
            experts = sum(map(len, self.unreached.values()))
            name, first = next(iter(self.unreached.items()))
            lines.append(
                f"rounded to nearest: {experts} experts that no token of the text came to, such as"
                f" {first[0]} of {name}; a longer text reaches more"
            )
        return lines
