"""What a kernel's text takes beside its values: arrays that a group shares."""

from __future__ import annotations

import pytest

from ptir.backend.kernel import Argument
from ptir.codegen.expressions.index import axis
from ptir.codegen.kernel_ir.render import Renderer
from ptir.codegen.kernel_ir.statements import Statements
from ptir.codegen.kernel_ir.values import Read
from ptir.types import BF16, F32, F64, DType
from ptir_backend_cupy.dialect import CudaC


@pytest.mark.parametrize(
    ("arrays", "nbytes"),
    [
        ([], 0),
        ([(F32, 4)], 16),
        ([(F32, 5)], 32),
        ([(F32, 5), (F64, 3)], 64),
        ([(BF16, 3), (F32, 1)], 32),
    ],
)
def test_shared_arrays_begin_at_multiples_of_16(
    arrays: list[tuple[DType, int]], nbytes: int
) -> None:
    made = Statements(CudaC())
    for dtype, size in arrays:
        made.shared(dtype, size)
    assert made.shared_bytes == nbytes


def test_a_base_stays_an_address_of_its_own() -> None:
    rendered = Renderer(CudaC(), {"b0": Argument("b0", F32, False)})
    near, base = axis("k", 4) + 32, axis("t1", 100)
    assert rendered.text(Read(F32, "b0", near, base=base)) == "(b0 + t1)[(k+32)]"
    assert rendered.text(Read(F32, "b0", near)) == "b0[(k+32)]"
    assert rendered.text(Read(F32, "array", near, base=base)) == "array[(t1+k+32)]"
