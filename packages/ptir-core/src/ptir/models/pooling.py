"""One vector for a text: how the vectors of its tokens become it, as sentence-transformers says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError
from ptir.nn import Linear, Module, last_rows, relu
from ptir.types import F32

Activation: TypeAlias = Callable[[Tensor], Tensor]


def _real(hidden: Tensor, count: Tensor) -> Tensor:
    """Which of the tokens of f32[B,T,D] are a row's own: bool[B,T,1]."""
    batch, length, _ = hidden.shape
    return (F.arange(length) < count.reshape(batch, 1)).reshape(batch, length, 1)


def _numbers(count: Tensor) -> Tensor:
    return F.maximum(count, 1).astype(F32).reshape(-1, 1)


def _sum(hidden: Tensor, count: Tensor) -> Tensor:
    return F.where(_real(hidden, count), hidden, 0.0).sum(axis=1)


def _first(hidden: Tensor, count: Tensor) -> Tensor:
    return hidden[:, 0]


def _max(hidden: Tensor, count: Tensor) -> Tensor:
    return F.where(_real(hidden, count), hidden, -float("inf")).max(axis=1)


def _mean(hidden: Tensor, count: Tensor) -> Tensor:
    return _sum(hidden, count) / _numbers(count)


def _mean_sqrt(hidden: Tensor, count: Tensor) -> Tensor:
    return _sum(hidden, count) / F.sqrt(_numbers(count))


def _weighted_mean(hidden: Tensor, count: Tensor) -> Tensor:
    """Token t weighs t + 1, so that later ones, which a decoder lets see more, weigh more."""
    places = (F.arange(hidden.shape[1]) + 1).astype(F32).reshape(1, -1, 1)
    number = _numbers(count)
    return _sum(hidden * places, count) / (number * (number + 1.0) * 0.5)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent; f32[...] to f32[...]."""
    return F.tanh(x)


def _as_it_is(x: Tensor) -> Tensor:
    return x


POOLINGS: Final = {
    "cls": _first,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt,
    "weightedmean": _weighted_mean,
    "lasttoken": last_rows,
}
"""By sentence-transformers' names, in the order in which it joins what several give.

Each takes f32[B,T,D] and how many tokens of each row are real i32[B], and gives f32[B,D].
"""
DENSE_ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "Tanh": tanh,
    "Identity": _as_it_is,
    "ReLU": relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
}
"""By the names of PyTorch's classes."""


@dataclass(frozen=True)
class Pooling:
    """What each of ``modes`` gives, joined."""

    modes: tuple[str, ...]


@dataclass(frozen=True)
class Dense:
    """A projection and its activation, a key of ``DENSE_ACTIVATIONS``."""

    inputs: int
    outputs: int
    bias: bool
    activation: str


@dataclass(frozen=True)
class Normalize:
    """To the length 1."""


Step: TypeAlias = Dense | Normalize


@dataclass(frozen=True)
class SentenceModules:
    """What a sentence-transformers folder says: pooling, what follows it, and of texts.

    Where it says nothing of pooling, it is the mean. ``max_length`` is the most tokens that a text
    may have, if it says so; ``prompts`` are texts by name that may stand before every text, and
    ``default_prompt`` is the one that does unless another is named. ``activation`` names the class
    of PyTorch that makes a cross-encoder's score of what its head gives.
    """

    pooling: Pooling | None = None
    steps: tuple[Step, ...] = ()
    max_length: int | None = None
    prompts: Mapping[str, str] | None = None
    default_prompt: str | None = None
    activation: str | None = None


MEAN: Final = Pooling(("mean",))
SENTENCE: Final = "sentence"
"""Where a configuration that is built has its ``SentenceModules``, and the module what they are."""


class SentenceEmbedding(Module):
    """The vectors of tokens f32[B,T,D], D the ``size``, to one for each text f32[B,E].

    Raises ``CheckpointError`` for a projection of vectors of another size.
    """

    def __init__(self, said: SentenceModules, size: int) -> None:
        self.said = said
        self.modes = (said.pooling or MEAN).modes
        width = size * len(self.modes)
        for step in said.steps:
            if isinstance(step, Dense):
                if step.inputs != width:
                    raise CheckpointError(
                        f"a Dense module with in_features {step.inputs} follows vectors of {width};"
                        " correct its config.json, or fetch the folder again"
                    )
                width = step.outputs
        dense = [step for step in said.steps if isinstance(step, Dense)]
        self.dense = [Linear(one.inputs, one.outputs, bias=one.bias) for one in dense]

    def __call__(self, hidden: Tensor, count: Tensor) -> Tensor:
        """Of each row the first ``count`` i32[B] tokens are real."""
        parts = [POOLINGS[mode](hidden, count) for mode in self.modes]
        x = parts[0] if len(parts) == 1 else F.concat(parts, axis=-1)
        layers = iter(self.dense)
        for step in self.said.steps:
            if isinstance(step, Dense):
                x = DENSE_ACTIVATIONS[step.activation](next(layers)(x))
            else:
                length = F.sqrt((x * x).sum(axis=-1, keepdims=True))
                x = x / F.maximum(length, 1e-12)
        return x
