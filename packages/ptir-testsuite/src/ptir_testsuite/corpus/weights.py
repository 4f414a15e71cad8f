"""Weights as files hold them: for each format, a product and a lookup in what it becomes in memory.

The parts of a weight (words, scales, minima) are parameters, as those of a model are. Blocks are
random bytes, of which those that say a float are moderate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

import ptir.functional as F
from ptir.capture import Tensor, capture
from ptir.ir.program import Program
from ptir.runtime.held import in_words
from ptir.types import F32, TensorType, dtype_of
from ptir.weights import FORMATS, WeightFormat
from ptir.weights.affine_arrays import affine_arrays
from ptir.weights.affine_form import AffineForm, affine_form
from ptir.weights.decode import decode, quantity_of, raw_bytes
from ptir.weights.record import Numbers, PowerOfTwo, SmallFloat, StoredArray
from ptir_testsuite.corpus.values import Draws, draw
from ptir_testsuite.oracles.floats import Array

INPUTS: Final = 512
"""Of a row: whole blocks of every format."""
OUTPUTS: Final = 48
ROWS: Final = (1, 12)
"""Of activations: few, for which weights are read once, and more, which share them."""
EXPONENTS: Final = 8
"""Powers of two that scales which are such have."""


@dataclass(frozen=True)
class WeightCall:
    """A product of ``rows`` with a weight of a format, and a lookup of some of its outputs."""

    format: str
    rows: int

    @property
    def id(self) -> str:
        """How the call is named in reports."""
        return f"weights-{self.format}-{self.rows}"

    @property
    def record(self) -> WeightFormat:
        """The format."""
        return FORMATS[self.format]

    @cached_property
    def form(self) -> AffineForm:
        """How the weight is held."""
        found = affine_form(self.record)
        assert found is not None, self.format
        return found

    @property
    def call(self) -> str:
        """The call for a reader."""
        return f"linear(f32[{self.rows},{INPUTS}], {self.format}[{OUTPUTS},{INPUTS}])"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The names of the operands' dtypes, each once, in order."""
        parts = (dtype.name for dtype, _ in self.form.parts.values())
        return tuple(dict.fromkeys(("f32", "i32", "u32", *parts)))

    @cached_property
    def stored(self) -> dict[str, Array]:
        """The arrays of the format, as a file has them."""
        draws = Draws("weights", self.format, self.rows)
        return {one.name: _stored(self.record, one, draws) for one in self.record.arrays}

    @cached_property
    def arrays(self) -> list[Array]:
        """Activations, ids, and the parts of the weight."""
        draws = Draws("weights", "x", self.format, self.rows)
        x = draw(TensorType(F32, (self.rows, INPUTS)), "plain", draws, 4)
        ids = np.array([0, OUTPUTS - 1, 17, -1], np.int32)
        parts = affine_arrays(self.form, self.stored)
        return [x, ids, *(parts[name] for name in self._names)]

    @property
    def _names(self) -> tuple[str, ...]:
        return ("words", *self.form.parts)

    @cached_property
    def program(self) -> Program:
        """The call; what comes after the ids are parameters."""

        def call(x: Tensor, ids: Tensor, *parts: Tensor) -> tuple[Tensor, Tensor]:
            weight = in_words(self.form, 1, dict(zip(self._names, parts, strict=True)))
            return F.linear(x, weight, layout="oi"), F.embedding(weight, ids)

        types = [TensorType(dtype_of(array), array.shape) for array in self.arrays]
        program = capture(call, *types)
        x, ids, *parts = program.ports
        parameters = (replace(port, kind="parameter") for port in parts)
        return replace(program, ports=(x, ids, *parameters))

    def weight(self) -> Array:
        """The numbers f32[outputs, inputs] that the format defines."""
        return decode(self.record, self.stored)

    def magnitude(self) -> Array:
        """What the sizes of products are sums of: numbers above their zero point, and minima."""
        value, raw = self.record.value, raw_bytes(self.record, self.stored)
        found = np.abs(quantity_of(replace(value, minimum=None), raw).astype(np.float64))
        if value.minimum is not None:
            found = found + np.abs(quantity_of(value.minimum, raw))
        if value.scale is not None:
            found = found + self.form.zero * np.abs(quantity_of(value.scale, raw))
        shape = OUTPUTS, INPUTS // self.record.block, self.record.block
        return np.broadcast_to(found, shape).reshape(OUTPUTS, INPUTS)


def weight_calls() -> Iterator[WeightCall]:
    """Every format that becomes words in memory, with few rows and with more."""
    names = (name for name, one in FORMATS.items() if affine_form(one) is not None)
    return (WeightCall(name, rows) for name in names for rows in ROWS)


def _stored(format: WeightFormat, one: StoredArray, draws: Draws) -> Array:
    """Random elements of an array."""
    lines, across = -(-OUTPUTS // one.outputs), -(-(INPUTS // format.block) // one.blocks)
    type = TensorType(one.dtype, (lines, across * one.count))
    if one.dtype.is_float:
        return draw(type, "plain", draws, 4)
    raw = draw(type, "bits", draws)
    bytes_ = raw.view(np.uint8).reshape(lines, across, -1).copy()
    for quantity in format.value.within():
        if isinstance(quantity.numbers, Numbers):
            moderate(quantity.numbers, one.name, bytes_)
    return bytes_.reshape(lines, -1).view(one.dtype.numpy)


def moderate(numbers: Numbers, array: str, found: Array) -> None:
    """Make what says a float neither large nor infinite, nor a sign where there is none.

    ``found`` u8[outputs, blocks, bytes] are those of the array called ``array``.
    """
    plane, reading = numbers.planes[-1], numbers.reading
    if plane.array != array:
        return
    last = [(place + plane.bits - 1) // 8 for place in plane.places()]
    if isinstance(reading, SmallFloat) and reading.bits >= 8:
        found[..., last] &= np.uint8(0xBF if reading.signed else 0x3F)
    if isinstance(reading, PowerOfTwo):
        found[..., last] = found[..., last] % EXPONENTS + np.uint8(reading.bias - EXPONENTS)
