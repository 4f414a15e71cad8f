"""Program dumps: the text of every program that is compiled, and of every pass that changed it."""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ptir.errors import UsageError, unknown_name
from ptir.events import Event, PassRun, ProgramCompiled
from ptir.ir.printer import print_program
from ptir.ir.program import Program
from ptir.trace.sink import Sink

DumpMode = Literal["all", "compile"]
INDEX = "index.jsonl"


class DumpSink(Sink):
    """Writes programs as text into ``folder``, which is made when it does not exist.

    The mode ``compile`` writes ``000-captured.ptir`` and ``000-optimized.ptir`` for the first
    compilation, and so on; ``all`` adds ``000-01-NAME.ptir`` for each pass that changed the
    program, as it happens, so that a compilation that fails leaves its passes. ``index.jsonl``
    has one line per file: what happened, how long it took, which rules applied. The programs say
    where their instructions come from. Raises ``UsageError`` when the folder cannot be written.
    """

    def __init__(self, folder: Path, mode: DumpMode = "all") -> None:
        if mode not in get_args(DumpMode):
            raise UsageError(unknown_name("dump mode", mode, get_args(DumpMode)))
        self.folder = folder
        self.mode = mode
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._open = _OpenCompilation()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / INDEX).write_text("", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"dump folder {folder}: {error.strerror}; choose another") from error

    def __call__(self, event: Event) -> None:
        """Write the files of a pass or a compilation; other events are not dumped."""
        with self._lock:
            if isinstance(event, PassRun) and self.mode == "all":
                self._write_pass(event)
            elif isinstance(event, ProgramCompiled):
                self._write_compiled(event)

    def _write_pass(self, run: PassRun) -> None:
        current = self._open
        if run.before != current.program:
            self._begin(run.before)
        current.program = run.after
        current.passes += 1
        if run.after != run.before:
            details = {"pass": run.name, "seconds": run.seconds, "rewrites": run.rewrites}
            places = [[f.rule, f.op, str(f.location)] for f in run.firings]
            details |= {"firings": places} if places else {}
            self._file(f"{current.passes:02}-{run.name}", run.after, details)

    def _begin(self, captured: Program) -> None:
        self._open.number, self._open.passes = next(self._numbers), 0
        self._file("captured", captured, {})

    def _write_compiled(self, event: ProgramCompiled) -> None:
        if self._open.program is None:
            self._begin(event.captured)
        where = {"backend": event.backend, "device": event.device}
        self._file("optimized", event.optimized, where | {"seconds": event.seconds})
        self._open.program = None

    def _file(self, label: str, program: Program, details: dict[str, Any]) -> None:
        name = f"{self._open.number:03}-{label}.ptir"
        text = print_program(program, locations=True)
        (self.folder / name).write_text(f"{text}\n", encoding="utf-8")
        line = json.dumps({"file": name, "digest": program.digest} | details)
        with (self.folder / INDEX).open("a", encoding="utf-8") as index:
            index.write(line + "\n")


@dataclass
class _OpenCompilation(threading.local):
    """The compilation this thread is in: its number, its passes so far, the last one's result.

    A pass that does not continue from ``program`` begins another one (the last one failed).
    """

    number: int = 0
    passes: int = 0
    program: Program | None = None
