"""Several runs of one executable on changing operands, and what that must not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ptir_testsuite.corpus.sweeps import LETTERS
from ptir_testsuite.running.execute import Failed
from ptir_testsuite.running.outcomes import Outcome

RUNS: Final = "".join(LETTERS[place] for place in (0, 1, 1, 0, 1))
"""On which operands each run is: the second, the third and the last differ from the first."""


def in_turns(what: str, run: Callable[[str], Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """What the runs give, by operands.

    The same operands must give the same bits: whatever a run keeps for the next (results, where
    operands lie, numbers that were read on the host) gives itself away.
    """
    found: dict[str, Sequence[Any]] = {}
    for turn, letter in enumerate(RUNS):
        now = run(letter)
        for place, (one, other) in enumerate(zip(found.setdefault(letter, now), now, strict=True)):
            if np.asarray(one).tobytes() != np.asarray(other).tobytes():
                text = (
                    f"{what}: run {turn + 1} of {len(RUNS)} gave other bits for output {place} than"
                    f" run {RUNS.index(letter) + 1}, whose operands were the same"
                )
                raise Failed(Outcome.MISMATCH, "execute", text)
    return found
