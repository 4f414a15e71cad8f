"""Programs that once failed, shrunk and kept: the regression file, and its lines as items.

A line holds the text of a program, the bytes of its inputs, which inputs share a buffer, and where
it came from. The file that is installed with the suite is a part of every run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Final

from ptir.errors import PtirError, UsageError
from ptir.ir.attributes import Literal
from ptir.ir.program import Program
from ptir.ops import OPS
from ptir.ops.reading import parse
from ptir.types import parse_type
from ptir_testsuite.corpus.profiles import profiles_of
from ptir_testsuite.corpus.programs import Drawn, aliases_of
from ptir_testsuite.oracles.floats import Array

FILE: Final = "regressions.jsonl"


@dataclass(frozen=True)
class Stored:
    """A program as text with its inputs; ``note`` says where it came from."""

    text: str
    inputs: tuple[Literal, ...]
    aliases: tuple[tuple[int, ...], ...] = ()
    note: str = ""

    @cached_property
    def id(self) -> str:
        """A hash of the program and its inputs."""
        state = hashlib.blake2b(self.text.encode(), digest_size=6)
        for literal in self.inputs:
            state.update(f"\n{literal.type}\n".encode() + literal.data)
        state.update(repr(self.aliases).encode())
        return f"regression-{state.hexdigest()}"

    @cached_property
    def program(self) -> Program:
        """The program."""
        return parse(self.text)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The names of all values' dtypes, each once, in order."""
        return tuple(dict.fromkeys(t.dtype.name for t in self.program.main.types))

    @property
    def profiles(self) -> frozenset[str]:
        """The profiles of all instructions."""
        main = self.program.main
        found: set[str] = set()
        for instruction in main.instructions:
            types = (*(main.types[v] for v in instruction.operands), *instruction.types)
            found |= profiles_of(OPS[instruction.op], [t.dtype for t in types])
        return frozenset(found)

    def drawn(self) -> Drawn:
        """The program as the check takes it."""
        arrays = [literal.numpy() for literal in self.inputs]
        for group in self.aliases:
            for place in group:
                arrays[place] = arrays[group[0]]
        return Drawn(self.program, tuple(arrays), self.aliases)

    @classmethod
    def of(cls, program: Program, arrays: Sequence[Array], note: str = "") -> Stored:
        """A program and its inputs; inputs that are one array share a buffer."""
        literals = tuple(Literal.of(array) for array in arrays)
        return cls(str(program), literals, aliases_of(arrays), note)

    def record(self) -> dict[str, Any]:
        """A line of the file."""
        inputs = [{"type": str(x.type), "data": x.data.hex()} for x in self.inputs]
        aliases = [list(group) for group in self.aliases]
        return {"note": self.note, "program": self.text, "inputs": inputs, "aliases": aliases}


def stored(path: Path | None = None) -> Iterator[Stored]:
    """The programs of a regression file, or of the one that is installed with the suite.

    Raises ``UsageError`` for a line that is none.
    """
    place: Any = resources.files("ptir_testsuite.corpus").joinpath(FILE) if path is None else path
    try:
        lines = place.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"{place}: {error.strerror or error}") from error
    for number, line in enumerate(lines, 1):
        try:
            yield _of(json.loads(line))
        except (ValueError, KeyError, TypeError, PtirError) as error:
            text = f"{place}:{number}: no program of a regression file: {error}"
            raise UsageError(text) from error


def _of(record: dict[str, Any]) -> Stored:
    inputs = tuple(
        Literal(parse_type(x["type"]), bytes.fromhex(x["data"])) for x in record["inputs"]
    )
    aliases = tuple(tuple(group) for group in record["aliases"])
    found = Stored(record["program"], inputs, aliases, record["note"])
    if found.program.inputs != tuple(x.type for x in inputs):
        raise ValueError("the inputs are not those of the program")
    return found


def promote(path: Path, found: Stored) -> bool:
    """Append a program to a regression file; False where it has it already."""
    if path.exists() and found.id in {one.id for one in stored(path)}:
        return False
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found.record()) + "\n")
    return True
