"""A model's program by layers: which part of a run belongs to which layer, and which are alike.

A layer is told from the names of the parameters: everything up to the first number in a name
(``h.3``, ``model.layers.11``). A part without such parameters belongs where its operands come from,
else where its result goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from ptir.backend.contract import Derivation
from ptir.backend.explanation import UPDATES, Explanation, Part, functional_of
from ptir.ir.program import Program
from ptir.ops.record import OPS

_LAYER: Final = re.compile(r"^(?:[^.]+\.)*?\d+(?=\.)")
_HIDDEN: Final = frozenset(("constant", "iota", "ptir_unpack", "broadcast_to", "slice"))
"""What is never worth naming: it costs nothing inside a kernel."""


@dataclass(frozen=True)
class Moved:
    """Bytes of one run: of parameters, of the cache, of everything else read and written."""

    weights: int = 0
    cache_read: int = 0
    cache_written: int = 0
    other_read: int = 0
    other_written: int = 0

    def __add__(self, more: Moved) -> Moved:
        names = self.__dataclass_fields__
        return Moved(**{n: getattr(self, n) + getattr(more, n) for n in names})

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
class Work:
    """A part as a reader sees it; equal for equal parts of other layers."""

    kind: str
    name: str
    fused: tuple[str, ...]
    """The functionals and ops that it computes, in order; equal neighbours once."""
    parameters: tuple[str, ...]
    """The stored parameters that it reads, without their layer."""
    moved: Moved
    items: int
    seconds: float | None = field(default=None, compare=False)
    schedule: str = ""
    """``coop`` or ``serial``, of a kernel."""


@dataclass(frozen=True)
class Section:
    """Equal layers in a row, or parts that belong to none (then ``layers`` is empty)."""

    layers: tuple[str, ...]
    works: tuple[Work, ...]
    """Of one layer; seconds are the mean over the layers."""

    @property
    def count(self) -> int:
        """How often the works run."""
        return max(1, len(self.layers))


def layer_of(parameter: str) -> str | None:
    """``h.3`` of ``h.3.attn.c_attn.weight``; None where a name has no number."""
    found = _LAYER.match(parameter)
    return found[0] if found else None


class Layered:
    """The parts of a program with their layers; ``donated`` inputs are the cache."""

    def __init__(
        self,
        program: Program,
        explanation: Explanation,
        derived: Mapping[str, Derivation],
        donated: frozenset[int],
        seconds: Sequence[float] = (),
    ) -> None:
        self._program, self._block, self._derived = program, program.main, derived
        self._parts, self._donated = explanation.parts, donated
        self._seconds: Sequence[float | None] = seconds or [None] * len(self._parts)
        self._made = {v: i for results, i in self._block.numbered() for v in results}
        self._results = [results for results, _ in self._block.numbered()]

    def sections(self) -> tuple[Section, ...]:
        """The parts in order, layer by layer; equal neighbouring layers are one section."""
        layers = self._outside_ends(self._layers())
        runs: list[tuple[str | None, tuple[Work, ...]]] = []
        order = sorted(range(len(self._parts)), key=_order(layers).__getitem__)
        for layer, numbers in groupby(order, key=layers.__getitem__):
            runs.append((layer, _without_views([self._work(n, layer) for n in numbers])))
        found: list[Section] = []
        for _, alike in groupby(runs, key=lambda run: (run[0] is not None, run[1])):
            members = list(alike)
            names = tuple(layer for layer, _ in members if layer is not None)
            found.append(Section(names, _mean([works for _, works in members])))
        return tuple(found)

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

    # --- layers ---

    def _layers(self) -> list[str | None]:
        """The layer of each part."""
        found = [self._own_layer(part) for part in self._parts]
        own = [bool(self._stored(part)) for part in self._parts]
        made: dict[int, str | None] = {}
        for number, part in enumerate(self._parts):
            if found[number] is None and not own[number]:
                before = [made.get(value) for value in self._taken(part)]
                found[number] = next((layer for layer in reversed(before) if layer), None)
            made.update(dict.fromkeys(self._given(part), found[number]))
        for number in reversed(range(len(self._parts))):
            if found[number] is None and not own[number]:
                found[number] = self._reading_layer(number, found)
        return found

    def _outside_ends(self, layers: list[str | None]) -> list[str | None]:
        """The layers without what the first one has before, and the last one behind, its fellows.

        A sum of embeddings looks like the beginning of the first layer, a choice of rows like the
        end of the last.
        """
        numbers: dict[str, list[int]] = {}
        for number, layer in enumerate(layers):
            if layer is not None and self._moves(number):
                numbers.setdefault(layer, []).append(number)
        names = list(numbers)
        if len(names) < 2:
            return layers
        works = {name: [self._work(n, name) for n in numbers[name]] for name in names}
        first, second, last = names[0], names[1], names[-1]
        begin, end = 0, len(layers)
        extra = len(works[first]) - len(works[second])
        if extra > 0 and works[first][extra:] == works[second]:
            begin = numbers[first][extra - 1] + 1
        like = works[names[-2]] if len(names) > 2 else works[first][max(0, extra) :]
        if len(works[last]) > len(like) and works[last][: len(like)] == like:
            end = numbers[last][len(like)]
        return [layer if begin <= n < end else None for n, layer in enumerate(layers)]

    def _moves(self, number: int) -> bool:
        part = self._parts[number]
        return part.kind != "op" or bool(part.reads or part.writes)

    def _own_layer(self, part: Part) -> str | None:
        names = (layer_of(name) for name in self._stored(part))
        return next((layer for layer in names if layer), None)

    def _reading_layer(self, number: int, layers: Sequence[str | None]) -> str | None:
        """The only layer that reads what a part writes, if there is only one."""
        written = set(self._given(self._parts[number]))
        readers = {
            layer
            for part, layer in zip(self._parts, layers, strict=True)
            if written & set(self._taken(part))
        }
        return next(iter(readers)) if len(readers) == 1 else None

    def _taken(self, part: Part) -> tuple[int, ...]:
        """The values that a part reads; those of an op even where it only views them."""
        if part.kind != "op":
            return tuple(access.value for access in part.reads)
        return tuple(v for n in part.members for v in self._block.instructions[n].operands)

    def _given(self, part: Part) -> tuple[int, ...]:
        """The values that a part makes."""
        if part.kind != "op":
            return tuple(access.value for access in part.writes)
        return tuple(v for n in part.members for v in self._results[n])

    # --- parts ---

    def _work(self, number: int, layer: str | None) -> Work:
        part = self._parts[number]
        names = tuple(name.removeprefix(f"{layer}.") for name in self._stored(part))
        moved = sum((self._moved(part, n) for n in range(2)), Moved())
        fused = tuple(self._fused(part))
        seconds, schedule = self._seconds[number], part.schedule
        return Work(part.kind, part.name, fused, names, moved, part.items, seconds, schedule)

    def _stored(self, part: Part) -> tuple[str, ...]:
        """The stored parameters that a part reads, the ones behind derived ones included."""
        ports = self._program.ports
        read = (ports[a.value].name for a in part.reads if a.value < len(ports))
        kinds = {port.name for port in ports if port.kind == "parameter"}
        return tuple(dict.fromkeys(o for n in read if n in kinds for o in self.origins(n)))

    def origins(self, name: str) -> Iterable[str]:
        """The stored parameters that a parameter is computed from; itself if it is stored."""
        if name not in self._derived:
            return (name,)
        return [o for port in self._derived[name].ports for o in self.origins(port.name)]

    def _moved(self, part: Part, direction: int) -> Moved:
        total = Moved()
        for access in (part.reads, part.writes)[direction]:
            value = self._origin(access.value)
            ports = self._program.ports
            if value < len(ports) and ports[value].kind == "parameter":
                total += Moved(weights=access.nbytes)
            else:
                kind = "cache" if value in self._donated else "other"
                total += Moved(**{f"{kind}_{('read', 'written')[direction]}": access.nbytes})
        return total

    def _origin(self, value: int) -> int:
        """The value whose memory a value lies in: updates are in place."""
        while (made := self._made.get(value)) is not None and made.name in UPDATES:
            value = made.operands[0]
        return value

    def _fused(self, part: Part) -> Iterable[str]:
        members = [self._block.instructions[position] for position in part.members]
        named = [i for i in members if i.name not in _HIDDEN and not _is_view(i.op)]
        names = [functional_of(i) for i in named or members]
        return (name for name, _ in groupby(names))


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


def _without_views(works: Sequence[Work]) -> tuple[Work, ...]:
    """The works with all ops that move nothing in one, at the end, whichever they are."""
    views = [work for work in works if work.kind == "op" and not work.moved.total]
    if not views:
        return tuple(works)
    seconds = sum(work.seconds or 0.0 for work in views)
    known = seconds if views[0].seconds is not None else None
    together = Work("op", "views", (), (), Moved(), 1, known)
    return (*(work for work in works if work not in views), together)


def _mean(runs: Sequence[tuple[Work, ...]]) -> tuple[Work, ...]:
    """The works of one of several equal runs, with their mean seconds."""
    result: list[Work] = []
    for column in zip(*runs, strict=True):
        known = [work.seconds for work in column if work.seconds is not None]
        mean = sum(known) / len(known) if known else None
        result.append(replace(column[0], seconds=mean))
    return tuple(result)
