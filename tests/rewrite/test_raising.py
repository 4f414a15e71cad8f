"""Raising keeps what programs compute, finds whole models in bare ops, and scales."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spellings import plain_softmax, sigmoid

import ptir
import random_programs
import running
from bare_programs import bare, bare_block, form
from devices import device, off_the_disk, without_optimizer
from evaluation import evaluate
from ptir import functional as F
from ptir.backend.contract import Options
from ptir.ir.program import Block, Program
from ptir.passes import PassContext, optimize
from ptir.passes.raise_composites import raise_composites
from ptir.rewrite.patterns import Patterns
from ptir.rewrite.raising import raised
from ptir.rewrite.taking import taken
from ptir.runtime.recorded import recorded_step

WRITTEN: dict[str, random_programs.Move] = {
    "softmax": lambda rng, a, b: plain_softmax(a, axis=rng.randrange(2)),
    "silu": lambda rng, a, b: a * sigmoid(a),
    "swiglu": lambda rng, a, b: a * sigmoid(a) * b,
    "gelu": lambda rng, a, b: 0.5 * a * (1.0 + F.erf(a / 2**0.5)),
    "gelu by tanh": lambda rng, a, b: F.gelu(a, approximate="tanh"),
    "rms norm": lambda rng, a, b: F.rms_norm(a, b[0], epsilon=1e-3),
    "norm": lambda rng, a, b: F.layer_norm(a, b[0], b[1], epsilon=1e-3),
    "scores": lambda rng, a, b: plain_softmax(a @ b.transpose(1, 0)) @ b,
    "linear": lambda rng, a, b: a @ (b.transpose(1, 0) @ a * 0.1) + b[2],
    "add": lambda rng, a, b: a + b,
    "columns": lambda rng, a, b: a - a.max(axis=0, keepdims=True),
    "half": lambda rng, a, b: F.maximum(a, b) * 0.5,
}


def arrays_of(program: Program, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(t.shape, "f4") for t in program.inputs]


def assert_same(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        scale = np.abs(other[np.isfinite(other)]).max(initial=1.0)
        np.testing.assert_allclose(one, other, rtol=3e-4, atol=3e-5 * scale)


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6))
def test_random_programs_keep_their_meaning(seed: int) -> None:
    program = bare(random_programs.random_program(seed, 7, WRITTEN))
    after = raised(program.main, {})
    arrays = arrays_of(program, seed)
    assert_same(evaluate(after, arrays), evaluate(program.main, arrays))


def test_random_programs_are_raised_at_all() -> None:
    counts: Counter[str] = Counter()
    for seed in range(8):
        raised(bare(random_programs.random_program(seed, 7, WRITTEN)).main, counts)
    assert {"raise softmax", "raise silu", "raise layer_norm", "raise linear"} <= counts.keys()


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", ["ref", "c", "opencl"])
def test_backends_compute_what_was_written(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = running.REF if name == "ref" else device(name)
    off_the_disk(monkeypatch)
    if name == "opencl":
        without_optimizer(target)
    programs = [bare(random_programs.random_program(seed, 5, WRITTEN)) for seed in range(3)]
    contexts = [PassContext(target.backend, target.device) for _ in programs]
    ready = [optimize(p, context) for p, context in zip(programs, contexts, strict=True)]
    assert any(c.rewrites.keys() & {f"raise {name}" for name in Patterns} for c in contexts)
    built = target.backend.compile_all([(p, Options()) for p in ready], target.device)
    for seed, (program, executable) in enumerate(zip(programs, built, strict=True)):
        arrays = arrays_of(program, seed)
        handles = [target.backend.upload(array, target.device) for array in arrays]
        found = [target.backend.download(h, target.device) for h in executable.run(handles)]
        assert_same(found, evaluate(program.main, arrays))


def model_of(name: str, folder: Path) -> Any:
    if name == "gpt2":
        return running.small(folder, n_layer=1)
    path = running.llama_folder(folder, num_hidden_layers=1)
    return ptir.load_model(path, backend=running.REF)


@pytest.mark.slice(1)
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 3)])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_model_of_bare_ops_is_the_model_once_raised(
    tmp_path: Path, name: str, batch: int, length: int
) -> None:
    target = device("c")
    program = recorded_step(model_of(name, tmp_path), batch, length, 16).program
    wanted = optimize(program, PassContext(target.backend, target.device))
    context = PassContext(target.backend, target.device)
    found = optimize(bare(program), context)
    assert form(found) == form(wanted)
    assert {"raise attention", "raise cache_update"} <= context.rewrites.keys()


def layers(count: int) -> Block:
    def body(x: Any, weight: Any) -> Any:
        for _ in range(count):
            x = x + F.silu(F.rms_norm(x, weight, epsilon=1e-6))
        return x

    return bare_block(ptir.capture(body, ptir.spec("f32", 4, 8), ptir.spec("f32", 8)).main)


def test_no_root_is_tried_twice_and_tries_grow_with_the_program() -> None:
    tries = []
    for count in (6, 12, 18):
        block = layers(count)
        before = {p.name: p.tries for p in Patterns.values()}
        graph = taken(block, tuple(Patterns.values()))
        for pattern in Patterns.values():
            roots = sum(node.op in pattern.roots for node in graph.nodes)
            assert pattern.tries - before[pattern.name] <= roots
        tries.append(sum(p.tries - before[p.name] for p in Patterns.values()))
        assert sum(m.name == "silu" for m in graph.taken.values()) == count
    assert tries[2] - tries[1] == tries[1] - tries[0]


def test_patterns_give_named_views_of_ops_and_of_composites() -> None:
    def body(x: Any) -> Any:
        return plain_softmax(x, axis=0) + F.softmax(x, axis=1)

    program = ptir.capture(body, ptir.spec("f32", 3, 4))
    found = Patterns.softmax.matches(program)
    assert sorted(match.axis for match in found) == [0, 1]
    assert all(match.x.type == ptir.spec("f32", 3, 4) for match in found)
    with pytest.raises(AttributeError, match="softmax has no 'weight'"):
        _ = found[0].weight
    with pytest.raises(AttributeError, match="nearest: softmax"):
        _ = Patterns.softmaxx


def test_long_chains_are_looked_at_only_as_far_as_patterns_go() -> None:
    def chain(x: Any, y: Any) -> Any:
        for _ in range(400):
            x = (x + y) * 0.5 - F.exp(-x * y) / (1.0 + x)
        return x * sigmoid(x)

    block = ptir.capture(chain, ptir.spec("f32", 3), ptir.spec("f32", 3)).main
    counts: dict[str, int] = {}
    raised(block, counts)
    assert counts["raise silu"] == 1


def test_regions_are_raised_and_locations_kept() -> None:
    def body(p: Any, x: Any) -> Any:
        return F.cond(p, lambda x: x * sigmoid(x), lambda x: x, x)

    program = ptir.capture(body, ptir.spec("bool"), ptir.spec("f32", 4))
    context = PassContext(running.REF.backend, running.REF.device)
    (cond,) = raise_composites(program, context).main.instructions
    (silu,) = cond.regions[0].instructions
    assert (silu.name, silu.location.functional) == ("silu", "silu")
    assert silu.location.file == __file__


def test_as_written_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    context = PassContext(running.REF.backend, running.REF.device)
    program = ptir.capture(lambda x: x * sigmoid(x), ptir.spec("f32", 4))
    monkeypatch.setenv("PTIR_AS_WRITTEN", "1")
    optimize(program, context)
    assert "raise silu" not in context.rewrites
    monkeypatch.delenv("PTIR_AS_WRITTEN")
    optimize(program, context)
    assert context.rewrites["raise silu"] == 1
