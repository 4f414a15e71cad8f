"""Some rows of parameters that are put together: those of the whole, and little else is read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from ptir.errors import CheckpointError
from ptir.params.arranged import Arranged, ArrangedSource
from ptir.params.quantized import QuantizedSource, quantization, quantized_names
from ptir.params.source import (
    ArraySource,
    BlockSource,
    ParamSource,
    RenamedSource,
    block_rows_of,
    rows_of,
)
from ptir.params.stacked import Stack, stacked
from ptir.weights import FORMATS

Array = np.ndarray[Any, Any]
EXPERTS, OUTPUTS, INPUTS = 4, 6, 5
NUMBERS = np.random.default_rng(0).normal(size=(EXPERTS, OUTPUTS, INPUTS)).astype(np.float32)
ROWS = EXPERTS * OUTPUTS


class Blocks(ArraySource):
    """A source of a format whose arrays are its own."""

    def format(self, name: str) -> Any:
        return FORMATS["Q8_0"]

    def blocks(self, name: str) -> Mapping[str, Array]:
        array = self.read(name)
        return {"blocks": array.reshape(-1, array.shape[-1])}


def alone(kind: type[ArraySource] = ArraySource) -> ArraySource:
    return kind({f"experts.{n}.w": NUMBERS[n] for n in range(EXPERTS)})


SOURCES: dict[str, tuple[ParamSource, Array]] = {
    "experts stored alone": (stacked(alone(), {"experts.*.w": Stack("w")}), NUMBERS),
    "as one": (stacked(ArraySource({"experts": NUMBERS}), {"experts": Stack("w")}), NUMBERS),
    "turned": (
        stacked(ArraySource({"experts": NUMBERS.swapaxes(1, 2)}), {"experts": Stack("w", True)}),
        NUMBERS,
    ),
    "a half": (
        stacked(
            ArraySource({"experts": np.concatenate([NUMBERS + 9, NUMBERS], 1)}),
            {"experts": (Stack("other", half=0), Stack("w", half=1))},
        ),
        NUMBERS,
    ),
    "below each other": (
        ArrangedSource(
            ArraySource({f"p{n}": NUMBERS[n][: n + 1, :, None] for n in range(EXPERTS)}),
            {"w": Arranged(tuple(f"p{n}" for n in range(EXPERTS)), squeezed=True)},
        ),
        np.concatenate([NUMBERS[n][: n + 1] for n in range(EXPERTS)]),
    ),
    "no stack": (
        stacked(
            ArraySource({"w": NUMBERS.reshape(ROWS, INPUTS), "experts": NUMBERS}),
            {"experts": Stack("v")},
        ),
        NUMBERS,
    ),
}


@pytest.mark.parametrize("how", SOURCES)
def test_any_rows_are_those_of_the_whole(how: str) -> None:
    source, wanted = SOURCES[how]
    wanted = wanted.reshape(-1, INPUTS)
    for one in (source, RenamedSource(source, {"w": "w"})):
        assert np.array_equal(one.read("w"), wanted)
        for first, end in combinations(range(len(wanted) + 1), 2):
            found = rows_of(one, "w", first, end)
            assert np.array_equal(found, wanted[first:end]), (first, end)
        assert rows_of(one, "w", 3, 3).shape == (0, INPUTS)


def test_experts_without_one_of_the_rows_are_not_read() -> None:
    source = alone()
    found = RenamedSource(stacked(source, {"experts.*.w": Stack("w")}), {"v": "w"})
    rows_of(found, "v", OUTPUTS + 2, 2 * OUTPUTS + 1)
    assert dict(source.counters.loads) == {"experts.1.w": 1, "experts.2.w": 1}
    source = alone(Blocks)
    stack: Any = RenamedSource(stacked(source, {"experts.*.w": Stack("w")}), {"v": "w"})
    block_rows_of(stack, "v", 3 * OUTPUTS, 3 * OUTPUTS + 1)
    assert dict(source.counters.loads) == {"experts.3.w": 1}


def test_rows_of_what_is_quantized_while_it_loads_read_no_more_either() -> None:
    wide = np.tile(NUMBERS, (1, 1, 13))[:, :, :64]
    source = ArraySource({f"experts.{n}.w": wide[n] for n in range(EXPERTS)})
    int8 = quantization("int8")
    found = QuantizedSource(stacked(source, {"experts.*.w": Stack("w")}), int8, {"w": 1})
    words = quantized_names("w", int8).words
    some = rows_of(found, words, 2, OUTPUTS)
    assert dict(source.counters.loads) == {"experts.0.w": 1}
    assert np.array_equal(some, found.read(words)[2:OUTPUTS])


BLOCKS: dict[str, BlockSource] = {
    "experts stored alone": stacked(alone(Blocks), {"experts.*.w": Stack("w")}),  # type: ignore[dict-item]
    "as one": stacked(Blocks({"experts": NUMBERS}), {"experts": Stack("w")}),  # type: ignore[dict-item]
    "a half": stacked(  # type: ignore[dict-item]
        Blocks({"experts": np.concatenate([NUMBERS + 9, NUMBERS], 1)}),
        {"experts": Stack("w", half=1)},
    ),
}


@pytest.mark.parametrize("how", BLOCKS)
def test_any_lines_of_blocks_are_those_of_the_whole(how: str) -> None:
    source: Any = BLOCKS[how]
    for one in (source, RenamedSource(source, {"w": "w"})):
        assert np.array_equal(one.blocks("w")["blocks"], NUMBERS.reshape(-1, INPUTS))
        for first, end in combinations(range(ROWS + 1), 2):
            found = block_rows_of(one, "w", first, end)["blocks"]
            assert np.array_equal(found, NUMBERS.reshape(-1, INPUTS)[first:end]), (first, end)


def test_what_is_not_stored_in_blocks_has_no_lines_of_them() -> None:
    source: Any = SOURCES["as one"][0]
    for one in (source, RenamedSource(source, {"w": "w"})):
        with pytest.raises(CheckpointError, match="'w': is not stored in blocks"):
            one.block_rows("w", 0, 1)
