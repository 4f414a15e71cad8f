"""Codes of vectors stay what they are: kernels read them, and nothing is made of them in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from paper import compiled, families

import ptir
from ptir import functional as F
from ptir.capture import Tensor, call
from ptir.codegen.families.linear.parts import in_registers
from ptir.codegen.weights.pack import pack
from ptir.ir.program import Port, Program
from ptir.ops.record import literal
from ptir.runtime.held import in_words
from ptir.types import U32, TensorType, spec
from ptir.weights import FORMATS
from ptir.weights.affine_form import AffineForm, affine_form

N, K = 64, 512
NAMES = [name for name in FORMATS if (made := affine_form(FORMATS[name])) and made.vectors]


def form_of(name: str) -> AffineForm:
    form = affine_form(FORMATS[name])
    assert form is not None
    return form


def parts_of(form: AffineForm) -> dict[str, TensorType]:
    """The arrays of a weight [N, K]."""
    found = {"words": TensorType(U32, (N, form.words_for(K)))}
    return found | {
        part: TensorType(dtype, (N, K // each)) for part, (dtype, each) in form.parts.items()
    }


def product(form: AffineForm, rows: int, beside: bool = False) -> Program:
    """The product of some rows and a weight whose arrays are parameters, beside rows of it."""
    types = parts_of(form)

    def body(x: Tensor, *held: Tensor) -> tuple[Tensor, ...]:
        weight = in_words(form, 1, dict(zip(types, held, strict=True)))
        contract = {"lhs_contract": (1,), "rhs_contract": (1,)}
        found = call("dot_general", x, weight.dense(), **contract)
        if not beside:
            return (found,)
        chosen = call("constant", value=literal(np.array([3, 60], np.int32)))
        return found, F.embedding(weight, chosen)

    program = ptir.capture(body, spec("f32", rows, K), *types.values())
    first, *rest = program.ports
    ports = (first, *(Port(port.name, "parameter") for port in rest))
    return Program(program.main, ports, program.version)


def test_the_formats_are_those_of_grids() -> None:
    grids = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0"}
    assert grids == set(NAMES)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("name", NAMES)
def test_a_product_reads_codes_signs_and_the_table(name: str, rows: int) -> None:
    """One kernel; what is packed has the bytes of what is stored, and nothing else is kept."""
    form = form_of(name)
    assert form.vectors is not None
    program = product(form, rows)
    packed, derived = pack(program, 1 << 40)
    sizes = {type.nbytes for type in packed.inputs[1:]}
    assert sizes == {type.nbytes for type in parts_of(form).values()} and derived
    made = compiled(program)
    assert families(made) == ["linear"]
    (kernel,) = made.kernels
    assert kernel is not None
    weight = kernel.fusion.detail.quantized
    assert weight.computed.own <= set(kernel.fusion.inputs)
    assert len(weight.computed.packed) == 1 + form.vectors.signed
    assert weight.largest < 128 and weight.zero == -form.zero


def test_rows_are_looked_up_where_a_product_reads_the_same_weight() -> None:
    made = compiled(product(form_of("IQ3_S"), 1, beside=True))
    assert sorted(families(made)) == ["linear", "map"]


def test_a_weight_in_parts_is_looked_up_part_by_part() -> None:
    """The table is whole for each."""
    form = form_of("IQ2_S")
    largest = parts_of(form)["words"].nbytes // 2
    packed, _ = pack(product(form, 1), largest)
    looked_up = [one for one in packed.main.instructions if one.op == "unpack_vectors"]
    tables = [packed.main.types[one.operands[1]].shape for one in looked_up]
    assert len(looked_up) > 1 and set(tables) == {(1024, 2)}
    assert all(type.nbytes <= largest for type in packed.inputs[1:])


@pytest.mark.parametrize("name", ["nf4", "f8e4m3", "Q4_K"])
def test_only_tables_of_floats_are_put_into_registers(name: str) -> None:
    form = affine_form(FORMATS[name])
    assert form is not None
    (kernel,) = compiled(product(form, 1)).kernels
    assert kernel is not None
    for permutes in ((True, False), (False, True)):
        words, bytes_ = permutes
        dialect = SimpleNamespace(permutes_words=words, permutes_bytes=bytes_)
        context: Any = SimpleNamespace(dialect=dialect)
        found = in_registers(kernel.fusion.detail, context).quantized
        assert found is not None
        wanted = permutes if name != "Q4_K" else (False, False)
        assert (found.permutes_words, found.permutes_bytes) == wanted
