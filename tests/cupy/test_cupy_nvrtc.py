"""Kernels as machine code of three architectures: they compile, what they take, what they do."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.capture.creation import tensor
from ptir.codegen.families import FAMILIES
from ptir.errors import BackendUnavailable, CompileError
from ptir.models import gpt2
from ptir.models.table import MODELS, load_modules
from ptir.runtime import SpeechModel, TextModel
from ptir_backend_cupy import disassembly, nvrtc, offline, platforms
from ptir_backend_cupy.nvrtc import Nvrtc
from ptir_backend_cupy.prelude import prelude

pytestmark = pytest.mark.usefixtures("built_anew")

SUITE: dict[str, tuple[str, dict[str, str]]] = {
    "demo": ("demo", {}),
    "gpt2-f32": ("random:gpt2-two-layers", {}),
    "gpt2-bf16": ("random:gpt2-two-layers", {"dtype": "bf16", "cache_dtype": "bf16"}),
    "gpt2-f16": ("random:gpt2-two-layers", {"dtype": "f16"}),
    "gpt2-f16-cache": ("random:gpt2-two-layers", {"cache_dtype": "f16"}),
    "gpt2-int8": ("random:gpt2-two-layers", {"quant": "int8"}),
    "gpt2-int4": ("random:gpt2-two-layers", {"quant": "int4"}),
    "llama-f32": ("random:llama-tiny", {}),
    "llama-int4": ("random:llama-tiny", {"quant": "int4", "dtype": "bf16"}),
}
"""The model suite: every kernel of a prompt and a decode step; layers are alike, so two will do."""

NARROW = ("gpt2-bf16", "gpt2-f16", "gpt2-int8", "gpt2-int4")
"""Those whose weights are exact in 16 bits, so that tensor cores multiply a prompt's rows."""
MULTIPLIED = (*NARROW, "gpt2-f32")
CACHED = ("gpt2-bf16", "gpt2-f16-cache")
"""Those whose caches are narrow."""

HEAD = 'extern "C" __global__ void __launch_bounds__(64) k(const f32 *a, f32 *b, const int items) '


@pytest.fixture(scope="module")
def compiler() -> Nvrtc:
    try:
        return nvrtc.find()
    except BackendUnavailable as error:
        if "cuda" in os.environ.get("PTIR_REQUIRE_BACKENDS", "").split(","):
            raise
        pytest.skip(str(error))


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", SUITE)
def test_the_model_suite_compiles_to_what_it_should(
    name: str, compiler: Nvrtc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, as compiling a model takes longest."""
    load_modules()
    monkeypatch.setitem(MODELS["gpt2"].presets, "gpt2-two-layers", gpt2._preset(768, 2, 12))
    model, options = SUITE[name]
    suite = offline.compiled(model, offline.ARCHITECTURES, **options)
    nothing_spills(suite)
    (_, prompt), (_, decode) = suite.made[0], suite.made[-1]
    assert set(prompt) == set(decode) == {80, 90, 100}
    for architecture in prompt:
        step, rows = (
            disassembly.instructions(code[architecture].code) for code in (decode, prompt)
        )
        for kernel, listed in streamed(step).items():
            wide = sum(one.startswith("LDG.E.128") for one in listed)
            assert wide, (architecture, kernel)
        if name in MULTIPLIED:
            rows_are_multiplied_by_tensor_cores(rows, name in NARROW)
        if name in CACHED:
            caches_are_attended_to_by_tensor_cores(rows)


HOT = frozenset(("linear", "attention", "row_reduction", "matmul", "cache"))
"""The families that time goes into: their kernels must not spill."""


def test_hot_kernels_are_of_families_that_there_are() -> None:
    assert set(FAMILIES) > HOT


def nothing_spills(suite: offline.OfflineDevice) -> None:
    rows = list(offline.rows(suite))
    assert {row.architecture for row in rows} == {80, 90, 100}
    families = {row.family for row in rows}
    assert families >= {"linear", "attention", "row_reduction", "cache", "map"}
    assert families & HOT
    noted = {row.kernel for row in rows}
    assert set(suite.launched) <= noted, "what is launched was looked at"
    spilled = [
        row for row in rows if row.family in HOT and (row.resources.spilled or row.resources.stack)
    ]
    assert not spilled, spilled[0]
    large = [row for row in rows if row.resources.shared > 48 << 10]
    assert not large, large[0]


SCORED = {"linear", "row_reduction"}
OTHERS: dict[str, set[str]] = {
    "bert-tiny": SCORED | {"attention"},
    "mpnet-tiny": SCORED,  # whose scores have a bias
    "modernbert-tiny": SCORED | {"attention"},
    "whisper-micro": SCORED | {"attention", "convolution", "cache"},
}
"""Families of kernels of models that do not generate, by what they are called."""


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_reads_or_hears_compiles(name: str, compiler: Nvrtc) -> None:
    backend = offline.OfflineBackend((90,))
    model = ptir.load_model(f"random:{name}", backend=backend.target)
    if isinstance(model, SpeechModel):
        heard = model.hear(model.features(np.ones(16000, np.float32)))
        prompt = model.tokens.prompt("en", "transcribe", timestamps=True)
        assert model.window(heard, prompt, timestamps=True).tokens
    else:
        assert isinstance(model, TextModel)
        model.computed(np.ones((3, 40), np.int32))
    rows = list(offline.rows(backend.kernels))
    spilled = [
        row for row in rows if row.family in HOT and (row.resources.spilled or row.resources.stack)
    ]
    assert not spilled, spilled[0]
    assert {*backend.kernels.launched} <= {row.kernel for row in rows}
    families = {row.family for row in rows}
    assert families >= OTHERS[name]
    assert ("attention" in families) == ("attention" in OTHERS[name])


def streamed(codes: dict[str, list[str]]) -> dict[str, list[str]]:
    """The kernels of a step that read weights."""
    return {name: found for name, found in codes.items() if name.startswith("linear")}


def rows_are_multiplied_by_tensor_cores(codes: dict[str, list[str]], narrow: bool) -> None:
    """Those of a prompt are, and by weights that are exact in 16 bits only."""
    found = streamed(codes)
    by_matrices = {name: listed for name, listed in found.items() if multiplies(listed)}
    assert len(by_matrices) == (4 if narrow else 0), ("QKV, projection, up, down", list(found))
    for name, listed in by_matrices.items():
        assert any(one.startswith("LDSM.16.M88.4") for one in listed), name
        assert wide_loads(listed), name


def caches_are_attended_to_by_tensor_cores(codes: dict[str, list[str]]) -> None:
    (name,) = [name for name in codes if name.startswith("attention")]
    assert multiplies(codes[name]), codes[name]
    turned = any(one.startswith("LDSM.16.MT88.4") for one in codes[name])
    assert turned and wide_loads(codes[name]), codes[name]


def multiplies(listed: list[str]) -> bool:
    """Whether a kernel has the instruction of tensor cores."""
    return any(one.startswith("HMMA.16816.F32") for one in listed)


def wide_loads(listed: list[str]) -> bool:
    """Whether activations come 16 bytes at once, and weights too, loaded or copied."""
    copies = [one for one in listed if one.startswith("LDGSTS")]
    return all(".128" in one for one in copies) and any(
        one.startswith("LDG.E.128") for one in listed
    )


@pytest.mark.slice(2)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("heads", "groups", "size"), [(12, 12, 64), (32, 8, 128)])
def test_attention_split_over_keys_compiles_without_spills(
    compiler: Nvrtc, dtype: str, heads: int, groups: int, size: int
) -> None:
    def step(q: Any, new: Any, keys: Any, values: Any, start: Any) -> Any:
        one = start * 0 + 1
        caches = (F.cache_update(old, new.astype(dtype), start, one) for old in (keys, values))
        wide = (cache.astype("f32") for cache in caches)
        return F.attention(q, *wide, start=start, length=start + 1)

    backend = offline.OfflineBackend()
    cache = np.zeros((1, groups, 8192, size), np.float32)
    given = np.zeros((1, heads, 1, size), np.float32), np.zeros((1, groups, 1, size), np.float32)
    inputs = [tensor(each, backend=backend.target) for each in (*given, cache, cache)]
    stored = [each.astype(dtype) for each in inputs[2:]]
    start = tensor(np.zeros(1, np.int32), backend=backend.target)
    ptir.jit(step)(*inputs[:2], *stored, start).numpy()
    device = backend.kernels
    assert [name.partition("_")[0] for name in device.launched[-2:]] == ["attention"] * 2
    rows = [row for row in offline.rows(device) if row.kernel in device.launched[-2:]]
    assert {row.architecture for row in rows} == {80, 90, 100}
    assert not [row for row in rows if row.resources.spilled or row.resources.stack]
    assert max(row.resources.shared for row in rows) <= 48 << 10


def test_denormals_stay_and_nothing_is_contracted(
    compiler: Nvrtc, monkeypatch: pytest.MonkeyPatch
) -> None:
    # divisions are left out: their code flushes what it has scaled
    body = "{ b[0] = a[0] * a[1] + a[2]; b[1] = fma_of(a[3], a[4], a[5]); }"
    source = prelude() + HEAD + body

    def listed() -> list[str]:
        return disassembly.instructions(compiler.compiled(source, 90).code)["k"]

    right = listed()
    assert {"FMUL", "FADD", "FFMA"} <= set(right)
    assert not [one for one in right if ".FTZ" in one]
    flushed = [one.replace("ftz=false", "ftz=true") for one in nvrtc.OPTIONS]
    monkeypatch.setattr(nvrtc, "OPTIONS", tuple(flushed))
    assert "FMUL.FTZ" in listed(), "the check would see it"


def test_spills_are_seen(compiler: Nvrtc) -> None:
    names = [f"x{n}" for n in range(200)]
    body = "".join(f"f32 {name} = a[{n}];" for n, name in enumerate(names))
    body += "".join(f"b[{n}] = {name} * {names[-n]};" for n, name in enumerate(names))
    text = prelude() + HEAD.replace("(64)", "(1024, 2)") + "{" + body + "}"
    taken = compiler.compiled(text, 90).resources["k"]
    assert taken.registers <= 32
    held = compiler.compiled(text.replace("(1024, 2)", "(64)"), 90).resources["k"]
    assert held.spilled == 0
    body = (
        "{ __shared__ f32 room[100]; f32 kept[300]; for (int i = 0; i < 300; ++i) kept[i] = a[i];"
    )
    body += " room[items] = kept[items]; b[0] = room[items + 1] + kept[items + 2]; }"
    taken = compiler.compiled(prelude() + HEAD + body, 90).resources["k"]
    assert taken.stack >= 1200 and taken.shared == 400


def test_what_the_assembler_says_is_read() -> None:
    log = """\
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
ptxas         .     16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 1088 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers
"""
    found = nvrtc.resources(log)
    assert found["first"] == nvrtc.Resources(255, 16, 64, 1088)
    assert found["second"] == nvrtc.Resources(12, 0, 0, 0)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{ b[0] = nothing; }", r"in kernel 'k': identifier \"nothing\" is undefined"),
        ("{ b[0] = ; }", "in kernel 'k': expected an expression"),
        ("{ __shared__ f32 room[1 << 20]; room[items] = 1; b[0] = room[0]; }", "shared"),
    ],
)
def test_errors_name_the_kernel(compiler: Nvrtc, body: str, said: str) -> None:
    with pytest.raises(CompileError, match=said):
        compiler.compiled(prelude() + HEAD + body, 90)


def test_an_unknown_architecture_is_refused_with_those_known(compiler: Nvrtc) -> None:
    with pytest.raises(CompileError, match=r"no code for sm_35 \(sm_\d+ to sm_\d+ are known\)"):
        compiler.compiled("", 35)


def test_a_machine_without_nvrtc_is_told_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "places", lambda: ("/no/libnvrtc.so",))
    nvrtc.find.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"`pip install nvidia-cuda-nvrtc` .CUDA 13."):
        nvrtc.find()
    nvrtc.find.cache_clear()


def test_the_command_prints_a_table(
    compiler: Nvrtc, capsys: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "found.json"
    monkeypatch.setattr(offline, "ARCHITECTURES", (90,))
    offline.main(["demo", "--json", str(file)])
    said = capsys.readouterr().out
    assert re.search(r"^0:linear_\d+ +90 +\d+ +0 +0 +\d+$", said, re.M)
    assert '"registers"' in file.read_text()


@pytest.mark.parametrize(
    ("driver", "order"),
    [(None, [13, 12]), ((13, 0), [13, 12]), ((12, 8), [12, 13]), ((14, 1), [13, 12])],
)
def test_the_compiler_of_the_driver_s_version_comes_first(
    monkeypatch: pytest.MonkeyPatch, driver: tuple[int, int] | None, order: list[int]
) -> None:
    """A driver takes no machine code of a later CUDA."""
    found = None if driver is None else platforms.Driver("CUDA", driver)
    monkeypatch.setattr(platforms, "driver", lambda: found)
    named = [int(name.rpartition(".")[2]) for name in nvrtc.places() if "libnvrtc.so" in name]
    assert list(dict.fromkeys(named)) == order
    assert named == sorted(named, key=order.index)
