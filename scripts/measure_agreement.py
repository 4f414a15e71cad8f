"""Measures how far every family of models is off from Transformers, on each backend.

``python scripts/measure_agreement.py [MODEL_TYPE ...]`` writes docs/results/models.json, from
which scripts/generate_docs.py makes docs/models.md; families that are not named keep their rows.
Needs ``pip install -r requirements/parity.txt``. A family's tiny preset is built by Transformers
with random weights, none of them left at 0 or 1, and opened by ptir. Speed is measured by
scripts/measure_speed.py.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from measure_speed import keep, processor

import ptir
from ptir.models import ModelDefinition
from ptir.models.table import HEARS, MODELS, READS, load_modules
from ptir.runtime.speech.tokens import SpeechTokens

FILE: Final = Path(__file__).resolve().parent.parent / "docs" / "results" / "models.json"
BACKENDS: Final = ("ref", "c", "opencl")
IMAGES: Final = (2, 65, 93, 3)
"""Prepared images whose scores are compared, of a model that takes them."""
PADDING: Final = 1
"""The token that stands behind shorter texts, as RoBERTa has it."""
PROMPT, NEW = 40, 64
"""Tokens whose logits are compared, and greedy ones after them."""


def tiny(definition: ModelDefinition) -> tuple[str, Mapping[str, Any]]:
    """The name and configuration of a family's smallest preset."""
    rows = definition.presets.items()
    found = [row for row in rows if row[0].endswith("-micro")]  # where NAME-tiny is a real model
    found = found or [row for row in rows if row[0].endswith("-tiny")]
    if len(found) != 1:
        raise SystemExit(f"{definition.model_type}: one preset must be called NAME-tiny")
    return found[0]


def theirs(config: Mapping[str, Any], folder: Path) -> Any:
    """Transformers' model of a configuration, saved in a folder too."""
    made = transformers.AutoConfig.for_model(**{**config, "pad_token_id": 0})
    torch.manual_seed(4)
    model = transformers.AutoModelForCausalLM.from_config(
        made, attn_implementation="eager", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        kept = [row for row in model.named_buffers() if row[0] in model.state_dict()]
        for name, value in (*model.named_parameters(), *kept):
            scales = value.ndim == 1 and ("norm" in name or name.endswith("layer_scalar"))
            value.normal_(float(scales), 0.2)
    model.save_pretrained(folder)
    return model


def greedy(model: Any, prompt: list[int], made: list[int]) -> list[int]:
    """What Transformers chooses in the place of each token ``made`` behind a prompt.

    They are its greedy tokens where all are the same. It sees the whole text at once, so rotations
    that depend on the length (longrope) are those of the whole text, as they are here.
    """
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *made]])).logits[0, len(prompt) - 1 : -1]
    found: list[int] = logits.argmax(-1).tolist()
    return found


def agreement(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By backend: how far logits are off, over the greatest, and whether tokens are equal."""
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = theirs(config, Path(folder))
        prompt = np.random.default_rng(0).integers(0, config["vocab_size"], PROMPT).tolist()
        with torch.no_grad():
            wanted = model(torch.tensor([prompt])).logits[0].numpy()
        for backend in BACKENDS:
            ours = ptir.load_model(folder, backend=backend)
            found = ours.forward(prompt)
            off = float(np.abs(found - wanted).max() / np.abs(wanted).max())
            made = ours.generate(prompt, max_tokens=NEW, ignore_eos=True).token_ids
            rows[backend] = {"off": off, "same_tokens": made == greedy(model, prompt, made)}
    return rows


def image_agreement(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By backend: how far scores, or features of CLIP, are off, over the greatest."""
    kind = str(config["model_type"])
    made = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(4)
    family = (
        transformers.AutoModel if kind == "clip" else transformers.AutoModelForImageClassification
    )
    model = family.from_config(made, dtype=torch.float32).eval()
    with torch.no_grad():
        kept = [row for row in model.named_buffers() if row[1].is_floating_point()]
        for name, value in (*model.named_parameters(), *kept):
            if name.endswith("running_var"):
                value.uniform_(0.5, 2.0)
            else:
                scale = float("norm" in name and name.endswith("weight"))
                fan_in = value[0].numel() if value.ndim > 1 else 1
                value.normal_(scale, 0.3 if value.ndim < 2 else fan_in**-0.5)
    pixels = np.random.default_rng(0).standard_normal(IMAGES, np.float32)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        wanted = _seen(model, kind, torch.from_numpy(pixels).permute(0, 3, 1, 2)).numpy()
        for backend in BACKENDS:
            found = ptir.load_model(folder, backend=backend).forward(pixels)
            rows[backend] = {"off": float(np.abs(found - wanted).max() / np.abs(wanted).max())}
    return rows


def text_agreement(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By backend: how far the vectors of a text's tokens are off, over the greatest."""
    torch.manual_seed(4)
    made = transformers.AutoConfig.for_model(**{**config, "pad_token_id": PADDING})
    model = transformers.AutoModel.from_config(made, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            scale = float("norm" in name.lower() and name.endswith("weight") and value.ndim == 1)
            value.normal_(scale, 0.3 if value.ndim < 2 else value[0].numel() ** -0.5)
    text = np.random.default_rng(0).integers(2, config["vocab_size"], PROMPT).tolist()
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        wanted = model(torch.tensor([text])).last_hidden_state[0].numpy()
        for backend in BACKENDS:
            found = ptir.load_model(folder, backend=backend).forward(text)
            rows[backend] = {"off": float(np.abs(found - wanted).max() / np.abs(wanted).max())}
    return rows


def speech_agreement(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By backend: how far logits are off, over the greatest, and whether a window's text is equal.

    The text is that of the likeliest tokens, up to the end of the decoder's positions.
    """
    torch.manual_seed(4)
    made = transformers.AutoConfig.for_model(**{**config, "begin_suppress_tokens": None})
    model = transformers.WhisperForConditionalGeneration(made).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            scale = float("norm" in name and name.endswith("weight"))
            value.normal_(scale, 0.3 if value.ndim < 2 else 1.3 * value[0].numel() ** -0.5)
    tokens, rules = SpeechTokens.of(config, {}), model.generation_config
    rules.no_timestamps_token_id, rules.is_multilingual = tokens.no_stamps, True
    rules.lang_to_id = {f"<|{name}|>": number for name, number in tokens.languages.items()}
    rules.task_to_id, rules.max_length = dict(tokens.tasks), config["max_target_positions"]
    rules.suppress_tokens = [*range(tokens.end, tokens.size)]
    rules.begin_suppress_tokens = None
    frames, mels = 2 * config["max_source_positions"], config["num_mel_bins"]
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1, frames, mels), np.float32)
    text = rng.integers(0, config["vocab_size"], (1, config["max_target_positions"]))
    given = torch.from_numpy(features).transpose(1, 2)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        model.save_pretrained(folder)
        wanted = model(given, decoder_input_ids=torch.from_numpy(text)).logits.numpy()
        said = model.generate(given, language="en", task="transcribe")[0].tolist()
        for backend in BACKENDS:
            ours = ptir.load_model(folder, backend=backend)
            found = ours.forward(text, features)
            off = float(np.abs(found - wanted).max() / np.abs(wanted).max())
            prompt = tokens.prompt("en", "transcribe", timestamps=False)
            heard = ours.window(ours.hear(features[0]), prompt, timestamps=False)
            same = [*heard.tokens] == said[-len(heard.tokens) :]
            rows[backend] = {"off": off, "same_tokens": same}
    return rows


def _seen(model: Any, kind: str, pixels: Any) -> Any:
    """What Transformers gives of images whose size is not the one of the positions."""
    if kind == "clip":
        seen = model.vision_model(pixels, interpolate_pos_encoding=True)
        return model.visual_projection(seen.pooler_output)
    return model(pixels, **({"interpolate_pos_encoding": True} if kind == "vit" else {})).logits


def measured(definition: ModelDefinition) -> dict[str, Any]:
    """The row of a family."""
    name, config = tiny(definition)
    others = {READS: text_agreement, HEARS: speech_agreement}
    measure = others.get(definition.capabilities, image_agreement)
    if "generate" in definition.capabilities:
        measure = agreement
    return {"tiny": name, "agreement": measure(config)}


def where() -> dict[str, Any]:
    """The machine, and whose results ours are compared with."""
    return {**processor(), "transformers": transformers.__version__, "torch": torch.__version__}


def main() -> None:
    """Measure families, and keep the file after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_type", nargs="*")
    given = parser.parse_args()
    load_modules()
    names = given.model_type or sorted(name for name, one in MODELS.items() if one.presets)
    keep(FILE, "families", {"machine": where()}, ((name, measured(MODELS[name])) for name in names))


if __name__ == "__main__":
    main()
