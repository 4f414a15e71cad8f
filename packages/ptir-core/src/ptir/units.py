"""Bytes and seconds for people, and bytes as people write them."""

from __future__ import annotations

import re
from typing import Final

UNITS: Final = {
    "": 1,
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", 1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
"""What a number of bytes may be followed by, in upper or lower case."""
EXPLAINED: Final = "kB, MB, GB and TB (of 1000), KiB, MiB, GiB and TiB (of 1024)"
_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)
_FACTORS: Final = {unit.lower(): factor for unit, factor in UNITS.items()}


def bytes_of(text: str) -> int:
    """The bytes that a text such as ``2GiB`` says; raises ``ValueError`` with what is wrong."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise ValueError("is no number of bytes above 0")
    number, unit = found.groups()
    factor = _FACTORS.get(unit.lower())
    if factor is None:
        raise ValueError(f"{unit!r} is no unit{_meant(number, unit)}")
    return int(float(number) * factor) if "." in number else int(number) * factor


def _meant(number: str, unit: str) -> str:
    """Whole units for one letter of them."""
    letter = unit.upper()
    meant = [one for one in UNITS if len(one) > 1 and one[0].upper() == letter]
    return f" (did you mean {' or '.join(f'{number}{one}' for one in meant)}?)" if meant else ""


def binary(nbytes: int) -> str:
    """Bytes in the largest unit of 1024 that keeps them above one."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes >= 1024**power:
            shown = nbytes / 1024**power
            return f"{shown:.{0 if shown == int(shown) or shown >= 100 else 1}f} {unit}"
    return f"{nbytes} B"


def size(nbytes: int) -> str:
    """Bytes in the largest decimal unit that keeps them above one; nothing for zero."""
    if not nbytes:
        return ""
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if nbytes >= factor:
            return f"{nbytes / factor:.{0 if nbytes >= 100 * factor else 1}f} {unit}"
    return f"{nbytes} B"


def duration(seconds: float) -> str:
    """Seconds in a unit that fits."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.{2 if seconds < 1e-2 else 1}f} ms"
    return f"{seconds:.2f} s"
