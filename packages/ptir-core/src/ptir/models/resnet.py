"""ResNet (He et al. 2015; strides in the 3x3 convolutions): basic and bottleneck blocks.

Attribute names are torchvision's and timm's keys. Transformers keys are rewritten to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError
from ptir.models.fields import flag, require_multiple, whole, wholes
from ptir.models.images import define_image_model, one_of, preset
from ptir.models.key_layouts import KeyLayout, Rule
from ptir.nn import (
    BatchNorm2d,
    Conv2d,
    Linear,
    MaxPool2d,
    Module,
    Sequential,
    global_average,
    relu,
)

BASIC: Final = "basic"
BOTTLENECK: Final = "bottleneck"
REDUCTION: Final = 4
"""How many times fewer channels the 3x3 convolution of a bottleneck has."""


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation."""

    embedding_size: int
    hidden_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    layer_type: str
    first_stage_strides: bool
    first_conv_strides: bool
    classes: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        one_of(config, "hidden_act", ("relu",), "relu")
        whole(config, "num_channels")
        sizes, depths = wholes(config, "hidden_sizes"), wholes(config, "depths")
        if len(sizes) != len(depths):
            raise CheckpointError(
                f"resnet: hidden_sizes has {len(sizes)} stages and depths {len(depths)}; check"
                " config.json"
            )
        layer_type = one_of(config, "layer_type", (BASIC, BOTTLENECK), BOTTLENECK)
        if layer_type == BOTTLENECK:
            for size in sizes:
                given = {"hidden_sizes": size, "the reduction": REDUCTION}
                require_multiple(given, "hidden_sizes", "the reduction", "resnet")
        return Config(
            whole(config, "embedding_size"),
            sizes,
            depths,
            layer_type,
            flag(config, "downsample_in_first_stage"),
            flag(config, "downsample_in_bottleneck"),
            whole(config, "num_labels"),
        )


class Block(Module):
    """Convolutions beside a shortcut, which is a convolution where sizes differ."""

    downsample: Sequential | None

    def _shortcut(self, inputs: int, outputs: int, stride: int) -> None:
        self.downsample = None
        if inputs != outputs or stride != 1:
            self.downsample = Sequential(
                Conv2d(inputs, outputs, 1, strides=stride, bias=False), BatchNorm2d(outputs)
            )

    def _added(self, x: Tensor, residual: Tensor) -> Tensor:
        return relu(x + (residual if self.downsample is None else self.downsample(residual)))


class BasicBlock(Block):
    """Two 3x3 convolutions."""

    def __init__(self, config: Config, inputs: int, outputs: int, stride: int) -> None:
        self.conv1 = Conv2d(inputs, outputs, 3, strides=stride, padding=1, bias=False)
        self.bn1 = BatchNorm2d(outputs)
        self.conv2 = Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = BatchNorm2d(outputs)
        self._shortcut(inputs, outputs, stride)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N,H,W,inputs] to f32[N,H / stride,W / stride,outputs], rounded up."""
        inner = relu(self.bn1(self.conv1(x)))
        return self._added(self.bn2(self.conv2(inner)), x)


class Bottleneck(Block):
    """A 3x3 convolution over fewer channels, between two of 1x1."""

    def __init__(self, config: Config, inputs: int, outputs: int, stride: int) -> None:
        first, second = (stride, 1) if config.first_conv_strides else (1, stride)
        inner = outputs // REDUCTION
        self.conv1 = Conv2d(inputs, inner, 1, strides=first, bias=False)
        self.bn1 = BatchNorm2d(inner)
        self.conv2 = Conv2d(inner, inner, 3, strides=second, padding=1, bias=False)
        self.bn2 = BatchNorm2d(inner)
        self.conv3 = Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = BatchNorm2d(outputs)
        self._shortcut(inputs, outputs, stride)

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N,H,W,inputs] to f32[N,H / stride,W / stride,outputs], rounded up."""
        inner = relu(self.bn1(self.conv1(x)))
        inner = relu(self.bn2(self.conv2(inner)))
        return self._added(self.bn3(self.conv3(inner)), x)


class ResNet(Module):
    """A stem, stages that halve the image, and a classifier of its average."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = read = Config.of(config)
        self.conv1 = Conv2d(3, read.embedding_size, 7, strides=2, padding=3, bias=False)
        self.bn1 = BatchNorm2d(read.embedding_size)
        self.pool = MaxPool2d(3, strides=2, padding=1)
        block = BasicBlock if read.layer_type == BASIC else Bottleneck
        inputs = read.embedding_size
        for number, (size, depth) in enumerate(
            zip(read.hidden_sizes, read.depths, strict=True), start=1
        ):
            stride = 2 if number > 1 or read.first_stage_strides else 1
            first = block(read, inputs, size, stride)
            rest = [block(read, size, size, 1) for _ in range(depth - 1)]
            setattr(self, f"layer{number}", Sequential(first, *rest))
            inputs = size
        self.classes = read.classes
        self.fc = Linear(inputs, read.classes) if read.classes else None

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The average of the last stage's channels, and scores; see ``ImageNetwork``."""
        x = self.pool(relu(self.bn1(self.conv1(pixels))))
        for number in range(1, len(self.config.depths) + 1):
            x = getattr(self, f"layer{number}")(x)
        features = global_average(x)
        return features, None if self.fc is None else self.fc(features)


def _inner(batch_norm: bool) -> Rule:
    kind, name = ("normalization", "bn") if batch_norm else ("convolution", "conv")
    return (
        rf"(?:resnet\.)?encoder\.stages\.(\d+)\.layers\.(\d+)\.layer\.(\d+)\.{kind}\.(.+)",
        lambda m: f"layer{int(m[1]) + 1}.{m[2]}.{name}{int(m[3]) + 1}.{m[4]}",
    )


def _shortcut(batch_norm: bool) -> Rule:
    kind = "normalization" if batch_norm else "convolution"
    return (
        rf"(?:resnet\.)?encoder\.stages\.(\d+)\.layers\.(\d+)\.shortcut\.{kind}\.(.+)",
        lambda m: f"layer{int(m[1]) + 1}.{m[2]}.downsample.{int(batch_norm)}.{m[3]}",
    )


TRANSFORMERS: Final = KeyLayout(
    "transformers",
    mark=r"(?:resnet\.)?embedder\.embedder\.convolution\.weight",
    rules=(
        (r"(?:resnet\.)?embedder\.embedder\.convolution\.(.+)", r"conv1.\1"),
        (r"(?:resnet\.)?embedder\.embedder\.normalization\.(.+)", r"bn1.\1"),
        _inner(False),
        _inner(True),
        _shortcut(False),
        _shortcut(True),
        (r"classifier\.1\.(.+)", r"fc.\1"),
    ),
)

DEFAULTS: Final = {
    "num_channels": 3,
    "embedding_size": 64,
    "hidden_sizes": [256, 512, 1024, 2048],
    "depths": [3, 4, 6, 3],
    "layer_type": BOTTLENECK,
}


def _preset(layer_type: str, *depths: int) -> dict[str, Any]:
    widest = 512 if layer_type == BASIC else 2048
    sizes = [widest >> 3, widest >> 2, widest >> 1, widest]
    return preset(
        "resnet",
        embedding_size=64,
        hidden_sizes=sizes,
        depths=list(depths),
        layer_type=layer_type,
        hidden_act="relu",
    )


define_image_model(
    "resnet",
    build=ResNet,
    layouts=(TRANSFORMERS,),
    head="fc.weight",
    ignored=("*.num_batches_tracked",),
    overrides={"conv2d": "prefer=winograd"},  # 4/9 of the products of most of its convolutions
    defaults=DEFAULTS,
    presets={
        "resnet18": _preset(BASIC, 2, 2, 2, 2),
        "resnet34": _preset(BASIC, 3, 4, 6, 3),
        "resnet50": _preset(BOTTLENECK, 3, 4, 6, 3),
        "resnet101": _preset(BOTTLENECK, 3, 4, 23, 3),
        "resnet-tiny": _preset(BOTTLENECK, 1, 2)
        | {"embedding_size": 8, "hidden_sizes": [16, 32], "num_labels": 10},
    },
)
