"""Record what torchvision and timm call the tensors of small models, and what those compute.

``python scripts/generate_vision_expectations.py`` writes tests/data/vision-keys.json. It needs
``pip install torch==2.13.0 torchvision==0.28.0 timm==1.0.31``; of torchvision only models that are
written in Python are used, so that its compiled part may be one for another PyTorch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor d, Tensor s, float t) -> Tensor")

import timm  # noqa: E402  after the names above exist
import torchvision  # noqa: E402
from timm.models import convnext, efficientnet, resnet, vision_transformer  # noqa: E402
from torchvision.models.convnext import CNBlockConfig  # noqa: E402

from image_models import FILE, image, values  # noqa: E402

CLASSES: Final = 7
ODD: Final = (1, 65, 93, 3)
VIT: Final = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
}
STAGES: Final = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 2, 1, 1]}


def _timm_vit(**more: Any) -> Any:
    return vision_transformer.VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=24,
        depth=2,
        num_heads=2,
        **{"num_classes": CLASSES, **more},
    )


def _timm_resnet(block: Any, channels: tuple[int, ...]) -> Any:
    return resnet.ResNet(block, [1, 2, 1, 1], channels=channels, num_classes=CLASSES)


def cases() -> dict[str, tuple[Any, dict[str, Any], tuple[int, ...]]]:
    """Each model, its config.json, and the shape of its images."""
    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, 24, 2), CNBlockConfig(24, None, 1)]
    narrow = {"hidden_sizes": [8, 16, 24], "depths": [1, 2, 1]}
    return {
        "resnet, basic": (
            resnet.ResNet(
                resnet.BasicBlock, [1, 2, 1, 1], channels=(4, 6, 8, 12), num_classes=CLASSES
            ),
            {"model_type": "resnet", "layer_type": "basic", "embedding_size": 64}
            | {"hidden_sizes": [4, 6, 8, 12], "depths": [1, 2, 1, 1]},
            ODD,
        ),
        "resnet, bottleneck": (
            resnet.ResNet(
                resnet.Bottleneck, [1, 2, 1, 1], channels=(2, 3, 4, 6), num_classes=CLASSES
            ),
            {"model_type": "resnet", "layer_type": "bottleneck", "embedding_size": 64}
            | {"hidden_sizes": [8, 12, 16, 24], "depths": [1, 2, 1, 1]},
            ODD,
        ),
        "mobilenet_v2, torchvision": (
            torchvision.models.mobilenet_v2(num_classes=CLASSES, width_mult=0.1),
            {"model_type": "mobilenet_v2", "depth_multiplier": 0.1},
            ODD,
        ),
        "mobilenet_v2, timm": (
            efficientnet._gen_mobilenet_v2("mobilenetv2_100", 0.1, num_classes=CLASSES),
            {"architecture": "mobilenetv2_010", "num_classes": CLASSES},
            ODD,
        ),
        "convnext, torchvision": (
            torchvision.models.ConvNeXt(blocks, num_classes=CLASSES),
            {"model_type": "convnext", **narrow},
            ODD,
        ),
        "convnext, timm": (
            convnext.ConvNeXt(
                depths=STAGES["depths"], dims=STAGES["hidden_sizes"], num_classes=CLASSES
            ),
            {"model_type": "convnext", **STAGES},
            ODD,
        ),
        "vit, torchvision": (
            torchvision.models.VisionTransformer(
                image_size=32,
                patch_size=8,
                num_layers=2,
                num_heads=2,
                hidden_dim=24,
                mlp_dim=96,
                num_classes=CLASSES,
            ),
            {"model_type": "vit", **VIT},
            (2, 32, 32, 3),
        ),
        "vit, timm": (_timm_vit(), {"model_type": "vit", **VIT}, (2, 32, 32, 3)),
        "dinov2, timm": (
            _timm_vit(init_values=1.0, num_classes=0),
            {"model_type": "dinov2", **VIT},
            (2, 32, 32, 3),
        ),
        "vit of CLIP, timm": (
            _timm_vit(pre_norm=True, norm_layer=torch.nn.LayerNorm),
            {"model_type": "vit", **VIT, "pre_norm": True, "layer_norm_eps": 1e-5},
            (2, 32, 32, 3),
        ),
    }


def main() -> None:
    """Compute each case and write the file."""
    found: dict[str, Any] = {}
    for name, (model, config, shape) in cases().items():
        kept = {n: t for n, t in model.state_dict().items() if t.is_floating_point()}
        filled = {n: torch.from_numpy(values(n, tuple(t.shape))) for n, t in kept.items()}
        model.load_state_dict(filled, strict=False)
        with torch.no_grad():
            pixels = torch.from_numpy(image(shape)).double().permute(0, 3, 1, 2)
            scores = model.eval().double()(pixels)
        found[name] = {
            "config": config,
            "shapes": {n: list(t.shape) for n, t in kept.items()},
            "image": list(shape),
            "scores": [[round(x, 7) for x in row] for row in scores.tolist()],
        }
    lines = ",\n".join(f"{json.dumps(n)}: {json.dumps(one)}" for n, one in found.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{FILE}: {len(found)} models by timm {timm.__version__}", torchvision.__version__)


if __name__ == "__main__":
    main()
