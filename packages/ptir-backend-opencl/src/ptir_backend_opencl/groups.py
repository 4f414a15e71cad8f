"""How OpenCL C spells work-groups, with subgroups where their size can be fixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ptir.codegen.api import Together

SUBGROUPS: Final = "#pragma OPENCL EXTENSION cl_intel_subgroups : enable\n"
"""What the prelude needs for exchanges."""

TOGETHER: Final = Together(
    kernel="__kernel __attribute__((reqd_work_group_size({2}, 1, 1)))\nvoid {0}({1})",
    item="get_group_id(0)",
    member="get_local_id(0)",
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    shared="__local {0} {1}[{2}] __attribute__((aligned(16)));",
    words="const uint4 {0} = *(const __global uint4 *)({1} + {2});",
    put="*(__global uint4 *)({0} + {1}) = (uint4)({2}, {3}, {4}, {5});",
)


def together(subgroup: int) -> Together:
    """How groups are spelled where ``subgroup`` of their members exchange values."""
    if not subgroup:
        return TOGETHER
    fixed = f"__attribute__((intel_reqd_sub_group_size({subgroup})))"
    return replace(
        TOGETHER,
        kernel=TOGETHER.kernel.replace("__kernel ", f"__kernel {fixed} "),
        exchange="intel_sub_group_shuffle_xor({0}, {1})",
        width=subgroup,
    )
