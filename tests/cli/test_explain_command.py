"""``ptir explain``: its JSON, its table, and that what ran elsewhere is counted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from click.testing import CliRunner

import ptir
from ptir.cli import explain as command_module
from ptir.cli import show
from ptir.runtime.explain import explain_decode, explain_prefill
from ptir.runtime.session import Session
from running import REF, Command, command

__all__ = ["command"]


def test_json_says_what_was_run_and_counted(command: Command) -> None:
    value = command("explain", "demo", "--position", 8, "-r", 1, "--json").value
    assert (value["step"], value["tokens"], value["position"]) == ("decode", 1, 8)
    assert value["ops_elsewhere"] == 0
    assert value["unaccounted_ops"] == []
    assert value["counted"]["kernels_launched"] > 0
    parts = [part for section in value["sections"] for part in section["parts"]]
    assert all(part["seconds"] > 0 for part in parts)
    total = sum(
        part["moved"]["total"] * max(1, len(section["layers"]))
        for section in value["sections"]
        for part in section["parts"]
    )
    assert total == value["bytes"]["total"]


def test_json_says_where_each_part_comes_from(command: Command) -> None:
    options = ("--position", 8, "-r", 1, "--json", "--dtype", "f32")
    value = command("explain", "demo", *options).value
    (layers,) = (section for section in value["sections"] if section["layers"])
    linear = next(part for part in layers["parts"] if part["name"] == "linear")
    (place,) = linear["locations"]
    assert place == {
        "file": place["file"],
        "line": place["line"],
        "scope": "h.0.attn.c_attn",
        "layer": "h.0",
        "functional": "linear",
        "implementation": "backend",
    }


def test_without_a_terminal_the_table_is_plain_lines(command: Command) -> None:
    out = command("explain", "demo", "--position", 8, "-r", 1).out
    lines = out.splitlines()
    assert lines[0] == "demo f16: decode, one token at position 8, cache of 64"
    assert any(line.split()[:4] == ["6", "×", "h.0", "…"] for line in lines)
    assert "\x1b" not in out
    assert lines[-1].startswith("elsewhere  0 ops;")


def test_prefill_explains_a_prompt(command: Command) -> None:
    out = command("explain", "demo", "--prefill", 20, "-r", 1).out
    assert out.startswith("demo f16: prefill, 32 tokens, cache of 64")


def test_every_run_of_a_prompt_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One behind another would see keys of both, and write behind the end of the cache."""
    begins: list[int] = []
    extend = Session._extend

    def noted(self: Session, *given: Any) -> Any:
        begins.append(int(self._state.positions.max()))
        return extend(self, *given)

    monkeypatch.setattr(Session, "_extend", noted)
    explain_prefill(ptir.load_model("demo", backend=REF), 20, 2)
    assert len(begins) > 3 and set(begins) == {0}


def test_ops_that_ran_elsewhere_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ptir.load_model("demo", backend=REF)
    explain_decode(model, 8, 1)
    (plan,) = model.steps.advance(1, 64).plans
    kind = type(plan.executable)
    run = kind.run

    def falling_back(self: object, inputs: object) -> object:
        REF.backend.stats(REF.device).host_fallback_ops += 3
        return run(self, inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "run", falling_back)
    assert command_module.ops_elsewhere(explain_decode(model, 8, 1)) == 3


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_a_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    console = Console(width=columns, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(show, "_console", lambda err: console)
    report = explain_decode(ptir.load_model("demo", backend=REF), 8, 1)
    with console.capture() as printed:
        console.print(command_module._parts(report, wide=columns >= command_module.WIDE))
    lines = printed.get().splitlines()
    assert max(map(len, lines)) <= columns
    assert not any(line.rstrip().endswith("…") for line in lines if "×" not in line)
    assert any("attention" in line for line in lines)


@pytest.mark.parametrize(
    ("nbytes", "said"), [(0, ""), (12, "12 B"), (3072, "3.1 kB"), (497_767_808, "498 MB")]
)
def test_bytes_are_said_briefly(nbytes: int, said: str) -> None:
    assert command_module.size(nbytes) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(2.5e-5, "25 µs"), (4e-3, "4.00 ms"), (0.0181, "18.1 ms"), (2.0, "2.00 s")],
)
def test_seconds_are_said_briefly(seconds: float, said: str) -> None:
    assert command_module.duration(seconds) == said


def test_help_names_the_step() -> None:
    assert "decode step" in CliRunner().invoke(command_module.command, ["--help"]).output


def test_sharing_is_shown_without_running(command: Command) -> None:
    value = command("explain", "random:gpt2", "--workers", 2, "--json").value
    assert (value["workers"], value["barriers"], value["barriers_per_layer"]) == (2, 25, 2)
    total = sum(value["weight_bytes"])
    assert all(abs(one / total - 0.5) < 0.01 for one in value["weight_bytes"])
    assert abs(total - 4 * 124_439_808) < 0.01 * total  # every weight once, of embeddings a row
    layers = [section for section in value["sections"] if len(section["layers"]) == 11]
    assert [phase["weights"] for phase in layers[0]["phases"]] == [[4732416] * 2, [9452544] * 2]
    assert value["costs"]["barrier_seconds"] == 2e-6


def test_sharing_is_printed_phase_by_phase(command: Command) -> None:
    out = command("explain", "demo", "--workers", 2).out
    lines = out.splitlines()
    assert lines[0] == "demo f16: decode, one token, cache of 128, partitioned among 2"
    assert any("attention" in line and "phase 1" in line for line in lines)
    assert any(line.startswith("barriers") and "2 a layer" in line for line in lines)
    assert any("50.0 | 50.0%" in line for line in lines)


def test_of_many_workers_the_least_and_the_most_shares_are_printed(command: Command) -> None:
    lines = command("explain", "demo", "--workers", 12).out.splitlines()
    assert not any("|" in line for line in lines)
    (weights,) = [line for line in lines if line.startswith("weights")]
    assert re.fullmatch(r"weights +\S+ .B to \S+ .B for each of 12 workers, .* to .*%", weights)


def test_where_nothing_can_be_shared_nothing_is_said(command: Command) -> None:
    value = command("explain", "demo", "--position", 8, "-r", 1, "--json").value
    assert (value["sharing"], value["shared"]) == ("", None)


def test_dear_barriers_show_that_nothing_is_worth_sharing(command: Command) -> None:
    value = command(
        "explain", "demo", "--workers", 2, "--cost", "barrier_seconds=10", "--json"
    ).value
    assert value["barriers"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workers", 2, "--cost", "barriers=1"), "--cost 'barriers=1': write NAME=NUMBER"),
        (("--workers", 2, "--cost", "barrier_seconds=-1"), "a number > 0"),
        (("--cost", "barrier_seconds=1"), "give --workers too"),
        (("--workers", 2, "--prefill", 5000), "5000 tokens do not fit the context"),
    ],
)
def test_what_cannot_be_shared_is_said(
    command: Command, arguments: tuple[object, ...], said: str
) -> None:
    done = command("explain", "demo", *arguments)
    assert done.code == 2
    assert said in done.err


MICRO = "random:whisper-micro"


def parts_of(value: Any, name: str) -> list[Any]:
    return [p for section in value["sections"] for p in section["parts"] if p["name"] == name]


def test_a_decoder_of_speech_attends_to_its_tokens_and_to_what_was_heard(command: Command) -> None:
    given = ("--position", 8, "--batch", 2, "-r", 1, "--json")
    value = command("explain", MICRO, *given).value
    assert (value["step"], value["rows"], value["position"]) == ("decode", 2, 8)
    assert value["ops_elsewhere"] == 0 and value["unaccounted_ops"] == []
    size, text, sound, width = 24, 40, 50, 4
    assert (
        value["cache_bytes"] == 2 * 2 * 2 * size * (text + sound) * width
    )  # rows, layers, k and v
    layers = [section["layers"] for section in value["sections"] if section["layers"]]
    assert layers == [["decoder.layers.0", "decoder.layers.1"]]
    of_text, of_sound = parts_of(value, "attention")
    read = [one["moved"]["cache_read"] for one in (of_text, of_sound)]
    assert read == [2 * 2 * size * n * width for n in (text, sound)]
    assert of_sound["moved"]["cache_written"] == 0
    store = ptir.load_model(MICRO, backend=REF).store
    decoder = [name for name in store.source.names() if name.startswith("decoder.")]
    assert 0 < value["bytes"]["weights"] < sum(store.type(name).nbytes for name in decoder)


def test_an_encoder_of_speech_is_explained_by_itself(command: Command) -> None:
    value = command("explain", MICRO, "--encoder", "--batch", 3, "-r", 1, "--json").value
    assert (value["step"], value["rows"], value["cache_capacity"]) == ("windows", 3, 0)
    layers = [section["layers"] for section in value["sections"] if section["layers"]]
    assert layers == [["encoder.layers.0", "encoder.layers.1"]]
    assert len(parts_of(value, "conv2d")) == 2
    lines = command("explain", MICRO, "--encoder", "-r", 1).out.splitlines()
    assert lines[0] == f"{MICRO} f32: 1 window of speech"


def test_a_prompt_of_speech_is_explained_in_its_width(command: Command) -> None:
    value = command("explain", MICRO, "--prefill", 9, "-r", 1, "--json").value
    assert (value["step"], value["tokens"]) == ("prefill", 16)


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((MICRO, "--position", 40), "41 tokens do not fit the context of 40"),
        ((MICRO, "--prefill", 41), "41 tokens do not fit the context of 40"),
        (("demo", "--encoder"), "--encoder is for models of speech"),
    ],
)
def test_steps_that_a_model_has_not_are_refused(
    command: Command, arguments: tuple[object, ...], said: str
) -> None:
    done = command("explain", *arguments)
    assert done.code == 2 and said in done.err


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    ("spec", "more", "stored"),
    [
        ("random:resnet-tiny", (), "bn1.running_var"),
        (MICRO, ("--position", 8), "decoder.layers.0.self_attn.q_proj.weight"),
        (MICRO, ("--encoder",), "encoder.layers.0.self_attn.q_proj.weight"),
    ],
)
def test_what_is_computed_once_is_told_of_every_kind(
    spec: str, more: tuple[object, ...], stored: str, command: Command
) -> None:
    folded = command("explain", spec, "--folded", "--json", *more).value
    assert stored in {name for one in folded for name in one["of"]}
