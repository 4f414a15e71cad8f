"""What the benchmarks compare and how: verdicts, names of weights, workers. No time is asserted."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest

import ptir
from devices import device
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


def test_contexts_are_as_long_as_asked_for(measuring: Any) -> None:
    from ptir.models import table

    ours = measuring("ours")
    assert ours.preset_of(1024) == "gpt2"
    _, config = table.preset(ours.preset_of(4096))
    assert config == {**table.preset("gpt2")[1], "n_positions": 4096}


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
