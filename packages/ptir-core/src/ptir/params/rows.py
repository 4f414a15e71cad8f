"""Rows of a parameter: a range of its first axis as it is resident, read apart from the rest."""

from __future__ import annotations

from dataclasses import dataclass

from ptir.types import TensorType


@dataclass(frozen=True)
class Rows:
    """Places ``first`` up to ``end`` of the first axis of a parameter, which has type ``whole``.

    They lie one behind the other in memory, so of an array in a file they are an array in it. A
    packed parameter's places are panels of several rows: ``outputs`` are the first row of the
    weight, the one behind the last, and how many it has.
    """

    parameter: str
    first: int
    end: int
    whole: TensorType
    outputs: tuple[int, int, int]

    @property
    def name(self) -> str:
        """What they are called as a parameter of their own."""
        return f"{self.parameter}[{self.first}:{self.end}]"

    @property
    def type(self) -> TensorType:
        """Their type."""
        return self.whole.with_shape((self.end - self.first, *self.whole.shape[1:]))
