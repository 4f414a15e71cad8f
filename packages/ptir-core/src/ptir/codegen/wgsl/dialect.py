"""What families are told of WGSL: scalars, workgroups, and all that it lacks."""

from __future__ import annotations

from typing import Final

from ptir.backend.kernel import Language, WholeKernel, WorkgroupPrimitives
from ptir.codegen.lowering.table import EVERYTHING

DEFAULT: Final = 8
"""Storage buffers of a kernel that every device of WebGPU allows."""

WORKGROUP: Final = WorkgroupPrimitives(
    kernel="@compute @workgroup_size({2}) fn {0}({1})",
    workgroup_id="i32(of_group.x)",
    local_id="i32(of_member.x)",
    barrier="storageBarrier(); workgroupBarrier();",
    shared_array="var<workgroup> {1}: array<{0}, {2}>;",
    load_vector="let {0} = {1}[({2}) / 4];",
    store_vector="{0}[({1}) / 4] = vec4<u32>({2}, {3}, {4}, {5});",
)
"""Workgroups without shuffles: subgroups are no part of WebGPU's defaults."""


class Wgsl(Language):
    """WGSL as it is without any extension. Kernels are lowered, then rendered (``written``).

    ``buffers``: storage buffers of a kernel that the device allows.
    """

    name = "wgsl"
    lanes = 1
    workgroup = WORKGROUP
    lacks = EVERYTHING

    def __init__(self, buffers: int = DEFAULT) -> None:
        self.max_buffers = buffers

    def whole_kernel(self, kernel: WholeKernel, name: str) -> str:
        """An entry point with its buffers."""
        from ptir.codegen.wgsl.render import module_of

        return module_of(kernel, name, self.lacks, self.max_buffers).text

    def prelude(self) -> str:
        """Nothing stands in front of kernels."""
        return ""
