"""DINOv2 (Oquab et al. 2023): a vision transformer with scaled residuals, trained to embed.

Attribute names are those of timm and of its authors; Transformers keys are rewritten to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ptir.models.fields import flag, whole
from ptir.models.images import define_image_model, preset
from ptir.models.key_layouts import KeyLayout
from ptir.models.vit import Config, VisionTransformer, transformers_rules
from ptir.params.source import ParamSource


def _build(config: Mapping[str, Any]) -> VisionTransformer:
    inner = whole(config, "hidden_size") * whole(config, "mlp_ratio")
    swiglu = flag(config, "use_swiglu_ffn")
    if swiglu:  # two thirds, rounded up to a multiple of 8
        inner = (inner * 2 // 3 + 7) // 8 * 8
    read = Config.of({**config, "intermediate_size": inner})
    patches = flag(config, "head_sees_patches", True)
    return VisionTransformer(
        replace(read, layer_scale=True, swiglu=swiglu, head_sees_patches=patches)
    )


HEAD: Final = "head.weight"


def _stored(config: Mapping[str, Any], source: ParamSource) -> Mapping[str, Any]:
    """Whether the classifier gets patches too; timm's, of D features, gets the class token."""
    if HEAD not in source.names():
        return {}
    return {"head_sees_patches": source.type(HEAD).shape[1:] != (whole(config, "hidden_size"),)}


_LAYER: Final = r"(?:dinov2\.)?encoder\.layer\.(\d+)\."
TRANSFORMERS: Final = KeyLayout(
    "transformers",
    mark=_LAYER + r"layer_scale1\.lambda1",
    rules=(
        *transformers_rules("dinov2"),
        (_LAYER + r"norm([12])\.(.+)", r"blocks.\1.norm\2.\3"),
        (_LAYER + r"layer_scale([12])\.lambda1", r"blocks.\1.ls\2.gamma"),
        (_LAYER + r"mlp\.fc([12])\.(.+)", r"blocks.\1.mlp.fc\2.\3"),
        (_LAYER + r"mlp\.weights_in\.(.+)", r"blocks.\1.mlp.w12.\2"),
        (_LAYER + r"mlp\.gate_proj\.(.+)", r"blocks.\1.mlp.w12.\2#0"),
        (_LAYER + r"mlp\.up_proj\.(.+)", r"blocks.\1.mlp.w12.\2#1"),
        (_LAYER + r"mlp\.(?:weights_out|down_proj)\.(.+)", r"blocks.\1.mlp.w3.\2"),
    ),
)
TIMM: Final = KeyLayout("timm", mark=r"blocks\.0\.ls1\.gamma")

_DEFAULTS: Final = {
    "num_channels": 3,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
    "qkv_bias": True,
    "use_swiglu_ffn": False,
}


def sizes(size: int, layers: int, heads: int) -> dict[str, Any]:
    """The keys in which models differ."""
    return {"hidden_size": size, "num_hidden_layers": layers, "num_attention_heads": heads}


SIZES: Final = {
    "small": sizes(384, 12, 6),
    "base": sizes(768, 12, 12),
    "large": sizes(1024, 24, 16),
}

PREPROCESSING: Final = {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 256},
    "resample": 3,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}

define_image_model(
    "dinov2",
    build=_build,
    layouts=(TRANSFORMERS, TIMM),
    head=HEAD,
    stored=_stored,
    ignored=("*mask_token",),
    defaults=_DEFAULTS,
    presets={
        **{
            f"dinov2-{name}": preset("dinov2", **_DEFAULTS | SIZES[name]) | {"num_labels": 0}
            for name in SIZES
        },
        "dinov2-tiny": preset("dinov2", **_DEFAULTS | sizes(24, 2, 2))
        | {"num_labels": 10, "image_size": 28, "patch_size": 7},
    },
    preprocessing=PREPROCESSING,
)
