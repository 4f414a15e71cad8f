"""**Table** of GGUF's blocks: each is one array of bytes, whose planes are named by their byte.

Inputs of a block are numbered as GGML numbers them. Formats that are not here: TQ1_0 (five digits
of base 3 in a byte) and IQ1 to IQ3 (a code stands for four or eight weights at once).
"""

from __future__ import annotations

from typing import Final

from ptir.types import F16, U8
from ptir.weights.record import (
    FLOATS,
    Codebook,
    Digit,
    Integer,
    Numbers,
    Plane,
    PowerOfTwo,
    Quantity,
    Reading,
    SmallFloat,
    StoredArray,
    Top,
    WeightFormat,
)

SUPER: Final = 256
"""Inputs of a super-block."""
IQ4: Final = Codebook(
    (
        *(-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0),
        *(1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0),
    )
)
"""The uneven steps of IQ4_NL and IQ4_XS."""
FP4: Final = Codebook(
    (
        *(0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0),
        *(0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0),
    )
)
"""Floats of two bits of exponent and one of fraction, times two; the negative zero is none."""
UE4M3: Final = SmallFloat(4, 3, 7, Top.ZERO, signed=False)
"""The scales of NVFP4."""


def at(byte: int, bits: int, *order: tuple[int, int], bit: int = 0) -> Plane:
    """The plane that begins at a bit of a byte of the block."""
    return Plane("blocks", bits, 8 * byte + bit, tuple(Digit(*digit) for digit in order))


def half(byte: int, inputs: int = SUPER) -> Quantity:
    """One f16 for a block."""
    return Quantity(Numbers((at(byte, 16, (1, 16)),), FLOATS[F16], inputs))


def minus(quantity: Quantity) -> Quantity:
    """The negative of a quantity."""
    return Quantity(-1.0, quantity)


def halves(byte: int) -> Plane:
    """32 values of 4 bits: the lower halves of 16 bytes, then the upper ones."""
    return at(byte, 4, (2, 4), (16, 8))


def runs(byte: int) -> Plane:
    """256 values of 4 bits: of each 32 bytes the lower halves, then the upper ones."""
    return at(byte, 4, (4, 256), (2, 4), (32, 8))


def quarters(byte: int) -> Plane:
    """256 values of 2 bits: of each 32 bytes the lowest, then the next, four times."""
    return at(byte, 2, (2, 256), (4, 2), (32, 8))


def block(
    name: str,
    inputs: int,
    nbytes: int,
    codes: tuple[Plane, ...],
    reading: Reading,
    scale: Quantity,
    minimum: Quantity | None = None,
) -> WeightFormat:
    """A format whose blocks have ``nbytes`` bytes."""
    value = Quantity(Numbers(codes, reading), scale, minimum)
    return WeightFormat(name, inputs, (StoredArray("blocks", U8, nbytes),), value)


UNSIGNED: Final = Integer()


def sixes(byte: int, scale: Quantity) -> Quantity:
    """Eight scales of 6 bits in 12 bytes: the upper two bits of the last four lie apart."""
    lower, upper = at(byte, 4, (2, 64), (4, 8)), at(byte, 2, (2, 2), (4, 8), bit=4)
    return Quantity(Numbers((lower, upper), UNSIGNED, 32), scale)


def sixes_behind(byte: int, scale: Quantity) -> Quantity:
    """The eight minima of 6 bits that share those 12 bytes."""
    lower, upper = at(byte + 4, 4, (2, 36), (4, 8)), at(byte + 4, 2, (2, 2), (4, 8), bit=4)
    return Quantity(Numbers((lower, upper), UNSIGNED, 32), scale)


def fours(byte: int, bit: int, scale: Quantity) -> Quantity:
    """Sixteen numbers of 4 bits, at a bit of a byte each."""
    return Quantity(Numbers((at(byte, 4, (16, 8), bit=bit),), UNSIGNED, 16), scale)


FIFTHS: Final = at(2, 1, (32, 1)), at(4, 1, (32, 1))
Q3_SCALES: Final = at(96, 4, (2, 4), (8, 8)), at(104, 2, (4, 2), (4, 8))
IQ4_SCALES: Final = at(4, 4, (8, 4)), at(2, 2, (8, 2))
Q6_CODES: Final = at(0, 4, (2, 512), (2, 4), (2, 256), (32, 8)), quarters(128)

# fmt: off
GGUF: Final[tuple[WeightFormat, ...]] = (
    block("Q4_0", 32, 18, (halves(2),), Integer(-8), half(0, 32)),
    block("Q4_1", 32, 20, (halves(4),), UNSIGNED, half(0, 32), half(2, 32)),
    block("Q5_0", 32, 22, (halves(6), FIFTHS[0]), Integer(-16), half(0, 32)),
    block("Q5_1", 32, 24, (halves(8), FIFTHS[1]), UNSIGNED, half(0, 32), half(2, 32)),
    block("Q8_0", 32, 34, (at(2, 8, (32, 8)),), Integer(signed=True), half(0, 32)),
    block("Q2_K", SUPER, 84, (quarters(16),), UNSIGNED,
          fours(0, 0, half(80)), minus(fours(0, 4, half(82)))),
    block("Q3_K", SUPER, 110, (quarters(32), at(0, 1, (8, 1), (32, 8))), Integer(-4),
          Quantity(Numbers(Q3_SCALES, Integer(-32), 16), half(108))),
    block("Q4_K", SUPER, 144, (runs(16),), UNSIGNED,
          sixes(4, half(0)), minus(sixes_behind(4, half(2)))),
    block("Q5_K", SUPER, 176, (runs(48), at(16, 1, (8, 1), (32, 8))), UNSIGNED,
          sixes(4, half(0)), minus(sixes_behind(4, half(2)))),
    block("Q6_K", SUPER, 210, Q6_CODES, Integer(-32),
          Quantity(Numbers((at(192, 8, (16, 8)),), Integer(signed=True), 16), half(208))),
    block("IQ4_NL", 32, 18, (halves(2),), IQ4, half(0, 32)),
    block("IQ4_XS", SUPER, 136, (at(8, 4, (8, 128), (2, 4), (16, 8)),), IQ4,
          Quantity(Numbers(IQ4_SCALES, Integer(-32), 32), half(0))),
    block("TQ2_0", SUPER, 66, (quarters(0),), Integer(-1), half(64)),
    block("MXFP4", 32, 17, (halves(1),), FP4,
          Quantity(Numbers((at(0, 8, (1, 8)),), PowerOfTwo(128), 32))),
    block("NVFP4", 64, 36, (at(4, 4, (4, 64), (2, 4), (8, 8)),), FP4,
          Quantity(0.5, Quantity(Numbers((at(0, 7, (4, 8)),), UE4M3, 16)))),
)
# fmt: on
"""By GGUF's names: inputs of a block, its bytes, and where bits, scales and minima lie in it."""
