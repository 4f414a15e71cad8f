"""The parent's end of a peer's process: starts it, asks it, ends it, and says how it failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, NoReturn, Self

import numpy as np

from ptir import errors
from ptir.checkpoint import load_archive, save_archive
from ptir.errors import PtirError, UnsupportedError, UsageError, short, unknown_name
from ptir.peers.worker import FEATURES, GIVEN

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Library:
    """A library to compare with: what is run, and which packages it needs."""

    title: str
    command: tuple[str, ...]
    packages: tuple[str, ...]


LIBRARIES: Final[dict[str, Library]] = {
    "torch": Library(
        "PyTorch",
        (sys.executable, "-P", "-m", "ptir.peers.worker"),
        ("torch", "transformers"),
    )
}
"""By the name that ``--against`` takes."""
OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Nothing is fetched: what is compared lies on this machine."""


def library(name: str) -> Library:
    """The row called ``name``.

    Raises ``UsageError`` for another name and ``UnsupportedError`` where a package is missing.
    """
    if name not in LIBRARIES:
        raise UsageError(unknown_name("library", name, LIBRARIES))
    found = LIBRARIES[name]
    lacking = [package for package in found.packages if find_spec(package) is None]
    if lacking:
        raise UnsupportedError(
            f"comparing with {found.title} needs {' and '.join(lacking)}, which ptir does not"
            f" depend on and which is not installed: pip install {' '.join(found.packages)}"
        )
    return found


class PeerProcess:
    """A peer in a process of its own; as a context it ends with its block."""

    def __init__(self, with_: Library) -> None:
        """Start the process without waiting for it."""
        self.library: Final = with_
        self._folder = tempfile.TemporaryDirectory(prefix="ptir-peer-")
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._files = 0
        try:  # a group of its own, so that Ctrl-C in a terminal ends it through its parent
            self._process = subprocess.Popen(
                with_.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env={**os.environ, **OFFLINE},
                process_group=0,
            )
        except OSError as error:
            self._said.close()
            self._folder.cleanup()
            raise UnsupportedError(
                f"{with_.title} runs in another process of Python, and {with_.command[0]!r} cannot"
                f" be started: {error.strerror or error}"
            ) from error
        self.facts: Mapping[str, str] = {}
        self.layers: Sequence[str] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process in whatever it is at."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # what it was not sent
                continue
        self._process.wait()
        self._said.close()
        self._folder.cleanup()

    def saved_names(self, folder: Path, task: str) -> dict[str, str]:
        """What the library's files call the tensors of the model that a configuration describes.

        And what its modules call each.
        """
        found: dict[str, str] = self._ask("saved_names", str(folder), task)[0]
        return found

    def open(self, folder: Path, task: str, threads: int | None) -> None:
        """Open the model in ``folder``; what follows is asked of it."""
        told, _ = self._ask("open", str(folder), task, threads)
        self.facts, self.layers = told["facts"], told["layers"]

    def output(self, given: Array, features: Array | None = None) -> Array:
        """What the model gives for token ids i32[T] or images f32[N,H,W,3].

        ``features`` f32[F,M] are those of a window of speech, in which the tokens are heard.
        """
        return self._ask("output", given=given, features=features)[1]["output"]

    def trace(
        self, given: Array, wanted: Sequence[str], features: Array | None = None
    ) -> dict[str, Array]:
        """What modules give meanwhile, by name."""
        return self._ask("trace", [*wanted], given=given, features=features)[1]

    def greedy(self, given: Array, count: int) -> tuple[list[int], list[float]]:
        """The likeliest next tokens, and by what share of the largest logit each is ahead."""
        tokens, ahead = self._ask("greedy", count, given=given)[0]
        return tokens, ahead

    def greedy_heard(
        self, given: Array, count: int, rules: Mapping[str, Any], features: Array
    ) -> tuple[list[int], list[float]]:
        """The same in a window of speech, by ``rules``: see ``TorchModel.greedy_heard``."""
        told = self._ask("greedy_heard", count, dict(rules), given=given, features=features)[0]
        tokens, ahead = told
        return tokens, ahead

    def likelihoods(self, given: Array) -> Array:
        """Log likelihoods f64 of every token but the first."""
        return self._ask("likelihoods", given=given)[1]["likelihoods"]

    def seconds(
        self, method: str, given: Array, *arguments: int, features: Array | None = None
    ) -> float:
        """What the peer measured: ``run``, ``prefill``, ``decode``, ``hear``, ``decode_heard``."""
        asked = f"{method}_seconds"
        found: float = self._ask(asked, *arguments, given=given, features=features)[0]
        return found

    def _ask(
        self,
        method: str,
        *arguments: Any,
        given: Array | None = None,
        features: Array | None = None,
    ) -> tuple[Any, dict[str, Array]]:
        self._files += 1
        file, out = (Path(self._folder.name) / f"{self._files}.{end}" for end in ("in", "out"))
        if given is not None:
            heard = {} if features is None else {FEATURES: features}
            save_archive(file, {GIVEN: given, **heard})
        request = {"method": method, "arguments": arguments, "file": str(file), "out": str(out)}
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode("ascii") + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line.endswith(b"\n"):
            self._died(method)
        answer = json.loads(line)
        if "failed" in answer:
            self._failed(method, answer["kind"], answer["failed"])
        arrays = {}
        if answer["arrays"]:
            held = load_archive(out).arrays
            arrays = {name: np.array(held[name]) for name in answer["arrays"]}
        for path in (file, out):
            path.unlink(missing_ok=True)
        return answer["told"], arrays

    def _failed(self, method: str, kind: str, message: str) -> NoReturn:
        """Raise what the peer raised: errors of ptir as themselves, others as unsupported."""
        title = self.library.title
        known = getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, PtirError):
            raise known(f"{title}: {message}")
        lines = message.strip().splitlines() or ["it says nothing"]
        raise UnsupportedError(f"{title} cannot {_DOES[method]}: {kind}: {short(lines[0])}")

    def _died(self, method: str) -> NoReturn:
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode("utf-8", "replace").strip().splitlines()
        last = f": {said[-1]}" if said else ""
        raise UnsupportedError(
            f"the process of {self.library.title} ended with {code} when asked to"
            f" {_DOES[method]}{last}"
        )


_DOES: Final = {
    "saved_names": "build the model of this configuration",
    "open": "open the model",
    "output": "run the model",
    "trace": "trace the model",
    "greedy": "generate",
    "greedy_heard": "write down a window of speech",
    "likelihoods": "score a text",
    "run_seconds": "time a run",
    "prefill_seconds": "time a prompt",
    "decode_seconds": "time decoding",
    "hear_seconds": "time its encoder",
    "decode_heard_seconds": "time decoding",
}
"""By method, what it was asked to do."""
