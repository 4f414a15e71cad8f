"""What caches of 16 bits cost: logits and best tokens beside those with a cache in f32.

A model continues prompts of one random token at temperature 1. Then the logits of all positions of
these texts are computed with each cache. A row gives the greatest difference over the greatest
logit, the root mean square of differences over that of logits, and in how many positions the best
token is another one.

    python benchmarks/cache_rounding.py demo --backend c --texts 40 --tokens 250
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

import ptir

NARROW = ("bf16", "f16")


@dataclass
class Loss:
    """What one type of cache lost so far."""

    greatest: float = 0.0
    squares: float = 0.0
    changed: int = 0

    def add(self, found: Any, wanted: Any) -> None:
        """Count the logits [T, V] of one text."""
        off = found - wanted
        self.greatest = max(self.greatest, float(np.abs(off).max()))
        self.squares += float((off**2).sum())
        self.changed += int((found.argmax(-1) != wanted.argmax(-1)).sum())


def measured(name: str, backend: str, texts: int, tokens: int) -> list[str]:
    """A line for each type of cache."""
    models = {
        dtype: ptir.load_model(name, backend=backend, cache_dtype=dtype)
        for dtype in ("f32", *NARROW)
    }
    wide = models["f32"]
    rng = np.random.default_rng(0)
    size = int(wide.checkpoint.config["vocab_size"])
    losses = {dtype: Loss() for dtype in NARROW}
    greatest, squares, positions = 0.0, 0.0, 0
    for number in range(texts):
        first = [int(rng.integers(size))]
        options = {"temperature": 1.0, "seed": number, "ignore_eos": True}
        told = wide.generate(first, max_tokens=tokens - 1, **options)
        text = [*first, *told.token_ids]
        wanted = wide.forward(text)
        greatest = max(greatest, float(np.abs(wanted).max()))
        squares += float((wanted**2).sum())
        positions += len(text)
        for dtype, loss in losses.items():
            loss.add(models[dtype].forward(text), wanted)
    return [
        f"{name} {backend} {dtype}: {loss.greatest / greatest:.1e},"
        f" {(loss.squares / squares) ** 0.5:.1e}, {loss.changed} of {positions}"
        for dtype, loss in losses.items()
    ]


def main() -> None:
    """Measure one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=250)
    given = parser.parse_args()
    print("\n".join(measured(given.model, given.backend, given.texts, given.tokens)))


if __name__ == "__main__":
    main()
