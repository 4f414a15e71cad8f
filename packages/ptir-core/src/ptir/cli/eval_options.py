"""What ``ptir eval`` was asked for: workloads, the options of each, and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click

from ptir.cli.compared import TEXT
from ptir.cli.model import Formats, given_input
from ptir.cli.texts import given_texts
from ptir.errors import UsageError, unknown_name
from ptir.files import read_lines

if TYPE_CHECKING:
    from ptir.peers.workloads import Input
    from ptir.runtime import Model, SpeechModel, TextModel
    from ptir.runtime.image_model import ImageModel


@dataclass(frozen=True)
class Workload:
    """The options that a workload takes, besides those of all; whether it needs a peer."""

    options: tuple[str, ...]
    compares: bool = False


WORKLOADS: Final[dict[str, Workload]] = {
    "perplexity": Workload(("inputs", "window", "stride")),
    "accuracy": Workload(("inputs", "files", "truncate", "truth")),
    "bench": Workload(("n_prompt", "n_gen", "batch", "rounds")),
    "validate": Workload(
        ("inputs", "files", "truncate", "tokens", "n_gen", "tolerance"), compares=True
    ),
    "trace": Workload(("inputs", "files", "truncate", "tokens", "tolerance"), compares=True),
}
"""By name, in the order of the help."""
OF_ALL: Final = ("model", "workload", "against")
LIBRARIES: Final = ("torch",)
"""The names of ``ptir.peers.process.LIBRARIES``, which is not imported for them."""
MOST_TRUTH: Final = 1 << 26
"""Bytes of a file of right classes."""


@dataclass(frozen=True)
class Asked:
    """The command line of ``ptir eval``."""

    model: str
    workload: str
    formats: Formats
    against: str | None = None
    inputs: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    truncate: bool = False
    tokens: str | None = None
    truth: Path | None = None
    window: int | None = None
    stride: int | None = None
    n_prompt: int = 128
    n_gen: int = 32
    batch: int = 1
    rounds: int = 5
    tolerance: float | None = None

    def check(self, typed: set[str]) -> None:
        """Refuse options that the workload has no use for, and one without what it needs."""
        row = WORKLOADS[self.workload]
        spare = sorted(typed - {*row.options, *OF_ALL})
        if spare:
            users = [name for name, one in WORKLOADS.items() if spare[0] in one.options]
            said = "INPUTS are" if spare[0] == "inputs" else f"{_SPELLED[spare[0]]} is"
            raise click.UsageError(
                f"{said} for --workload {' or '.join(users)}; leave it out for {self.workload}"
            )
        if row.compares and self.against is None:
            also = "verify" if self.workload == "validate" else "diff"
            raise click.UsageError(
                f"--workload {self.workload} compares: give --against torch; `ptir {also}` compares"
                " backends and traces of ours"
            )
        if self.workload == "perplexity" and len(self.inputs) != 1:
            raise click.UsageError("give one file of text, whose perplexity is measured")
        if self.workload == "perplexity" and not Path(self.inputs[0]).exists():
            raise click.UsageError(f"{self.inputs[0]}: does not exist; give a file of text")
        if self.workload == "accuracy" and self.truth is None:
            raise click.UsageError(
                "accuracy needs --truth FILE with the right class of each input, a line each"
            )
        if self.against is not None and self.formats.device_memory:
            raise click.UsageError(
                "a model is compared with all weights there: leave --device-memory out"
            )


_SPELLED: Final = {
    "files": "--file",
    "truncate": "--truncate",
    "tokens": "--tokens",
    "truth": "--truth",
    "window": "--window",
    "stride": "--stride",
    "n_prompt": "-p",
    "n_gen": "-n",
    "batch": "--batch",
    "rounds": "-r",
    "tolerance": "--tolerance",
}
"""How parameters are written."""


def inputs_of(model: Model, asked: Asked) -> list[Input]:
    """What is run: the texts, token ids or images that were given, or one of each that is known."""
    import numpy as np

    from ptir.peers.workloads import Input
    from ptir.runtime.recorded import random_images

    if model.reads_texts or "generate" in model.capabilities:
        rows = _rows(model, asked)
        return [Input(name, np.asarray(ids, np.int32)) for name, ids in rows]
    if "transcribe" in model.capabilities:
        return _windows(cast("SpeechModel", model), asked)
    if asked.tokens is not None or asked.files or asked.truncate:
        raise UsageError(f"model {asked.model!r} takes images; give image files alone")
    sees = cast("ImageModel", model)
    if asked.inputs:
        return [Input(one, sees.pixels(one)) for one in asked.inputs]
    return [Input("noise", random_images(sees, 1))]


def _windows(model: SpeechModel, asked: Asked) -> list[Input]:
    """The first window of each recording, and the tokens that are heard in it."""
    import numpy as np

    from ptir.peers.workloads import Input
    from ptir.runtime.speech.stepping import random_windows

    if asked.files or asked.truncate:
        raise UsageError(f"model {asked.model!r} hears; give recordings, and --tokens of a text")
    ids = model.tokens.usual(timestamps=False)
    if asked.tokens is not None:
        ids = model.encode(given_input(None, None, asked.tokens))
    if len(ids) > model.context:
        raise UsageError(f"{len(ids)} tokens do not fit the context of {model.context}; use fewer")
    frames = model.settings.frames
    heard = [(one, model.features(one)[:frames]) for one in asked.inputs]
    given = heard or [("noise", random_windows(model, 1)[0])]
    return [Input(name, np.asarray(ids, np.int32), np.array(window)) for name, window in given]


def _rows(model: Model, asked: Asked) -> list[tuple[str, Sequence[int]]]:
    from ptir.cli.texts import shown

    if asked.tokens is not None:
        if asked.inputs or asked.files:
            raise click.UsageError("give texts or --tokens, not both")
        return [("tokens", model.encode(given_input(None, None, asked.tokens)))]
    if not asked.inputs and not asked.files:
        if model.tokenizer is None:
            return [("ids 1 to 8", model.encode([*range(1, 9)]))]
        texts = [TEXT]
    else:
        texts = given_texts(asked.inputs, asked.files)
    if model.reads_texts:
        encoded = cast("TextModel", model).encode_texts(texts, truncate=asked.truncate)
        ids = [one.ids for one in encoded]
    else:
        if asked.truncate:
            raise UsageError(f"model {asked.model!r} generates; --truncate is for encoders")
        ids = [tuple(_encoded(model, one)) for one in texts]
    return [(shown(text), row) for text, row in zip(texts, ids, strict=True)]


def _encoded(model: Model, text: str) -> list[int]:
    ids = model.encode(text)
    if len(ids) > model.context:
        raise UsageError(
            f"{len(ids)} tokens do not fit the context of {model.context}; shorten the text"
        )
    return ids


def truth_of(path: Path, count: int, labels: Sequence[str]) -> list[int]:
    """The right classes in a file, a line each, by name or number.

    Raises ``UsageError`` for another number of lines than ``count`` and for what is no class.
    """
    lines = read_lines(path, MOST_TRUTH, "right classes")
    if len(lines) != count:
        raise UsageError(
            f"{path}: has {len(lines)} right classes, and there are {count} inputs; give one line"
            " for each, in their order"
        )
    numbers = {label: number for number, label in reversed([*enumerate(labels)])}
    numbers |= {str(number): number for number in range(len(labels)) if str(number) not in numbers}
    found = [numbers.get(line.strip()) for line in lines]
    for line, one in enumerate(found):
        if one is None:
            wrong = unknown_name("class", lines[line].strip()[:80], labels)
            raise UsageError(f"{path}, line {line + 1}: {wrong}; or a number below {len(labels)}")
    return [one for one in found if one is not None]
