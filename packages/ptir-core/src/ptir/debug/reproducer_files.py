"""Reproducers on disk: a folder that runs by itself."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, Final

from ptir.checkpoint import save_archive
from ptir.debug.bisect import Finding
from ptir.debug.difference import Tolerance
from ptir.debug.subject import Subject
from ptir.errors import UsageError
from ptir.ir.printer import print_program

PROGRAM: Final = "program.ptir"
INPUTS: Final = "inputs.safetensors"
GOT: Final = "got.safetensors"
WANTED: Final = "wanted.safetensors"
ABOUT: Final = "finding.json"


def command(folder: Path, subject: Subject, tolerance: Tolerance) -> str:
    """What shows the fault again, as a line for a shell."""
    tested, reference = (
        f"{side.target.backend.name}:{side.target.device.index}"
        for side in (subject.tested, subject.reference)
    )
    files = str(folder / PROGRAM), "--input", str(folder / INPUTS)
    words = ["ptir", "verify", *files, "--backend", tested, "--against", reference]
    if tolerance.relative is not None:
        words += ["--tolerance", str(tolerance.relative)]
    return shlex.join(words)


def check_folder(folder: Path) -> None:
    """Raise ``UsageError`` where files would be replaced; it is made once something is found."""
    try:
        taken = folder.exists() and any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; name another folder (--out)") from error
    if taken:
        raise UsageError(f"{folder}: is not empty; name a new folder (--out)")


def write_reproducer(
    folder: Path, subject: Subject, finding: Finding, tolerance: Tolerance
) -> None:
    """Write the program, its inputs, both sides' outputs, and ``finding.json``, which says all."""
    folder.mkdir(parents=True, exist_ok=True)
    made = finding.reproducer
    text = print_program(made.program, locations=True)
    (folder / PROGRAM).write_text(f"{text}\n", encoding="utf-8")
    save_archive(folder / INPUTS, made.inputs)
    for name, arrays in ((GOT, made.got), (WANTED, made.wanted)):
        save_archive(folder / name, {f"output{n}": array for n, array in enumerate(arrays)})
    about = described(subject, finding)
    about["command"] = command(folder, subject, tolerance)
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def described(subject: Subject, finding: Finding) -> dict[str, Any]:
    """A finding for programs."""
    made, one = finding.reproducer, finding.instruction
    off = made.difference
    return {
        "subject": subject.name,
        "backend": str(subject.tested.target),
        "against": str(subject.reference.target),
        "instruction": finding.position,
        "instructions": len(subject.program.main.instructions),
        "op": one.name,
        "location": str(one.location),
        "layer": one.location.scope,
        "kernel": made.part.name if made.part else None,
        "schedule": made.part.schedule if made.part else None,
        "output": made.output,
        "relative": _number(off.relative),
        "ulps": _number(off.ulps),
        "place": list(off.place),
        "got": _number(off.got),
        "wanted": _number(off.wanted),
        "reproducer_instructions": len(made.program.main.instructions),
        "runs": finding.runs,
    }


def _number(value: float) -> float | str:
    """A number that JSON has, or its name."""
    return value if abs(value) < float("inf") else str(value)
