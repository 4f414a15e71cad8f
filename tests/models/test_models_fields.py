"""Whatever a config.json says, opening it gives a model or one clear error, at once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_models_llama_kin import CONFIGS, LONGROPE, YARN

import ptir
from layer_norm_families import CONFIGS as LAYER_NORMS
from ptir.checkpoint import Checkpoint
from ptir.checkpoint.json_text import parse_json_object
from ptir.errors import CheckpointError
from ptir.models import definition
from ptir.models.decoder import SIZES as DECODER_SIZES
from ptir.models.fields import FIELDS
from ptir.models.gpt2 import SIZES as GPT2_SIZES
from ptir.models.llama import SIZES as LLAMA_SIZES
from ptir.params.source import RandomSource
from ptir.runtime.load import described
from ptir.runtime.specs import parameter_types
from recurrent_models import LFM2, MAMBA2, QWEN, QWEN_MOE, QWEN_NEXT
from running import LLAMA, REF, SMALL, llama_folder
from together import together

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GPT2 = {
    **SMALL,
    "n_inner": 64,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "add_cross_attention": False,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}
FULL_LLAMA = {
    **{key: value for key, value in LLAMA.items() if key != "rope_theta"},
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_parameters": LLAMA3,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "sliding_window": 8,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "eos_token_id": [1, 2],
    "torch_dtype": "float32",
}
WHOLE = {
    "gpt2": GPT2,
    "llama": FULL_LLAMA,
    "mistral": {**FULL_LLAMA, "model_type": "mistral"},
    "qwen2": {**FULL_LLAMA, "model_type": "qwen2"},
    **LAYER_NORMS,
    **{
        name: {**FULL_LLAMA, **CONFIGS[name], "head_dim": 8, "model_type": name}
        for name in ("smollm3", "granite", "ministral3", "phi3", "gemma3_text", "gemma4_text")
    },
}
WHOLE |= {"lfm2": LFM2, "qwen3_5_text": QWEN}
WHOLE |= {"qwen3_next": QWEN_NEXT, "qwen3_5_moe_text": QWEN_MOE}
WHOLE["mamba2"] = {**MAMBA2, "max_position_embeddings": 128}
WHOLE["gemma4_text with experts"] = {
    **WHOLE["gemma4_text"],
    "enable_moe_block": True,
    "num_experts": 5,
    "top_k_experts": 2,
    "moe_intermediate_size": 16,
}
DAMAGED_TEXTS = (
    *("Infinity", "-Infinity", "NaN", "1e400", "-1e400", "1e308", "5e-324", "0.5", "12.0", "-0.0"),
    *("0", "-1", "1000000000000", "-1000000000000", "9" * 400, "9" * 4000, "2147483648"),
    *("null", "true", "false", '""', '"12"', '"' + "x" * 5000 + '"', "[]", "[1]", "[[1]]"),
    *("{}", '{"a": 1}', '[{"rope_type": []}]', '{"rope_type": []}', '{"rope_theta": 1e400}'),
)


def checkpoint_of(config: dict[str, Any]) -> Checkpoint:
    model = definition(str(config["model_type"]))
    types = parameter_types(model, config)
    source = RandomSource(types, 0, lambda *_: 0.02, lambda *_: 0.0)
    return Checkpoint(Path("m"), config, {}, {}, source, None, ())


def damaged(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """``config`` with one value replaced, rotary parameters and the whole of them included."""
    for text in DAMAGED_TEXTS:
        value = parse_json_object(f'{{"v": {text}}}', "test")["v"]
        for key in config:
            yield {**config, key: value}
        for key in (*LLAMA3, "partial_rotary_factor") if "rope_parameters" in config else ():
            yield {**config, "rope_parameters": {**LLAMA3, key: value}}
        for entry in (YARN, LONGROPE) if "rope_parameters" in config else ():
            for key in (*entry, "beta_fast", "mscale", "attention_factor", "truncate"):
                yield {**config, "rope_parameters": {**entry, key: value}}
        for key in ("rope_theta", "rope_scaling", "rope_local_base_freq", "layer_types", "dtype"):
            yield {**config, "rope_parameters": None, key: value}
        yield {**config, "sliding_window_pattern": value}


@pytest.mark.parametrize("family", WHOLE)
def test_a_damaged_value_gives_a_model_or_a_checkpoint_error(family: str) -> None:
    sound = checkpoint_of(WHOLE[family])
    assert described(sound).context == sound.config[SIZE_OF_CONTEXT[family]]
    refused = 0
    for config in damaged(WHOLE[family]):
        try:
            found = described(replace(sound, config=config))
        except CheckpointError as error:
            refused += 1
            assert len(str(error)) < 600, config
        else:
            assert type(found.context) is int and found.context <= FIELDS["n_positions"].high
    assert refused > 300


SIZE_OF_CONTEXT = dict.fromkeys(WHOLE, "max_position_embeddings") | {"gpt2": "n_positions"}


@together("family")
@pytest.mark.parametrize(
    ("family", "key"),
    [("gpt2", key) for key in GPT2_SIZES]
    + [("llama", key) for key in LLAMA_SIZES]
    + [(family, key) for family in LAYER_NORMS for key in DECODER_SIZES]
    + [("opt", "ffn_dim"), ("phi", "intermediate_size")],
)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 10**12, 0, -1, 2.0, "2", True])
def test_every_size_names_its_key_value_and_range(family: str, key: str, value: Any) -> None:
    checkpoint = checkpoint_of(WHOLE[family])
    with pytest.raises(CheckpointError) as caught:
        described(replace(checkpoint, config={**WHOLE[family], key: value}))
    assert f"{key} {value!r} in config.json must be an integer >= 1 and <= " in str(caught.value)


FLAGS = [
    (family, key)
    for family in ("gpt2", "llama", *LAYER_NORMS)
    for key, value in WHOLE[family].items()
    if isinstance(value, bool)
]


@pytest.mark.parametrize(("family", "key"), FLAGS)
def test_a_flag_that_is_a_text_or_a_number_is_refused(family: str, key: str) -> None:
    """``"false"`` would count as true."""
    checkpoint = checkpoint_of(WHOLE[family])
    for value in ("false", 1, []):
        with pytest.raises(CheckpointError, match=f"{key} .* in config.json must be true or fals"):
            described(replace(checkpoint, config={**WHOLE[family], key: value}))


@pytest.mark.parametrize(
    ("family", "key"),
    [("gpt2", "n_layer"), *((name, "num_hidden_layers") for name in ("llama", *LAYER_NORMS))],
)
def test_layers_that_nobody_stored_are_refused_before_they_are_built(
    family: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoint_of(WHOLE[family])
    built: list[int] = []
    model = definition(family)
    monkeypatch.setitem(
        ptir.models.MODELS, family, replace(model, build=lambda config: built.append(1))
    )
    with pytest.raises(CheckpointError, match=f"says {key} 4000, and tensors of 2 layers are stor"):
        described(replace(checkpoint, config={**WHOLE[family], key: 4000}))
    assert not built


def test_the_error_names_the_folder(tmp_path: Path) -> None:
    path = llama_folder(tmp_path)
    held = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**held, "hidden_size": math.inf}))
    with pytest.raises(CheckpointError) as caught:
        ptir.load_model(path, backend=REF)
    assert str(caught.value).startswith(f"{path}: llama: hidden_size inf in config.json must be")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("generation_config.json", '{"eos_token_id": -1}', "generation_config.json: eos_token_id"),
        ("generation_config.json", '{"eos_token_id": 1e400}', "eos_token_id inf must be an id"),
        ("generation_config.json", "[1]", "generation_config.json holds a JSON list"),
        ("tokenizer.json", "{}", "tokenizer.json: cannot be used"),
        ("tokenizer.json", '{"model"', "tokenizer.json is not valid JSON"),
    ],
)
def test_other_damaged_files_are_named_with_the_folder(
    file: str, text: str, words: str, tmp_path: Path
) -> None:
    path = llama_folder(tmp_path)
    (path / file).write_text(text)
    with pytest.raises(CheckpointError, match=words) as caught:
        ptir.load_model(path, backend=REF)
    assert str(caught.value).startswith(str(path))
