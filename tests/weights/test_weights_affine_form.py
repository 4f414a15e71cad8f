"""GGUF's blocks as words, scales and minima: ``dequantize`` makes the numbers of ``decode``."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weight_arrays import as_written, random_arrays

from ptir.capture.creation import tensor
from ptir.checkpoint.quantized import records
from ptir.errors import CheckpointError
from ptir.ops.numerics.quantized import dequantize, unpack_vectors
from ptir.params.packed import PackedSource, part_name
from ptir.params.source import Array, Counters
from ptir.runtime.held import in_words
from ptir.types import DTYPES, F16, F32, I8, TensorType
from ptir.weights import FORMATS, WeightFormat
from ptir.weights.affine_arrays import affine_arrays
from ptir.weights.affine_form import SUPER, AffineForm, affine_form
from ptir.weights.decode import decode
from ptir.weights.formats import NF4, OTHERS
from ptir.weights.gguf import GGUF
from ptir.weights.tables import has_floats
from ptir.weights.vectors import Fifths
from ptir.weights.words import BITS

each_format = pytest.mark.parametrize("name", [one.name for one in GGUF])
every_form = pytest.mark.parametrize("name", [one.name for one in (*GGUF, *OTHERS)])


def form_of(name: str) -> AffineForm:
    form = affine_form(FORMATS[name])
    assert form is not None
    return form


def group_floats(form: AffineForm, arrays: dict[str, Array], name: str) -> Array:
    """A float of every group: as it is held, or a whole number times that of its super-block."""
    floats = form.scale if name == "scale" else form.minimum
    assert floats is not None
    numbers, factor = (
        arrays[name if floats.code != "nibbles" else "scale"],
        arrays.get(SUPER + name),
    )
    if floats.code == "nibbles":
        numbers = numbers >> 4 if name == "minimum" else numbers & 15
    if floats.code == "odd nibbles":
        numbers = np.stack([numbers & 15, numbers >> 4], axis=-1).reshape(len(numbers), -1) * 2 + 1
    if floats.factor != 1 or floats.code or numbers.dtype.itemsize == 1:
        numbers = numbers.astype(np.float32) * np.float32(floats.factor)
    numbers = np.repeat(numbers, floats.each // form.group, axis=1)
    if factor is None:
        return numbers
    spread = np.repeat(factor.astype(np.float32), form.parts[SUPER + name][1] // form.group, axis=1)
    return np.asarray(numbers.astype(np.float32) * spread)


def fifths(words: Array) -> Array:
    """Digit by digit: a byte is a fraction of 256, whose next digit a product with 3 shows."""
    rest = words.view(np.uint8).reshape(len(words), -1, 7, 1, 4).astype(np.int64)
    digits = rest * 3 ** np.arange(5)[:, None] % 256 * 3 // 256
    kept = digits.reshape(len(words), -1, 140)[..., :128].astype(np.uint8)
    return np.ascontiguousarray(kept.reshape(len(words), -1)).view(np.uint32)


def dense(form: AffineForm, arrays: dict[str, Array]) -> Array:
    """The weight as the op makes it."""
    scale = group_floats(form, arrays, "scale")
    minimum = scale * scale.dtype.type(-form.zero)
    if form.minimum is not None:
        minimum = group_floats(form, arrays, "minimum")
    how = {"axis": 1, "group": form.group, "bits": form.bits, "table": form.table}
    words, vectors = arrays["words"], form.vectors
    if isinstance(vectors, Fifths):
        words = fifths(words)
    elif vectors is not None:
        signs = arrays.get("signs", np.zeros((len(words), 0), np.uint32))
        words = unpack_vectors(words, vectors.words(), signs, axis=1, bits=vectors.bits)
    return np.asarray(dequantize(words, scale, minimum, **how))


@every_form
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), outputs=st.integers(1, 3), blocks=st.integers(1, 3))
def test_no_number_changes(name: str, seed: int, outputs: int, blocks: int) -> None:
    """Also where a scale is f16 and is multiplied with the zero point as such, if that fits."""
    form, rng = form_of(name), np.random.default_rng(seed)
    arrays = random_arrays(form.format, outputs, blocks, rng)
    if "blocks" in arrays:
        arrays["blocks"] = as_written(form.format, arrays["blocks"])
    with np.errstate(all="ignore"):
        found, wanted = affine_arrays(form, arrays), decode(form.format, arrays)
        refused = np.abs(group_floats(form, found, "scale")) > form.largest_scale
        fits = ~np.repeat(refused, form.group, axis=1)
        got = dense(form, found)
    np.testing.assert_array_equal(got[fits], wanted[fits])


@each_format
def test_forms_fit_the_kernels_and_what_is_computed_is_exact(name: str) -> None:
    """By the bits of codes and scales; what is held is at most what the table of sizes says."""
    form = form_of(name)
    assert form.bits in BITS and len(form.values) <= 1 << max(form.bits, form.format.bits)
    assert max(form.values) < 1 << (8 if form.table else form.bits)
    if form.table is not None:
        assert len(form.table) == 1 << form.bits and set(form.table) == set(form.values)
    assert min(form.values) >= 0 and (form.zero == 0) == (form.minimum is not None)
    assert form.zero & (form.zero - 1) == 0
    assert form.format.block % form.group == 0


LARGER = {"TQ1_0": 1.075, "MXFP4": 1.06, "IQ1_S": 1.08}
"""What is held over what is stored, where that is more than a few percent: fifths of bytes begin
anew after 128 weights, powers of two become bf16; a bit that IQ1_S has for 32 weights is one of
each code."""
SIGNED = {"IQ2_XXS": 1.061, "IQ2_XS": 1.055, "IQ3_XXS": 1.041}
"""The same where each weight has its sign, of which files leave out one in eight."""


@each_format
def test_no_more_is_held_than_is_stored(name: str) -> None:
    form = form_of(name)
    most = {**LARGER, **SIGNED}.get(name, 1.04)
    assert form.held_bits <= form.format.stored_bits * most


@every_form
def test_the_weight_of_a_model_has_the_numbers_of_the_file(name: str) -> None:
    """From the form's arrays to the dense weight, along either axis."""
    form = form_of(name)
    arrays = random_arrays(form.format, 3, 2, np.random.default_rng(7))
    if "blocks" in arrays:
        arrays["blocks"] = as_written(form.format, arrays["blocks"])
    found, wanted = affine_arrays(form, arrays), decode(form.format, arrays)
    fits = ~np.repeat(
        np.abs(group_floats(form, found, "scale")) > form.largest_scale, form.group, axis=1
    )
    for axis, of in ((1, found), (0, {part: array.T for part, array in found.items()})):
        held = {p: tensor(np.ascontiguousarray(a), backend="ref") for p, a in of.items()}
        got = in_words(form, axis, held).dense().numpy()
        got = got if axis == 1 else got.T
        np.testing.assert_array_equal(got[fits], wanted[fits])


def test_what_is_packed_already_has_no_form() -> None:
    assert {n for n, one in FORMATS.items() if affine_form(one) is None} == {"int4", "int8"}


def test_codes_of_floats_stay_and_a_table_says_the_numbers() -> None:
    tables = {n: form.table for n, one in FORMATS.items() if (form := affine_form(one))}
    assert {n: t for n, t in tables.items() if has_floats(t)} == {
        "nf4": NF4.values,
        "mxfp4": (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
        + (-0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0),
        "f8e4m3": DTYPES["f8e4m3fn"],
        "f8e5m2": DTYPES["f8e5m2"],
        "f8e4m3-blocks": DTYPES["f8e4m3fn"],
    }
    by = records.shared(8, 256, 256)
    assert affine_form(records.signed_bytes("ct", by, F32, zeros=False)).table == I8
    assert affine_form(records.signed_bytes("ct", by, F32, zeros=True)) is None
    assert affine_form(records.signed_bytes("ct", by, F16, zeros=False)).table is None


class Blocks:
    """A source of one weight."""

    def __init__(self, format: WeightFormat, blocks: Array, inputs: int) -> None:
        self.counters = Counters()
        self._format, self._blocks = format, blocks
        self._type = TensorType(F32, (len(blocks), inputs))

    def names(self) -> tuple[str, ...]:
        return ("w",)

    def type(self, name: str) -> TensorType:
        return self._type

    def read(self, name: str) -> Array:
        return decode(self._format, self.blocks(name))

    def release(self, name: str) -> None: ...

    def format(self, name: str) -> WeightFormat | None:
        return self._format

    def blocks(self, name: str) -> dict[str, Array]:
        return {"blocks": self._blocks}


def q8_0(scale: float) -> PackedSource:
    block = np.concatenate([np.float16([scale]).view(np.uint8), np.arange(32, dtype=np.uint8)])
    form = form_of("Q8_0")
    return PackedSource(Blocks(form.format, block[None], 32), {"w": (form, 1)}, "m.gguf")


def test_parts_are_computed_once_and_have_the_types_that_were_announced() -> None:
    source = q8_0(0.5)
    assert source.names() == ("w:Q8_0.words", "w:Q8_0.scale")
    arrays = {
        part: source.read(part_name("w", form_of("Q8_0"), part)) for part in ("words", "scale")
    }
    for part, array in arrays.items():
        type_ = source.type(f"w:Q8_0.{part}")
        assert (array.shape, array.dtype) == (type_.shape, type_.dtype.numpy)
    assert np.array_equal(dense(form_of("Q8_0"), arrays)[0], np.arange(32) / 2)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (
            np.nan,
            "^m.gguf: 'w': a scale of its Q8_0 blocks is NaN or infinite; the file is damaged",
        ),
        (np.inf, "'w': a scale of its Q8_0 blocks is NaN or infinite"),
        (-512.0, "'w': a scale of its Q8_0 blocks is 512; at most 511.75 can be computed with"),
    ],
)
def test_scales_that_cannot_be_computed_with_are_refused(scale: float, message: str) -> None:
    source = q8_0(scale)
    with pytest.raises(CheckpointError, match=message):
        source.read("w:Q8_0.words")
    assert np.isfinite(q8_0(511.75).read("w:Q8_0.scale")).all()
