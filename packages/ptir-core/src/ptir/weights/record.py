"""What a weight format is: a frozen record from which decoders and kernels are derived.

A weight of [outputs, inputs] is cut into *blocks* of neighbouring inputs of one output. A block is
stored in one or more arrays (a GGUF block is one array of bytes; words, scales and biases are
three). *Planes* say which bits of a block belong to which number, a *reading* says what number bits
stand for, and a *quantity* is numbers times a scale plus a minimum, which are quantities again: so
a scale of a super-block times a small integer of a sub-block is one inside the other.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from ptir.types import BF16, DTYPES, F16, F32, DType

EVERY: Final = 1 << 31
"""More outputs or blocks than there are: an array that has one entry for all of them."""


@dataclass(frozen=True)
class StoredArray:
    """An array of a stored weight: its element type, and how many elements a block has in it.

    Its shape is [outputs, blocks * count]. Where neighbouring ``outputs`` or ``blocks`` share an
    entry it is as much shorter.
    """

    name: str
    dtype: DType
    count: int
    outputs: int = 1
    blocks: int = 1

    @property
    def bits(self) -> int:
        """Bits of a block."""
        return self.count * self.dtype.bits


class Digit(NamedTuple):
    """One digit of a number's place: how many values it has, and the bits that each is further."""

    size: int
    step: int


@dataclass(frozen=True)
class Plane:
    """Where ``bits`` bits of every number lie in a block's part of an array.

    A number's place is written as digits, the last one running fastest; each digit moves by its
    step from ``first``, the lowest bit of number 0. So order within bytes is a step below 8, and
    numbers in the upper half of bytes come first where a step is negative, and numbers share bits
    where it is 0. Numbers behind these may lie in an order of their own: ``then``.
    """

    array: str
    bits: int
    first: int
    order: tuple[Digit, ...]
    then: Plane | None = None

    @property
    def count(self) -> int:
        """Numbers of a block."""
        return self._own + (self.then.count if self.then else 0)

    @property
    def _own(self) -> int:
        return math.prod(digit.size for digit in self.order)

    def place(self, number: int) -> int:
        """The lowest bit of one number."""
        if self.then and number >= self._own:
            return self.then.place(number - self._own)
        found = self.first
        for digit in reversed(self.order):
            number, value = divmod(number, digit.size)
            found += value * digit.step
        return found

    def places(self) -> Iterator[int]:
        """The lowest bit of every number, in order."""
        return (self.place(number) for number in range(self.count))

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and the last bit of all."""
        moves = [(digit.size - 1) * digit.step for digit in self.order]
        low, high = (sum(of(0, move) for move in moves) for of in (min, max))
        low, high = self.first + low, self.first + high + self.bits - 1
        if self.then is None:
            return low, high
        behind = self.then.bounds
        return min(low, behind[0]), max(high, behind[1])


@dataclass(frozen=True)
class Integer:
    """Bits as a whole number, counted from ``lowest``, or in two's complement."""

    lowest: int = 0
    signed: bool = False

    def range(self, bits: int) -> tuple[int, int]:
        """The least and the greatest number."""
        low = -(1 << (bits - 1)) if self.signed else self.lowest
        return low, low + (1 << bits) - 1


@dataclass(frozen=True)
class Codebook:
    """Bits as the place of a number in a table; every number is one of f32."""

    values: tuple[float, ...]


class Top(enum.Enum):
    """What codes with all bits of the exponent set stand for."""

    IEEE = "infinity without a fraction, else NaN"
    NAN = "NaN where the fraction is all ones too, else numbers"
    ZERO = "0 where the fraction is all ones too, else numbers"
    NUMBERS = "numbers"


@dataclass(frozen=True)
class SmallFloat:
    """Bits as sign, exponent and fraction, with subnormal numbers, as in IEEE 754."""

    exponent: int
    fraction: int
    bias: int
    top: Top = Top.IEEE
    signed: bool = True

    @property
    def bits(self) -> int:
        """All bits of a number."""
        return self.signed + self.exponent + self.fraction


@dataclass(frozen=True)
class PowerOfTwo:
    """Bits as an exponent: 2 ** (bits - bias), NaN where f32 holds no such power."""

    bias: int


class Signs(enum.Enum):
    """What the topmost bits of a code, above an entry's number, say of signs: how many bits."""

    NONE = 0
    OWN = 1
    EVEN = 7


@dataclass(frozen=True)
class Grid:
    """Bits as the number of an entry of a grid, which has whole numbers for several weights.

    Weights that share a code take the entry's numbers in turn, ``span`` of them side by side, or
    where ``members`` says. ``table`` is the name of the entries in ``ptir.weights.grids``. Above
    the entry's number stand ``signs``: one that negates the weight (``OWN``), or seven of eight
    neighbours, the last of which makes the count of negated ones even (``EVEN``).
    """

    table: str
    entries: int
    span: int
    signs: Signs = Signs.NONE
    members: Plane | None = None

    def member(self, number: int) -> int:
        """Which number of an entry the weight at a place of a block takes."""
        return self.members.place(number) if self.members else number % self.span


Reading: TypeAlias = Integer | Codebook | SmallFloat | PowerOfTwo | Grid
"""What number bits stand for."""

FLOATS: Final = {
    F16: SmallFloat(5, 10, 15),
    BF16: SmallFloat(8, 7, 127),
    F32: SmallFloat(8, 23, 127),
    DTYPES["f8e4m3fn"]: SmallFloat(4, 3, 7, Top.NAN),
    DTYPES["f8e5m2"]: SmallFloat(5, 2, 15),
}
"""The readings of element types."""


@dataclass(frozen=True)
class Numbers:
    """Numbers of a block: their planes, lowest bits first, and inputs that share each number."""

    planes: tuple[Plane, ...]
    reading: Reading
    each: int = 1

    @property
    def bits(self) -> int:
        """Bits of a number."""
        return sum(plane.bits for plane in self.planes)


@dataclass(frozen=True)
class Quantity:
    """``numbers * scale + minimum``, in f32, each step rounded; a float is the same everywhere."""

    numbers: Numbers | float
    scale: Quantity | None = None
    minimum: Quantity | None = None

    def within(self) -> Iterator[Quantity]:
        """This and every quantity inside it."""
        yield self
        for one in (self.scale, self.minimum):
            yield from () if one is None else one.within()


@dataclass(frozen=True)
class PackedLayout:
    """How kernels have a weight in memory: the outputs of a panel side by side, a word of each."""

    lanes: int = 16
    word: int = 32


PANELS: Final = PackedLayout()
"""The layout of ``ptir.codegen.weights.panels``."""


@dataclass(frozen=True)
class InputOrder:
    """Which input each stored one is, where those that share a scale were put side by side.

    ``numbers`` are i32 in the machine's order of bytes.
    """

    numbers: bytes


@dataclass(frozen=True)
class WeightFormat:
    """A format: its arrays, the inputs of a block, what a weight is, and kernels' layout if any.

    ``expanded`` says why kernels take its weights as floats, where the numbers alone do not.
    ``order`` is that of one weight: blocks are of its inputs in another order than the model's.
    Raises ``ValueError`` where planes and readings do not fit the arrays or the block.
    """

    name: str
    block: int
    arrays: tuple[StoredArray, ...]
    value: Quantity
    packed: PackedLayout | None = None
    expanded: str = ""
    order: InputOrder | None = None

    def __post_init__(self) -> None:
        for quantity in self.value.within():
            if isinstance(quantity.numbers, Numbers):
                self._check(quantity.numbers)

    def array(self, name: str) -> StoredArray:
        """The array called ``name``."""
        return next(one for one in self.arrays if one.name == name)

    @property
    def codes(self) -> Numbers:
        """The number that every weight has for itself."""
        assert isinstance(self.value.numbers, Numbers), self.name
        return self.value.numbers

    @property
    def bits(self) -> int:
        """Bits of such a number."""
        return self.codes.bits

    @property
    def group(self) -> int:
        """Inputs that share a scale; 1 without one."""
        scale = self.value.scale
        return scale.numbers.each if scale and isinstance(scale.numbers, Numbers) else 1

    @property
    def zero(self) -> float | None:
        """The code that stands for 0, where it is the same for all.

        With a minimum that is so where the minimum is a float times the scale.
        """
        minimum, reading = self.value.minimum, self.codes.reading
        if not isinstance(reading, Integer):
            return None
        if minimum is None:
            return float(-reading.lowest)
        if not isinstance(minimum.numbers, float) or minimum.scale != self.value.scale:
            return None
        return -minimum.numbers - reading.lowest

    @property
    def stored_bits(self) -> float:
        """Bits of memory for each weight, of arrays that have entries of their own for a block."""
        own = (one.bits / (one.outputs * one.blocks) for one in self.arrays)
        return sum(own) / self.block

    def _check(self, numbers: Numbers) -> None:
        planes, reading = numbers.planes, numbers.reading
        names = [one.name for one in self.arrays]
        for plane in planes:
            self._require(plane.array in names, f"{plane.array!r} is not one of {', '.join(names)}")
            wanted = f"a block of {self.block} has {self.block / numbers.each:g}"
            fits = plane.count * numbers.each == self.block
            self._require(fits, f"a plane has {plane.count} numbers; {wanted}")
            size, (low, high) = self.array(plane.array).bits, plane.bounds
            message = f"bits {low} to {high} are not in the {size} of {plane.array!r}"
            self._require(low >= 0 and high < size, message)
            self._check_float(plane, numbers)
        if isinstance(reading, Codebook):
            size = 1 << numbers.bits
            message = f"a codebook of {len(reading.values)} numbers for {numbers.bits} bits"
            self._require(len(reading.values) == size, f"{message}; {size} are needed")
        if isinstance(reading, Grid):
            size = 1 << (numbers.bits - reading.signs.value)
            message = f"a grid of {reading.entries} entries for {numbers.bits} bits"
            self._require(reading.entries == size, f"{message}; {size} are needed")
        if isinstance(reading, SmallFloat):
            message = f"a float of {reading.bits} bits is read from {numbers.bits}"
            self._require(reading.bits == numbers.bits, message)

    def _check_float(self, plane: Plane, numbers: Numbers) -> None:
        dtype = self.array(plane.array).dtype
        if dtype.is_float:
            steps = (plane.first, *(digit.step for digit in plane.order if digit.size > 1))
            whole = plane.bits == dtype.bits and all(step % dtype.bits == 0 for step in steps)
            message = f"{plane.array!r} is {dtype}; its elements are read whole, as such"
            self._require(whole and numbers.reading == FLOATS[dtype], message)

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            raise ValueError(f"weight format {self.name}: {message}")


class Run(NamedTuple):
    """Neighbouring outputs of one format."""

    format: WeightFormat
    outputs: int


@dataclass(frozen=True)
class FusedFormat:
    """A weight whose outputs come in runs of several formats, such as one fused projection."""

    runs: tuple[Run, ...]

    @property
    def outputs(self) -> int:
        """Outputs of all runs."""
        return sum(run.outputs for run in self.runs)
