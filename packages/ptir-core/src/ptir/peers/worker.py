"""The process of a peer: ``python -m ptir.peers.worker``.

A line of JSON in is a method and its arguments, a line of JSON out what it gives; arrays lie in
archives whose paths are told. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from ptir.checkpoint import load_archive, save_archive

Array = np.ndarray[Any, Any]
Sent: TypeAlias = tuple[Any, Mapping[str, Array]]
"""What is answered: JSON, and arrays."""
GIVEN: Final = "given"
"""What the array of a request is called in its archive."""
FEATURES: Final = "features"
"""What the features of a window of speech are called there, beside the tokens in it."""


class PeerModel(Protocol):
    """What a peer computes; see ``ptir.peers.definitions.TorchModel``."""

    def facts(self) -> dict[str, str]:
        """What computes, and in which versions."""
        ...

    def layers(self) -> list[str]:
        """The names of its modules."""
        ...

    def output(self, given: Array, features: Array | None = None) -> Array:
        """What it gives for token ids, also of a window of speech, or for images."""
        ...

    def trace(
        self, given: Array, wanted: Sequence[str], features: Array | None = None
    ) -> dict[str, Array]:
        """What some modules give meanwhile."""
        ...

    def greedy(self, ids: Array, count: int) -> tuple[Array, Array]:
        """The likeliest next tokens, and by how much each is ahead."""
        ...

    def greedy_heard(
        self, ids: Array, count: int, rules: Mapping[str, Any], features: Array
    ) -> tuple[Array, Array]:
        """The likeliest next tokens of a window of speech, likewise."""
        ...

    def likelihoods(self, ids: Array) -> Array:
        """How likely each token but the first is."""
        ...

    def run_seconds(self, given: Array) -> float:
        """How long a run takes."""
        ...

    def prefill_seconds(self, ids: Array) -> float:
        """How long a prompt takes."""
        ...

    def decode_seconds(self, ids: Array, count: int) -> float:
        """How long tokens behind a prompt take."""
        ...

    def hear_seconds(self, ids: Array, features: Array) -> float:
        """How long hearing a window takes."""
        ...

    def decode_heard_seconds(self, ids: Array, count: int, features: Array) -> float:
        """How long tokens behind a prompt take, in a window."""
        ...


class Side(Protocol):
    """A library that can open models."""

    def saved_names(self, folder: str, task: str) -> dict[str, str]:
        """What its files call the tensors of the model that a folder's configuration describes.

        And what its modules call each.
        """
        ...

    def open(self, folder: str, task: str, threads: int | None) -> PeerModel:
        """The model in a folder."""
        ...


def serve(library: Callable[[], Side]) -> None:
    """Answer requests until input ends; whatever a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side: Side | None = None
    model: PeerModel | None = None
    for line in sys.stdin:
        request = json.loads(line)
        method, arguments, out = request["method"], request["arguments"], request["out"]
        try:
            side = side or library()
            if method == "open":
                model = side.open(*arguments)
                told, arrays = _described(model)
            elif method == "saved_names":
                told, arrays = side.saved_names(*arguments), {}
            else:
                assert model is not None, "the parent opens a model first"
                more = _arrays(request["file"])
                told, arrays = _ANSWERS[method](model, more.pop(GIVEN), *arguments, **more)
            if arrays:
                save_archive(out, arrays)
            answer = {"told": told, "arrays": [*arrays]}
        except Exception as error:  # noqa: BLE001  told to the parent, which raises it anew
            traceback.print_exc()
            answer = {"failed": str(error), "kind": type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)


def _arrays(file: str) -> dict[str, Array]:
    return {name: np.array(one) for name, one in load_archive(Path(file)).arrays.items()}


def _described(model: PeerModel) -> Sent:
    return {"facts": model.facts(), "layers": model.layers()}, {}


def _tokens(made: tuple[Array, Array]) -> Sent:
    tokens, ahead = made
    return [tokens.tolist(), ahead.tolist()], {}


_ANSWERS: Final[dict[str, Callable[..., Sent]]] = {
    "output": lambda model, *given, **more: (None, {"output": model.output(*given, **more)}),
    "trace": lambda model, *given, **more: (None, model.trace(*given, **more)),
    "greedy": lambda model, *given: _tokens(model.greedy(*given)),
    "greedy_heard": lambda model, *given, **more: _tokens(model.greedy_heard(*given, **more)),
    "likelihoods": lambda model, given: (None, {"likelihoods": model.likelihoods(given)}),
    "run_seconds": lambda model, given: (model.run_seconds(given), {}),
    "prefill_seconds": lambda model, given: (model.prefill_seconds(given), {}),
    "decode_seconds": lambda model, *given: (model.decode_seconds(*given), {}),
    "hear_seconds": lambda model, *given, **more: (model.hear_seconds(*given, **more), {}),
    "decode_heard_seconds": lambda model, *given, **more: (
        model.decode_heard_seconds(*given, **more),
        {},
    ),
}
"""By the name of a method, what calls it and divides its result."""


def main() -> None:
    """Serve PyTorch."""
    from ptir.peers.definitions import TorchSide

    serve(TorchSide)


if __name__ == "__main__":
    main()
