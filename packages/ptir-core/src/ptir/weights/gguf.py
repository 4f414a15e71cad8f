"""**Table** of GGUF's blocks: each is one array of bytes, whose planes are named by their byte.

Inputs of a block are numbered as GGML numbers them. In TQ1_0 a byte is five digits of base 3, in
IQ1 to IQ3 a code is a point of a grid: numbers for four or eight weights at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ptir.types import F16, U8
from ptir.weights.record import (
    FLOATS,
    Codebook,
    Digit,
    Grid,
    Integer,
    Numbers,
    Plane,
    PowerOfTwo,
    Quantity,
    Reading,
    Signs,
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


def odd(plane: Plane, each: int, scale: Quantity) -> Quantity:
    """Scales that are one more than twice the stored number."""
    odds = tuple(float(2 * n + 1) for n in range(1 << plane.bits))
    return Quantity(Numbers((plane,), Codebook(odds), each), scale)


def points(table: str, bits: int, span: int, signs: Signs = Signs.NONE) -> Grid:
    """A grid of as many entries as ``bits`` tell apart."""
    return Grid(table, 1 << bits, span, signs)


def part(factor: float, whole: Quantity) -> Quantity:
    """A quantity times a number."""
    return Quantity(factor, whole)


def in_turn(first: int, *orders: tuple[tuple[int, int], ...]) -> Plane:
    """Bytes in one order after the other; each begins behind the bytes of the one before."""
    order, *rest = orders
    behind = first + order[-1][0]
    return replace(at(first, 8, *order), then=in_turn(behind, *rest) if rest else None)


def which_digit(*counts: tuple[int, int]) -> Plane:
    """For so many digits of so many bytes each: the number of the digit."""
    (digits, nbytes), *rest = counts
    order = Digit(digits, 1), Digit(nbytes, 0)
    return Plane("", 0, 0, order, which_digit(*rest) if rest else None)


TERNARY_RUNS: Final = (5, 32), (5, 16), (4, 4)
"""Of TQ1_0: digits that are used of so many bytes."""
TERNARY_BYTES: Final = in_turn(0, *(((digits, 0), (n, 8)) for digits, n in TERNARY_RUNS))
TERNARY: Final = Grid("ternary", 256, 5, members=which_digit(*TERNARY_RUNS))
IQ1_M_SCALE: Final = tuple(at(49 + 2 * n, 4, (1, 16), bit=4) for n in range(4))

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
    block("TQ1_0", SUPER, 54, (TERNARY_BYTES,), TERNARY, half(52)),
    block("Q1_0", 128, 18, (at(2, 1, (128, 1)),), Codebook((-1.0, 1.0)), half(0, 128)),
    block("Q2_0", 64, 18, (at(2, 2, (64, 2)),), Integer(-1), half(0, 64)),
    block("IQ2_XXS", SUPER, 66,
          (at(2, 8, (8, 64), (4, 8), (8, 0)), at(6, 7, (8, 64), (4, 7), (8, 0))),
          points("iq2_xxs", 8, 8, Signs.EVEN),
          odd(at(9, 4, (8, 64), bit=4), 32, part(1 / 8, half(0)))),
    block("IQ2_XS", SUPER, 74, (at(2, 9, (32, 16), (8, 0)), at(3, 7, (32, 16), (8, 0), bit=1)),
          points("iq2_xs", 9, 8, Signs.EVEN), odd(at(66, 4, (16, 4)), 16, part(1 / 8, half(0)))),
    block("IQ2_S", SUPER, 82,
          (at(2, 8, (32, 8), (8, 0)), at(66, 2, (32, 2), (8, 0)), at(34, 1, (SUPER, 1))),
          points("iq2_s", 10, 8, Signs.OWN), odd(at(74, 4, (16, 4)), 16, part(1 / 8, half(0)))),
    block("IQ3_XXS", SUPER, 98,
          (at(2, 8, (64, 8), (4, 0)), at(66, 7, (8, 32), (4, 7), (8, 0))),
          points("iq3_xxs", 8, 4, Signs.EVEN),
          odd(at(69, 4, (8, 32), bit=4), 32, part(1 / 4, half(0)))),
    block("IQ3_S", SUPER, 110,
          (at(2, 8, (64, 8), (4, 0)), at(66, 1, (64, 1), (4, 0)), at(74, 1, (SUPER, 1))),
          points("iq3_s", 9, 4, Signs.OWN), odd(at(106, 4, (8, 4)), 32, half(0))),
    block("IQ1_S", SUPER, 50,
          (at(2, 8, (32, 8), (8, 0)), at(34, 3, (8, 16), (4, 3), (8, 0)),
           at(35, 1, (8, 16), (32, 0), bit=7)),
          points("iq1_shifted", 12, 8), odd(at(35, 3, (8, 16), bit=4), 32, part(1 / 8, half(0)))),
    block("IQ1_M", SUPER, 56,
          (at(0, 8, (32, 8), (8, 0)), at(32, 3, (32, 4), (8, 0)),
           at(32, 1, (32, 4), (8, 0), bit=3)),
          points("iq1_shifted", 12, 8),
          odd(at(48, 3, (4, 16), (4, 3)), 16,
              part(1 / 8, Quantity(Numbers(IQ1_M_SCALE, FLOATS[F16], SUPER))))),
    block("MXFP4", 32, 17, (halves(1),), FP4,
          Quantity(Numbers((at(0, 8, (1, 8)),), PowerOfTwo(128), 32))),
    block("NVFP4", 64, 36, (at(4, 4, (4, 64), (2, 4), (8, 8)),), FP4,
          Quantity(0.5, Quantity(Numbers((at(0, 7, (4, 8)),), UE4M3, 16)))),
)
# fmt: on
"""By GGUF's names: inputs of a block, its bytes, and where bits, scales and minima lie in it."""
