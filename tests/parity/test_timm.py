"""Models of images against timm's own, by the names of its architectures, where it is installed.

Sizes are those of the names: what ``ptir.models.timm`` says of each is compared, too. Small models
and odd sizes of timm and torchvision stand in tests/models, as numbers that were recorded.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_images import noisy

import ptir
from ptir.runtime.image_model import ImageModel

pytestmark = [pytest.mark.parity, pytest.mark.turns(2)]


def opened_timm() -> Any:
    """timm; torchvision, which it needs, may have a compiled part for another build of PyTorch.

    Then the two operators that it looks for are named here. No model has them.
    """
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed", allow_module_level=True)
    try:
        return importlib.import_module("timm")
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor d, Tensor s, float t) -> Tensor")
        return importlib.import_module("timm")


timm = opened_timm()

NAMES: dict[str, tuple[int, ...]] = {
    "resnet18": (2, 65, 93, 3),
    "resnet50": (1, 64, 47, 3),
    "mobilenetv2_050": (2, 65, 93, 3),
    "convnext_tiny": (1, 65, 93, 3),
    "vit_tiny_patch16_224": (1, 224, 224, 3),
    "vit_small_patch32_224": (2, 224, 224, 3),
    "vit_small_patch14_dinov2": (1, 518, 518, 3),
    "vit_base_patch32_clip_224": (1, 224, 224, 3),
}
"""By the name of an architecture the shape of the images that it is given."""


def save(model: Any, name: str, classes: int, folder: Path) -> None:
    """The files of a model of timm."""
    save_file(model.state_dict(), folder / "model.safetensors")
    said = {"architecture": name, "num_classes": classes, "pretrained_cfg": model.pretrained_cfg}
    (folder / "config.json").write_text(json.dumps(said, default=list), encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_scores_and_features_are_those_of_timm(name: str, tmp_path: Path) -> None:
    model = noisy(timm.create_model(name, pretrained=False, num_classes=7))
    save(model, name, 7, tmp_path)
    pixels = np.random.default_rng(1).standard_normal(NAMES[name]).astype(np.float32)
    with torch.no_grad():
        given = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        held = model.forward_features(given)
        wanted = model.forward_head(held).numpy()
        pooled = model.forward_head(held, pre_logits=True).numpy()
    ours = ptir.load_model(tmp_path, backend="c")
    assert isinstance(ours, ImageModel)
    for found, other in ((ours.forward(pixels), wanted), (ours.features(pixels), pooled)):
        assert np.abs(found - other).max() <= 1e-4 * np.abs(other).max()


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "mobilenetv2_050"])
def test_images_are_prepared_as_timm_does(name: str, tmp_path: Path) -> None:
    from PIL import Image

    model = timm.create_model(name, pretrained=False, num_classes=7)
    save(model, name, 7, tmp_path)
    prepare = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    ours = ptir.load_model(tmp_path, backend="ref")
    assert isinstance(ours, ImageModel)
    rng = np.random.default_rng(0)
    for height, width in ((41, 60), (300, 500), (224, 224), (900, 255)):
        picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        wanted = prepare(picture).numpy().transpose(1, 2, 0)
        np.testing.assert_allclose(ours.pixels(picture)[0], wanted, atol=2e-6)
