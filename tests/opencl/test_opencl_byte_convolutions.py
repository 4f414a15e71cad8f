"""``conv2d=int8`` on devices with dot instructions, and what ``fast`` makes of models of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opencl_runs import run, with_parameters

import ptir
from byte_convolutions import UNIT, Shape, convolved
from ptir import functional as F
from ptir import overrides
from ptir.backend.contract import Target
from ptir.errors import UnsupportedError, UsageError
from ptir.runtime.explain import explain_images
from ptir.runtime.image_model import ImageModel

pytestmark = pytest.mark.turns(2)

BYTES = {"conv2d": "force=int8"}
SHAPES = [
    Shape((1, 20, 17, 8), (40, 3, 3), padding=(1, 1)),
    Shape((3, 9, 8, 3), (33, 7, 5), strides=(2, 3), padding=(3, 2)),
    Shape((2, 7, 7, 64), (50, 1, 1), strides=(2, 2)),
    Shape((2, 11, 15, 12), (16, 3, 2), padding=(1, 2), dilation=(3, 2)),
    Shape((1, 8, 8, 5), (100, 8, 8), strides=(8, 8)),
    Shape((2, 6, 5, 4), (7, 3, 3), padding=(0, 1)),
]
"""Panels that are full and not, channels that fill words and not; the last one is not packed."""


def body(shape: Shape) -> Any:
    """A convolution with what follows it in networks."""

    def call(x: Any, beside: Any, w: Any, bias: Any) -> Any:
        return F.maximum(F.conv2d(x, w, bias, **shape.how) + beside, 0.0)

    return call


@pytest.mark.slice(2)
@pytest.mark.usefixtures("dots", "built_anew")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_of_convolutions_are_exact(opencl: Target, shape: Shape) -> None:
    x, w, bias = shape.arrays()
    wanted = convolved(x, w, shape)
    beside = np.random.default_rng(3).standard_normal(wanted.shape, np.float32)
    with overrides(BYTES):
        found = with_parameters(opencl, body(shape), x, w, bias, beside=(beside,))
    bound = 6 * UNIT * (np.abs(wanted) + np.abs(bias) + np.abs(beside))
    assert (np.abs(found - np.maximum(wanted + bias + beside, 0)) <= bound).all()


def test_convolutions_of_bytes_are_ordinary_ops_too(opencl: Target) -> None:
    """Filters that are no parameters are not packed: what devices without the instruction do."""
    shape = Shape((2, 7, 6, 8), (48, 3, 3), padding=(1, 1))
    x, w, bias = shape.arrays()
    wanted = convolved(x, w, shape) + bias
    beside = np.zeros(wanted.shape, np.float32)
    with overrides(BYTES):
        found = run(opencl, body(shape), x, beside, w, bias)
    bound = 6 * UNIT * (np.abs(wanted) + 2 * np.abs(bias))
    assert (np.abs(found - np.maximum(wanted, 0)) <= bound).all()


@pytest.fixture
def bytes_of(opencl: Target) -> Target:
    """The device where it has the instruction."""
    found: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    if "dot_signed_bytes" not in found.dialect.dots:
        pytest.skip("the processor has no dot instructions")
    return opencl


def pictures(count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(5).standard_normal((count, 32, 32, 3), np.float32)


def parts(model: ImageModel) -> list[tuple[str, tuple[str, ...]]]:
    """The kernels of a run, and what each computes."""
    with model.policies():
        report = explain_images(model, 1, 1)
    return [(work.name, work.fused) for section in report.sections for work in section.works]


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", ["resnet-tiny", "mobilenet-v2-tiny"])
def test_fast_loses_little_of_models_of_images(bytes_of: Target, name: str) -> None:
    shown = pictures(4)
    exact = ptir.load_model(f"random:{name}", backend="ref").forward(shown)
    fast = ptir.load_model(f"random:{name}", backend=bytes_of, quant="int8", fast=True)
    found = fast.forward(shown)
    size = np.abs(exact).max()
    assert 1e-5 < np.abs(found - exact).max() / size < 0.06
    alone = np.concatenate([fast.forward(shown[n : n + 1]) for n in range(4)])
    assert np.abs(alone - found).max() / size < 1e-4, "images do not depend on each other"


def test_fast_is_three_kernels_and_a_convolution_with_all_that_follows(bytes_of: Target) -> None:
    model = ptir.load_model("random:resnet-tiny", backend=bytes_of, quant="int8", fast=True)
    assert isinstance(model, ImageModel)
    found = parts(model)
    convolutions = [fused for name, fused in found if name == "byte_convolution"]
    assert all({"conv2d=int8", "batch_norm"} <= {*fused} for fused in convolutions)
    assert any({"add", "maximum"} <= {*fused} for fused in convolutions), "residuals are added"
    others = [name for name, fused in found if fused == ("conv2d=int8",)]
    assert {*others} == {"row_reduction", "image_rounding"}
    assert others.count("image_rounding") == len(convolutions) > 1


def test_depthwise_convolutions_stay_as_they_are(bytes_of: Target) -> None:
    model = ptir.load_model("random:mobilenet-v2-tiny", backend=bytes_of, quant="int8", fast=True)
    assert isinstance(model, ImageModel)
    names = {name for name, _ in parts(model)}
    assert {"convolution", "byte_convolution"} <= names


def test_a_model_s_own_override_of_convolutions_wins(bytes_of: Target) -> None:
    back = {"conv2d": "force=portable", "quantized_linear": "force=portable"}
    how: dict[str, Any] = {"backend": bytes_of, "quant": "int8"}
    model = ptir.load_model("random:resnet-tiny", fast=True, overrides=back, **how)
    exact = ptir.load_model("random:resnet-tiny", overrides=back, **how)
    np.testing.assert_array_equal(model.forward(pictures(1)), exact.forward(pictures(1)))


def test_floats_are_refused_by_fast_for_images_as_for_texts(opencl: Target) -> None:
    with pytest.raises(UsageError, match="fast: weights in f32 have no dot implementation"):
        ptir.load_model("random:resnet-tiny", backend=opencl, fast=True)


def test_a_device_without_the_instruction_of_convolutions_says_so(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    monkeypatch.setattr(found.dialect, "dots", frozenset(("dot_bytes",)))
    with pytest.raises(UnsupportedError) as raised:
        ptir.load_model("random:resnet-tiny", backend=opencl, quant="int8", fast=True)
    said = str(raised.value)
    assert "gains nothing from conv2d=int8 (" in said and "no dot_signed_bytes instruction" in said
    assert said.endswith("--override conv2d=force=int8")
    ptir.load_model("demo", backend=opencl, quant="int8", fast=True)  # which has no filters
