"""The arithmetic of a softmax that runs along with its scores: a greatest one so far, and weights.

Weights are taken relative to the greatest score with those at hand, and what was summed before is
rescaled whenever that grows (Dao et al. 2022).
"""

from __future__ import annotations

import math
from typing import Final

from ptir.codegen.expressions.expr import Apply, Expr, compare, constant, select
from ptir.types import F32

NOTHING: Final = constant(F32, -math.inf)
"""The score of a key that is not seen."""
SMALLEST: Final = 2.0**-126
"""The smallest normal number of f32."""


def shift(now: Expr) -> Expr:
    """What is subtracted from scores: the greatest, where a key was seen."""
    return select(compare("eq", now, NOTHING), constant(F32, 0.0), now)


def weight(score: Expr, less_by: Expr) -> Expr:
    """The weight of a score, of which ``shift`` of the greatest is subtracted.

    Beside the greatest one, which is 1, a weight below the normal numbers is none: it would add
    less than 2**-126 of a value, and products with it take many times as long on Intel's
    processors.
    """
    found = Apply(F32, "exp", score - less_by)
    return select(compare("lt", found, SMALLEST), constant(F32, 0.0), found)


def divisor(total: Expr) -> Expr:
    """What results are divided by: the sum of weights, where a key was seen."""
    return select(compare("eq", total, 0.0), constant(F32, 1.0), total)


def greater(a: Expr, b: Expr) -> Expr:
    """``a`` where it is above ``b``, else ``b``, which a NaN in ``a`` leaves alone."""
    return select(compare("gt", a, b), a, b)


def within(here: Expr, low: Expr, high: Expr) -> Expr:
    """Whether a position is one from ``low`` up to ``high``."""
    return compare("ge", here, low) & compare("lt", here, high)
