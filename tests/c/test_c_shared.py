"""Programs shared by the pool's threads: right in every format, in place, and without copies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture.plan import plan_for
from ptir.capture.run import run_program
from ptir.codegen.launching.launches import KernelProgram
from ptir.codegen.partitioned import link, rule
from ptir.codegen.planning.plan import lowest_offset
from ptir.ir.program import Port, Program
from ptir.models import gpt2
from ptir.models.table import MODELS, load_modules
from ptir.partition import Costs
from ptir.runtime import Model
from ptir.runtime.session import Session
from ptir.types import spec
from ptir_backend_c import CBackend
from ptir_backend_c.device import Kernel, SharedLaunches
from random_programs import random_program
from running import REF

sys.path.append(str(Path(__file__).parent.parent / "partition"))
from partitioning import EAGER

pytestmark = pytest.mark.turns(2)

FORMATS: dict[str, dict[str, Any]] = {
    "f32": {},
    "bf16": {"dtype": "bf16"},
    "f16": {"dtype": "f16"},
    "int8": {"quant": "int8"},
    "int4": {"quant": "int4"},
    "bf16 cache": {"cache_dtype": "bf16"},
}
CORES = Costs(1e9, 1e9, 1e9, 1e-7, 1e9)
"""Two barriers a layer, however small the model."""

Opened = Callable[[int, Costs], Target]


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def opened(c: Target, monkeypatch: pytest.MonkeyPatch, caches: Path) -> Opened:
    """C with so many threads, which share all that they can, by costs."""

    c.backend.stats(c.device)  # opened without what follows

    def of(threads: int, costs: Costs) -> Target:
        monkeypatch.setenv("PTIR_C_THREADS", str(threads))
        monkeypatch.setenv("PTIR_C_SHARED", "always")
        # Kept recipes know nothing of costs that are set for a test.
        monkeypatch.setenv("PTIR_CACHE_DIR", str(caches / ("eager" if costs is EAGER else "cores")))
        monkeypatch.setattr(rule, "SERVER", costs)
        backend = CBackend()
        return Target(backend, backend.devices()[0])

    return of


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> str:
    """A model like the demo's, of two layers: who shares what is planned for each layer."""
    load_modules()
    preset = gpt2._preset(192, 2, 6) | {"vocab_size": 1024, "n_positions": 256, "eos_token_id": 0}
    monkeypatch.setitem(MODELS["gpt2"].presets, "gpt2-small", preset)
    return "random:gpt2-small"


def phases(executable: Any) -> int:
    """The phases of a shared program; 0 where it is not shared."""
    assert isinstance(executable, KernelProgram)
    words = executable.sharing.split()
    return int(words[words.index("phases,") - 1]) if words[:2] == ["shared", "by"] else 0


def plan_of(program: Program, target: Target) -> Any:
    plain = Program(program.main, tuple(Port(port.name) for port in program.ports))
    return plan_for(plain, target)


def inputs_of(program: Program, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    typed = zip(program.ports, program.inputs, strict=True)
    return {p.name: rng.standard_normal(t.shape).astype(t.dtype.numpy) for p, t in typed}


@pytest.mark.slice(1)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_random_programs_give_the_whole_programs_results(opened: Opened, workers: int) -> None:
    target, several = opened(workers, EAGER), 0
    for seed in range(12):
        program = random_program(seed)
        arrays = inputs_of(program, seed)
        found, wanted = run_program(program, arrays, target), run_program(program, arrays, REF)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6, err_msg=str(seed))
        several += phases(plan_of(program, target).executable) > 1
    assert workers == 1 or several >= 5, "too few of them are shared"


def steps(model: Model, rows: int = 1, count: int = 6) -> tuple[list[Any], Any]:
    """The logits of greedy steps, and the executable of the last one."""
    found = list[Any]()
    with model.policies():
        session = Session.of(model, rows, 32)
        session.pick(session.prefill([[5, 3 + row, 9] for row in range(rows)]))
        active = np.ones(rows, np.bool_)
        for _ in range(count):
            found.append(session.advance(active, logits_too=True)[1])
        executable = model.steps.advance(rows, session.capacity).plans[-1].executable
    return found, executable


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    ("name", "workers", "format"),
    [
        *(("demo", 2, format) for format in FORMATS),
        *(("random:gpt2-tiny", 3, format) for format in ("f32", "int4")),
        *(("random:llama-tiny", 2, format) for format in ("f32", "bf16", "int8")),
        ("random:llama-tiny", 3, "f32"),
    ],
)
def test_decoding_gives_the_logits_of_decoding_alone(
    c: Target, opened: Opened, name: str, workers: int, format: str
) -> None:
    target = opened(workers, CORES)
    found, executable = steps(ptir.load_model(name, backend=target, **FORMATS[format]))
    wanted, apart = steps(ptir.load_model(name, backend=c, **FORMATS[format]))
    assert phases(apart) == 0
    tolerance = 2e-2 if "bf16" in format else 5e-3 if format == "f16" else 1e-4
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * np.abs(other).max())
    if executable.sharing != "a part of a packed parameter is not in multiples of 16":
        assert phases(executable) > 2, executable.sharing


@pytest.mark.parametrize("format", ["f32", "int8"])
def test_mixtures_of_experts_are_not_shared(c: Target, opened: Opened, format: str) -> None:
    name = "random:mixtral-tiny"
    found, executable = steps(ptir.load_model(name, backend=opened(2, CORES), **FORMATS[format]))
    wanted, _ = steps(ptir.load_model(name, backend=c, **FORMATS[format]))
    assert executable.sharing == "which experts' weights it reads is known when it runs"
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * np.abs(other).max())


@pytest.mark.slice(1)
@pytest.mark.parametrize("rows", [2, 3])
def test_rows_whose_caches_lie_in_strides_are_right(
    c: Target, opened: Opened, small: str, rows: int
) -> None:
    found, executable = steps(ptir.load_model(small, backend=opened(2, CORES)), rows)
    wanted, _ = steps(ptir.load_model(small, backend=c), rows)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())
    assert phases(executable) > 2, executable.sharing


def test_weights_and_caches_are_there_once(opened: Opened, small: str) -> None:
    target = opened(2, CORES)
    model = ptir.load_model(small, backend=target)
    _, executable = steps(model)
    assert phases(executable) > 2, executable.sharing
    session = Session.of(model, 1, 32)
    ports = zip(executable.program.ports, executable.program.inputs, strict=True)
    weights = sum(type.nbytes for port, type in ports if port.kind == "parameter")
    cache = sum(t.nbytes for pair in model.state_types(1, session.capacity) for t in pair)
    stats = target.backend.memory_stats(target.device)
    assert stats is not None
    assert stats.live_bytes < 1.15 * (weights + 2 * cache), (stats, weights, cache)


@pytest.mark.parametrize("donated", [frozenset(), frozenset((0,))])
def test_a_cache_that_is_not_donated_stays_as_it_was(
    opened: Opened, donated: frozenset[int]
) -> None:
    def body(cache: Any, keys: Any, start: Any, count: Any, w: Any) -> Any:
        new = F.cache_update(cache, keys, start, count)
        return new, (new.sum(axis=3) @ w)

    place = spec("i32", 1)
    kept, added = spec("f32", 1, 4, 16, 8), spec("f32", 1, 4, 1, 8)
    program = ptir.capture(body, kept, added, place, place, spec("f32", 16, 48))
    target = opened(2, EAGER)
    backend, device = target.backend, target.device
    rng = np.random.default_rng(1)
    cache = rng.standard_normal((1, 4, 16, 8)).astype(np.float32)
    keys = rng.standard_normal((1, 4, 1, 8)).astype(np.float32)
    weight = rng.standard_normal((16, 48)).astype(np.float32)
    plain = Program(program.main, tuple(Port(port.name) for port in program.ports))
    plan = plan_for(plain, target, Options(donated))
    assert phases(plan.executable) >= 1, plan.executable
    start, count = np.array([3], np.int32), np.array([1], np.int32)
    given = [backend.upload(a, device) for a in (cache, keys, start, count, weight)]
    new, sums = plan.run(given, ())
    wanted = cache.copy()
    wanted[:, :, 3] = keys[:, :, 0]
    np.testing.assert_array_equal(backend.download(new, device), wanted)
    np.testing.assert_allclose(backend.download(sums, device), wanted.sum(3) @ weight, atol=1e-5)
    after = backend.download(given[0], device)
    np.testing.assert_array_equal(after, wanted if donated else cache)
    assert (new is given[0]) == bool(donated)


def test_the_launches_of_a_turn_follow_those_of_the_turn_before() -> None:
    class Noting:
        def share(self, listed: Any, ends: Any, phases: int, workers: int) -> None:
            self.seen = [*ends], phases, workers

    noting: Any = Noting()
    launches = [(Kernel(0, 1, None), 1, 1) for _ in range(4)]
    SharedLaunches(noting, launches, 2, ((1, 2), (0, 1))).submit(2)
    assert noting.seen == ([1, 3, 3, 4, 5, 7, 7, 8], 4, 2)


def test_memory_of_two_values_that_are_needed_together_is_apart() -> None:
    used = [(0, 100, 1, 2), (128, 64, 2, 4)]
    assert link._busy(used, 3, 3) == [(128, 64)]
    assert link._busy(used, 2, 2) == [(0, 100), (128, 64)]
    assert link._busy(used, 5, 6) == []
    assert lowest_offset([(128, 64)], 128, link.LINE) == 0
    assert lowest_offset([(0, 100), (128, 64)], 64, link.LINE) == 192
