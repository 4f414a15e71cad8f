"""Tensor cores: how CUDA C++ spells the matrix instruction that all of them have from sm_80 on."""

from __future__ import annotations

from typing import Final

from ptir.codegen.api import MmaInstruction

ARCHITECTURE: Final = 80
"""The first with bf16 operands and copies that are not waited for."""

ARGUMENTS: Final = ", ".join(f"{{{n}}}" for n in range(10))

MATRICES: Final = MmaInstruction(
    *(16, 8, 16, 32, 4),
    # the layout of mma.m16n8k16: PTX ISA 9.7.14.5.8, two elements to a register
    left=((0, 0), (8, 0), (0, 4), (8, 4)),
    right=((0, 0), (0, 4)),
    sums=((0, 0), (0, 1), (8, 0), (8, 1)),
    multiply={name: f"multiply_{name}({ARGUMENTS});" for name in ("bf16", "f16")},
    load_matrix="gather_matrices({0}, {1}, {2}, {3}, {4} + {5});",
    load_matrix_transposed="gather_matrices_across({0}, {1}, {2}, {3}, {4} + {5});",
    async_copy="copy_16({0} + {1}, {2} + {3});",
    async_wait="copies_done();",
)
