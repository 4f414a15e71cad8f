"""Probes of memory bandwidth, to say which share of it decoding reaches in the same minute.

Where the host computes, as many threads as there are processors each take the largest of their own
many numbers: NumPy's loop is vector code that waits for memory alone and holds no lock. On a device
with memory of its own, a program doubles a matrix in place.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from ptir.params.processors import usable_processors

if TYPE_CHECKING:
    from ptir.backend.contract import Target

SIDE = 8192
"""Rows and columns of the f32 matrix that is doubled on a device: 256 MB."""
READ = 1 << 29
"""Bytes that the host's threads read together: more than caches hold."""
LEAST = 1 << 25
"""Bytes that one thread reads at least."""
AGAIN = 1 << 26
"""Bytes that a thread reads of what caches hold, before time is taken."""
REPEATS = 4


class Probe(Protocol):
    """Measures bandwidth; ``kind`` says how."""

    @property
    def kind(self) -> str:
        """What is done, for people."""
        ...

    def bandwidth(self) -> float:
        """Bytes per second, the best of several runs."""
        ...


def probe_of(target: Target) -> Probe:
    """The probe for ``target``: of the host where it computes, else of the device."""
    return host_probe() if is_host(target) else DeviceProbe(target)


def is_host(target: Target) -> bool:
    """Whether ``target`` computes in the host's memory."""
    return target.device.kind in ("cpu", "reference")


@functools.cache
def host_probe() -> HostProbe:
    """The only probe of the host, whose memory is kept."""
    return HostProbe(usable_processors())


def held_bytes() -> int:
    """What the probe of the host, if there is one by now, keeps of this process's memory."""
    return host_probe().nbytes if host_probe.cache_info().currsize else 0


class HostProbe:
    """Reads the host's memory with several threads at once."""

    def __init__(self, threads: int, nbytes: int = READ) -> None:
        import numpy as np

        self._each = max(nbytes // threads, min(LEAST, nbytes))
        self._parts = [np.ones(self._each // 4, np.float32) for _ in range(threads)]
        self.nbytes = sum(part.nbytes for part in self._parts)
        self._pool = ThreadPoolExecutor(threads)
        self.kind = f"{threads} threads reading {self._each / 1e6:.0f} MB each"
        self.bandwidth()

    def bandwidth(self) -> float:
        """The best of several runs, each of which reads everything once."""
        import numpy as np

        def read() -> None:
            for _ in self._pool.map(np.max, self._parts):
                pass

        return self._each * len(self._parts) / shortest(read)


class CacheProbe:
    """Reads the same few bytes again and again, each of several threads its own part of them."""

    def __init__(self, threads: int, nbytes: int) -> None:
        import numpy as np

        self._parts = [np.ones(nbytes // threads // 4, np.float32) for _ in range(threads)]
        self._each = self._parts[0].nbytes
        self._again = max(1, AGAIN // self._each)
        self.kind = f"{threads} threads reading {self._each / 1e6:.1f} MB each, again and again"

    def bandwidth(self) -> float:
        """The best of several runs."""
        import numpy as np

        def read(part: object) -> None:
            for _ in range(self._again):
                np.max(part)  # type: ignore[call-overload]

        with ThreadPoolExecutor(len(self._parts)) as pool:

            def run() -> None:
                for _ in pool.map(read, self._parts):
                    pass

            seconds = shortest(run)
        return self._each * self._again * len(self._parts) / seconds


class DeviceProbe:
    """Doubles a matrix of zeros on a device, in place where the backend can.

    Each run reads it once and writes it once.
    """

    def __init__(self, target: Target, side: int = SIDE) -> None:
        import numpy as np

        from ptir.backend.contract import Options
        from ptir.ir.graph import freeze, source
        from ptir.ir.program import Port, Program
        from ptir.ops import add
        from ptir.types import spec

        self._target = target
        matrix = source(spec("f32", side, side))
        program = Program(freeze([add(matrix, matrix)], [matrix]), (Port("x"),))
        options = Options(donated=frozenset({0}))
        self._executable = target.backend.compile(program, target.device, options)
        self._handle = target.backend.upload(np.zeros((side, side), np.float32), target.device)
        self._nbytes = 2 * 4 * side * side
        self.kind = f"a kernel that reads and writes {self._nbytes / 2e6:.0f} MB"
        self._run()

    def _run(self) -> None:
        (self._handle,) = self._executable.run([self._handle])
        self._target.backend.synchronize(self._target.device)

    def bandwidth(self) -> float:
        """The best of several runs."""
        return self._nbytes / shortest(self._run)


def shortest(work: Callable[[], None], repeats: int = REPEATS) -> float:
    """The seconds of the fastest of several runs."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
