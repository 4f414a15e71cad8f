"""Divisors of frequencies as other libraries say them: the parameters that gave them, or a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptir.models.divisors import portable
from ptir.models.rotation import rotation

THETA = 500000.0


def divided(rope: dict[str, Any], size: int) -> dict[str, Any]:
    """The configuration of a GGUF file whose model had a rope of this kind."""
    whole = {"rope_theta": THETA, **rope}
    found = rotation({"rope_parameters": whole}, "any", size).frequencies
    plain = THETA ** (-np.arange(0, size, 2) / size)
    held = np.float32(plain / np.array(found)).tolist()
    rope = {"rope_type": "divided", "rope_theta": THETA, "divisors": held}
    return {"max_position_embeddings": 4096, "rope_parameters": rope}


@pytest.mark.parametrize(("factor", "original"), [(8.0, 8192), (32.0, 8192), (2.5, 1024)])
@pytest.mark.parametrize("size", [64, 128])
def test_parameters_of_llama3_are_found_again(factor: float, original: int, size: int) -> None:
    said = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0}
    said |= {"high_freq_factor": 4.0, "original_max_position_embeddings": original}
    found = portable(divided(said, size))
    assert found["rope_parameters"] == {"rope_theta": THETA, **said}


def test_other_divisors_are_listed_twice() -> None:
    held = [1.0, 1.25, 3.0, 7.5]
    given = {"rope_type": "divided", "rope_theta": THETA, "divisors": held}
    config = {"max_position_embeddings": 4096, "rope_parameters": given}
    found = portable(config)
    rope = found["rope_parameters"]
    assert (rope["rope_type"], rope["short_factor"], rope["long_factor"]) == (
        "longrope",
        held,
        held,
    )
    assert rope["original_max_position_embeddings"] == 4096 and rope["attention_factor"] == 1.0
    one, other = (rotation(config_, "any", 8).frequencies for config_ in (config, found))
    np.testing.assert_allclose(one, other, rtol=1e-7)


def test_what_is_no_list_of_divisors_stays() -> None:
    for rope in ({}, {"rope_parameters": None}, {"rope_parameters": {"rope_type": "default"}}):
        assert portable(rope) == rope
