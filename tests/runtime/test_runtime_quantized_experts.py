"""Mixtures of experts as folders of compressed-tensors: names, numbers, and the way back."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_runtime_calibration import Calibrating, ids_file

from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.errors import QuantizationError, UnsupportedError
from ptir.models.mixture import ROUTERS
from ptir.params.source import ArraySource
from ptir.runtime import load_model
from ptir.runtime.calibration.scaled import ScaledSource
from ptir.runtime.load import described
from ptir.runtime.quantized_folder import save_quantized_folder
from ptir.runtime.specs import random_checkpoint
from ptir.types import F32
from ptir.weights import FORMATS
from ptir.weights.decode import decode
from ptir.weights.quantizers import quantize
from quantized_experts import EXPERT, expert, mixture
from running import REF, assert_close

Array = np.ndarray[Any, Any]
SHARED = [r"re:.*mlp\.gate$", r"re:.*mlp\.shared_expert_gate$"]
ROUTERS_OF = {
    "mixtral-tiny": [r"re:.*block_sparse_moe\.gate$"],
    "qwen3_moe-tiny": [r"re:.*mlp\.gate$"],
    "qwen3.5-moe-tiny": SHARED,
    "qwen3_next-tiny": SHARED,
}
TOKENS = [*range(3, 40)]


def numbers(tensors: dict[str, Array], name: str, bits: int = 4) -> Array:
    """What compressed-tensors reads of a packed matrix: whole numbers times scales of 32 inputs."""
    words = tensors[f"{name}_packed"].view(np.uint32)
    codes = words[:, :, None] >> (np.arange(32 // bits, dtype=np.uint32) * bits) & (1 << bits) - 1
    whole = codes.reshape(len(words), -1).astype(np.float32) - (1 << bits - 1)
    assert whole.shape == tuple(tensors[f"{name}_shape"])
    return whole * tensors[f"{name}_scale"].astype(np.float32).repeat(32, axis=1)


@pytest.mark.parametrize(("format", "bits"), [("int4", 4), ("int8", 8)])
@pytest.mark.parametrize("preset", EXPERT)
def test_every_expert_is_packed_by_itself(
    tmp_path: Path, preset: str, format: str, bits: int
) -> None:
    """Under the name that Transformers has for it; routers are the source's floats."""
    given = mixture(preset, tmp_path / "f")
    tensors = load_file(
        save_quantized_folder(given, tmp_path / "q", FORMATS[format]) / "model.safetensors"
    )
    experts = given.config.get("num_local_experts", given.config.get("num_experts"))
    for number in range(experts):
        for part in ("gate", "up", "down"):
            name = expert(preset, 2, number, part)
            values = given.source.read(name)
            found = numbers(tensors, name, bits)
            steps = np.abs(tensors[f"{name}_scale"].astype(np.float32)).repeat(32, axis=1)
            cut = np.abs(values) >= ((1 << bits - 1) - 0.5 if bits == 4 else 127) * steps
            assert (np.abs(found - values) <= steps / 2 + cut * steps).all()
            assert np.sqrt(np.square(found - values).mean()) < steps.mean() * 0.33
    floats = [name for name in tensors if name.endswith(("gate.weight", "expert_gate.weight"))]
    assert floats and not any("gate.weight_" in name for name in tensors)
    for name in floats:
        np.testing.assert_array_equal(tensors[name], given.source.read(name))
    said = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]
    assert said["ignore"] == ["lm_head", *ROUTERS_OF[preset]]


@pytest.mark.parametrize("preset", EXPERT)
def test_experts_come_back_as_words_with_the_numbers_of_the_folder(
    tmp_path: Path, preset: str
) -> None:
    path = save_quantized_folder(mixture(preset, tmp_path / "f"), tmp_path / "q", FORMATS["int4"])
    model = load_model(path, backend=REF)
    held = {name.rsplit(".", 1)[-1] for name in model.store.source.names() if ".experts." in name}
    assert held == {"words", "scale"}
    floats = load_model(save_folder(open_checkpoint(path), tmp_path / "x", dtype=F32), backend=REF)
    assert_close(model.forward(TOKENS), floats.forward(TOKENS), 1e-4)


def on_grid(given: Checkpoint) -> Checkpoint:
    """Routers and outputs as int4 has them, which ``--quant`` rounds and folders do not."""
    read = described(given)
    names = {name for name in read.module.weights() if name.startswith("lm_head")}
    names |= {name for name in read.module.weights() if name.endswith(ROUTERS)}
    arrays = {name: np.array(given.source.read(name)) for name in given.source.names()}
    found = 0
    for name in arrays:
        bare = name.replace("block_sparse_moe", "mlp")
        if bare in names:
            found += 1
            rounded = quantize(FORMATS["int4"], arrays[name].astype(np.float32))
            arrays[name] = decode(FORMATS["int4"], rounded)
    assert found == len(names)
    return replace(given, source=ArraySource(arrays))


@pytest.mark.parametrize("preset", EXPERT)
def test_a_folder_answers_as_its_source_does_with_quant(tmp_path: Path, preset: str) -> None:
    given = save_folder(on_grid(mixture(preset, tmp_path / "f")), tmp_path / "g")
    path = save_quantized_folder(open_checkpoint(given), tmp_path / "q", FORMATS["int4"])
    ours, quant = load_model(path, backend=REF), load_model(given, backend=REF, quant="int4")
    assert_close(ours.forward(TOKENS), quant.forward(TOKENS), 1e-4)
    found, wanted = (
        [one.generate(TOKENS[n : n + 4], max_tokens=12, temperature=0).token_ids for n in range(8)]
        for one in (ours, quant)
    )
    assert found == wanted and len({tuple(one) for one in found}) > 4


def test_experts_that_are_stored_as_one_tensor_are_cut(tmp_path: Path) -> None:
    """As in a folder of Qwen3.5 that sees too, with gate and up together; packed they are same."""
    given = mixture("qwen3.5-moe-tiny", tmp_path / "f")
    arrays = {name: np.array(given.source.read(name)) for name in given.source.names()}
    experts, layers = given.config["num_experts"], given.config["num_hidden_layers"]
    for layer in range(layers):
        stacks = {
            part: np.stack(
                [arrays.pop(expert("qwen3.5-moe-tiny", layer, n, part)) for n in range(experts)]
            )
            for part in ("gate", "up", "down")
        }
        both = np.concatenate([stacks["gate"], stacks["up"]], axis=1)
        arrays[f"layers.{layer}.mlp.experts.gate_up_proj"] = both
        arrays[f"layers.{layer}.mlp.experts.down_proj"] = stacks["down"]
    before = "model.language_model."
    config = {"model_type": "qwen3_5_moe", "text_config": dict(given.config)}
    nested = {n if n == "lm_head.weight" else before + n: one for n, one in arrays.items()}
    whole = replace(given, config=config, source=ArraySource(nested))
    found, wanted = (
        load_file(
            save_quantized_folder(one, tmp_path / f"q{n}", FORMATS["int4"]) / "model.safetensors"
        )
        for n, one in enumerate((whole, given))
    )
    found = {name.removeprefix(before): one for name, one in found.items()}
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("method", ["gptq", "awq"])
@pytest.mark.parametrize("preset", ["mixtral-tiny", "qwen3_moe-tiny"])
def test_every_expert_holds_what_calibration_found(
    tmp_path: Path, preset: str, method: str
) -> None:
    given = mixture(preset, tmp_path / "f")
    how = Calibrating(ids_file(tmp_path, 512), method)
    path = save_quantized_folder(given, tmp_path / "q", FORMATS["int4"], calibrate=how)
    tensors = load_file(path / "model.safetensors")
    assert not any(name.endswith(ROUTERS) for name in how.formats)
    count = given.config.get("num_local_experts", given.config.get("num_experts"))
    changed = 0
    for part in ("gate", "up", "down"):
        name = f"layers.0.mlp.experts.{part}_proj.weight"
        if method == "gptq":
            wanted = decode(FORMATS["int4"], how.found.arrays[name])
        else:
            values = how.found.source.read(name).astype(np.float32)
            wanted = decode(FORMATS["int4"], quantize(FORMATS["int4"], values))
        for number, rows in enumerate(np.split(wanted, count)):
            one = expert(preset, 0, number, part)
            np.testing.assert_array_equal(numbers(tensors, one), rows)
            plain = quantize(FORMATS["int4"], given.source.read(one).astype(np.float32))
            changed += not np.array_equal(decode(FORMATS["int4"], plain), rows)
    assert changed > count
    # routers see scaled inputs too: the model computes what the calibrated floats do
    floats = save_folder(open_checkpoint(path), tmp_path / "x", dtype=F32)
    found, wanted = (load_model(one, backend=REF).forward(TOKENS) for one in (path, floats))
    assert_close(found, wanted, 1e-4)
    off = np.abs(found - load_model(tmp_path / "f", backend=REF).forward(TOKENS)).max()
    assert off < 0.5 * np.abs(wanted).max()


def test_rows_of_scaled_matrices_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    scaled = ScaledSource(ArraySource({"w": rng.standard_normal((6, 64), np.float32)}))
    scaled.multiply("w", rng.uniform(0.5, 2, 64), 1)
    scaled.divide("w", rng.uniform(0.5, 2, 6), 0)
    scaled.clip("w", rng.uniform(0.5, 1, (6, 2)).astype(np.float32), 1)
    whole = scaled.read("w")
    np.testing.assert_array_equal(scaled.read_rows("w", 2, 5), whole[2:5])


@pytest.mark.parametrize("preset", ["gpt_oss-tiny", "granitemoe-tiny"])
def test_families_that_store_experts_as_one_tensor_are_refused(tmp_path: Path, preset: str) -> None:
    model_type = preset.removesuffix("-tiny")
    message = (
        f"model_type '{model_type}' stores all experts of a layer as one tensor, which"
        r" Transformers does not read from compressed-tensors: write a GGUF file"
        r" \(--format q4_k_m\)"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnsupportedError, match=message):
            save_quantized_folder(random_checkpoint(preset, 0), tmp_path / "q", FORMATS["int4"])
    assert not (tmp_path / "q").exists()


def test_experts_whose_rows_are_no_groups_are_refused(tmp_path: Path) -> None:
    message = r"layers\.0\.mlp\.experts\.0\.down_proj\.weight': int4 takes groups of 32 inputs"
    with pytest.raises(QuantizationError, match=message):
        save_quantized_folder(
            random_checkpoint("qwen3_moe-tiny", 0), tmp_path / "q", FORMATS["int4"]
        )
