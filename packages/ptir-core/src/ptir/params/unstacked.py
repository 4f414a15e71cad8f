"""Matrices of all experts as checkpoints have them: the way back of ``ptir.params.stacked``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ptir.params.source import Array, Counters, ParamSource, lookup, rows_of
from ptir.params.stacked import NUMBER, Rules, Stack, stacked
from ptir.types import TensorType

EXPERTS: Final = "experts."
"""What names of experts' parameters have within."""


HALVES: Final = "experts.gate_proj.", "experts.up_proj.", "experts.gate_up_proj."
"""Within the names of two parameters, and of the one that has both."""


class _Stored(NamedTuple):
    """A tensor that is written: the parameter it is cut of, which expert's, what comes behind it.

    ``beside`` has the other half of each expert's outputs.
    """

    of: str
    number: int | None = None
    beside: str = ""


def unstacked(source: ParamSource, rules: Rules, experts: int) -> ParamSource:
    """``source`` with its experts under the names that checkpoints of their family have.

    Those are the last ones of which ``rules`` make a parameter; gate and up of each expert are put
    together where the family stores them so. What a rule cuts in halves or turns is not put
    together again. Parameters of no rule stay; where no name changes, so does ``source``.
    """
    ends = _ends(rules)
    stored: dict[str, _Stored] = {}
    names = frozenset(source.names())
    gate, up, both = HALVES
    for name in source.names():
        whole = name.replace(gate, both).replace(up, both)
        end = _end(whole, ends) if whole != name else None
        if end is not None and {whole.replace(both, gate), whole.replace(both, up)} <= names:
            beside = whole.replace(both, up)
            to = whole.removesuffix(end) + ends[end]
            stored[to] = _Stored(whole.replace(both, gate), beside=beside)
            continue
        end = _end(name, ends)
        if end is None:
            stored[name] = _Stored(name)
            continue
        before, wanted = name.removesuffix(end), ends[end]
        if NUMBER not in wanted:
            stored[before + wanted] = _Stored(name)
            continue
        for number in range(experts):
            stored[before + wanted.replace(NUMBER, str(number))] = _Stored(name, number)
    if all(name == one.of for name, one in stored.items()):
        return source
    return _Unstacked(source, stored, experts)


def are_apart(rules: Rules) -> bool:
    """Whether checkpoints of a family may have a tensor for each projection of each expert."""
    ends = _ends(rules)
    return all(NUMBER in ends.get(name, "") for name in _targets(rules))


def apart(source: ParamSource, rules: Rules, experts: int) -> ParamSource:
    """``source`` with such tensors, under the names of their family, however it has them."""
    return unstacked(stacked(source, rules), rules, experts)


def _ends(rules: Rules) -> dict[str, str]:
    """The last ends of stored names, by those of parameters that are neither cut nor turned."""
    return {
        target.name: end
        for end, target in rules.items()
        if isinstance(target, Stack) and target.half is None and not target.turned
    }


def _targets(rules: Rules) -> set[str]:
    """The ends of names of parameters that are all experts'."""
    return {
        one.name
        for target in rules.values()
        for one in ((target,) if isinstance(target, Stack) else target)
        if EXPERTS in one.name
    }


def in_own_names(source: ParamSource, rules: Rules) -> Iterator[str]:
    """The parameters of all experts at once that no other program knows by their names."""
    targets = _targets(rules)
    return (name for name in source.names() if _end(name, targets) is not None)


def _end(name: str, ends: Iterable[str]) -> str | None:
    """The one of some ends of names that a name has."""
    return next((one for one in ends if name == one or name.endswith(f".{one}")), None)


class _Unstacked:
    """Another source's parameters, those of experts cut into one for each."""

    def __init__(self, source: ParamSource, stored: dict[str, _Stored], experts: int) -> None:
        self.counters = Counters()
        self._source, self._stored, self._experts = source, stored, experts

    def names(self) -> tuple[str, ...]:
        """The names that are written."""
        return tuple(self._stored)

    def type(self, name: str) -> TensorType:
        """Element type and shape."""
        one = lookup(self._stored, name)
        found = self._source.type(one.of)
        is_whole = EXPERTS in one.of and found.rank == 2 and name != one.of
        if one.number is None and not one.beside and not is_whole:
            return found
        rows = found.size // found.shape[-1] // self._experts * (2 if one.beside else 1)
        whole = (self._experts,) if one.number is None else ()
        return TensorType(found.dtype, (*whole, rows, found.shape[-1]))

    def read(self, name: str) -> Array:
        """The values; of one expert those alone."""
        one = lookup(self._stored, name)
        if one.beside:
            found = self._halves(one)
        elif one.number is None:
            found = self._source.read(one.of).reshape(self.type(name).shape)
        elif self._source.type(one.of).rank > 2:
            found = rows_of(self._source, one.of, one.number, one.number + 1)[0]
        else:
            rows = self.type(name).shape[0]
            found = rows_of(self._source, one.of, one.number * rows, (one.number + 1) * rows)
        self.counters.record(name, found.nbytes)
        return found

    def _halves(self, one: _Stored) -> Array:
        """Two halves of the outputs of each expert, one below the other."""
        import numpy as np

        size = self._source.type(one.of).shape[-1]
        parts = (self._source.read(name) for name in (one.of, one.beside))
        found = np.concatenate([part.reshape(self._experts, -1, size) for part in parts], axis=1)
        found.setflags(write=False)
        return found

    def release(self, name: str) -> None:
        """Release what a tensor is made of."""
        one = lookup(self._stored, name)
        for part in filter(None, (one.of, one.beside)):
            self._source.release(part)
