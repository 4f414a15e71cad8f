"""Kernels compiled for GPUs that are not there, and what they take: no GPU and no driver is needed.

    python -m ptir_backend_cupy.offline random:gpt2 quant=int4

prints registers, stack, spills and shared memory of every kernel that the model's prompt and decode
step run, for each architecture; ``--json FILE`` writes the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ptir.backend import Device
from ptir.backend.contract import Target
from ptir.codegen.api import KernelBackend, PaperDevice, Traits
from ptir_backend_cupy.dialect import CudaC
from ptir_backend_cupy.nvrtc import Cubin, Nvrtc, Resources, find

ARCHITECTURES: Final = (80, 90, 100)
"""A100, H100 and H200, B200."""
PROMPT: Final = (*range(1, 73),)
"""Tokens of the prompt: more than the tile of a product has rows."""


class OfflineDevice(PaperDevice):
    """What an H200 is like, without one: source files are compiled, nothing runs."""

    def __init__(self, compiler: Nvrtc, architectures: Sequence[int]) -> None:
        self._compiler, self._architectures = compiler, tuple(architectures)
        self.dialect = CudaC()
        self.traits = Traits(
            compute_units=132,
            has_f64=True,
            max_allocation_bytes=141 << 30,
            alignment=256,
            identity=f"offline {compiler.identity}",
            device_class="gpu",
            max_workgroup_size=1024,
            shared_memory_bytes=48 << 10,
        )
        self.made: list[tuple[str, dict[int, Cubin]]] = []
        """Source files, and their machine code by architecture."""
        self.launched: list[str] = []
        """The kernels that were launched, in order."""

    def build(self, source: str) -> str:
        """Machine code for every architecture; raises ``CompileError``."""

        def compiled(architecture: int) -> Cubin:
            return self._compiler.compiled(source, architecture)

        with ThreadPoolExecutor(len(self._architectures)) as pool:
            codes = list(pool.map(compiled, self._architectures))
        self.made.append((source, dict(zip(self._architectures, codes, strict=True))))
        return source

    def launch(self, kernel: str, workgroups: int, workgroup_size: int = 1) -> None:
        """The kernel's name is noted."""
        self.launched.append(kernel)


class OfflineBackend(KernelBackend):
    """One device that is not there."""

    name = "offline"

    def __init__(self, architectures: Sequence[int] = ARCHITECTURES) -> None:
        super().__init__()
        self.kernels = OfflineDevice(find(), architectures)

    def devices(self) -> Sequence[Device]:
        """The device on paper."""
        return (Device(0, "no device", "discrete"),)

    def open(self, device: Device) -> OfflineDevice:
        """The device, which the backend has had from the beginning."""
        return self.kernels

    @property
    def target(self) -> Target:
        """Where programs are compiled for it."""
        return Target(self, self.devices()[0])


@dataclass(frozen=True)
class Row:
    """A kernel of a source file, and what it takes on an architecture."""

    file: int
    kernel: str
    architecture: int
    resources: Resources

    @property
    def family(self) -> str:
        """The family of the kernel: its name without its number."""
        return self.kernel.rpartition("_")[0]


def rows(device: OfflineDevice) -> Iterator[Row]:
    """A row for each kernel of each source file, on each architecture."""
    for file, (_, codes) in enumerate(device.made):
        for architecture, cubin in codes.items():
            for kernel, taken in cubin.resources.items():
                yield Row(file, kernel, architecture, taken)


def compiled(model: str, architectures: Sequence[int], **options: Any) -> OfflineDevice:
    """A device that has compiled a prompt and a decode step of a model.

    What is on disk is left alone, if ``PTIR_REBUILD_KERNELS`` says so: kernels that were kept are
    not compiled.
    """
    import ptir

    backend = OfflineBackend(architectures)
    ptir.load_model(model, backend=backend.target, **options).generate(
        list(PROMPT), max_tokens=3, temperature=0.0, ignore_eos=True
    )
    return backend.kernels


def main(arguments: Sequence[str]) -> None:
    """Print a row for each kernel and architecture; ``--json FILE`` also writes them."""
    given = list(arguments)
    file = None
    if "--json" in given:
        at = given.index("--json")
        file = given[at + 1]
        del given[at : at + 2]
    model, *pairs = given or ["demo"]
    options = dict(pair.split("=", 1) for pair in pairs)
    found = list(rows(compiled(model, ARCHITECTURES, **options)))
    print(f"{'kernel':24}{'sm':>4}{'registers':>11}{'stack':>7}{'spilled':>9}{'shared':>8}")
    for row in found:
        taken = row.resources
        print(
            f"{row.file}:{row.kernel:22}{row.architecture:4}{taken.registers:11}"
            f"{taken.stack:7}{taken.spilled:9}{taken.shared:8}"
        )
    if file:
        Path(file).write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
