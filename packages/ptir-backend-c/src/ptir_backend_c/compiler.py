"""The C compiler: which one is found, how it is called, and what its errors mean."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from ptir.codegen.api import in_kernel, processor
from ptir.errors import BackendUnavailable, CompileError
from ptir_backend_c import processors
from ptir_backend_c.units import parts

NAMES: Final = ("cc", "gcc", "clang")
ENVIRONMENT: Final = "CC"
INSTALL: Final = (
    "`apt-get install gcc libc6-dev` (or your system's C compiler), or `pip install"
    " 'ptir-backend-c[zig]'`"
)

OPTIONS: Final = (
    *("-std=gnu11", "-O2", "-fno-tree-vectorize", "-fPIC", "-shared"),
    *("-w", "-Wno-psabi"),
    # nothing is contracted, nothing assumed about numbers; only errno is not kept
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"),
)
"""Vectors are written out by the generator: looking for more only takes time."""

TUNING: Final = {"x86_64": ("-march=native",), "AMD64": ("-march=native",)}
"""Options for the processor at hand, by machine; others take ``-mcpu=native``."""

_PLACE: Final = re.compile(r":(\d+):\d+: (?:fatal )?error: (.*)")
_KERNEL: Final = re.compile(r"^void (\w+)\(void \*const \*buffers", re.M)


@dataclass(frozen=True)
class Compiler:
    """A command that compiles C, and the file that it starts."""

    command: tuple[str, ...]
    file: Path

    @property
    def is_native(self) -> bool:
        """Whether it compiles for the processor at hand: the command does not say for which."""
        return not any(option.startswith(("-march=", "-mcpu=")) for option in self.command)

    @property
    def options(self) -> tuple[str, ...]:
        """How every source is compiled: for this processor, unless the command says for which."""
        if not self.is_native:
            return OPTIONS
        return OPTIONS + TUNING.get(platform.machine(), ("-mcpu=native",))

    @property
    def identity(self) -> str:
        """Names the compiler, its options and the processor, without starting anything."""
        status = self.file.stat()
        version = f"{self.file} {status.st_size} {status.st_mtime_ns}"
        return " ".join((*self.command, version, *self.options, target()))

    @property
    def suits(self) -> bool:
        """Whether its code for vectors of 64 bytes is good: gcc's only where there are such."""
        clang = sys.platform == "darwin" or any(name in self.file.name for name in ("clang", "zig"))
        return clang or "avx512f" in target()

    def version(self) -> str:
        """The first line of what it says about itself; raises ``CompileError``."""
        done = self._run([*self.command, "--version"], None)
        if done.returncode:
            raise CompileError(f"c: {shlex.join(self.command)} --version: {_said(done)}")
        return (done.stdout.splitlines() or [""])[0]

    def shared_object(self, source: str, *options: str) -> bytes:
        """``source`` compiled and linked, long ones in parts; raises ``CompileError``."""
        with tempfile.TemporaryDirectory(prefix="ptir-c-") as folder:
            given = *self.options, *options
            sources = parts(source, processors.threads())
            if len(sources) == 1:
                return self._made(source, folder, "kernels.c", *given, "-lm")
            from concurrent.futures import ThreadPoolExecutor

            objects = [f"part{number}.o" for number in range(len(sources))]
            alone = tuple(option for option in given if option != "-shared")

            def compiled(text: str, made: str) -> bytes:
                return self._made(text, folder, f"{made[:-2]}.c", *alone, "-c", made=made)

            with ThreadPoolExecutor(len(sources)) as pool:
                list(pool.map(compiled, sources, objects))
            return self._made(source, folder, *objects, *given, "-lm")

    def _made(
        self, source: str, folder: str, file: str, *arguments: str, made: str = "kernels.so"
    ) -> bytes:
        """What one call of the compiler makes; ``file`` holds the source if it ends with .c."""
        if file.endswith(".c"):
            Path(folder, file).write_text(source, encoding="utf-8")
        # libraries come after what needs them
        done = self._run([*self.command, "-o", made, file, *arguments], folder)
        if done.returncode or not Path(folder, made).exists():
            raise self._failure(source, done)
        return Path(folder, made).read_bytes()

    def _run(self, command: list[str], folder: str | None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LC_ALL": "C"}
        try:
            return subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise CompileError(f"c: {command[0]} does not start: {error.strerror}") from error

    def _failure(self, source: str, done: subprocess.CompletedProcess[str]) -> CompileError:
        """The first error with the kernel that it is in."""
        place = _PLACE.search(done.stderr)
        where = in_kernel(source, place, _KERNEL)
        said = place[2] if place else _said(done)
        return CompileError(f"c: {shlex.join(self.command)} failed{where}: {said}")


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """The line of a compiler's output that tells the most."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    wrong = (line for line in lines if "error" in line.lower())
    return next(wrong, lines[0] if lines else f"exit status {done.returncode}")


def find() -> Compiler:
    """``CC``, else the first of ``NAMES``, else Zig's, one that suits before one that does not.

    Raises ``BackendUnavailable``.
    """
    if chosen := os.environ.get(ENVIRONMENT):
        command = shlex.split(chosen)
        place = shutil.which(command[0])
        if place is None:
            raise BackendUnavailable(
                f"{ENVIRONMENT}={chosen}: {command[0]!r} is not found; unset {ENVIRONMENT}, or"
                " name a C compiler"
            )
        return Compiler(tuple(command), Path(place).resolve())
    found = [
        Compiler((place,), Path(place).resolve()) for place in map(shutil.which, NAMES) if place
    ]
    if zig := _zig():
        found.append(Compiler((str(zig), "cc"), zig))
    if found:
        return next((one for one in found if one.suits), found[0])
    raise BackendUnavailable(f"no C compiler ({', '.join(NAMES)}) is found: {INSTALL}")


def _zig() -> Path | None:
    """The compiler in the wheel ``ziglang``."""
    found = importlib.util.find_spec("ziglang")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for name in ("zig", "zig.exe"):
            if (place := Path(folder, name)).exists():
                return place
    return None


@cache
def target() -> str:
    """What code for this processor depends on: its model and its features."""
    if sys.platform == "darwin":
        said = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=True
        )
        return said.stdout.strip()
    known = processor.facts()
    wanted = ("model name", "flags", "CPU implementer", "CPU part", "Features", "isa")
    return " ".join([platform.machine(), *(known[name] for name in wanted if name in known)])


def processor_name() -> str:
    """The processor as people call it."""
    if sys.platform == "darwin":
        return target()
    return " ".join(processor.facts().get("model name", platform.machine()).split())
