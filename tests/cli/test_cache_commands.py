"""``ptir cache`` and ``ptir warmup``: what they list, remove, compile and refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import units
from ptir.backend.folders import replace_file
from ptir.backend.verdicts import VERDICTS
from ptir.capture.optimized import PROGRAMS
from ptir.capture.plan import PLANS
from ptir.cli.kept_bandwidth import BANDWIDTHS
from ptir.codegen.artifact import binaries, record
from ptir.codegen.schedules import tuned_tiles
from ptir.errors import UsageError
from ptir.passes.remembered import tuning_records_file
from ptir.runtime.prepacked import WEIGHTS
from ptir.runtime.session import capacity_for
from ptir.runtime.steps import chunk_sizes
from ptir.runtime.warmup import warm_up
from ptir.runtime.warmup_jobs import capacities, prompts
from running import REF, Command, command

pytestmark = pytest.mark.turns(2)

__all__ = ["command"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def filled() -> int:
    binaries.BINARIES.write("a", b"x" * 100)
    binaries.BINARIES.write("b", b"y" * 200)
    record.ARTIFACTS.write("c", b"z" * 60)
    PROGRAMS.write("d", b"z" * 60)
    replace_file(WEIGHTS.path("e"), b"z" * 60)
    tuning_records_file().write_text('{"choices": []}')
    VERDICTS.path.write_text('{"trials": {}}')
    BANDWIDTHS.path.write_text('{"bandwidths": {}}')
    tuned_tiles.file().write_text('{"format": 2, "devices": {}}')
    return sum(path.stat().st_size for path in binaries.BINARIES.files())


def test_cache_lists_what_is_there(folder: Path, command: Command) -> None:
    kernels = filled()
    tiles = tuned_tiles.file().stat().st_size
    value = command("cache", "--json").value
    assert (value["path"], value["cleared"]) == (str(folder), False)
    assert value["kinds"] == [
        {"name": "kernels", "files": 2, "bytes": kernels, "limit_bytes": binaries.BINARIES.limit},
        {"name": "recipes", "files": 1, "bytes": 107, "limit_bytes": record.ARTIFACTS.limit},
        {"name": "programs", "files": 1, "bytes": 108, "limit_bytes": PROGRAMS.limit},
        {"name": "weights", "files": 1, "bytes": 60, "limit_bytes": WEIGHTS.limit},
        {"name": "tiles", "files": 1, "bytes": tiles, "limit_bytes": None},
        {"name": "implementations", "files": 1, "bytes": 15, "limit_bytes": None},
        {"name": "tuned", "files": 0, "bytes": 0, "limit_bytes": None},
        {"name": "bandwidth", "files": 1, "bytes": 18, "limit_bytes": None},
        {"name": "flops", "files": 0, "bytes": 0, "limit_bytes": None},
        {"name": "trials", "files": 1, "bytes": 14, "limit_bytes": None},
    ]
    assert "kernels" in command("cache").out


def test_cache_clear_removes_all_of_it_and_nothing_else(folder: Path, command: Command) -> None:
    filled()
    size = sum(kind["bytes"] for kind in command("cache", "--json").value["kinds"])
    foreign = [folder / "kernels" / "notes.txt", folder / "mine"]
    for path in foreign:
        path.write_text("keep")
    assert f"removed 9 files, {units.binary(size)}, from {folder}" in command("cache", "clear").out
    assert sorted(p for p in folder.rglob("*") if p.is_file()) == sorted(foreign)
    assert command("cache", "clear", "--json").value["kinds"][0]["files"] == 0


def test_cache_clear_of_a_kind_leaves_the_others(folder: Path, command: Command) -> None:
    filled()
    before = {kind["name"]: kind["files"] for kind in command("cache", "--json").value["kinds"]}
    done = command("cache", "clear", "weights", "kernels", "weights")
    assert done.out.startswith("removed 3 files of weights, kernels, weights, ")
    after = {kind["name"]: kind["files"] for kind in command("cache", "--json").value["kinds"]}
    assert after == {**before, "weights": 0, "kernels": 0} != before
    listed = command("cache", "list", "programs", "--json").value["kinds"]
    assert [(kind["name"], kind["files"]) for kind in listed] == [("programs", 1)]
    cleared = command("cache", "clear", "programs", "--json").value
    assert (cleared["cleared"], [kind["name"] for kind in cleared["kinds"]]) == (True, ["programs"])


def test_a_kind_that_does_not_exist_clears_nothing(folder: Path, command: Command) -> None:
    filled()
    done = command("cache", "clear", "weights", "kernel")
    assert done.code == 2 and "unknown kind 'kernel' (nearest: kernels" in done.err
    assert len(WEIGHTS.files()) == 1
    assert "leave 'weights' out" in command("cache", "path", "weights").err


def test_the_limit_of_packed_weights_is_what_the_environment_says(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> int:
        (kind,) = command("cache", "list", "weights", "--json").value["kinds"]
        return int(kind["limit_bytes"])

    assert shown() == WEIGHTS.limit == 32 << 30
    monkeypatch.setenv("PTIR_WEIGHTS_LIMIT", "1.5GiB")
    assert shown() == 3 << 29
    assert "1.5 GiB" in command("cache").out
    monkeypatch.setenv("PTIR_WEIGHTS_LIMIT", "much")
    done = command("cache")
    assert done.code == 2 and "PTIR_WEIGHTS_LIMIT=much: is no number of bytes" in done.err


def test_cache_of_a_new_machine_is_empty(folder: Path, command: Command) -> None:
    assert {kind["files"] for kind in command("cache", "--json").value["kinds"]} == {0}
    assert command("cache", "path").out.strip() == str(folder)
    assert command("cache", "path", "--json").value == {"path": str(folder)}
    assert not folder.exists()


@pytest.mark.parametrize("context", [1, 50, 64, 100, 300, 1024, 5000, 9000])
def test_warm_up_covers_every_length(context: int) -> None:
    lengths = range(1, context + 1)
    assert set(capacities(context)) == {capacity_for(length, context) for length in lengths}
    for capacity in capacities(context):
        reachable = {size for n in range(1, capacity + 1) for size, _ in chunk_sizes(n)}
        assert {size for n in prompts(capacity) for size, _ in chunk_sizes(n)} == reachable
        assert max(prompts(capacity)) <= capacity


def test_a_run_after_the_warm_up_compiles_no_program() -> None:
    model = ptir.load_model("random:gpt2-tiny", backend=REF)
    done = warm_up(model)
    assert done.programs > 0
    assert (done.kernel_files_built, done.kernel_files_restored) == (0, 0)
    assert done.capacities == capacities(model.context)
    before = PLANS.compiled
    for length in range(1, model.context, 7):
        for options in ({"temperature": 0.0}, {"temperature": 0.9, "top_k": 3, "seed": 1}):
            model.generate([1] * length, max_tokens=1, **options)
            model.generate([1] * length, max_tokens=min(2, model.context - length), **options)
    assert PLANS.compiled == before


def embed_texts(model: Any) -> None:
    for size in (1, 3, 9):
        model.embed_texts([f"a photo of {number}" for number in range(size)])


def see(model: Any) -> None:
    images = [np.full((40, 30, 3), number, np.uint8) for number in range(5)]
    for size in (1, 2, 5):
        model.embed(images[:size])
        if model.module.classes:
            model.classify(images[:size])


def embed(model: Any) -> None:
    for size in (1, 4, 9):
        model.embed(["no more"] * size)
        model.embed(["so it is said"] * size)


def rank(model: Any) -> None:
    for size in (1, 9):
        model.rerank("who", ["no", "a longer text, though not by much"] * size)


@pytest.mark.parametrize(
    ("preset", "tokens", "sizes", "use"),
    [
        ("resnet-tiny", None, (1, 2, 4, 8), see),
        ("dinov2-tiny", None, (1, 2, 4, 8), see),
        ("clip-tiny", None, (1, 2, 4, 8, 16), embed_texts),
        ("bert-tiny-reranker", 30, (8, 12, 16, 24, 32), rank),
        ("bert-tiny", 12, (8, 12), embed),
    ],
)
def test_no_kind_of_model_compiles_after_its_warm_up(
    preset: str, tokens: int | None, sizes: tuple[int, ...], use: Callable[[Any], None]
) -> None:
    model = ptir.load_model(f"random:{preset}", backend=REF)
    assert warm_up(model, tokens, batch=9).capacities == sizes
    before = PLANS.compiled
    use(model)
    assert PLANS.compiled == before


def test_warm_up_command_says_what_it_did(command: Command) -> None:
    PLANS.clear()
    where = ("--backend", "ref", "--tokens", "20")
    value = command("warmup", "random:gpt2-tiny", *where, "--json").value
    assert value["capacities"] == [64] and value["programs"] > 0
    assert set(value) == {
        *("model", "backend", "device", "capacities", "programs"),
        *("kernel_files_built", "kernel_files_restored", "seconds", "tuned"),
    }
    assert "kernel files built" in command("warmup", "random:gpt2-tiny", *where).out


@pytest.mark.parametrize("tokens", [0, 10_000])
def test_warm_up_refuses_lengths_that_do_not_fit(tokens: int) -> None:
    model = ptir.load_model("random:gpt2-tiny", backend=REF)
    with pytest.raises(UsageError, match=f"{tokens} tokens: must be from 1 to the context"):
        warm_up(model, tokens)


def test_tuning_a_backend_without_sizes_is_refused(folder: Path, command: Command) -> None:
    done = command("warmup", "random:gpt2-tiny", "--tune", "--backend", "ref")
    assert done.code == 2
    assert "--tune: ref:0" in done.err and "has no sizes to choose; leave it out" in done.err
