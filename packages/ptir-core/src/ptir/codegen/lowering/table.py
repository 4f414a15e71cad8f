"""**What a language may lack**, and the pass that removes it: table ``LOWERINGS``, in order.

A pass leaves nothing of what it removes and makes nothing that one above removed; ``remaining``
checks that. The number of buffers is not a matter of have or have not, so it comes last, apart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from ptir.codegen.lowering import (
    bindings,
    constants,
    doubles,
    functions,
    halves,
    lanes,
    longs,
    masks,
    matrices,
    narrow,
    numbers,
    prefetches,
    reinterpreted,
    specials,
    vectors,
)
from ptir.codegen.lowering.rewriting import Body


class Lowering(NamedTuple):
    """A row: what is lacking, what removes it, and where it still stands."""

    lack: str
    without: Callable[[Body], Body]
    remaining: Callable[[Body], list[str]]


LOWERINGS: Final = (
    Lowering("wide values", lanes.without, lanes.remaining),
    Lowering("prefetches", prefetches.without, prefetches.remaining),
    Lowering("matrix instructions", matrices.without, matrices.remaining),
    Lowering("f64", doubles.without, doubles.remaining),
    Lowering("masks", masks.without, masks.remaining),
    Lowering("narrow floats", halves.without, halves.remaining),
    Lowering("narrow integers", narrow.without, narrow.remaining),
    Lowering("64-bit integers", longs.without, longs.remaining),
    Lowering("functions", functions.without, functions.remaining),
    Lowering("NaN and signed zeros", numbers.without, numbers.remaining),
    Lowering("overflowing constants", constants.without, constants.remaining),
    Lowering("special literals", specials.without, specials.remaining),
    Lowering("casts of pointers", reinterpreted.without, reinterpreted.remaining),
    Lowering("mixed loads", vectors.without, vectors.remaining),
)

EVERYTHING: Final = frozenset(row.lack for row in LOWERINGS)
"""All that a language may lack."""


def lowered(body: Body, lacks: Collection[str], most: int = 0) -> Body:
    """The kernel without what a language lacks, and with at most ``most`` buffers (0: any number).

    Raises ``UnsupportedError`` for what nothing can stand for.
    """
    for row in LOWERINGS:
        if row.lack in lacks:
            body = row.without(body)
    return bindings.without(body, most)


def remaining(body: Body, lacks: Collection[str], most: int = 0) -> list[str]:
    """What of a kernel a language lacks, each as a sentence; nothing after ``lowered``."""
    rows = (row for row in LOWERINGS if row.lack in lacks)
    found = [f"{row.lack}: {what}" for row in rows for what in row.remaining(body)]
    return found + bindings.remaining(body, most)
