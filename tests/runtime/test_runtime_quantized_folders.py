"""Quantized folders run: their numbers are the formats' own, their logits those of the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ptir
from ptir.checkpoint import open_checkpoint, save_folder
from ptir.params import stored_formats
from ptir.runtime.published import with_files
from ptir.runtime.specs import random_checkpoint
from ptir.weights.affine_form import affine_form
from quantized_folders import CASES, Arrays, Folder, plain, write
from running import REF, Command, assert_close, command, small_checkpoint

__all__ = ["command"]
TOKENS = list(range(0, 60, 3))


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_definition_and_so_are_the_logits(
    tmp_path: Path, name: str
) -> None:
    folder = write(tmp_path, CASES[name])
    source = open_checkpoint(folder.path).source
    for weight, wanted in folder.weights.items():
        found = source.read(weight)
        assert np.array_equal(found, wanted) and found.dtype == wanted.dtype, weight
    formats = stored_formats(source)
    assert {n for n in formats} == {n for n in folder.weights if "_proj." in n}
    as_words = {affine_form(one) is not None for one in formats.values()}
    assert as_words == ({CASES[name].words} if CASES[name].words is not None else {True, False})
    logits = ptir.load_model(folder.path, backend=REF).forward(TOKENS)
    wanted = ptir.load_model(plain(folder, tmp_path / "plain"), backend=REF).forward(TOKENS)
    assert np.isfinite(wanted).all() and np.abs(wanted).max() > 0.1
    assert_close(logits, wanted, 1e-5)


@pytest.mark.parametrize(
    "name",
    ["gptq-3", "gptq-order", "mlx-4", "bnb-nf4-nested", "bnb-int8", "fp8-blocks", "fp8-output"],
)
def test_compiled_kernels_read_the_same_numbers(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, CASES[name])
    found = ptir.load_model(folder.path, backend="c").forward(TOKENS)
    assert_close(found, ptir.load_model(folder.path, backend=REF).forward(TOKENS), 1e-4)


def test_keys_may_have_the_prefix_of_the_family(tmp_path: Path) -> None:
    folder = write(tmp_path, CASES["awq"])
    plain_names = ptir.load_model(folder.path, backend=REF).forward(TOKENS)
    named = {n if n == "lm_head.weight" else f"model.{n}": a for n, a in folder.tensors.items()}
    renamed = replace(folder, tensors=named).rewrite()
    model = ptir.load_model(renamed.path, backend=REF)
    assert np.array_equal(model.forward(TOKENS), plain_names)
    assert model.store.source.keep_dtype  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["gptq-4", "gptq-order", "bnb-nf4", "awq"])
def test_gpt2_takes_them_turned(tmp_path: Path, name: str) -> None:
    checkpoint = small_checkpoint(n_embd=64, n_layer=1)
    tensors: Arrays = {}
    weights: Arrays = {}
    for weight in checkpoint.source.names():
        module, array = weight.rpartition(".")[0], checkpoint.source.read(weight)
        tensors[weight] = weights[weight] = np.array(array)
        if weight.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            del tensors[weight]
            inputs, outputs = array.shape
            parts, numbers = CASES[name].encode(np.random.default_rng(1), outputs, inputs)
            weights[weight] = numbers.T
            tensors |= {f"{module}.{part}": value for part, value in parts.items()}
    config = {**checkpoint.config, "quantization_config": CASES[name].config}
    (tmp_path / "q").mkdir()
    folder = Folder(tmp_path / "q", config, tensors, weights).rewrite()
    found = ptir.load_model(folder.path, backend=REF).forward(TOKENS)
    wanted = ptir.load_model(plain(folder, tmp_path / "plain"), backend=REF).forward(TOKENS)
    assert_close(found, wanted, 1e-5)


def test_modules_of_mlx_have_bits_of_their_own(tmp_path: Path) -> None:
    folder = write(tmp_path, CASES["mlx-4"])
    module = "layers.0.mlp.down_proj"
    shape = folder.weights[f"{module}.weight"].shape
    parts, numbers = CASES["mlx-6"].encode(np.random.default_rng(5), *shape)
    folder.tensors.update({f"{module}.{part}": array for part, array in parts.items()})
    folder.weights[f"{module}.weight"] = numbers
    folder.config["quantization"] = {
        **folder.config["quantization"],
        module: {"group_size": 32, "bits": 6},
        "lm_head": False,
    }
    source = open_checkpoint(folder.rewrite().path).source
    assert np.array_equal(source.read(f"{module}.weight"), numbers)
    names = {one.name for one in stored_formats(source).values()}
    assert names == {"mlx-int4-g32", "mlx-int6-g32"}


def test_embeddings_and_heads_may_be_quantized(tmp_path: Path) -> None:
    folder = write(tmp_path, CASES["mlx-4"], vocab_size=96)
    for module in ("embed_tokens", "lm_head"):
        shape = folder.tensors.pop(f"{module}.weight").shape
        parts, numbers = CASES["mlx-4"].encode(np.random.default_rng(5), *shape)
        folder.tensors.update({f"{module}.{part}": array for part, array in parts.items()})
        folder.weights[f"{module}.weight"] = numbers
    found = ptir.load_model(folder.rewrite().path, backend=REF).forward(TOKENS)
    wanted = ptir.load_model(plain(folder, tmp_path / "plain"), backend=REF).forward(TOKENS)
    assert_close(found, wanted, 1e-5)


def test_convert_writes_floats_and_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path, CASES["ct-int4"])
    saved = save_folder(open_checkpoint(folder.path), tmp_path / "saved")
    opened = open_checkpoint(saved)
    assert "quantization_config" not in opened.config and not stored_formats(opened.source)
    name = "layers.0.mlp.up_proj.weight"
    assert np.array_equal(opened.source.read(name), folder.weights[name])


def test_a_zero_of_gptq_v1_is_one_more_and_wraps(tmp_path: Path) -> None:
    """A stored 15 of 4 bits is the zero 0, as subtraction of one had made it."""
    folder = write(tmp_path, CASES["gptq-v2"])
    name = "layers.0.mlp.up_proj"
    stored = folder.tensors[f"{name}.qzeros"].view(np.uint32).astype(np.uint64)
    nibbles = [(stored >> np.uint64(4 * n) & np.uint64(15)) for n in range(8)]
    less = sum(
        (((n - np.uint64(1)) & np.uint64(15)) << np.uint64(4 * i)) for i, n in enumerate(nibbles)
    )
    folder.tensors[f"{name}.qzeros"] = np.asarray(less).astype(np.uint32).view(np.int32)
    folder.config["quantization_config"] = {**folder.config["quantization_config"], **V1}
    found = open_checkpoint(folder.rewrite().path).source.read(f"{name}.weight")
    assert np.array_equal(found, folder.weights[f"{name}.weight"])


V1 = {"checkpoint_format": "gptq"}


def test_inspect_says_what_weights_are_and_become(tmp_path: Path, command: Command) -> None:
    for name, said in {
        "awq": "awq-int4-g32 becomes words of 4 bits, a scale and a minimum for 32 inputs",
        "ct-int8": "ct-int8-channel becomes words of 8 bits, a scale for 64 inputs",
        "bnb-nf4-long": "bnb-nf4-b4096 becomes floats of --dtype: its blocks are of one line",
        "bnb-nf4": "bnb-nf4-b32 becomes words of 4 bits in a table, a scale for 32 inputs",
        "fp8-tensor": "fp8-e4m3 becomes words of 8 bits as f8e4m3fn, a scale for 64 inputs",
        "bnb-int8": "bnb-int8-channel becomes words of 8 bits as i8, a scale for 64 inputs",
        "gptq-order": "gptq-int4-g32 becomes words of 4 bits, a scale and a minimum for 32",
        "gptq-f32": "gptq-int4-g32 becomes floats of --dtype: a scale of f32 times a sum rounds",
    }.items():
        folder = write(tmp_path / name, CASES[name])
        value = command("inspect", folder.path, "--json").value
        assert any(one.startswith(said) for one in value["weights"]), value["weights"]
        assert value["bytes"] == sum(array.nbytes for array in folder.tensors.values())
    assert command("run", folder.path, "--tokens", "1,2", "-n", "2", "--backend", "ref").code == 0
    refused = command("run", folder.path, "--tokens", "1,2", "--quant", "int4", "--backend", "ref")
    assert refused.code == 2 and "has weights in gptq-int4-g32 already" in refused.err


def test_experts_in_blocks_of_fp8_stay_packed(tmp_path: Path) -> None:
    """Of all experts one matrix of words; each has scales of its own."""
    given = with_files(random_checkpoint("mixtral-tiny", 0))
    tensors: Arrays = {}
    weights: Arrays = {}
    for name in given.source.names():
        tensors[name] = weights[name] = np.array(given.source.read(name))
        if ".experts." in name:
            module, shape = name.removesuffix(".weight"), tensors.pop(name).shape
            parts, weights[name] = CASES["fp8-blocks"].encode(np.random.default_rng(1), *shape)
            tensors |= {f"{module}.{part}": array for part, array in parts.items()}
    config = {**given.config, "quantization_config": CASES["fp8-blocks"].config}
    (tmp_path / "q").mkdir()
    folder = Folder(tmp_path / "q", config, tensors, weights).rewrite()
    model = ptir.load_model(folder.path, backend=REF)
    held = {name.rsplit(".", 1)[-1] for name in model.store.source.names() if ".experts." in name}
    assert held == {"words", "scale"}
    wanted = ptir.load_model(plain(folder, tmp_path / "plain"), backend=REF)
    assert_close(model.forward(TOKENS), wanted.forward(TOKENS), 1e-5)
