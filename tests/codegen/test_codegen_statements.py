"""What a kernel's text takes beside its values: arrays that a group shares."""

from __future__ import annotations

import pytest

from ptir.backend.kernel import Argument, Dialect
from ptir.codegen.expressions.expr import Const, Var
from ptir.codegen.expressions.index import Axis, Dynamic, Index, axis
from ptir.codegen.kernel_ir.nodes import Store
from ptir.codegen.kernel_ir.render import Renderer
from ptir.codegen.kernel_ir.statements import Statements
from ptir.codegen.kernel_ir.values import Gather, Lane, Read
from ptir.codegen.wgsl.dialect import Wgsl
from ptir.codegen.wgsl.render import module
from ptir.errors import UnsupportedError
from ptir.types import BF16, F32, F64, I32, U32, DType
from ptir_backend_c.dialect import PlainC
from ptir_backend_cupy.dialect import CudaC
from ptir_backend_opencl.dialect import OpenCLC


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


FAR = axis("row", 262144) * 8960 + axis("k", 8960)


@pytest.mark.parametrize(
    ("dialect", "long"), [(PlainC(), "long long"), (CudaC(), "i64"), (OpenCLC(True), "long")]
)
def test_places_beyond_32_bits_are_of_the_language_s_long_type(dialect: Dialect, long: str) -> None:
    rendered = Renderer(dialect, {"b0": Argument("b0", F32, False)})
    assert rendered.text(Read(F32, "b0", FAR)) == f"b0[(({long})row*8960+({long})k)]"


def test_a_variable_of_32_bits_holds_no_place_beyond_them() -> None:
    made = Statements(CudaC())
    assert made.let_index(FAR, 262144 * 8960) == FAR
    assert made.let_index(axis("k", 8960) * 2, 17920) == axis("t1", 17920)


@pytest.mark.parametrize("rows", [16, 1 << 28])
def test_places_are_looked_up_at_once_where_32_bits_count_them(rows: int) -> None:
    held = Var(I32, "t1", True)
    lanes = (Dynamic(Lane(held, number), 0, rows - 1) for number in range(16))
    parts = [Read(U32, "b0", Index({lane: 16, Axis("k", 16): 1})) for lane in lanes]
    text = Renderer(PlainC(), {"b0": Argument("b0", U32, False)}).text(Gather(*parts))
    assert ("looked_up" in text) == (rows == 16)


def test_wgsl_refuses_places_beyond_32_bits() -> None:
    with pytest.raises(UnsupportedError, match="places up to 2348810239: cut the tensor"):
        arguments = [Argument("b0", F32, True)]
        module("k", [Store(F32, "b0", FAR, Const(F32, 0.0))], arguments, 1, 1, Wgsl.lacks, 8)
