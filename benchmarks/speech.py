"""Whisper on a CPU: 30 s of sound by ptir beside Transformers, in alternating rounds.

Samples go in. ``hear``: features and the encoder. ``transcribe``: these and a text of 124 tokens,
without timestamps, each the likeliest. ``--batch N``: N such texts of N sounds at once, beside one
sound after another (``ptir alone``). Weights are random, the same for both; features, what the
encoder gives and tokens are compared first. Ratios are taken within a round. Writes JSON; needs
``pip install torch transformers``.

    python benchmarks/speech.py --backend c --threads 2 --rounds 7 --json out.json
    python benchmarks/speech.py --preset whisper-base --batch 8

On a machine that others use, ``--threads 1 --clock cpu`` compares what the processors did.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from measuring.calls import CLOCKS, Samples, alternating, report

POSITIONS: Final = 128
"""Of the decoder: a text of fast speech, and its prompt."""
SECONDS: Final = 30

Array = np.ndarray[Any, Any]
Call = Callable[[], Array]


def sound(seed: int = 0) -> Array:
    """Tones that rise and fall, and noise, f32[480000]."""
    time = np.arange(SECONDS * 16000) / 16000
    tone = (
        np.sin(2 * np.pi * 300 * (seed + 1) * time * (1 + 0.2 * np.sin(time)))
        * np.sin(3 * time) ** 2
    )
    noise = np.random.default_rng(seed).standard_normal(len(time))
    return (0.3 * tone + 0.02 * noise).astype(np.float32)


def saved(preset: str, folder: str) -> Any:
    """Transformers' model of a preset with random weights, which ptir opens from ``folder``."""
    import torch
    import transformers

    from ptir.models.table import preset as found
    from ptir.runtime.speech.tokens import SpeechTokens

    said = {**found(preset)[1], "max_target_positions": POSITIONS, "begin_suppress_tokens": None}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**said)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.model.decoder.embed_positions.weight.normal_(0.0, 0.2)
        model.model.decoder.embed_tokens.weight.normal_(0.0, 0.1)
    tokens, rules = SpeechTokens.of(said, {}), model.generation_config
    rules.no_timestamps_token_id, rules.is_multilingual = tokens.no_stamps, True
    rules.lang_to_id = {f"<|{name}|>": number for name, number in tokens.languages.items()}
    rules.task_to_id = dict(tokens.tasks)
    # random weights would end a text, or tell times, at any place
    rules.suppress_tokens = [tokens.end, *range(tokens.no_stamps, tokens.size)]
    rules.begin_suppress_tokens, rules.max_length = None, POSITIONS
    model.save_pretrained(folder)
    return model


def ours(folder: str, sounds: list[Array], backend: str) -> dict[str, Call]:
    """Calls of ptir, with uploads and downloads."""
    import ptir
    from ptir.runtime import SpeechModel
    from ptir.runtime.speech.decoding import Manner

    model = ptir.load_model(folder, backend=backend)
    assert isinstance(model, SpeechModel)
    prompt = model.tokens.prompt("en", "transcribe", timestamps=False)

    def hear() -> Array:
        return np.concatenate(
            [one.numpy().ravel() for one in model.hear(model.features(sounds[0]))[-1]]
        )

    def said(samples: Array) -> Array:
        heard = model.window(model.hear(model.features(samples)), prompt, timestamps=False)
        return np.array(heard.tokens)

    def together() -> Array:
        features = [model.features(one) for one in sounds]
        source = model.decoder.hear(features, len(sounds))
        found = model.decoder.decode(source, [prompt] * len(sounds), Manner(timestamps=False))
        return np.array([heard.tokens for heard in found])

    return {
        "hear": hear,
        "transcribe": lambda: said(sounds[0]),
        "batch": together,
        "alone": lambda: np.array([said(one) for one in sounds]),
    }


def theirs(model: Any, sounds: list[Array]) -> dict[str, Call]:
    """Calls of Transformers; what the last layer attends to is compared, as ptir keeps it."""
    import torch
    import transformers

    mels = model.config.num_mel_bins
    extractor = transformers.WhisperFeatureExtractor(feature_size=mels)
    attention = model.model.decoder.layers[-1].encoder_attn
    layers = model.model.decoder.layers

    def features(given: list[Array]) -> Any:
        return extractor(given, sampling_rate=16000, return_tensors="pt").input_features

    def heads(found: Any) -> Array:
        size = model.config.d_model // model.config.decoder_attention_heads
        split = found.reshape(found.shape[1], -1, size).transpose(0, 1)
        result: Array = split.contiguous().numpy().ravel()
        return result

    def hear() -> Array:
        with torch.inference_mode():
            encoded = model.model.encoder(features(sounds[:1])).last_hidden_state
            for layer in layers[:-1]:
                layer.encoder_attn.k_proj(encoded), layer.encoder_attn.v_proj(encoded)
            both = attention.k_proj(encoded), attention.v_proj(encoded)
            return np.concatenate([heads(one) for one in both])

    def said(given: list[Array]) -> Array:
        with torch.inference_mode():
            made = model.generate(features(given), language="en", task="transcribe")
        found: Array = made.numpy()
        return found[:, -(POSITIONS - 4) :]

    return {
        "hear": hear,
        "transcribe": lambda: said(sounds[:1])[0],
        "batch": lambda: said(sounds),
    }


def measure(given: argparse.Namespace) -> dict[str, Samples]:
    """Seconds of a call by subject and peer, one for each round; results are compared before."""
    sounds, found = [sound(seed) for seed in range(given.batch)], dict[str, Samples]()
    with tempfile.TemporaryDirectory() as folder:
        other = theirs(saved(given.preset, folder), sounds)
        own = ours(folder, sounds, given.backend)
        for subject in ("hear", "transcribe") if given.batch == 1 else ("batch",):
            calls = {"ptir": own[subject], "transformers": other[subject]}
            if subject == "batch":
                calls["ptir alone"] = own["alone"]
            wanted = calls["transformers"]()
            for name, call in calls.items():
                off = float(np.abs(wanted - call()).max() / np.abs(wanted).max())
                if off > (1e-3 if subject == "hear" else 0):
                    raise SystemExit(
                        f"{subject}, {name}: the results are off by {off:.1e}; not measured"
                    )
            found[subject] = alternating(calls, given.rounds, given.calls, given.clock)
    return found


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--preset", default="whisper-tiny")
    parser.add_argument("--batch", type=int, default=1, help="measure N sounds at once")
    parser.add_argument("--threads", type=int, default=2, help="of both peers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=1, help="calls of a measurement")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    os.environ["PTIR_C_THREADS"] = str(given.threads)
    import torch
    import transformers

    torch.set_num_threads(given.threads)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    measured = measure(given)
    for subject, samples in measured.items():
        print("\n".join(report(f"{subject:10}", samples)), flush=True)
    if given.json:
        rows = [{"subject": name, "seconds": samples} for name, samples in measured.items()]
        found = {"machine": platform.processor() or platform.machine(), "rows": rows}
        given.json.write_text(json.dumps({**found, **vars(given)}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
