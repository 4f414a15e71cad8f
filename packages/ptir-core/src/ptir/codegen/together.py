"""Several programs built at once, for those who compile thousands of small ones.

A driver takes far longer to start a build than to compile a small kernel. During a *rehearsal*
programs are compiled up to their build and given up (``Rehearsed``); at its end all their kernels
are built as one *library*, a single kernel that is told which of them to be. When the programs are
compiled again, they find their kernels there: the same bodies, in another file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ptir.backend.contract import Rehearsed
from ptir.backend.kernel import KernelDevice
from ptir.codegen import binaries
from ptir.codegen.kernel import Kernel
from ptir.errors import CompileError

Noticed = dict[str, Mapping[str, Kernel]]


@dataclass(frozen=True)
class Part:
    """What stands for a built source file: a library and its kernels' numbers by name."""

    library: Any
    numbers: Mapping[str, int]


_rehearsals: dict[int, Noticed] = {}


@contextmanager
def rehearsal(device: KernelDevice) -> Iterator[None]:
    """While it lasts, programs are noticed and raise ``Rehearsed``; then they are built."""
    noticed: Noticed = {}
    _rehearsals[id(device)] = noticed
    try:
        yield
    finally:
        del _rehearsals[id(device)]
    _build(device, list(noticed.items()))


def notice(device: KernelDevice, source: str, kernels: Mapping[str, Kernel]) -> None:
    """Note what a source file holds and raise ``Rehearsed``; outside a rehearsal do nothing."""
    noticed = _rehearsals.get(id(device))
    if noticed is None or not kernels or binaries.is_known(device, source):
        return
    if all(len(kernel.arguments) <= device.widest for kernel in kernels.values()):
        noticed[source] = kernels
        raise Rehearsed


def _build(device: KernelDevice, noticed: Sequence[tuple[str, Mapping[str, Kernel]]]) -> None:
    """Build a library; one that fails is built in halves, until the culprit stands alone."""
    if not noticed:
        return
    parts: list[Kernel] = []
    numbers: list[dict[str, int]] = []
    for _, kernels in noticed:
        numbers.append({name: len(parts) + n for n, name in enumerate(kernels)})
        parts.extend(kernels.values())
    dialect = device.dialect
    text = dialect.library([(part.arguments, part.body) for part in parts], device.widest)
    try:
        library = device.build(f"{dialect.prelude()}\n\n{text}")
    except CompileError:
        half = len(noticed) // 2
        if half:  # alone it is built, and its error raised, when its program is compiled
            _build(device, noticed[:half])
            _build(device, noticed[half:])
        return
    for (source, _), named in zip(noticed, numbers, strict=True):
        binaries.remember(device, source, Part(library, named))


def kernel_of(device: KernelDevice, built: Any, name: str, arguments: int) -> Any:
    """A kernel of a built file, be it a file of its own or a part of a library."""
    if isinstance(built, Part):
        return device.member(built.library, built.numbers[name], arguments)
    return device.kernel(built, name, arguments)
