"""Products with weights in stored formats: the numbers of the decoder, to the bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent.parent / "weights"))

from format_products import check_products_with_ones, launches_of_joined

from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.codegen.weights.quantized import Quantized
from ptir.weights import FORMATS as EVERY
from ptir.weights.affine_form import affine_form

FORMATS = ["Q4_0", "Q4_1", "Q4_K", "Q6_K", "IQ4_XS", "nf4", "f8e4m3", "f8e5m2"]


@pytest.fixture(autouse=True)
def no_output_is_clamped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales are filled up as words are: vectors load those of outputs behind the last one."""

    def inside(*_: Any) -> Any:
        raise AssertionError("the place of an output is computed, which no vector loads")

    monkeypatch.setattr(Quantized, "_inside", inside)


@pytest.mark.parametrize("outputs", [48, 41])
@pytest.mark.parametrize("name", FORMATS)
def test_a_single_one_takes_the_numbers_of_the_decoder(
    dots: None, c: Target, name: str, outputs: int
) -> None:
    check_products_with_ones(c, name, outputs)


@pytest.mark.parametrize("name", ["nf4", "f8e4m3", "f8e5m2"])
def test_floats_are_computed_where_registers_are_not_permuted(
    monkeypatch: pytest.MonkeyPatch, c: Target, name: str
) -> None:
    dialect = c.backend.opened(c.device).device.dialect  # type: ignore[attr-defined]
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")  # an artifact of the other kind is none
    for how in ("permutes_bytes", "permutes_words"):
        monkeypatch.setattr(dialect, how, False)
    PLANS.clear()
    check_products_with_ones(c, name, 48)
    PLANS.clear()


@pytest.mark.parametrize("name", [name for name, one in EVERY.items() if affine_form(one)])
def test_weights_joined_for_one_product_are_read_as_they_are_held(c: Target, name: str) -> None:
    """No kernel in front makes words or floats of them, for every token anew."""
    assert launches_of_joined(c, name, 48) == 1
