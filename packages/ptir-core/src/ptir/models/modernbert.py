"""ModernBERT (Warner et al. 2024): norms before each part, rotated heads, windows, gated MLPs.

Most layers see only tokens near by, on both sides. Attribute names are Transformers' keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.models.encoder import ACTIVATIONS, Encoder, HeadKind, define_encoder
from ptir.models.fields import flag, listed, real, require_multiple, whole
from ptir.models.images import one_of
from ptir.models.key_layouts import KeyLayout
from ptir.models.llama import SLIDING
from ptir.models.masked import WordKind, shares_table, word_head
from ptir.models.rotation import FULL, Rotation, rotation
from ptir.nn import Embedding, LayerNorm, Linear, Module
from ptir.types import I32


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation.

    ``reach`` is how many tokens on either side a layer of ``kinds`` ``SLIDING`` sees.
    """

    vocabulary: int
    size: int
    heads: int
    inner: int
    epsilon: float
    activation: str
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    reach: int
    kinds: tuple[str, ...]
    rotations: Mapping[str, Rotation]

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        size, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
        named = {"hidden_size": size, "num_attention_heads": heads}
        require_multiple(named, "hidden_size", "num_attention_heads", "modernbert")
        layers = whole(config, "num_hidden_layers")
        return Config(
            whole(config, "vocab_size"),
            size,
            heads,
            whole(config, "intermediate_size"),
            real(config, "norm_eps"),
            one_of(config, "hidden_activation", tuple(ACTIVATIONS), "gelu"),
            flag(config, "norm_bias"),
            flag(config, "attention_bias"),
            flag(config, "mlp_bias"),
            whole(config, "local_attention") // 2,
            listed(config, "layer_types", (FULL, SLIDING), layers),
            {kind: rotation(config, "modernbert", size // heads, kind) for kind in (FULL, SLIDING)},
        )


class Embeddings(Module):
    """Normalized rows of the table of tokens."""

    def __init__(self, config: Config, *, is_head: bool = False) -> None:
        self.tok_embeddings = Embedding(config.vocabulary, config.size, is_head=is_head)
        self.norm = LayerNorm(config.size, epsilon=config.epsilon, bias=config.norm_bias)

    def __call__(self, tokens: Tensor) -> Tensor:
        """i32[B,T] to f32[B,T,D]."""
        return self.norm(self.tok_embeddings(tokens))


class Attention(Module):
    """Self-attention of every token to every real one of its row, or to those within reach."""

    def __init__(self, config: Config, kind: str) -> None:
        self.Wqkv = Linear(config.size, 3 * config.size, bias=config.attention_bias)
        self.Wo = Linear(config.size, config.size, bias=config.attention_bias)
        self.heads, self.rotation = config.heads, config.rotations[kind]
        self.reach = config.reach if kind == SLIDING else None

    def __call__(self, x: Tensor, count: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        batch, length, size = x.shape
        fused = self.Wqkv(x).reshape(batch, length, 3, self.heads, size // self.heads)
        q, k, v = (fused[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        places = F.arange(length).reshape(1, length).broadcast_to(batch, length)
        q, k = self.rotation.rotated(q, k, places, length)
        if self.reach is None:
            seen = F.attention(q, k, v, length=count, causal=False)
        else:
            # A window of both sides is one of the past, seen from ``reach`` tokens further on.
            ahead = F.full((batch,), self.reach, I32)
            window = 2 * self.reach + 1
            seen = F.attention(q, k, v, start=ahead, length=count, causal=True, window=window)
        return self.Wo(seen.transpose(0, 2, 1, 3).reshape(batch, length, size))


class MLP(Module):
    """What is activated and its gate, one below the other in ``Wi``, then a projection."""

    def __init__(self, config: Config) -> None:
        self.Wi = Linear(config.size, 2 * config.inner, bias=config.mlp_bias)
        self.Wo = Linear(config.inner, config.size, bias=config.mlp_bias)
        self.inner, self.activation = config.inner, ACTIVATIONS[config.activation]

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        both = self.Wi(x)
        return self.Wo(self.activation(both[..., : self.inner]) * both[..., self.inner :])


class Layer(Module):
    """Attention and MLP, each behind a norm and beside a residual.

    The first layer has no norm before its attention: the embeddings are normalized.
    """

    def __init__(self, config: Config, number: int) -> None:
        norm = LayerNorm(config.size, epsilon=config.epsilon, bias=config.norm_bias)
        self.attn_norm = norm if number else None
        self.attn = Attention(config, config.kinds[number])
        self.mlp_norm = LayerNorm(config.size, epsilon=config.epsilon, bias=config.norm_bias)
        self.mlp = MLP(config)

    def __call__(self, x: Tensor, count: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        x = x + self.attn(x if self.attn_norm is None else self.attn_norm(x), count)
        return x + self.mlp(self.mlp_norm(x))


class ModernBert(Encoder):
    """Tokens through layers, and a norm behind the last."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        read = Config.of(config)
        head = HeadKind(
            one_of(config, "classifier_activation", tuple(ACTIVATIONS), "gelu"),
            bias=flag(config, "classifier_bias"),
            norm=read.epsilon,
            norm_bias=read.norm_bias,
            of_tokens=True,
            pooling=one_of(config, "classifier_pooling", ("cls", "mean"), "cls"),
        )
        super().__init__(config, read.size, head)
        self.config = read
        self.embeddings = Embeddings(read, is_head=shares_table(config))
        self.layers = [Layer(read, number) for number in range(len(read.kinds))]
        self.final_norm = LayerNorm(read.size, epsilon=read.epsilon, bias=read.norm_bias)
        words = WordKind(
            ACTIVATIONS[head.activation],
            read.epsilon,
            head.bias,
            read.norm_bias,
            flag(config, "decoder_bias", True),
        )
        self.words = word_head(config, words, read.size, read.vocabulary)

    @property
    def table(self) -> Tensor:
        """f32[V,D]; see ``Encoder``."""
        return self.embeddings.tok_embeddings.weight

    def hidden(self, tokens: Tensor, kinds: Tensor, count: Tensor) -> Tensor:
        """f32[B,T,D]; see ``TextNetwork``. All tokens are of one kind here."""
        x = self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x, count)
        return self.final_norm(x)


TRANSFORMERS: Final = KeyLayout(
    "transformers",
    mark=r"(?:model\.)?embeddings\.tok_embeddings\.weight",
    rules=(
        (r"model\.(.+)", r"\1"),
        (r"classifier\.(.+)", r"head.out.\1"),
        (r"decoder\.(.+)", r"words.out.\1"),
    ),
)

_DEFAULTS: Final = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "local_attention": 128,
}
_EVERY: Final = "global_attn_every_n_layers"
_THETAS: Final = {FULL: ("global_rope_theta", 160000.0), SLIDING: ("local_rope_theta", 10000.0)}
"""How early configurations spell the bases of rotations, and what they are by default."""


def _prepare(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Kinds of layers and their rotations as later configurations spell them."""
    found = dict(config)
    if found.get("layer_types") is None:
        every = whole({_EVERY: 3, **config}, _EVERY)
        layers = whole({**_DEFAULTS, **config}, "num_hidden_layers")
        found["layer_types"] = [SLIDING if n % every else FULL for n in range(layers)]
    if found.get("rope_parameters") is None:
        found["rope_parameters"] = {
            kind: {"rope_type": "default", "rope_theta": config.get(key) or theta}
            for kind, (key, theta) in _THETAS.items()
        }
    return found


def _preset(**given: Any) -> Mapping[str, Any]:
    return _prepare({"model_type": "modernbert", **_DEFAULTS, **given})


define_encoder(
    "modernbert",
    build=ModernBert,
    layouts=(TRANSFORMERS,),
    context=lambda config: whole(config, "max_position_embeddings"),
    defaults=_DEFAULTS,
    presets={
        "modernbert-base": _preset(),
        "modernbert-large": _preset(
            hidden_size=1024,
            intermediate_size=2624,
            num_hidden_layers=28,
            num_attention_heads=16,
        ),
        "modernbert-tiny": _preset(
            vocab_size=512,
            hidden_size=24,
            intermediate_size=30,
            num_hidden_layers=4,
            num_attention_heads=2,
            max_position_embeddings=64,
            local_attention=8,
            pad_token_id=0,
        ),
    },
    prepare=_prepare,
    ignored=("*.inv_freq",),
    words={"head.dense.": "words.dense.", "head.norm.": "words.norm."},
)
