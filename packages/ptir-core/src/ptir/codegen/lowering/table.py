"""**What a language may lack**, and the pass that removes it: table ``LOWERINGS``, in order.

A pass leaves nothing of what it removes and makes nothing that one above removed; ``remaining``
checks that. The number of buffers is not a matter of have or have not, so it comes last, apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from ptir.codegen.lowering import bindings
from ptir.codegen.lowering.constants import Constants
from ptir.codegen.lowering.doubles import Doubles
from ptir.codegen.lowering.functions import Functions
from ptir.codegen.lowering.halves import Halves
from ptir.codegen.lowering.lanes import Lanes
from ptir.codegen.lowering.longs import Longs
from ptir.codegen.lowering.masks import Masks
from ptir.codegen.lowering.matrices import Matrices
from ptir.codegen.lowering.narrow import Narrow
from ptir.codegen.lowering.numbers import Numbers
from ptir.codegen.lowering.prefetches import Prefetches
from ptir.codegen.lowering.reinterpreted import Reinterpreted
from ptir.codegen.lowering.rewriting import Body, Rewriter
from ptir.codegen.lowering.specials import Specials
from ptir.codegen.lowering.vectors import Vectors

LOWERINGS: Final[Mapping[str, type[Rewriter]]] = {
    "wide values": Lanes,
    "prefetches": Prefetches,
    "matrix instructions": Matrices,
    "f64": Doubles,
    "masks": Masks,
    "narrow floats": Halves,
    "narrow integers": Narrow,
    "64-bit integers": Longs,
    "functions": Functions,
    "NaN and signed zeros": Numbers,
    "overflowing constants": Constants,
    "special literals": Specials,
    "casts of pointers": Reinterpreted,
    "mixed loads": Vectors,
}

EVERYTHING: Final = frozenset(LOWERINGS)
"""All that a language may lack."""


def lowered(body: Body, lacks: Collection[str], most: int = 0) -> Body:
    """The kernel without what a language lacks, and with at most ``most`` buffers (0: any number).

    Raises ``UnsupportedError`` for what nothing can stand for.
    """
    for lack, lowering in LOWERINGS.items():
        if lack in lacks:
            body = lowering.without(body)
    return bindings.without(body, most)


def remaining(body: Body, lacks: Collection[str], most: int = 0) -> list[str]:
    """What of a kernel a language lacks, each as a sentence; nothing after ``lowered``."""
    rows = ((lack, lowering) for lack, lowering in LOWERINGS.items() if lack in lacks)
    found = [f"{lack}: {what}" for lack, lowering in rows for what in lowering.remaining(body)]
    return found + bindings.remaining(body, most)
