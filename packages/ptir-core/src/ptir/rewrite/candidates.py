"""Which values may be the operands that a skeleton found: those behind its views that fit.

A signature names operands as functionals do: ``x[...,D] weight[D]``. A letter is one size, ``...``
any axes; element types are f32 unless said.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ptir.ir.graph import SOURCE, Ref
from ptir.ops.record import op
from ptir.rewrite.constants import uniform
from ptir.rewrite.skeleton import bare

EACH: Final = 4
"""Most candidates for one operand."""
TOGETHER: Final = 512
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
    """Views of a value that fit; where none does, one with axes of size 1 added or dropped.

    Of four axes the two in the middle may be the other way round: heads and steps.
    """
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
    if len(slot.axes) == 4 and not slot.open:
        turned = [op("transpose")(view, permutation=(0, 2, 1, 3)) for view in fitting[:EACH]]
        fitting = [*fitting[:EACH], *turned]
    return fitting[: 2 * EACH]


def _reshaped(slot: Slot, value: Ref) -> Iterator[Ref]:
    shape, rank = value.type.shape, len(slot.axes)
    computed = bare(value).node.op not in (SOURCE, "constant")
    if value.type.dtype.name not in slot.dtypes or (rank == 1 and computed):
        return
    if len(shape) < rank:
        wanted = (1,) * (rank - len(shape)) + shape
    else:
        wanted = tuple(n for n in shape if n != 1)
        wanted = (1,) * (rank - len(wanted)) + wanted
    if len(wanted) == rank:
        yield op("reshape")(value, shape=wanted)


def _split(slot: Slot, value: Ref, sizes: Mapping[str, int]) -> Iterator[Ref]:
    """A value whose heads and steps are joined, apart again: the sizes of other operands tell."""
    unknown = [axis for axis in slot.axes if axis not in sizes]
    known = math.prod(sizes[axis] for axis in slot.axes if axis in sizes)
    size = value.type.size
    if value.type.dtype.name not in slot.dtypes or len(unknown) > 1 or not known or size % known:
        return
    full = {**sizes, **dict.fromkeys(unknown, size // known)}
    shape = tuple(full[axis] for axis in slot.axes)
    if math.prod(shape) == size:
        swapped = (shape[0], shape[2], shape[1], shape[3])
        yield op("transpose")(op("reshape")(value, shape=swapped), permutation=(0, 2, 1, 3))
        yield op("reshape")(value, shape=shape)


def assignments(
    signature: Mapping[str, Slot], bound: Mapping[str, Ref], root: Ref
) -> Iterator[dict[str, Ref]]:
    """Operands in the order of the signature; those it does not name stay as they are."""
    choices = {
        name: _candidates(signature[name], value, root) if name in signature else [value]
        for name, value in bound.items()
    }
    yield from itertools.islice(_agreeing(signature, bound, choices, {}, {}), TOGETHER)


def _agreeing(
    signature: Mapping[str, Slot],
    bound: Mapping[str, Ref],
    choices: Mapping[str, list[Ref]],
    named: dict[str, Ref],
    sizes: Mapping[str, int],
) -> Iterator[dict[str, Ref]]:
    """Every way to go on from what is ``named``, in which a letter is one size."""
    if len(named) == len(bound):
        yield {name: named[name] for name in bound}
        return
    name = next(n for n in bound if n not in named)
    slot = signature.get(name)
    values: Iterable[Ref] = choices[name]
    if slot is not None and len(slot.axes) == 4 and not slot.open:
        values = itertools.chain(values, _split(slot, bound[name], sizes))
    for value in values:
        found = sizes if slot is None else _sizes(slot, value, sizes)
        if found is not None:
            yield from _agreeing(signature, bound, choices, {**named, name: value}, found)


def _sizes(slot: Slot, value: Ref, sizes: Mapping[str, int]) -> Mapping[str, int] | None:
    """The sizes of all letters with those of a value, or None where they differ."""
    found = dict(sizes)
    ends = value.type.shape[value.type.rank - len(slot.axes) :]
    for axis, size in zip(slot.axes, ends, strict=True):
        if found.setdefault(axis, size) != size:
            return None
    return found
