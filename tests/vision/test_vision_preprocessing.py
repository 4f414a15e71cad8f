"""How images are prepared: what each library's files mean, step by step and in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ptir.errors import CheckpointError, ImageError, UsageError
from ptir.models.images import IMAGENET
from ptir.vision import Preprocessing, class_names, likeliest, preprocessing_of, read_labels

PIXELS = np.random.default_rng(0).integers(0, 256, (41, 60, 3), np.uint8)
IMAGE = Image.fromarray(PIXELS)


def read(**said: Any) -> Preprocessing:
    return preprocessing_of({}, {"image_processor_type": "ViTImageProcessor", **said})


def of_timm(**said: Any) -> Preprocessing:
    given = {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.25] * 3, **said}
    return preprocessing_of({"pretrained_cfg": given}, {})


def test_steps_are_those_of_float64_arithmetic() -> None:
    prepared = preprocessing_of({}, {**IMAGENET, "size": {"shortest_edge": 30}, "crop_size": 24})
    found = prepared(IMAGE)
    resized = np.asarray(IMAGE.resize((43, 30), Image.Resampling.BILINEAR), np.float64)
    wanted = resized[3:27, 9:33] / 255  # margins of 6 and 19: the odd one is rounded down
    wanted = (wanted - IMAGENET["image_mean"]) / IMAGENET["image_std"]
    assert found.dtype == np.float32 and found.shape == (24, 24, 3)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_margin_is_rounded_as_each_library_does() -> None:
    bare = {"scale": None, "crop": (38, 50)}
    np.testing.assert_array_equal(Preprocessing(**bare)(IMAGE), PIXELS[1:39, 5:55])
    up = Preprocessing(**bare, centered_up=True)(IMAGE)
    np.testing.assert_array_equal(up, PIXELS[2:40, 5:55])
    small = Preprocessing(scale=None, crop=(44, 60))(IMAGE)
    assert not small[:2].any() and not small[43:].any()  # of three rows two stand above
    np.testing.assert_array_equal(small[2:43], PIXELS)
    small = Preprocessing(scale=None, crop=(44, 60), centered_up=True)(IMAGE)
    np.testing.assert_array_equal(small[1:42], PIXELS)


def test_each_class_of_processors_has_its_own_defaults() -> None:
    vit = read()
    assert (vit.exact, vit.crop, vit.resample, vit.mean) == ((224, 224), None, 2, (0.5,) * 3)
    clip = preprocessing_of({}, {"feature_extractor_type": "CLIPFeatureExtractor"})
    assert (clip.shortest, clip.crop, clip.resample) == (224, (224, 224), 3)
    assert clip.std == (0.26862954, 0.26130258, 0.27577711)
    mobile = preprocessing_of({}, {"image_processor_type": "MobileNetV2ImageProcessorFast"})
    assert (mobile.shortest, mobile.crop, mobile.resample) == (256, (224, 224), 2)
    large = preprocessing_of({}, {"image_processor_type": "ConvNextImageProcessor"})
    assert (large.exact, large.shortest, large.crop) == ((384, 384), None, None)
    said = {"image_processor_type": "ConvNextImageProcessor", "size": 224, "crop_pct": 0.875}
    cut = preprocessing_of({}, said)
    assert (cut.exact, cut.shortest, cut.crop) == (None, 256, (224, 224))


def test_one_number_as_a_size_is_both_edges_or_the_shorter_one() -> None:
    assert read(size=99).exact == (99, 99)
    clip = {"image_processor_type": "CLIPImageProcessor", "size": 99, "crop_size": 88}
    assert preprocessing_of({}, clip).shortest == 99 and preprocessing_of({}, clip).size == (88, 88)


def test_steps_are_left_out_where_the_file_says_so() -> None:
    off = {"do_resize": False, "do_rescale": False, "do_normalize": False}
    np.testing.assert_array_equal(read(**off)(IMAGE), PIXELS)
    assert read(**off).size is None
    scaled = read(do_resize=False, do_normalize=False, rescale_factor=0.5)(IMAGE)
    np.testing.assert_array_equal(scaled, PIXELS * np.float32(0.5))


def test_timm_resizes_by_the_share_that_is_cropped() -> None:
    found = of_timm(crop_pct=0.95, interpolation="bicubic")
    assert (found.shortest, found.crop, found.resample) == (235, (224, 224), 3)
    assert found.centered_up and found.std == (0.25,) * 3
    assert of_timm().shortest == 256
    squashed = of_timm(crop_mode="squash", input_size=[3, 224, 448], crop_pct=1)
    assert squashed.exact == (224, 448)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"image_processor_type": "SamImageProcessor"}, "must be one of BitImageProcessor"),
    ({"image_processor_type": None}, "image_processor_type None must be one of"),
    ({"size": "big"}, "size 'big' must be an integer from 1"),
    ({"size": {"height": 0, "width": 5}}, "size 0 must be an integer from 1"),
    ({"size": {"longest_edge": 5}}, "a size with height and width, or with shortest_edge alone"),
    ({"size": {"height": 10**9, "width": 5}}, "must be an integer from 1 to 16384"),
    ({"resample": 7}, "resample 7 must be an integer from 0 to 5"),
    ({"do_resize": "yes"}, "do_resize 'yes' must be true or false"),
    ({"image_mean": [1, 2]}, "image_mean .* must be three numbers"),
    ({"image_std": [1, 0, 1]}, "image_std .* must be three numbers > 0"),
    ({"image_std": [1, float("nan"), 1]}, "image_std .* must be three numbers"),
    ({"rescale_factor": -1}, "rescale_factor -1 must be a number > 0"),
]


@pytest.mark.parametrize(("said", "words"), REFUSED)
def test_a_wrong_value_is_refused_by_its_key(said: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(**said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"input_size": [1, 224, 224]}, r"input_size .* must be \[3, height, width\]"),
        ({"interpolation": "random"}, "interpolation 'random' must be one of nearest"),
        ({"crop_mode": "border"}, "crop_mode 'border' must be squash, or center"),
        ({"input_size": [3, 224, 200]}, "crop_mode 'center' must be squash, or center"),
        ({"crop_pct": 0}, "crop_pct 0 must be a number from 0.01 to 1"),
        ({"mean": None}, "mean None must be three numbers"),
    ],
)
def test_a_wrong_value_of_timm_is_refused_by_its_key(said: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        of_timm(**said)


def test_an_image_that_resizing_makes_huge_is_refused() -> None:
    line = Image.new("RGB", (400_000, 1))
    with pytest.raises(ImageError, match="resized, has 102400000 x 256 pixels, and at most"):
        preprocessing_of({}, IMAGENET)(line)


def test_classes_are_called_as_the_config_says(tmp_path: Path) -> None:
    assert class_names({}, 2) == ("class 0", "class 1")
    assert class_names({"id2label": {"1": "b", "0": "a"}}, 2) == ("a", "b")
    assert class_names({"label_names": ["x", "y"]}, 2) == ("x", "y")
    for config, words in (
        ({"id2label": {"0": "a"}}, "id2label has 1 names, and the classifier 2 classes"),
        ({"id2label": {"a": "0", "b": "1"}}, "its keys are numbers"),
        ({"label_names": ["x"]}, "label_names has 1 names"),
        ({"label_names": "xy"}, "must be a list of names"),
    ):
        with pytest.raises(CheckpointError, match=words):
            class_names(config, 2)
    file = tmp_path / "labels.txt"
    file.write_text("naïve\nb\n", encoding="utf-8")
    assert read_labels(file, 2) == ("naïve", "b")
    with pytest.raises(UsageError, match="has 2 labels, and the model 3 classes"):
        read_labels(file, 3)
    file.write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match="labels cannot be read"):
        read_labels(file, 1)


def test_the_likeliest_come_first_and_ties_in_order() -> None:
    found = likeliest(np.float32([0, 5, -1e30, 5]), ("a", "b", "c", "d"), 3)
    assert [one.name for one in found] == ["b", "d", "a"]
    half = 1 / (2 + np.exp(-5.0))
    assert found[0].probability == pytest.approx(half) and found[0].id == 1
