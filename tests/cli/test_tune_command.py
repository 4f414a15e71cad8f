"""``ptir tune`` and ``ptir overrides``: what is stored, what the next run makes of it, its loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from devices import device
from ptir import events
from ptir.capture.plan import PLANS
from ptir.ir.program import Program
from ptir.passes import timing
from ptir.passes.context import PassContext
from ptir.passes.remembered import tuning_records
from ptir.passes.tuned import forget_timed, tuned_file, tuned_models, tuned_overrides
from ptir.runtime.tune import tune
from running import REF, Command, command

__all__ = ["command"]

pytestmark = pytest.mark.turns(3)

MODEL = "random:gpt2-tiny"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    PLANS.clear()
    return tmp_path


@pytest.fixture
def online_wins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A clock by which everything called online is fast; what is timed, by the first op."""
    timed: list[str] = []

    def run_times(
        candidates: Mapping[str, Program], context: PassContext
    ) -> tuple[dict[str, list[float]], dict[str, str]]:
        timed.extend(one.main.instructions[0].name for one in candidates.values())
        seconds = {name: 1.0 if name == "online" else 2.0 for name in candidates}
        return {name: [each] * 3 for name, each in seconds.items()}, {}

    monkeypatch.setattr(timing, "run_times", run_times)
    return timed


def test_next_run_uses_what_was_tuned_and_explain_says_so(
    command: Command, online_wins: list[str]
) -> None:
    plain = ptir.load_model(MODEL, backend=REF)
    assert plain.overrides == ()
    wanted = plain.forward([1, 2, 3])
    done = command("tune", MODEL, "--tokens", 64, "--json").value
    assert {one["functional"] for one in done["chosen"]} >= {"linear", "attention", "layer_norm"}
    decided = {one["functional"] for one in done["records"] if one["decided"]}
    assert decided == {"attention", "softmax"} and done["left"] == {}
    tuned = ptir.load_model(MODEL, backend=REF)
    assert [str(one) for one in tuned.overrides] == [
        "attention[backend=ref:0]=tuned",
        "softmax[backend=ref:0]=tuned",
    ]
    np.testing.assert_allclose(tuned.forward([1, 2, 3]), wanted, atol=1e-5)
    said = command("explain", MODEL, "--position", 8, "-r", 1, "--json").value["implementations"]
    ours = [one for one in said if one["functional"] == "attention"]
    assert [one["implementation"] for one in ours] == ["online"]
    assert ours[0]["reason"].startswith("attention[backend=ref:0]=tuned, ptir tune ")
    before = len(online_wins)
    command("tune", MODEL, "--tokens", 64)
    assert len(online_wins) == before


def test_the_model_that_was_tuned_follows_at_once_and_what_was_compiled_by_it_is_made_anew(
    online_wins: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ptir.load_model(MODEL, backend=REF)
    assert chosen_for(model, "attention") == {"backend"}
    tune(model, 64)
    assert [one.target for one in model.overrides] == [
        "attention[backend=ref:0]",
        "softmax[backend=ref:0]",
    ]
    assert chosen_for(model, "attention") == {"online"}
    # The same override means another implementation from now on.
    forget_timed("attention")
    monkeypatch.setattr(timing, "run_times", split_wins)
    tune(model, 64)
    assert chosen_for(model, "attention") == {"split"}
    forget_timed("attention")
    assert chosen_for(model, "attention") == {"backend"}


def split_wins(
    candidates: Mapping[str, Program], context: PassContext
) -> tuple[dict[str, list[float]], dict[str, str]]:
    return {name: [1.0 if name == "split" else 2.0] * 3 for name in candidates}, {}


def chosen_for(model: Any, functional: str) -> set[str]:
    """The implementations of a functional in what a run of the model runs now."""
    seen: list[events.Event] = []
    remove = events.subscribe(seen.append)
    try:
        model.generate([1, 2, 3], max_tokens=2, temperature=0, ignore_eos=True)
    finally:
        remove()
    programs = [one.program for one in seen if isinstance(one, events.ProgramRun)]
    found = (i.location for program in programs for i in program.main.instructions)
    return {one.implementation for one in found if one.functional == functional}


def test_what_is_asked_for_is_neither_timed_nor_followed(
    command: Command, online_wins: list[str]
) -> None:
    given = ("--override", "attention=force=portable")
    done = command("tune", MODEL, "--tokens", 64, "--json", *given).value
    assert "attention" not in {one["functional"] for one in done["records"]}
    command("tune", MODEL, "--tokens", 64)
    said = command("overrides", MODEL, "--json", *given).value
    asked = {one["target"]: one for one in said["in_force"]}
    assert asked["attention"]["origin"] == "command line"
    assert asked["softmax[backend=ref:0]"]["policy"] == "tuned"


def test_other_kernels_are_not_bound_by_what_was_tuned(
    command: Command, online_wins: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command("tune", MODEL, "--tokens", 64)
    monkeypatch.setattr(type(REF.backend), "cache_identity", lambda self, device: "newer")
    said = command("explain", MODEL, "--position", 8, "-r", 1, "--json").value["implementations"]
    assert {one["implementation"] for one in said} <= {"backend", "portable"}


def test_choice_that_holds_weights_twice_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding reads rows of weights, prompts panels: both would be resident."""

    def run_times(candidates, context):
        return {name: [1.0 if name == "rows" else 2.0] * 3 for name in candidates}, {}

    monkeypatch.setattr(timing, "run_times", run_times)
    target = device("c")
    done = tune(ptir.load_model("random:llama-tiny", backend=target), 64)
    assert {one.functional for one in done.records if one.decided} == {"linear"}
    assert done.left["linear"] > 0
    assert ptir.load_model("random:llama-tiny", backend=target).overrides == ()


def test_reset_forgets_one_functional_or_all(command: Command, online_wins: list[str]) -> None:
    command("tune", MODEL, "--tokens", 64)
    assert command("overrides", "--reset", "softmax").out.startswith("forgot ")
    left = {one.functional for one in tuning_records()}
    assert "softmax" not in left and "attention" in left
    assert command("overrides", "--reset", "softmx").code == 2
    command("overrides", "--reset", "all")
    assert tuning_records() == [] and tuned_models() == {}


ENTRIES: tuple[Any, ...] = (3, {"c:0": "linear"}, {"c:0": [1]}, {"c:0": {"linear": 1}})


@pytest.mark.parametrize(
    "text", ["[", *(json.dumps({"format": 2, "models": {"a": entry}}) for entry in ENTRIES)]
)
def test_damaged_list_of_tuned_models_is_set_aside(folder: Path, text: str) -> None:
    path = folder / "tuned.json"
    path.write_text(text)
    with pytest.warns(UserWarning, match=r"tuned\.json: not a list .* is tuned\.json\.damaged now"):
        assert tuned_overrides("a") == ()
    assert not path.exists() and (folder / "tuned.json.damaged").read_text() == text
    path.write_text(json.dumps({"format": 9, "models": 0}))
    assert tuned_overrides("a") == ()


@pytest.mark.filterwarnings("default")
def test_list_of_overrides_sets_a_damaged_list_of_tuned_models_aside(command: Command) -> None:
    tuned_file().parent.mkdir()
    tuned_file().write_text("[")
    done = command("overrides", "--json")
    assert (done.code, "it is tuned.json.damaged now" in done.err) == (0, True), done.err
    assert done.value["tuned"] == {}
    assert tuned_file().with_name("tuned.json.damaged").read_text() == "["


def test_nothing_is_timed_that_could_not_be_remembered(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, online_wins: list[str]
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("PTIR_CACHE_DIR", str(folder / "file" / "cache"))
    done = command("tune", MODEL, "--tokens", 64)
    assert (done.code, online_wins) == (2, [])
    assert "cannot be written (Not a directory), and what is timed would be lost" in done.err


def test_unknown_backends_of_conditions_are_refused_where_they_are_typed(command: Command) -> None:
    done = command("overrides", "--override", "softmax[backend=opencll]=default")
    assert done.code == 2 and "unknown backend 'opencll'; known: ref" in done.err


TUNED = {
    "random:whisper-micro": (("--position", 8), {"attention", "softmax"}),
    "random:bert-tiny": (("--prefill", 9), {"attention"}),
}


@pytest.mark.slice(1)
@pytest.mark.parametrize("spec", TUNED)
def test_encoders_and_models_of_speech_follow_what_was_timed(
    spec: str, command: Command, online_wins: list[str]
) -> None:
    more, decided = TUNED[spec]
    done = command("tune", spec, "--tokens", 16, "--json").value
    assert {one["functional"] for one in done["records"] if one["decided"]} >= decided
    said = command("explain", spec, "-r", 1, "--json", *more).value["implementations"]
    assert {one["implementation"] for one in said if one["functional"] == "attention"} == {"online"}
    before = len(online_wins)
    command("tune", spec, "--tokens", 16)
    assert len(online_wins) == before


def test_all_programs_of_a_transcription_are_tuned(online_wins: list[str]) -> None:
    """What a run calls is what was timed: nothing in it falls back to the default."""
    model = ptir.load_model("random:whisper-micro", backend=REF)
    tune(model, batch=2)
    seen: list[events.Event] = []
    remove = events.subscribe(seen.append)
    try:
        sounds = [np.full(size, 0.1, np.float32) for size in (16000, 9000)]
        model.transcribe_batch(sounds, batch=2, temperature=0, language="en")  # type: ignore[attr-defined]
    finally:
        remove()
    programs = [one.program for one in seen if isinstance(one, events.ProgramRun)]
    found = [i.location for program in programs for i in program.main.instructions]
    attention = [one.implementation for one in found if one.functional == "attention"]
    assert {*attention} == {"online"}


def test_programs_of_an_encoder_have_the_shapes_of_its_batches() -> None:
    from ptir.runtime.batches import batches
    from ptir.runtime.kinds import kind_of

    model = ptir.load_model("random:bert-tiny", backend=REF)
    programs = [one.program for one in kind_of(model).programs(model, 20, 3)]
    shapes = {program.inputs[0].shape for program in programs}
    assert len(shapes) == len(programs)
    for sizes in ([3], [20], [9, 20, 14], [1, 1, 20]):
        assert {(one.rows, one.length) for one in batches(sizes, model.context)} <= shapes
