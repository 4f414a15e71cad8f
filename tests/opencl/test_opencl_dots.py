"""Dot implementations: sums of bytes are exact, errors bounded, and nothing uses them unasked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opencl_runs import Array, close, normal, with_parameters

from ptir import functional as F
from ptir import overrides
from ptir.backend.contract import Target
from ptir.functional.define import internal_composite
from ptir.functional.linear import QuantizedWeight
from ptir.ops.rounded import ROUND
from ptir.params.quantized import round_to_nearest
from ptir.runtime.held import in_words
from ptir.types import BF16
from ptir.weights import FORMATS
from ptir.weights.affine_form import SCALE, SUPER, AffineForm, GroupFloats, affine_form
from ptir.weights.formats import symmetric
from ptir.weights.packing import pack
from ptir.weights.words import NIBBLES

pytestmark = pytest.mark.turns(2)

INT8 = {"quantized_linear": "force=int8"}
PAIRS = {"linear": "force=bf16"}
EPSILON = 2.0**-24

SHAPES = [(1, 64, 32, 32), (3, 96, 50, 48), (8, 256, 192, 32), (9, 64, 48, 16), (37, 128, 100, 128)]
"""Rows, inputs, outputs and the size of groups: few rows, many, and panels that are not full."""


def quantized(weight: Array, bits: int, group: int, layout: str) -> tuple[Array, Array]:
    """Words and scales of a weight [outputs, inputs], as a layout wants them."""
    words, scale = round_to_nearest(weight, 1, symmetric("x", bits, group))
    return (words, scale) if layout == "oi" else (words.T.copy(), scale.T.copy())


def values_of(words: Array, bits: int, inputs: int) -> Array:
    """The whole numbers in words [outputs, W]."""
    shifts = (np.arange(32 // bits) * bits).astype(np.uint32)
    return ((words[..., None] >> shifts) & (2**bits - 1)).reshape(-1, inputs).astype(np.int64)


def rounded(x: Array, group: int) -> tuple[Array, Array]:
    """Activations as whole numbers and their scales, by the formula of the implementation."""
    groups = x.reshape(len(x), -1, group)
    most = np.abs(groups).max(-1)
    factor = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 2.0**-100)
    return np.rint(groups * factor[..., None]).astype(np.int64), most * np.float32(1 / 127)


def product(opencl: Target, x: Array, words: Array, scale: Array, **how: Any) -> Array:
    """What the backend gives for a quantized weight."""
    layout, zero = how.pop("layout"), how.pop("zero")

    def body(x: Any, words: Any, scale: Any) -> Any:
        weight = QuantizedWeight(words, scale, int(layout == "oi"), zero=zero, **how)
        return F.linear(x, weight, layout=layout)

    return with_parameters(opencl, body, x, words, scale)


@pytest.mark.slice(2)
@pytest.mark.usefixtures("dots", "built_anew")
@pytest.mark.parametrize("layout", ["oi", "io"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "inputs", "outputs", "group"), SHAPES)
def test_sums_of_bytes_are_exact(
    opencl: Target, rows: int, inputs: int, outputs: int, group: int, bits: int, layout: str
) -> None:
    x = normal(rows, inputs) * np.float32(10.0) ** np.random.default_rng(2).integers(-3, 3, inputs)
    x = x.astype(np.float32)
    words, scale = quantized(normal(outputs, inputs, seed=1), bits, group, layout)
    zero = 2 ** (bits - 1)
    with overrides(INT8):
        found = product(opencl, x, words, scale, bits=bits, group=group, layout=layout, zero=zero)
    plain = (words, scale) if layout == "oi" else (words.T, scale.T)
    whole = values_of(np.ascontiguousarray(plain[0]), bits, inputs) - zero
    numbers, steps = rounded(x, group)
    sums = np.einsum("rgk,ngk->rng", numbers, whole.reshape(outputs, -1, group))
    terms = sums * steps.astype(float)[:, None] * plain[1].astype(float)
    size = np.abs(terms).sum(-1)
    # one rounding of the scales' product and one of each addition: nothing else may be lost
    bound = (inputs // group + 2) * EPSILON * size
    assert (np.abs(found - terms.sum(-1)) <= bound).all()


def in_words_of(
    form: AffineForm, outputs: int, inputs: int
) -> tuple[dict[str, Array], Array, Array]:
    """Random arrays of a form; what its weights are, and how large their products with 1 may be."""
    rng = np.random.default_rng(7)
    codes = rng.integers(0, min(max(form.values) + 1, 1 << form.bits), (outputs, inputs))
    numbers = codes if form.table is None else np.array(form.table)[codes]
    held = {"words": pack(codes.astype(np.uint8), form.bits)}
    for name, (dtype, each) in form.parts.items():
        shape = (outputs, inputs // each)
        found = rng.integers(1, 200, shape) if dtype.bits == 8 else rng.random(shape) / 64 + 0.01
        held[name] = found.astype(np.float32).astype(dtype.numpy)

    def each(name: str) -> Array:
        if form.scale.code == NIBBLES and not name.startswith(SUPER):
            found = held[SCALE] & 15 if name == SCALE else held[SCALE] >> 4
        else:
            found = held[name]
        floats = found.astype(np.float64)
        return np.repeat(floats, inputs // floats.shape[1], 1)

    def group_floats(name: str, floats: GroupFloats) -> Array:
        return each(name) * floats.factor * (each(SUPER + name) if floats.super_block else 1.0)

    scale = group_floats(SCALE, form.scale)
    least = -form.zero * scale if form.minimum is None else group_floats("minimum", form.minimum)
    return held, numbers * scale + least, np.abs(numbers * scale) + np.abs(least)


WORDS = ["Q5_0", "Q4_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "NVFP4", "TQ2_0", "Q1_0"]
"""Values of 1 to 6 bits, in planes and in tables, with minima and without, groups of 16 to 128."""


@pytest.mark.slice(2)
@pytest.mark.usefixtures("dots", "built_anew")
@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("name", WORDS)
def test_words_of_every_kind_meet_rounded_activations(opencl: Target, name: str, rows: int) -> None:
    form = affine_form(FORMATS[name])
    assert form is not None
    inputs, outputs = 512, 53
    held, dense, size = in_words_of(form, outputs, inputs)
    x = normal(rows, inputs) * np.exp(normal(rows, inputs, seed=1))

    def body(x: Any, *parts: Any) -> Any:
        weight = in_words(form, 1, dict(zip(held, parts, strict=True)))
        return F.linear(x, weight, layout="oi")

    with overrides(INT8):
        found = with_parameters(opencl, body, x, *held.values())
    numbers, steps = rounded(x, form.group)
    near = (numbers * steps.astype(float)[..., None]).reshape(rows, inputs)
    bound = (inputs // form.group + 4) * EPSILON * (np.abs(near) @ size.T)
    assert (np.abs(found - near @ dense.T) <= bound).all()
    assert (np.abs(found - x.astype(float) @ dense.T) > bound).any(), "activations are rounded"


@pytest.mark.slice(2)
@pytest.mark.usefixtures("dots", "built_anew")
@pytest.mark.parametrize("rows", [2, 20])
def test_biases_that_are_no_whole_multiple_are_added(opencl: Target, rows: int) -> None:
    x, weight = normal(rows, 64), normal(48, 64, seed=1)
    words, scale = quantized(weight, 8, 32, "oi")
    start = normal(48, 2, seed=3)

    def body(x: Any, words: Any, scale: Any, start: Any) -> Any:
        return F.quantized_linear(x, words, scale, start, bits=8, group=32)

    with overrides(INT8):
        found = with_parameters(opencl, body, x, words, scale, start)
    numbers, steps = rounded(x, 32)
    near = (numbers * steps[..., None]).reshape(rows, 64).astype(float)
    dense = values_of(words, 8, 64) * np.repeat(scale.astype(float), 32, 1) + np.repeat(
        start, 32, 1
    )
    close(found, near @ dense.T, 1e-5)


@pytest.mark.slice(2)
@pytest.mark.usefixtures("dots", "built_anew")
@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("outputs", [32, 50])
def test_products_of_bf16_are_exact_and_sums_are_f32(
    opencl: Target, rows: int, outputs: int
) -> None:
    x, weight = normal(rows, 66), normal(outputs, 66, seed=1).astype(BF16.numpy)
    with overrides(PAIRS):
        found = with_parameters(opencl, lambda x, w: F.linear(x, w, layout="oi"), x, weight)
    near, wide = x.astype(BF16.numpy).astype(float), weight.astype(float)
    bound = 66 * EPSILON * (np.abs(near) @ np.abs(wide).T)
    assert (np.abs(found - near @ wide.T) <= bound).all()
    assert np.abs(found - x.astype(float) @ wide.T).max() > bound.max()


@pytest.mark.slice(2)
@pytest.mark.usefixtures("dots", "built_anew")
@pytest.mark.parametrize("rows", [1, 16])
def test_what_is_not_finite_stays_so_and_zeros_are_zeros(opencl: Target, rows: int) -> None:
    x = normal(rows, 64)
    x[0, :32] = 0.0
    words, scale = quantized(normal(32, 64, seed=1), 8, 32, "oi")
    how = {"bits": 8, "group": 32, "layout": "oi", "zero": 128}
    with overrides(INT8):
        found = product(opencl, x, words, scale, **how)
        assert np.isfinite(found).all()
        for special in (np.nan, np.inf, -np.inf):
            x[-1, 40] = special
            assert np.isnan(product(opencl, x, words, scale, **how)[-1]).all()


@pytest.mark.slice(2)
@pytest.mark.usefixtures("dots", "built_anew")
@pytest.mark.parametrize("rows", [2, 24])
def test_a_norm_before_and_a_residual_behind_are_fused(opencl: Target, rows: int) -> None:
    x, weight = normal(rows, 64), normal(64, 64, seed=1)
    words, scale = quantized(weight, 4, 32, "oi")
    gain, shift = normal(64, seed=4), normal(64, seed=5)

    def body(x: Any, words: Any, scale: Any, gain: Any, shift: Any) -> Any:
        normed = F.layer_norm(x, gain, shift, epsilon=1e-5)
        return x + F.gelu(F.linear(normed, QuantizedWeight(words, scale, 1, 4, 32, 8), layout="oi"))

    with overrides(INT8):
        fused = with_parameters(opencl, body, x, words, scale, gain, shift)
    wide = x.astype(float)
    centred = wide - wide.mean(1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * gain + shift
    numbers, steps = rounded(normed.astype(np.float32), 32)
    near = (numbers * steps[..., None]).reshape(rows, 64)
    dense = (values_of(words, 4, 64) - 8) * np.repeat(scale.astype(float), 32, axis=1)
    y = near @ dense.T
    from math import erf

    wanted = wide + y * 0.5 * (1 + np.vectorize(erf)(y / np.sqrt(2)))
    # a value that lies between two steps may be rounded to either of them
    step = float(steps.max() * np.abs(dense).max()) * 1.2
    assert np.abs(fused - wanted).max() <= step
    assert np.median(np.abs(fused - wanted)) < 1e-5


@pytest.mark.parametrize(
    ("shape", "outputs", "policy"),
    [((5, 64), 8, PAIRS), ((5, 63), 40, PAIRS), ((0, 64), 40, PAIRS)],
    ids=["few outputs", "odd inputs", "no rows"],
)
def test_what_is_not_packed_is_computed_from_the_lowering(
    opencl: Target, shape: tuple[int, int], outputs: int, policy: dict[str, str]
) -> None:
    import ptir

    x, weight = normal(*shape), normal(outputs, shape[1], seed=1).astype(BF16.numpy)
    given = [ptir.tensor(a, backend=opencl) for a in (x, weight)]
    with overrides(policy):
        found = ptir.jit(lambda x, w: F.linear(x, w, layout="oi"))(*given).numpy()
    close(found, x.astype(BF16.numpy).astype(np.float32) @ weight.astype(np.float32).T, 1e-5)


@pytest.mark.parametrize("rows", [3, 20])
def test_a_weight_that_is_no_parameter_is_computed_from_the_lowering(
    opencl: Target, rows: int
) -> None:
    import ptir

    x, weight = normal(rows, 64), normal(40, 64, seed=1)
    words, scale = quantized(weight, 8, 32, "oi")
    given = [ptir.tensor(a, backend=opencl) for a in (x, words, scale)]

    def body(x: Any, words: Any, scale: Any) -> Any:
        return F.linear(x, QuantizedWeight(words, scale, 1, 8, 32, 128), layout="oi")

    with overrides(INT8):
        found = ptir.jit(body)(*given).numpy()
    numbers, steps = rounded(x, 32)
    near = (numbers * steps[..., None]).reshape(rows, 64)
    dense = (values_of(words, 8, 64) - 128) * np.repeat(scale.astype(float), 32, axis=1)
    close(found, near @ dense.T, 1e-5)


def test_the_kernel_rounds_as_the_lowering_does(opencl: Target) -> None:
    """Ties go to even values, and to the same bytes in both."""
    import ptir

    x = np.arange(-16, 16, dtype=np.float32)[None].repeat(20, 0) / 2
    x[:, 0] = 127.0
    x[1] *= np.float32(2.0**-110)
    found = {}
    for name in (opencl, "ref"):
        given = ptir.tensor(x, backend=name)
        rounding = ptir.jit(lambda x: internal_composite(ROUND, x, group=32))(given)
        found[str(name)] = [array.numpy() for array in rounding]
    (values, scales, sums), wanted = found[str(opencl)], found["ref"]
    for one, other in zip((values, scales, sums), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    assert values[0, 1:6].tolist() == [-8, -7, -6, -6, -6]
    assert not values[1].any() and sums[0] == values[0].sum(dtype=np.int32)
