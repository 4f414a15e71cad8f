"""Programs built together: their kernels stand in one source file, which is built once.

A compiler takes a good part of its time to start and to read what stands in front of every file.
The programs are compiled twice: the first time only writes their kernels into the file, the second
finds each program's artifact here, with the whole file as its source. A process that builds a batch
of an earlier one finds the artifacts on disk and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from ptir.backend.cache_key import CacheKey
from ptir.backend.contract import Executable, Handle, Options
from ptir.backend.kernel import KernelDevice
from ptir.codegen.artifact import record
from ptir.codegen.artifact.record import Artifact
from ptir.ir.program import Program

if TYPE_CHECKING:
    from ptir.codegen.artifact.source import SourceFile


class PendingExecutable(Executable):
    """What compiling gives while kernels are only written: it holds a place and cannot run."""

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Never: the program is compiled again before anybody has it."""
        raise AssertionError("this program was written, not built")


class BatchedBuild:
    """The source file of a batch, and the artifacts of the programs in it."""

    def __init__(
        self, device: KernelDevice, programs: Sequence[tuple[Program, Options]], *, on_disk: bool
    ) -> None:
        self._device = device
        keys = [record.cache_key(program, device, options) for program, options in programs]
        self._batch = " ".join(key for key in keys if key) if on_disk and all(keys) else ""
        self._artifacts: dict[Hashable, Artifact] = {}
        self._written: dict[Hashable, CacheKey | None] = {}
        """Those that were not on disk, and under which keys they are to be there."""
        self.writing = True
        self.unbound = PendingExecutable()

    @cached_property
    def _source(self) -> SourceFile:
        from ptir.codegen.artifact.source import SourceFile  # with all that writes kernels

        return SourceFile(self._device)

    def artifact(
        self, program: Program, options: Options, make: Callable[[SourceFile], Artifact]
    ) -> Artifact:
        """The artifact of a program: from disk, or ``make`` writes it the first time."""
        identity = program.main.digest, tuple(port.kind for port in program.ports), options
        if identity not in self._artifacts:
            key = self._key(program, options)
            found = record.load(key) if key else None
            if found is None:
                found = make(self._source)
                self._written[identity] = key
            self._artifacts[identity] = found
        return self._artifacts[identity]

    def _key(self, program: Program, options: Options) -> CacheKey | None:
        if not self._batch:
            return None
        return record.cache_key(program, self._device, options, self._batch)

    def close(self) -> None:
        """Every kernel is in the file: from now on artifacts have all of it as their source.

        Partitioned programs are linked by themselves and keep a file of their own.
        """
        self.writing = False
        for identity, key in self._written.items():
            made = self._artifacts[identity]
            if not made.counts:
                made = self._artifacts[identity] = replace(made, source=self._source.text)
            if key:
                record.store(key, made)
