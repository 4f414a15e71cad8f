"""Convolution, pooling, batch norm and quantized linear maps against PyTorch in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as reference

import ptir.functional as F
from functional.evaluate import f32, run

SIZES = [(1, 8, 8), (2, 7, 9), (3, 5, 12)]


def nchw(x):
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))).double()


def nhwc(x):
    return x.numpy().transpose(0, 2, 3, 1)


def assert_near(found, wanted, bound) -> None:
    assert found.dtype == np.float32 and found.shape == wanted.shape
    assert (np.abs(found - wanted) <= bound + 1e-37).all()


def torch_conv(x, weight, bias, sides, **how):
    """PyTorch's convolution, and a bound of what rounding in any order can change."""
    (top, bottom), (left, right) = sides
    padded = reference.pad(nchw(x), (left, right, top, bottom))
    wide = torch.from_numpy(weight).double()
    add = None if bias is None else torch.from_numpy(bias).double()
    size = reference.conv2d(padded.abs(), wide.abs(), None if add is None else add.abs(), **how)
    terms = weight[0].size + 2
    return nhwc(reference.conv2d(padded, wide, add, **how)), terms * 2.0**-24 * nhwc(size)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (2, 3), (5, 4)])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("strides", [1, 2, (3, 1)])
@pytest.mark.parametrize("dilation", [1, (1, 2)])
def test_conv2d(kernel, groups, strides, dilation) -> None:
    for (images, H, W), sides in itertools.product(
        SIZES, [((0, 0), (0, 0)), ((1, 1), (2, 2)), ((2, 0), (0, 3))]
    ):
        x, weight = f32(images, H, W, 6), f32(12, 6 // groups, *kernel, seed=1)
        bias = f32(12, seed=2)
        how = {"stride": strides, "dilation": dilation, "groups": groups}
        wanted, bound = torch_conv(x, weight, bias, sides, **how)
        how = {"strides": strides, "padding": sides, "dilation": dilation, "groups": groups}
        assert_near(run(F.conv2d, x, weight, bias, layout="oihw", **how), wanted, bound)
        stored = np.ascontiguousarray(weight.transpose(2, 3, 1, 0))
        assert_near(run(F.conv2d, x, stored, bias, **how), wanted, bound)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding(kernel, dilation) -> None:
    x, weight = f32(2, 9, 10, 2), f32(3, 2, kernel, kernel, seed=1)
    wanted = reference.conv2d(
        nchw(x), torch.from_numpy(weight).double(), padding="same", dilation=dilation
    )
    found = run(F.conv2d, x, weight, padding="same", dilation=dilation, layout="oihw")
    np.testing.assert_allclose(found, nhwc(wanted), atol=2e-5)


@pytest.mark.parametrize("images", SIZES)
@pytest.mark.parametrize(
    ("window", "padding"), [(1, 0), (2, 0), (2, 1), (3, 0), (3, (1, 0)), ((2, 3), (0, 1))]
)
@pytest.mark.parametrize("strides", [None, 1, (2, 3)])
def test_pools(images, window, strides, padding) -> None:
    x = f32(*images, 4)
    how = {"padding": padding}
    wanted = nhwc(reference.max_pool2d(nchw(x), window, strides, **how))
    found = run(F.max_pool2d, x, window=window, strides=strides, **how)
    np.testing.assert_array_equal(found, wanted.astype(np.float32))
    for include in (True, False):
        wanted = nhwc(
            reference.avg_pool2d(nchw(x), window, strides, count_include_pad=include, **how)
        )
        found = run(
            F.avg_pool2d, x, window=window, strides=strides, count_include_pad=include, **how
        )
        np.testing.assert_allclose(found, wanted, atol=2e-6)


@pytest.mark.parametrize("dilation", [2, (1, 3)])
def test_dilated_max_pool(dilation) -> None:
    x = f32(2, 9, 11, 3)
    wanted = nhwc(reference.max_pool2d(nchw(x), 3, 2, 1, dilation))
    how = {"strides": 2, "padding": 1, "dilation": dilation}
    found = run(F.max_pool2d, x, window=3, **how)
    np.testing.assert_array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("shape", [(2, 5, 6, 7), (3, 7)])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-3])
def test_batch_norm(shape, epsilon) -> None:
    x, size = f32(*shape, scale=4), shape[-1]
    weight, bias, mean = (f32(size, seed=seed) for seed in (1, 2, 3))
    variance = np.abs(f32(size, seed=4)) + np.float32(0.05)
    wide = [torch.from_numpy(v).double() for v in (mean, variance, weight, bias)]
    moved = torch.from_numpy(np.moveaxis(x, -1, 1).copy()).double()
    wanted = reference.batch_norm(moved, *wide, eps=epsilon).numpy()
    found = run(F.batch_norm, x, weight, bias, mean, variance, epsilon=epsilon)
    np.testing.assert_allclose(found, np.moveaxis(wanted, 1, -1), rtol=2e-5, atol=2e-5)


def test_batch_norm_is_that_of_a_module_at_inference() -> None:
    module = torch.nn.BatchNorm2d(3).eval()
    with torch.no_grad():
        for number, value in enumerate(module.state_dict().values()):
            if value.ndim:
                value.copy_(torch.from_numpy(np.abs(f32(3, seed=number)) + np.float32(0.1)))
    x = f32(2, 4, 4, 3)
    with torch.no_grad():
        wanted = nhwc(module.double()(nchw(x)))
    state = {name: value.float().numpy() for name, value in module.state_dict().items()}
    vectors = [state[n] for n in ("weight", "bias", "running_mean", "running_var")]
    np.testing.assert_allclose(run(F.batch_norm, x, *vectors), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_quantized_linear_over_a_fake_quantized_weight(bits) -> None:
    x, weight, bias = f32(5, 64), f32(9, 64, seed=1), f32(9, seed=2)
    how = {"bits": bits, "group": 32}
    scale, least = run(F.affine_range, weight, **how)
    words = run(F.quantize, weight, scale, least, **how)
    zero = -(least / scale)
    groups = torch.from_numpy(weight).double().reshape(9, 2, 32)
    steps = torch.from_numpy(scale).double()[..., None]
    start = torch.from_numpy(zero).double()[..., None]
    near = torch.clamp(torch.round(groups / steps + start), 0, 2**bits - 1)
    fake = ((near - start) * steps).reshape(9, 64)
    wanted = reference.linear(torch.from_numpy(x).double(), fake, torch.from_numpy(bias).double())
    found = run(F.quantized_linear, x, words, scale, least, bias, **how)
    np.testing.assert_allclose(found, wanted.numpy(), atol=5e-5)
