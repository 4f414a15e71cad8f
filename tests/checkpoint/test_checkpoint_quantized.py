"""What a quantized folder must say and hold: every other thing is refused by its name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ptir
from ptir.checkpoint import open_checkpoint
from ptir.checkpoint.quantized import METHODS
from ptir.errors import CheckpointError
from ptir.weights import FORMATS
from ptir.weights.decode import decode
from quantized_folders import CASES, E2M1, write
from running import REF

MODULE = "layers.0.self_attn.q_proj"
NF4_STATE = "weight.quant_state.bitsandbytes__nf4"

SAID: list[tuple[str, dict[str, Any], str]] = [
    ("awq", {"quant_method": "aqw"}, r"unknown quant_method .*nearest: awq"),
    ("awq", {"quant_method": "quip"}, "unknown quant_method .*quip"),
    ("awq", {"quant_method": 3}, "unknown quant_method"),
    ("awq", {"bits": 8}, "bits 8: must be one of 4"),
    ("awq", {"bits": None}, "bits None: must be a whole number"),
    ("awq", {"version": "gemv"}, "version 'gemv': must be one of gemm"),
    ("awq", {"zero_point": False}, "zero_point False: weights without zero points"),
    ("awq", {"zero_point": "no"}, "zero_point 'no': must be true or false"),
    ("awq", {"group_size": 0}, "group_size 0: must be a number of inputs, or -1"),
    ("awq", {"group_size": 48}, "64 inputs are no whole groups of 48"),
    ("awq", {"group_size": 64}, r"scales' is f16\[2,64\]: \[1, 64\] is needed"),
    ("awq", {"group_size": None}, "has no group_size"),
    ("awq", {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert 'lm_head': must be"),
    ("awq", {"modules_to_not_convert": ["q_proj"]}, "q_proj' is listed as not quantized"),
    ("gptq-4", {"bits": 5}, "bits 5: must be one of 2, 3, 4, 8"),
    ("gptq-4", {"bits": True}, "bits True: must be a whole number"),
    ("gptq-4", {"bits": 8}, r"scales' is f16\[2,64\]: \[1, 64\] is needed"),
    ("gptq-4", {"dynamic": {"+:.*": {"bits": 8}}}, "dynamic .*settings of their own"),
    ("gptq-4", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin': must be one of gptq,"),
    ("gptq-4", {"is_marlin_format": True}, "is_marlin_format True: repacked"),
    ("gptq-4", {"pack_dtype": "int8"}, "pack_dtype 'int8'"),
    ("mlx-4", {"bits": 7}, "bits 7: must be one of 2, 3, 4, 5, 6, 8"),
    ("mlx-4", {"group_size": 40}, "group_size 40: must be one of"),
    ("mlx-4", {"mode": "nvfp4"}, "mode 'nvfp4': must be one of affine, mxfp4"),
    ("mlx-4", {MODULE: False}, f"{MODULE} False: the module is stored quantized"),
    ("mlx-mxfp4", {"group_size": 64}, "group_size 64: must be one of 32"),
    ("mlx-mxfp4", {"bits": 8}, "bits 8: must be one of 4"),
    ("ct-int4", {"format": "marlin-24"}, "format 'marlin-24': must be one of pack-quantized"),
    ("ct-int4", {"config_groups": {}}, "there must be one group of settings"),
    ("ct-int4", {"config_groups": None}, "has no config_groups"),
    ("ct-int4", {"config_groups": {"group_0": 3}}, "group_0 3: must be an object"),
    ("ct-int4", {"config_groups": {"a": {}, "b": {}}}, "there must be one group of settings"),
    ("ct-int4", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme .*is not read"),
    ("ct-int4", {"transform_config": {"x": 1}}, "transform_config .*is not read"),
    ("ct-int4", {"sparsity_config": {"x": 1}}, "sparsity_config .*is not read"),
    ("ct-int4", {"ignore": [MODULE]}, "is listed as not quantized"),
    ("fp8-blocks", {"weight_block_size": 128}, "weight_block_size 128: must be two sizes"),
    ("fp8-blocks", {"weight_block_size": [128, 0]}, "must be two sizes"),
    ("fp8-blocks", {"weight_block_size": [64, 64]}, r"weight_scale_inv' is f32.* is needed"),
    ("fp8-blocks", {"weight_block_size": None}, "one scale, or one for each of"),
    ("fp8-blocks", {"modules_to_not_convert": ["q_proj"]}, "listed as not quantized"),
    ("bnb-nf4", {"llm_int8_skip_modules": ["q_proj"]}, "listed as not quantized"),
]


@pytest.mark.parametrize(("name", "changes", "words"), SAID)
def test_what_a_configuration_may_not_say(
    tmp_path: Path, name: str, changes: dict[str, Any], words: str
) -> None:
    folder = write(tmp_path, CASES[name])
    key = CASES[name].key
    folder.config[key] = {**folder.config[key], **changes}
    with pytest.raises(CheckpointError, match=words) as error:
        open_checkpoint(folder.rewrite().path)
    assert str(error.value).startswith(f"{folder.path}: ")


WEIGHTS: list[tuple[str, dict[str, Any], str]] = [
    ("ct-int4", {"num_bits": 9}, "num_bits 9: must be one of 2"),
    ("ct-int4", {"num_bits": 7}, "num_bits 7: must be one of 2, 3, 4, 5, 6, 8"),
    ("ct-int4", {"type": "float"}, "type 'float': must be one of int"),
    ("ct-int4", {"strategy": "block"}, "strategy 'block': must be one of tensor, channel, group"),
    ("ct-int4", {"group_size": None}, "has no group_size"),
    ("ct-int4", {"group_size": 48}, "whole groups of 48"),
    ("ct-int4", {"symmetric": 1}, "symmetric 1: must be true or false"),
    ("ct-int4", {"symmetric": False}, "weight_zero_point' is missing"),
    ("ct-int8", {"num_bits": 4}, "num_bits 4: must be one of 8"),
    ("ct-fp8", {"type": "int"}, "type 'int': must be one of float"),
    ("ct-fp8-blocks", {"block_structure": None}, "block_structure None: must be two sizes"),
    ("ct-nvfp4", {"group_size": 32}, "group_size 32: must be one of 16"),
    ("ct-nvfp4", {"strategy": "group"}, "strategy 'group': must be one of tensor_group"),
]


@pytest.mark.parametrize(("name", "changes", "words"), WEIGHTS)
def test_what_is_said_of_compressed_weights(
    tmp_path: Path, name: str, changes: dict[str, Any], words: str
) -> None:
    folder = write(tmp_path, CASES[name])
    group = folder.config["quantization_config"]["config_groups"]["group_0"]
    said = {**group, "weights": {**group["weights"], **changes}}
    folder.config["quantization_config"] = {
        **folder.config["quantization_config"],
        "config_groups": {"group_0": said},
    }
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(folder.rewrite().path)


NEEDED = {
    "awq": ("qzeros", "scales", "qweight"),
    "gptq-4": ("qzeros", "scales", "qweight", "g_idx"),
    "mlx-4": ("weight", "scales", "biases"),
    "mlx-mxfp4": ("weight", "scales"),
    "ct-int4-zeros": ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point"),
    "ct-int8-zeros": ("weight", "weight_scale", "weight_zero_point"),
    "ct-fp8": ("weight", "weight_scale"),
    "ct-nvfp4": ("weight_packed", "weight_scale", "weight_global_scale"),
    "bnb-int8": ("weight", "SCB"),
    "bnb-nf4": ("weight", "weight.absmax", "weight.quant_map", NF4_STATE),
    "bnb-nf4-nested": ("weight.absmax", "weight.nested_absmax", "weight.nested_quant_map"),
    "fp8-blocks": ("weight", "weight_scale_inv"),
}
OPTIONAL = {("gptq-4", "g_idx")}


NAMED = (
    r"tensor '.*(is missing|: .*(needed|must be|has|only|no whole)|no scales)"
    r"|1 tensors of another shape"
    r"|q_proj\.weight\.quant_state.* is not valid JSON"
)


@pytest.mark.parametrize(("name", "suffix"), [(n, s) for n, many in NEEDED.items() for s in many])
def test_every_tensor_has_a_type_and_a_shape(tmp_path: Path, name: str, suffix: str) -> None:
    folder = write(tmp_path, CASES[name])
    tensor = f"{MODULE}.{suffix}"
    held = dict(folder.tensors)
    shorter = held[tensor][..., :-1] if held[tensor].ndim else None
    other = np.zeros(held[tensor].shape, np.int16)
    nothing = None if (name, suffix) in OPTIONAL else "gone"
    for value in (shorter, other, nothing):
        if value is None:
            continue
        folder.tensors.clear()
        folder.tensors.update(held | {tensor: value})
        if nothing is value:
            del folder.tensors[tensor]
        with pytest.raises(CheckpointError, match=NAMED):
            ptir.load_model(folder.rewrite().path, backend=REF)


TENSORS: list[tuple[str, str, Any, str]] = [
    ("gptq-4", "g_idx", np.zeros(64, np.int32), "every group must have 32 inputs"),
    ("gptq-4", "g_idx", np.arange(64, dtype=np.int32) // 16, "every group must have 32 inputs"),
    ("gptq-4", "g_idx", np.full(64, -1, np.int32), "every group must have 32 inputs"),
    ("ct-int4", "weight_shape", np.array([64, -64]), "says 64 outputs of -64 inputs"),
    ("ct-int4", "weight_shape", np.array([64, 1 << 40]), r"is needed by the other tensors"),
    ("ct-int4", "weight_g_idx", np.zeros(64, np.int32), "every group must have 32"),
    ("bnb-int8", "weight_format", np.uint8(1).reshape(()), r"only rows \(0\) are read"),
    ("bnb-nf4", "weight.quant_map", np.full(16, np.nan, np.float32), "NaN or infinite"),
    ("bnb-nf4", NF4_STATE, np.frombuffer(b"{}", np.uint8), "has no quant_type"),
    ("bnb-nf4", NF4_STATE, np.frombuffer(b"x", np.uint8), "is not valid JSON"),
    ("fp8-blocks", "weight_scale", np.zeros(1, np.float32), "weight_scale_inv is stored too"),
]


@pytest.mark.parametrize(("name", "suffix", "value", "words"), TENSORS)
def test_what_a_tensor_may_not_hold(
    tmp_path: Path, name: str, suffix: str, value: Any, words: str
) -> None:
    folder = write(tmp_path, CASES[name])
    folder.tensors[f"{MODULE}.{suffix}"] = value
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(folder.rewrite().path)


STATES = [
    ({"quant_type": "fp4"}, "quant_type 'fp4': must be one of nf4"),
    ({"blocksize": 48}, "blocksize 48: must be one of"),
    ({"shape": [64]}, "must be the two sizes"),
    ({"shape": [64, 0]}, "must be the two sizes"),
    ({"shape": [64, 128]}, "bytes are needed"),
    ({"nested_blocksize": 3}, "nested_blocksize 3"),
    ({"nested_dtype": "float16"}, "nested_dtype 'float16'"),
    ({"nested_offset": "x"}, "nested_offset 'x': must be a number"),
    ({"nested_offset": None}, "nested_offset None: must be a number"),
    ({"nested_offset": 10**400}, "nested_offset 1.*: must be a number that f32 holds"),
    ({"nested_offset": math.nan}, "nested_offset nan: must be a number"),
    ({"nested_offset": True}, "nested_offset True: must be a number"),
]


@pytest.mark.parametrize(("changes", "words"), STATES)
def test_what_a_state_of_bitsandbytes_may_not_say(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    folder = write(tmp_path, CASES["bnb-nf4-nested"])
    name = f"{MODULE}.{NF4_STATE}"
    state = json.loads(folder.tensors[name].tobytes())
    folder.tensors[name] = np.frombuffer(json.dumps({**state, **changes}).encode(), np.uint8)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(folder.rewrite().path)


def test_a_weight_is_not_stored_twice(tmp_path: Path) -> None:
    folder = write(tmp_path, CASES["awq"])
    folder.tensors[f"{MODULE}.weight"] = np.zeros((64, 64), np.float32)
    with pytest.raises(CheckpointError, match="is stored quantized and as it is too"):
        open_checkpoint(folder.rewrite().path)


def test_a_model_does_not_take_scales_without_range(tmp_path: Path) -> None:
    folder = write(tmp_path, CASES["awq"])
    folder.tensors[f"{MODULE}.scales"][0, 0] = np.inf
    with pytest.raises(CheckpointError, match=f"^{folder.path}: .*NaN or infinite"):
        ptir.load_model(folder.rewrite().path, backend=REF).forward([1, 2])


@pytest.mark.parametrize("name", ["bnb-nf4", "bnb-nf4-long"])
def test_a_codebook_of_whole_numbers_makes_no_words_of_blocks_that_go_over_rows(
    tmp_path: Path, name: str
) -> None:
    folder = write(tmp_path, CASES[name])
    for tensor in (n for n in folder.tensors if n.endswith("quant_map")):
        folder.tensors[tensor] = np.arange(16, dtype=np.float32) - 8
    path = folder.rewrite().path
    source = open_checkpoint(path).source
    (format,) = {source.format(n).name for n in source.names() if source.format(n)}
    assert (
        format.startswith("bnb-nf4-b")
        and np.isfinite(ptir.load_model(path, backend=REF).forward([1, 2])).all()
    )


def test_every_method_has_a_case() -> None:
    said = {case.config.get("quant_method", "mlx") for case in CASES.values()}
    # gpt-oss's is of experts alone: tests/models/test_models_mixtures.py
    assert said | {"mxfp4"} == set(METHODS)


def test_the_arrays_of_gpt_oss_decode_by_their_record() -> None:
    """``blocks`` [experts, outputs, inputs / 32, 16] and ``scales``, of one expert."""
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 256, (8, 3, 16)).astype(np.uint8)
    scales = rng.integers(110, 140, (8, 3)).astype(np.uint8)
    found = decode(FORMATS["mxfp4"], {"codes": blocks.reshape(8, -1), "scales": scales})
    for output in range(8):
        for place in range(96):
            byte = int(blocks[output, place // 32, place % 32 // 2])
            code = byte >> 4 if place % 2 else byte & 15
            value = -E2M1[code - 8] if code > 7 else E2M1[code]
            wanted = value * 2.0 ** (int(scales[output, place // 32]) - 127)
            assert found[output, place] == np.float32(wanted)


def test_scales_in_bf16_are_no_floats_of_a_tensor(tmp_path: Path) -> None:
    folder = write(tmp_path, CASES["ct-fp8"])
    scale = folder.tensors[f"{MODULE}.weight_scale"]
    assert scale.dtype == ml_dtypes.bfloat16
    folder.tensors[f"{MODULE}.weight_scale"] = scale.astype(np.float64)
    with pytest.raises(CheckpointError, match="must be of f16 or bf16 or f32"):
        open_checkpoint(folder.rewrite().path)
