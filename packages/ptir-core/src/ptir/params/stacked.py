"""Weights of experts as one matrix: stored one tensor each, or as one of three axes.

Parameters are what ``expert_linear`` takes, the matrix [outputs, inputs] of one expert below that
of the other. A matrix is put together when it is read, and each tensor is released behind it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ptir.errors import CheckpointError, short
from ptir.params.source import (
    Array,
    BlockSource,
    Counters,
    ParamSource,
    block_rows_of,
    lookup,
    rows_of,
    runs_of,
)
from ptir.types import TensorType
from ptir.weights import WeightFormat

NUMBER: Final = "*"
"""In a rule: the number of an expert."""


class Stack(NamedTuple):
    """The end of a parameter's name; ``turned``: each expert is stored as [inputs, outputs].

    ``half`` is 0 or 1 where a parameter is the first or the second half of each expert's outputs.
    """

    name: str
    turned: bool = False
    half: int | None = None


Rules = Mapping[str, Stack | tuple[Stack, ...]]
"""By the end of a stored tensor's name: the parameter that it is, or those that are cut of it."""


def stacked(source: ParamSource, rules: Rules) -> ParamSource:
    """``source`` with the tensors that ``rules`` name as matrices of all experts.

    A rule maps the end of a stored name, ``experts.*.w1.weight`` or ``experts.gate_proj``, to that
    of the parameter. Tensors of no rule stay. Raises ``CheckpointError`` for experts that are
    missing or differ.
    """
    found = stored_names(source.names(), rules)
    if not found:
        return source
    return StackedSource(
        source,
        {stack.name: stored for stack, stored in found.items()},
        frozenset(one.name for one in found if one.turned),
        {one.name: one.half for one in found if one.half is not None},
    )


def stored_names(names: Iterable[str], rules: Rules) -> dict[Stack, tuple[str, ...]]:
    """The parameters that ``rules`` make of tensors called ``names``, and of which, by experts.

    Raises ``CheckpointError`` for experts that are missing.
    """
    found: defaultdict[Stack, dict[int, str]] = defaultdict(dict)
    patterns = [
        (_pattern(rule), (targets,) if isinstance(targets, Stack) else targets)
        for rule, targets in rules.items()
    ]
    for name in names:
        for pattern, targets in patterns:
            match = pattern.fullmatch(name)
            for target in targets if match is not None else ():
                parts = match.groupdict() if match is not None else {}
                stack = target._replace(name=parts["before"] + target.name)
                found[stack][int(parts.get("number") or 0)] = name
    return {stack: _complete(stack.name, held) for stack, held in found.items()}


def _pattern(rule: str) -> re.Pattern[str]:
    end = re.escape(rule).replace(re.escape(NUMBER), r"(?P<number>\d{1,6})")
    return re.compile(rf"(?P<before>(?:.*\.)?){end}")


def _complete(name: str, held: Mapping[int, str]) -> tuple[str, ...]:
    missing = [str(number) for number in range(max(held) + 1) if number not in held]
    if missing:
        raise CheckpointError(
            f"{short(name)}: no tensors of expert {', '.join(missing[:5])} are stored, and those of"
            f" {max(held)} are; fetch the checkpoint again"
        )
    return tuple(held[number] for number in sorted(held))


class StackedSource:
    """Another source's parameters, some of them made of several: ``stacks`` says of which.

    Those that are ``turned`` are stored as [experts, inputs, outputs]; of those with a half each
    expert's outputs are cut in two.
    """

    def __init__(
        self,
        source: ParamSource,
        stacks: Mapping[str, Sequence[str]],
        turned: frozenset[str] = frozenset(),
        halves: Mapping[str, int] | None = None,
    ) -> None:
        self._turned, self._halves = turned, dict(halves or {})
        self.counters = Counters()
        self._source = source
        self._stacks = {name: tuple(stored) for name, stored in stacks.items()}
        gone = {one for stored in self._stacks.values() for one in stored}
        kept = {name: (name,) for name in source.names() if name not in gone}
        self._stored = {**kept, **self._stacks}
        self._types = {name: self._type_of(name) for name in self._stacks}

    def names(self) -> tuple[str, ...]:
        """All names: those that stay, then the stacks."""
        return tuple(self._stored)

    def type(self, name: str) -> TensorType:
        """Element type and shape."""
        (first, *_) = lookup(self._stored, name)
        return self._types[name] if name in self._types else self._source.type(first)

    def read(self, name: str) -> Array:
        """The values; those of several tensors in one array, each released when it was copied."""
        stored, type = lookup(self._stored, name), self.type(name)
        if len(stored) == 1:
            found = self._source.read(stored[0])
            found = found.swapaxes(1, 2) if name in self._turned else found
            found = self._cut(name, found).reshape(type.shape)
            found.setflags(write=False)
        else:
            found = self._joined(stored, type)
        self.counters.record(name, found.nbytes)
        return found

    def _cut(self, name: str, found: Array) -> Array:
        """The outputs [experts, outputs, ...] that are a parameter's."""
        if name not in self._halves:
            return found
        experts, outputs = found.shape[:2]
        return found.reshape(experts, 2, outputs // 2, *found.shape[2:])[:, self._halves[name]]

    def _joined(self, stored: Sequence[str], type: TensorType) -> Array:
        import numpy as np

        found = np.empty(type.shape, type.dtype.numpy)
        rows = type.shape[0] // len(stored)
        for number, one in enumerate(stored):
            found[number * rows : (number + 1) * rows] = self._source.read(one)
            self._source.release(one)
        found.setflags(write=False)
        return found

    def read_rows(self, name: str, first: int, end: int) -> Array:
        """Places of the first axis, of which only the experts that have them are read."""
        import numpy as np

        stored, rows = lookup(self._stored, name), self.type(name).shape[0]
        if len(stored) > 1:
            runs = runs_of([rows // len(stored)] * len(stored), first, end)
            parts = [rows_of(self._source, stored[at], one, other) for at, one, other in runs]
            found = np.concatenate(parts) if len(parts) > 1 else parts[0]
        elif name not in self._stacks or self._source.type(stored[0]).rank < 3:
            found = rows_of(self._source, stored[0], first, end)
        else:
            experts, some = self._experts_of(name, first, end)
            held = rows_of(self._source, stored[0], experts.start, experts.stop)
            held = held.swapaxes(1, 2) if name in self._turned else held
            found = self._cut(name, held).reshape(-1, self.type(name).shape[1])[some]
        self.counters.record(name, found.nbytes)
        return found

    def _experts_of(self, name: str, first: int, end: int) -> tuple[slice, slice]:
        """The experts of one stored tensor that have some rows, and which of theirs these are."""
        experts = self._source.type(self._stacks[name][0]).shape[0]
        each = max(1, self.type(name).shape[0] // max(1, experts))
        some = slice(first // each, -(-end // each))
        before = some.start * each
        return some, slice(first - before, end - before)

    def release(self, name: str) -> None:
        """Release every tensor behind a parameter."""
        for one in lookup(self._stored, name):
            self._source.release(one)

    def format(self, name: str) -> WeightFormat | None:
        """How the blocks of a parameter are read, where all its tensors have the same.

        None too where outputs share what is stored of them: the numbers are read then.
        """
        if not isinstance(self._source, BlockSource):
            return None
        formats = [self._source.format(one) for one in lookup(self._stored, name)]
        first = formats[0]
        if name in self._turned:
            return None
        if name in self._halves:
            alone = first is not None and all(array.outputs == 1 for array in first.arrays)
            return first if alone else None
        if first is None or len(formats) == 1:
            return first
        alone = all(array.outputs == 1 for array in first.arrays)
        return first if alone and all(one == first for one in formats) else None

    def blocks(self, name: str) -> Mapping[str, Array]:
        """The stored arrays of a parameter that has a format, one tensor's below the other's."""
        import numpy as np

        if not isinstance(self._source, BlockSource):
            raise CheckpointError(f"{name!r}: is not stored in blocks")
        found = [self._source.blocks(one) for one in lookup(self._stored, name)]
        if name in self._halves:
            each = self._source.type(self._stacks[name][0]).shape[1]
            (whole,) = found
            return {key: self._half_of_lines(name, one, each) for key, one in whole.items()}
        if len(found) == 1:
            return found[0]
        return {key: np.concatenate([one[key] for one in found]) for key in found[0]}

    def block_rows(self, name: str, first: int, end: int) -> Mapping[str, Array]:
        """The same of some outputs, of which only the experts that have them are read."""
        import numpy as np

        if not isinstance(self._source, BlockSource):
            raise CheckpointError(f"{name!r}: is not stored in blocks")
        stored = lookup(self._stored, name)
        if name in self._halves:
            experts, some = self._experts_of(name, first, end)
            each = self._source.type(stored[0]).shape[1]
            lines = experts.start * each, experts.stop * each
            held = block_rows_of(self._source, stored[0], *lines)
            return {key: self._half_of_lines(name, one, each)[some] for key, one in held.items()}
        if len(stored) == 1:
            return block_rows_of(self._source, stored[0], first, end)
        rows = self.type(name).shape[0] // len(stored)
        runs = runs_of([rows] * len(stored), first, end)
        found = [block_rows_of(self._source, stored[at], one, other) for at, one, other in runs]
        return {key: np.concatenate([one[key] for one in found]) for key in found[0]}

    def _half_of_lines(self, name: str, lines: Array, each: int) -> Array:
        """The lines that are a parameter's, of so many for each expert."""
        held = lines.reshape(-1, each, lines.shape[-1])
        return self._cut(name, held).reshape(-1, lines.shape[-1])

    def _type_of(self, name: str) -> TensorType:
        types = [self._source.type(one) for one in self._stacks[name]]
        first = types[0]
        cut = name in self._halves
        ranks = (3,) if name in self._turned or cut else (2, 3)
        if any(type != first for type in types) or first.rank not in ranks:
            shown = ", ".join(str(type) for type in dict.fromkeys(types))
            raise CheckpointError(
                f"{short(name)}: experts are {shown}; matrices of one type are needed: fetch the"
                " checkpoint again"
            )
        if name in self._turned:
            experts, inputs, outputs = first.shape
            return TensorType(first.dtype, (experts * outputs, inputs))
        if cut and (len(types) > 1 or first.shape[1] % 2):
            raise CheckpointError(
                f"{short(name)}: experts are {first}, of which halves are needed: fetch the"
                " checkpoint again"
            )
        if cut:
            return TensorType(first.dtype, (first.shape[0] * first.shape[1] // 2, first.shape[2]))
        rows = first.shape[0] * (first.shape[1] if first.rank == 3 else len(types))
        return TensorType(first.dtype, (rows, first.shape[-1]))
