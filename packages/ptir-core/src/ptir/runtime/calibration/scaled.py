"""A model's parameters with scales between them, some multiplied, others divided, and clipped."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from ptir.params.source import Array, Counters, ParamSource, rows_of
from ptir.types import F32, TensorType


class _Factor(NamedTuple):
    """What elements along an axis are multiplied with, ``plus`` included in what is stored."""

    values: Array
    axis: int
    plus: float = 0.0


class ScaledSource:
    """Another source's parameters, some of them in f32 times factors along their axes."""

    def __init__(self, source: ParamSource) -> None:
        self.counters = Counters()
        self._source = source
        self._factors: defaultdict[str, list[_Factor]] = defaultdict(list)
        self._shares: dict[str, tuple[Array, int]] = {}

    def multiply(self, name: str, scales: Array, axis: int) -> None:
        """Multiply a parameter with one scale for each place along an axis."""
        self._factors[name].append(_Factor(scales.astype("f8"), axis))

    def divide(self, name: str, scales: Array, axis: int, plus: float = 0.0) -> None:
        """Divide a parameter, to which ``plus`` is added before it is used, likewise."""
        self._factors[name].append(_Factor(1 / scales.astype("f8"), axis, plus))

    def clip(self, name: str, shares: Array, axis: int) -> None:
        """Cut a matrix, its inputs along ``axis``, block by block; see ``ptir.weights.awq``."""
        self._shares[name] = shares, axis

    def _changes(self, name: str) -> bool:
        return name in self._factors or name in self._shares

    def names(self) -> tuple[str, ...]:
        """The other source's names."""
        return self._source.names()

    def type(self, name: str) -> TensorType:
        """The stored type; f32 where values are others."""
        stored = self._source.type(name)
        return stored.with_dtype(F32) if self._changes(name) else stored

    def read(self, name: str) -> Array:
        """The values, in f32 where they are others: products in f64, rounded once, then cut."""
        values = self._changed(name, self._source.read(name), slice(None))
        self.counters.record(name, values.nbytes)
        return values

    def read_rows(self, name: str, first: int, end: int) -> Array:
        """The same of places of the first axis, which must be outputs of what is clipped."""
        values = self._changed(name, rows_of(self._source, name, first, end), slice(first, end))
        self.counters.record(name, values.nbytes)
        return values

    def _changed(self, name: str, values: Array, some: slice) -> Array:
        """Values of some places of the first axis."""
        if not self._changes(name):
            return values
        wide = values.astype("f8")
        for factors, axis, plus in self._factors.get(name, ()):
            shape = [1] * wide.ndim
            shape[axis] = -1
            own = factors if axis else factors[some]
            wide = (wide + plus) * own.reshape(shape) - plus
        return self._cut(name, wide.astype("f4"), some)

    def _cut(self, name: str, values: Array, some: slice) -> Array:
        if name not in self._shares:
            return values
        import numpy as np

        from ptir.weights.awq import clipped

        shares, axis = self._shares[name]
        if axis:
            shares = shares[some]
        rows = clipped(np.moveaxis(values, axis, -1), shares)
        return np.ascontiguousarray(np.moveaxis(rows, -1, axis))

    def release(self, name: str) -> None:
        """Release the stored parameter."""
        self._source.release(name)
