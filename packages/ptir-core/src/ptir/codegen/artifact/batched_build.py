"""Programs built together: their kernels stand in one source file, which is built once.

A compiler takes a good part of its time to start and to read what stands in front of every file.
The programs are compiled twice: the first time only writes their kernels into the file, the second
finds each program's artifact here, with the whole file as its source.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from ptir.backend.contract import Executable, Handle, Options
from ptir.backend.kernel import KernelDevice
from ptir.codegen.artifact.record import Artifact
from ptir.codegen.artifact.source import SourceFile
from ptir.ir.program import Program


class PendingExecutable(Executable):
    """What compiling gives while kernels are only written: it holds a place and cannot run."""

    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Never: the program is compiled again before anybody has it."""
        raise AssertionError("this program was written, not built")


class BatchedBuild:
    """The source file of a batch, and the artifacts of the programs in it."""

    def __init__(self, device: KernelDevice) -> None:
        self._source = SourceFile(device)
        self._artifacts: dict[Hashable, Artifact] = {}
        self.writing = True
        self.unbound = PendingExecutable()

    def artifact(
        self, program: Program, options: Options, make: Callable[[SourceFile], Artifact]
    ) -> Artifact:
        """The artifact of a program, which ``make`` writes the first time."""
        key = program.main.digest, tuple(port.kind for port in program.ports), options
        if key not in self._artifacts:
            self._artifacts[key] = make(self._source)
        return self._artifacts[key]

    def close(self) -> None:
        """Every kernel is in the file: from now on artifacts have all of it as their source.

        Partitioned programs are linked by themselves and keep a file of their own.
        """
        self.writing = False
        whole = self._source.text
        for key, artifact in self._artifacts.items():
            if not artifact.counts:
                self._artifacts[key] = replace(artifact, source=whole)
