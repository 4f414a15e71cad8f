"""Heads for masked words (Devlin et al. 2018): a score of each token of the vocabulary.

A vector goes through a projection, an activation and a norm, and is then compared with the vectors
of all tokens, which are the embedding's unless a checkpoint has others. Families differ by the
names of the tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.models.fields import flag
from ptir.nn import LayerNorm, Linear, Module, param
from ptir.params.source import ParamSource, RenamedSource

WORDS: Final = "masked_words"
"""The key of a configuration that says whether there is such a head."""
OWN_WORDS: Final = "masked_words_own"
"""The key that says whether its vectors of tokens are others than the embedding's."""
PREFIX: Final = "words."
_NEEDED: Final = ("words.dense.weight", "words.norm.weight")
_OUT: Final = "words.out.weight"
_BIASES: Final = ("words.out.bias", "words.bias")
"""Where a bias is stored; where both are, they are one."""
_FOR_WORDS: Final = ("ForMaskedLM", "ForPreTraining")
"""How names of Transformers' classes end that have such a head."""


@dataclass(frozen=True)
class WordKind:
    """What sets a family's head apart: its activation, the norm's epsilon, and its biases."""

    activation: Callable[[Tensor], Tensor]
    epsilon: float
    bias: bool = True
    norm_bias: bool = True
    out_bias: bool = True


class WordHead(Module):
    """Scores of all tokens for vectors of a text."""

    def __init__(self, kind: WordKind, size: int, vocabulary: int, own: bool) -> None:
        self.dense = Linear(size, size, bias=kind.bias)
        self.norm = LayerNorm(size, epsilon=kind.epsilon, bias=kind.norm_bias)
        self.out = Linear(size, vocabulary, bias=False) if own else None
        self.bias = param(vocabulary) if kind.out_bias else None
        self.activation = kind.activation

    def __call__(self, x: Tensor, table: Tensor) -> Tensor:
        """f32[...,D] to f32[...,V]; ``table`` [V,D] are the vectors of tokens."""
        x = self.norm(self.activation(self.dense(x)))
        weight = table if self.out is None else self.out.weight
        return F.linear(x, weight, self.bias, layout="oi")


def word_head(
    config: Mapping[str, Any], kind: WordKind, size: int, vocabulary: int
) -> WordHead | None:
    """The head that a configuration has; None where it has none."""
    if not flag(config, WORDS):
        return None
    return WordHead(kind, size, vocabulary, flag(config, OWN_WORDS))


def shares_table(config: Mapping[str, Any]) -> bool:
    """Whether the embedding is multiplied too, for a head without vectors of its own."""
    return flag(config, WORDS) and not flag(config, OWN_WORDS)


def with_words(
    config: Mapping[str, Any], source: ParamSource, moved: Mapping[str, str], classifier: str
) -> tuple[Mapping[str, Any], ParamSource]:
    """A configuration that says whether a head for masked words is stored, and its tensors.

    They are called ``words.``; ``moved`` are prefixes of a family whose classifiers' tensors have
    the same names, by what they become. A checkpoint with a ``classifier`` is one of that alone.
    """
    names = source.names()
    said = config.get("architectures")
    classes = said if isinstance(said, list) else []
    for_words = any(str(one).endswith(_FOR_WORDS) for one in classes)
    kept = {name: name for name in names}
    if for_words and classifier not in names:
        kept = {_moved(name, moved): name for name in names}
    found = classifier not in kept and all(name in kept for name in _NEEDED)
    own = found and _OUT in kept and config.get("tie_word_embeddings") is False
    bias = next((kept[name] for name in _BIASES if name in kept), None)
    held = {new: old for new, old in kept.items() if not new.startswith(PREFIX)}
    if found:
        left = (*_BIASES, *(() if own else (_OUT,)))
        held = {new: old for new, old in kept.items() if new not in left}
        held |= {} if bias is None else {"words.bias": bias}
    return {**config, WORDS: found, OWN_WORDS: own}, RenamedSource(source, held)


def _moved(name: str, prefixes: Mapping[str, str]) -> str:
    for prefix, ours in prefixes.items():
        if name.startswith(prefix):
            return f"{ours}{name.removeprefix(prefix)}"
    return name
