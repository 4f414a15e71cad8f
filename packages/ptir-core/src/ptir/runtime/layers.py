"""A model's program by layers: which part of a run belongs to which layer, and which are alike.

A part belongs to the layer in which the last of its instructions was captured (``h.3``,
``model.layers.11``), as the instruction's location says. One without instructions, a copy or a
launch behind another, belongs to the layer of what it writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from ptir.backend.contract import Derivation
from ptir.backend.explanation import UPDATES, Explanation, Part, functional_of, locations_of
from ptir.ir.location import Location
from ptir.ir.program import Instruction, Program
from ptir.ops.flops import flops
from ptir.ops.record import OPS
from ptir.params.rows import Rows

_HIDDEN: Final = frozenset(("constant", "iota", "ptir_unpack", "broadcast_to", "slice"))
"""What is never worth naming: it costs nothing inside a kernel."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of one run: of parameters, of the cache, of everything else read and written."""

    weights: int = 0
    cache_read: int = 0
    cache_written: int = 0
    other_read: int = 0
    other_written: int = 0

    def __add__(self, more: Traffic) -> Traffic:
        names = self.__dataclass_fields__
        return Traffic(**{n: getattr(self, n) + getattr(more, n) for n in names})

    @property
    def cache(self) -> int:
        """Bytes of the cache, read and written."""
        return self.cache_read + self.cache_written

    @property
    def other(self) -> int:
        """Bytes that are neither parameters nor cache, read and written."""
        return self.other_read + self.other_written

    @property
    def total(self) -> int:
        """All bytes that a run moves."""
        return self.weights + self.cache + self.other


@dataclass(frozen=True)
class LayerPart:
    """A part as a reader sees it; equal for equal parts of other layers."""

    kind: str
    name: str
    fused: tuple[str, ...]
    """The functionals and ops that it computes, in order; equal neighbours once."""
    parameters: tuple[str, ...]
    """The stored parameters that it reads, without their layer."""
    moved: Traffic
    items: int
    seconds: float | None = field(default=None, compare=False)
    schedule: str = ""
    """``coop`` or ``serial``, of a kernel."""
    locations: tuple[Location, ...] = field(default=(), compare=False)
    """Where what it computes comes from, in order; of equal layers those of the first."""
    flops: int = 0
    """Floating-point operations of what it computes, by definition (``ptir.ops.flops``)."""


@dataclass(frozen=True)
class Section:
    """Equal layers in a row, or parts that belong to none (then ``layers`` is empty)."""

    layers: tuple[str, ...]
    works: tuple[LayerPart, ...]
    """Of one layer; seconds are the mean over the layers."""

    @property
    def count(self) -> int:
        """How often the works run."""
        return max(1, len(self.layers))


class Layered:
    """The parts of a program with their layers; ``donated`` inputs are the cache."""

    def __init__(
        self,
        program: Program,
        explanation: Explanation,
        derived: Mapping[str, Derivation],
        donated: frozenset[int],
        seconds: Sequence[float] = (),
        rows: Mapping[str, Rows] | None = None,
    ) -> None:
        """``rows`` are the parameters that are some of another one."""
        self._rows = rows or {}
        self._program, self._block, self._derived = program, program.main, derived
        self._parts, self._donated = explanation.parts, donated
        self._seconds: Sequence[float | None] = seconds or [None] * len(self._parts)
        self._made = {v: i for results, i in self._block.numbered() for v in results}
        self._results = [results for results, _ in self._block.numbered()]

    def sections(self) -> tuple[Section, ...]:
        """The parts in order, layer by layer; equal neighbouring layers are one section."""
        layers = [self._layer(part) for part in self._parts]
        runs: list[tuple[str | None, tuple[LayerPart, ...]]] = []
        order = sorted(range(len(self._parts)), key=_order(layers).__getitem__)
        for layer, numbers in groupby(order, key=layers.__getitem__):
            runs.append((layer, _without_views([self._work(n, layer) for n in numbers])))
        found: list[Section] = []
        for _, alike in groupby(runs, key=lambda run: (run[0] is not None, run[1])):
            members = list(alike)
            names = tuple(layer for layer, _ in members if layer is not None)
            found.append(Section(names, _mean([works for _, works in members])))
        return tuple(found)

    def in_order(self) -> list[tuple[str, LayerPart]]:
        """Every part by itself, as the explanation has them, with its layer, or nothing."""
        layers = [self._layer(part) for part in self._parts]
        return [(layer or "", self._work(n, layer)) for n, layer in enumerate(layers)]

    @property
    def unaccounted(self) -> tuple[str, ...]:
        """Ops that the outputs need and no part computes: they would have to run elsewhere."""
        computed = {position for part in self._parts for position in part.members}
        maker = {v: n for n, results in enumerate(self._results) for v in results}
        needed: set[int] = set()
        pending = list(self._block.outputs)
        while pending:
            position = maker.get(pending.pop())
            if position is not None and position not in needed:
                needed.add(position)
                pending.extend(self._block.instructions[position].operands)
        missing = (self._block.instructions[n] for n in sorted(needed - computed))
        return tuple(i.name for i in missing if i.op != "constant")

    def _layer(self, part: Part) -> str | None:
        """The layer of the last instruction that is worth naming, as its location says."""
        made = [self._made[a.value] for a in part.writes if a.value in self._made]
        return next((i.location.layer or None for i in reversed(self._telling(part) or made)), None)

    # --- parts ---

    def _work(self, number: int, layer: str | None) -> LayerPart:
        part = self._parts[number]
        names = tuple(name.removeprefix(f"{layer}.") for name in self._stored(part))
        moved = sum((self._moved(part, n) for n in range(2)), Traffic())
        fused = tuple(self._fused(part))
        seconds, schedule = self._seconds[number], part.schedule
        places = locations_of(part, self._block)
        return LayerPart(
            part.kind,
            part.name,
            fused,
            names,
            moved,
            part.items,
            seconds,
            schedule,
            places,
            self._flops(part),
        )

    def _flops(self, part: Part) -> int:
        members = (self._block.instructions[position] for position in part.members)
        types = self._block.types
        return sum(flops(one, [types[v] for v in one.operands]) for one in members)

    def _stored(self, part: Part) -> tuple[str, ...]:
        """The stored parameters that a part reads, the ones behind derived ones included."""
        ports = self._program.ports
        read = (ports[a.value].name for a in part.reads if a.value < len(ports))
        kinds = {port.name for port in ports if port.kind == "parameter"}
        return tuple(dict.fromkeys(o for n in read if n in kinds for o in self.origins(n)))

    def origins(self, name: str) -> Iterable[str]:
        """The stored parameters that a parameter is computed from; itself if it is stored."""
        name = self._rows[name].parameter if name in self._rows else name
        if name not in self._derived:
            return (name,)
        return [o for port in self._derived[name].ports for o in self.origins(port.name)]

    def _moved(self, part: Part, direction: int) -> Traffic:
        total = Traffic()
        for access in (part.reads, part.writes)[direction]:
            value = self._origin(access.value)
            ports = self._program.ports
            if value < len(ports) and ports[value].kind == "parameter":
                total += Traffic(weights=access.nbytes)
            else:
                kind = "cache" if value in self._donated else "other"
                total += Traffic(**{f"{kind}_{('read', 'written')[direction]}": access.nbytes})
        return total

    def _origin(self, value: int) -> int:
        """The value whose memory a value lies in: updates are in place."""
        while (made := self._made.get(value)) is not None and made.name in UPDATES:
            value = made.operands[0]
        return value

    def _fused(self, part: Part) -> Iterable[str]:
        return (name for name, _ in groupby(map(functional_of, self._telling(part))))

    def _telling(self, part: Part) -> list[Instruction]:
        """The instructions of a part that are worth naming, or all where none is."""
        members = [self._block.instructions[position] for position in part.members]
        return [i for i in members if i.name not in _HIDDEN and not _is_view(i.op)] or members


def _is_view(op: str) -> bool:
    return op != "composite" and "view" in OPS[op].traits


def _order(layers: Sequence[str | None]) -> list[int]:
    """Where each part goes: a layer's parts together at its first one, others out of the layers."""
    first: dict[str, int] = {}
    for number, layer in enumerate(layers):
        if layer is not None:
            first.setdefault(layer, number)
    begin = min(first.values(), default=0)
    end = max((n for n, layer in enumerate(layers) if layer is not None), default=0)
    return [
        first[layer] if layer is not None else begin - 1 if begin < n < end else n
        for n, layer in enumerate(layers)
    ]


def _without_views(works: Sequence[LayerPart]) -> tuple[LayerPart, ...]:
    """The works with all ops that move nothing in one, at the end, whichever they are."""
    views = [work for work in works if work.kind == "op" and not work.moved.total]
    if not views:
        return tuple(works)
    seconds = sum(work.seconds or 0.0 for work in views)
    known = seconds if views[0].seconds is not None else None
    together = LayerPart("op", "views", (), (), Traffic(), 1, known)
    return (*(work for work in works if work not in views), together)


def _mean(runs: Sequence[tuple[LayerPart, ...]]) -> tuple[LayerPart, ...]:
    """The works of one of several equal runs, with their mean seconds."""
    result: list[LayerPart] = []
    for column in zip(*runs, strict=True):
        known = [work.seconds for work in column if work.seconds is not None]
        mean = sum(known) / len(known) if known else None
        result.append(replace(column[0], seconds=mean))
    return tuple(result)
