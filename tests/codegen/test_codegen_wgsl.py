"""Kernels as WGSL: naga takes them all, and a device computes with them what it should."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from paper import optimized
from wgpu_backend import DEVICE, PaperWgslBackend, refused, required, target

import gate
import ptir
from corpus_slices import ByOp, outcomes, spread
from ptir.backend.contract import Options
from ptir.backend.kernel import Argument
from ptir.capture.plan import PLANS
from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Var
from ptir.codegen.expressions.index import axis
from ptir.codegen.kernel_ir.nodes import Array, Barrier, If, Let, Store
from ptir.codegen.kernel_ir.values import Read
from ptir.codegen.kernel_ir.verify import faults
from ptir.codegen.lowering.rewriting import Body
from ptir.codegen.lowering.table import remaining
from ptir.codegen.wgsl import render
from ptir.codegen.wgsl.dialect import Wgsl
from ptir.codegen.wgsl.names import safe
from ptir.codegen.wgsl.render import Module, module
from ptir.errors import UnsupportedError
from ptir.models import gpt2
from ptir.models.table import MODELS, load_modules
from ptir.types import BOOL, DTYPES, F32, F64, I8, I32, U32, spec
from ptir_testsuite.corpus.models import model_runs

SUITE: dict[str, tuple[str, dict[str, str], set[str]]] = {
    "gpt2-f32": ("random:gpt2-two-layers", {}, {"linear", "attention", "map", "cache"}),
    "gpt2-bf16": ("random:gpt2-two-layers", {"dtype": "bf16", "cache_dtype": "bf16"}, set()),
    "gpt2-f16": ("random:gpt2-two-layers", {"dtype": "f16"}, set()),
    "gpt2-int8": ("random:gpt2-two-layers", {"quant": "int8"}, set()),
    "gpt2-int4": ("random:gpt2-two-layers", {"quant": "int4"}, set()),
    "llama-f32": ("random:llama-tiny", {}, {"linear", "attention", "map"}),
    "llama-int4": ("random:llama-tiny", {"quant": "int4", "dtype": "bf16"}, set()),
}
"""Models whose kernels of a prompt and a decode step are written; layers are alike."""
PROMPT = list(range(1, 73))
ENTRY = re.compile(r"^fn (\w+)\(", re.MULTILINE)

COARSE = frozenset(("exp", "expm1", "log1p", "sin", "cos", "pow"))
"""Ops of which WebGPU promises fewer digits, or a smaller range, than the corpus asks for."""


@pytest.fixture(autouse=True)
def built_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is on disk is left alone."""
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")
    PLANS.clear()
    yield
    PLANS.clear()


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", SUITE)
def test_naga_takes_every_kernel_of_the_models(
    name: str, lowered_bodies: list[tuple[int, Body]], monkeypatch: pytest.MonkeyPatch
) -> None:
    required()
    load_modules()
    monkeypatch.setitem(MODELS["gpt2"].presets, "gpt2-two-layers", gpt2._preset(768, 2, 12))
    model, options, families = SUITE[name]
    backend = PaperWgslBackend()
    ptir.load_model(model, backend=backend.target, **options).generate(
        PROMPT, max_tokens=3, temperature=0.0, ignore_eos=True
    )
    entries = [name for source in backend.paper.sources for name in ENTRY.findall(source)]
    assert len(entries) >= 20
    assert families <= {entry.partition("_")[0] for entry in entries}
    for source in backend.paper.sources:
        assert refused(source) == ""
    assert len(lowered_bodies) >= len(entries)
    for members, body in lowered_bodies:
        assert faults(body.statements, body.arguments, members, 1, {}) == []
        assert remaining(body, Wgsl.lacks, Wgsl().max_buffers) == []


@pytest.fixture
def lowered_bodies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Body]]:
    """What every kernel is lowered to, and the members of its groups."""
    seen: list[tuple[int, Body]] = []
    written = render.written

    def noting(name: str, body: Body, items: int, members: int) -> str:
        if name != "NAME":  # texts are compared under that one first
            seen.append((members, body))
        return written(name, body, items, members)

    monkeypatch.setattr(render, "written", noting)
    return seen


@pytest.mark.parametrize("coop", [False, True])
def test_naga_takes_every_kernel_of_a_slice_of_the_corpus(coop: bool) -> None:
    required()
    backend = PaperWgslBackend(coop)
    count = 0
    for found in ByOp().in_turn(8):
        for case in spread([one for one in found if one.program is not None], 3):
            count += _takes(backend, case, coop)
    assert count, "the slice has kernels"


def _takes(backend: PaperWgslBackend, case: Any, coop: bool) -> int:
    """How many kernels a case has, all of which are valid; f64 is refused before that."""
    backend.paper.sources.clear()
    try:
        backend.compile(case.program, DEVICE, Options())
    except UnsupportedError as error:
        assert re.search("has no f64|no kernel family|decomposed|is fused|of nothing", str(error))
        return 0
    for source in backend.paper.sources:
        assert refused(source) == "", case.id
    return sum(len(ENTRY.findall(source)) for source in backend.paper.sources)


@pytest.mark.parametrize("coop", [False, True])
def test_cases_of_the_corpus_run(coop: bool) -> None:
    """On a device: what is compared is what the conformance suite compares."""
    found = target(coop)
    cases = ByOp()
    ops = [op for op in cases if op not in COARSE]
    chosen = [
        case for op in ops[:: 1 if gate.seed() is None else 8] for case in spread(cases[op], 3)
    ]
    rows = outcomes(chosen, found)
    assert [f"{row.call}: {row.message}" for row in rows if row.failed] == []
    assert sum(row.outcome.value == "pass" for row in rows) > len(rows) // 2


@pytest.mark.skipif(gate.seed() is not None, reason="a minute where a CPU pretends to be a GPU")
@pytest.mark.parametrize("name", ["llama-f32-tokens", "gpt2-coarse-int4-tokens"])
def test_models_continue_prompts_as_expected(name: str) -> None:
    (found,) = (run for run in model_runs() if run.id.startswith(f"model-{name}"))
    (row,) = outcomes([found], target(coop=True))
    assert row.outcome.value == "pass", row.message


# --- by themselves ---

TYPES = ("i8", "u8", "i16", "u16", "f16", "bf16", "i64", "u64", "bool")


@pytest.mark.parametrize("coop", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_narrow_and_long_memory_holds_what_was_written(dtype: str, coop: bool) -> None:
    """A matrix is turned over: items write into each other's words."""
    found = target(coop)
    kind = DTYPES[dtype].numpy
    bits = np.random.default_rng(7).integers(0, 256, 301 * kind.itemsize).astype(np.uint8)
    given = (bits & 1).astype(bool) if dtype == "bool" else bits.view(kind)
    if kind.kind not in "iub":
        given = np.where(np.isnan(given.astype(np.float32)), kind.type(-0.0), given)
    program = ptir.capture(lambda x: x.reshape(7, 43).transpose(), spec(dtype, 301))
    run = found.backend.compile(program, DEVICE, Options())
    (out,) = run.run([found.backend.upload(given, DEVICE)])
    got = found.backend.download(out, DEVICE)
    wanted = np.ascontiguousarray(given.reshape(7, 43).T)
    assert got.tobytes() == wanted.tobytes()


def test_integers_of_64_bits_are_computed() -> None:
    found = target(coop=True)
    rng = np.random.default_rng(3)
    a = rng.integers(-(2**62), 2**62, 200)
    b = rng.integers(1, 2**40, 200)
    program = ptir.capture(
        lambda x, y: (x * y, x - y, x + y, x // y, x.astype("f32"), y.astype("f32").astype("i64")),
        spec("i64", 200),
        spec("i64", 200),
    )
    run = found.backend.compile(optimized(program), DEVICE, Options())
    outs = run.run([found.backend.upload(one, DEVICE) for one in (a, b)])
    got = [found.backend.download(one, DEVICE) for one in outs]
    wanted = [
        a * b,
        a - b,
        a + b,
        a // b,
        a.astype(np.float32),
        b.astype(np.float32).astype(np.int64),
    ]
    for left, right in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(left, right)


def test_buffers_that_are_too_many_lie_in_one() -> None:
    """Six inputs and a result in four buffers, run from places that a table gives."""
    required()
    arguments = [Argument(f"b{n}", F32, False) for n in range(6)] + [Argument("b6", F32, True)]
    item, total = axis("item", 5), Const(F32, 0.0)
    statements: list[Any] = []
    sum_: Any = total
    for n in range(6):
        held = Var(F32, f"t{n}")
        statements.append(Let(held, Read(F32, f"b{n}", item)))
        sum_ = Apply(F32, "fma", Const(F32, float(n + 1)), held, sum_)
    statements.append(Store(F32, "b6", item, sum_))
    made = module("k", statements, arguments, 5, 1, Wgsl.lacks, 4)
    assert len(made.bindings) == 4
    held = {name: number for number, one in enumerate(made.bindings) for name in one.holds}
    joined = next(one.holds for one in made.bindings if len(one.holds) > 1)
    values = {f"b{n}": np.arange(5, dtype=np.float32) + 10 * n for n in range(6)}
    places = [8 * n for n in range(len(joined))]
    whole = np.zeros(8 * len(joined), np.float32)
    for name, begin in zip(joined, places, strict=True):
        whole[begin : begin + 5] = values[name]
    data: list[Any] = []
    for one in made.bindings:
        if len(one.holds) > 1:
            data.append(whole)
        elif not one.holds:
            data.append(np.array(places, np.int32))
        else:
            data.append(values.get(one.holds[0], np.zeros(5, np.float32)))
    got = launched(made, data, held["b6"]).view(np.float32)
    wanted = sum(np.float32(n + 1) * values[f"b{n}"] for n in range(6))
    np.testing.assert_array_equal(got, wanted)


def launched(made: Module, data: Sequence[Any], result: int) -> Any:
    """The words of a binding after the kernel ``k`` ran on bindings that begin as ``data``."""
    import wgpu

    device = required()
    assert refused(made.text) == ""
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffers = [device.create_buffer_with_data(data=one, usage=usage) for one in data]
    code = device.create_shader_module(code=made.text)
    pipeline = device.create_compute_pipeline(
        layout="auto", compute={"module": code, "entry_point": "k"}
    )
    entries = [{"binding": n, "resource": {"buffer": one}} for n, one in enumerate(buffers)]
    group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    encoder = device.create_command_encoder()
    turn = encoder.begin_compute_pass()
    turn.set_pipeline(pipeline)
    turn.set_bind_group(0, group)
    turn.dispatch_workgroups(*made.groups)
    turn.end()
    device.queue.submit([encoder.finish()])
    return np.frombuffer(device.queue.read_buffer(buffers[result]), np.uint32)


KINDS = {"i8": np.int8, "u16": np.uint16}


@pytest.mark.parametrize("name", KINDS)
def test_members_write_parts_of_words_that_they_share(name: str) -> None:
    """Members begin with ones everywhere; each writes an element, and words are what all wrote."""
    dtype, members, items = DTYPES[name], 16, 3
    per = 32 // dtype.bits
    words, item, member = members // per, axis("item", items), axis("member", members)
    own = Apply(dtype, "sub", Read(dtype, "b0", item * members + member), Const(dtype, 1))
    few = Apply(BOOL, "lt", Coordinate(I32, member), Const(I32, words))
    place = axis("member", words)
    statements = (
        Array("near", U32, words, shared=True),
        If(few, (Store(U32, "near", place, Const(U32, 2**32 - 1)),)),
        Barrier(),
        Store(dtype, "near", member, own),
        Barrier(),
        If(few, (Store(U32, "b1", item * words + place, Read(U32, "near", place)),)),
    )
    arguments = (Argument("b0", dtype, False), Argument("b1", U32, True))
    assert faults(statements, arguments, members, 1, {}) == []
    made = module("k", statements, arguments, items, members, Wgsl.lacks, 8)
    assert f"var<workgroup> k_near: array<atomic<u32>, {words}>;" in made.text
    assert "atomicOr(&k_near[" in made.text and "atomicLoad(&k_near[" in made.text
    bits = np.random.default_rng(5).integers(0, 256, items * members * dtype.itemsize)
    given = bits.astype(np.uint8).view(KINDS[name])
    got = launched(made, [given, np.zeros(items * words, np.uint32)], 1)
    np.testing.assert_array_equal(got.view(KINDS[name]), given - KINDS[name](1))


def test_without_a_device_modules_are_written_the_same() -> None:
    """The text of a small kernel, whole."""
    item = axis("item", 6)
    statements = (
        Let(Var(I8, "loop"), Read(I8, "b0", item)),
        Store(I8, "b1", item, Apply(I8, "add", Var(I8, "loop"), Const(I8, 1))),
    )
    arguments = (Argument("b0", I8, False), Argument("b1", I8, True))
    made = module("k", statements, arguments, 6, 1, Wgsl.lacks, 8)
    assert made.text == WHOLE
    assert made.groups == (1, 1)


WHOLE = """\
@group(0) @binding(0) var<storage, read> k_b0: array<u32>;
@group(0) @binding(1) var<storage, read_write> k_b1: array<atomic<u32>>;
@compute @workgroup_size(64)
fn k(@builtin(workgroup_id) of_group: vec3<u32>, @builtin(num_workgroups) of_groups: vec3<u32>,\
 @builtin(local_invocation_id) of_member: vec3<u32>) {
  let item: i32 = i32((of_group.x + of_group.y * of_groups.x) * 64u + of_member.x);
  if (item < 6i) {
    let loop_own: i32 = (bitcast<i32>((k_b0[(item/4)] << (24u - bitcast<u32>((item%4)*8))))\
 >> u32(24i));
    let narrow_1: u32 = bitcast<u32>((item%4)*8);
    atomicAnd(&k_b1[(item/4)], ~(255u << narrow_1));
    atomicOr(&k_b1[(item/4)], ((bitcast<u32>((((loop_own + 1i) << u32(24i)) >> u32(24i)))\
 & 255u) << narrow_1));
  }
}"""


def test_names_that_mean_something_are_given_others() -> None:
    assert safe("loop") == "loop_own" and safe("item") == "item"


def test_a_launch_of_many_groups_has_two_dimensions() -> None:
    body = (Store(I32, "b0", axis("item", 10**7), Const(I32, 1)),)
    made = module("k", body, (Argument("b0", I32, True),), 10**7, 1, Wgsl.lacks, 8)
    assert made.groups == (65535, 3)


def test_f64_is_refused_by_name() -> None:
    body = (Store(F64, "b0", axis("item", 4), Const(F64, 1.0)),)
    with pytest.raises(UnsupportedError, match=r"no f64, and nothing stands for it.*--dtype f32"):
        module("k", body, (Argument("b0", F64, True),), 4, 1, Wgsl.lacks, 8)
