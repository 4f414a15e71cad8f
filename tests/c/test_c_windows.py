"""Caches of windows on C: attention over them, and the reference's tokens."""

from __future__ import annotations

import pytest

from ptir.backend.contract import Target
from window_models import MODELS, attended_in_steps, same_as_the_whole_text


@pytest.mark.slice(1)
@pytest.mark.parametrize("most", [1, 8])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_attention_over_a_cache_that_slides_is_attention_over_everything(
    c: Target, dtype: str, most: int
) -> None:
    attended_in_steps(c, dtype, T=most)


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_whole_caches(c: Target, name: str) -> None:
    same_as_the_whole_text(name, c)
