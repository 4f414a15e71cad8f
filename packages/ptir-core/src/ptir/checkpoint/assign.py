"""Fit stored tensors to the parameters a model declares, and name everything that does not fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from ptir.checkpoint.folder import CONFIG
from ptir.errors import CheckpointError
from ptir.params.source import ParamSource, RenamedSource
from ptir.types import TensorType

_SHOWN = 4
_ROOM = 120
"""Tensors of a kind of problem that a message names, and the characters that they may take."""


def check_parameters(
    expected: Mapping[str, TensorType],
    source: ParamSource,
    *,
    ignore: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    where: str | Path = "checkpoint",
    said_by: str = CONFIG,
) -> RenamedSource:
    """A view of ``source`` with exactly the names of ``expected``, once everything fits.

    ``aliases`` gives the stored name of an expected one that is stored under another (a tied
    weight); ``ignore`` holds patterns (``*.masked_bias``) of stored tensors that may be left over.
    Shapes must agree; floating-point tensors may be stored in another float type. Raises one
    ``CheckpointError`` opening with ``where`` that counts missing, left-over and unfitting ones,
    names the first few of each, and says to check what ``said_by`` tells of the model.
    """
    stored = set(source.names())
    used = {name: _stored_name(name, stored, aliases or {}) for name in expected}
    missing = [name for name, old in used.items() if old not in stored]
    unfit = [
        f"{old} is {source.type(old)}, expected {expected[name]}"
        for name, old in used.items()
        if old in stored and not _fits(source.type(old), expected[name])
    ]
    taken = set(used.values())
    extra = [name for name in source.names() if name not in taken]
    extra = [name for name in extra if not any(fnmatchcase(name, row) for row in ignore)]
    problems = {"missing": missing, "not expected": extra, "of another shape or kind": unfit}
    if any(problems.values()):
        raise CheckpointError(_report(where, problems, said_by))
    return RenamedSource(source, used)


def _stored_name(name: str, stored: Collection[str], aliases: Mapping[str, str]) -> str:
    return name if name in stored else aliases.get(name, name)


def _fits(stored: TensorType, expected: TensorType) -> bool:
    both_float = stored.dtype.is_float and expected.dtype.is_float
    return stored.shape == expected.shape and (both_float or stored.dtype == expected.dtype)


def _report(where: str | Path, problems: Mapping[str, list[str]], said_by: str) -> str:
    parts = [
        f"{len(rows)} tensors {what} ({some_names(rows)})"
        for what, rows in problems.items()
        if rows
    ]
    return f"{where}: does not fit the model: {'; '.join(parts)}; check {said_by}"


def some_names(rows: list[str]) -> str:
    """The first few of ``rows``, and how many more there are; names are a file's, of any length."""
    shown = [_cut(rows[0])]
    for row in rows[1:_SHOWN]:
        if sum(map(len, shown)) + len(row) > _ROOM:
            break
        shown.append(row)
    rest = len(rows) - len(shown)
    return ", ".join(shown) + (f", and {rest} more" if rest else "")


def _cut(name: str) -> str:
    return name if len(name) <= _ROOM else f"{name[: _ROOM // 2]}...{name[-_ROOM // 2 :]}"
