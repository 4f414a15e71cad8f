"""Models quantized to GGUF files: to the bit where somebody else's code does it, whole or none."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import quants

import ptir
from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.checkpoint.gguf.mixtures import MIXTURES
from ptir.errors import CheckpointError, QuantizationError, UsageError
from ptir.params.source import ArraySource
from ptir.runtime import load_model, quantize
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.quantize import AHEAD, quantized_rows
from ptir.types import F32
from ptir.weights import FORMATS
from ptir.weights.decode import decode
from ptir.weights.quantizers import quantize as rounded
from running import REF, assert_close, llama_folder, small_checkpoint

DEMO = Path(ptir.__file__).parent / "data" / "demo"
WIDE = {"hidden_size": 256, "intermediate_size": 288, "num_attention_heads": 4, "head_dim": 64}
"""Rows of 256 are super-blocks, those of 288 are none."""


def checkpoints(folder: Path) -> dict[str, Checkpoint]:
    """One of each kind of layout: turned weights, rotated rows and an output of its own."""
    wide = open_checkpoint(llama_folder(folder, num_hidden_layers=3, **WIDE))
    return {"gpt2": small_checkpoint(), "llama": wide}


def held(path: Path) -> dict[str, str]:
    """The types of tensors, as somebody else's reader finds them."""
    return {one.name: one.tensor_type.name for one in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_every_matrix_has_the_numbers_of_gguf_s_quantizer(
    tmp_path: Path, family: str, name: str
) -> None:
    checkpoint = checkpoints(tmp_path)[family]
    path = save_gguf(checkpoint, tmp_path / "m.gguf", mixture=MIXTURES[name])
    source = open_checkpoint(path).source
    turned = ("c_attn.weight", "c_proj.weight", "c_fc.weight") if family == "gpt2" else ()
    for one in checkpoint.source.names():
        ours = one.removeprefix("model.")
        wanted = np.array(checkpoint.source.read(one), np.float32)
        is_output = ours in ("wte.weight", "lm_head.weight")
        if wanted.ndim == 2 and not is_output and "wpe" not in ours:
            kind = Kind[name.upper()]
            rows = np.ascontiguousarray(wanted.T if ours.endswith(turned) else wanted)
            wanted = quants.dequantize(quants.quantize(rows, kind), kind)
            wanted = wanted.T if ours.endswith(turned) else wanted
        elif is_output:
            as_output = "Q6_K" if family == "llama" and name != "q8_0" else "Q8_0"
            wanted = decode(FORMATS[as_output], rounded(FORMATS[as_output], wanted))
        np.testing.assert_array_equal(source.read(ours if ours in source.names() else one), wanted)


def test_a_mixture_gives_each_tensor_its_type(tmp_path: Path) -> None:
    path = save_gguf(
        checkpoints(tmp_path)["llama"], tmp_path / "m.gguf", mixture=MIXTURES["q4_k_m"]
    )
    found = held(path)
    assert found["output.weight"] == "Q6_K" and found["token_embd.weight"] == "Q4_K"
    values = [found[f"blk.{layer}.attn_v.weight"] for layer in range(3)]
    downs = [found[f"blk.{layer}.ffn_down.weight"] for layer in range(3)]
    assert values == ["Q4_K", "Q4_K", "Q6_K"]  # of three layers the last counts for more
    assert downs == ["Q5_0", "Q5_0", "Q8_0"]  # rows of 288
    vectors = {name: kind for name, kind in found.items() if "norm" in name}
    assert set(vectors.values()) == {"F32"} and len(vectors) == 7
    reader = gguf.GGUFReader(path)
    said = {
        key: reader.get_field(f"general.{key}") for key in ("file_type", "quantization_version")
    }
    assert {key: one.contents() for key, one in said.items() if one} == {
        "file_type": gguf.LlamaFileType.MOSTLY_Q4_K_M,
        "quantization_version": gguf.GGML_QUANT_VERSION,
    }


@pytest.mark.parametrize("name", ["q5_k_m", "q6_k", "mxfp4"])
def test_the_model_answers_with_the_numbers_of_the_file(tmp_path: Path, name: str) -> None:
    checkpoint = checkpoints(tmp_path)["llama"]
    path = save_gguf(checkpoint, tmp_path / "m.gguf", mixture=MIXTURES[name])
    floats = save_folder(open_checkpoint(path), tmp_path / "floats", dtype=F32)
    tokens = list(range(3, 20))
    found, wanted = (load_model(one, backend=REF).forward(tokens) for one in (path, floats))
    assert_close(found, wanted, 1e-4)
    assert np.abs(found - load_model(tmp_path / "small", backend=REF).forward(tokens)).max() > 0.01


def test_a_file_does_not_depend_on_threads_and_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(DEMO)
    wanted = save_gguf(checkpoint, tmp_path / "one.gguf", mixture=MIXTURES["q5_1"]).read_bytes()
    monkeypatch.setattr(quantize, "CHUNK", 5000)
    monkeypatch.setattr(quantize, "usable_processors", lambda: 5)
    found = save_gguf(checkpoint, tmp_path / "two.gguf", mixture=MIXTURES["q5_1"]).read_bytes()
    assert found == wanted


class Watched:
    """Rows that count how many of them were taken."""

    def __init__(self, values: Any) -> None:
        self._values = values
        self.shape = values.shape
        self.taken = 0

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Any) -> Any:
        self.taken += len(rows)
        return self._values[rows]


def test_few_chunks_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "CHUNK", 64)
    monkeypatch.setattr(quantize, "usable_processors", lambda: 3)
    values: Any = Watched(np.ones((500, 32), np.float32))
    chunks = quantized_rows("w", FORMATS["Q8_0"], values, slice(None))
    for taken in range(100):
        assert next(chunks).shape == (2, 34)
        assert values.taken <= 2 * (taken + 1 + AHEAD * 3)
    assert 2 * 100 + sum(len(one) for one in chunks) == 500


def test_progress_counts_weights_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    checkpoint = small_checkpoint()
    save_gguf(
        checkpoint,
        tmp_path / "m.gguf",
        mixture=MIXTURES["q8_0"],
        progress=lambda *said: seen.append(said),
    )
    total = sum(checkpoint.source.type(name).size for name in checkpoint.source.names())
    assert [one for one, _ in seen] == sorted(one for one, _ in seen)
    assert seen[-1] == (total, total) and len(seen) == len(checkpoint.source.names())


def damaged(name: str, value: float) -> Checkpoint:
    """A model one weight of which is ``value``."""
    whole = small_checkpoint()
    arrays = {one: np.array(whole.source.read(one)) for one in whole.source.names()}
    arrays[name][-1, -1] = value
    return replace(whole, source=ArraySource(arrays))


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.nan, "a weight holds NaN or infinity"), (1e30, "Q4_0 has scales in f16, at most 65504")],
)
def test_weights_that_no_format_holds_leave_what_was_there(
    tmp_path: Path, value: float, message: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"before")
    with pytest.raises(QuantizationError, match=f"parameter 'h.1.mlp.c_fc.weight': {message}"):
        save_gguf(
            damaged("h.1.mlp.c_fc.weight", value), path, mixture=MIXTURES["q4_0"], overwrite=True
        )
    assert path.read_bytes() == b"before" and [*tmp_path.iterdir()] == [path]


def test_a_full_disk_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def opened(self: Path, *arguments: Any, **named: Any) -> Any:
        file = real(self, *arguments, **named)
        if not self.name.endswith(".part"):
            return file

        class Full:
            """A file that takes 20,000 bytes."""

            left = 20_000

            def write(self, data: Any) -> int:
                self.left -= memoryview(data).nbytes
                if self.left < 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return int(file.write(data))

            def __enter__(self) -> Full:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

        return Full()

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(CheckpointError, match="cannot be written: No space left on device"):
        save_gguf(small_checkpoint(), tmp_path / "m.gguf", mixture=MIXTURES["q8_0"])
    assert not [*tmp_path.iterdir()]


def test_what_is_quantized_already_is_refused(tmp_path: Path) -> None:
    path = save_gguf(small_checkpoint(), tmp_path / "m.gguf", mixture=MIXTURES["q8_0"])
    message = r"m\.gguf: has weights in Q8_0 already and would lose once more: .*ptir convert"
    with pytest.raises(UsageError, match=message):
        save_gguf(open_checkpoint(path), tmp_path / "n.gguf", mixture=MIXTURES["q4_0"])
    assert [*tmp_path.iterdir()] == [path]


def test_an_existing_file_and_a_family_without_a_row_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"before")
    with pytest.raises(CheckpointError, match="exists already; give another name, or overwrite"):
        save_gguf(small_checkpoint(), path, mixture=MIXTURES["q8_0"])
    assert path.read_bytes() == b"before"
    other = replace(open_checkpoint(DEMO), config={"model_type": "mistral"})
    with pytest.raises(CheckpointError):
        save_gguf(other, tmp_path / "n.gguf", mixture=MIXTURES["q8_0"])
    assert [*tmp_path.iterdir()] == [path]
