"""What a compiled program says of itself: every op in a kernel, and the bytes that memory sees."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from paper import TARGET, compiled

import ptir
from ptir import functional as F
from ptir.backend.explanation import Access, Explanation, Part, locations_of, read_sizes
from ptir.capture.plan import plan_for
from ptir.codegen.compile import Compiled
from ptir.codegen.explain import explain
from ptir.codegen.weights.rounded import settled
from ptir.functional.define import internal_composite
from ptir.ir.printer import print_program
from ptir.ops.rounded import PAIRS
from ptir.runtime.explain import StepReport, explain_decode, explain_prefill
from ptir.runtime.layers import Layered
from ptir.runtime.workers import decode_program
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
        ("linear", ("layer_norm", "linear")),
        ("attention", ("cache_update", "attention")),
        ("linear", ("linear", "add")),
        ("linear", ("layer_norm", "linear", "gelu")),
        ("linear", ("linear", "add")),
    ]
    assert layer.works[0].parameters == (
        "ln_1.weight",
        "ln_1.bias",
        "attn.c_attn.weight",
        "attn.c_attn.bias",
    )


def test_kernels_know_the_scopes_that_they_compute_in(decode: StepReport) -> None:
    first, layers, last = decode.sections
    scopes = [{place.scope for place in work.locations} for work in layers.works]
    shared = {""}  # what all layers compute alike: the constants of a norm, say
    assert [found - shared for found in scopes] == [
        {"h.0.ln_1", "h.0.attn.c_attn", "h.0.attn"},
        {"h.0.attn"},
        {"h.0.attn.c_proj", "h.0"},
        {"h.0.ln_2", "h.0.mlp.c_fc", "h.0.mlp"},
        {"h.0.mlp.c_proj", "h.0"},
    ]
    assert {place.layer for work in first.works for place in work.locations} == {""}
    assert "ln_f" in {place.scope for work in last.works for place in work.locations}


def test_both_layers_of_a_model_are_told_apart_in_its_parts() -> None:
    model = ptir.load_model("random:gpt2-tiny", backend=TARGET)
    program = decode_program(model, 16)
    plan = plan_for(program, TARGET)
    explanation = plan.executable.explain()
    assert explanation is not None
    parts = [locations_of(part, plan.optimized.main) for part in explanation.parts]
    for n, other in (("h.0", "h.1"), ("h.1", "h.0")):
        own = [places for places in parts if n in {place.layer for place in places}]
        found = [place.scope for places in own for place in places if place.layer == n]
        wanted = ("ln_1", "attn.c_attn", "attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp")
        assert {f"{n}.{name}" for name in (*wanted, "mlp.c_proj")} == set(found) - {n}
        assert not any(scope.startswith(other) for scope in found)


def test_a_product_whose_weight_was_not_packed_stands_where_it_was_called() -> None:
    weight = spec("bf16", 8, 16)
    program = ptir.capture(
        lambda x, w: internal_composite(PAIRS, x, w, layout="oi")[0], spec("bf16", 2, 16), weight
    )
    (call,) = program.main.instructions
    assert call.location.functional == PAIRS
    made = settled(program).main.instructions
    assert len(made) > 1
    assert {one.location for one in made} == {call.location}


USER = """from ptir import functional as F

def body(x):
    y = x + 1.0
    y = F.softmax(y)
    return F.rms_norm(
        y, x[0], epsilon=1e-5)
"""


@pytest.mark.parametrize("folder", ["work in progress", "a in b=c in d", 'qu"ote #1 (x):7'])
def test_a_folder_of_any_name_confuses_no_explanation(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "my model.py"
    path.write_text(USER, encoding="utf-8")
    spec_ = importlib.util.spec_from_file_location("my_model", path)
    assert spec_ is not None and spec_.loader is not None
    module = importlib.util.module_from_spec(spec_)
    spec_.loader.exec_module(module)
    with ptir.overrides(softmax="force=online"):
        program = ptir.capture(module.body, spec("f32", 4, 64))
        made = compiled(ptir.parse(print_program(program, locations=True)))
    block = made.fused.graph.block
    places = [one for part in explain(made).parts for one in locations_of(part, block)]
    found = {(p.file, p.line, p.functional, p.implementation) for p in places}
    assert found == {
        (str(path), 4, "", ""),
        (str(path), 5, "softmax", "online"),
        (str(path), 6, "rms_norm", "portable"),
        (str(path), 7, "", ""),
    }
    fused = [n for s in layered(made, explain(made)).sections() for w in s.works for n in w.fused]
    assert set(fused) == {"add", "softmax=online", "rms_norm"}


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
    kinds = ["kernel" if call.kernel else "copy" for call in made.artifact().commands]
    assert [part.kind for part in explain(made).parts] == kinds
    assert "copy" in kinds


def test_a_lookup_reads_the_rows_that_it_takes() -> None:
    table, rows = spec("f32", 1000, 32), spec("i32", 3)
    (part,) = parts_of(lambda table, rows: F.take(table, rows, axis=0) * 2.0, table, rows)
    assert set(part.reads) == {Access(0, 3 * 32 * 4), Access(1, 3 * 4)}
    assert [access.nbytes for access in part.writes] == [3 * 32 * 4]


def test_a_lookup_in_a_table_of_few_bits_reads_the_rows_that_it_takes() -> None:
    def looked_up(words: ptir.Tensor, scale: ptir.Tensor, ids: ptir.Tensor) -> ptir.Tensor:
        table = F.dequantize(words, scale, scale * -128.0, bits=8, group=32, axis=1)
        return F.take(table, ids, axis=0)

    kernels = parts_of(looked_up, spec("u32", 640, 16), spec("f32", 640, 2), spec("i32", 2))
    read = {access.value: access.nbytes for part in kernels for access in part.reads}
    assert read == {0: 2 * 16 * 4, 1: 2 * 2 * 4, 2: 2 * 4}


@pytest.mark.parametrize(("chosen", "share"), [(3, 3), (12, 8)])
def test_weights_of_experts_are_read_of_as_many_as_are_chosen(chosen: int, share: int) -> None:
    program = ptir.capture(
        lambda x, w, c: F.expert_linear(x, w, c, experts=8),
        spec("f32", 1, 32),
        spec("f32", 128, 32),
        spec("i32", 1, chosen),
    )
    (made,) = (one for one in program.main.instructions if one.name == "expert_linear")
    types = [program.main.types[value] for value in made.operands]
    sizes = read_sizes(made, types, made.types[0].size)
    assert sizes == (32, 128 * 32 * share // 8, chosen)


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
