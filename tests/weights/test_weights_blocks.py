"""``fuzz_blocks.py`` compares every type, and sees a bit that differs."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import fuzz_blocks
from fuzz_blocks import NAMES, compared
from ptir.weights.gguf import GGUF


def test_blocks_of_every_type_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_blocks, "AT_ONCE", 8)
    found = [compared(name, 20, seed=1) for name in NAMES]
    assert [one.name for one in found] == [format.name for format in GGUF]
    assert all(one.blocks == 20 and one.refused < one.weights / 2 for one in found)


@pytest.mark.parametrize("how", ["decode", "words"])
@pytest.mark.parametrize("name", ["Q4_K", "IQ3_S", "NVFP4"])
def test_a_bit_that_differs_is_told_with_its_block(
    monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    """The last bit of the weight that is the largest, in one block."""
    function = {"decode": "witnessed", "words": "dense"}[how]
    right = getattr(fuzz_blocks, function)

    def wrong(*given: object) -> object:
        found = np.array(right(*given))
        place = np.unravel_index(np.abs(found).argmax(), found.shape)
        found.view(np.uint32)[place] ^= 1
        return found

    monkeypatch.setattr(fuzz_blocks, function, wrong)
    with pytest.raises(AssertionError, match=f"{name}: {how}: 1 of 20 blocks differ; weight .* by"):
        compared(name, 20, seed=1)


def test_the_command_counts_blocks_and_types(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fuzz_blocks.py", "--type", "Q8_0", "--type", "Q1_0", "--blocks", "30"]
    monkeypatch.setattr(sys, "argv", command)
    assert fuzz_blocks.main() == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("60 random blocks of 2 types beside gguf ")
    assert last.endswith(": every bit is that of the witness")
