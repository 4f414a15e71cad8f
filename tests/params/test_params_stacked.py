"""Experts that are stored together, gate and up as one tensor, are read as halves of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptir.errors import CheckpointError
from ptir.params.source import ArraySource
from ptir.params.stacked import Rules, Stack, stacked

EXPERTS, INNER, WIDTH = 3, 4, 5
HALVES: Rules = {
    "experts.gate_up": (Stack("experts.gate.weight", half=0), Stack("experts.up.weight", half=1)),
    "experts.*.gate.weight": Stack("experts.gate.weight"),
    "experts.*.up.weight": Stack("experts.up.weight"),
}


def halves() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What gates and ups are, of all experts one below the other."""
    rows = np.random.default_rng(0).normal(size=(2, EXPERTS, INNER, WIDTH)).astype(np.float32)
    return rows[0], rows[1]


def test_both_halves_of_each_expert_are_what_one_tensor_for_each_expert_gives() -> None:
    gate, up = halves()
    whole = ArraySource({"l.0.experts.gate_up": np.concatenate([gate, up], axis=1), "x": gate[0]})
    each = ArraySource(
        {
            f"l.0.experts.{number}.{name}.weight": part[number]
            for name, part in (("gate", gate), ("up", up))
            for number in range(EXPERTS)
        }
    )
    for source in (stacked(whole, HALVES), stacked(each, HALVES)):
        for name, part in (("gate", gate), ("up", up)):
            wanted = part.reshape(EXPERTS * INNER, WIDTH)
            found = source.read(f"l.0.experts.{name}.weight")
            assert source.type(f"l.0.experts.{name}.weight").shape == wanted.shape
            assert np.array_equal(found, wanted)
    assert set(stacked(whole, HALVES).names()) == {
        "x",
        "l.0.experts.gate.weight",
        "l.0.experts.up.weight",
    }


@pytest.mark.parametrize("shape", [(3, 7, 5), (6, 5)])
def test_what_has_no_halves_is_refused(shape: tuple[int, ...]) -> None:
    source = ArraySource({"experts.gate_up": np.zeros(shape, np.float32)})
    with pytest.raises(CheckpointError, match=r"experts\.gate\.weight.*fetch the checkpoint again"):
        stacked(source, HALVES)
