"""A peer for tests without another library: ptir itself, with a fault where a test asks for one.

What the environment's FAULT says: the module whose result is off, ``output``, ``greedy`` (another
token at place 2), ``close`` (the same, where the two best are nearly equal), or how it fails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ptir
from ptir.errors import CheckpointError
from ptir.peers.worker import serve
from ptir.runtime.likelihood import Scores

FAULT = os.environ.get("FAULT", "")
PREFIX = "transformer."
Array = np.ndarray[Any, Any]


class FakeModel:
    def __init__(self, folder: str, threads: int | None) -> None:
        self.model: Any = ptir.load_model(folder, backend="ref")
        self.threads = threads

    def facts(self) -> dict[str, str]:
        return {
            "class": "Fake",
            "torch": "0",
            "transformers": "0",
            "threads": str(self.threads or 2),
        }

    def layers(self) -> list[str]:
        if "transcribe" in self.model.capabilities:
            return []
        names = self.model.trace([1])
        return [f"{PREFIX}{name}" for name in names if name not in ("logits", "wpe")]

    def output(self, given: Array, **more: Array) -> Array:
        found = np.array(self.model.forward(given, **more))
        if FAULT == "output":
            found[..., 1] += 0.3
        return found

    def trace(self, given: Array, wanted: Sequence[str]) -> dict[str, Array]:
        found = self.model.trace(given)
        off = {name: 1.5 if name == FAULT else 1.0 for name in wanted}
        return {name: found[name.removeprefix(PREFIX)] * np.float32(off[name]) for name in wanted}

    def greedy(self, ids: Array, count: int) -> tuple[Array, Array]:
        made = self.model.generate(ids.tolist(), max_tokens=count, ignore_eos=True).token_ids
        tokens, ahead = np.array(made), np.full(count, 0.4)
        if FAULT in ("greedy", "close"):
            tokens[2] = (tokens[2] + 1) % 97
            ahead[2] = 1e-7 if FAULT == "close" else 0.4
        return tokens, ahead

    def greedy_heard(
        self, ids: Array, count: int, rules: Mapping[str, Any], features: Array
    ) -> tuple[Array, Array]:
        source = self.model.hear(features)
        made = self.model.window(source, ids.tolist(), timestamps=False, max_tokens=count).tokens
        tokens, ahead = np.array(made), np.full(len(made), 0.4)
        if FAULT == "greedy":
            tokens[2] = rules["never"][0]
        return (np.array([*tokens[:2], rules["end"]]) if FAULT == "ends" else tokens), ahead

    def likelihoods(self, ids: Array) -> Array:
        return Scores(self.model, 8).of(ids.tolist()) - 0.25

    def run_seconds(self, given: Array) -> float:
        return 0.5

    def hear_seconds(self, ids: Array, features: Array) -> float:
        assert features.shape == (100, 10)
        return 0.25

    def decode_heard_seconds(self, ids: Array, count: int, features: Array) -> float:
        assert (ids.size, features.shape) == (3, (100, 10))
        return count / 50

    def prefill_seconds(self, ids: Array) -> float:
        return ids.size / 1000

    def decode_seconds(self, ids: Array, count: int) -> float:
        assert ids.size == 1
        return count / 100


class FakeSide:
    def saved_names(self, folder: str, task: str) -> dict[str, str]:
        raise NotImplementedError("no family of these tests needs it")

    def open(self, folder: str, task: str, threads: int | None) -> FakeModel:
        print("what a library prints")
        match FAULT:
            case "refuses":
                raise CheckpointError("no such tensor")
            case "breaks":
                raise ZeroDivisionError("by nothing\nat all")
            case "dies":
                print("the last words", file=sys.stderr)
                sys.stderr.flush()
                os._exit(7)
        return FakeModel(folder, threads)


if __name__ == "__main__":
    serve(FakeSide)
