"""The roofs of a device: the bandwidth of its memory and its FLOPs, measured once and kept."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ptir.backend.record_file import RecordFile
from ptir.cli.bandwidth import is_host, shortest
from ptir.cli.kept_bandwidth import bandwidth_of, machine
from ptir.errors import UnsupportedError
from ptir.params.processors import usable_processors

if TYPE_CHECKING:
    from ptir.backend.contract import Target
    from ptir.trace.profile import Roofs

SIDE: Final = 1024
"""Rows and columns of the f32 matrices that are multiplied."""
REPEATS: Final = 6


@dataclass(frozen=True)
class Flops:
    """FLOPs a second, and how they were measured, for people."""

    per_second: float
    kind: str

    def __post_init__(self) -> None:
        if not (isinstance(self.per_second, float) and self.per_second > 0):
            raise TypeError(f"per_second {self.per_second!r}")


FLOPS: Final = RecordFile(
    "flops",
    Flops,
    "list of FLOPs",
    unread="they are measured again, and replaced",
    unwritten="the next profile measures again",
)


def roofs_of(target: Target) -> Roofs:
    """Both roofs; one that the target cannot measure is unknown."""
    from ptir.trace.profile import Roofs

    found: list[float | None] = []
    for measure in (bandwidth_of, flops_of):
        try:
            found.append(measure(target))
        except UnsupportedError:  # a backend need not have products, nor f32
            found.append(None)
    return Roofs(*found)


def flops_of(target: Target) -> float:
    """The most FLOPs a second that products of f32 matrices were seen to reach.

    On the host those of NumPy's library, a product for each processor at once; on a device with
    memory of its own a product that ``target`` compiles. The greatest ever found counts, because
    others may use the device meanwhile. Products of fewer bits may go beyond it.
    """
    key, kept = machine(target), FLOPS.read()
    kind, work, flops = _on_host() if is_host(target) else _on_device(target)
    work()
    measured = flops / shortest(work, REPEATS)
    if key not in kept or kept[key].per_second < measured:
        kept[key] = Flops(measured, kind)
        FLOPS.write(kept)
    return kept[key].per_second


Measured = tuple[str, Callable[[], None], float]
"""How it is measured, for people, what runs, and the FLOPs of that."""


def _on_host() -> Measured:
    import numpy as np

    threads = usable_processors()
    pairs = [np.ones((2, SIDE, SIDE), np.float32) for _ in range(threads)]
    pool = ThreadPoolExecutor(threads)

    def work() -> None:
        for _ in pool.map(lambda pair: pair[0] @ pair[1], pairs):
            pass

    kind = f"NumPy's product of two f32[{SIDE},{SIDE}] on each of {threads} processors"
    return kind, work, 2.0 * threads * SIDE**3


def _on_device(target: Target) -> Measured:
    import numpy as np

    from ptir.backend.contract import Options
    from ptir.ir.graph import freeze, source
    from ptir.ir.program import Port, Program
    from ptir.ops import dot_general
    from ptir.types import spec

    backend, device, side = target.backend, target.device, 4 * SIDE
    matrices = [source(spec("f32", side, side)) for _ in range(2)]
    product = dot_general(*matrices, lhs_contract=(1,), rhs_contract=(0,))
    program = Program(freeze([product], matrices), (Port("x"), Port("y")))
    executable = backend.compile(program, device, Options())
    handles = [backend.upload(np.ones((side, side), np.float32), device) for _ in matrices]

    def work() -> None:
        executable.run(handles)
        backend.synchronize(device)

    return f"a product of two f32[{side},{side}]", work, 2.0 * side**3
