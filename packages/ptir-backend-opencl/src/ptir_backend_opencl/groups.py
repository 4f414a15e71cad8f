"""How OpenCL C spells workgroups, with subgroups where their size can be fixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ptir.codegen.api import WorkgroupPrimitives

SUBGROUPS: Final = "#pragma OPENCL EXTENSION cl_intel_subgroups : enable\n"
"""What the prelude needs for shuffles."""

WORKGROUP: Final = WorkgroupPrimitives(
    kernel="__kernel __attribute__((reqd_work_group_size({2}, 1, 1)))\nvoid {0}({1})",
    workgroup_id="get_group_id(0)",
    local_id="get_local_id(0)",
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    shared_array="__local {0} {1}[{2}] __attribute__((aligned(16)));",
    load_vector="const uint4 {0} = *(const __global uint4 *)({1} + {2});",
    store_vector="*(__global uint4 *)({0} + {1}) = (uint4)({2}, {3}, {4}, {5});",
)

HIDDEN_LOCAL_ID: Final = "(int)get_local_id(0) ^ -(get_work_dim() == 0)"
"""The same number, for a compiler that does not see that it is the local id."""


def together(subgroup: int, hidden: bool = False) -> WorkgroupPrimitives:
    """How workgroups are spelled where ``subgroup`` of their threads shuffle values.

    ``hidden``: local ids are not to be seen by the compiler (``platforms.misreads_local_ids``).
    """
    found = replace(WORKGROUP, local_id=HIDDEN_LOCAL_ID) if hidden else WORKGROUP
    if not subgroup:
        return found
    fixed = f"__attribute__((intel_reqd_sub_group_size({subgroup})))"
    return replace(
        found,
        kernel=WORKGROUP.kernel.replace("__kernel ", f"__kernel {fixed} "),
        shuffle_xor="intel_sub_group_shuffle_xor({0}, {1})",
        subgroup_size=subgroup,
    )
