"""What the benchmarks compare and how: verdicts, names of weights, workers. No time is asserted."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from devices import device
from ptir import events
from ptir.backend import registry
from running import REF

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of the benchmarks' package by name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return lambda name: importlib.import_module(f"measuring.{name}")


def test_a_bar_is_met_from_the_right_side(measuring: Any) -> None:
    bars = measuring("bars")
    share = [bars.Row("f32", "share", [s], "%", 0.78).verdict for s in (0.77, 0.78, 0.9)]
    assert share == ["short", "pass", "pass"]
    cost = [bars.Row("f32", "cost", [c], "us", 3.0, True).verdict for c in (2.9, 3.0, 3.1)]
    assert cost == ["pass", "pass", "short"]
    assert bars.Row("f32", "speed", [1.0]).verdict == ""


def test_the_table_says_medians_spreads_and_bars(measuring: Any) -> None:
    bars = measuring("bars")
    rows = [
        bars.Row("f32", "decode", [100.0, 90.0, 95.0], "tok/s"),
        bars.Row("f32", "share", [0.5, 0.9, 0.79], "%", 0.78),
    ]
    _, decode, share = bars.table(rows).splitlines()
    assert decode.split() == ["f32", "decode", "95.0", "tok/s", "90.0", "to", "100.0", "tok/s"]
    assert share.split() == ["share", "79%", "50%", "to", "90%", ">=", "78%", "pass"]


def test_every_format_has_every_bar(measuring: Any) -> None:
    bars = measuring("bars")
    for wanted in bars.BARS.values():
        for table in (wanted.share, wanted.decode, wanted.prefill):
            assert set(table) == set(bars.FORMATS)
    assert set(measuring("llama").FORMATS) == set(bars.FORMATS)
    assert bars.BARS["three-quarters"].share["f32"] == pytest.approx(0.855)


def test_every_parameter_of_gpt2_has_a_name_of_its_own_for_llama_cpp(measuring: Any) -> None:
    names = list(ptir.load_model("random:gpt2-tiny", backend=REF).checkpoint.source.names())
    found = [measuring("llama").gguf_name(name) for name in names]
    assert len(set(found)) == len(names)
    assert measuring("llama").gguf_name("h.11.mlp.c_proj.bias") == "blk.11.ffn_down.bias"
    assert measuring("llama").gguf_name("wte.weight") == "token_embd.weight"


def test_a_worker_answers_calls_and_its_end_is_an_error(measuring: Any) -> None:
    workers = measuring("workers")
    worker = workers.Worker("ptir", backend="ref", dtype="f32", quant=None)
    assert worker.call("prefill", [1, 2, 3]) > 0
    with pytest.raises(RuntimeError, match=r"the ptir worker ended with code \d+: see above"):
        worker.call("no_such_figure")


def test_unhooked_runs_look_for_nobody_and_compute_the_same(measuring: Any) -> None:
    peer = measuring("unhooked").Unhooked("random:gpt2-tiny", "ref", "f32", None)
    heard: list[events.Event] = []
    remove = events.subscribe(heard.append)
    try:
        assert peer.decode(2, False) > 0  # it starts the sequence, too
        assert heard == []
        assert peer.decode(2, True) > 0
        assert sum(isinstance(one, events.ProgramRun) for one in heard) == 2
    finally:
        remove()
    assert peer.looks(True) > 0 and peer.looks(False) > 0


BUSY = "import threading; print('\"ready\"', flush=True); threading.Event().wait()"
"""A worker in the middle of something that takes for ever."""


@pytest.fixture
def busy(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of the workers that are started, which answer no call."""
    workers, started = measuring("workers"), list[subprocess.Popen[str]]()
    usual = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
        started.append(usual([sys.executable, "-c", BUSY], **options))
        return started[-1]

    monkeypatch.setattr(workers.subprocess, "Popen", start)
    yield started
    for process in started:
        process.kill()
        with process:  # closes its pipes and waits
            pass


@pytest.mark.parametrize(("section", "count"), [("model_rows", 2), ("compile_rows", 1)])
def test_an_exception_leaves_no_worker_running(
    section: str,
    count: int,
    measuring: Any,
    busy: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    regression, workers = importlib.import_module("regression"), measuring("workers")
    given = argparse.Namespace(threads=1, rounds=1, formats=["f32"], backend="ref")
    arguments = ("f32", given) if section == "model_rows" else (given,)

    def interrupted(worker: Any, method: str, *arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers.Worker, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(regression, section)(*arguments, {"before": {}, "now": {}})
    assert [process.poll() is None for process in busy] == [False] * count


def test_a_worker_that_is_interrupted_while_it_starts_does_not_go_on(
    measuring: Any, busy: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = measuring("workers")

    def interrupted(worker: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers.Worker, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        workers.Worker("ptir")
    assert [process.poll() is None for process in busy] == [False]


def test_a_tree_that_takes_longer_than_before_is_short(measuring: Any) -> None:
    regression = importlib.import_module("regression")
    slower = regression.row("f32", "decoding", {"before": [0.96], "now": [1.0]})
    faster = regression.row("f32", "decoding", {"before": [1.0], "now": [0.5]})
    assert (slower.verdict, faster.verdict, faster.median) == ("short", "pass", 2.0)


def test_a_commit_that_there_is_not_is_said_by_git(measuring: Any) -> None:
    with pytest.raises(
        SystemExit, match=r"worktree add .* no-such-commit: fatal: .*no-such-commit"
    ):
        measuring("trees").checked_out("no-such-commit").__enter__()


def test_a_tree_is_measured_by_its_own_packages_or_not_at_all(
    measuring: Any, tmp_path: Path
) -> None:
    trees = measuring("trees")
    packages = [tmp_path / f"packages/of-{name}/src/{name}" for name in trees.PACKAGES]
    for package in packages:
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    sources = sorted(str(package.parent) for package in packages)
    assert trees.importing(tmp_path) == {
        "PYTHONPATH": os.pathsep.join(sources),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(tmp_path / "build" / "bytecode"),
    }
    for package in packages:  # this tree's own is found in its place
        (package / "__init__.py").unlink()
        words = rf"{package.name} is imported from .*, and not from "
        with pytest.raises(RuntimeError, match=words):
            trees.importing(tmp_path)
        (package / "__init__.py").touch()


def test_others_take_nothing_less_than_nothing(
    measuring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = measuring("others")
    clock, busy, own = iter((0.0, 2.0)), iter((10.0, 13.0)), iter((1.0, 2.0))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(module, "_all", lambda: next(busy))
    monkeypatch.setattr(module, "_own", lambda: next(own))
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    assert module.Others().share() == 0.5  # 3 seconds of 4, one of them our own


def test_ticks_say_nothing_of_a_moment(measuring: Any) -> None:
    assert measuring("others").Others().share() is None


def test_works_alternate_between_probes(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    probing, order = measuring("probing"), list[str]()

    class Probe:
        def bandwidth(self) -> float:
            order.append("probe")
            return 100.0 * len(order)

    monkeypatch.setattr(probing, "probe", lambda threads: Probe())
    works = {n: lambda n=n: order.append(n) or float(ord(n)) for n in "ab"}  # type: ignore[misc]
    found = probing.in_pieces(works, 1)
    assert order == ["probe", *["a", "probe", "b", "probe"] * probing.PIECES]
    assert found["a"][0] == ord("a") * probing.PIECES
    between = [100 * (1 + 4 * n + 1) for n in range(probing.PIECES)]  # its number between probes
    assert found["a"][1] == pytest.approx(sum(between) / probing.PIECES)


def test_a_worker_has_threads_and_a_cache_of_its_own(measuring: Any, tmp_path: Path) -> None:
    device("c")
    workers = measuring("workers")
    given = {"backend": "c", "dtype": "f32", "quant": None}
    worker = workers.Worker("steps", 1, str(tmp_path), **given)
    capturing, compiling = worker.call("compiled", 1)
    worker.close()
    assert 0 < capturing < compiling
    recipes = list((tmp_path / "recipes").iterdir())
    assert len(recipes) == 2, "a small program in front, and the step, whose weights are not made"


def test_contexts_are_as_long_as_asked_for(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ptir.models import table

    ours, presets = measuring("ours"), table.preset("gpt2")[0].presets
    monkeypatch.setitem(presets, "gpt2-4096", {})  # so that afterwards there is none again
    assert ours.preset_of(1024) == "gpt2"
    _, config = table.preset(ours.preset_of(4096))
    assert config == {**table.preset("gpt2")[1], "n_positions": 4096}


def test_what_a_gpu_is_to_prove_is_measured_on_any_backend(
    measuring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, name = measuring("gpu"), "random:gpt2-tiny"
    monkeypatch.setattr(gpu, "target", lambda: REF)
    for what, small in (("PROMPT", 12), ("STEPS", 3), ("ROUNDS", 2)):
        monkeypatch.setattr(gpu, what, small)
    found = gpu.model([name, "dtype=bf16", "cache_dtype=bf16", "quant=int4"])
    for what in ("prefill_tokens_per_second", "decode_tokens_per_second"):
        assert len(found[what]) == 2 and min(found[what]) > 0
    assert found["host_seconds_per_step"] > 0


def test_weights_of_one_type_are_one_array(measuring: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = measuring("gpu")
    monkeypatch.setattr(gpu, "target", lambda: REF)
    made = gpu.loaded(["random:gpt2-tiny", "dtype=bf16"])
    names = list(made.store.source.names())
    types = {made.store.type(name) for name in names}
    assert len({id(made.store.source.read(name)) for name in names}) == len(types) < len(names)
    made.generate([1, 2], max_tokens=1, temperature=0.0)


def test_the_table_of_a_gpu_says_what_is_missing(measuring: Any, tmp_path: Path) -> None:
    summary = measuring("summary").summary
    speeds = {f"{what}_tokens_per_second": [10.0, 30.0, 20.0] for what in ("decode", "prefill")}
    ours = speeds | {
        "weight_bytes_per_step": 5,
        "host_seconds_per_step": 1e-5,
        "launches_per_step": 1.5,
    }
    given = {
        "device": {"copy_bytes_per_second": 1000.0},
        "ours-gpt2-bf16": ours,
        "ours-gpt2-bf16.status": {"status": 0, "seconds": 1},
        "ours-llama-8b-int4": ours,
        "theirs-gpt2": {"decode_tokens_per_second": [10.0]},
    }
    for name, part in given.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    found = summary(tmp_path)
    row = found["table"]["ours-gpt2-bf16"]
    assert row["share_of_copy_bandwidth"] == pytest.approx(0.1)
    assert (row["decode_over_theirs"], row["prefill_over_theirs"]) == (2.0, None)
    assert found["table"]["ours-llama-8b-int4"]["decode_over_theirs"] is None
    assert found["conformance"] is None
    rows = [{"kind": "header"}, {"kind": "footer", "verdict": "conformant"}]
    report = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "conformance.json").write_text(report)
    assert summary(tmp_path)["conformance"]["verdict"] == "conformant"
    (tmp_path / "conformance.json").write_text(report.splitlines()[0])
    assert summary(tmp_path)["conformance"] is None


@pytest.mark.skipif(shutil.which("bash") is None, reason="it is a script of bash")
@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (["made"], 3, "device: status 3"),
        (["made", "gpt2"], 3, "device: status 3"),
        (["made", "gpt3"], 2, "no part is called gpt3: device parity"),
    ],
)
def test_the_proofs_of_a_gpu_end_where_there_is_none(
    tmp_path: Path, given: list[str], status: int, said: str
) -> None:
    """From any folder, with an interpreter by its path, and nothing measured."""
    if {one.name: one.status for one in registry.status_table()}.get("cupy") == "ok":
        pytest.skip("there is a GPU")
    made = subprocess.run(
        ["bash", str(FOLDER / "gpu.sh"), *given],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == status, made.stderr
    assert said in made.stdout + made.stderr
    assert not list(tmp_path.glob("made/ours-*")) and not (FOLDER / "gpu-proofs").exists()


def test_every_section_measures_something(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    speed = importlib.import_module("speed")
    given = argparse.Namespace(formats=["f32", "int4"], threads=[1, 2])
    counts = {name: len(list(speed.parts(given, name, FOLDER))) for name in speed.SECTIONS}
    assert counts == {
        "models": 4,
        "prompts": 2,
        "contexts": 4,
        "compile": 2,
        "rows": 1,
        "cold": 1,
        "demo": 1,
        "convolutions": 2,
    }


def test_results_say_where_and_with_what_they_were_measured(
    measuring: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = measuring("origin")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A\nmodel name\t: B\n")
    monkeypatch.setattr(module, "INFORMATION", tmp_path / "cpuinfo")
    given = argparse.Namespace(llama=False, backend="c", threads=[1, 2], rounds=3)
    found = module.origin(given)
    assert (found["processor"], found["backend"], found["threads"]) == ("A", "c", [1, 2])
    version = (FOLDER.parent / "VERSION").read_text(encoding="utf-8").split("==")[1].strip()
    assert found["versions"]["ptir-core"] == version
    assert "llama-cpp-python" not in found["versions"]
    monkeypatch.setattr(module, "INFORMATION", tmp_path / "none")
    assert module.processor(), "where the system tells no name, its machine's"


def test_llama_cpp_has_its_version_where_it_is_measured(
    measuring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = measuring("origin")
    one = type("One", (), {"metadata": {"Name": "llama_cpp_python"}, "version": "0.3"})
    monkeypatch.setattr(module.metadata, "distributions", lambda: [one])
    assert module.versions(True) == {"llama-cpp-python": "0.3"}
    assert module.versions(False) == {}


def test_page_of_overrides_says_what_won(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    stored = importlib.import_module("alternatives").wins(FOLDER / "results")
    page = FOLDER.parent / "docs" / "guides" / "overrides.md"
    assert stored.count("\n") > 5 and stored in page.read_text(encoding="utf-8")


def test_alternatives_are_compared_with_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    alternatives = importlib.import_module("alternatives")
    case = next(one for one in alternatives.CASES if one.what == "64 x 1000 along axis 1")
    monkeypatch.setattr(alternatives.timing, "ROUNDS", 3)  # restored behind the test
    rows = list(alternatives.measure(case, REF, 3))
    assert [row.implementation for row in rows] == ["backend", "portable", "online", "split"]
    first = rows[0]
    assert first.default and first.low == first.ratio == first.high == 1
    assert all(0 < row.low <= row.ratio <= row.high for row in rows)
    shown = alternatives.table(rows).splitlines()
    assert shown[2].startswith("| softmax | 64 x 1000 along axis 1 | backend ")


def test_results_in_bytes_are_compared_by_what_is_done_with_them(measuring: Any) -> None:
    rounded = measuring("rounded")
    exact = np.float32([[1, 2, 4], [3, 1, 0]])
    off = rounded.scores_agree(exact, exact + np.float32([[0, 0, -3], [0, 0, 0.5]]))
    assert off == {"off": 0.75, "same best": 0.5}
    near = np.float32([[9, 3, 2, 1], [3, 9, 2, 1], [3, 2, 9, 1], [3, 2, 1, 9]])
    other = near.copy()
    other[0, 1:] = 1, 2, 3  # of the first row's three pairs none keeps its order
    assert rounded.rankings_agree(near, near) == {"same best": 1.0, "same order": 1.0}
    assert rounded.rankings_agree(near, other) == {"same best": 0.75, "same order": 0.75}
    vectors = np.eye(3, dtype=np.float32)
    assert rounded.vectors_agree(vectors, vectors)["least cosine"] == 1.0


def test_rows_in_bytes_are_compared_with_the_exact_one(measuring: Any) -> None:
    rounded, scores = measuring("rounded"), np.float32([[1, 2]])
    calls = {"ptir": lambda: scores, "torch": lambda: scores, "int8: ptir": lambda: scores * 0.5}
    found = dict(rounded.agreements(calls, "ptir", rounded.scores_agree))
    assert found == {"int8: ptir": {"off": 0.5, "same best": 1.0}}
