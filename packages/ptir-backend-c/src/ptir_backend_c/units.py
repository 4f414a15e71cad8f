"""A source file in parts that compilers may work on at the same time, one process each.

A part is the text before the first kernel and some of the kernels. Kernels that name each other's
functions stay together; parts are about equally long.
"""

from __future__ import annotations

import re
from typing import Final

LEAST: Final = 1 << 14
"""Characters of kernels below which another process does not pay."""

_START: Final = re.compile(r"^(?=void \w+\(void \*const \*buffers)", re.M)
_DEFINED: Final = re.compile(r"^[A-Za-z_][\w *]*?\b(\w+)\(", re.M)
_WORD: Final = re.compile(r"\w+")


def parts(source: str, most: int) -> list[str]:
    """``source`` as at most ``most`` sources that together define what it defines."""
    before, *kernels = _START.split(source)
    most = min(most, sum(map(len, kernels)) // LEAST)
    if most < 2:
        return [source]
    bins: list[list[str]] = [[] for _ in range(most)]
    for texts in sorted(_together(kernels), key=_length, reverse=True):
        min(bins, key=_length).extend(texts)
    return [before + "".join(texts) for texts in bins if texts]


def _length(texts: list[str]) -> int:
    return sum(map(len, texts))


def _together(kernels: list[str]) -> list[list[str]]:
    """The kernels in groups, of which none names a function that another one defines."""
    groups: list[tuple[list[str], set[str], set[str]]] = []
    for text in kernels:
        texts, defined, words = [text], set(_DEFINED.findall(text)), set(_WORD.findall(text))
        apart = []
        for group in groups:
            if defined & group[2] or group[1] & words:
                texts, defined, words = group[0] + texts, defined | group[1], words | group[2]
            else:
                apart.append(group)
        groups = [*apart, (texts, defined, words)]
    return [texts for texts, _, _ in groups]
