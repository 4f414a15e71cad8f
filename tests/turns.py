"""A step that is fed with what it gave, for tests of many turns in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptir
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.jit import Jitted, jit


def turning_step() -> Jitted[Any, Any]:
    """``x f32[3,40], seen f32[40], weight f32[40,40]``: new ``x`` and ``seen``, and best places."""

    @jit(donate=("seen",))
    def step(x: Any, seen: Any, weight: Any) -> Any:
        y = F.tanh(x @ weight)
        return y, seen + y.sum(axis=0), y.argmax(axis=1)

    return step


def turning_operands(target: Target) -> tuple[Any, ...]:
    """What the first turn is given: the same every time."""
    rng = np.random.default_rng(3)
    arrays = rng.normal(size=(3, 40)), np.zeros(40), rng.normal(size=(40, 40)) / 4
    return tuple(ptir.tensor(a.astype("f4"), backend=target) for a in arrays)
