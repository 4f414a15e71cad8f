"""What a loaded model consists of: its parts with parameters and bytes, layers that are alike once.

Everything is read off the types of what is bound: no parameter is read, nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from ptir.capture.tensor import Tensor
from ptir.capture.trace import Tracing
from ptir.functional.linear import QuantizedWeight
from ptir.nn.module import Module
from ptir.notebook import Card, Displayed
from ptir.units import size

if TYPE_CHECKING:
    from ptir.runtime.handle import Model


class Held(NamedTuple):
    """A parameter as a model holds it: elements, bytes, and as what (``f32``, ``4 bits by 32``)."""

    name: str
    elements: int
    nbytes: int
    form: str


@dataclass(frozen=True)
class Part:
    """A part of a model: ``depth`` 1 for what one of the ``count`` layers above it has."""

    name: str
    count: int
    parameters: int
    nbytes: int
    forms: tuple[str, ...]
    depth: int = 0


@dataclass(frozen=True, repr=False)
class Summary(Displayed):
    """What a model consists of; printed, or shown in a notebook, it is a table."""

    title: str
    parameters: int
    nbytes: int
    parts: tuple[Part, ...]
    facts: tuple[tuple[str, object], ...]

    def __repr__(self) -> str:
        return self.card().plain()

    def card(self) -> Card:
        """What a notebook shows: facts, and a row for each part."""
        rows = [
            (
                f"{'  ' * part.depth}{part.name}",
                f"{part.count} x" if part.count > 1 else "",
                part.parameters,
                size(part.nbytes),
                ", ".join(part.forms),
            )
            for part in self.parts
        ]
        total = f"{self.parameters:,} ({size(self.nbytes)})"
        folded = any(part.count > 1 for part in self.parts)
        return Card(
            self.title,
            [("parameters", total), *self.facts],
            ("part", "layers", "parameters", "bytes", "held as"),
            rows,
            note="Indented rows are of one layer." if folded else "",
        )


def summary(model: Model) -> Summary:
    """The summary of a model."""
    held = list(held_parameters(model.module))
    return Summary(
        title_of(model),
        sum(one.elements for one in held),
        sum(one.nbytes for one in held),
        tuple(_parts(held)),
        tuple(_facts(model)),
    )


def title_of(model: Model) -> str:
    """A model in a line: its kind, its name, its architecture."""
    kind = model.checkpoint.config.get("model_type")
    return f"{type(model).__name__} {model.name!r} ({kind})"


def _facts(model: Model) -> Iterator[tuple[str, object]]:
    yield "on", model.target
    yield "can", ", ".join(model.capabilities)
    if model.context:
        yield "context", f"{model.context:,} tokens"
    if "generate" in model.capabilities:
        yield "state", _state_text(model)
    if model.overrides:
        yield "overrides", "; ".join(map(str, model.overrides))


def _state_text(model: Model) -> str:
    """What the layers carry for a row: what a token adds, and all of it at the whole context."""
    one, two, whole = (
        sum(type.nbytes for layer in model.state_types(1, capacity) for type in layer)
        for capacity in (1, 2, model.context)
    )
    return (
        f"{size(two - one) or '0 B'} a token, {size(whole) or '0 B'} at the whole context"
        f" (positions in {model.cache_dtype})"
    )


def held_parameters(value: Any, path: str = "") -> Iterator[Held]:
    """The parameters of a bound module, in the order of its attributes."""
    if isinstance(value, Module):
        for name, member in vars(value).items():
            yield from held_parameters(member, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from held_parameters(item, f"{path}.{index}")
    elif isinstance(value, Tensor):
        yield Held(path, value.size, value.type.nbytes, value.dtype.name)
    elif isinstance(value, QuantizedWeight):
        tensors = [one for one in vars(value).values() if isinstance(one, Tensor)]
        with Tracing():  # only the type of the scales is asked for: nothing is to run
            elements = value.scales.size * value.group
        form = f"{value.bits} bits by {value.group}"
        yield Held(path, elements, sum(one.type.nbytes for one in tensors), form)


class _Place(NamedTuple):
    """Where a parameter is: in which list of layers, which of them, and what it is in there."""

    layers: str
    number: int
    rest: str

    @staticmethod
    def of(name: str) -> _Place:
        parts = name.split(".")
        at = next((n for n, part in enumerate(parts) if part.isdecimal()), None)
        if at is None:
            return _Place("", 0, name)
        return _Place(".".join(parts[:at]), int(parts[at]), ".".join(parts[at + 1 :]))


def _parts(held: Sequence[Held]) -> Iterator[Part]:
    """Parts in order: those outside of lists by their attribute, layers that are alike as one."""
    for layers, found in groupby(held, lambda one: _Place.of(one.name).layers):
        group = list(found)
        if not layers:
            yield from _by_attribute(group)
        else:
            yield from _folded(layers, group)


def _by_attribute(held: Iterable[Held], depth: int = 0) -> Iterator[Part]:
    for name, found in groupby(held, lambda one: one.name.split(".")[0]):
        yield _part(name, 1, list(found), depth)


def _folded(layers: str, held: Sequence[Held]) -> Iterator[Part]:
    """Layers of one list: each kind once, with the indices that it has."""
    kinds: dict[tuple[Held, ...], list[int]] = {}
    for index, found in groupby(held, lambda one: _Place.of(one.name).number):
        inside = tuple(one._replace(name=_Place.of(one.name).rest) for one in found)
        kinds.setdefault(inside, []).append(index)
    for inside, indices in kinds.items():
        every = [one for one in inside for _ in indices]
        yield _part(f"{layers}.{_ranges(indices)}", len(indices), every)
        yield from _by_attribute(inside, depth=1)


def _part(name: str, count: int, held: Sequence[Held], depth: int = 0) -> Part:
    elements, nbytes = sum(one.elements for one in held), sum(one.nbytes for one in held)
    return Part(name, count, elements, nbytes, tuple(sorted({one.form for one in held})), depth)


def _ranges(indices: Sequence[int]) -> str:
    """``0-3,5`` of 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
