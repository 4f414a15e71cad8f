"""How CUDA C++ spells what the kernel generator writes."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from ptir.codegen.api import CLike, Spelling, WorkgroupPrimitives, clike
from ptir_backend_cupy.matrices import MATRICES
from ptir_backend_cupy.prelude import prelude, with_matrices

THREADS: Final = 64
"""Threads of a block whose threads are serial workgroups: they do nothing together."""

KERNEL: Final = """\
extern "C" __global__ void __launch_bounds__(THREADS) {name}({arguments}, const int items) {{
  const int item = blockIdx.x * THREADS + threadIdx.x;
  if ((unsigned)item >= items) return;
{head}{each}
}}""".replace("THREADS", str(THREADS))
"""A kernel whose threads are workgroups; the number of workgroups comes last."""

WORKGROUP: Final = WorkgroupPrimitives(
    kernel='extern "C" __global__ void __launch_bounds__({2}) {0}({1})',
    workgroup_id="blockIdx.x",
    local_id="threadIdx.x",
    barrier="__syncthreads();",
    shared_array="__shared__ __align__(16) {0} {1}[{2}];",
    load_vector="const uint4 {0} = *(const uint4 *)({1} + {2});",
    store_vector="*(uint4 *)({0} + {1}) = make_uint4({2}, {3}, {4}, {5});",
    shuffle_xor="__shfl_xor_sync(0xffffffffu, {0}, {1})",
    subgroup_size=32,
    mma=MATRICES,
)


def _wrapping(op: str, plain: str) -> Spelling:
    """``plain`` for floats; integers have a function that wraps."""
    row = f"wrapping_{op}({{args}})"
    return lambda d, dtype, of, width, args: d.filled(
        plain if dtype.is_float else row, op, dtype, of, width, args
    )


HALVES: Final[dict[str, Spelling]] = {
    **dict.fromkeys(("load_f16", "load_bf16"), "{name}_value({0})"),
    **dict.fromkeys(("store_f16", "store_bf16"), "{name}_bits({0})"),
    "narrow": "{name}_rounded({0})",
    "recast": "as<{result}>({0})",
}
SCALAR: Final[dict[str, Spelling]] = {
    **clike.SCALAR,
    **HALVES,
    **dict.fromkeys(("cast", "saturate"), "convert<{result}>(({operand}){0})"),
}
WIDE: Final[dict[str, Spelling]] = {
    **clike.WIDE,
    **HALVES,
    **{op: _wrapping(op, f"({{0}} {sign} {{1}})") for op, sign in clike.WRAPPING.items()},
    "neg": _wrapping("neg", "(-{0})"),
    "bits": clike.recast_bits,
    **dict.fromkeys(("cast", "saturate"), "convert<{result}>({0})"),
    "mask": "({0})",
    "select": "chosen({args})",
    "max": "greater({args})",
    "min": "smaller({args})",
    "dot_bf16": "dot_bf16({args})",
    "splat": "splat<{result}, {n}>({0})",
    "gathered": "gathered<{result}>({args})",
    "load": "load<{n}>({0} + {1})",
    "load_bool": "(-convert<i32>({0}))",
    "store": "store({0} + {1}, {2});",
    "store_bool": "convert<u8>(-{0})",
}
"""Functions of the prelude; most have one name for single and for wide values."""


class CudaC(CLike):
    """CUDA C++ as NVRTC takes it, without headers."""

    name = "cuda"
    lanes = 16
    types = clike.CARRIERS
    stored = clike.STORED
    special: ClassVar = {
        "f32": ("as<f32>(0x7fc00000u)", "as<f32>(0x7f800000u)", "as<f32>(0xff800000u)"),
        "f64": (
            *("as<f64>(0x7ff8000000000000ull)", "as<f64>(0x7ff0000000000000ull)"),
            "as<f64>(0xfff0000000000000ull)",
        ),
    }
    call = "{op}_of({args})"
    vector = "vec<{type}, {n}>"
    array = "{type} {name}[{size}];"
    scalar_rows = SCALAR
    wide_rows = WIDE
    entry = KERNEL
    no_unroll = '_Pragma("unroll 1")'
    workgroup = WORKGROUP
    dots = frozenset(("dot_bf16",))

    def __init__(self, matrices: bool = True) -> None:
        """``matrices``: whether the device has tensor cores of the kind that is known."""
        if not matrices:
            self.workgroup, self.dots = replace(WORKGROUP, mma=None), frozenset()

    def prelude(self) -> str:
        """What any kernel may use, and tensor cores where the device has them."""
        has_matrices = self.workgroup is not None and self.workgroup.mma is not None
        return with_matrices() if has_matrices else prelude()
