"""What encoders of text share: what is made of the vectors of tokens, and their definition.

An encoder sees a whole text at once. A family's class gives a vector for each token (``hidden``). A
head scores texts, or tokens; what a sentence-transformers folder says makes one vector of a text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.fields import flag, whole
from ptir.models.images import Config, stored_classes
from ptir.models.key_layouts import KeyLayout, arranged, layout_of
from ptir.models.masked import WordHead, with_words
from ptir.models.pooling import (
    POOLINGS,
    SENTENCE,
    Activation,
    SentenceEmbedding,
    SentenceModules,
    tanh,
)
from ptir.models.table import READS, Described, ModelDefinition, define_model
from ptir.models.vit import ACTIVATIONS as OF_IMAGES
from ptir.nn import LayerNorm, Linear, Module, relu
from ptir.params.source import ParamSource

ACTIVATIONS: Final[Mapping[str, Activation]] = {
    **OF_IMAGES,
    "relu": relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": tanh,
}
"""By the names that Transformers' configurations have for them."""
OUTPUT: Final = "head.out.weight"
"""The weight of a classifier, [classes, features]."""
PROJECTED: Final = "classifier_projected"
"""The key of a configuration that says whether a classifier of texts has a projection before it,
where its family has one: files of GGUF may hold the classifier alone."""
OF_TEXTS, OF_TOKENS = "texts", "tokens"
_CLASSES: Final = {
    "ForSequenceClassification": OF_TEXTS,
    "ForTokenClassification": OF_TOKENS,
}
"""How names of Transformers' classes end, and what their classifier is of."""


@dataclass(frozen=True)
class HeadKind:
    """What a family has between the vectors of tokens and its classifier.

    A text is first pooled by ``pooling``. Then there are a projection, which adds something where
    it has a ``bias``, its ``activation`` and, where ``norm`` is an epsilon, a norm without bias;
    none of them where it is not ``projected``. Tokens go through them too where these are
    ``of_tokens``.
    """

    activation: str = "tanh"
    bias: bool = True
    norm: float | None = None
    norm_bias: bool = False
    of_tokens: bool = False
    pooling: str = "cls"
    projected: bool = True


class Head(Module):
    """A classifier of texts, or of each of their tokens."""

    def __init__(self, kind: HeadKind, size: int, classes: int, of: str) -> None:
        dense = kind.projected and (of == OF_TEXTS or kind.of_tokens)
        self.dense = Linear(size, size, bias=kind.bias) if dense else None
        self.norm = None
        if dense and kind.norm is not None:
            self.norm = LayerNorm(size, epsilon=kind.norm, bias=kind.norm_bias)
        self.out = Linear(size, classes)
        self.activation = ACTIVATIONS[kind.activation]
        self.pooling = POOLINGS[kind.pooling] if of == OF_TEXTS else None

    def __call__(self, hidden: Tensor, count: Tensor) -> Tensor:
        """Scores f32[B,classes], or f32[B,T,classes] of each token, of f32[B,T,D]."""
        x = hidden if self.pooling is None else self.pooling(hidden, count)
        if self.dense is not None:
            x = self.activation(self.dense(x))
        return self.out(x if self.norm is None else self.norm(x))


class Encoder(Module, ABC):
    """What is made of a family's vectors (``TextNetwork``); its class says how they come about.

    The configuration's ``num_labels`` are the classes of its head, and ``SENTENCE`` what is made of
    a text.
    """

    def __init__(self, config: Config, size: int, kind: HeadKind) -> None:
        self.classes = whole({"num_labels": 0, **config}, "num_labels")
        self.scored = scored(config) if self.classes else ""
        kind = replace(kind, projected=flag(config, PROJECTED, True))
        self.head_kind = kind if self.classes else None
        self.head = Head(kind, size, self.classes, self.scored) if self.classes else None
        said = config.get(SENTENCE) or SentenceModules()
        self.sentence = SentenceEmbedding(said, size)
        self.words: WordHead | None = None

    @abstractmethod
    def hidden(self, tokens: Tensor, kinds: Tensor, count: Tensor) -> Tensor:
        """A vector for each token; see ``TextNetwork``."""

    def __call__(self, tokens: Tensor, kinds: Tensor, count: Tensor) -> Tensor:
        """Scores where there is a head, else the vectors of tokens; see ``TextNetwork``."""
        hidden = self.hidden(tokens, kinds, count)
        return hidden if self.head is None else self.head(hidden, count)

    def embedding(self, tokens: Tensor, kinds: Tensor, count: Tensor) -> Tensor:
        """A vector for each text; see ``TextNetwork``."""
        return self.sentence(self.hidden(tokens, kinds, count), count)

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """The vectors of all tokens, f32[V,D]."""

    def fill(self, tokens: Tensor, kinds: Tensor, count: Tensor, places: Tensor) -> Tensor:
        """Scores f32[B,M,V] of all tokens at the ``places`` i32[B,M] of texts; see ``TextNetwork``.

        Raises ``ValueError`` for a model without a head for masked words.
        """
        if self.words is None:
            raise ValueError("a model without a head for masked words fills none")
        hidden = self.hidden(tokens, kinds, count)
        batch, length, size = hidden.shape
        rows = F.arange(batch).reshape(batch, 1) * length + places
        return self.words(F.embedding(hidden.reshape(batch * length, size), rows), self.table)


def scored(config: Config) -> str:
    """What the classifier is of, ``OF_TEXTS`` or ``OF_TOKENS``, as ``architectures`` say.

    Raises ``CheckpointError`` where they say neither: the same weights may be either.
    """
    said = config.get("architectures")
    names = said if isinstance(said, list) else []
    for name in map(str, names):
        for end, found in _CLASSES.items():
            if name.endswith(end):
                return found
    raise CheckpointError(
        f"{config.get('model_type')}: a classifier is stored, and architectures {short(said)} in"
        f" config.json do not say of what: a name that ends in {' or '.join(_CLASSES)} does"
    )


def define_encoder(
    model_type: str,
    *,
    build: Callable[[Config], Any],
    layouts: Sequence[KeyLayout],
    context: Callable[[Config], int],
    defaults: Config,
    presets: Mapping[str, Config],
    prepare: Callable[[Config], Config] = dict,
    ignored: tuple[str, ...] = (),
    words: Mapping[str, str] | None = None,
) -> ModelDefinition:
    """Define a family that reads texts; arguments are as in ``ModelDefinition``.

    ``layouts`` are the keys of checkpoints, where they are not its own attributes. What a head for
    another purpose leaves beside an encoder is ignored. ``words`` are prefixes of a head for masked
    words by what they become, where they are a classifier's too.
    """

    def arrange(config: Config, source: ParamSource) -> Described:
        layout = layout_of(layouts, source.names())
        if layout is not None:
            source = arranged(source, layout)
        config, source = with_words(config, source, words or {}, OUTPUT)
        return {**config, "num_labels": stored_classes(config, source, OUTPUT)}, source

    return define_model(
        ModelDefinition(
            model_type,
            build=build,
            context=context,
            ignored=("*.position_ids", "head.dense.*", "head.norm.*", *ignored),
            defaults=defaults,
            presets=presets,
            tokenizer="gpt2",
            layers={"num_hidden_layers": "layers."},
            prepare=prepare,
            capabilities=READS,
            arrange=arrange,
            key_layouts=tuple(layouts),
        )
    )
