"""BERT (Devlin et al. 2018) and its kin: RoBERTa, DistilBERT, MPNet; norms follow each part.

They differ by rows of ``KINDS``: where positions begin, whether tokens have kinds, whether scores
have a bias by distance (MPNet). Attribute names are ours; ``bert_keys`` says what checkpoints have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.bert_keys import BERT, DISTILBERT, MPNET, ROBERTA
from ptir.models.encoder import ACTIVATIONS, Encoder, HeadKind, define_encoder
from ptir.models.fields import flag, real, require_multiple, whole
from ptir.models.images import one_of
from ptir.models.key_layouts import KeyLayout
from ptir.models.masked import WORDS, WordKind, shares_table, word_head
from ptir.nn import Embedding, LayerNorm, Linear, Module
from ptir.types import I32

DENSE_TANH: Final = HeadKind()


@dataclass(frozen=True)
class Kind:
    """What sets a family apart: see the fields of ``Config`` that have these names."""

    first_position: int = 0
    has_kinds: bool = True
    buckets: bool = False
    head: HeadKind = DENSE_TANH


KINDS: Final[Mapping[str, Kind]] = {
    "bert": Kind(),
    "roberta": Kind(first_position=2),
    "xlm-roberta": Kind(first_position=2),
    "distilbert": Kind(has_kinds=False, head=HeadKind("relu")),
    "mpnet": Kind(first_position=2, has_kinds=False, buckets=True),
}
"""By ``model_type``. RoBERTa's and MPNet's positions begin behind that of the padding, 1."""


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation.

    ``positions`` are stored, of which those before ``first_position`` stand for no token. ``kinds``
    of tokens have a vector each, and ``buckets`` of distances a bias for each head; 0 is none.
    """

    vocabulary: int
    size: int
    layers: int
    heads: int
    inner: int
    epsilon: float
    activation: str
    positions: int
    first_position: int
    kinds: int
    buckets: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        config, model = spelled(config), str(config.get("model_type"))
        kind = KINDS[model]
        if config.get("position_embedding_type") not in (None, "absolute"):
            found = short(config["position_embedding_type"])
            raise CheckpointError(
                f"{model}: position_embedding_type {found} is not implemented; absolute is"
            )
        if flag(config, "is_decoder"):
            raise CheckpointError(f"{model}: is_decoder true is not implemented; an encoder is")
        size, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
        named = {"hidden_size": size, "num_attention_heads": heads}
        require_multiple(named, "hidden_size", "num_attention_heads", model)
        return Config(
            whole(config, "vocab_size"),
            size,
            whole(config, "num_hidden_layers"),
            heads,
            whole(config, "intermediate_size"),
            real(config, "layer_norm_eps"),
            one_of(config, "hidden_act", tuple(ACTIVATIONS), "gelu"),
            whole(config, "max_position_embeddings"),
            kind.first_position,
            whole(config, "type_vocab_size") if kind.has_kinds else 0,
            whole(config, "relative_attention_num_buckets") if kind.buckets else 0,
        )


class Embeddings(Module):
    """Token, position and, where there are any, kind of token: their vectors' normalized sum."""

    def __init__(self, config: Config, *, is_head: bool = False) -> None:
        self.word = Embedding(config.vocabulary, config.size, is_head=is_head)
        self.position = Embedding(config.positions, config.size)
        self.kind = Embedding(config.kinds, config.size) if config.kinds else None
        self.norm = LayerNorm(config.size, epsilon=config.epsilon)
        self.first = config.first_position

    def __call__(self, tokens: Tensor, kinds: Tensor) -> Tensor:
        """i32[B,T] and i32[B,T] to f32[B,T,D]."""
        x = self.word(tokens) + self.position(F.arange(tokens.shape[1]) + self.first)
        return self.norm(x if self.kind is None else x + self.kind(kinds))


class Attention(Module):
    """Self-attention of every token to every real one of its row."""

    def __init__(self, config: Config) -> None:
        self.qkv = Linear(config.size, 3 * config.size)
        self.out = Linear(config.size, config.size)
        self.heads = config.heads

    def __call__(self, x: Tensor, count: Tensor, bias: Tensor | None) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]; ``bias`` f32[H,T,T] is added to scores."""
        batch, length, size = x.shape
        fused = self.qkv(x).reshape(batch, length, 3, self.heads, size // self.heads)
        q, k, v = (fused[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        if bias is None:
            seen = F.attention(q, k, v, length=count, causal=False)
        else:
            seen = biased_attention(q, k, v, count, bias)
        return self.out(seen.transpose(0, 2, 1, 3).reshape(batch, length, size))


def biased_attention(q: Tensor, k: Tensor, v: Tensor, count: Tensor, bias: Tensor) -> Tensor:
    """Attention with ``bias`` f32[H,T,T] added to scores, which ``F.attention`` cannot.

    Q, k and v are f32[B,H,T,D], of which the first ``count`` i32[B] keys of a row are seen.
    """
    batch, _, length, size = q.shape
    scores = q @ k.transpose(0, 1, 3, 2) * (1 / math.sqrt(size)) + bias
    seen = F.arange(length) < count.reshape(batch, 1, 1, 1)
    return F.softmax(F.where(seen, scores, -math.inf)) @ v


class Layer(Module):
    """Attention and MLP, each beside a residual and with a norm behind it."""

    def __init__(self, config: Config) -> None:
        self.attention = Attention(config)
        self.norm1 = LayerNorm(config.size, epsilon=config.epsilon)
        self.up = Linear(config.size, config.inner)
        self.down = Linear(config.inner, config.size)
        self.norm2 = LayerNorm(config.size, epsilon=config.epsilon)
        self.activation = ACTIVATIONS[config.activation]

    def __call__(self, x: Tensor, count: Tensor, bias: Tensor | None) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        x = self.norm1(x + self.attention(x, count, bias))
        return self.norm2(x + self.down(self.activation(self.up(x))))


class Bert(Encoder):
    """Tokens through layers that each see all of them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        read = Config.of(config)
        super().__init__(config, read.size, KINDS[str(config["model_type"])].head)
        self.config = read
        self.embeddings = Embeddings(read, is_head=shares_table(config))
        self.relative_bias = Embedding(read.buckets, read.heads) if read.buckets else None
        self.layers = [Layer(read) for _ in range(read.layers)]
        self.buckets = read.buckets
        self.words = word_head(config, _words(config, read), read.size, read.vocabulary)

    @property
    def table(self) -> Tensor:
        """f32[V,D]; see ``Encoder``."""
        return self.embeddings.word.weight

    def hidden(self, tokens: Tensor, kinds: Tensor, count: Tensor) -> Tensor:
        """f32[B,T,D]; see ``TextNetwork``."""
        x, bias = self.embeddings(tokens, kinds), None
        if self.relative_bias is not None:
            length = tokens.shape[1]
            numbers = F.constant(distance_buckets(length, self.buckets)).astype(I32)
            by_distance = self.relative_bias(numbers)
            place = F.arange(length) - F.arange(length).reshape(length, 1) + (length - 1)
            bias = F.embedding(by_distance, place).transpose(2, 0, 1)
        for layer in self.layers:
            x = layer(x, count, bias)
        return x


def _words(config: Mapping[str, Any], read: Config) -> WordKind:
    """BERT's head has its activation, those of its kin the usual one; DistilBERT a fixed norm."""
    own = config["model_type"] in ("bert", "distilbert")
    epsilon = 1e-12 if config["model_type"] == "distilbert" else read.epsilon
    return WordKind(ACTIVATIONS[read.activation if own else "gelu"], epsilon)


FARTHEST: Final = 128
"""The distance from which on all share a bucket."""


def distance_buckets(length: int, buckets: int) -> list[int]:
    """The bucket of each distance from a token to another, from ``1 - length`` to ``length - 1``.

    Half of the buckets are for tokens behind; of each half one half is for one distance each, the
    other grows with the logarithm, in f32 as models are trained (Raffel et al. 2020).
    """
    import numpy as np

    half, exact = buckets // 2, buckets // 4
    far = np.arange(length)
    with np.errstate(divide="ignore"):
        logs = np.log(far.astype(np.float32) / np.float32(exact))
    logs = logs / np.float32(math.log(FARTHEST / exact)) * np.float32(half - exact)
    grown = np.minimum(exact + np.where(far < exact, 0, logs).astype(np.int64), half - 1)
    ours = np.where(far < exact, far, grown)
    found: list[int] = np.concatenate([ours[:0:-1], ours[:1], ours[1:] + half]).tolist()
    return found


# --- configurations ---

_DEFAULTS: Final = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
}
_SPELLED: Final = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}
"""DistilBERT's spellings of keys."""
_TINY: Final = {
    "vocab_size": 512,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 50,
    "max_position_embeddings": 66,
}
_MINILM: Final = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
_IGNORED: Final = ("cls.*", "*pooler.dense.*", "qa_outputs.*")
"""Of heads for next sentences and answers."""


def spelled(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the keys of a DistilBERT as BERT's."""
    names = _SPELLED if config.get("model_type") == "distilbert" else {}
    return {names.get(key, key): value for key, value in config.items()}


def _preset(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as Transformers spells it."""
    names = {ours: theirs for theirs, ours in _SPELLED.items()}
    names = names if config.get("model_type") == "distilbert" else {}
    return {names.get(key, key): value for key, value in config.items()}


def _prepare(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a DistilBERT as BERT's, and only positions behind the padding's."""
    found = spelled(config)
    kind, pad = KINDS[str(config["model_type"])], config.get("pad_token_id")
    if kind.first_position and config.get("model_type") != "mpnet" and pad not in (None, 1):
        raise CheckpointError(
            f"{config['model_type']}: pad_token_id {short(pad)} is not implemented; 1 is, behind"
            " which positions begin"
        )
    return found


def _context(config: Mapping[str, Any]) -> int:
    read = Config.of(config)
    if read.positions <= read.first_position:
        raise CheckpointError(
            f"{config['model_type']}: max_position_embeddings {read.positions} leaves no position:"
            f" the first {read.first_position} stand for no token"
        )
    return read.positions - read.first_position


def _classifier(end: str, classes: int) -> dict[str, Any]:
    return {"architectures": [f"Bert{end}"], "num_labels": classes}


_OF_BERT: Final = {**_DEFAULTS, "vocab_size": 30522, "type_vocab_size": 2}
_OF_ROBERTA: Final = {
    **_DEFAULTS,
    "vocab_size": 50265,
    "type_vocab_size": 2,
    "pad_token_id": 1,
}
_FAMILIES: Final[Mapping[str, tuple[KeyLayout, dict[str, Any], dict[str, dict[str, Any]]]]] = {
    "bert": (
        BERT,
        _OF_BERT,
        {
            "bert-base": {},
            "bert-large": {
                "hidden_size": 1024,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
            },
            "minilm-l6": _MINILM,
            "minilm-l6-reranker": {**_MINILM, **_classifier("ForSequenceClassification", 1)},
            "bert-tiny": _TINY,
            "bert-tiny-classifier": {**_TINY, **_classifier("ForSequenceClassification", 3)},
            "bert-tiny-tagger": {**_TINY, **_classifier("ForTokenClassification", 3)},
            "bert-tiny-words": {**_TINY, "architectures": ["BertForMaskedLM"], WORDS: True},
            "bert-tiny-reranker": {**_TINY, **_classifier("ForSequenceClassification", 1)},
        },
    ),
    "roberta": (
        ROBERTA,
        _OF_ROBERTA,
        {
            "roberta-base": {
                "max_position_embeddings": 514,
                "type_vocab_size": 1,
                "layer_norm_eps": 1e-5,
            },
            "roberta-tiny": {**_TINY, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        },
    ),
    "xlm-roberta": (
        ROBERTA,
        {**_OF_ROBERTA, "vocab_size": 30522},
        {
            "xlm-roberta-base": {
                "vocab_size": 250002,
                "max_position_embeddings": 514,
                "type_vocab_size": 1,
                "layer_norm_eps": 1e-5,
            },
            "xlm-roberta-tiny": {**_TINY, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        },
    ),
    "distilbert": (
        DISTILBERT,
        {**_DEFAULTS, "vocab_size": 30522, "num_hidden_layers": 6},
        {"distilbert-base": {}, "distilbert-tiny": _TINY},
    ),
    "mpnet": (
        MPNET,
        {**_DEFAULTS, "vocab_size": 30527, "relative_attention_num_buckets": 32},
        {
            "mpnet-base": {"max_position_embeddings": 514, "layer_norm_eps": 1e-5},
            "mpnet-tiny": _TINY,
        },
    ),
}
"""By ``model_type``: keys of checkpoints, what a configuration leaves out, presets beyond that."""

for _name, (_keys, _left_out, _presets) in _FAMILIES.items():
    define_encoder(
        _name,
        build=Bert,
        layouts=(_keys,),
        context=_context,
        defaults=_left_out,
        presets={
            preset: _preset({"model_type": _name, **_left_out, **given})
            for preset, given in _presets.items()
        },
        prepare=_prepare,
        ignored=_IGNORED,
    )
