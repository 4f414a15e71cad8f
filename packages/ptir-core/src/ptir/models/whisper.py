"""Whisper (Radford et al. 2022): what was said in 30 s of audio, as tokens.

An encoder reads log-mel features. A decoder, which is a ``CausalModel``, attends to what that gave:
the keys and values of it are a part of its state (``CrossKeysValues``) that is computed once.
Attribute names are the keys of Hugging Face checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError
from ptir.models.causal import CachePositions, Decoder, PartNames
from ptir.models.encoder import ACTIVATIONS
from ptir.models.fields import flag, require_multiple, whole
from ptir.models.images import one_of
from ptir.models.table import HEARS, ModelDefinition, define_model
from ptir.nn import (
    Conv1d,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    cached_attention,
    fused_linear,
    param,
)
from ptir.nn.state import CrossKeysValues, LayerTensors, State

EPSILON: Final = 1e-5
TAPS: Final = 3
SHRINKS: Final = 2
"""Frames of features for each position of the encoder: the stride of its second convolution."""


@dataclass(frozen=True)
class Tower:
    """The sizes of the encoder or the decoder."""

    size: int
    layers: int
    heads: int
    inner: int
    activation: str

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.size // self.heads


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation."""

    encoder: Tower
    decoder: Tower
    mels: int
    source: int
    target: int
    vocabulary: int

    @property
    def frames(self) -> int:
        """Frames of features that the encoder reads."""
        return SHRINKS * self.source

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        if flag(config, "scale_embedding"):
            raise CheckpointError(
                "whisper: scale_embedding true is not implemented; only false is: choose another"
                " checkpoint"
            )
        return Config(
            _tower(config, "encoder"),
            _tower(config, "decoder"),
            whole(config, "num_mel_bins"),
            whole(config, "max_source_positions"),
            whole(config, "max_target_positions"),
            whole(config, "vocab_size"),
        )


def _tower(config: Mapping[str, Any], name: str) -> Tower:
    heads = f"{name}_attention_heads"
    sizes = {"d_model": whole(config, "d_model"), heads: whole(config, heads)}
    require_multiple(sizes, "d_model", heads, "whisper")
    return Tower(
        sizes["d_model"],
        whole(config, f"{name}_layers"),
        sizes[heads],
        whole(config, f"{name}_ffn_dim"),
        one_of(config, "activation_function", tuple(ACTIVATIONS), "gelu"),
    )


class Attention(Module):
    """The projections of an attention; that of keys has no bias."""

    def __init__(self, tower: Tower) -> None:
        self.q_proj = Linear(tower.size, tower.size)
        self.k_proj = Linear(tower.size, tower.size, bias=False)
        self.v_proj = Linear(tower.size, tower.size)
        self.out_proj = Linear(tower.size, tower.size)
        self.heads = tower.heads

    def split(self, x: Tensor) -> Tensor:
        """f32[B,T,D] as heads, f32[B,H,T,D / H]."""
        batch, length, size = x.shape
        return x.reshape(batch, length, self.heads, size // self.heads).transpose(0, 2, 1, 3)

    def merged(self, seen: Tensor) -> Tensor:
        """What heads f32[B,H,T,D / H] saw, projected to f32[B,T,D]."""
        batch, _, length, _ = seen.shape
        return self.out_proj(seen.transpose(0, 2, 1, 3).reshape(batch, length, -1))

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values f32[B,H,T,D / H] of f32[B,T,D]."""
        parts = fused_linear(x, (self.q_proj, self.k_proj, self.v_proj))
        return tuple(map(self.split, parts))


class SelfAttention(Attention):
    """Of every position to every one."""

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        q, k, v = self.projected(x)
        return self.merged(F.attention(q, k, v, causal=False))


class CachedAttention(Attention):
    """Of tokens to those before, whose keys and values are in a cache."""

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        q, k, v = self.projected(x)
        seen, cache = cached_attention(q, k, v, cache, at.start, at.count)
        return self.merged(seen), cache


class CrossAttention(Attention):
    """Of tokens to what the encoder gave."""

    def source(self, encoded: Tensor) -> LayerTensors:
        """Keys and values f32[B,H,S,D / H] of what the encoder gave, f32[B,S,D]."""
        k, v = fused_linear(encoded, (self.k_proj, self.v_proj))
        return self.split(k), self.split(v)

    def __call__(self, x: Tensor, source: LayerTensors) -> Tensor:
        """f32[B,T,D] and those keys and values to f32[B,T,D].

        Several rows may share what was heard: of f32[W,H,S,D / H] each is for B / W rows, which
        are side by side and attend as one row with as many more positions.
        """
        q = self.split(self.q_proj(x.reshape(source[0].shape[0], -1, x.shape[-1])))
        k, v = (kept.astype(q.dtype) for kept in source)
        return self.merged(F.attention(q, k, v, causal=False)).reshape(*x.shape)

    def attention(self, x: Tensor, source: LayerTensors, heads: Sequence[int]) -> Tensor:
        """How much tokens f32[B,T,D] attend to each position, for some heads: f32[B,N,T,S]."""
        chosen = list(heads)
        q = F.stack([self.split(self.q_proj(x))[:, head] for head in chosen], 1)
        k = F.stack([source[0][:, head] for head in chosen], 1).astype(q.dtype)
        scores = (q @ k.transpose(0, 1, 3, 2)) * q.shape[-1] ** -0.5
        return F.softmax(scores)


class Layer(Module):
    """What layers of both towers have: an MLP behind a norm, and the norm of self-attention.

    All that a layer does is beside a residual.
    """

    def __init__(self, tower: Tower) -> None:
        self.self_attn_layer_norm = LayerNorm(tower.size, epsilon=EPSILON)
        self.fc1 = Linear(tower.size, tower.inner)
        self.fc2 = Linear(tower.inner, tower.size)
        self.final_layer_norm = LayerNorm(tower.size, epsilon=EPSILON)
        self.activation = ACTIVATIONS[tower.activation]

    def mlp(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D], with the residual."""
        return x + self.fc2(self.activation(self.fc1(self.final_layer_norm(x))))


class EncoderLayer(Layer):
    """One that sees all positions."""

    def __init__(self, tower: Tower) -> None:
        super().__init__(tower)
        self.self_attn = SelfAttention(tower)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,S,D] to f32[B,S,D]."""
        return self.mlp(x + self.self_attn(self.self_attn_layer_norm(x)))


class DecoderLayer(Layer):
    """One that sees the tokens before and what the encoder gave."""

    def __init__(self, tower: Tower, source: int) -> None:
        super().__init__(tower)
        self.self_attn = CachedAttention(tower)
        self.state = CrossKeysValues(tower.heads, tower.head_dim, source)
        self.encoder_attn = CrossAttention(tower)
        self.encoder_attn_layer_norm = LayerNorm(tower.size, epsilon=EPSILON)

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's state to f32[B,T,D] and the next state."""
        own, source = cache[:2], cache[2:]
        x, own = self.told(x, own, at)
        x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), source)
        return self.mlp(x), (*own, *source)

    def told(self, x: Tensor, own: LayerTensors, at: CachePositions) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] with what is seen of the tokens before, and their keys and values."""
        attended, own = self.self_attn(self.self_attn_layer_norm(x), own, at)
        return x + attended, own


class AudioEncoder(Module):
    """Two convolutions over frames, then layers."""

    def __init__(self, config: Config) -> None:
        tower = config.encoder
        self.conv1 = Conv1d(config.mels, tower.size, TAPS, padding=1)
        self.conv2 = Conv1d(tower.size, tower.size, TAPS, stride=SHRINKS, padding=1)
        self.embed_positions = Positions(config.source, tower.size)
        self.layers = [EncoderLayer(tower) for _ in range(tower.layers)]
        self.layer_norm = LayerNorm(tower.size, epsilon=EPSILON)

    def __call__(self, features: Tensor) -> Tensor:
        """Log-mel features f32[B,2S,M] to f32[B,S,D]."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(features))))
        x = x + self.embed_positions()
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class Positions(Module):
    """A vector for each position, stored though they are sines."""

    def __init__(self, count: int, size: int) -> None:
        self.weight = param(count, size)

    def __call__(self) -> Tensor:
        """Those of all positions, f32[S,D]."""
        return self.weight


class TextDecoder(Decoder):
    """Tokens through layers; its head is its embedding unless another is stored."""

    names = PartNames(norm="layer_norm")
    layers: list[DecoderLayer]

    def __init__(self, config: Config, *, tied: bool) -> None:
        tower = config.decoder
        super().__init__(
            config.vocabulary,
            tower.size,
            [DecoderLayer(tower, config.source) for _ in range(tower.layers)],
            LayerNorm(tower.size, epsilon=EPSILON),
            tied=tied,
        )
        self.embed_positions = Embedding(config.target, tower.size)

    def embedded(self, tokens: Tensor, at: CachePositions) -> Tensor:
        """i32[B,T] to f32[B,T,D]: tokens and their positions."""
        return super().embedded(tokens, at) + self.embed_positions(at.positions)

    def alignment(
        self, tokens: Tensor, state: State, count: Tensor, heads: Sequence[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """How much each of ``tokens`` i32[B,T] attends to what is heard, f32[B,N,T,S].

        And the logits f32[B,T,V]. ``heads`` are N pairs of a layer and a head of it; the result
        has them by layers.
        ``state`` has room for the tokens, of which ``count`` i32[B] are real.
        """
        at = CachePositions.of(F.full(count.shape, 0, "i32"), count, tokens.shape[1])
        x, found = self.embedded(tokens, at), list[Tensor]()
        for number, (layer, before) in enumerate(zip(self.layers, state, strict=True)):
            x, _ = layer.told(x, before[:2], at)
            seen = layer.encoder_attn_layer_norm(x)
            chosen = [head for place, head in heads if place == number]
            if chosen:
                found.append(layer.encoder_attn.attention(seen, before[2:], chosen))
            x = layer.mlp(x + layer.encoder_attn(seen, before[2:]))
        return F.concat(found, 1), self.logits(x)


class Whisper(Module):
    """Both towers (``SpeechNetwork``)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = Config.of(config)
        self.encoder = AudioEncoder(self.config)
        self.decoder = TextDecoder(self.config, tied=flag(config, "tie_word_embeddings", True))

    def __call__(self, features: Tensor) -> State:
        """The keys and values of what is heard, by layer; see ``SpeechNetwork``."""
        encoded = self.encoder(features)
        return tuple(layer.encoder_attn.source(encoded) for layer in self.decoder.layers)

    def alignment(
        self, tokens: Tensor, state: State, count: Tensor, heads: Sequence[tuple[int, int]]
    ) -> tuple[Tensor, Tensor]:
        """See ``SpeechNetwork``."""
        return self.decoder.alignment(tokens, state, count, heads)


_SIZES: Final = {
    "tiny": (384, 4, 6),
    "base": (512, 6, 8),
    "small": (768, 12, 12),
    "medium": (1024, 24, 16),
    "large-v3": (1280, 32, 20),
}
"""By name: the size of vectors, layers of each tower, heads."""
ENGLISH, MULTILINGUAL, V3 = 51864, 51865, 51866
"""Tokens of the vocabularies: for English alone, for 99 languages, for 100."""


def _preset(
    size: int, layers: int, heads: int, vocabulary: int = MULTILINGUAL, **others: Any
) -> dict[str, Any]:
    end = 50256 if vocabulary == ENGLISH else 50257
    return {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        "vocab_size": vocabulary,
        "num_mel_bins": 80,
        "d_model": size,
        "encoder_layers": layers,
        "encoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * size,
        "decoder_layers": layers,
        "decoder_attention_heads": heads,
        "decoder_ffn_dim": 4 * size,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": end + 1,
        **others,
    }


_LARGE: Final = {"vocabulary": V3, "num_mel_bins": 128}

define_model(
    ModelDefinition(
        "whisper",
        build=Whisper,
        context=lambda config: Config.of(config).target,
        prefixes=("model.",),
        renamed={"proj_out.weight": "decoder.lm_head.weight"},
        tied={"decoder.lm_head.weight": "decoder.embed_tokens.weight"},
        layers={f"{side}_layers": f"{side}.layers." for side in ("encoder", "decoder")},
        defaults={"tie_word_embeddings": True, "vocab_size": MULTILINGUAL},
        presets={
            **{f"whisper-{name}": _preset(*_SIZES[name]) for name in [*_SIZES][:-1]},
            "whisper-tiny.en": _preset(*_SIZES["tiny"], ENGLISH),
            "whisper-large-v3": _preset(*_SIZES["large-v3"], **_LARGE),
            "whisper-large-v3-turbo": _preset(*_SIZES["large-v3"], **_LARGE, decoder_layers=4),
            "whisper-micro": _preset(
                24,
                2,
                2,
                512,
                num_mel_bins=10,
                encoder_ffn_dim=50,
                decoder_ffn_dim=50,
                max_source_positions=50,
                max_target_positions=40,
                bos_token_id=450,
                eos_token_id=450,
                pad_token_id=450,
                decoder_start_token_id=451,
            ),
        },
        tokenizer="gpt2",
        capabilities=HEARS,
    )
)
