"""MobileNetV2 (Sandler et al. 2018): inverted residuals around depthwise convolutions.

Attribute names are torchvision's keys. Those of Transformers and timm are rewritten to them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError
from ptir.functional.window import Padding
from ptir.models.fields import flag, real, whole
from ptir.models.images import define_image_model, one_of, preset
from ptir.models.key_layouts import KeyLayout
from ptir.nn import BatchNorm2d, Conv2d, Linear, Module, Sequential, global_average, relu6

CHANNELS: Final = (16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320)
"""Of each block's output, at a depth multiplier of 1."""
STRIDES: Final = (1, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1)
STEM, LAST = 32, 1280
LAST_BLOCK: Final = len(CHANNELS)
"""The number of the last block; the stem is 0, the convolution behind the blocks the next."""
TIMM_STAGES: Final = (1, 2, 3, 4, 3, 3, 1)
"""How many blocks each stage has, which timm numbers one by one."""


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation."""

    depth_multiplier: float
    divisor: int
    least: int
    expand_ratio: float
    output_stride: int
    same_padding: bool
    epsilon: float
    last: int
    classes: int

    @staticmethod
    def of(config: Mapping[str, Any]) -> Config:
        """Read ``config``; raises ``CheckpointError`` for what this file does not implement."""
        one_of(config, "hidden_act", ("relu6",), "relu6")
        whole(config, "num_channels")
        if not flag(config, "first_layer_is_expansion", True):
            raise CheckpointError(
                "mobilenet_v2: first_layer_is_expansion false is not implemented; convert a model"
                " whose first layer is the expansion"
            )
        stride = whole(config, "output_stride")
        if stride not in (8, 16, 32):
            raise CheckpointError(f"mobilenet_v2: output_stride {stride} must be 8, 16 or 32")
        multiplier = real(config, "depth_multiplier")
        divisor, least = whole(config, "depth_divisible_by"), whole(config, "min_depth")
        fine = flag(config, "finegrained_output", True) and multiplier < 1
        return Config(
            multiplier,
            divisor,
            least,
            real(config, "expand_ratio"),
            stride,
            flag(config, "tf_padding", True),
            real(config, "layer_norm_eps"),
            LAST if fine else _divisible(round(LAST * multiplier), divisor, least),
            whole(config, "num_labels"),
        )

    def channels(self, at_one: int) -> int:
        """How many channels there are of those at a depth multiplier of 1."""
        return _divisible(round(at_one * self.depth_multiplier), self.divisor, self.least)

    def expanded(self, channels: int) -> int:
        """How many there are inside a block."""
        return _divisible(round(channels * self.expand_ratio), self.divisor, self.least)


def _divisible(value: int, divisor: int, least: int) -> int:
    """The nearest multiple of ``divisor``, at least ``least`` and never a tenth below ``value``."""
    found = max(least, int(value + divisor / 2) // divisor * divisor)
    return found + divisor if found < 0.9 * value else found


def _convolution(
    config: Config,
    inputs: int,
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> Conv2d:
    padding: Padding = "same" if config.same_padding else (kernel - 1) // 2 * dilation
    return Conv2d(
        inputs,
        outputs,
        kernel,
        strides=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=False,
    )


def _activated(config: Config, convolution: Conv2d, outputs: int) -> Sequential:
    return Sequential(convolution, BatchNorm2d(outputs, epsilon=config.epsilon), relu6)


class Block(Module):
    """Channels are expanded, each is filtered alone, then they are projected to fewer."""

    def __init__(
        self, config: Config, inputs: int, outputs: int, stride: int, dilation: int, expands: bool
    ) -> None:
        inner = config.expanded(inputs) if expands else inputs
        wide = _activated(config, _convolution(config, inputs, inner, 1), inner)
        depthwise = _convolution(
            config, inner, inner, 3, stride=stride, dilation=dilation, groups=inner
        )
        self.conv = Sequential(
            *([wide] if expands else []),
            _activated(config, depthwise, inner),
            _convolution(config, inner, outputs, 1),
            BatchNorm2d(outputs, epsilon=config.epsilon),
        )
        self.residual = stride == 1 and inputs == outputs and expands

    def __call__(self, x: Tensor) -> Tensor:
        """f32[N,H,W,inputs] to f32[N,H / stride,W / stride,outputs]."""
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(Module):
    """A stem, inverted residuals, a wide convolution, and a classifier of its average."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        read = Config.of(config)
        stem, inputs = read.channels(STEM), read.channels(STEM)
        layers: list[Sequential | Block] = [
            _activated(read, _convolution(read, 3, stem, 3, stride=2), stem)
        ]
        reached, dilation = 2, 1
        for number, (at_one, stride) in enumerate(zip(CHANNELS, STRIDES, strict=True)):
            outputs, used = read.channels(at_one), dilation
            if reached == read.output_stride:  # the image stays as large, and windows grow
                dilation, stride = dilation * stride, 1
            else:
                reached, used = reached * stride, 1
            layers.append(Block(read, inputs, outputs, stride, used, expands=number > 0))
            inputs = outputs
        layers.append(_activated(read, _convolution(read, inputs, read.last, 1), read.last))
        self.features = Sequential(*layers)
        self.classes = read.classes
        self.classifier = Sequential(_as_is, Linear(read.last, read.classes))
        if not read.classes:
            self.classifier = Sequential(_as_is)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """The average of the last convolution's channels, and scores; see ``ImageNetwork``."""
        features = global_average(self.features(pixels))
        return features, self.classifier(features) if self.classes else None


def _as_is(x: Tensor) -> Tensor:
    """Where a dropout stands, which does nothing but train."""
    return x


_PARTS: Final = {"expand_1x1": "0", "conv_3x3": "1", "reduce_1x1": "2"}
_NAMED: Final = r"(convolution|normalization)\.(.+)"


def _end(position: int, projects: bool, batch_norm: bool, rest: str) -> str:
    """The end of a key of a block: the last convolution and its norm are not in a list."""
    if projects:
        return f"conv.{position + batch_norm}.{rest}"
    return f"conv.{position}.{int(batch_norm)}.{rest}"


def _of_transformers(match: re.Match[str]) -> str:
    number, part, kind, rest = int(match[1]) + 2, match[2], match[3], match[4]
    position = int(_PARTS[part])
    return f"features.{number}.{_end(position, position == 2, kind == 'normalization', rest)}"


def _stem_of_transformers(match: re.Match[str]) -> str:
    part, kind, rest = match[1], match[2], match[3]
    batch_norm = kind == "normalization"
    if part == "first_conv":
        return f"features.0.{int(batch_norm)}.{rest}"
    position = int(_PARTS[part]) - 1
    return f"features.1.{_end(position, position == 1, batch_norm, rest)}"


TRANSFORMERS: Final = KeyLayout(
    "transformers",
    mark=r"(?:mobilenet_v2\.)?conv_stem\.first_conv\.convolution\.weight",
    rules=(
        (
            r"(?:mobilenet_v2\.)?layer\.(\d+)\.(expand_1x1|conv_3x3|reduce_1x1)\." + _NAMED,
            _of_transformers,
        ),
        (
            r"(?:mobilenet_v2\.)?conv_stem\.(first_conv|conv_3x3|reduce_1x1)\." + _NAMED,
            _stem_of_transformers,
        ),
        (
            r"(?:mobilenet_v2\.)?conv_1x1\." + _NAMED,
            lambda m: f"features.{LAST_BLOCK + 1}.{int(m[1] == 'normalization')}.{m[2]}",
        ),
        (r"classifier\.(weight|bias)", r"classifier.1.\1"),
    ),
)

_TIMM_PARTS: Final = {
    True: {"conv_dw": 0, "bn1": 0, "conv_pw": 1, "bn2": 1},
    False: {"conv_pw": 0, "bn1": 0, "conv_dw": 1, "bn2": 1, "conv_pwl": 2, "bn3": 2},
}
"""By whether it is the first block, which expands nothing: where each part stands."""


def _of_timm(match: re.Match[str]) -> str:
    stage, number, part, rest = int(match[1]), int(match[2]), match[3], match[4]
    first = stage == 0
    if stage >= len(TIMM_STAGES) or part not in _TIMM_PARTS[first]:
        return match[0]
    position = _TIMM_PARTS[first][part]
    block = 1 + sum(TIMM_STAGES[:stage]) + number
    projects = position == (1 if first else 2)
    return f"features.{block}.{_end(position, projects, part.startswith('bn'), rest)}"


TORCHVISION: Final = {"tf_padding": False, "layer_norm_eps": 1e-5}
TIMM: Final = KeyLayout(
    "timm",
    mark=r"blocks\.0\.0\.conv_dw\.weight",
    rules=(
        (r"blocks\.(\d+)\.(\d+)\.(conv_pwl|conv_pw|conv_dw|bn\d)\.(.+)", _of_timm),
        (r"conv_stem\.(.+)", r"features.0.0.\1"),
        (r"bn1\.(.+)", r"features.0.1.\1"),
        (r"conv_head\.(.+)", rf"features.{LAST_BLOCK + 1}.0.\1"),
        (r"bn2\.(.+)", rf"features.{LAST_BLOCK + 1}.1.\1"),
        (r"classifier\.(weight|bias)", r"classifier.1.\1"),
    ),
    defaults=TORCHVISION,
)

_DEFAULTS: Final = {
    "num_channels": 3,
    "depth_multiplier": 1.0,
    "depth_divisible_by": 8,
    "min_depth": 8,
    "expand_ratio": 6.0,
    "output_stride": 32,
    "layer_norm_eps": 0.001,
}

define_image_model(
    "mobilenet_v2",
    build=MobileNetV2,
    layouts=(
        TRANSFORMERS,
        TIMM,
        KeyLayout("torchvision", mark=r"features\.0\.0\.weight", defaults=TORCHVISION),
    ),
    head="classifier.1.weight",
    ignored=("*.num_batches_tracked",),
    defaults=_DEFAULTS,
    presets={
        "mobilenet-v2": preset("mobilenet_v2", **_DEFAULTS | TORCHVISION),
        "mobilenet-v2-tiny": preset("mobilenet_v2", **_DEFAULTS)
        | {"depth_multiplier": 0.1, "num_labels": 10},
    },
)
