"""Speculation beside plain decoding, of texts whose next tokens can be known and others.

Prompt lookup: random weights repeat themselves when they are greedy, and never when they are hot. A
model's own head: random weights say what no head knows, and of a model that looks at its last token
alone a head can know everything. The tokens of both ways are compared. Rounds alternate; ratios are
taken within a round.

    python benchmarks/speculation.py random:gpt2 --quant int8
    python benchmarks/speculation.py --quant int8     # a head, of Qwen3.5's layers at GPT-2's width
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from measuring.bars import Row, table

import ptir
from ptir.checkpoint import Checkpoint, save_folder
from ptir.models.table import definition
from ptir.params.source import ArraySource, RandomSource
from ptir.runtime import Generation, Model
from ptir.runtime.specs import parameter_types

GREEDY: Final[dict[str, Any]] = {"temperature": 0.0}
TEXTS: Final[dict[str, tuple[dict[str, Any], float]]] = {
    "repeats itself": (GREEDY, 1.6),
    "does not": ({"temperature": 1.0, "seed": 3}, 0.98),
}
"""How a text is sampled, and the ratio to reach with prompt lookup."""
HEADS: Final = {"a head that is right": 1.2, "a head that is wrong": 0.97}
"""The ratio to reach with a model's own head."""
PROMPT: Final = 64
SIZES: Final[dict[str, Any]] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2304,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "linear_num_key_heads": 6,
    "linear_num_value_heads": 6,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "partial_rotary_factor": 0.25,
    "rope_theta": 1e7,
    "eos_token_id": 0,
    "mtp_num_hidden_layers": 1,
}
"""A model with a head: 3 layers of linear attention to each of attention, 131 million weights."""


def measured(model: Model, how: str, texts: Any, tokens: int, rounds: int) -> Iterator[Row]:
    """The ratio of each of ``texts``, and how many of the proposed tokens were right."""
    size = int(model.checkpoint.config["vocab_size"])
    prompt = np.random.default_rng(0).integers(0, size, PROMPT).tolist()
    for subject, (sampling, bar) in texts.items():

        def run(speculate: str | None, chosen: dict[str, Any] = sampling) -> Generation:
            return model.generate(
                prompt, max_tokens=tokens, ignore_eos=True, speculate=speculate, **chosen
            )

        ratios, right = [], []
        for number in range(rounds + 1):
            plain, found = run(None), run(how)
            if plain.token_ids != found.token_ids:
                raise SystemExit(f"{subject}: the tokens differ")
            if number:  # the first compiles
                stats = found.stats
                ratios.append(plain.stats.generated_seconds / stats.generated_seconds)
                right.append(stats.accepted_tokens / max(1, stats.proposed_tokens))
        yield Row(subject, "times plain", ratios, bar=bar)
        yield Row(subject, "right", right, "%")


def agreeing(arrays: dict[str, Any]) -> dict[str, Any]:
    """Weights of a model that looks at the last token alone, and of a head that does the same.

    They are as many and as large as before, and read all the same.
    """
    for name, one in arrays.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            one[:] = 0
    arrays["mtp.fc.weight"][:] = np.eye(*arrays["mtp.fc.weight"].shape)
    arrays["mtp.pre_fc_norm_embedding.weight"][:] = 0
    arrays["mtp.norm.weight"][:] = arrays["norm.weight"]
    return arrays


@contextmanager
def models_with_heads() -> Iterator[dict[str, Path]]:
    """Folders of both models, by the subjects of ``HEADS``."""
    family = definition(SIZES["model_type"])
    types = parameter_types(family, {**family.defaults, **SIZES})
    source = RandomSource(types, 0, lambda name, type: 0.1 if type.rank == 1 else 0.02)
    arrays = {name: np.array(source.read(name)) for name in source.names()}
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for subject in reversed(HEADS):
            wanted = agreeing(arrays) if subject == "a head that is right" else arrays
            checkpoint = Checkpoint(Path(subject), SIZES, {}, {}, ArraySource(wanted), None, ())
            found[subject] = save_folder(checkpoint, Path(folder) / subject)
        yield found


def main() -> None:
    """Measure one model with prompt lookup, or the two that have a head."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="without it, the models with a head")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--quant")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    size, how = (given.tokens, given.rounds), {"backend": given.backend, "quant": given.quant}
    if given.model is not None:
        model = ptir.load_model(given.model, **how)
        print(table(list(measured(model, "lookup", TEXTS, *size))))
        return
    rows: list[Row] = []
    with models_with_heads() as found:
        for subject, folder in found.items():
            model = ptir.load_model(folder, **how)
            rows += measured(model, "nextn", {subject: (GREEDY, HEADS[subject])}, *size)
    print(table(rows))


if __name__ == "__main__":
    main()
