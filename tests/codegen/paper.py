"""A kernel-level backend without a device: programs are fused, written and planned, not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptir.backend.contract import Device, Options, Target
from ptir.backend.kernel import KernelDevice, Traits
from ptir.codegen import KernelBackend, api
from ptir.codegen.compile import Compiled, compile_block
from ptir.codegen.context import Context
from ptir.ir.program import Program
from ptir.ops.overriding import active_overrides
from ptir.passes.context import PassContext
from ptir.passes.pipeline import optimize
from ptir_backend_cupy.dialect import CudaC
from ptir_backend_opencl.dialect import OpenCLC

DEVICE = Device(0, "paper", "cpu")


class PaperDevice(api.PaperDevice):
    """One whose kernels are in OpenCL C, an item each."""

    traits = Traits(
        compute_units=2, has_f64=True, max_allocation_bytes=1 << 32, alignment=128, identity="paper"
    )
    dialect = OpenCLC(doubles=True)


class GroupsDevice(PaperDevice):
    """One whose kernels are work-groups with matrix instructions."""

    traits = replace(
        PaperDevice.traits,
        **{
            "compute_units": 132,
            "device_class": "gpu",
            "max_workgroup_size": 1024,
            "shared_memory_bytes": 48 << 10,
        },
        identity="paper-groups",
    )
    dialect = CudaC()


class PaperBackend(KernelBackend):
    """One paper device."""

    name = "paper"
    kind: type[PaperDevice] = PaperDevice

    def devices(self) -> Sequence[Device]:
        return (DEVICE,)

    def open(self, device: Device) -> KernelDevice:
        return self.kind()


class GroupsBackend(PaperBackend):
    """One paper device of work-groups."""

    name = "paper-groups"
    kind = GroupsDevice


BACKEND = PaperBackend()
TARGET = Target(BACKEND, DEVICE)


def optimized(program: Program) -> Program:
    """``program`` as the generator gets it."""
    return optimize(program, PassContext(BACKEND, DEVICE, active_overrides()))


def compiled(program: Program, options: Options | None = None) -> Compiled:
    """What the generator makes of ``program``."""
    context = Context.of(PaperDevice())
    return compile_block(optimized(program).main, context, options or Options())


def families(made: Compiled) -> list[str]:
    """The family of each kernel, in the order in which they run."""
    return [kernel.family for kernel in made.kernels if kernel is not None]
