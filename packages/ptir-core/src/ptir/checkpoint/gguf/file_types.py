"""**Table** of ``general.file_type``: what mixtures of types are called, and what most of each is.

The numbers and names are llama.cpp's (``llama_ftype``). A file's name says what somebody called it
and this key what a program wrote; the tensors say what is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

FILE_TYPE: Final = "general.file_type"


class FileType(NamedTuple):
    """A mixture: what people call it, and the type that most of its matrices have."""

    name: str
    most: str


def _plain(name: str) -> FileType:
    return FileType(name, name)


FILE_TYPES: Final[dict[int, FileType]] = {
    0: _plain("F32"),
    1: _plain("F16"),
    2: _plain("Q4_0"),
    3: _plain("Q4_1"),
    7: _plain("Q8_0"),
    8: _plain("Q5_0"),
    9: _plain("Q5_1"),
    10: _plain("Q2_K"),
    11: FileType("Q3_K_S", "Q3_K"),
    12: FileType("Q3_K_M", "Q3_K"),
    13: FileType("Q3_K_L", "Q3_K"),
    14: FileType("Q4_K_S", "Q4_K"),
    15: FileType("Q4_K_M", "Q4_K"),
    16: FileType("Q5_K_S", "Q5_K"),
    17: FileType("Q5_K_M", "Q5_K"),
    18: _plain("Q6_K"),
    19: _plain("IQ2_XXS"),
    20: _plain("IQ2_XS"),
    21: FileType("Q2_K_S", "Q2_K"),
    22: FileType("IQ3_XS", "IQ3_S"),
    23: _plain("IQ3_XXS"),
    24: _plain("IQ1_S"),
    25: _plain("IQ4_NL"),
    26: _plain("IQ3_S"),
    27: FileType("IQ3_M", "IQ3_S"),
    28: FileType("IQ2_S", "IQ2_XS"),
    29: FileType("IQ2_M", "IQ2_S"),
    30: _plain("IQ4_XS"),
    31: _plain("IQ1_M"),
    32: _plain("BF16"),
    36: _plain("TQ1_0"),
    37: _plain("TQ2_0"),
    38: FileType("MXFP4_MOE", "MXFP4"),
    39: _plain("NVFP4"),
    40: _plain("Q1_0"),
}
"""By number."""
SHARE: Final = 0.25
"""The least share of the weights of matrices that has the type a mixture is made of.

A large table of tokens in more bits may well be most of a small model.
"""


class Stored(NamedTuple):
    """A tensor: its type, how many axes and weights it has, and its bytes."""

    type: str
    axes: int
    weights: int
    nbytes: int


def format_of(file_type: Any, tensors: Iterable[Stored]) -> str:
    """What a file's format is called: its mixture where the tensors are such, else their type.

    ``file_type`` is what the file says at ``FILE_TYPE``, whatever that is; without one that fits it
    is the type that most bytes are stored in. Nothing for a file without tensors.
    """
    matrices: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for one in tensors:
        sizes[one.type] += one.nbytes
        if one.axes > 1:
            matrices[one.type] += one.weights
    said = FILE_TYPES.get(file_type) if type(file_type) is int else None
    if said is not None and matrices[said.most] >= SHARE * matrices.total() > 0:
        return said.name
    return sizes.most_common(1)[0][0] if sizes else ""
