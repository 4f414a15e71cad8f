"""The layers of image models: their parameters are PyTorch's, their calls are the functionals'."""

from __future__ import annotations

import numpy as np

import ptir.functional as F
from functional.evaluate import f32, run
from ptir.nn import AvgPool2d, BatchNorm2d, Conv2d, MaxPool2d, Module


class Stem(Module):
    """Three layers with parameters or none."""

    def __init__(self):
        self.conv = Conv2d(4, 6, (3, 2), strides=2, padding=(1, 0), groups=2, bias=False)
        self.bn = BatchNorm2d(6, epsilon=0.25)
        self.pool = MaxPool2d(3, strides=1, padding=1)

    def __call__(self, x):
        return self.pool(self.bn(self.conv(x)))


def applied(layer, x, **values):
    """The layer on an array, with arrays by checkpoint key."""
    names = list(values)

    def call(image, *tensors):
        return layer.bind(dict(zip(names, tensors, strict=True)).__getitem__)(image)

    return run(call, x, *values.values())


def arrays(layer):
    """Random values of the layer's parameters, all positive."""
    types = layer.parameters()
    return {
        n: np.abs(f32(*t.shape, seed=i)) + np.float32(0.1) for i, (n, t) in enumerate(types.items())
    }


def test_parameters_have_the_names_and_shapes_of_checkpoints() -> None:
    found = {name: t.shape for name, t in Stem().parameters().items()}
    assert found == {
        "conv.weight": (6, 2, 3, 2),
        "bn.weight": (6,),
        "bn.bias": (6,),
        "bn.running_mean": (6,),
        "bn.running_var": (6,),
    }
    assert Conv2d(3, 8, 5).parameters()["bias"].shape == (8,)


def test_layers_call_the_functionals_with_what_they_hold() -> None:
    x, values = f32(2, 7, 8, 4), arrays(Stem())
    found = applied(Stem(), x, **values)
    conv = {"strides": 2, "padding": (1, 0), "groups": 2, "layout": "oihw"}
    wanted = run(F.conv2d, x, values["conv.weight"], **conv)
    vectors = [values[f"bn.{n}"] for n in ("weight", "bias", "running_mean", "running_var")]
    wanted = run(F.batch_norm, wanted, *vectors, epsilon=0.25)
    wanted = run(F.max_pool2d, wanted, window=3, strides=1, padding=1)
    np.testing.assert_array_equal(found, wanted)


def test_biased_and_dilated_convolution() -> None:
    layer = Conv2d(2, 3, 2, dilation=(2, 1), padding="same")
    x, values = f32(1, 5, 5, 2), arrays(layer)
    how = {"dilation": (2, 1), "padding": "same", "layout": "oihw"}
    wanted = run(F.conv2d, x, values["weight"], values["bias"], **how)
    np.testing.assert_array_equal(applied(layer, x, **values), wanted)


def test_pools_without_parameters() -> None:
    x = f32(1, 7, 7, 2)
    average = AvgPool2d(3, strides=2, padding=1, count_include_pad=False)
    how = {"strides": 2, "padding": 1}
    wanted = run(F.avg_pool2d, x, window=3, count_include_pad=False, **how)
    np.testing.assert_array_equal(run(average, x), wanted)
    dilated = MaxPool2d(2, dilation=3)
    np.testing.assert_array_equal(run(dilated, x), run(F.max_pool2d, x, window=2, dilation=3))
    assert run(AvgPool2d(7), x).shape == (1, 1, 1, 2)
