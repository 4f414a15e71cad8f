"""How many vectors of queries a tile of attention has, by the queries that there are."""

from __future__ import annotations

import re

import pytest
from paper import compiled

import ptir
from ptir import functional as F
from ptir.types import spec

LANES, PLACES = 16, 8


@pytest.mark.parametrize(
    ("tokens", "vectors"),
    [(16, 1), (48, 1), (63, 1), (64, 2), (75, 2), (80, 1), (96, 2), (512, 2)],
)
def test_two_vectors_share_keys_where_no_more_queries_are_left(tokens: int, vectors: int) -> None:
    types = [spec("f32", 1, 2, tokens, PLACES)] * 3
    source = compiled(ptir.capture(lambda q, k, v: F.attention(q, k, v), *types)).source
    (transposed,) = re.findall(r"\bqs\[(\d+)\]", source.split("{", 1)[1])[:1]
    assert int(transposed) == vectors * LANES * PLACES
