"""Whole programs on an OpenCL device: the reference's results, in place, again and again."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import ptir
import ptir_backend_ref
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture.creation import tensor
from ptir.capture.plan import PLANS
from ptir.capture.run import run_program
from ptir.errors import CaptureError, UnsupportedError
from ptir.ir.graph import freeze, source
from ptir.ir.program import Port, Program
from ptir.ops import OPS
from ptir.passes.context import PassContext
from ptir.passes.legalize import legalize
from ptir.types import DTYPES, spec
from random_programs import COLUMNS, ROWS, random_program

REF = Target(ptir_backend_ref.backend, ptir_backend_ref.backend.devices()[0])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.slice(3)
@pytest.mark.parametrize("seed", range(24))
def test_random_programs_give_the_reference_results(opencl: Target, seed: int) -> None:
    program = random_program(seed)
    inputs = {
        port.name: rng(seed + place).standard_normal((ROWS, COLUMNS), np.float32)
        for place, port in enumerate(program.ports)
    }
    for found, wanted in zip(
        run_program(program, inputs, opencl), run_program(program, inputs, REF), strict=True
    ):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


def test_tokens_of_the_demo_model_are_the_reference_tokens(opencl: Target) -> None:
    prompt, options = "ROMEO:", {"max_tokens": 24, "temperature": 0.0}
    here = ptir.load_model("demo", backend=opencl).generate(prompt, **options)
    there = ptir.load_model("demo", backend=REF).generate(prompt, **options)
    assert here.token_ids == there.token_ids


def test_sampled_tokens_are_the_reference_tokens(opencl: Target) -> None:
    options = {"max_tokens": 12, "temperature": 0.9, "top_k": 40, "top_p": 0.95, "seed": 7}
    here = ptir.load_model("demo", backend=opencl).generate("KING", **options)
    there = ptir.load_model("demo", backend=REF).generate("KING", **options)
    assert here.token_ids == there.token_ids


def test_rows_of_unequal_length_continue_side_by_side(opencl: Target) -> None:
    prompts, options = ["To be", "O", "What light through yonder"], {"max_tokens": 6}
    model = ptir.load_model("demo", backend=opencl)
    together = model.generate_batch(prompts, temperature=0.0, **options)
    alone = [model.generate(prompt, temperature=0.0, **options) for prompt in prompts]
    assert [g.token_ids for g in together] == [g.token_ids for g in alone]


def test_a_long_prompt_gives_the_reference_logits(opencl: Target) -> None:
    tokens = rng().integers(0, 500, 37).tolist()
    here = ptir.load_model("demo", backend=opencl).forward(tokens)
    there = ptir.load_model("demo", backend=REF).forward(tokens)
    np.testing.assert_allclose(here, there, rtol=1e-3, atol=1e-4)


@pytest.mark.slice(1)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_packed_narrow_weights_are_read_exactly(opencl: Target, dtype: str) -> None:
    tokens = list(range(1, 12))
    here = ptir.load_model("random:gpt2-tiny", backend=opencl, dtype=dtype).forward(tokens)
    there = ptir.load_model("random:gpt2-tiny", backend=REF, dtype=dtype).forward(tokens)
    np.testing.assert_allclose(here, there, rtol=1e-3, atol=1e-5)


def test_a_donated_input_is_overwritten_and_gone(opencl: Target) -> None:
    cache = tensor(np.zeros((1, 1, 4, 2), np.float32), backend=opencl)
    new = tensor(np.ones((1, 1, 1, 2), np.float32), backend=opencl)
    row = tensor(np.array([2], np.int32), backend=opencl)
    one = tensor(np.array([1], np.int32), backend=opencl)
    step = ptir.jit(
        lambda cache, new, row, one: F.cache_update(cache, new, row, one), donate=("cache",)
    )
    found = step(cache, new, row, one).numpy()
    assert found[0, 0].tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]
    with pytest.raises(CaptureError, match="donated"):
        cache.numpy()


def test_results_of_earlier_runs_stay_as_they_were(opencl: Target) -> None:
    twice = ptir.jit(lambda x: F.tanh(x) * 2.0)
    inputs = [rng(seed).standard_normal((64, 33), np.float32) for seed in range(8)]
    results = [twice(tensor(x, backend=opencl)) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        np.testing.assert_allclose(result.numpy(), np.tanh(x) * 2, rtol=1e-5)


def test_one_program_runs_in_several_threads(opencl: Target) -> None:
    work = ptir.jit(lambda x: F.softmax(x @ x.transpose(1, 0)))
    inputs = [rng(seed).standard_normal((48, 48), np.float32) for seed in range(6)]
    alone = [work(tensor(x, backend=opencl)).numpy() for x in inputs]
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        for _ in range(20):
            found[number] = work(tensor(inputs[number], backend=opencl)).numpy()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, wanted in enumerate(alone):
        assert np.array_equal(found[number], wanted)


def test_a_repeated_run_gives_the_same_bits(opencl: Target) -> None:
    model = ptir.load_model("demo", backend=opencl)
    first, second = (model.forward([5, 6, 7, 8]) for _ in range(2))
    assert np.array_equal(first, second)


def test_what_has_no_kernel_is_refused_by_name(opencl: Target) -> None:
    x = source(spec("f32", 3))
    call = OPS["custom_call"].multi(x, target="nobody.nothing.v1", results=("f32[3]",))
    program = Program(freeze(list(call), [x]), (Port("x"),))
    with pytest.raises(UnsupportedError, match=rf"{opencl.backend.name}: custom_call\(f32\[3\]\)"):
        run_program(program, {"x": np.zeros(3, np.float32)}, opencl)


@pytest.mark.slice(2)
@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2", "bf16", "f16"])
@pytest.mark.parametrize("wide", ["f32", "f64"])
def test_casts_to_narrow_floats_round_once(opencl: Target, dtype: str, wide: str) -> None:
    narrow, bits = DTYPES[dtype].numpy, DTYPES[dtype].bits
    codes = np.arange(1 << min(bits, 12), dtype=f"u{bits // 8}") << (bits - min(bits, 12))
    with np.errstate(invalid="ignore"):  # NaN
        exact = codes.view(narrow).astype(np.float64)
    exact = np.unique(exact[np.isfinite(exact)])
    middle = (exact[1:] + exact[:-1]) / 2
    near = np.concatenate([np.nextafter(middle, s * np.inf) for s in (-1, 1)])
    ends = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-9, 448.0, 464.0, 465.0, 61440.0, 65520.0]
    with np.errstate(over="ignore"):
        x = np.concatenate([exact, middle, near, ends]).astype(DTYPES[wide].numpy)
    program = ptir.capture(lambda x: x.astype(dtype), spec(wide, *x.shape))
    (found,), (wanted,) = (run_program(program, {"x": x}, t) for t in (opencl, REF))
    back = ptir.capture(lambda x: x.astype("f32"), spec(dtype, *x.shape))
    (widened,) = run_program(back, {"x": wanted}, opencl)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))
    np.testing.assert_array_equal(widened, wanted.astype(np.float32))


@pytest.mark.parametrize("how", ["portable", "default"])
def test_composites_also_run_from_their_lowerings(opencl: Target, how: str) -> None:
    q, k, v = (rng(seed).standard_normal((1, 2, 3, 4), np.float32) for seed in range(3))
    policy = {"attention": "force=portable"} if how == "portable" else {}
    with ptir.overrides(policy):
        program = ptir.capture(
            lambda q, k, v: F.attention(q, k, v), *(spec("f32", 1, 2, 3, 4),) * 3
        )
        plain = legalize(program, PassContext(opencl.backend, opencl.device))
        executable = opencl.backend.compile(plain, opencl.device, Options())
        found = executable.run([opencl.backend.upload(x, opencl.device) for x in (q, k, v)])
        (wanted,) = run_program(program, {"q": q, "k": k, "v": v}, REF)
    np.testing.assert_allclose(
        opencl.backend.download(found[0], opencl.device), wanted, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("shape", [(0, 8, 4), (3, 0, 4), (3, 8, 0)])
def test_empty_axes_are_no_trouble(opencl: Target, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    program = ptir.capture(
        lambda x, w, b: F.softmax(F.linear(x, w, b), axis=0),
        *(spec("f32", m, k), spec("f32", k, n), spec("f32", n)),
    )
    arrays = {
        port.name: np.ones(type.shape, np.float32)
        for port, type in zip(program.ports, program.inputs, strict=True)
    }
    (found,), (wanted,) = (run_program(program, arrays, t) for t in (opencl, REF))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_nothing_runs_elsewhere(opencl: Target) -> None:
    stats = opencl.backend.stats(opencl.device)
    before = stats.kernels_launched
    x = tensor(rng().standard_normal((4, 4), np.float32), backend=opencl)
    F.softmax(x).numpy()
    assert stats.kernels_launched == before + 1
    assert stats.host_fallback_ops == 0


def test_host_memory_that_was_lent_stays_until_the_queue_is_done(opencl: Target) -> None:
    backend, device = opencl.backend, opencl.device
    program = ptir.capture(lambda x: F.tanh(x) * 2.0, spec("f32", 640, 512))
    executable = backend.compile(program, device, Options())
    x = aligned(640, 512)
    x[:] = rng().standard_normal(x.shape, np.float32)
    wanted, alive = np.tanh(x) * 2, weakref.ref(x.base)  # what owns the memory
    (result,) = executable.run([backend.upload(x, device, borrow=True)])
    del x, executable
    gc.collect()
    assert alive() is not None
    np.testing.assert_allclose(backend.download(result, device), wanted, rtol=1e-5, atol=1e-6)
    gc.collect()
    assert alive() is None


def aligned(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Memory that a CPU device shares: aligned to 4096 bytes."""
    nbytes = 4 * int(np.prod(shape))
    whole = np.empty(nbytes + 4096, np.uint8)
    skip = -whole.ctypes.data % 4096
    return whole[skip : skip + nbytes].view(np.float32).reshape(shape)


@pytest.mark.slice(1)
@pytest.mark.parametrize("formats", [{}, {"dtype": "bf16"}, {"quant": "int4"}], ids=str)
def test_every_pass_leaves_a_program_that_verifies(
    opencl: Target, monkeypatch: pytest.MonkeyPatch, formats: dict[str, str]
) -> None:
    monkeypatch.setenv("PTIR_VERIFY", "1")
    PLANS.clear()
    model = ptir.load_model("random:gpt2-tiny", backend=opencl, **formats)
    assert len(model.generate([5, 7], max_tokens=2, ignore_eos=True).token_ids) == 2
