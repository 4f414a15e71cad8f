"""Prompt lookup beside plain decoding, of one text that repeats itself and one that does not.

Random weights repeat themselves when they are greedy, and never when they are hot; the tokens of
both ways are compared. Rounds alternate; ratios are taken within a round.

    python benchmarks/speculation.py random:gpt2 --quant int8
"""

from __future__ import annotations

import argparse
from typing import Any, Final

import numpy as np
from measuring.bars import Row, table

import ptir
from ptir.runtime import Generation, Model

TEXTS: Final[dict[str, tuple[dict[str, Any], float]]] = {
    "repeats itself": ({"temperature": 0.0}, 1.6),
    "does not": ({"temperature": 1.0, "seed": 3}, 0.98),
}
"""How a text is sampled, and the ratio to reach."""
PROMPT: Final = 64


def measured(model: Model, tokens: int, rounds: int) -> list[Row]:
    """The ratios of both texts, and how many of the proposed tokens were right."""
    size = int(model.checkpoint.config["vocab_size"])
    prompt = np.random.default_rng(0).integers(0, size, PROMPT).tolist()
    rows = []
    for subject, (sampling, bar) in TEXTS.items():

        def run(speculate: str | None, chosen: dict[str, Any] = sampling) -> Generation:
            return model.generate(
                prompt, max_tokens=tokens, ignore_eos=True, speculate=speculate, **chosen
            )

        ratios, right = [], []
        for number in range(rounds + 1):
            plain, found = run(None), run("lookup")
            if plain.token_ids != found.token_ids:
                raise SystemExit(f"{subject}: the tokens differ")
            if number:  # the first compiles
                stats = found.stats
                ratios.append(plain.stats.generated_seconds / stats.generated_seconds)
                right.append(stats.accepted_tokens / max(1, stats.proposed_tokens))
        rows += [Row(subject, "times plain", ratios, bar=bar), Row(subject, "right", right, "%")]
    return rows


def main() -> None:
    """Measure one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--quant")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    model = ptir.load_model(given.model, backend=given.backend, quant=given.quant)
    print(table(measured(model, given.tokens, given.rounds)))


if __name__ == "__main__":
    main()
