"""Models that take images: the keys and numbers of torchvision and timm, and what is refused.

That they compute what Transformers does is tests/parity's matter.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import image_models
import ptir
from devices import device
from ptir import events
from ptir.capture.plan import PLANS
from ptir.checkpoint import open_checkpoint, save_folder
from ptir.errors import CheckpointError, TypeRuleError, UnsupportedError, UsageError
from ptir.models.clip import mark_tokens, text_config
from ptir.models.table import MODELS, definition, load_modules, presets
from ptir.models.timm import named_by_timm
from ptir.params.source import ArraySource
from ptir.runtime.image_model import ImageModel
from ptir.runtime.load import described_weights, prepared
from ptir.runtime.specs import random_checkpoint
from running import REF
from together import together

CASES = image_models.cases()
SEEING = ("resnet-tiny", "mobilenet-v2-tiny", "convnext-tiny", "vit-tiny", "dinov2-tiny")


def saved(case: dict[str, Any], folder: Path, **change: Any) -> Path:
    given = image_models.checkpoint({**case["config"], **change}, case["shapes"])
    return save_folder(given, folder / f"m{len([*folder.iterdir()])}")


def loaded(spec: str, **options: Any) -> ImageModel:
    model = ptir.load_model(spec, **{"backend": REF, **options})
    assert isinstance(model, ImageModel)
    return model


@together()
@pytest.mark.parametrize("name", CASES)
def test_a_model_under_the_keys_of_its_library_computes_what_the_library_does(
    name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    model = ptir.load_model(saved(case, tmp_path), backend=REF)
    found, wanted = model.forward(image_models.image(tuple(case["image"]))), case["scores"]
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@together()
@pytest.mark.parametrize("name", SEEING)
def test_each_image_of_a_batch_is_seen_alone(name: str) -> None:
    model = loaded(f"random:{name}", seed=2)
    images = image_models.image((3, 35, 44, 3))
    whole = model.forward(images)
    assert whole.shape == (3, 10)
    for number, one in enumerate(images):
        np.testing.assert_allclose(model.forward(one), whole[number], rtol=2e-4, atol=2e-5)
    assert np.ptp(whole, axis=0).max() > 0.01 * np.abs(whole).max()


def test_every_layer_is_traced_and_features_are_what_embed_gives() -> None:
    model = loaded("random:resnet-tiny")
    pixels = np.random.default_rng(3).integers(0, 256, (40, 50, 3), np.uint8)
    traced = model.trace(model.pixels(pixels))
    assert {"conv1", "layer2.1.bn3", "fc", "scores"} <= {*traced}
    np.testing.assert_array_equal(traced["features"], model.embed(pixels))
    np.testing.assert_array_equal(traced["fc"], traced["scores"])


@pytest.mark.parametrize("backend", ["ref", "c", "opencl"])
def test_pixels_are_read_where_they_are_for_one_call_only(backend: str) -> None:
    """The array may change between calls, and be any part of another one."""
    model = loaded("random:mobilenet-v2-tiny", seed=2, backend=device(backend))
    first, second = image_models.image((2, 35, 44, 3))
    pixels = first.copy()
    before = model.forward(pixels)
    pixels[:] = second
    after = model.forward(pixels)
    np.testing.assert_array_equal(after, model.forward(second.copy()))
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(model.forward(second[::-1][::-1]), after)
    shifted = np.zeros(second.nbytes + 4, np.uint8)[4:].view("f4").reshape(second.shape)
    shifted[:] = second
    np.testing.assert_array_equal(model.forward(shifted), after)
    if backend == "c":
        running = model.target.backend, model.target.device
        copied = running[0].stats(running[1]).bytes_uploaded
        model.forward(pixels)
        assert running[0].stats(running[1]).bytes_uploaded == copied


def test_resnet_prefers_winograd_where_there_is_a_kernel_for_it() -> None:
    def run(backend: Any, **options: Any) -> tuple[set[str], Any]:
        chosen: set[str] = set()

        def heard(event: events.Event) -> None:
            if isinstance(event, events.ImplementationChosen) and event.functional == "conv2d":
                chosen.add(event.implementation)

        remove = events.subscribe(heard)
        PLANS.clear()
        try:
            model = ptir.load_model("random:resnet-tiny", backend=backend, **options)
            return chosen, model.forward(np.ones((33, 40, 3), np.float32))
        finally:
            remove()

    plain, wanted = run(REF)
    kernels, found = run(device("c"))
    assert (plain, kernels) == ({"backend"}, {"backend", "winograd"})  # one of stride 2 is left
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert run(device("c"), overrides={"conv2d": "default"})[0] == {"backend"}


def test_what_is_not_asked_for_is_neither_computed_nor_loaded() -> None:
    model, image = loaded("random:mobilenet-v2-tiny", seed=2), image_models.image((1, 35, 44, 3))
    head = {"classifier.1.weight", "classifier.1.bias"}
    for found, wanted in (
        (lambda: model.embed(np.zeros((35, 44, 3), np.uint8)), set[str]()),
        (lambda: model.forward(image), head),
    ):
        before = len(model.plans)
        found()
        (plan,) = model.plans[before:]
        assert {p.name for p in plan.captured.ports} & head == wanted
        assert len(plan.captured.outputs) == 1


def test_more_images_than_a_batch_holds_keep_their_order() -> None:
    model = loaded("random:vit-tiny")
    rng = np.random.default_rng(5)
    images = [rng.integers(0, 256, (n + 20, 40, 3), np.uint8) for n in range(11)]
    found = model.classify(images, top_k=2)
    assert [len(one) for one in found] == [2] * 11
    for number in (0, 7, 8, 10):
        (alone,) = model.classify(images[number], top_k=2)
        assert [one.id for one in alone] == [one.id for one in found[number]]


def test_a_constant_channel_is_computed_and_a_variance_below_zero_refused(tmp_path: Path) -> None:
    """Dead channels have a variance of 0 in checkpoints that people use; epsilon holds them."""
    case = CASES["resnet, basic"]
    folder = saved(case, tmp_path)
    held = {n: image_models.values(n, tuple(s)) for n, s in case["shapes"].items()}
    for value, words in ((0.0, ""), (-0.5, "holds -0.5 at channel 2"), (np.nan, "holds nan")):
        held["layer1.0.bn1.running_var"][2] = value
        source = ArraySource(held)
        given = image_models.checkpoint(case["config"], case["shapes"])
        save_folder(type(given)(**{**vars(given), "source": source}), folder, overwrite=True)
        if words:
            with pytest.raises(CheckpointError, match=f"layer1.0.bn1.running_var {words}"):
                ptir.load_model(folder, backend=REF)
            continue
        model = ptir.load_model(folder, backend=REF)
        assert np.isfinite(model.forward(image_models.image((1, 40, 40, 3)))).all()


def test_a_classifier_of_timm_sees_the_class_token_alone(tmp_path: Path) -> None:
    case = CASES["dinov2, timm"]
    shapes = {**case["shapes"], "head.weight": [5, 24], "head.bias": [5]}
    given = image_models.checkpoint({**case["config"], "num_labels": 5}, shapes)
    model = ptir.load_model(str(save_folder(given, tmp_path / "m")), backend=REF)
    pixels = image_models.image((2, 32, 32, 3))
    features = np.array(case["scores"])  # it has no head
    weight, bias = (image_models.values(n, tuple(shapes[n])) for n in ("head.weight", "head.bias"))
    wanted = features @ weight.T + bias
    assert np.abs(model.forward(pixels) - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"architectures": ["Dinov2ForImageClassification"]}, "Dinov2ForImageClassification"),
        ({"num_labels": 7}, "7 labels"),
        ({"id2label": {"0": "a", "1": "b"}}, "2 labels"),
        ({"architectures": ["Dinov2Model"], "id2label": {"0": "a"}}, ""),
        ({"num_labels": 0}, ""),
    ],
)
def test_a_classifier_that_is_declared_and_not_stored_is_told_of(
    more: dict[str, Any], words: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    case = CASES["dinov2, timm"]
    model = ptir.load_model(saved(case, tmp_path, **more), backend=REF)
    said = [str(one.message) for one in recwarn]
    assert bool(said) == bool(words)
    assert all(f"declares a classifier ({words})" in one for one in said)
    match = re.escape(f"declares a classifier ({words})") if words else "load a model that can"
    with pytest.raises(UnsupportedError, match=match):
        model.classify(np.zeros((32, 32, 3), np.uint8))


SIBLINGS = [
    (
        "resnet, basic",
        {"layer_type": "bottleneck", "hidden_sizes": [4, 8, 8, 12]},
        "does not fit the model: .* tensors missing",
    ),
    ("resnet, basic", {"depths": [1, 2, 1, 2]}, "missing .layer4.1.conv1.weight"),
    ("resnet, bottleneck", {"hidden_sizes": [8, 12, 16, 28]}, "of another shape"),
    ("vit, timm", {"model_type": "dinov2"}, "missing .blocks.0.ls1.gamma"),
    ("vit, timm", {"model_type": "convnext", "depths": [1], "hidden_sizes": [8]}, "not expected"),
    ("vit, timm", {"patch_size": 4}, "pos_embed is f32.1,17,24., expected f32.1,65,24."),
    ("convnext, timm", {"num_labels": 8}, "says 8 num_labels, and the classifier .* has 7"),
    ("resnet, basic", {"id2label": {"0": "a"}}, "says 1 labels in id2label, .* has 7 outputs"),
]


@pytest.mark.parametrize(("name", "change", "words"), SIBLINGS)
def test_a_checkpoint_of_a_sibling_is_refused_by_its_tensors(
    name: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=words):
        ptir.load_model(saved(CASES[name], tmp_path, **change), backend=REF)


WRONG = [
    ("resnet, basic", {"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented; relu is"),
    ("resnet, basic", {"layer_type": "deep"}, "'deep' is not implemented; basic, bottleneck are"),
    ("resnet, basic", {"depths": [1]}, "hidden_sizes has 4 stages and depths 1"),
    ("resnet, basic", {"depths": []}, r"depths \[\] .* must be a list of 1 to 64 integers"),
    ("resnet, basic", {"depths": [1, 0, 1, 1]}, "depths 0 .* must be an integer >= 1"),
    ("resnet, basic", {"num_channels": 1}, "num_channels 1 .* must be an integer >= 3"),
    ("vit, timm", {"image_size": [32, 16]}, "is not square"),
    ("vit, timm", {"image_size": 4}, "image_size 4 is below patch_size 8"),
    ("vit, timm", {"num_attention_heads": 5}, "hidden_size 24 must be a multiple of"),
    ("mobilenet_v2, torchvision", {"output_stride": 4}, "output_stride 4 must be 8, 16 or 32"),
    ("mobilenet_v2, torchvision", {"first_layer_is_expansion": False}, "is not implemented"),
    ("mobilenet_v2, timm", {"architecture": "mobilenetv4_x"}, "'mobilenetv4_x' of timm is not"),
    ("mobilenet_v2, timm", {"model_args": {"act_layer": "silu"}}, "model_args .* change the"),
]


@pytest.mark.parametrize(("name", "change", "words"), WRONG)
def test_a_wrong_value_is_refused_by_name(
    name: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=words):
        ptir.load_model(saved(CASES[name], tmp_path, **change), backend=REF)


def test_two_keys_for_one_tensor_and_a_part_that_is_missing_are_refused(tmp_path: Path) -> None:
    query = "vit.encoder.layer.0.attention.attention.query.weight"
    marked = {"vit.encoder.layer.0.layernorm_before.weight": [24], query: [24, 24]}
    bias = query.replace("weight", "bias")
    config = {"model_type": "vit"}
    for shapes, words in (
        ({**marked, query.replace("query", "value"): [24, 24]}, "only .*query.*value.* are there"),
        ({**marked, query.removeprefix("vit."): [24, 24]}, "are both 'blocks.0.attn.qkv.weight'"),
        ({**marked, query.replace("query", "key"): [24, 20]}, "parts that do not fit together"),
        (
            {**marked, bias: [24], bias.replace("query", "key"): []},
            "do not fit together: .*f32\\[\\]",
        ),
    ):
        with pytest.raises(CheckpointError, match=words):
            described_weights(image_models.checkpoint(config, shapes))


def test_timm_says_by_a_name_what_others_say_in_sizes() -> None:
    said = named_by_timm({"architecture": "vit_small_patch16_384", "num_classes": 5})
    assert (said["model_type"], said["hidden_size"], said["image_size"]) == ("vit", 384, 384)
    assert said["num_labels"] == 5
    said = named_by_timm({"architecture": "resnet101", "num_classes": 0})
    assert said["depths"] == [3, 4, 23, 3] and said["num_labels"] == 0
    assert named_by_timm({"model_type": "x", "architecture": "y"})["model_type"] == "x"


def test_presets_have_the_sizes_of_the_models_that_people_use() -> None:
    """Parameters as published, in millions, buffers of batch norms not counted."""
    wanted = {"resnet18": 11.69, "resnet34": 21.80, "resnet50": 25.56, "resnet101": 44.55}
    wanted |= {"mobilenet-v2": 3.50, "vit-base-16": 86.57, "convnext-tiny-224": 28.59}
    wanted |= {"dinov2-small": 22.06, "clip-base-32": 151.28}
    for name, millions in wanted.items():
        types = random_checkpoint(name, 0).source
        sizes = [types.type(n).size for n in types.names() if ".running_" not in n]
        assert sum(sizes) / 1e6 == pytest.approx(millions, abs=0.01), name


def test_a_model_says_what_it_can_do_and_refuses_the_rest() -> None:
    sees, speaks = loaded("random:resnet-tiny"), ptir.load_model("demo", backend=REF)
    assert sees.capabilities == ("classify", "embed", "forward", "trace")
    assert loaded("random:clip-tiny").capabilities[-1] == "embed_texts"
    for call in (
        lambda: sees.generate("x"),
        lambda: sees.chat([{"role": "user", "content": "x"}]),
        lambda: sees.new_state(1, 8),
        lambda: sees.embed_texts(["x"]),
        lambda: speaks.classify("x.png"),
        lambda: speaks.embed("x.png"),
    ):
        with pytest.raises(UnsupportedError, match=r"cannot .*; it can "):
            call()
    headless = dict(presets()["vit-tiny"][1], num_labels=0)
    assert definition("vit").build(headless).classes == 0


def test_what_is_given_to_forward_is_checked() -> None:
    model = loaded("random:vit-tiny")
    for given, words in (
        (np.zeros((32, 32, 3)), "float64"),
        (np.zeros((32, 32), np.float32), r"float32\[32,32\]"),
        (np.zeros((1, 3, 32, 32), np.float32), r"give f32\[N,H,W,3\]"),
        (np.zeros((0, 32, 32, 3), np.float32), "no pixel"),
    ):
        with pytest.raises(UsageError, match=words):
            model.forward(given)
    with pytest.raises(TypeRuleError, match="is smaller than the window, 8"):
        model.forward(np.zeros((4, 40, 3), np.float32))


def test_texts_and_images_of_clip() -> None:
    model = loaded("random:clip-tiny", seed=1)
    image = np.random.default_rng(1).integers(0, 256, (40, 30, 3), np.uint8)
    labels = ["a cat", "two dogs at the sea", "x"]
    (found,) = model.classify(image, labels=labels, top_k=3)
    assert {one.name for one in found} == {*labels}
    assert sum(one.probability for one in found) == pytest.approx(1.0)
    texts, seen = model.embed_texts(labels).astype(float), model.embed(image).astype(float)
    cosines = (texts @ seen[0]) / np.linalg.norm(texts, axis=1) / np.linalg.norm(seen)
    weights = np.exp(cosines * np.exp(model.module.logit_scale.numpy()))
    by_name = {one.name: one.probability for one in found}
    np.testing.assert_allclose([by_name[n] for n in labels], weights / weights.sum(), rtol=1e-4)
    with pytest.raises(UsageError, match="no classes of its own; give labels"):
        model.classify(image)
    with pytest.raises(UsageError, match="tokens, and the context is 77"):
        model.embed_texts(["many words " * 80])
    with pytest.raises(UsageError, match="has 10 classes of its own"):
        loaded("random:vit-tiny").classify(image, labels=labels)


MARKS: tuple[tuple[dict[str, Any], tuple[int, int] | str], ...] = (
    ({"bos_token_id": 5, "eos_token_id": 7}, (5, 7)),
    ({"bos_token_id": 0, "eos_token_id": 2}, (510, 511)),
    ({"eos_token_id": 99999}, "must be below vocab_size 512"),
    ({"eos_token_id": None}, "eos_token_id None in config.json must be"),
    ({"bos_token_id": [1]}, "bos_token_id .* in config.json must be"),
)


@pytest.mark.parametrize("said, wanted", MARKS)
def test_marks_around_a_text_are_tokens_of_the_vocabulary(
    said: dict[str, Any], wanted: tuple[int, int] | str
) -> None:
    config = text_config({"text_config": {"vocab_size": 512, "bos_token_id": 510, **said}})
    if isinstance(wanted, tuple):
        assert mark_tokens(config) == wanted
        return
    with pytest.raises(CheckpointError, match=wanted):
        mark_tokens(config)


def test_a_saved_folder_keeps_how_images_are_prepared(tmp_path: Path) -> None:
    case = CASES["resnet, basic"]
    said = {"image_processor_type": "ViTImageProcessor", "size": {"height": 9, "width": 8}}
    given = image_models.checkpoint(case["config"], case["shapes"], preprocessor_config=said)
    folder = save_folder(given, tmp_path / "m")
    assert open_checkpoint(folder).preprocessor_config == said
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": said}))
    model = ptir.load_model(folder, backend=REF)
    assert isinstance(model, ImageModel) and model.preprocessing.size == (9, 8)
    assert prepared(open_checkpoint(folder)).preprocessor_config == said


def test_every_family_is_in_the_table() -> None:
    load_modules()
    found = {name for name, one in MODELS.items() if "embed" in one.capabilities}
    wanted = {"resnet", "mobilenet_v2", "convnext", "vit", "dinov2", "clip", "clip_vision_model"}
    assert wanted <= found
