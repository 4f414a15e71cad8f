"""Mistakes to plant in kernels of matrix instructions: in their description, in their text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from ptir_backend_cupy import dialect
from ptir_backend_cupy.dialect import CudaC
from ptir_backend_cupy.matrices import MATRICES

Plant = Callable[[pytest.MonkeyPatch], list[int]]
"""Plants a mistake; the list holds, for each place where it could be, how often it was made."""


def described(**wrong: Any) -> Plant:
    """An instruction that is described with a mistake."""

    def plant(patch: pytest.MonkeyPatch) -> list[int]:
        whole = replace(dialect.WORKGROUP, mma=replace(MATRICES, **wrong))
        patch.setattr(CudaC, "workgroup", whole)
        return [1]

    return plant


def in_kernels(old: str, new: str) -> Plant:
    """A mistake in the text of every kernel of groups."""

    def plant(patch: pytest.MonkeyPatch) -> list[int]:
        grouped, made = CudaC.workgroup_kernel, [0]

        def wrong(self: CudaC, name: str, arguments: Any, members: int, body: str) -> str:
            changed, times = re.subn(old, new, body)
            made.append(times)
            return grouped(self, name, arguments, members, changed)

        patch.setattr(CudaC, "workgroup_kernel", wrong)
        return made

    return plant


COPIES: Final = r"copies_done\(\);\s*__syncthreads\(\);"


def multiplied(texts: list[str]) -> bool:
    """Whether kernels have the instruction."""
    return any("multiply_" in text for text in texts)
