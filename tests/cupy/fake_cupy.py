"""The part of CuPy that the backend calls, on the host, as lazy as a GPU may be.

Nothing queued on a stream happens before somebody waits for it, streams that no event ties
together run in the wrong order, every call notes which device was current, and the driver knows no
thread that did not call the runtime. Kernels are the CUDA text run by the host shim. So a missing
wait, a buffer written too early and an argument in the wrong place give wrong numbers here. It
proves what the backend asks of CuPy, not what CuPy does.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}")
        self.status = status


class CUDADriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA_ERROR {status}")
        self.status = status


class OutOfMemoryError(MemoryError):
    pass


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream, self.at = stream, -1.0
        stream._add(self._pass)
        self.place = stream.queued

    def _pass(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        self.stream._drain(self.place)


def get_elapsed_time(before: Event, behind: Event) -> float:
    assert 0 <= before.at <= behind.at, "an event that was not waited for has no time"
    return 1e3 * (behind.at - before.at)


class Stream:
    """A queue whose commands run when they are waited for."""

    current: ClassVar[list[Stream]] = []

    def __init__(self, fake: FakeCupy, non_blocking: bool = False) -> None:
        assert non_blocking, "the null stream would wait for everybody"
        self.fake, self.device = fake, fake.device
        self.ptr = 1000 + len(fake.streams)
        self.commands: deque[Any] = deque()
        self.queued = self.done = 0
        self.capturing: list[Any] | None = None
        fake.streams[self.ptr] = self

    def __enter__(self) -> Stream:
        Stream.current.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        Stream.current.pop()

    def _add(self, command: Any) -> None:
        assert self.fake.device == self.device, "another device is current"
        if self.capturing is not None:
            self.capturing.append(command)
            return
        self.commands.append(command)
        self.queued += 1

    def _drain(self, place: int) -> None:
        assert self.capturing is None, "a stream that is captured cannot be waited for"
        while self.done < place:
            self.done += 1
            self.commands.popleft()()

    def synchronize(self) -> None:
        self.fake.calls.append("synchronize")
        self._drain(self.queued)

    def record(self) -> Event:
        assert self.capturing is None
        return Event(self)

    def wait_event(self, event: Event) -> None:
        self._add(event.synchronize)

    def begin_capture(self) -> None:
        assert Stream.current[-1] is self
        self.capturing = []

    def end_capture(self) -> Graph:
        made, self.capturing = Graph(self.capturing), None
        self.fake.calls.append("end_capture")
        return made


class Graph:
    def __init__(self, commands: Any) -> None:
        self.commands = commands

    def launch(self, stream: Stream) -> None:
        stream.fake.calls.append("graph")
        for command in self.commands:
            stream._add(command)


class Held:
    """Memory from a pool, which keeps what is given back, as CuPy's does."""

    def __init__(self, fake: FakeCupy, nbytes: int) -> None:
        self.array = np.full(max(1, nbytes) + 256, 0xFF, np.uint8)
        self.ptr = -(-self.array.ctypes.data // 256) * 256
        self.fake, self.nbytes = fake, nbytes
        fake.used += nbytes
        fake.kept.append(self.array)

    def __del__(self) -> None:
        self.fake.used -= self.nbytes


class Device:
    def __init__(self, fake: FakeCupy, number: int) -> None:
        self.fake, self.number = fake, number
        self.before: list[int] = []

    def __enter__(self) -> None:
        self.before.append(self.fake.device)
        self.fake.device = self.number

    def __exit__(self, *error: object) -> None:
        self.fake.device = self.before.pop()


class FakeCupy:
    """``import cupy`` with ``devices`` GPUs of ``nbytes``; machine code is the host shim's."""

    def __init__(self, host: Any, devices: int = 1, nbytes: int = 1 << 32) -> None:
        self.host, self.devices, self.nbytes = host, devices, nbytes
        self.device, self.used = 0, 0
        self.streams: dict[int, Stream] = {}
        self.calls: list[str] = []
        self.kernels: list[Any] = []
        self.modules: list[Any] = []
        self.kept: list[Any] = []
        self.said: list[str] = []
        self.pinned: list[Held] = []
        self.fails: dict[str, Exception] = {}
        self.launched_on: list[int] = []
        self.threads = threading.local()
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            memcpyDeviceToDevice=3,
            getDeviceCount=lambda: self.devices,
            getDeviceProperties=self.properties,
            driverGetVersion=lambda: 13000,
            runtimeGetVersion=lambda: 13000,
            memcpyAsync=self.memcpy,
            memGetInfo=self.memory_info,
        )
        driver = SimpleNamespace(
            CUDADriverError=CUDADriverError,
            moduleLoadData=self.load,
            moduleGetFunction=self.function,
            launchKernel=self.launch,
        )
        self.cuda = SimpleNamespace(
            runtime=runtime,
            driver=driver,
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            get_elapsed_time=get_elapsed_time,
            Device=functools.partial(Device, self),
            Stream=functools.partial(Stream, self),
            MemoryPool=lambda: SimpleNamespace(malloc=self.malloc),
            PinnedMemoryPool=lambda: SimpleNamespace(malloc=self.malloc_pinned),
        )

    def called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def asked_of_the_driver(self, name: str) -> None:
        self.called(name)
        if not getattr(self.threads, "known", False):
            raise CUDADriverError(201)

    def memory_info(self) -> tuple[int, int]:
        self.threads.known = True
        return self.nbytes - self.used, self.nbytes

    def properties(self, number: int) -> dict[str, Any]:
        return {
            "name": b"Pretended GPU",
            "major": 9,
            "minor": 0,
            "integrated": 0,
            "multiProcessorCount": 4,
            "totalGlobalMem": self.nbytes,
            "sharedMemPerBlockOptin": 232448,
            "sharedMemPerBlock": 49152,
            "maxThreadsPerBlock": 1024,
            "warpSize": 32,
        }

    def malloc(self, nbytes: int) -> Held:
        self.called("malloc")
        assert Stream.current, "the pool's memory belongs to the current stream"
        if self.used + nbytes > self.nbytes:
            raise OutOfMemoryError(f"out of memory allocating {nbytes} bytes")
        return Held(self, nbytes)

    def malloc_pinned(self, nbytes: int) -> Held:
        self.pinned.append(Held(self, nbytes))
        self.used -= nbytes
        self.pinned[-1].nbytes = 0
        return self.pinned[-1]

    def memcpy(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        self.called("memcpyAsync")
        self.threads.known = True
        held = self.streams[stream]
        pinned = any(p.ptr <= source < p.ptr + p.array.nbytes for p in self.pinned)
        if kind == 1 and not pinned:  # the driver has read it when the call returns
            assert held.capturing is None, "host memory cannot be copied in a capture"
            bytes_now = ctypes.string_at(source, nbytes)
            held._add(lambda: ctypes.memmove(to, bytes_now, nbytes))
            return
        held._add(lambda: ctypes.memmove(to, source, nbytes))

    def load(self, code: bytes) -> int:
        self.asked_of_the_driver("moduleLoadData")
        if not isinstance(code, bytes):
            raise TypeError("Argument 'image' has incorrect type")
        try:
            self.modules.append(self.host.load("", code))
        except OSError as error:
            raise CUDADriverError(209) from error
        return len(self.modules) - 1

    def function(self, module: int, name: str) -> int:
        self.asked_of_the_driver("moduleGetFunction")
        built = self.modules[module]
        self.kernels.append((built, name, self.host.kernel(built, name, 0).entry))
        return len(self.kernels) - 1

    def launch(
        self,
        function: int,
        gx: int,
        gy: int,
        gz: int,
        bx: int,
        by: int,
        bz: int,
        shared: int,
        stream: int,
        params: int,
        extra: int,
    ) -> None:
        self.asked_of_the_driver("launchKernel")
        assert (gy, gz, by, bz, shared, extra) == (1, 1, 1, 1, 0, 0)
        built, name, entry = self.kernels[function]
        size_of = getattr(built, f"size_{name}")
        sizes = list(iter(map(size_of, itertools.count()).__next__, 0))
        count = len(sizes)
        pointers = (ctypes.c_void_p * count).from_address(params)
        values = [(ctypes.c_char * 8)() for _ in range(count)]  # as the driver, copied now
        for number, value in enumerate(values):
            ctypes.memmove(value, pointers[number], sizes[number])
        self.launched_on.append(self.device)

        def run() -> None:
            packed = (ctypes.c_void_p * count)(*(ctypes.addressof(value) for value in values))
            said = entry(packed, gx, bx)
            if said:
                self.said.append(said.decode())
                raise CUDADriverError(700) from RuntimeError(f"{name}: {said.decode()}")

        self.streams[stream]._add(run)
