"""What a classifier's classes are called, and which of them are likeliest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Final

from ptir.errors import CheckpointError, UsageError, short
from ptir.files import read_lines

Config = Mapping[str, Any]

MOST_BYTES: Final = 1 << 26
"""Of a file of labels."""


@dataclass(frozen=True)
class Label:
    """A class of an image or a text: its number, its name, and how probable it is, 0 to 1."""

    id: int
    name: str
    probability: float


def class_names(config: Config, count: int) -> tuple[str, ...]:
    """The names of ``count`` classes in a configuration, of Transformers' kind or timm's.

    A class without a name is called by its number, ``class 7``. Raises ``CheckpointError`` where
    the configuration has names of another number of classes.
    """
    held = config.get("id2label")
    listed = config.get("label_names")
    if isinstance(held, Mapping):
        return _numbered(held, count)
    if listed is None:
        return tuple(f"class {number}" for number in range(count))
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise CheckpointError(f"config.json: label_names {short(listed)} must be a list of names")
    _check_count(len(listed), count, "config.json: label_names")
    return tuple(listed)


def _numbered(held: Config, count: int) -> tuple[str, ...]:
    _check_count(len(held), count, "config.json: id2label")
    try:
        by_number = {int(number): str(name) for number, name in held.items()}
    except ValueError as error:
        raise CheckpointError(f"config.json: id2label: {error}; its keys are numbers") from error
    return tuple(by_number.get(number, f"class {number}") for number in range(count))


def _check_count(found: int, count: int, where: str) -> None:
    if found != count:
        raise CheckpointError(
            f"{where} has {found} names, and the classifier {count} classes; use the file that came"
            " with the model"
        )


def read_labels(path: Path, count: int) -> tuple[str, ...]:
    """The names in a text file, one a line; raises ``UsageError`` unless there are ``count``."""
    names = read_lines(path, MOST_BYTES, "labels")
    if len(names) != count:
        raise UsageError(
            f"{path}: has {len(names)} labels, and the model {count} classes; give a file with one"
            " name a line, in the order of the classes"
        )
    return tuple(names)


def check_top_k(top_k: Any) -> None:
    """Raise ``UsageError`` for what is no number of classes to be told."""
    if not isinstance(top_k, Integral) or isinstance(top_k, bool) or top_k < 1:
        raise UsageError(f"top_k {top_k!r}: must be >= 1, an integer")


def likeliest(
    scores: Any, names: Sequence[str], count: int, *, alone: bool = False
) -> tuple[Label, ...]:
    """The ``count`` likeliest classes of ``scores`` f32[C], the likeliest first.

    Probabilities are the softmax of all scores, in f64, or the logistic function of each where
    classes stand ``alone``; of equal ones the first class comes first.
    """
    import numpy as np

    wide = np.asarray(scores, np.float64)
    weights = np.exp(wide - wide.max())
    shares = 0.5 * (1 + np.tanh(0.5 * wide)) if alone else weights / weights.sum()
    best = np.argsort(-shares, kind="stable")[:count]
    return tuple(Label(int(n), names[n], float(shares[n])) for n in best)
