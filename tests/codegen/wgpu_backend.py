"""WebGPU through ``wgpu``, as far as tests need it: shaders are validated, and run where one can.

Debian's ``mesa-vulkan-drivers`` have a device for machines without a GPU. ``PTIR_REQUIRE_TOOLS``
with ``wgpu`` in it makes the absence of a device a failure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from paper import PaperDevice

from ptir.backend.contract import Device, Target
from ptir.backend.kernel import KernelDevice, Traits
from ptir.codegen import KernelBackend
from ptir.codegen.wgsl.dialect import Wgsl
from ptir.codegen.wgsl.render import INVOCATIONS, WIDEST
from ptir.errors import CompileError

BUFFERS = 32
"""Storage buffers that are asked for: tests of few buffers ask the renderer for few."""
LIMITS = (
    "storage-buffers-per-shader-stage",
    "storage-buffer-binding-size",
    "compute-workgroup-storage-size",
)
"""What is asked for beyond WebGPU's defaults."""
DEVICE = Device(0, "wgpu", "cpu")


@cache
def wgpu_device() -> Any:
    """A device of WebGPU, or why there is none."""
    os.environ.setdefault("XDG_RUNTIME_DIR", "/tmp")  # a complaint on standard error less
    try:
        import wgpu

        adapter = wgpu.gpu.request_adapter_sync(power_preference="low-power")
        limits = {f"max-{name}": adapter.limits[f"max-{name}"] for name in LIMITS}
        return adapter.request_device_sync(required_limits=limits)
    except Exception as error:  # noqa: BLE001  whatever is missing is a reason
        return f"no device of WebGPU ({error}); pip install wgpu, apt install mesa-vulkan-drivers"


def required() -> Any:
    """The device; without one the test is skipped, or fails where ``wgpu`` is required."""
    found = wgpu_device()
    if isinstance(found, str) and "wgpu" in os.environ.get("PTIR_REQUIRE_TOOLS", "").split(","):
        pytest.fail(found)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def refused(source: str) -> str:
    """What naga says is wrong with a shader; nothing where it is valid."""
    import wgpu

    try:
        required().create_shader_module(code=source)
    except wgpu.GPUError as error:
        return str(error)
    return ""


@dataclass(eq=False)
class Part:
    """A part of a buffer, at a multiple of 256 bytes."""

    buffer: Any
    offset: int
    nbytes: int


@dataclass(eq=False)
class Bound:
    """An entry point and what is bound to it."""

    pipeline: Any
    written: tuple[bool, ...]
    parts: list[Part] = field(default_factory=list)


def padded(nbytes: int) -> int:
    """Bytes in whole words."""
    return -(-nbytes // 4) * 4


class WgpuDevice(KernelDevice):
    """Launches entry points one by one; slow, and simple."""

    traits = Traits(
        compute_units=64,
        has_f64=False,
        max_allocation_bytes=1 << 27,
        alignment=256,
        identity="wgpu in tests",
    )
    dialect = Wgsl(BUFFERS)

    def __init__(self) -> None:
        import wgpu

        self.device = required()
        self.usage = (
            wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
        )

    def allocate(self, nbytes: int) -> Any:
        size = -(-nbytes // 256) * 256
        return Part(self.device.create_buffer(size=size, usage=self.usage), 0, size)

    def subspan(self, memory: Any, offset: int, nbytes: int) -> Any:
        return Part(memory.buffer, memory.offset + offset, padded(nbytes))

    def borrow(self, array: Any) -> Any:
        return None

    def write(self, memory: Any, array: Any) -> None:
        given = np.zeros(padded(array.nbytes), np.uint8)
        given[: array.nbytes] = array.reshape(-1).view(np.uint8)
        self.device.queue.write_buffer(memory.buffer, memory.offset, given)

    def read(self, memory: Any, array: Any) -> None:
        size = padded(array.nbytes)
        found = self.device.queue.read_buffer(memory.buffer, memory.offset, size)
        array.reshape(-1).view(np.uint8)[...] = np.frombuffer(found, np.uint8)[: array.nbytes]

    def copy(self, source: Any, destination: Any, nbytes: int) -> None:
        between = self.allocate(nbytes)  # both may be parts of one buffer, which WebGPU forbids

        def record(encoder: Any) -> None:
            self._copied(encoder, source, between, padded(nbytes))
            self._copied(encoder, between, destination, padded(nbytes))

        self._submit(record)

    def _copied(self, encoder: Any, source: Part, destination: Part, nbytes: int) -> None:
        there = destination.buffer, destination.offset
        encoder.copy_buffer_to_buffer(source.buffer, source.offset, *there, nbytes)

    def _submit(self, record: Any) -> None:
        encoder = self.device.create_command_encoder()
        record(encoder)
        self.device.queue.submit([encoder.finish()])

    def build(self, source: str) -> Any:
        if wrong := refused(source):
            raise CompileError(f"naga: {wrong}")
        return source, self.device.create_shader_module(code=source)

    def kernel(self, built: Any, name: str, arguments: int) -> Any:
        source, module = built
        compute = {"module": module, "entry_point": name}
        made = self.device.create_compute_pipeline(layout="auto", compute=compute)
        heads = (line for line in source.splitlines() if line.startswith("@group"))
        written = tuple("read_write" in line for line in heads if f"> {name}_b" in line)
        assert len(written) == arguments, name
        return Bound(made, written, [None] * arguments)  # type: ignore[list-item]

    def bind(self, kernel: Any, position: int, memory: Any) -> None:
        kernel.parts[position] = memory

    def launch(self, kernel: Any, workgroups: int, workgroup_size: int = 1) -> None:
        groups = -(-workgroups // INVOCATIONS) if workgroup_size == 1 else workgroups
        wide = min(groups, WIDEST)

        def record(encoder: Any) -> None:
            parts = self._apart(encoder, kernel)
            entries = [
                {"binding": n, "resource": {"buffer": p.buffer, "offset": p.offset, "size": size}}
                for n, p in enumerate(parts)
                for size in [padded(p.nbytes)]
            ]
            of = kernel.pipeline.get_bind_group_layout(0)
            group = self.device.create_bind_group(layout=of, entries=entries)
            turn = encoder.begin_compute_pass()
            turn.set_pipeline(kernel.pipeline)
            turn.set_bind_group(0, group)
            turn.dispatch_workgroups(wide, -(-groups // wide))
            turn.end()

        self._submit(record)

    def _apart(self, encoder: Any, kernel: Bound) -> list[Part]:
        """What is read is copied where its buffer is written: WebGPU allows no such binding."""
        pairs = list(zip(kernel.parts, kernel.written, strict=True))
        changed = {id(part.buffer) for part, written in pairs if written}
        parts: list[Part] = []
        for part, written in pairs:
            if written or id(part.buffer) not in changed:
                parts.append(part)
                continue
            own = self.allocate(part.nbytes)
            self._copied(encoder, part, own, padded(part.nbytes))
            parts.append(Part(own.buffer, 0, part.nbytes))
        return parts

    def finish(self) -> None:
        """Whoever reads waits."""


class PaperWgsl(PaperDevice):
    """Keeps the shaders that it would build."""

    dialect = Wgsl()

    def __init__(self, coop: bool) -> None:
        self.traits = COOP if coop else WgpuDevice.traits
        self.sources: list[str] = []

    def build(self, source: str) -> Any:
        self.sources.append(source)
        return source


class PaperWgslBackend(KernelBackend):
    """One device on paper."""

    name = "wgsl-paper"

    def __init__(self, coop: bool = True) -> None:
        super().__init__()
        self.paper = PaperWgsl(coop)

    def devices(self) -> Sequence[Device]:
        return (DEVICE,)

    def open(self, device: Device) -> KernelDevice:
        return self.paper

    @property
    def target(self) -> Target:
        """Where programs are compiled for it."""
        return Target(self, DEVICE)


class WgpuBackend(KernelBackend):
    """One device, whose kernels are serial or of groups."""

    name = "wgpu"

    def __init__(self, coop: bool = False) -> None:
        super().__init__()
        self.coop = coop

    def devices(self) -> Sequence[Device]:
        return (DEVICE,)

    def open(self, device: Device) -> KernelDevice:
        made = WgpuDevice()
        if self.coop:
            made.traits = COOP
        return made


COOP = Traits(
    compute_units=64,
    has_f64=False,
    max_allocation_bytes=1 << 27,
    alignment=256,
    identity="wgpu in tests, groups",
    device_class="gpu",
    max_workgroup_size=256,
    shared_memory_bytes=32 << 10,
)
"""Groups as every device of WebGPU allows them, but for twice the memory that they share."""


def target(coop: bool = False) -> Target:
    """A device that runs what it is given."""
    required()
    return Target(WgpuBackend(coop), DEVICE)
