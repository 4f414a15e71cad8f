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


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("size", [64, 128])
def test_halves_of_a_rope_are_loaded_as_vectors(size: int, tokens: int) -> None:
    """Of queries, and of keys on their way into the cache; rotated in part too."""

    def body(*given: ptir.Tensor) -> ptir.Tensor:
        q, k, v, cache, values, start, positions = given
        q = F.rope(q, positions, rotary=size // 2)
        keys = F.cache_update(cache, F.rope(k, positions), start, start)
        return F.attention(q, keys, F.cache_update(values, v, start, start), start=start)

    new, cache = (spec("f32", 1, 2, count, size) for count in (tokens, 64))
    numbers = spec("i32", 1), spec("i32", 1, tokens)
    made = compiled(ptir.capture(body, new, new, new, cache, cache, *numbers))
    assert "fma" in made.source
    lane_by_lane = re.findall(r"\(float16\)\([^()]*,.*", made.source)
    assert not lane_by_lane, "vectors whose lanes are loaded one by one"


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_keys_and_values_of_16_bits_become_floats_in_vectors(dtype: str) -> None:
    """Not one by one in the loops that meet all queries with them."""

    def body(q: ptir.Tensor, k: ptir.Tensor, v: ptir.Tensor) -> ptir.Tensor:
        return F.attention(q, k.astype("f32"), v.astype("f32"))

    stored = spec(dtype, 1, 2, 64, 128)
    source = compiled(ptir.capture(body, spec("f32", 1, 2, 64, 128), stored, stored)).source
    one_by_one = re.findall(r"const float t\d+ = .*\bb[12]\b.*", source)
    assert bool(one_by_one) == (dtype == "f32"), one_by_one[:2]


@pytest.mark.parametrize("heads", [2, 8])
def test_queries_of_a_key_head_share_what_is_read(heads: int) -> None:
    """Where keys are appended, a block of them meets all its queries before the next is read."""

    def body(*given: ptir.Tensor) -> ptir.Tensor:
        q, new, cache, values, start = given
        keys, values = (F.cache_update(one, new, start, start) for one in (cache, values))
        return F.attention(q, keys, values, start=start)

    new, cache = (spec("f32", 1, 2, count, 64) for count in (1, 64))
    types = spec("f32", 1, heads, 1, 64), new, cache, cache, spec("i32", 1)
    source = compiled(ptir.capture(body, *types)).source
    nested = re.findall(
        r"^( *)for \(int j\b.*\n(?:\1 .*\n)*?\1 +for \(int g = 0; g < (\d+)", source, re.M
    )
    assert [int(count) for _, count in nested] == ([] if heads == 2 else [heads // 2])
