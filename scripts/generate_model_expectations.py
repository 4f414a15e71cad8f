"""Compute what the suite expects of whole models, with Transformers and PyTorch in float64.

``python scripts/generate_model_expectations.py [NAME ...]`` writes the file of expectations that
``ptir_testsuite.corpus.models`` reads; models that are not named keep theirs.
Only weights and configurations come from ptir; what they mean is Transformers'. The prompts of a
model are those of the few seeds that say most, and none of their tokens is a close call: the best
logit of every step is ahead of the next by many times the bound. Transformers 5 computes the norms
of Llama and the angles of rope in float32 whatever the model's type; both are far inside the bound.
The delta rule, which it computes in float32 too, is not: for those models the name means float64.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
import transformers

import ptir_testsuite.corpus
from ptir.checkpoint import save_folder
from ptir.peers.definitions import EMBED, GENERATE, open_peer
from ptir.runtime.speech.tokens import SpeechTokens
from ptir_testsuite.corpus.models import (
    BOUND,
    ENCODED,
    FILE,
    HEARD,
    LENGTHS,
    NEW,
    SPOKEN,
    SUBJECTS,
    checkpoint,
    features,
)
from ptir_testsuite.corpus.models import (
    expectations as kept,
)
from ptir_testsuite.corpus.values import Draws

Array = np.ndarray[Any, Any]

AHEAD: Final = 256 * BOUND
"""By how much of the greatest logit a chosen token is ahead of the next."""
SEEDS: Final = 6
"""Prompts of a length that are tried; that with most different tokens after it is taken."""
POSITIONS: Final = 6
"""Of which the logits of a model with many tokens are kept."""
WHOLE: Final = 128
"""Tokens up to which those of all positions are kept."""


WIDENED: Final = ("qwen3.5",)
"""Models whose operations in float32 are computed in float64 here."""


@contextmanager
def wide(name: str) -> Iterator[None]:
    """Compute in float64 what a model asks to compute in float32."""
    with pytest.MonkeyPatch.context() as patch:
        if name in WIDENED:
            patch.setattr(torch, "float32", torch.float64)
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        yield


def opened(name: str, folder: Path) -> Any:
    """The model in Transformers, in float64."""
    where = save_folder(checkpoint(name), folder / name)
    kinds = SUBJECTS[name].kinds
    if kinds != HEARD:
        task = EMBED if kinds == ENCODED else GENERATE
        return open_peer(where, task, dtype="float64").network
    family = transformers.WhisperForConditionalGeneration
    return family.from_pretrained(where, dtype=torch.float64, attn_implementation="eager").eval()


@torch.no_grad()
def logits_of(model: Any, tokens: list[int]) -> Array:
    """The logits of all positions, computed from the start."""
    found: Array = model(torch.tensor([tokens])).logits[0].numpy()
    assert found.dtype == np.float64
    return found


def continued(model: Any, prompt: list[int]) -> tuple[list[int], list[float], list[float]] | None:
    """Greedy tokens, their log probabilities and the greatest logits; None for a close call."""
    tokens, chances, scales = list(prompt), [], []
    for _ in range(NEW):
        last = logits_of(model, tokens)[-1]
        second, first = np.sort(last)[-2:]
        scale = float(np.abs(last).max())
        if first - second < AHEAD * scale:
            return None
        tokens.append(int(last.argmax()))
        chances.append(float(first - np.logaddexp.reduce(last)))
        scales.append(scale)
    return tokens[len(prompt) :], chances, scales


def prompts_of(model: Any, name: str) -> tuple[list[list[int]], list[Any]]:
    """A prompt of each length, and its continuation."""
    prompts, results = [], []
    for length in LENGTHS:
        tried = []
        for seed in range(SEEDS):
            prompt = Draws("prompt", name, length, seed).below(model.config.vocab_size, length)
            found = continued(model, prompt.tolist())
            if found is not None:
                tried.append((len(set(found[0])), -seed, prompt.tolist(), found))
        different, seed, prompt, found = max(tried)
        prompts.append(prompt)
        results.append(found)
        print(f"{name}: {length} tokens by seed {-seed}, {different} different new ones")
    return prompts, results


def expectations(name: str, model: Any) -> dict[str, Array]:
    """The arrays of one model."""
    prompts, results = prompts_of(model, name)
    tokens, logprobs, scales = (np.array(column) for column in zip(*results, strict=True))
    padded = np.full((len(prompts), max(LENGTHS)), -1, np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = prompt
    logits = logits_of(model, prompts[-1])
    length, size = logits.shape
    few = np.linspace(0, length - 1, POSITIONS).astype(np.int32)
    positions = np.arange(length, dtype=np.int32) if size <= WHOLE else few
    return {
        f"{name}.prompts": padded,
        f"{name}.tokens": tokens.astype(np.int32),
        f"{name}.logprobs": logprobs.astype(np.float32),
        f"{name}.scales": scales.astype(np.float32),
        f"{name}.positions": positions,
        f"{name}.logits": logits[positions].astype(np.float32),
    }


@torch.no_grad()
def vectors(name: str, model: Any) -> dict[str, Array]:
    """The arrays of an encoder: a vector for each token of texts, each read alone."""
    size = model.config.vocab_size
    rows = [Draws("prompt", name, length, 0).below(size, length) for length in LENGTHS]
    found = [model(torch.tensor([row.tolist()])).last_hidden_state[0].numpy() for row in rows]
    padded = np.full((len(rows), max(LENGTHS)), -1, np.int32)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return {
        f"{name}.prompts": padded,
        f"{name}.vectors": np.concatenate(found).astype(np.float32),
    }


@torch.no_grad()
def heard(name: str, model: Any) -> dict[str, Array]:
    """The arrays of a model of speech: logits of prompts behind sounds, and tokens of the sounds.

    The token that says that no times are told is never one of these.
    """
    config = SUBJECTS[name].config or {}
    tokens = SpeechTokens.of(config, {})
    start = tokens.prompt(*SPOKEN, timestamps=False)

    def logits(number: int, row: list[int]) -> Array:
        sound = torch.from_numpy(features(name, number)).double().T[None]
        result: Array = model(sound, decoder_input_ids=torch.tensor([row])).logits[0].numpy()
        assert result.dtype == np.float64
        return result

    rows = [
        Draws("prompt", name, length, 0).below(tokens.size, length).tolist() for length in LENGTHS
    ]
    padded = np.full((len(rows), max(LENGTHS)), -1, np.int32)
    room = config["max_target_positions"] - len(start)
    said = np.zeros((len(rows), room), np.int32)
    chances, scales = np.zeros((2, len(rows), room))
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
        text = [*start]
        for place in range(room):
            last = logits(number, text)[-1]
            scales[number, place] = np.abs(last).max()
            last[tokens.no_stamps] = -np.inf
            second, first = np.sort(last)[-2:]
            if first - second < AHEAD * scales[number, place] or last.argmax() == tokens.end:
                raise SystemExit(f"{name}: token {place} of sound {number} is a close call, or end")
            said[number, place] = last.argmax()
            chances[number, place] = first - np.logaddexp.reduce(last)
            text.append(int(last.argmax()))
    found = np.concatenate([logits(number, row) for number, row in enumerate(rows)])
    return {
        f"{name}.prompts": padded,
        f"{name}.logits": found.astype(np.float32),
        f"{name}.tokens": said,
        f"{name}.logprobs": chances.mean(axis=1).astype(np.float32),
        f"{name}.scales": scales.mean(axis=1).astype(np.float32),
    }


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", choices=[*SUBJECTS, []])
    names = parser.parse_args().name or [*SUBJECTS]
    made_with = f"torch {torch.__version__}, transformers {transformers.__version__}, float64"
    arrays: dict[str, Array] = {n: a for n, a in kept().items() if n.partition(".")[0] not in names}
    arrays["made_with"] = np.array(made_with)
    torch.set_num_threads(1)  # the products are small
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            model = opened(name, Path(folder))
            others = {ENCODED: vectors, HEARD: heard}
            if SUBJECTS[name].kinds in others:
                arrays |= others[SUBJECTS[name].kinds](name, model)
                continue
            with wide(name):  # not for reading the file
                arrays |= expectations(name, model)
    path = Path(ptir_testsuite.corpus.__file__).parent / FILE
    np.savez_compressed(path, **arrays)
    print(f"{path}: {path.stat().st_size} bytes, {made_with}")


if __name__ == "__main__":
    main()
