"""What families are told of WGSL: scalars, workgroups, and all that it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptir.backend.kernel import Argument, Dialect, WholeKernel, WorkgroupPrimitives
from ptir.codegen.lowering.table import EVERYTHING
from ptir.codegen.wgsl.ops import TYPES, applied, literal
from ptir.types import F32, DType

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


class Wgsl(Dialect):
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

    def type(self, dtype: DType, width: int = 1) -> str:
        """One of the four."""
        return TYPES[dtype]

    def literal(self, dtype: DType, value: float | int) -> str:
        """See ``ops.literal``."""
        return literal(dtype, value)

    def apply(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """See ``ops.applied``."""
        return applied(op, dtype, of, args)

    def splat(self, dtype: DType, width: int, text: str) -> str:
        """The scalar itself."""
        return text

    def gathered(self, dtype: DType, texts: Sequence[str]) -> str:
        """The only scalar."""
        (text,) = texts
        return text

    def lane(self, text: str, number: int) -> str:
        """The scalar itself."""
        return text

    def load(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """An element."""
        return f"{buffer}[{index}]"

    def store(self, dtype: DType, width: int, buffer: str, index: str, text: str) -> str:
        """An assignment."""
        return f"{buffer}[{index}] = {text};"

    def private(self, array: str, size: int, dtype: DType = F32) -> str:
        """A variable of the function."""
        return f"var {array}: array<{TYPES[dtype]}, {size}>;"

    def private_load(self, width: int, array: str, index: str) -> str:
        """An element."""
        return f"{array}[{index}]"

    def private_store(
        self, width: int, array: str, index: str, text: str, dtype: DType = F32
    ) -> str:
        """An assignment."""
        return f"{array}[{index}] = {text};"

    def pointer(self, argument: Argument) -> str:
        """A buffer, ready for its name to follow."""
        return f"var<storage, {'read_write' if argument.written else 'read'}> "

    def kernel(self, name: str, arguments: Sequence[Argument], body: str) -> str:
        """An entry point of one invocation around a text of statements."""
        return f"@compute @workgroup_size(1)\nfn {name}() {{\n{body}\n}}"

    def prelude(self) -> str:
        """Nothing stands in front of kernels."""
        return ""
