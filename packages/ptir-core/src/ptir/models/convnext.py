"""ConvNeXt (Liu et al. 2022): depthwise 7x7 convolutions, then an MLP at each place.

Attribute names are timm's keys. Those of Transformers and torchvision are rewritten to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError
from ptir.models.fields import real, whole, wholes
from ptir.models.images import define_image_model, one_of, preset
from ptir.models.key_layouts import KeyLayout
from ptir.nn import Conv2d, LayerNorm, Linear, Module, Sequential, global_average, param

EPSILON: Final = 1e-6
"""Of every norm but the last."""


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation."""

    hidden_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    patch: int
    epsilon: float
    scaled: bool
    classes: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        one_of(config, "hidden_act", ("gelu",), "gelu")
        whole(config, "num_channels")
        sizes, depths = wholes(config, "hidden_sizes"), wholes(config, "depths")
        if len(sizes) != len(depths):
            raise CheckpointError(
                f"convnext: hidden_sizes has {len(sizes)} stages and depths {len(depths)}; check"
                " config.json"
            )
        first = config.get("layer_scale_init_value", 1e-6)
        return Config(
            sizes,
            depths,
            whole(config, "patch_size"),
            real(config, "layer_norm_eps"),
            type(first) in (int, float) and first > 0,
            whole(config, "num_labels"),
        )


class MLP(Module):
    """Two projections around GELU."""

    def __init__(self, size: int) -> None:
        self.fc1 = Linear(size, 4 * size)
        self.fc2 = Linear(4 * size, size)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N,H,W,C] to f32[N,H,W,C]."""
        return self.fc2(F.gelu(self.fc1(x)))


class Block(Module):
    """Each channel is filtered alone, then channels are mixed at each place, beside a residual."""

    def __init__(self, size: int, scaled: bool) -> None:
        self.conv_dw = Conv2d(size, size, 7, padding=3, groups=size)
        self.norm = LayerNorm(size, epsilon=EPSILON)
        self.mlp = MLP(size)
        self.gamma = param(size) if scaled else None

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N,H,W,C] to f32[N,H,W,C]."""
        mixed = self.mlp(self.norm(self.conv_dw(x)))
        return x + (mixed if self.gamma is None else mixed * self.gamma)


class Stage(Module):
    """Blocks over an image that is halved before, but for the first stage's."""

    def __init__(self, inputs: int, size: int, depth: int, halves: bool, scaled: bool) -> None:
        self.downsample = None
        if halves or inputs != size:
            stride = 2 if halves else 1
            self.downsample = Sequential(
                LayerNorm(inputs, epsilon=EPSILON), Conv2d(inputs, size, 2, strides=stride)
            )
        self.blocks = [Block(size, scaled) for _ in range(depth)]

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N,H,W,inputs] to f32[N,H / 2,W / 2,size], rounded down."""
        if self.downsample is not None:
            x = self.downsample(x)
        for block in self.blocks:
            x = block(x)
        return x


class Head(Module):
    """A norm of the average, which is the features, and a classifier."""

    def __init__(self, config: Config) -> None:
        size = config.hidden_sizes[-1]
        self.norm = LayerNorm(size, epsilon=config.epsilon)
        self.fc = Linear(size, config.classes) if config.classes else None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """f32[N,H,W,C] to f32[N,C] and f32[N,classes]."""
        features = self.norm(global_average(x))
        return features, None if self.fc is None else self.fc(features)


class ConvNext(Module):
    """Patches, four stages, and a head."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        read = Config.of(config)
        sizes = read.hidden_sizes
        self.stem = Sequential(
            Conv2d(3, sizes[0], read.patch, strides=read.patch),
            LayerNorm(sizes[0], epsilon=EPSILON),
        )
        inputs = (sizes[0], *sizes)
        self.stages = [
            Stage(inputs[number], size, depth, number > 0, read.scaled)
            for number, (size, depth) in enumerate(zip(sizes, read.depths, strict=True))
        ]
        self.head = Head(read)
        self.classes = read.classes

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The normalized average of the last stage, and scores; see ``ImageNetwork``."""
        x = self.stem(pixels)
        for stage in self.stages:
            x = stage(x)
        return self.head(x)


_BASE: Final = r"(?:convnext\.)?"
_STAGE: Final = _BASE + r"encoder\.stages\.(\d+)\."
_LAYER: Final = _STAGE + r"layers\.(\d+)\."
TRANSFORMERS: Final = KeyLayout(
    "transformers",
    mark=_BASE + r"embeddings\.patch_embeddings\.weight",
    rules=(
        (_BASE + r"embeddings\.patch_embeddings\.(.+)", r"stem.0.\1"),
        (_BASE + r"embeddings\.layernorm\.(.+)", r"stem.1.\1"),
        (_STAGE + r"downsampling_layer\.([01])\.(.+)", r"stages.\1.downsample.\2.\3"),
        (_LAYER + r"dwconv\.(.+)", r"stages.\1.blocks.\2.conv_dw.\3"),
        (_LAYER + r"layernorm\.(.+)", r"stages.\1.blocks.\2.norm.\3"),
        (_LAYER + r"pwconv([12])\.(.+)", r"stages.\1.blocks.\2.mlp.fc\3.\4"),
        (_LAYER + r"layer_scale_parameter", r"stages.\1.blocks.\2.gamma"),
        (_BASE + r"layernorm\.(.+)", r"head.norm.\1"),
        (r"classifier\.(.+)", r"head.fc.\1"),
    ),
)
_PARTS: Final = {"0": "conv_dw", "2": "norm", "3": "mlp.fc1", "5": "mlp.fc2"}
TORCHVISION: Final = KeyLayout(
    "torchvision",
    mark=r"features\.1\.0\.layer_scale",
    rules=(
        (r"features\.0\.([01])\.(.+)", r"stem.\1.\2"),
        (
            r"features\.(\d+)\.(\d+)\.layer_scale",
            lambda m: f"stages.{int(m[1]) // 2}.blocks.{m[2]}.gamma",
        ),
        (
            r"features\.(\d+)\.(\d+)\.block\.([0235])\.(.+)",
            lambda m: f"stages.{int(m[1]) // 2}.blocks.{m[2]}.{_PARTS[m[3]]}.{m[4]}",
        ),
        (
            r"features\.(\d+)\.([01])\.(weight|bias)",
            lambda m: f"stages.{int(m[1]) // 2}.downsample.{m[2]}.{m[3]}",
        ),
        (r"classifier\.0\.(.+)", r"head.norm.\1"),
        (r"classifier\.2\.(.+)", r"head.fc.\1"),
    ),
    squeezed=r"stages\.\d+\.blocks\.\d+\.gamma",
    defaults={"layer_norm_eps": EPSILON},
)
TIMM: Final = KeyLayout("timm", mark=r"stem\.0\.weight", defaults={"layer_norm_eps": EPSILON})

_DEFAULTS: Final = {
    "num_channels": 3,
    "hidden_sizes": [96, 192, 384, 768],
    "depths": [3, 3, 9, 3],
    "patch_size": 4,
    "layer_norm_eps": 1e-12,
    "layer_scale_init_value": 1e-6,
}


def stages(widest: int, *depths: int) -> dict[str, Any]:
    """The keys of four stages, each twice as wide as the one before it."""
    return {"hidden_sizes": [widest >> n for n in (3, 2, 1, 0)], "depths": list(depths)}


SIZES: Final = {
    "tiny": stages(768, 3, 3, 9, 3),
    "small": stages(768, 3, 3, 27, 3),
    "base": stages(1024, 3, 3, 27, 3),
    "large": stages(1536, 3, 3, 27, 3),
}

define_image_model(
    "convnext",
    build=ConvNext,
    layouts=(TRANSFORMERS, TORCHVISION, TIMM),
    head="head.fc.weight",
    defaults=_DEFAULTS,
    presets={
        **{
            f"convnext-{name}-224": preset("convnext", **_DEFAULTS | SIZES[name])
            for name in ("tiny", "small", "base")
        },
        "convnext-tiny": preset("convnext", **_DEFAULTS | stages(32, 1, 1, 1, 1))
        | {"num_labels": 10},
    },
)
