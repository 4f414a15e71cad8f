"""A source file under construction: its kernels, each once, and the persistent kernels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ptir.backend.kernel import Argument, KernelDevice
from ptir.codegen.expressions.expr import Nodes
from ptir.codegen.planning.persistent import PersistentKernel, Phase, device_function, phase
from ptir.codegen.planning.persistent import kernel as persistent_text
from ptir.codegen.schedules.kernel import Kernel, KernelCode


class SourceFile:
    """A source file under construction.

    Kernels of equal code stand in it once, and so do those whose text is: what a loop variable is
    known to be below stands in no text. Its expressions are *interned* in ``nodes``.
    """

    def __init__(self, device: KernelDevice) -> None:
        self.nodes: Nodes = {}
        self.dialect, self.workers = device.dialect, device.traits.compute_units
        self.piece = device.traits.aligned_allocation_bytes
        self.texts = [device.dialect.prelude()]
        self._persistent = 0
        self._names: dict[Hashable, str] = {}
        self._known: dict[Hashable, str] = {}
        self._functions: list[tuple[str, Sequence[Argument]]] = []
        self._phases: dict[KernelCode, int] = {}
        self._numbers: dict[Hashable, int] = {}

    @property
    def text(self) -> str:
        """The file as it is now."""
        return "\n\n".join(self.texts)

    def kernel(self, kernel: Kernel) -> str:
        """The name of a kernel that is launched alone."""
        key = kernel.code, kernel.workgroup_size
        if key not in self._names:
            self._names[key] = self._named(kernel)
        return self._names[key]

    def _named(self, kernel: Kernel) -> str:
        said = kernel.text(self.dialect, "NAME")
        if said not in self._known:
            self._known[said] = f"{kernel.family}_{len(self._known)}"
            self.texts.append(kernel.text(self.dialect, self._known[said]))
        return self._known[said]

    def function(self, kernel: Kernel) -> int:
        """The number of the function that a kernel is in a persistent kernel."""
        if kernel.code not in self._phases:
            self._phases[kernel.code] = self._numbered(kernel)
        return self._phases[kernel.code]

    def _numbered(self, kernel: Kernel) -> int:
        code = phase(kernel.code)
        said = code.arguments, code.preamble_text, code.body_text
        if said not in self._numbers:
            name = f"{kernel.family}_phase_{len(self._numbers)}"
            self._numbers[said] = len(self._functions)
            self._functions.append((name, kernel.arguments))
            self.texts.append(device_function(self.dialect, name, code))
        return self._numbers[said]

    def persistent_kernel(self, persistent: PersistentKernel, made: Sequence[Phase]) -> str:
        """The name of a persistent kernel, which is written here."""
        name, functions = f"chain_{self._persistent}", self._functions
        text = persistent_text(self.dialect, name, persistent, made, functions, self.workers)
        self.texts.append(text)
        self._persistent += 1
        return name
