"""Models of images against Transformers, on each backend, and how it prepares images.

torchvision and timm are witnesses of tests/models: their numbers are in tests/data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import ptir
from ptir.runtime.image_model import ImageModel, ImageTextModel
from ptir.vision import preprocessing_of

pytestmark = pytest.mark.parity

BACKENDS = ("ref", "c", "opencl")
ODD = (2, 65, 93, 3)
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16, 32], "depths": [1, 2, 1]}
LAYERS = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 50,
    "image_size": 32,
    "patch_size": 8,
}
SEEN_BY_CLIP = {**LAYERS, "hidden_size": 30, "num_attention_heads": 3}
READ_BY_CLIP = {**LAYERS, "vocab_size": 512, "bos_token_id": 510, "pad_token_id": 1}

CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "resnet, basic": ("resnet", {**STAGES, "layer_type": "basic"}, ODD),
    "resnet, bottleneck": ("resnet", {**STAGES, "layer_type": "bottleneck"}, ODD),
    "resnet, smaller at once": (
        "resnet",
        {**STAGES, "downsample_in_first_stage": True, "downsample_in_bottleneck": True},
        ODD,
    ),
    "mobilenet_v2": ("mobilenet_v2", {"depth_multiplier": 0.2}, ODD),
    "mobilenet_v2, dilated": (
        "mobilenet_v2",
        {"depth_multiplier": 0.35, "output_stride": 8, "tf_padding": False},
        (1, 64, 47, 3),
    ),
    "mobilenet_v2, coarse": (
        "mobilenet_v2",
        {"depth_multiplier": 0.35, "output_stride": 16, "finegrained_output": False},
        (1, 33, 64, 3),
    ),
    "convnext": ("convnext", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 2, 1, 1]}, ODD),
    "convnext, unscaled": (
        "convnext",
        {"hidden_sizes": [8, 8], "depths": [1, 1], "layer_scale_init_value": 0.0, "num_stages": 2},
        ODD,
    ),
    "vit": ("vit", LAYERS, (2, 32, 32, 3)),
    "vit, another size, no biases": (
        "vit",
        {**LAYERS, "qkv_bias": False, "hidden_act": "gelu_new"},
        (1, 67, 45, 3),
    ),
    "dinov2": ("dinov2", LAYERS, (2, 32, 32, 3)),
    "dinov2, gated, another size": ("dinov2", {**LAYERS, "use_swiglu_ffn": True}, (1, 67, 45, 3)),
}


def noisy(model: Any) -> Any:
    """The model with values that let nothing go unnoticed."""
    torch.manual_seed(0)
    with torch.no_grad():
        kept = [row for row in model.named_buffers() if row[1].is_floating_point()]
        for name, value in (*model.named_parameters(), *kept):
            if name.endswith("running_var"):
                value.uniform_(0.5, 2.0)
            elif value.ndim < 2:
                value.normal_(float("norm" in name and name.endswith("weight")), 0.3)
            else:
                value.normal_(0.0, 1.3 * value[0].numel() ** -0.5)
    return model.eval()


def images(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def theirs(pixels: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def unit(rows: np.ndarray[Any, Any]) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def assert_alike(found: Any, wanted: Any) -> None:
    wanted = wanted.numpy()
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_scores_are_those_of_transformers(name: str, backend: str, tmp_path: Path) -> None:
    kind, config, shape = CASES[name]
    made = transformers.AutoConfig.for_model(kind, num_labels=7, **config)
    model = noisy(transformers.AutoModelForImageClassification.from_config(made))
    model.save_pretrained(tmp_path)
    pixels = images(shape)
    options = {"interpolate_pos_encoding": True} if kind == "vit" else {}
    with torch.no_grad():
        wanted = model(theirs(pixels), **options).logits
    assert_alike(ptir.load_model(tmp_path, backend=backend).forward(pixels), wanted)


@pytest.mark.parametrize(("kind", "config"), [("vit", LAYERS), ("dinov2", LAYERS)])
def test_a_model_without_a_head_gives_the_class_token(
    kind: str, config: dict[str, Any], tmp_path: Path
) -> None:
    model = noisy(
        transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **config))
    )
    model.save_pretrained(tmp_path)
    pixels = images((2, 32, 32, 3))
    with torch.no_grad():
        wanted = model(theirs(pixels)).last_hidden_state[:, 0]
    assert_alike(ptir.load_model(tmp_path, backend="ref").forward(pixels), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("eos", [511, 2])
def test_images_and_texts_of_clip(backend: str, eos: int, tmp_path: Path) -> None:
    """An ``eos_token_id`` of 2 stands in early files and means the greatest token."""
    text = {**READ_BY_CLIP, "eos_token_id": eos}
    made = transformers.CLIPConfig(projection_dim=20, text_config=text, vision_config=SEEN_BY_CLIP)
    model = noisy(transformers.CLIPModel(made))
    model.logit_scale.data.fill_(1.3)
    model.save_pretrained(tmp_path)
    rows = [[510, 3, 77, 400, 5, 511], [510, 9, 511]]
    ids = np.full((2, 77), 511)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = row
    pixels = images((2, 32, 32, 3))
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor(ids), pixel_values=theirs(pixels))
    ours = ptir.load_model(tmp_path, backend=backend)
    assert isinstance(ours, ImageTextModel)
    texts, factor = ours.read(rows)
    seen, said = unit(ours.forward(pixels)), unit(texts)
    assert_alike(seen, wanted.image_embeds)
    assert_alike(said, wanted.text_embeds)
    assert_alike(factor * seen @ said.T, wanted.logits_per_image)


@pytest.mark.parametrize("projects", [True, False])
def test_images_of_clip_alone(projects: bool, tmp_path: Path) -> None:
    classes = transformers.CLIPVisionModelWithProjection, transformers.CLIPVisionModel
    made = transformers.CLIPVisionConfig(projection_dim=20, **SEEN_BY_CLIP)
    model = noisy(classes[not projects](made))
    model.save_pretrained(tmp_path)
    pixels = images((1, 48, 40, 3))
    with torch.no_grad():
        seen = model(theirs(pixels), interpolate_pos_encoding=True)
    wanted = seen.image_embeds if projects else seen.pooler_output
    assert_alike(ptir.load_model(tmp_path, backend="ref").forward(pixels), wanted)


PICTURES = [(41, 60), (60, 41), (300, 500), (224, 224), (17, 900), (255, 257)]
PROCESSORS: dict[str, dict[str, Any]] = {
    "BitImageProcessor": {"size": {"shortest_edge": 60}, "crop_size": {"height": 50, "width": 48}},
    "CLIPImageProcessor": {"size": {"shortest_edge": 40}, "crop_size": {"height": 64, "width": 51}},
    "ConvNextImageProcessor": {"size": {"shortest_edge": 48}, "crop_pct": 0.8},
    "MobileNetV2ImageProcessor": {},
    "ViTImageProcessor": {"size": {"height": 30, "width": 44}},
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_images_are_prepared_as_transformers_does(name: str) -> None:
    said = {"image_processor_type": name, **PROCESSORS[name]}
    theirs_ = getattr(transformers, f"{name}Pil")(**PROCESSORS[name])
    ours = preprocessing_of({}, said)
    rng = np.random.default_rng(0)
    for height, width in PICTURES:
        picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
        wanted = theirs_(picture, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
        np.testing.assert_allclose(ours(picture), wanted, atol=2e-6)


def test_a_whole_folder_gives_the_same_classes(tmp_path: Path) -> None:
    made = transformers.AutoConfig.for_model("vit", num_labels=7, **LAYERS)
    model = noisy(transformers.AutoModelForImageClassification.from_config(made))
    model.save_pretrained(tmp_path)
    processor = transformers.ViTImageProcessorPil(size={"height": 32, "width": 32})
    processor.save_pretrained(tmp_path)
    picture = np.random.default_rng(0).integers(0, 256, (41, 60, 3), np.uint8)
    pixels = processor(Image.fromarray(picture), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        wanted = model(pixels).logits.softmax(-1)[0]
    ours = ptir.load_model(tmp_path, backend="ref")
    assert isinstance(ours, ImageModel)
    (found,) = ours.classify(picture, top_k=7)
    assert [one.id for one in found] == wanted.argsort(descending=True).tolist()
    assert [one.name for one in found] == [f"LABEL_{one.id}" for one in found]
    np.testing.assert_allclose(
        [one.probability for one in found], wanted.sort(descending=True)[0], rtol=1e-5
    )
