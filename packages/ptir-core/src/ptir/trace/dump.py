"""Dumps: every program that was compiled or ran, its passes, kernels, runs and look-ups, as files.

A folder for each program, from which it runs alone (``ptir.trace.dumped``), and lists beside them
that name these folders.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ptir.checkpoint import save_archive
from ptir.errors import UsageError, unknown_name
from ptir.events import (
    CacheLookup,
    CompiledPlan,
    Event,
    KernelsWritten,
    ParameterLoaded,
    PassRun,
    PortArray,
    ProgramCompiled,
    ProgramCompiling,
    ProgramFailed,
    ProgramRun,
    ProgramStarting,
)
from ptir.ir.jsonform import to_json
from ptir.ir.printer import print_program
from ptir.ir.program import Program
from ptir.trace.dumped import INPUTS, KIND, META, PARAMETERS, PROGRAM, check_kind
from ptir.trace.sink import Sink

if TYPE_CHECKING:
    from ptir.backend.contract import Executable
    from ptir.ops.policies import Overrides

DumpMode = Literal["all", "compile"]

SUFFIXES: Final = {"c": ".c", "opencl-c": ".cl", "cuda": ".cu"}
"""How files of kernels end, by the name of the dialect; others are text."""
NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


class DumpSink(Sink):
    """Writes what happens into ``folder``, which is made when it does not exist.

    Each program gets a folder ``00000_NAME`` with ``program.ptir`` and ``program.json`` (as it was
    captured), ``optimized.ptir``, ``meta.json`` and ``kernels/``, as it happens, so that a
    compilation that fails leaves what there was. The mode ``all`` adds ``passes/`` (the program
    after each pass that changed it) and lists beside the folders: ``passes.jsonl``,
    ``executions.jsonl`` (a line before and one behind each run), ``caches.jsonl`` and
    ``loads.jsonl``. With ``inputs`` the arrays of each program's first run are kept, parameters
    each once. What an earlier run left in ``folder`` stays: numbers go on, and lists grow.

    Raises ``UsageError`` when the folder cannot be written, or holds a dump of another version.
    """

    def __init__(self, folder: Path, mode: DumpMode = "all", *, inputs: bool = False) -> None:
        if mode not in get_args(DumpMode):
            raise UsageError(unknown_name("dump mode", mode, get_args(DumpMode)))
        self.folder, self.mode, self.inputs = folder, mode, inputs
        self._began = time.perf_counter()
        self._lock = threading.RLock()
        self._open = _OpenCompilation()
        self._folders: dict[int, tuple[weakref.ref[Executable], Path]] = {}
        self._parameters: dict[Hashable, str] = {}
        self._kept: set[Path] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            check_kind(folder / META)
            (folder / META).write_text(json.dumps({"kind": KIND}) + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"dump folder {folder}: {error.strerror}; choose another") from error

    def __call__(self, event: Event) -> None:
        """Write the files of an event, or a line of a list."""
        with self._lock:
            match event:
                case ProgramCompiling():
                    where = event.backend, event.device
                    folder = self._begin(event.captured, event.name, *where)
                    self._meta(folder, overrides=_texts(event.overrides))
                case PassRun() if self.mode == "all":
                    self._pass(event)
                case KernelsWritten():
                    self._open.kernels.append(event)
                case ProgramCompiled():
                    self._compiled(event)
                case _ if self.mode == "all":
                    self._listed(event)
                case ProgramStarting():
                    self._arrays(event, self._folder_of(event))
                case _:
                    pass

    def _listed(self, event: Event) -> None:
        """Lines of the lists."""
        match event:
            case ProgramStarting():
                folder = self._folder_of(event)
                self._execution(event.run, "begin", program=folder.name)
                self._arrays(event, folder)
            case ProgramRun():
                self._execution(event.run, "end", seconds=event.seconds, parts=event.parts)
            case ProgramFailed():
                self._execution(event.run, "failed", error=event.error)
            case CacheLookup():
                self._line("caches", **vars(event))
            case ParameterLoaded():
                self._line("loads", **vars(event))
            case _:
                pass

    # --- compilations ---

    def _begin(self, captured: Program, name: str, backend: str, device: str) -> Path:
        """A new folder, and this thread's compilation in it."""
        safe = NAME.sub("_", name).strip("_") or "program"
        numbers = [int(p.name[:5]) for p in self.folder.glob("[0-9][0-9][0-9][0-9][0-9]_*")]
        for number in itertools.count(max(numbers, default=-1) + 1):
            folder = self.folder / f"{number:05}_{safe}"
            try:  # another process may dump here
                folder.mkdir()
                break
            except FileExistsError:
                continue
        self._open.start(folder, captured)
        _write_program(folder / PROGRAM, captured)
        value = to_json(captured, locations=True)
        (folder / "program.json").write_text(json.dumps(value) + "\n", encoding="utf-8")
        ports = zip(captured.ports, captured.inputs, strict=True)
        self._meta(
            folder,
            name=name,
            status="compiling",
            backend=backend,
            device=device,
            digest=captured.digest,
            instructions=len(captured.main.instructions),
            ports=[{"name": p.name, "kind": p.kind, "type": str(type)} for p, type in ports],
        )
        return folder

    def _pass(self, run: PassRun) -> None:
        current = self._open
        if current.folder is None or run.before.digest != current.digest:
            self._begin(run.before, "passes", "", "")  # passes that nobody compiles after
        assert current.folder is not None
        current.passes, current.digest = current.passes + 1, run.after.digest
        current.kernels.clear()  # of candidates that a pass has timed
        file = None
        if run.after != run.before:
            file = f"passes/{current.passes:02}-{NAME.sub('_', run.name)}.ptir"
            _write_program(current.folder / file, run.after)
        self._line(
            "passes",
            program=current.folder.name,
            number=current.passes,
            **{"pass": run.name},
            seconds=run.seconds,
            rewrites=run.rewrites,
            firings=[[f.rule, f.op, str(f.location)] for f in run.firings],
            file=file,
        )

    def _compiled(self, event: ProgramCompiled) -> None:
        current = self._open
        folder = current.folder
        if folder is None or current.captured != event.captured.digest:
            name = "" if event.plan is None else event.plan.name
            folder = self._begin(event.captured, name, event.backend, event.device)
        _write_program(folder / "optimized.ptir", event.optimized)
        for number, kernels in enumerate(current.kernels):
            _write_kernels(folder / "kernels", number, kernels)
        asked = _texts(event.overrides)
        self._meta(folder, status="compiled", seconds=event.seconds, overrides=asked)
        if event.plan is not None:
            self._remember(folder, event.plan)
        current.folder = None

    def _remember(self, folder: Path, plan: CompiledPlan) -> None:
        options = plan.options
        self._meta(
            folder,
            options={
                "donated": sorted(options.donated),
                "aliases": options.aliases,
                "check_indices": options.check_indices,
            },
            derived={n: [p.name for p in d.ports] for n, d in plan.derived.items()},
        )
        self._folders[id(plan.executable)] = weakref.ref(plan.executable), folder

    # --- runs ---

    def _folder_of(self, event: ProgramStarting) -> Path:
        """The folder of a plan; a new one where it was compiled before the sink heard anything."""
        plan = event.plan
        known = self._folders.get(id(plan.executable))
        if known is not None and known[0]() is plan.executable:
            return known[1]
        folder = self._begin(plan.captured, plan.name, event.backend, event.device)
        _write_program(folder / "optimized.ptir", plan.optimized)
        self._meta(folder, status="compiled before")
        self._remember(folder, plan)
        self._open.folder = None
        return folder

    def _arrays(self, event: ProgramStarting, folder: Path) -> None:
        """Keep what the first run of a program reads."""
        if not self.inputs or folder in self._kept:
            return
        self._kept.add(folder)
        arrays = event.arrays()
        inputs = {name: one.read() for name, one in arrays.items() if one.stored is None}
        save_archive(folder / INPUTS, inputs)
        stored = {n: self._parameter(n, one) for n, one in arrays.items() if one.stored is not None}
        self._meta(folder, inputs=INPUTS, parameters=stored)

    def _parameter(self, name: str, array: PortArray) -> str:
        """The file of a parameter, written once for all programs that read it."""
        if array.stored not in self._parameters:
            there = self.folder / PARAMETERS
            there.mkdir(exist_ok=True)
            numbers = (int(path.stem) for path in there.glob("[0-9]*.safetensors"))
            file = f"{PARAMETERS}/{max(numbers, default=-1) + 1:05}.safetensors"
            save_archive(self.folder / file, {name: array.read()})
            self._parameters[array.stored] = file
        return self._parameters[array.stored]

    # --- files ---

    def _execution(self, run: int, what: str, **more: Any) -> None:
        at = time.perf_counter() - self._began
        self._line("executions", run=run, event=what, at=at, **more)

    def _line(self, listed: str, /, **fields: Any) -> None:
        with (self.folder / f"{listed}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(fields) + "\n")

    def _meta(self, folder: Path, **fields: Any) -> None:
        """Add fields to a program's ``meta.json``."""
        path = folder / META
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        said = {"kind": KIND, "ptir": metadata.version("ptir-core"), **known, **fields}
        path.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def _texts(overrides: Overrides) -> dict[str, str]:
    """Policies by target, the weakest first."""
    return {one.target: str(one.policy) for one in overrides}


def _write_program(path: Path, program: Program) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{print_program(program, locations=True)}\n", encoding="utf-8")


def _write_kernels(folder: Path, number: int, kernels: KernelsWritten) -> None:
    folder.mkdir(exist_ok=True)
    source = folder / f"{number:02}{SUFFIXES.get(kernels.language, '.txt')}"
    source.write_text(kernels.source, encoding="utf-8")
    launches = [
        {"kernel": name or "copy", "workgroups": count, "workgroup_size": size}
        for name, count, size in kernels.launches
    ]
    text = json.dumps({"language": kernels.language, "launches": launches}, indent=1)
    (folder / f"{number:02}.json").write_text(text + "\n", encoding="utf-8")


@dataclass
class _OpenCompilation(threading.local):
    """The compilation that this thread is in.

    A pass that does not continue from ``digest`` begins another one (the last one failed).
    """

    folder: Path | None = None
    captured: str = ""
    digest: str = ""
    passes: int = 0
    kernels: list[KernelsWritten] = field(default_factory=list[KernelsWritten])

    def start(self, folder: Path, captured: Program) -> None:
        """Another one, in ``folder``."""
        self.folder, self.passes, self.kernels = folder, 0, []
        self.captured = self.digest = captured.digest
