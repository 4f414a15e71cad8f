"""**Table** of how texts are sampled by default: ``general.sampling.*`` and ``generation_config``.

llama.cpp takes these keys for defaults, and its converter writes them of ``generation_config.json``
under the same names, but for the three that are called otherwise there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ptir.checkpoint.config import SAMPLED
from ptir.errors import CheckpointError, short

PREFIX: Final = "general.sampling."


class Setting(NamedTuple):
    """A setting: its key behind the prefix, its field, and the type that it has in a file."""

    key: str
    field: str
    type: type[int] | type[float] | type[str]


SETTINGS: Final = (
    Setting("temp", "temperature", float),
    Setting("top_k", "top_k", int),
    Setting("top_p", "top_p", float),
    Setting("min_p", "min_p", float),
    Setting("penalty_repeat", "repetition_penalty", float),
    Setting("penalty_last_n", "penalty_last_n", int),
    Setting("xtc_probability", "xtc_probability", float),
    Setting("xtc_threshold", "xtc_threshold", float),
    Setting("mirostat", "mirostat", int),
    Setting("mirostat_tau", "mirostat_tau", float),
    Setting("mirostat_eta", "mirostat_eta", float),
    Setting("sequence", "sequence", str),
)


def sampling_metadata(generation_config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The keys of a generation's settings; none where it says that nothing is sampled.

    Raises ``CheckpointError`` for a setting that is no number, or none that a file holds.
    """
    if generation_config.get(SAMPLED) is False:
        return {}
    said = {row: generation_config.get(row.field) for row in SETTINGS}
    return {
        f"{PREFIX}{row.key}": _as_written(row, value, where)
        for row, value in said.items()
        if value is not None
    }


def sampling_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The same as fields of ``generation_config.json``; keys of other types are left out."""
    said = {row.field: _as_read(row, metadata.get(f"{PREFIX}{row.key}")) for row in SETTINGS}
    found = {field: value for field, value in said.items() if value is not None}
    return {SAMPLED: True, **found} if found else {}


def _as_written(row: Setting, value: Any, where: Path) -> Any:
    """A value in its type: i32, f32 or a string."""
    import numpy as np

    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if row.type is str and isinstance(value, str):
        return value
    if row.type is float and is_number and math.isfinite(value):
        return float(value)
    if row.type is int and is_number and value == int(value) and abs(value) < 1 << 31:
        return np.int32(value)
    what = {int: "a whole number of 32 bits", float: "a number", str: "a text"}[row.type]
    raise CheckpointError(
        f"{where}: generation_config.json: {row.field} {short(value)} must be {what}; correct it or"
        " take it out"
    )


def _as_read(row: Setting, value: Any) -> Any:
    """A value as JSON has it: of f32 the shortest number that is the same in f32."""
    import numpy as np

    if row.type is str:
        return value if isinstance(value, str) else None
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if row.type is int else float(str(np.float32(value)))
