"""**Table** of the types that tensors of GGUF may have: ids, sizes, and how ptir reads each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ptir.types import DTYPES, DType
from ptir.weights import FORMATS, WeightFormat


@dataclass(frozen=True)
class GgufType:
    """A type: its name, the elements of a block and its bytes.

    ``dtype`` is that of plain elements. A quantized type whose record is in ``FORMATS`` has a
    ``format``; one with neither is known by its size alone and cannot be decoded.
    """

    name: str
    block: int
    nbytes: int
    dtype: DType | None = None

    @property
    def format(self) -> WeightFormat | None:
        """How a quantized type's blocks are read."""
        return FORMATS.get(self.name)


def _plain(name: str) -> GgufType:
    dtype = DTYPES[name.lower()]
    return GgufType(name, 1, dtype.itemsize, dtype)


def _blocks(name: str) -> GgufType:
    format = FORMATS[name]
    return GgufType(name, format.block, format.arrays[0].count)


TYPES: Final[dict[int, GgufType]] = {
    0: _plain("F32"),
    1: _plain("F16"),
    2: _blocks("Q4_0"),
    3: _blocks("Q4_1"),
    6: _blocks("Q5_0"),
    7: _blocks("Q5_1"),
    8: _blocks("Q8_0"),
    9: GgufType("Q8_1", 32, 40),
    10: _blocks("Q2_K"),
    11: _blocks("Q3_K"),
    12: _blocks("Q4_K"),
    13: _blocks("Q5_K"),
    14: _blocks("Q6_K"),
    15: GgufType("Q8_K", 256, 292),
    16: _blocks("IQ2_XXS"),
    17: _blocks("IQ2_XS"),
    18: _blocks("IQ3_XXS"),
    19: _blocks("IQ1_S"),
    20: _blocks("IQ4_NL"),
    21: _blocks("IQ3_S"),
    22: _blocks("IQ2_S"),
    23: _blocks("IQ4_XS"),
    24: _plain("I8"),
    25: _plain("I16"),
    26: _plain("I32"),
    27: _plain("I64"),
    28: _plain("F64"),
    29: _blocks("IQ1_M"),
    30: _plain("BF16"),
    34: _blocks("TQ1_0"),
    35: _blocks("TQ2_0"),
    39: _blocks("MXFP4"),
    40: _blocks("NVFP4"),
    41: _blocks("Q1_0"),
    42: _blocks("Q2_0"),
}
"""By id in the file."""

REMOVED: Final[dict[int, str]] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Ids that old files have and llama.cpp reads no more."""

READABLE: Final = tuple(one.name for one in TYPES.values() if one.dtype or one.format)
"""The names of those that ptir decodes."""
