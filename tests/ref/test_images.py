"""Convolution and pooling taken whole by the reference backend, against their own lowerings."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from composite_calls import composite, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

import ptir.functional as F
from functional.evaluate import run
from ptir.capture import Tensor, lower
from ptir.ir.program import Instruction
from ptir.types import TensorType, dtype_of
from ptir_backend_ref import convolution, images
from together import together

Array = np.ndarray[Any, np.dtype[Any]]
RANDOM = np.random.default_rng(11)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def both(function: Any, *operands: Array, **how: Any) -> tuple[Array, Array]:
    """The composite taken whole, and its portable lowering run op by op."""
    types = [TensorType(dtype_of(x), x.shape) for x in operands]
    block = lower(lambda *x: function(*x, **how), types, {})
    (instruction,) = block.instructions
    whole = _taken_whole(instruction, operands)
    return whole, run(function, *operands, **how)


def _taken_whole(instruction: Instruction, operands: tuple[Array, ...]) -> Array:
    attributes = {k: v for k, v in instruction.attributes.items() if k != "name"}
    kept = [x.copy() for x in operands]
    shape = instruction.types[0].shape
    found = composite(instruction.name, *operands, shape=shape, **attributes)
    for operand, copy in zip(operands, kept, strict=True):
        np.testing.assert_array_equal(operand, copy)
        assert not np.may_share_memory(found, operand)
    return found


def assert_near(found: Array, wanted: Array, bound: Array) -> None:
    assert found.shape == wanted.shape
    assert (np.abs(found.astype(np.float64) - wanted) <= bound).all()


def convolved(x: Array, weight: Array, bias: Array | None = None, **how: Any) -> None:
    """Check that the claim and the lowering differ by the rounding of their sums at most."""
    operands = (x, weight) if bias is None else (x, weight, bias)
    found, wanted = both(F.conv2d, *operands, **how)
    _, size = both(F.conv2d, *(np.abs(o) for o in operands), **how)
    terms = weight.size // max(1, weight.shape[0 if how.get("layout") == "oihw" else 3]) + 2
    assert_near(found, wanted, 2 * terms * 2.0**-24 * size.astype(np.float64) + 1e-37)


# Shapes on both sides of the sizes from which work is cut into blocks and spread over threads.
CASES = {
    "small": ((2, 5, 6, 3), (3, 3, 3, 4), {"padding": 1}),
    "one by one": ((2, 9, 9, 40), (1, 1, 40, 30), {}),
    "one by one, strides": ((1, 9, 9, 8), (1, 1, 8, 6), {"strides": 2}),
    "rows in blocks": ((2, 40, 40, 24), (3, 3, 24, 20), {"padding": 1}),
    "images in blocks": ((300, 3, 3, 16), (2, 2, 16, 20), {"padding": "same"}),
    "few places, many filters": ((1, 4, 4, 64), (3, 3, 64, 300), {"padding": 1}),
    "stem": ((1, 30, 34, 3), (7, 7, 3, 16), {"strides": 2, "padding": 3}),
    "asymmetric": ((2, 9, 8, 5), (2, 3, 5, 4), {"padding": ((2, 0), (0, 3)), "strides": (1, 2)}),
    "dilation": ((1, 15, 14, 4), (3, 2, 4, 3), {"dilation": (3, 2), "padding": 2}),
    "groups": ((2, 8, 7, 6), (3, 3, 2, 9), {"groups": 3, "padding": 1}),
    "groups in blocks": ((3, 40, 40, 32), (3, 3, 8, 32), {"groups": 4}),
    "depthwise": ((2, 9, 8, 7), (3, 3, 1, 7), {"groups": 7, "strides": 2, "padding": 1}),
    "depthwise in blocks": ((2, 60, 50, 32), (3, 3, 1, 32), {"groups": 32, "padding": 1}),
    "depthwise, three each": ((1, 7, 7, 4), (3, 2, 1, 12), {"groups": 4, "dilation": 2}),
    "no images": ((0, 5, 5, 3), (3, 3, 3, 4), {}),
    "no channels": ((2, 5, 5, 0), (3, 3, 0, 4), {}),
    "no outputs": ((2, 5, 5, 3), (3, 3, 3, 0), {}),
}


@together()
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("layout", ["hwio", "oihw"])
@pytest.mark.parametrize("biased", [False, True])
def test_conv2d_taken_whole_equals_its_lowering(case: str, layout: str, biased: bool) -> None:
    shape, kernel, how = CASES[case]
    weight = normal(*kernel)
    stored = weight if layout == "hwio" else np.ascontiguousarray(weight.transpose(3, 2, 0, 1))
    bias = normal(kernel[-1]) if biased else None
    convolved(normal(*shape), stored, bias, layout=layout, **how)


@settings(max_examples=60)
@given(st.data())
def test_conv2d_of_any_geometry_equals_its_lowering(data: Any) -> None:
    pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, strides, dilation = (data.draw(pairs) for _ in range(3))
    edges = st.tuples(st.integers(0, 2), st.integers(0, 2))
    padding = data.draw(st.tuples(edges, edges))
    sizes = [
        data.draw(st.integers(max(1, (k - 1) * d + 1 - sum(p)), 8))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    groups, inputs, outputs = (data.draw(st.integers(1, 3)) for _ in range(3))
    x = normal(data.draw(st.integers(1, 3)), *sizes, groups * inputs)
    weight = normal(*kernel, inputs, groups * outputs)
    how = {"strides": strides, "dilation": dilation, "padding": padding, "groups": groups}
    convolved(x, weight, **how)
    convolved(x, weight.transpose(3, 2, 0, 1), layout="oihw", **how)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_views_with_any_strides_are_convolved(groups: int) -> None:
    x = normal(9, 8, 4, 2)[:, ::-1].transpose(3, 0, 1, 2)
    weight = np.broadcast_to(normal(2, 2, 4 // groups, 1), (2, 2, 4 // groups, 8))
    convolved(x, weight, np.broadcast_to(normal(1), (8,)), groups=groups, padding=1)


def test_patches_are_made_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    blas_ready = convolution.blas_ready

    def noting(x: Array) -> Array:
        seen.append(x.size)
        return blas_ready(x)

    monkeypatch.setattr(convolution, "blas_ready", noting)
    x, weight = normal(2, 64, 64, 32), normal(3, 3, 32, 8)
    how = {name: (1, 1) for name in ("strides", "dilation", "low", "high")}
    composite("conv2d", x, weight, shape=(2, 64, 64, 8), groups=1, layout="hwio", **how)
    assert len(seen) > 8 and max(seen) <= convolution.PATCHES
    assert sum(seen[1:]) == 2 * 64 * 64 * 9 * 32


@pytest.mark.parametrize(
    ("shape", "width", "most"),
    [
        ((1, 7), 10, 25),
        ((5, 7), 10, 25),
        ((5, 2), 10, 45),
        ((5, 2), 10, 9),
        ((0, 3), 1, 5),
        ((3, 4), 0, 5),
    ],
)
def test_blocks_cover_every_row_once(shape: tuple[int, int], width: int, most: int) -> None:
    counts = np.zeros(shape, int)
    for block in images.blocks(shape, width, most):
        part = counts[block]
        assert part.size * width <= most or part.size == 1
        part += 1
    assert (counts == 1).all()


POOLS = {
    "halves": ((2, 6, 6, 3), {"window": 2}),
    "overlapping": ((1, 9, 8, 5), {"window": (3, 2), "strides": 1}),
    "stem": ((1, 60, 60, 32), {"window": 3, "strides": 2, "padding": 1}),
    "asymmetric": ((2, 7, 7, 2), {"window": 4, "padding": ((2, 0), (1, 2)), "strides": (1, 3)}),
    "whole": ((2, 7, 7, 40), {"window": 7}),
    "no images": ((0, 4, 4, 2), {"window": 2}),
    "no channels": ((1, 4, 4, 0), {"window": 2}),
}


@pytest.mark.parametrize("case", POOLS)
def test_max_pool_taken_whole_equals_its_lowering_bit_for_bit(case: str) -> None:
    shape, how = POOLS[case]
    x = normal(*shape) - np.float32(2)
    for source, dilation in itertools.product((x, np.asfortranarray(x)), (1, 2)):
        if dilation == 1 or case not in ("no images", "no channels", "whole", "asymmetric"):
            found, wanted = both(F.max_pool2d, source, dilation=dilation, **how)
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("awkward", [(0.0, -0.0), (np.nan, 1.0, -0.0), (-np.inf, np.inf, 0.0)])
def test_max_pool_orders_zeros_and_propagates_nan(awkward: tuple[float, ...]) -> None:
    x = RANDOM.choice(np.array(awkward, np.float32), (2, 9, 9, 3))
    found, wanted = both(F.max_pool2d, x, window=(1, 2), strides=1, padding=(0, 1))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    numbers = ~np.isnan(wanted)
    assert found[numbers].tobytes() == wanted[numbers].tobytes()


@pytest.mark.parametrize("case", POOLS)
@pytest.mark.parametrize("include", [False, True])
def test_avg_pool_taken_whole_equals_its_lowering(case: str, include: bool) -> None:
    shape, how = POOLS[case]
    x = normal(*shape)
    found, wanted = both(F.avg_pool2d, x, count_include_pad=include, **how)
    _, size = both(F.avg_pool2d, np.abs(x), count_include_pad=include, **how)
    assert_near(found, wanted, 100 * 2.0**-24 * size)


def test_narrow_weights_are_left_to_the_lowering() -> None:
    how = {name: (1, 1) for name in ("strides", "dilation", "low", "high")}
    x, weight = normal(1, 5, 5, 2), normal(3, 3, 2, 4)
    assert refusal("conv2d", x, weight, groups=1, layout="hwio", **how) is None
    narrow = refusal("conv2d", x, weight.astype(np.float16), groups=1, layout="hwio", **how)
    assert narrow == "conv2d is taken whole for (f32, f32, f32) only"


def test_a_network_of_images_runs_on_the_backend() -> None:
    import ptir

    x, weight = normal(1, 8, 8, 3), normal(3, 3, 3, 4)
    tensors = [ptir.tensor(a, backend="ref") for a in (x, weight)]
    image: Tensor = F.conv2d(*tensors, padding="same", strides=2)
    found = F.avg_pool2d(F.max_pool2d(image, 2), 2).numpy()
    wanted = run(
        lambda a, b: F.avg_pool2d(F.max_pool2d(F.conv2d(a, b, padding="same", strides=2), 2), 2),
        x,
        weight,
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
