"""Operands of a call written as one line of text, and the sizes that such a line names.

A signature such as ``x[M...,K] weight:f32|bf16[K,N] bias[N]`` names operands, their element types
(f32 unless said) and their axes. A letter has one size throughout a call, ``...`` is any axes, and
``M...`` gives the product of their sizes a name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TypeAlias

from ptir.ir.attributes import Attributes
from ptir.types import TensorType


@dataclass(frozen=True)
class Expected:
    """One operand of a signature: name, element types, axis names; ``open``: more axes lead."""

    name: str
    dtypes: tuple[str, ...]
    axes: tuple[str, ...]
    open: bool
    lead: str = ""
    """What the product of the axes that lead is called."""

    def __str__(self) -> str:
        return f"{self.name}[{','.join((('...',) if self.open else ()) + self.axes)}]"


_OPERAND = re.compile(r"(?P<name>\w+)(?::(?P<dtypes>[\w|]+))?\[(?P<axes>[\w.,]*)\]")


@cache
def parsed(signature: str) -> tuple[Expected, ...]:
    """The operands of a signature, in order."""
    operands = []
    for text in signature.split():
        match = _OPERAND.fullmatch(text)
        if match is None:
            raise ValueError(f"signature operand {text!r}: write it as weight:f32|bf16[K,N]")
        axes = tuple(filter(None, match["axes"].split(",")))
        dtypes = tuple((match["dtypes"] or "f32").split("|"))
        open_ = axes[:1] != () and axes[0].endswith("...")
        lead = axes[0].removesuffix("...") if open_ else ""
        operands.append(Expected(match["name"], dtypes, axes[open_:], open_, lead))
    return tuple(operands)


Measure: TypeAlias = Callable[[Sequence[TensorType], Attributes], int]
"""A size of a call that no axis has, such as that of a window."""


@dataclass(frozen=True)
class CallShapes:
    """Which sizes the calls of a functional have by name, and whose dtype they go by.

    ``signature`` is one for all calls, or one for each value of the attribute ``layout``. ``more``
    are sizes of other kinds.
    """

    signature: str | Mapping[str, str] = ""
    more: Mapping[str, Measure] = field(default_factory=dict[str, Measure])

    def _signatures(self) -> tuple[str, ...]:
        one = self.signature
        return (one,) if isinstance(one, str) else tuple(one.values())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every name, in the order in which the signature has them."""
        found: dict[str, None] = {}
        for operand in parsed(self._signatures()[0]):
            found |= dict.fromkeys(filter(None, (operand.lead, *operand.axes)))
        return (*found, *(name for name in self.more if name not in found))

    def sizes(self, types: Sequence[TensorType], attributes: Attributes) -> dict[str, int]:
        """The sizes of one call by name."""
        found: dict[str, int] = {}
        for operand, type in zip(self._of(attributes), types, strict=False):
            split = type.rank - len(operand.axes)
            if operand.lead:
                found.setdefault(operand.lead, math.prod(type.shape[:split]))
            for name, size in zip(operand.axes, type.shape[split:], strict=False):
                found.setdefault(name, size)
        more = {name: measure(types, attributes) for name, measure in self.more.items()}
        return {name: {**found, **more}[name] for name in self.names}

    def dtype(self, types: Sequence[TensorType], attributes: Attributes) -> str:
        """The element type that calls differ in: that of the operand that may have several."""
        for operand, type in zip(self._of(attributes), types, strict=False):
            if len(operand.dtypes) > 1:
                return type.dtype.name
        return types[0].dtype.name if types else ""

    def _of(self, attributes: Attributes) -> tuple[Expected, ...]:
        one = self.signature
        return parsed(one if isinstance(one, str) else one[attributes["layout"]])
