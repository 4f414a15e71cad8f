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


class PeerModel(Protocol):
    """What a peer computes; see ``ptir.peers.definitions.TorchModel``."""

    def facts(self) -> dict[str, str]:
        """What computes, and in which versions."""
        ...

    def layers(self) -> list[str]:
        """The names of its modules."""
        ...

    def output(self, given: Array) -> Array:
        """What it gives for token ids or images."""
        ...

    def trace(self, given: Array, wanted: Sequence[str]) -> dict[str, Array]:
        """What some modules give meanwhile."""
        ...

    def greedy(self, ids: Array, count: int) -> tuple[Array, Array]:
        """The likeliest next tokens, and by how much each is ahead."""
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
                told, arrays = _ANSWERS[method](model, _array(request["file"]), *arguments)
            if arrays:
                save_archive(out, arrays)
            answer = {"told": told, "arrays": [*arrays]}
        except Exception as error:  # noqa: BLE001  told to the parent, which raises it anew
            traceback.print_exc()
            answer = {"failed": str(error), "kind": type(error).__name__}
        print(json.dumps(answer), file=answers, flush=True)


def _array(file: str) -> Array:
    return np.array(load_archive(Path(file)).arrays[GIVEN])


def _described(model: PeerModel) -> Sent:
    return {"facts": model.facts(), "layers": model.layers()}, {}


def _greedy(model: PeerModel, ids: Array, count: int) -> Sent:
    tokens, ahead = model.greedy(ids, count)
    return [tokens.tolist(), ahead.tolist()], {}


_ANSWERS: Final[dict[str, Callable[..., Sent]]] = {
    "output": lambda model, given: (None, {"output": model.output(given)}),
    "trace": lambda model, given, wanted: (None, model.trace(given, wanted)),
    "greedy": _greedy,
    "likelihoods": lambda model, given: (None, {"likelihoods": model.likelihoods(given)}),
    "run_seconds": lambda model, given: (model.run_seconds(given), {}),
    "prefill_seconds": lambda model, given: (model.prefill_seconds(given), {}),
    "decode_seconds": lambda model, given, count: (model.decode_seconds(given, count), {}),
}
"""By the name of a method, what calls it and divides its result."""


def main() -> None:
    """Serve PyTorch."""
    from ptir.peers.definitions import TorchSide

    serve(TorchSide)


if __name__ == "__main__":
    main()
