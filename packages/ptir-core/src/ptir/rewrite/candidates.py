"""Which values may be the operands that a skeleton found: those behind its views that fit.

A signature names operands as functionals do: ``x[...,D] weight[D]``. A letter is one size, ``...``
any axes; element types are f32 unless said.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ptir.ir.graph import Ref
from ptir.ops.record import op
from ptir.rewrite.constants import uniform
from ptir.rewrite.skeleton import bare

EACH: Final = 4
"""Most candidates for one operand."""
TOGETHER: Final = 48
"""Most combinations of them."""

_OPERAND: Final = re.compile(
    r"(?P<name>\w+)(?P<scaled>\*?)(?::(?P<dtypes>[\w|]+))?\[(?P<axes>[\w.,]*)\]"
)


@dataclass(frozen=True)
class Slot:
    """One operand of a signature; ``open``: more axes may lead."""

    name: str
    dtypes: tuple[str, ...]
    axes: tuple[str, ...]
    open: bool
    scaled: bool = False
    """Whether numbers that it is multiplied by belong to what is computed of it (``q*``)."""

    def fits(self, value: Ref) -> bool:
        """Whether a value has the element type and as many axes."""
        count = len(self.axes)
        ranked = value.type.rank >= count if self.open else value.type.rank == count
        return ranked and value.type.dtype.name in self.dtypes


def slots(signature: str) -> dict[str, Slot]:
    """The operands of a signature by name."""
    found = {}
    for text in signature.split():
        match = _OPERAND.fullmatch(text)
        if match is None:
            raise ValueError(f"signature operand {text!r}: write it as weight:f32|bf16[K,N]")
        axes = tuple(filter(None, match["axes"].split(",")))
        dtypes = tuple((match["dtypes"] or "f32").split("|"))
        own = axes[axes[:1] == ("...",) :]
        found[match["name"]] = Slot(
            match["name"], dtypes, own, "..." in axes, bool(match["scaled"])
        )
    return found


def _views(value: Ref, *, scaled: bool = False) -> list[Ref]:
    """A value and what is behind its views, and behind numbers if ``scaled``."""
    found, last = [value], bare(value)
    while found[-1].key != last.key:
        found.append(found[-1].node.operands[0])
    if scaled and last.node.op in ("mul", "div"):
        factors = [f for f in last.node.operands if uniform(f) is None]
        if len(factors) == 1 and (last.node.op == "mul" or factors[0] is last.node.operands[0]):
            found += _views(factors[0], scaled=True)
    return found


def _candidates(slot: Slot, value: Ref, root: Ref) -> list[Ref]:
    """Views of a value that fit; where none does, one with axes of size 1 added or dropped."""
    fitting = [view for view in _views(value, scaled=slot.scaled) if slot.fits(view)]
    if slot.open:
        fitting.sort(key=lambda view: view.type.shape != root.type.shape)
    else:
        fitting.reverse()  # what is behind the views first
        fitting.sort(key=lambda view: view.type.nbytes)
    if not fitting and not slot.open:
        fitting = [
            made for view in _views(value, scaled=slot.scaled) for made in _reshaped(slot, view)
        ]
    return fitting[:EACH]


def _reshaped(slot: Slot, value: Ref) -> Iterator[Ref]:
    shape, rank = value.type.shape, len(slot.axes)
    if value.type.dtype.name not in slot.dtypes:
        return
    if len(shape) < rank:
        wanted = (1,) * (rank - len(shape)) + shape
    else:
        wanted = tuple(n for n in shape if n != 1)
        wanted = (1,) * (rank - len(wanted)) + wanted
    if len(wanted) == rank:
        yield op("reshape")(value, shape=wanted)


def assignments(
    signature: Mapping[str, Slot], bound: Mapping[str, Ref], root: Ref
) -> Iterator[dict[str, Ref]]:
    """Operands in the order of the signature; those it does not name stay as they are."""
    choices = [
        _candidates(signature[name], value, root) if name in signature else [value]
        for name, value in bound.items()
    ]
    for values in itertools.islice(itertools.product(*choices), TOGETHER):
        named = dict(zip(bound, values, strict=True))
        if _agree(signature, named):
            yield named


def _agree(signature: Mapping[str, Slot], named: Mapping[str, Ref]) -> bool:
    """Whether every letter is one size."""
    sizes: dict[str, int] = {}
    for name, value in named.items():
        axes = signature[name].axes if name in signature else ()
        for axis, size in zip(axes, value.type.shape[value.type.rank - len(axes) :], strict=True):
            if sizes.setdefault(axis, size) != size:
                return False
    return True
