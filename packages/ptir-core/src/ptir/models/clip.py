"""CLIP (Radford et al. 2021): an image and a text, each as one vector, near where they match.

Both towers are the layers of ``vit``, under Transformers' names of the towers. Its keys inside them
are rewritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.fields import real, require_multiple, whole
from ptir.models.images import define_image_model, one_of
from ptir.models.key_layouts import KeyLayout, Rule
from ptir.models.table import MATCHES, SEES
from ptir.models.vit import ACTIVATIONS, Block, Config, VisionTransformer, sizes
from ptir.nn import Embedding, LayerNorm, Linear, Module, last_rows, param

TEXT_DEFAULTS: Final = {
    "vocab_size": 49408,
    **sizes(512, 12, 8),
    "max_position_embeddings": 77,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
    "bos_token_id": 49406,
}
VISION_DEFAULTS: Final = {
    "num_channels": 3,
    **sizes(768, 12, 12),
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration says of its texts; raises ``CheckpointError``."""
    return {**TEXT_DEFAULTS, **_part(config, "text_config"), "model_type": "clip"}


def mark_tokens(said: Mapping[str, Any]) -> tuple[int, int]:
    """The tokens before and behind a text; early files say 0 and 2 and mean the last two.

    Raises ``CheckpointError`` for what is no token of the vocabulary.
    """
    rows = whole(said, "vocab_size")
    begin, end = whole(said, "bos_token_id"), whole(said, "eos_token_id")
    if end == 2:
        begin, end = rows - 2, rows - 1
    if max(begin, end) >= rows:
        raise CheckpointError(
            f"clip: bos_token_id {begin} and eos_token_id {end} must be below vocab_size {rows};"
            " correct config.json, or fetch the file again"
        )
    return begin, end


def vision_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What it says of its images: a part of it, or all where the model is for images alone."""
    alone = config.get("model_type") == "clip_vision_model"
    given = config if alone else _part(config, "vision_config")
    return {**VISION_DEFAULTS, **given, "model_type": "clip", "num_labels": 0}


def _part(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A part, and what an older key says, which is meant where both are there."""
    parts = [config.get(name) or {} for name in (key, f"{key}_dict")]
    for part in parts:
        if not isinstance(part, Mapping):
            raise CheckpointError(f"clip: {key} {short(part)} in config.json must be an object")
    return {**parts[0], **parts[1]}


class TextTransformer(Module):
    """Tokens through layers, each of which sees those before it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        size, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
        named = {"hidden_size": size, "num_attention_heads": heads}
        require_multiple(named, "hidden_size", "num_attention_heads", "clip")
        read = Config(
            size,
            whole(config, "num_hidden_layers"),
            heads,
            whole(config, "intermediate_size"),
            real(config, "layer_norm_eps"),
            one_of(config, "hidden_act", tuple(ACTIVATIONS), "quick_gelu"),
            qkv_bias=True,
            grid=1,
            patch=1,
            classes=0,
            causal=True,
        )
        self.token_embedding = Embedding(whole(config, "vocab_size"), size)
        self.position_embedding = Embedding(whole(config, "max_position_embeddings"), size)
        self.blocks = [Block(read) for _ in range(read.layers)]
        self.norm = LayerNorm(size, epsilon=read.epsilon)

    def __call__(self, tokens: Tensor, count: Tensor) -> Tensor:
        """What stands at the last of ``count`` i32[B] tokens i32[B,T] of each row: f32[B,D]."""
        x = self.token_embedding(tokens) + self.position_embedding(F.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(last_rows(x, count))


class CLIP(Module):
    """Both towers, each with a projection to one space; those that are stored."""

    classes = 0

    def __init__(self, config: Mapping[str, Any]) -> None:
        seen = Config.of(vision_config(config))
        self.vision = VisionTransformer(
            replace(seen, norm_first=True, patch_bias=False, flat_embeddings=True)
        )
        self.visual_projection = None
        if config.get("projects", True):
            shared = whole(config, "projection_dim")
            self.visual_projection = Linear(seen.size, shared, bias=False)
        self.text: TextTransformer | None = None
        if config.get("model_type") == "clip":
            written = text_config(config)
            mark_tokens(written)
            self.text = TextTransformer(written)
            size, shared = whole(written, "hidden_size"), whole(config, "projection_dim")
            self.text_projection = Linear(size, shared, bias=False)
            self.logit_scale = param()

    def __call__(self, pixels: Tensor) -> tuple[Tensor, None]:
        """Images f32[N,H,W,3] in the space that texts share f32[N,P]; see ``ImageNetwork``."""
        features, _ = self.vision(pixels)
        return features if self.visual_projection is None else self.visual_projection(
            features
        ), None

    def texts(self, tokens: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Texts of ``count`` i32[B] tokens i32[B,T] there f32[B,P], and the factor of scores f32[].

        A score is the cosine of an image's vector and a text's, times the factor.
        """
        assert self.text is not None, "a model of images alone takes no text"
        return self.text_projection(self.text(tokens, count)), F.exp(self.logit_scale)


def _layers(tower: str, ours: str) -> tuple[Rule, ...]:
    layer = rf"{tower}encoder\.layers\.(\d+)\."
    return (
        (
            layer + r"self_attn\.([qkv])_proj\.(.+)",
            lambda m: f"{ours}.blocks.{m[1]}.attn.qkv.{m[3]}#{'qkv'.index(m[2])}",
        ),
        (layer + r"self_attn\.out_proj\.(.+)", rf"{ours}.blocks.\1.attn.proj.\2"),
        (layer + r"layer_norm([12])\.(.+)", rf"{ours}.blocks.\1.norm\2.\3"),
        (layer + r"mlp\.(.+)", rf"{ours}.blocks.\1.mlp.\2"),
    )


_SEEN: Final = r"(?:vision_model\.)?"
TRANSFORMERS: Final = KeyLayout(
    "transformers",
    mark=_SEEN + r"pre_layrnorm\.weight",
    rules=(
        *_layers(_SEEN, "vision"),
        *_layers(r"text_model\.", "text"),
        (_SEEN + r"embeddings\.class_embedding", "vision.cls_token"),
        (_SEEN + r"embeddings\.patch_embedding\.(.+)", r"vision.patch_embed.proj.\1"),
        (_SEEN + r"embeddings\.position_embedding\.weight", "vision.pos_embed"),
        (_SEEN + r"pre_layrnorm\.(.+)", r"vision.norm_pre.\1"),
        (_SEEN + r"post_layernorm\.(.+)", r"vision.norm.\1"),
        (r"text_model\.embeddings\.(token|position)_embedding\.(.+)", r"text.\1_embedding.\2"),
        (r"text_model\.final_layer_norm\.(.+)", r"text.norm.\1"),
    ),
)

PREPROCESSING: Final = {"image_processor_type": "CLIPImageProcessor"}
"""All is as that class has it."""


def _prepare(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The number of tokens at the top too, where every model says it."""
    return {**config, "vocab_size": whole(text_config(config), "vocab_size")}


def _preset(projection: int, vision: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "clip",
        "projection_dim": projection,
        "vision_config": {**VISION_DEFAULTS, **vision},
        "text_config": {**TEXT_DEFAULTS, **text},
        "vocab_size": text.get("vocab_size", TEXT_DEFAULTS["vocab_size"]),
    }


_IGNORED: Final = ("*.position_ids",)
_TINY: Final = sizes(24, 2, 2)

define_image_model(
    "clip",
    build=CLIP,
    layouts=(TRANSFORMERS,),
    head="",
    ignored=_IGNORED,
    defaults={"projection_dim": 512},
    presets={
        "clip-base-32": _preset(512, {}, {}),
        "clip-base-16": _preset(512, {"patch_size": 16}, {}),
        "clip-large-14": _preset(
            768, {**sizes(1024, 24, 16), "patch_size": 14}, sizes(768, 12, 12)
        ),
        "clip-tiny": _preset(
            20,
            {**_TINY, "image_size": 32, "patch_size": 8},
            {**_TINY, "vocab_size": 512, "eos_token_id": 511, "bos_token_id": 510},
        ),
    },
    preprocessing=PREPROCESSING,
    capabilities=MATCHES,
    context=lambda config: whole(text_config(config), "max_position_embeddings"),
    prepare=_prepare,
    tokenizer="gpt2",
)
define_image_model(
    "clip_vision_model",
    build=CLIP,
    layouts=(TRANSFORMERS,),
    head="",
    ignored=_IGNORED,
    defaults={"projection_dim": 512},
    presets={},
    preprocessing=PREPROCESSING,
    capabilities=SEES,
    stored=lambda config, source: {"projects": "visual_projection.weight" in source.names()},
)
