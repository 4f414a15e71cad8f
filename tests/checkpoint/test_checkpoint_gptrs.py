"""Files of gpt.rs: there and back bit for bit, files as gpt.rs writes them, damaged ones refused.

The witness is the format's description, packed by ``struct`` here, and NumPy.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ptir
from ptir.checkpoint import load_archive, open_checkpoint, save_archive, save_folder
from ptir.checkpoint.gptrs import open_gptrs, write_archive
from ptir.checkpoint.gptrs.index import CHECKPOINT
from ptir.checkpoint.gptrs.saving import save_gptrs
from ptir.errors import CheckpointError
from ptir.runtime.specs import resolve
from running import REF

Arrays = Mapping[str, Any]
TAGS = {"float32": 0, "float16": 1, "bfloat16": 2, "int32": 3}


def packed(arrays: Arrays, said: dict[str, Any] | None = None, version: int = 2) -> bytes:
    """A file as its format is described: a checkpoint where ``said`` is given, else an archive."""
    magic, config, ids = (b"GPTRSTEN", b"", b"")
    if said is not None:
        magic, text, ids = b"GPTRSCHK", json.dumps(said).encode(), struct.pack("<QQ", 7, 9)
        config = struct.pack("<I", len(text)) + text
    for start in (0, 0):
        index = struct.pack("<I", len(arrays))
        for name, array in arrays.items():
            index += struct.pack("<I", len(name)) + name.encode() + ids
            index += struct.pack(f"<I{array.ndim}Q", array.ndim, *array.shape)
            index += struct.pack("<IBQQ", TAGS[array.dtype.name], 1, start, array.nbytes)
            start += array.nbytes
        front = magic + struct.pack("<I", version) + config + struct.pack("<I", len(index))
        data = len(front) + len(index)
        index = index[:4] + _moved(index[4:], arrays, len(ids), data)
    return front + index + b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values())


def _moved(index: bytes, arrays: Arrays, ids: int, by: int) -> bytes:
    """Offsets from the file's beginning."""
    found, at = bytearray(index), 0
    for name, array in arrays.items():
        at += 4 + len(name) + ids + 4 + 8 * array.ndim + 5
        (offset,) = struct.unpack_from("<Q", found, at)
        struct.pack_into("<Q", found, at, offset + by)
        at += 16
    return bytes(found)


def folder_bytes(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


@pytest.mark.parametrize("spec", ["demo", "random:resnet-tiny"])
def test_a_folder_goes_there_and_back_bit_for_bit(spec: str, tmp_path: Path) -> None:
    save_folder(resolve(spec, seed=0), tmp_path / "there")
    save_gptrs(open_checkpoint(tmp_path / "there"), tmp_path / "model.bin")
    save_folder(open_checkpoint(tmp_path / "model.bin"), tmp_path / "back")
    assert folder_bytes(tmp_path / "back") == folder_bytes(tmp_path / "there")


def test_elements_that_the_format_has_not_come_back(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text('{"model_type": "resnet"}')
    tensors: dict[str, Any] = {
        "bn.num_batches_tracked": np.int64(-3 << 40).reshape(()),
        "wide": np.arange(6, dtype=np.float64).reshape(2, 3) / 7,
        "empty": np.zeros((0, 4), np.float32),
        "narrow": np.arange(5, dtype=ml_dtypes.bfloat16),
    }
    save_archive(tmp_path / "a" / "model.safetensors", tensors)
    save_gptrs(open_checkpoint(tmp_path / "a"), tmp_path / "model.bin")
    source = open_checkpoint(tmp_path / "model.bin").source
    for name, wanted in tensors.items():
        found = source.read(name)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
        assert found.tobytes() == wanted.tobytes(), name


def test_gpt2_is_stored_by_gpt_rs_s_names_and_layouts(tmp_path: Path) -> None:
    checkpoint = resolve("demo", seed=0)
    save_gptrs(checkpoint, tmp_path / "model.bin")
    raw = open_gptrs_raw(tmp_path / "model.bin")
    wanted = {n.removeprefix("transformer."): n for n in checkpoint.source.names()}
    fused = checkpoint.source.read(wanted["h.1.attn.c_attn.weight"])
    for number, part in enumerate("qkv"):
        columns = np.split(fused, 3, axis=1)[number]
        assert np.array_equal(raw[f"model.layers.1.self_attn.{part}_proj.weight"], columns.T)
    up = raw["model.layers.0.mlp.up_proj.weight"]
    assert np.array_equal(up, checkpoint.source.read(wanted["h.0.mlp.c_fc.weight"]).T)
    assert np.array_equal(raw["lm_head.weight"], raw["model.embed_tokens.weight"])
    assert not wanted.keys() & raw.keys() - {"lm_head.weight"}


def open_gptrs_raw(path: Path) -> dict[str, Any]:
    """A checkpoint's tensors by the names in the file, read by the description."""
    text = path.read_bytes()
    assert text.startswith(b"GPTRSCHK\x02\0\0\0")
    (length,) = struct.unpack_from("<I", text, 12)
    at = 16 + length + 4
    (count,) = struct.unpack_from("<I", text, at)
    at += 4
    found = {}
    for _ in range(count):
        (size,) = struct.unpack_from("<I", text, at)
        name = text[at + 4 : at + 4 + size].decode()
        at += 4 + size + 16
        (rank,) = struct.unpack_from("<I", text, at)
        shape = struct.unpack_from(f"<{rank}Q", text, at + 4)
        tag, _, offset, nbytes = struct.unpack_from("<IBQQ", text, at + 4 + 8 * rank)
        at += 4 + 8 * rank + 21
        dtype = [np.float32, np.float16, ml_dtypes.bfloat16, np.int32][tag]
        found[name] = np.frombuffer(text[offset : offset + nbytes], dtype).reshape(shape)
    return found


def test_a_gpt2_that_gpt_rs_wrote_gives_the_logits_of_the_folder(tmp_path: Path) -> None:
    checkpoint = resolve("demo", seed=0)
    arrays: dict[str, Any] = {}
    for name in checkpoint.source.names():
        there = name.removeprefix("transformer.")
        there = there.replace("wte.", "model.embed_tokens.").replace(
            "wpe.", "model.embed_positions."
        )
        there = there.replace("ln_1", "input_layernorm").replace("ln_2", "post_attention_layernorm")
        there = there.replace("ln_f", "model.norm").replace("attn.c_proj", "self_attn.o_proj")
        there = there.replace("mlp.c_fc", "mlp.up_proj").replace("mlp.c_proj", "mlp.down_proj")
        there = "model.layers." + there[2:] if there.startswith("h.") else there
        values = checkpoint.source.read(name)
        values = values.T if "_proj" in there or "c_attn" in there else values
        if "c_attn" in there:
            for part, some in zip("qkv", np.split(values, 3), strict=True):
                arrays[there.replace("attn.c_attn", f"self_attn.{part}_proj")] = some
        else:
            arrays[there] = values
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    config = {k: v for k, v in checkpoint.config.items() if k != "model_type"}
    (tmp_path / "seed.bin").write_bytes(packed(arrays, {"kind": "gpt", "config": config}))
    found, wanted = (
        ptir.load_model(spec, backend=REF).forward([3, 1, 4, 1, 5])
        for spec in (str(tmp_path / "seed.bin"), "demo")
    )
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("kind", "spec"), [("resnet34", "resnet-tiny"), ("mobilenet_v2", "mobilenet-v2-tiny")]
)
def test_a_folded_vision_model_gives_what_its_norms_gave(
    kind: str, spec: str, tmp_path: Path
) -> None:
    draws = np.random.default_rng(3)
    checkpoint = resolve(f"random:{spec}", seed=0)
    source, config = checkpoint.source, dict(checkpoint.config)
    whole: dict[str, Any] = {}
    for name in source.names():
        last = name.rpartition(".")[2]
        ranges = {"running_mean": (-0.1, 0.1), "running_var": (0.8, 1.2)}
        values = source.read(name)
        if last in ranges and values.ndim == 1:
            values = np.asarray(draws.uniform(*ranges[last], values.shape), np.float32)
        whole[name] = values
    folded = dict(whole)
    for mean in [name for name in whole if name.endswith(".running_mean")]:
        norm = mean.removesuffix(".running_mean")
        head, _, last = norm.rpartition(".")
        before = last.replace("bn", "conv") if last.startswith("bn") else str(int(last) - 1)
        conv = f"{head}.{before}" if head else before
        weight, bias, at, spread = (
            folded.pop(f"{norm}.{part}")
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        folded.pop(f"{norm}.num_batches_tracked", None)
        scale = weight / np.sqrt(spread.astype(np.float64) + config.get("layer_norm_eps", 1e-5))
        folded[f"{conv}.weight"] = (whole[f"{conv}.weight"] * scale[:, None, None, None]).astype(
            "f4"
        )
        folded[f"{conv}.bias"] = (bias - at * scale).astype("f4")
    said = {"kind": kind, "config": config}
    (tmp_path / "folded.bin").write_bytes(packed(folded, said))
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "config.json").write_text(json.dumps(config))
    save_archive(tmp_path / "whole" / "model.safetensors", whole)
    pixels = draws.standard_normal((1, 33, 35, 3)).astype(np.float32)
    found, wanted = (
        ptir.load_model(str(tmp_path / name), backend=REF).forward(pixels)
        for name in ("folded.bin", "whole")
    )
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


def test_archives_of_gpt_rs_are_read_and_written(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.array([1.5, -2], np.float16),
        "brain": np.array([[3.0]], ml_dtypes.bfloat16),
        "ids": np.array([-1, 7], np.int32),
    }
    (tmp_path / "theirs").write_bytes(packed(arrays))
    write_archive(tmp_path / "ours", arrays)
    for name in ("theirs", "ours"):
        found = load_archive(tmp_path / name).arrays
        assert list(found) == list(arrays)
        assert all(found[key].tobytes() == arrays[key].tobytes() for key in arrays), name
    with pytest.raises(CheckpointError, match="'wide' is f64; GPTRSTEN has f32, f16, bf16, i32"):
        write_archive(tmp_path / "no", {"wide": np.zeros(2)})
    assert not (tmp_path / "no").exists()


SAID: dict[str, Any] = {"kind": "gpt", "config": {}}
X = {"x": np.zeros((2, 3), np.float32)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (packed(X, SAID, version=1), "version 1 of GPTRSCHK; 2 is read"),
        (packed(X, SAID)[:20], "configuration of 29 bytes where 4 follow; it is cut"),
        (packed(X, SAID)[:-1], "bytes 115..139 leave 115..138, those of tensors"),
        (packed(X, {"kind": 3, "config": {}}), "'kind' must be a text"),
        (packed(X, {"kind": "gpt"}), "'config' an object"),
        (packed(X, SAID | {"ptir": {"files": [1]}}), "ptir.files must map names of files to texts"),
        (packed(X, SAID | {"ptir": {"types": {"x": "f9[2]"}}}), "unknown dtype 'f9'"),
        (packed(X, SAID | {"ptir": {"types": {"x": "f32[9]"}}}), "whose bytes are no f32[9]"),
        (
            packed(X, SAID | {"ptir": {"types": {"x": f"f32[{'9' * 5000}]"}}}),
            "is not a tensor type; write it as f32[2,3]",
        ),
        (packed(X, SAID | {"ptir": {"prefix": 7}}), "prefix 7 and tied False: must be a text"),
        (packed(X, SAID | {"ptir": {"tied": "no"}}), "tied 'no': must be a text and true or false"),
        (
            packed({"model.norm.bias": X["x"], "transformer.ln_f.bias": X["x"]}, SAID),
            "'transformer.ln_f.bias' is there by another name, too",
        ),
        (packed(X, SAID).replace(b"\x18\0\0\0\0\0\0\0", b"\x19\0\0\0\0\0\0\0"), "25 bytes for f32"),
        (packed(X, SAID).replace(b"\0\0\0\0\x01", b"\x09\0\0\0\x01"), "dtype 9; known are 0 f32"),
        (packed({"x": X["x"], "y": X["x"]}, SAID).replace(b"y", b"x"), "'x' is there twice"),
        (
            packed(
                {"model.layers.0.self_attn.q_proj.weight": X["x"]},
                SAID,
            ),
            "model.layers.0.self_attn.k_proj.weight",
        ),
    ],
)
def test_what_is_wrong_is_named(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(text)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


def test_changed_bytes_are_refused_or_read(tmp_path: Path) -> None:
    """Never another exception, and nothing is read from outside of the file."""
    right = packed({"x": X["x"], "h": np.ones(5, np.float16)}, SAID | {"kind": "other"})
    draws, path, refused = np.random.default_rng(5), tmp_path / "model.bin", 0
    for turn in range(600):
        text = bytearray(right)
        for _ in range(draws.integers(1, 4)):
            text[draws.integers(8, len(text))] = draws.integers(256)
        path.write_bytes(text[: draws.integers(8, len(text))] if turn % 3 == 0 else text)
        try:
            opened = open_gptrs(path)
            for name in opened.source.names():
                opened.source.read(name).sum()
        except CheckpointError as error:
            assert str(path) in str(error)
            refused += 1
    assert 300 < refused < 590
    assert path.read_bytes().startswith(CHECKPOINT)
