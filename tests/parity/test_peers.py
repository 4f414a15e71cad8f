"""``--against torch`` with PyTorch itself: every kind of model, and files of other libraries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptir.audio import wav_bytes
from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.cli.eval_options import noise
from ptir.debug import Tolerance
from ptir.models.table import preset
from ptir.params.source import RenamedSource
from ptir.peers.process import library
from ptir.peers.subject import Pair, paired
from ptir.peers.workloads import Input, Traces, trace, validate
from ptir.runtime import Model, SpeechModel, load_model
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.image_model import ImageModel
from ptir.runtime.specs import random_checkpoint, resolve
from ptir.runtime.speech.stepping import random_windows
from running import Command, command

__all__ = ["command"]

pytestmark = pytest.mark.parity

WITHOUT = {
    "demo": set(),
    "random:llama-tiny": set(),
    "random:qwen3-tiny": set(),
    "random:opt-tiny": set(),
    "random:gemma2-tiny": {"embed_tokens"},
    "random:mamba2-tiny": {f"layers.{n}.mixer.conv1d" for n in range(3)},
    "random:resnet-tiny": {"pool", "layer1.0", "features"},
    "random:vit-tiny": {"features"},
    "random:dinov2-tiny": {"features"},
    "random:bert-tiny": {"layers.0.attention", "layers.1.attention"},
    "random:bert-tiny-tagger": {"layers.0.attention", "layers.1.attention", "head"},
    "random:distilbert-tiny": set[str](),
    "random:modernbert-tiny": set[str](),
    "random:whisper-micro": {"decoder"},
}
"""By model the layers for which PyTorch's has no module that computes the same."""
MANY = {"random:mobilenet-v2-tiny": 157, "random:convnext-tiny": 36, "random:clip-tiny": 22}
"""Of models in which many have none, how many layers are compared."""


def given(model: Model) -> Input:
    if isinstance(model, ImageModel):
        return Input("noise", noise(model, 1))
    if isinstance(model, SpeechModel):
        ids = np.array(model.tokens.usual(timestamps=False), np.int32)
        return Input("noise", ids, random_windows(model, 1)[0])
    return Input("ids", np.arange(3, 12, dtype=np.int32))


def assert_right(pair: Pair) -> Traces:
    one = given(pair.model)
    (output,) = validate(pair, [one], Tolerance(), 8)
    assert output.right and output.found.relative <= 1e-5 and output.best in (None, output.rows)
    assert output.greedy is None or output.greedy.same == 8
    found = trace(pair, one, Tolerance())
    assert found.first_wrong is None
    return found


@pytest.mark.parametrize("spec", [*WITHOUT, *MANY])
def test_outputs_tokens_and_layers_are_pytorchs(spec: str) -> None:
    model = load_model(spec, backend="ref", seed=2)
    with paired(model, resolve(spec, seed=2), library("torch"), 1) as pair:
        found = assert_right(pair)
    if spec in MANY:
        assert len(found.rows) == MANY[spec]
    else:
        assert {*found.alone} == WITHOUT[spec]


def written(kind: str, folder: Path) -> Path:
    """Models in files that Transformers does not open."""
    if kind == "GGUF":
        return save_gguf(random_checkpoint("llama-tiny", 4), folder / "model.gguf")
    if kind == "GGUF of an encoder":
        model = random_checkpoint("bert-tiny", 4)
        return save_gguf(model, folder / "model.gguf")
    name = {"timm": "resnet18", "torchvision": "mobilenet-v2-tiny"}[kind]
    model = random_checkpoint(name, 4)
    path = save_folder(model, folder / "model")
    if kind == "timm":
        said: dict[str, Any] = {"architecture": name, "num_classes": 1000}
        (path / "config.json").write_text(json.dumps(said), encoding="utf-8")
    return path


def test_tokens_of_a_window_follow_the_same_rules(tmp_path: Path) -> None:
    """Tokens that are never chosen, or not as the first one."""
    model = random_checkpoint("whisper-micro", 2)
    plain = load_model("random:whisper-micro", backend="ref", seed=2)
    assert isinstance(plain, SpeechModel)
    one = given(plain)
    assert one.features is not None
    heard = plain.window(plain.hear(one.features), one.array.tolist(), timestamps=False)
    first = heard.tokens[0]
    rules = {
        "suppress_tokens": sorted({*range(512)} - {first, 7, 450}),
        "begin_suppress_tokens": [first, 450],
        "eos_token_id": 450,
    }
    path = save_folder(replace(model, generation_config=rules), tmp_path / "model")
    ours = load_model(path, backend="ref")
    with paired(ours, open_checkpoint(path), library("torch"), 1) as pair:
        (row,) = validate(pair, [one], Tolerance(), 30)
    assert row.right and row.greedy is not None
    assert row.greedy.ours == row.greedy.theirs
    assert row.greedy.theirs[:2] == (7, first)


def test_recordings_are_compared_by_their_first_window(tmp_path: Path, command: Command) -> None:
    sound = 0.1 * np.random.default_rng(0).standard_normal(30000)
    (tmp_path / "talk.wav").write_bytes(wav_bytes(sound, 16000))
    options = ("--workload", "validate", "--against", "torch", "--tokens", "451,452,453", "--json")
    value = command("eval", "random:whisper-micro", tmp_path / "talk.wav", *options).value
    (output,) = value["outputs"]
    assert value["right"] and (output["best_agree"], output["best_of"]) == (3, 3)
    assert output["greedy"]["same"] == 32
    arguments = ("--workload", "validate", "--against", "torch", "--truncate")
    done = command("eval", "random:whisper-micro", *arguments)
    assert done.code == 2 and "hears; give recordings" in done.err


@pytest.mark.parametrize("kind", ["GGUF", "GGUF of an encoder", "timm", "torchvision"])
def test_models_in_files_of_others_are_written_for_pytorch(kind: str, tmp_path: Path) -> None:
    path = written(kind, tmp_path)
    model = load_model(path, backend="ref")
    with paired(model, open_checkpoint(path), library("torch"), 1) as pair:
        assert_right(pair)


def test_a_wrong_weight_is_found_in_its_layer() -> None:
    """The witness has another one: what is wrong is told by the first layer that has it."""
    model = load_model("random:llama-tiny", backend="ref")
    checkpoint = swapped(resolve("random:llama-tiny"))
    with paired(model, checkpoint, library("torch"), 1) as pair:
        one = given(model)
        (output,) = validate(pair, [one], Tolerance(), 0)
        found = trace(pair, one, Tolerance())
    assert not output.right
    first = found.first_wrong
    assert first is not None and first.name == "layers.1.mlp.gate_proj"
    assert first.theirs == ("model.layers.1.mlp.gate_proj",)


def swapped(checkpoint: Checkpoint) -> Checkpoint:
    """With the gate and the other factor of one layer exchanged."""
    gate, up = (f"layers.1.mlp.{name}_proj.weight" for name in ("gate", "up"))
    names = {name: name for name in checkpoint.source.names()} | {gate: up, up: gate}
    return replace(checkpoint, source=RenamedSource(checkpoint.source, names))


def test_names_of_tensors_are_those_of_files_and_of_modules(tmp_path: Path) -> None:
    """ViT's modules have other names than its files."""
    from ptir.peers.definitions import SCORE_IMAGES, saved_names

    config = dict(preset("vit-tiny")[1])
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = saved_names(tmp_path, SCORE_IMAGES)
    key = "vit.encoder.layer.1.attention.attention.key.bias"
    assert found[key] == "vit.layers.1.attention.k_proj.bias"
    assert len({*found.values()}) == len(found)


def test_what_pytorch_would_make_up_is_refused(command: Command) -> None:
    done = command("eval", "random:mixtral-tiny", "--workload", "validate", "--against", "torch")
    assert done.code == 1 and "would make them up" in done.err


def test_perplexity_and_accuracy_are_pytorchs(tmp_path: Path, command: Command) -> None:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question: " * 3, encoding="utf-8")
    value = command(*("eval", "demo", text, "--against", "torch", "--window", 16, "--json")).value
    assert abs(value["nll_difference"]) <= 1e-5
    truth = tmp_path / "truth.txt"
    truth.write_text("0\n1\n", encoding="utf-8")
    arguments = ("a dog", "two cats", "--workload", "accuracy", "--truth", truth)
    value = command(
        *("eval", "random:bert-tiny-classifier", *arguments, "--against", "torch", "--json")
    ).value
    assert value["same"] == 2 and value["ours"] == value["theirs"]


@pytest.mark.parametrize(
    "spec", ["demo", "random:mamba2-tiny", "random:vit-tiny", "random:whisper-micro"]
)
def test_speeds_are_measured_on_both_sides(spec: str, command: Command) -> None:
    arguments = ("--workload", "bench", "--against", "torch", "-r", 1, "-n", 20, "--json")
    for row in command("eval", spec, *arguments).value["rows"]:
        assert row["ratios"][0] > 0 and len(row["speeds"]["torch"]) == 1
