"""The scatter family: updates folded into a tensor at places known at run time, in place.

Updates of one place are folded in their order. Different batches and different elements of a part
never meet, so an item owns a run of those and goes through all updates. 16-bit results grow as f32
in scratch memory and are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from ptir.codegen.elementwise import NARROW, cast, maximum, minimum, rounded
from ptir.codegen.expr import Apply, Expr, Load, as_index, compare, constant
from ptir.codegen.graph import Graph
from ptir.codegen.index import Axis, Index, axis, digits, flatten
from ptir.codegen.kernel import Family, Group, Kernel, Site, finished, scratch_value
from ptir.codegen.writer import Writer
from ptir.types import BOOL, F32, I32, I64, DType, TensorType

FOLDS: Final[dict[str, Callable[[DType, Expr, Expr], Expr]]] = {
    "add": lambda dtype, a, b: Apply(dtype, "add", a, b),
    "mul": lambda dtype, a, b: Apply(dtype, "mul", a, b),
    "max": maximum,
    "min": minimum,
    "replace": lambda dtype, a, b: b,
}


def match(graph: Graph, position: int) -> Group | None:
    """Every scatter."""
    made = graph.block.instructions[position]
    if made.op != "scatter_reduce":
        return None
    (result,) = graph.results[position]
    operand = made.operands[0]
    return Group(
        "scatter",
        frozenset((position,)),
        made.operands,
        (result,),
        exact=(operand,),
        shares={result: operand},
    )


def write(group: Group, site: Site) -> Kernel:
    """A loop over what never meets, inside it one over the updates."""
    return _Scatter(group, site).kernel()


class _Scatter:
    def __init__(self, group: Group, site: Site) -> None:
        (position,) = group.members
        self.group, self.site, self.graph = group, site, site.graph
        self.made = self.graph.block.instructions[position]
        self.writer: Writer = site.writer()
        self.builder = site.builder()
        self.type = self.made.types[0]
        self.axes: tuple[int, ...] = self.made.attributes["axes"]
        self.batch: int = self.made.attributes["batch"]
        indices = self.graph.type(self.made.operands[1]).shape
        self.batches = indices[: self.batch]
        self.places = indices[self.batch : -1]
        taken = (*range(self.batch), *self.axes)
        self.kept = [a for a in range(self.type.rank) if a not in taken]
        self.parts = [self.type.shape[a] for a in self.kept]
        self.narrow = self.type.dtype in NARROW and self.made.attributes["kind"] != "replace"

    def kernel(self) -> Kernel:
        """An item per run of (batch, element of a part)."""
        writer = self.writer
        apart = math.prod(self.batches) * math.prod(self.parts)
        updates = math.prod(self.places)
        items = self.site.items(apart, apart * (updates * 8 + self.type.size))
        writer.share(apart, items)
        with writer.loop(Axis("s", apart), "first", "last"):
            split = digits(axis("s", apart), (*self.batches, *self.parts))
            batch, part = split[: self.batch], split[self.batch :]
            if self.narrow:
                self._each_place(batch, part, self._widen)
            with writer.loop(Axis("n", updates), "0", str(updates)):
                self._update(batch, digits(axis("n", updates), self.places), part)
            if self.narrow:
                self._each_place(batch, part, self._narrow)
        scratch = (TensorType(F32, self.type.shape),) if self.narrow else ()
        return finished(self.group, writer, items, scratch)

    def _at(
        self, batch: tuple[Index, ...], place: tuple[Index, ...], part: tuple[Index, ...]
    ) -> Index:
        """The flat position of an element of the result."""
        found = dict(zip(self.axes, place, strict=True)) | dict(zip(self.kept, part, strict=True))
        rest = range(self.batch, self.type.rank)
        return flatten((*batch, *(found[a] for a in rest)), self.type.shape)

    def _each_place(
        self, batch: tuple[Index, ...], part: tuple[Index, ...], body: Callable[[Index], None]
    ) -> None:
        sizes = [self.type.shape[a] for a in self.axes]
        with self.writer.loop(Axis("p", math.prod(sizes)), "0", str(math.prod(sizes))):
            body(self._at(batch, digits(axis("p", math.prod(sizes)), sizes), part))

    def _widen(self, at: Index) -> None:
        found = Apply(F32, "convert", Load(self.type.dtype, self.group.exits[0], at))
        self.writer.store(scratch_value(self.group, 0), F32, at, found)

    def _narrow(self, at: Index) -> None:
        grown = Load(F32, scratch_value(self.group, 0), at)
        self.writer.store(self.group.exits[0], self.type.dtype, at, rounded(self.type.dtype, grown))

    def _update(
        self, batch: tuple[Index, ...], place: tuple[Index, ...], part: tuple[Index, ...]
    ) -> None:
        """Fold one update in, if its place lies inside."""
        writer = self.writer
        numbers = list(self._numbers(batch, place))
        inside: Expr = constant(BOOL, 1)
        for number, size in zip(numbers, (self.type.shape[a] for a in self.axes), strict=True):
            above = compare("ge", number, constant(number.dtype, 0))
            below = compare("lt", number, constant(number.dtype, size))
            inside = Apply(BOOL, "and", inside, Apply(BOOL, "and", above, below))
        with writer.block(f"if ({writer.scalar(inside)})"):
            target = [
                as_index(Apply(I32, "convert", number), 0, self.type.shape[a] - 1)
                for number, a in zip(numbers, self.axes, strict=True)
            ]
            at = self._at(batch, tuple(target), part)
            update = self.builder.at(self.made.operands[2], (*batch, *place, *part))
            dtype = F32 if self.narrow else self.type.dtype
            value = scratch_value(self.group, 0) if self.narrow else self.group.exits[0]
            fold = FOLDS[self.made.attributes["kind"]]
            folded = fold(dtype, Load(dtype, value, at), cast(dtype, update))
            writer.store(value, dtype, at, folded)

    def _numbers(self, batch: tuple[Index, ...], place: tuple[Index, ...]) -> Iterator[Expr]:
        """The components of an update's place, wide enough to be compared with any size."""
        for component in range(len(self.axes)):
            at = (*batch, *place, axis("c", 1) + component)
            found = self.builder.at(self.made.operands[1], at)
            if found.dtype.bits < I32.bits:
                found = Apply(I32, "convert", found)
            elif found.dtype.kind == "uint" and found.dtype.bits == I32.bits:
                found = Apply(I64, "convert", found)
            yield found


FAMILY = Family("scatter", match, write)
