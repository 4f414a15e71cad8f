"""Products with weights in formats, by work-groups: the numbers of the decoder, to the bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "weights"))

from format_products import check_products_with_ones

from ptir.backend.contract import Target


@pytest.mark.parametrize("name", ["Q4_1", "Q4_K", "f8e4m3"])
def test_a_single_one_takes_the_numbers_of_the_decoder(opencl: Target, name: str) -> None:
    check_products_with_ones(opencl, name, 48)
