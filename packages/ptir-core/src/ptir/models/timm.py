"""Configurations of timm: an architecture is a name there, and sizes are in timm's own code.

A ``config.json`` of timm says ``architecture`` where Transformers says ``model_type``. Each row
here turns such names into what the same model of Transformers would say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from ptir.errors import CheckpointError, short

Config = Mapping[str, Any]
Sizes = Callable[[re.Match[str]], dict[str, Any]]


def _resnet(match: re.Match[str]) -> dict[str, Any]:
    from ptir.models.table import preset

    return dict(preset(f"resnet{match[1]}")[1])


def _mobilenet(match: re.Match[str]) -> dict[str, Any]:
    return {"model_type": "mobilenet_v2", "depth_multiplier": int(match[1]) / 100}


def _convnext(match: re.Match[str]) -> dict[str, Any]:
    from ptir.models.convnext import SIZES

    return {"model_type": "convnext", **SIZES[match[1]]}


def _vit(match: re.Match[str]) -> dict[str, Any]:
    from ptir.models.vit import SIZES

    sizes = {"patch_size": int(match[2]), "image_size": int(match[3])}
    return {"model_type": "vit", **SIZES[match[1]], **sizes}


def _dinov2(match: re.Match[str]) -> dict[str, Any]:
    from ptir.models.dinov2 import SIZES

    return {"model_type": "dinov2", **SIZES[match[1]], "patch_size": 14, "image_size": 518}


def _clip(match: re.Match[str]) -> dict[str, Any]:
    acts = {"hidden_act": "quick_gelu" if match[3] else "gelu", "layer_norm_eps": 1e-5}
    sizes = {"patch_size": int(match[2]), "image_size": int(match[4]), "pre_norm": True}
    from ptir.models.vit import SIZES

    return {"model_type": "vit", **SIZES[match[1]], **sizes, **acts}


ARCHITECTURES: Final[Mapping[str, Sizes]] = {
    r"resnet(18|34|50|101)": _resnet,
    r"mobilenetv2_(\d{3})": _mobilenet,
    r"convnext_(tiny|small|base|large)": _convnext,
    r"vit_(tiny|small|base|large)_patch(8|16|32)_(224|384)": _vit,
    r"vit_(base|large)_patch(14|16|32)_clip_(quickgelu_)?(224|336)": _clip,
    r"vit_(small|base|large)_patch14_dinov2": _dinov2,
}
"""By a pattern of whole names: what Transformers would say of them."""


def named_by_timm(config: Config) -> Config:
    """``config`` with a ``model_type`` and sizes, where timm wrote it; others as they are.

    Raises ``CheckpointError`` for an architecture that is not known here, or was built in another
    way than its name says.
    """
    name = config.get("architecture")
    if config.get("model_type") is not None or name is None:
        return config
    for pattern, sizes in ARCHITECTURES.items():
        match = re.fullmatch(pattern, name) if isinstance(name, str) else None
        if match is not None:
            return {**sizes(match), **_rest(config)}
    known = ", ".join(ARCHITECTURES)
    raise CheckpointError(
        f"config.json: architecture {short(name)} of timm is not known; known are {known}"
    )


def _rest(config: Config) -> dict[str, Any]:
    """What else timm says, with the number of classes and the image's size as others call them."""
    given = {
        key: value for key, value in config.items() if key not in ("num_classes", "model_args")
    }
    arguments = config.get("model_args") or {}
    if not isinstance(arguments, Mapping) or {*arguments} - {"img_size", "num_classes"}:
        raise CheckpointError(
            f"config.json: model_args {short(arguments)} change the architecture, which is not"
            " implemented but for img_size"
        )
    if "img_size" in arguments:
        given["image_size"] = arguments["img_size"]
    if config.get("num_classes") is not None:
        given["num_labels"] = config["num_classes"]
    return given
