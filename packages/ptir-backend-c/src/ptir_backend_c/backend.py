"""The backend: one device, the processor, where there is a C compiler for it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ptir.backend import Device
from ptir.backend.contract import Finding
from ptir.codegen.api import KernelBackend, KernelDevice
from ptir.errors import BackendUnavailable, CompileError
from ptir_backend_c import compiler, processors
from ptir_backend_c.compiler import Compiler

BROKEN = "the C compiler does not work: name another one in CC, or reinstall it"

REMEDIES = (
    ("stdio.h", "the C library's headers are missing: `apt-get install libc6-dev`"),
    ("pthread.h", "the C library's headers are missing: `apt-get install libc6-dev`"),
    ("crti.o", "the C library's files for linking are missing: `apt-get install libc6-dev`"),
    ("does not load", "set TMPDIR to a folder from which programs may be run"),
    ("failed", BROKEN),
)
"""What an error holds, and what to do then."""


class CBackend(KernelBackend):
    """The processor through plain C."""

    name = "c"
    remedies = REMEDIES
    correctly_rounded = frozenset(("div", "sqrt", "reciprocal"))

    @cached_property
    def _compiler(self) -> Compiler:
        if sys.platform not in ("linux", "darwin"):
            raise BackendUnavailable(
                f"the C backend runs on Linux and macOS, not yet on {sys.platform}; use"
                " ptir-backend-opencl"
            )
        return compiler.find()

    def devices(self) -> Sequence[Device]:
        """The processor; raises ``BackendUnavailable`` where there is no compiler."""
        count = processors.threads()
        words = "thread" if count == 1 else "threads"
        detail = f"{count} {words}, {self._compiler.file.name}"
        return (Device(0, compiler.processor_name(), "cpu", detail),)

    def capabilities(self, device: Device) -> Mapping[str, Any]:
        """The compiler and the number of threads."""
        made = self._compiler
        return {"threads": processors.threads(), "compiler": " ".join(made.command), "fp64": True}

    def findings(self) -> Sequence[Finding]:
        """The compiler and its version."""
        try:
            said, fix = self._compiler.version(), self._advice()
        except CompileError as error:
            said, fix = str(error), self.fix_for(str(error)) or BROKEN
        return (Finding("compiler", f"{self._compiler.file}: {said}", fix),)

    def _advice(self) -> str:
        """What to install where the compiler works but its code is slow."""
        if self._compiler.suits:
            return ""
        return (
            "gcc splits vectors badly on processors without AVX-512, clang does not:"
            " `apt-get install clang`, or `pip install 'ptir-backend-c[zig]'`"
        )

    def open(self, device: Device) -> KernelDevice:
        """The device: builds the pool of threads."""
        from ptir_backend_c.device import CDevice

        return CDevice(self._compiler, processors.threads())


def backend() -> CBackend:
    """The instance; the compiler is looked for when devices are asked for."""
    return CBackend()
