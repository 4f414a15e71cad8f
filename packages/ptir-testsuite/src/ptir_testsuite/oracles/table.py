"""The table of oracles: by op name, a function that says what the results of a call must be.

An oracle shares nothing with any backend: Python integers, exact ratios, mpmath and plain loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ptir.ir.program import Block
from ptir.types import TensorType
from ptir_testsuite.oracles.expected import Expected
from ptir_testsuite.oracles.floats import Array


@dataclass(frozen=True)
class Given:
    """A call as an oracle sees it: arrays, their types, attributes, result types, regions."""

    op: str
    arrays: tuple[Array, ...]
    types: tuple[TensorType, ...]
    attributes: Mapping[str, Any]
    results: tuple[TensorType, ...]
    regions: tuple[Block, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]


Oracle = Callable[[Given], Sequence[Expected]]

ORACLES: Final[dict[str, Oracle]] = {}


def oracle(*names: str) -> Callable[[Oracle], Oracle]:
    """Make the function below the oracle of these ops; a second oracle for one is an error."""

    def add(function: Oracle) -> Oracle:
        for name in names:
            if name in ORACLES:
                raise ValueError(f"op {name!r} has an oracle already")
            ORACLES[name] = function
        return function

    return add
