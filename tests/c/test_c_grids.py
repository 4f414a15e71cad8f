"""Grids of IQ1 to IQ3 looked up in registers: the numbers of the decoder, and those of a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

sys.path += [str(Path(__file__).parent.parent / name) for name in ("codegen", "weights")]

from opencl_runs import Array, normal, with_parameters
from test_codegen_vectors import NAMES, form_of
from test_opencl_dots import EPSILON, rounded
from weight_arrays import as_written, random_arrays

from ptir import functional as F
from ptir import overrides
from ptir.backend.contract import Target
from ptir.capture import call
from ptir.capture.plan import PLANS
from ptir.codegen.families.linear import parts
from ptir.codegen.schedules.tuned_tiles import tiles_for
from ptir.codegen.weights.computed_words import ComputedWords
from ptir.codegen.weights.grid_fields import GridWords, look_up_in_registers
from ptir.runtime.held import in_words
from ptir.weights.affine_arrays import affine_arrays
from ptir.weights.decode import decode

GRIDS: Final = [name for name in NAMES if name != "TQ1_0"]
INPUTS, OUTPUTS = 512, 48

pytestmark = pytest.mark.turns(4)


def stored(name: str) -> dict[str, Array]:
    """Random blocks of a format."""
    form = form_of(name)
    blocks = INPUTS // form.format.block
    arrays = random_arrays(form.format, OUTPUTS, blocks, np.random.default_rng(7))
    arrays["blocks"] = as_written(form.format, arrays["blocks"])
    return arrays


def product(target: Target, name: str, x: Array) -> Array:
    """Rows times the transposed weight."""
    form = form_of(name)
    arrays = affine_arrays(form, stored(name))

    def body(x: Any, *held: Any) -> Any:
        weight = in_words(form, 1, dict(zip(arrays, held, strict=True)))
        return call("dot_general", x, weight.dense(), lhs_contract=(1,), rhs_contract=(1,))

    return with_parameters(target, body, x, *arrays.values())


@pytest.fixture
def every_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest grids too, which some processors gather from memory."""
    monkeypatch.setattr(
        parts, "look_up_in_registers", lambda *given: look_up_in_registers(*given[:3], 2048)
    )


@pytest.mark.parametrize("name", GRIDS)
def test_a_single_one_takes_the_numbers_of_the_decoder(
    dots: None, every_grid: None, c: Target, name: str
) -> None:
    """Bit for bit, in many rows at once and in one, of each place of a lookup."""
    wanted = decode(form_of(name).format, stored(name)).T
    rows = np.eye(INPUTS, dtype=np.float32)
    np.testing.assert_array_equal(product(c, name, rows), wanted)
    for k in (*range(0, INPUTS, 61), INPUTS - 1):
        np.testing.assert_array_equal(product(c, name, rows[k : k + 1]), wanted[k : k + 1])


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("name", GRIDS)
def test_registers_and_a_table_give_the_same_bits(
    c: Target, monkeypatch: pytest.MonkeyPatch, every_grid: None, name: str, rows: int
) -> None:
    dialect = c.backend.opened(c.device).device.dialect  # type: ignore[attr-defined]
    if not dialect.permutes_bytes:
        pytest.skip("the processor does not permute bytes")
    words: list[Any] = []
    counts = []
    word = GridWords.word

    def noted(*given: Any) -> Any:
        words.append(word(*given))
        return words[-1]

    monkeypatch.setattr(GridWords, "word", noted)
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")  # an artifact of the other kind is none
    x, found = normal(rows, INPUTS), []
    for permutes in (True, False):
        monkeypatch.setattr(dialect, "permutes_bytes", permutes)
        PLANS.clear()
        found.append(product(c, name, x))
        counts.append(len(words))
    assert all(words) and 0 < counts[0] == counts[1], "words of registers, where they are there"
    PLANS.clear()
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", NAMES)
def test_fast_products_make_words_of_bytes_once_for_all_rows(
    c: Target, monkeypatch: pytest.MonkeyPatch, every_grid: None, name: str
) -> None:
    """A second tile of rows asks for none, and the rows of the first stay what they were."""
    device = c.backend.opened(c.device).device  # type: ignore[attr-defined]
    if not device.dialect.dots:
        pytest.skip("the processor has no dot instructions")
    tile, form, arrays = tiles_for(device).int8_rows, form_of(name), stored(name)
    held = affine_arrays(form, arrays)
    asked = []
    word = ComputedWords.word

    def noted(*given: Any) -> Any:
        asked.append(word(*given))
        return asked[-1]

    def body(x: Any, *parts: Any) -> Any:
        return F.linear(x, in_words(form, 1, dict(zip(held, parts, strict=True))), layout="oi")

    monkeypatch.setattr(ComputedWords, "word", noted)
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")  # kernels of the cache ask for nothing
    x, found, counts = normal(3 * tile + 1, INPUTS), [], []
    with overrides({"quantized_linear": "force=int8"}):
        for rows in (3 * tile, 3 * tile + 1):
            asked.clear()
            found.append(with_parameters(c, body, x[:rows], *held.values()))
            counts.append(len(asked))
    assert 0 < counts[0] == counts[1], "words asked for by the kernel of one more tile of rows"
    np.testing.assert_array_equal(found[0], found[1][:-1])
    numbers, steps = rounded(x, form.group)
    values = (numbers * steps[..., None]).reshape(x.shape)
    weight = decode(form.format, arrays).T.astype(float)
    bound = 2 * (INPUTS // form.group + 2) * EPSILON * (np.abs(values) @ np.abs(weight))
    assert (np.abs(found[1] - values @ weight) <= bound).all()
