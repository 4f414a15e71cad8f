"""Which type each tensor of a quantized file gets: llama.cpp's choices, written out by hand."""

from __future__ import annotations

import gguf
import pytest
from gguf import GGMLQuantizationType as Kind

from ptir.checkpoint.gguf.mixtures import MIXTURES, Facts, counts_for_more, fitting
from ptir.checkpoint.gguf.write import TYPE_IDS
from ptir.weights.quantizers import ROUNDERS

MORE_OF_32 = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
MORE_OF_12 = [0, 3, 6, 9, 10, 11]


def test_the_layers_that_count_for_more_are_llama_cpp_s() -> None:
    assert [layer for layer in range(32) if counts_for_more(layer, 32)] == MORE_OF_32
    assert [layer for layer in range(12) if counts_for_more(layer, 12)] == MORE_OF_12
    assert [layer for layer in range(6) if counts_for_more(layer, 6)] == [2, 5]


@pytest.mark.parametrize("name", MIXTURES)
def test_every_type_of_a_mixture_can_be_written(name: str) -> None:
    row = MIXTURES[name]
    for one in filter(None, (row.most, row.output, row.embedding, row.better)):
        assert one in ROUNDERS
        for inputs in (4096, 64):
            assert fitting(one, inputs) in ROUNDERS
        assert fitting(one, 48) == "F16"
        assert TYPE_IDS[one] == Kind[one]


@pytest.mark.parametrize(
    ("name", "called"),
    [
        *((name, f"MOSTLY_{name.upper()}") for name in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1")),
        *((name, f"MOSTLY_{name.upper()}") for name in ("q4_k_m", "q5_k_m", "q6_k")),
        ("q4_k", "MOSTLY_Q4_K_S"),
        ("q5_k", "MOSTLY_Q5_K_S"),
        ("mxfp4", "MOSTLY_MXFP4_MOE"),
    ],
)
def test_the_number_of_a_file_is_the_one_of_gguf(name: str, called: str) -> None:
    assert MIXTURES[name].file_type == gguf.LlamaFileType[called]


def types(name: str, layer: int, tied: bool = False, width: int = 4096) -> dict[str, str]:
    """What the tensors of a layer of 32 get, and those outside."""
    inside = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    every = ["token_embd", "output", *(f"blk.{layer}.{stem}" for stem in inside)]
    row = MIXTURES[name]
    return {one: row.type_of(f"{one}.weight", (64, width), Facts(32, tied)) for one in every}


def test_q4_k_m_gives_more_to_the_output_and_to_some_layers() -> None:
    for layer, better in ((3, "Q6_K"), (4, "Q4_K"), (5, "Q4_K"), (6, "Q6_K"), (31, "Q6_K")):
        found = types("q4_k_m", layer)
        apart = {"output": "Q6_K", f"blk.{layer}.attn_v": better, f"blk.{layer}.ffn_down": better}
        assert found == {one: apart.get(one, "Q4_K") for one in found}
    assert types("q4_k_m", 4, tied=True)["token_embd"] == "Q6_K"
    row = MIXTURES["q5_k_m"]
    assert row.type_of("blk.31.attn_qkv.weight", (96, 256), Facts(32, True)) == "Q6_K"
    assert row.type_of("blk.4.attn_qkv.weight", (96, 256), Facts(32, True)) == "Q5_K"


def test_plain_formats_are_one_type_but_for_the_output() -> None:
    for name, output in (("q8_0", "Q8_0"), ("q4_0", "Q6_K"), ("q5_k", "Q6_K"), ("q6_k", "Q6_K")):
        found = types(name, 0)
        assert found.pop("output") == output
        assert set(found.values()) == {MIXTURES[name].most}
    found = types("mxfp4", 0)
    assert (found.pop("output"), found.pop("token_embd")) == ("Q8_0", "Q8_0")
    assert set(found.values()) == {"MXFP4"}


def test_what_super_blocks_do_not_divide_gets_smaller_blocks() -> None:
    found = types("q4_k_m", 0, width=992)
    assert (found["output"], found["token_embd"]) == ("Q8_0", "Q5_0")
    assert (found["blk.0.attn_v"], found["blk.0.attn_q"]) == ("Q8_0", "Q5_0")
    assert types("q5_k_m", 0, width=992)["blk.0.attn_q"] == "Q5_1"
    assert set(types("q4_k_m", 0, width=40).values()) == {"F16"}


def test_vectors_and_positions_stay_floats() -> None:
    row = MIXTURES["q4_0"]
    for tensor, shape in (
        ("output_norm.weight", (4096,)),
        ("blk.0.attn_q.bias", (4096,)),
        ("position_embd.weight", (1024, 4096)),
    ):
        assert row.type_of(tensor, shape, Facts(32, True)) == "F32"
