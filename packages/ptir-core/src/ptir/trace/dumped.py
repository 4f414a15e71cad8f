"""Dumped programs, read again: each folder of a dump runs alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ptir.checkpoint import load_archive
from ptir.checkpoint.json_text import read_json_object, read_text
from ptir.errors import CheckpointError, VerifyError
from ptir.ir.program import Program
from ptir.ops.overriding import overrides_from
from ptir.ops.policies import Overrides, origin
from ptir.ops.reading import parse

KIND: Final = "ptir dump 1"
"""What ``meta.json`` says of a dump, and of each program in it."""
META: Final = "meta.json"
PROGRAM: Final = "program.ptir"
INPUTS: Final = "inputs.safetensors"
PARAMETERS: Final = "parameters"
"""The folder of parameters, beside those of programs."""


@dataclass(frozen=True)
class Dumped:
    """A program of a dump; ``arrays`` are those of its first run, where they were kept."""

    folder: Path
    program: Program
    meta: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray[Any, Any]]

    @property
    def overrides(self) -> Overrides:
        """What was in force when it was compiled, as strong as what a checkpoint asks for.

        Raises ``CheckpointError``, and ``UsageError`` for implementations that are not there.
        """
        said, path = self.meta.get("overrides", {}), self.folder / META
        if not isinstance(said, dict):
            raise CheckpointError(f"{path}: overrides is {said!r}, no object")
        return overrides_from(said, origin("checkpoint", str(path)))


def is_dump(path: Path) -> bool:
    """Whether a path is a dump's folder, or a program's in one; of any version."""
    try:
        found = json.loads((path / META).read_text(encoding="utf-8"))
    except OSError:
        return False
    except (ValueError, RecursionError):  # damaged; reading it says how
        return (path / PROGRAM).exists()
    return isinstance(found, dict) and str(found.get("kind", "")).startswith("ptir dump")


def check_kind(path: Path) -> None:
    """Raise ``CheckpointError`` where ``meta.json`` is there and of another version."""
    if path.exists():
        found = read_json_object(path).get("kind")
        if found != KIND:
            raise CheckpointError(
                f"{path}: is of {found!r} and this ptir reads and writes {KIND!r}: dump again, into"
                " a new folder"
            )


def read_dump(folder: Path) -> Dumped:
    """A program of a dump; raises ``CheckpointError`` or ``VerifyError``, which name the file."""
    meta = folder / META
    check_kind(meta)
    path = folder / PROGRAM
    if not path.exists():
        programs = sorted(p.parent.name for p in folder.glob(f"*/{PROGRAM}"))
        listed = ", ".join(programs[:5]) + (", ..." if programs[5:] else "")
        raise CheckpointError(
            f"{folder}: holds a dump; name one of its programs: {listed or 'there is none'}"
        )
    try:
        program = parse(read_text(path))
    except VerifyError as error:
        raise VerifyError(f"{path}: {error}") from None
    said = read_json_object(meta)
    return Dumped(folder, program, said, _arrays(folder, said))


def _arrays(folder: Path, meta: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    if "inputs" not in meta:
        return {}
    arrays = dict(load_archive(folder / str(meta["inputs"])).arrays)
    parameters = meta.get("parameters", {})
    if not isinstance(parameters, dict):
        raise CheckpointError(f"{folder / META}: parameters is {parameters!r}, no object")
    for port, file in parameters.items():
        path = folder.resolve().parent / str(file)  # "." has no parent
        (arrays[port],) = load_archive(path).arrays.values()
    return arrays
