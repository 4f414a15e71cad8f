"""Vision transformer (Dosovitskiy et al. 2020): patches as tokens, norms before each part.

Attribute names are timm's keys. Those of Transformers and torchvision are rewritten to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.fields import flag, real, require_multiple, whole
from ptir.models.images import define_image_model, one_of, preset
from ptir.models.key_layouts import KeyLayout, Rule
from ptir.nn import Conv2d, LayerNorm, Linear, Module, param

BICUBIC_SHARPNESS: Final = -0.75
"""Of PyTorch's kernel."""


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation, for all kinds of such models."""

    size: int
    layers: int
    heads: int
    inner: int
    epsilon: float
    activation: str
    qkv_bias: bool
    grid: int
    patch: int
    classes: int
    layer_scale: bool = False
    swiglu: bool = False
    causal: bool = False
    norm_first: bool = False
    """Whether tokens are normalized before the first layer too."""
    patch_bias: bool = True
    flat_embeddings: bool = False
    """Whether the class token is stored as [D] and positions as [N,D]."""
    head_sees_patches: bool = False
    """Whether the classifier gets the average of the patches beside the class token."""

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        size, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
        sizes = {"hidden_size": size, "num_attention_heads": heads}
        model = str(config.get("model_type"))
        require_multiple(sizes, "hidden_size", "num_attention_heads", model)
        whole(config, "num_channels")
        patch = whole(config, "patch_size")
        return Config(
            size,
            whole(config, "num_hidden_layers"),
            heads,
            whole(config, "intermediate_size"),
            real(config, "layer_norm_eps"),
            one_of(config, "hidden_act", tuple(ACTIVATIONS), "gelu"),
            flag(config, "qkv_bias", True),
            image_size(config) // patch,
            patch,
            whole(config, "num_labels"),
            norm_first=flag(config, "pre_norm"),
            patch_bias=not flag(config, "pre_norm"),
        )


def image_size(config: Mapping[str, Any]) -> int:
    """The edge of the images that positions were learned for."""
    found = config.get("image_size")
    if isinstance(found, list | tuple) and len(found) == 2:
        if found[0] != found[1]:
            raise CheckpointError(
                f"{config.get('model_type')}: image_size {short(found)} is not square, which is not"
                " implemented"
            )
        config = {**config, "image_size": found[0]}
    edge, patch = whole(config, "image_size"), whole(config, "patch_size")
    if edge < patch:
        raise CheckpointError(
            f"{config.get('model_type')}: image_size {edge} is below patch_size {patch}; check"
            " config.json"
        )
    return edge


def quick_gelu(x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 x)``, as CLIP was trained with; f32[...] to f32[...]."""
    return x / (F.exp(x * -1.702) + 1.0)


def _tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Final = {
    "gelu": F.gelu,
    "quick_gelu": quick_gelu,
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
}


class Attention(Module):
    """Self-attention, of every token to every one unless it is causal."""

    def __init__(self, config: Config) -> None:
        self.qkv = Linear(config.size, 3 * config.size, bias=config.qkv_bias)
        self.proj = Linear(config.size, config.size)
        self.heads, self.causal = config.heads, config.causal

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        batch, length, size = x.shape
        fused = self.qkv(x).reshape(batch, length, 3, self.heads, size // self.heads)
        q, k, v = (fused[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        seen = F.attention(q, k, v, causal=self.causal)
        return self.proj(seen.transpose(0, 2, 1, 3).reshape(batch, length, size))


class MLP(Module):
    """Two projections around an activation."""

    def __init__(self, config: Config) -> None:
        self.fc1 = Linear(config.size, config.inner)
        self.fc2 = Linear(config.inner, config.size)
        self.activation = ACTIVATIONS[config.activation]

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        return self.fc2(self.activation(self.fc1(x)))


class SwiGLU(Module):
    """A gate and what it gates, one below the other in ``w12``, then a projection."""

    def __init__(self, config: Config) -> None:
        self.w12 = Linear(config.size, 2 * config.inner)
        self.w3 = Linear(config.inner, config.size)
        self.inner = config.inner

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        both = self.w12(x)
        return self.w3(F.swiglu(both[..., : self.inner], both[..., self.inner :]))


class LayerScale(Module):
    """A factor for each feature."""

    def __init__(self, size: int) -> None:
        self.gamma = param(size)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[...,D] to f32[...,D]."""
        return x * self.gamma


class Block(Module):
    """Attention and MLP, each behind a norm and beside a residual."""

    def __init__(self, config: Config) -> None:
        self.norm1 = LayerNorm(config.size, epsilon=config.epsilon)
        self.attn = Attention(config)
        self.ls1 = LayerScale(config.size) if config.layer_scale else None
        self.norm2 = LayerNorm(config.size, epsilon=config.epsilon)
        self.mlp = SwiGLU(config) if config.swiglu else MLP(config)
        self.ls2 = LayerScale(config.size) if config.layer_scale else None

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        attended = self.attn(self.norm1(x))
        x = x + (attended if self.ls1 is None else self.ls1(attended))
        made = self.mlp(self.norm2(x))
        return x + (made if self.ls2 is None else self.ls2(made))


class PatchEmbedding(Module):
    """Each patch of an image as one token."""

    def __init__(self, config: Config) -> None:
        patch = config.patch
        self.proj = Conv2d(3, config.size, patch, strides=patch, bias=config.patch_bias)

    def __call__(self, pixels: Tensor) -> Tensor:
        """f32[N,H,W,3] to f32[N,H / patch,W / patch,D], rounded down."""
        return self.proj(pixels)


class VisionTransformer(Module):
    """A class token and patches through layers; a classifier of the class token."""

    def __init__(self, config: Config) -> None:
        self.config = config
        rows = () if config.flat_embeddings else (1,)
        self.cls_token = param(*rows, *rows, config.size)
        self.pos_embed = param(*rows, 1 + config.grid**2, config.size)
        self.patch_embed = PatchEmbedding(config)
        self.norm_pre = None
        if config.norm_first:
            self.norm_pre = LayerNorm(config.size, epsilon=config.epsilon)
        self.blocks = [Block(config) for _ in range(config.layers)]
        self.norm = LayerNorm(config.size, epsilon=config.epsilon)
        self.classes = config.classes
        seen = config.size * (2 if config.head_sees_patches else 1)
        self.head = Linear(seen, config.classes) if config.classes else None

    def tokens(self, pixels: Tensor) -> Tensor:
        """Images f32[N,H,W,3] through all layers: f32[N,1 + patches,D], the class token first."""
        patches = self.patch_embed(pixels)
        batch, height, width, size = patches.shape
        first = self.cls_token.reshape(1, 1, size).broadcast_to(batch, 1, size)
        x = F.concat([first, patches.reshape(batch, height * width, size)], axis=1)
        learned = self.pos_embed.reshape(1, -1, size)
        x = x + positions(learned, self.config.grid, height, width)
        if self.norm_pre is not None:
            x = self.norm_pre(x)
        for block in self.blocks:
            x = block(x)
        return x

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The normalized class token, and scores; see ``ImageNetwork``."""
        x = self.norm(self.tokens(pixels))
        features = x[:, 0]
        if self.head is None:
            return features, None
        if self.config.head_sees_patches:
            return features, self.head(F.concat([features, x[:, 1:].mean(axis=1)], axis=1))
        return features, self.head(features)


def positions(learned: Tensor, grid: int, height: int, width: int) -> Tensor:
    """Positions [1,1 + grid * grid,D] for another number of patches: [1,1 + height * width,D].

    Those of patches are interpolated as PyTorch does bicubically, without smoothing.
    """
    if (height, width) == (grid, grid):
        return learned
    size = learned.shape[2]
    rows = _bicubic(grid, height) @ learned[0, 1:].reshape(grid, grid * size)
    columns = rows.reshape(height, grid, size).transpose(1, 0, 2).reshape(grid, height * size)
    both = (_bicubic(grid, width) @ columns).reshape(width, height, size).transpose(1, 0, 2)
    return F.concat([learned[:, :1], both.reshape(1, height * width, size)], axis=1)


def _bicubic(before: int, after: int) -> Tensor:
    """The matrix f32[after,before] that interpolates along one axis."""
    rows = [[0.0] * before for _ in range(after)]
    for number, row in enumerate(rows):
        place = (number + 0.5) * before / after - 0.5
        floor = math.floor(place)
        for index in range(floor - 1, floor + 3):
            row[min(max(index, 0), before - 1)] += _cubic(abs(place - index))
    return F.constant([weight for row in rows for weight in row]).reshape(after, before)


def _cubic(distance: float) -> float:
    a = BICUBIC_SHARPNESS
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance * distance + 1
    if distance < 2:
        return ((distance - 5) * distance + 8) * distance * a - 4 * a
    return 0.0


def _build(config: Mapping[str, Any]) -> VisionTransformer:
    return VisionTransformer(Config.of(config))


def transformers_rules(base: str) -> tuple[Rule, ...]:
    """The keys of Transformers' model with this prefix, for what all kinds have."""
    before = rf"(?:{base}\.)?"
    layer = before + r"encoder\.layer\.(\d+)\."
    parts = "query|key|value"
    return (
        (
            layer + rf"attention\.attention\.({parts})\.(weight|bias)",
            lambda m: f"blocks.{m[1]}.attn.qkv.{m[3]}#{parts.split('|').index(m[2])}",
        ),
        (layer + r"attention\.output\.dense\.(.+)", r"blocks.\1.attn.proj.\2"),
        (before + r"embeddings\.cls_token", "cls_token"),
        (before + r"embeddings\.position_embeddings", "pos_embed"),
        (before + r"embeddings\.patch_embeddings\.projection\.(.+)", r"patch_embed.proj.\1"),
        (before + r"layernorm\.(.+)", r"norm.\1"),
        (r"classifier\.(.+)", r"head.\1"),
    )


TRANSFORMERS: Final = KeyLayout(
    "transformers",
    mark=r"(?:vit\.)?encoder\.layer\.0\.layernorm_before\.weight",
    rules=(
        *transformers_rules("vit"),
        (r"(?:vit\.)?encoder\.layer\.(\d+)\.layernorm_before\.(.+)", r"blocks.\1.norm1.\2"),
        (r"(?:vit\.)?encoder\.layer\.(\d+)\.layernorm_after\.(.+)", r"blocks.\1.norm2.\2"),
        (r"(?:vit\.)?encoder\.layer\.(\d+)\.intermediate\.dense\.(.+)", r"blocks.\1.mlp.fc1.\2"),
        (r"(?:vit\.)?encoder\.layer\.(\d+)\.output\.dense\.(.+)", r"blocks.\1.mlp.fc2.\2"),
    ),
)
_LAYER: Final = r"encoder\.layers\.encoder_layer_(\d+)\."
TORCHVISION: Final = KeyLayout(
    "torchvision",
    mark=r"conv_proj\.weight",
    rules=(
        (r"class_token", "cls_token"),
        (r"conv_proj\.(.+)", r"patch_embed.proj.\1"),
        (r"encoder\.pos_embedding", "pos_embed"),
        (_LAYER + r"ln_([12])\.(.+)", r"blocks.\1.norm\2.\3"),
        (_LAYER + r"self_attention\.in_proj_(weight|bias)", r"blocks.\1.attn.qkv.\2"),
        (_LAYER + r"self_attention\.out_proj\.(.+)", r"blocks.\1.attn.proj.\2"),
        (_LAYER + r"mlp\.(?:0|linear_1)\.(.+)", r"blocks.\1.mlp.fc1.\2"),
        (_LAYER + r"mlp\.(?:3|linear_2)\.(.+)", r"blocks.\1.mlp.fc2.\2"),
        (r"encoder\.ln\.(.+)", r"norm.\1"),
        (r"heads\.head\.(.+)", r"head.\1"),
    ),
    defaults={"layer_norm_eps": 1e-6},
)
TIMM: Final = KeyLayout("timm", mark=r"blocks\.0\.norm1\.weight", defaults={"layer_norm_eps": 1e-6})

_DEFAULTS: Final = {
    "num_channels": 3,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "qkv_bias": True,
}


def sizes(size: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    """The keys of a transformer whose MLP is four times as wide."""
    return {
        "hidden_size": size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * size,
        **more,
    }


SIZES: Final = {
    "tiny": sizes(192, 12, 3),
    "small": sizes(384, 12, 6),
    "base": sizes(768, 12, 12),
    "large": sizes(1024, 24, 16),
}

define_image_model(
    "vit",
    build=_build,
    layouts=(TRANSFORMERS, TORCHVISION, TIMM),
    head="head.weight",
    ignored=("*pooler.dense.*", "*embeddings.mask_token"),
    defaults=_DEFAULTS,
    presets={
        **{
            f"vit-{name}-16": preset("vit", **_DEFAULTS | SIZES[name])
            for name in ("small", "base", "large")
        },
        "vit-tiny": preset("vit", **_DEFAULTS | sizes(24, 2, 2, image_size=32, patch_size=8))
        | {"num_labels": 10},
    },
)
