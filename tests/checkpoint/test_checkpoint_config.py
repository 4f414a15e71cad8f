"""Configurations mean the same in the spellings of versions 4 and 5."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptir.checkpoint import (
    eos_token_ids,
    normalize_config,
    stored_dtype,
    ties_embeddings,
    with_dtype,
)
from ptir.errors import CheckpointError
from ptir.types import BF16, F16

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0}
V4_GEMMA = {
    "num_hidden_layers": 4,
    "sliding_window_pattern": 3,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
V5_GEMMA = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    },
}
PAIRS = {
    "dtype": ({"torch_dtype": "bfloat16"}, {"dtype": "bfloat16"}),
    "prefix": ({"torch_dtype": "torch.bfloat16"}, {"dtype": "bfloat16"}),
    "theta": ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5}}),
    "scaling": (
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000, **LLAMA3}},
    ),
    "null scaling": (
        {"rope_theta": 1e4, "rope_scaling": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "layers": (V4_GEMMA, V5_GEMMA),
    "eos": ({"eos_token_id": 5}, {"eos_token_id": [5]}),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_old_and_new_spellings_normalise_to_the_same(pair: str) -> None:
    old, new = PAIRS[pair]
    assert normalize_config(old) == normalize_config(new)


def test_the_normal_form_is_the_one_documented() -> None:
    assert normalize_config({"rope_theta": 5, "x": None, "partial_rotary_factor": 0.5}) == {
        "x": None,
        "partial_rotary_factor": 0.5,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default",
                "rope_theta": 5.0,
                "partial_rotary_factor": 0.5,
            }
        },
    }
    assert normalize_config(V4_GEMMA)["layer_types"] == V5_GEMMA["layer_types"]
    assert normalize_config(V4_GEMMA)["rope_parameters"] == V5_GEMMA["rope_parameters"]
    assert normalize_config({"n_embd": 8}) == {"n_embd": 8}
    assert normalize_config({"rope_scaling": {"type": "linear", "factor": 2}}) == {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2, "rope_theta": 10000.0}
        }
    }


@given(st.lists(st.sampled_from(sorted(PAIRS)), max_size=4), st.integers(0, 1))
def test_normalising_twice_changes_nothing_and_spares_the_argument(names, side) -> None:
    config = {key: value for name in names for key, value in PAIRS[name][side].items()}
    before = repr(config)
    once = normalize_config(config)
    assert normalize_config(once) == once
    assert repr(config) == before


def test_generation_config_overrides_the_end_ids() -> None:
    assert eos_token_ids({"eos_token_id": 1}, {"eos_token_id": [2, 3]}) == (2, 3)
    assert eos_token_ids({"eos_token_id": 0}, {"eos_token_id": None}) == (0,)
    assert eos_token_ids({}, {}) == ()


def test_embeddings_are_tied_when_said_or_when_no_head_is_stored() -> None:
    assert ties_embeddings({"tie_word_embeddings": True}, ["lm_head.weight"])
    assert ties_embeddings({"tie_word_embeddings": False}, ["wte.weight"])
    assert not ties_embeddings({"tie_word_embeddings": False}, ["lm_head.weight"])
    assert not ties_embeddings({}, ["lm_head.weight"])


def test_the_stored_dtype_is_read_and_replaced_in_either_spelling() -> None:
    assert stored_dtype({"torch_dtype": "float16"}) is F16
    assert stored_dtype({"dtype": "auto"}) is None
    assert stored_dtype({}) is None
    assert with_dtype({"dtype": "float32"}, BF16) == {"dtype": "bfloat16"}
    assert with_dtype({"torch_dtype": "float32"}, BF16) == {"torch_dtype": "bfloat16"}
    assert with_dtype({}, BF16) == {"torch_dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dtype": "float31"}, "dtype 'float31' is not one of"),
        ({"eos_token_id": "x"}, "eos_token_id 'x' must be an id"),
        ({"eos_token_id": [True]}, r"eos_token_id \[True\] must be an id"),
        ({"rope_theta": "x"}, "rope_theta 'x' in config.json must be a number > 0 and"),
        ({"rope_theta": -1}, "rope_theta -1 in config.json must be a number > 0 and"),
        ({"rope_theta": 0}, "rope_theta 0 in config.json must be a number > 0 and <= 1e.30"),
        ({"rope_parameters": 3}, "rope_parameters 3 must be an object"),
        ({"rope_scaling": [1]}, r"rope_scaling \[1\] must be an object"),
        ({"layer_types": "x"}, "layer_types 'x' must be a list"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern 0 in config.json must be an integ"),
        ({"sliding_window_pattern": 2}, "num_hidden_layers None in config.json must be an integer"),
        (
            {"sliding_window_pattern": 2, "num_hidden_layers": 10**12},
            "num_hidden_layers 1000000000000 in config.json must be an integer >= 1 and <= 4096",
        ),
    ],
)
def test_values_of_the_wrong_kind_are_refused(config: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        normalize_config(config)
