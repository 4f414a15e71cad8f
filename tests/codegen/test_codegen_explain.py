"""What a compiled program says of itself: every op in a kernel, and the bytes that memory sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paper import TARGET, compiled

import ptir
from ptir import functional as F
from ptir.backend.explanation import Access, Explanation, Part
from ptir.codegen.compile import Compiled
from ptir.codegen.explain import explain
from ptir.runtime.explain import StepReport, explain_decode, explain_prefill
from ptir.runtime.layers import Layered
from ptir.types import TensorType, spec
from random_programs import random_program


@pytest.fixture(scope="module")
def decode() -> StepReport:
    return explain_decode(ptir.load_model("random:gpt2-tiny", backend=TARGET), 8, 1)


def layered(made: Compiled, explanation: Explanation) -> Layered:
    block = made.fused.graph.block
    ports = tuple(ptir.ir.Port(f"x{n}") for n in range(len(block.inputs)))
    return Layered(ptir.ir.Program(block, ports), explanation, {}, frozenset())


def parts_of(function: object, *types: TensorType) -> tuple[Part, ...]:
    return explain(compiled(ptir.capture(function, *types))).parts  # type: ignore[arg-type]


def test_equal_layers_of_a_model_are_one_section(decode: StepReport) -> None:
    model = ptir.load_model("random:gpt2-tiny", backend=TARGET)
    layers = tuple(f"h.{n}" for n in range(model.checkpoint.config["n_layer"]))
    assert [section.layers for section in decode.sections] == [(), layers, ()]


def test_what_is_fused_goes_by_the_names_of_functionals(decode: StepReport) -> None:
    (layer,) = (section for section in decode.sections if section.layers)
    assert [(work.name, work.fused) for work in layer.works] == [
        ("product", ("layer_norm", "linear")),
        ("attention", ("cache_update", "attention")),
        ("product", ("linear", "add")),
        ("product", ("layer_norm", "linear", "gelu")),
        ("product", ("linear", "add")),
    ]
    assert layer.works[0].parameters == (
        "ln_1.weight",
        "ln_1.bias",
        "attn.c_attn.weight",
        "attn.c_attn.bias",
    )


def test_a_decode_step_reads_every_weight_once_and_one_row_of_each_table(
    decode: StepReport,
) -> None:
    model = ptir.load_model("random:gpt2-tiny", backend=TARGET)
    source, config = model.checkpoint.source, model.checkpoint.config
    stored = sum(source.type(name).nbytes for name in source.names())
    vocabulary, width = config["vocab_size"], config["n_embd"]
    padding = (-vocabulary % 16) * width * 4
    wanted = stored + padding - source.type("wpe.weight").nbytes + 2 * width * 4
    works = [(work, s.count) for s in decode.sections for work in s.works]
    found = sum(work.moved.weights * count for work, count in works)
    # the gathered row of a padded table counts its share of the padding: a few bytes
    assert abs(found - wanted) <= 16


def test_nothing_of_a_step_is_left_to_somebody_else(decode: StepReport) -> None:
    assert decode.elsewhere == ()
    assert decode.counted.host_fallback_ops == 0
    assert decode.kernels == decode.counted.kernels_launched


def test_a_prompt_is_explained_as_its_first_chunk() -> None:
    report = explain_prefill(ptir.load_model("random:gpt2-tiny", backend=TARGET), 20, 1)
    assert (report.step, report.tokens) == ("prefill", 32)
    assert report.kernels == report.counted.kernels_launched
    assert report.elsewhere == ()


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_are_accounted_for(seed: int) -> None:
    made = compiled(random_program(seed))
    assert layered(made, explain(made)).unaccounted == ()


def test_an_op_in_no_kernel_is_named() -> None:
    made = compiled(ptir.capture(lambda x: F.exp(x).sum(1), spec("f32", 4, 64)))
    whole = explain(made)
    named = [i.op for i in made.fused.graph.block.instructions]
    (part,) = whole.parts
    lost = replace(part, members=tuple(n for n in part.members if named[n] != "exp"))
    assert layered(made, replace(whole, parts=(lost,))).unaccounted == ("exp",)


def test_parts_are_in_the_order_of_the_steps() -> None:
    program = ptir.capture(lambda x, y: (x + 1.0, F.softmax(y), y), spec("f32", 64), spec("f32", 8))
    made = compiled(program)
    kinds = ["kernel" if call.kernel else "copy" for call in made.recipe().calls]
    assert [part.kind for part in explain(made).parts] == kinds
    assert "copy" in kinds


def test_a_lookup_reads_the_rows_that_it_takes() -> None:
    table, rows = spec("f32", 1000, 32), spec("i32", 3)
    (part,) = parts_of(lambda table, rows: F.take(table, rows, axis=0) * 2.0, table, rows)
    assert set(part.reads) == {Access(0, 3 * 32 * 4), Access(1, 3 * 4)}
    assert [access.nbytes for access in part.writes] == [3 * 32 * 4]


def test_a_broadcast_operand_is_read_once() -> None:
    (part,) = parts_of(lambda x, b: F.exp(x + b), spec("f32", 100, 16), spec("f32", 16))
    assert set(part.reads) == {Access(0, 6400), Access(1, 64)}


def test_an_update_writes_only_what_is_new() -> None:
    cache, new, one = spec("f32", 1, 2, 64, 16), spec("f32", 1, 2, 3, 16), spec("i32", 1)
    parts = parts_of(F.cache_update, cache, new, one, one)
    (kernel,) = (part for part in parts if part.kind == "kernel")
    assert [access.nbytes for access in kernel.writes] == [2 * 3 * 16 * 4]
    (copy,) = (part for part in parts if part.kind == "copy")  # the cache is not ours to change
    assert copy.reads[0].nbytes == 2 * 64 * 16 * 4
