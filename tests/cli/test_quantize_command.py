"""``ptir quantize``: what it writes and says, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptir.checkpoint.gguf import GgufFile
from ptir.checkpoint.gguf.mixtures import MIXTURES
from ptir.cli.quantize import METHODS, ROUNDING
from ptir.runtime.calibration import METHODS as CALIBRATED
from ptir.weights import QUANTIZERS
from running import Command, command

__all__ = ["command"]

TEXT = """First Citizen:
Before we proceed any further, hear me speak.

All:
Speak, speak.

First Citizen:
You are all resolved rather to die than to famish?

All:
Resolved. resolved.
"""


def test_a_quantized_model_predicts_a_text_nearly_as_well(tmp_path: Path, command: Command) -> None:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    options = (tmp_path / "text.txt", "--window", 64, "--stride", 32, "--json")
    before = command("eval", "demo", *options).value["nll"]
    for name, off in (("q8_0", 0.01), ("q4_0", 0.3)):
        path = tmp_path / f"{name}.gguf"
        done = command("quantize", "demo", path, "--format", name, "--method", "rtn")
        assert done.code == 0 and not done.out
        assert f"wrote {path}: " in done.err and " bits a weight" in done.err
        assert abs(command("eval", path, *options).value["nll"] - before) < off


def test_json_of_quantize_says_what_the_file_holds(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "m.gguf"
    value = command("quantize", "demo", path, "--format", "q4_0", "--json").value
    assert value.pop("bits_per_weight") == pytest.approx(5.38, abs=0.01)
    assert value == {
        "path": str(path),
        "format": "q4_0",
        "method": "rtn",
        "types": {"Q8_0": 1, "F32": 51, "Q4_0": 24},
        "replaced": [
            {"wanted": "Q6_K", "type": "Q8_0", "inputs": 192, "tensors": ["token_embd.weight"]}
        ],
        "tensors": 76,
        "bytes": sum(one.nbytes for one in GgufFile(path).tensors.values()),
    }
    shown = command("inspect", path, "--json").value
    assert shown["dtypes"] == ["Q4_0", "Q8_0", "f32"] and shown["tokenizer"]


def test_matrices_that_get_another_type_are_told(tmp_path: Path, command: Command) -> None:
    how = ("random:llama-tiny", tmp_path / "m.gguf", "--format", "q4_k_m")
    done = command("quantize", *how)
    *lines, _ = done.err.splitlines()
    why = " are Q5_0 and not Q4_K: rows of 64 weights are no whole blocks of 256"
    assert f"18 matrices (token_embd.weight, ...){why}" in lines
    groups = command("quantize", *how, "--overwrite", "--json").value["replaced"]
    tensors = GgufFile(tmp_path / "m.gguf").tensors
    matrices = {name for name, one in tensors.items() if len(one.shape) > 1}
    assert {name for group in groups for name in group["tensors"]} == matrices
    for group in groups:
        for name in group["tensors"]:
            assert tensors[name].type.name == group["type"] != group["wanted"]
            assert tensors[name].shape[-1] == group["inputs"]
    fits = command("quantize", *how[:2], "--format", "q8_0", "--overwrite", "--json").value
    assert fits["replaced"] == []


def test_help_lists_the_formats(command: Command) -> None:
    told = " ".join(command("quantize", "--help").out.split())
    assert all(name in told for name in (*MIXTURES, *QUANTIZERS))


def test_an_existing_file_is_replaced_only_when_asked(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"before")
    done = command("quantize", "demo", path, "--format", "q8_0")
    assert done.code == 1 and "exists already; give another name, or overwrite" in done.err
    assert path.read_bytes() == b"before"
    done = command("quantize", "demo", path, "--format", "q8_0", "--overwrite")
    assert done.code == 0 and path.read_bytes().startswith(b"GGUF")


REFUSED = {
    "format": (
        "m.gguf",
        "q4",
        "unknown format 'q4' (nearest: q4_k, q4_1, q4_0); known: int4, int8,",
    ),
    "floats": ("m.gguf", "F16", "is no quantization; write floats with `ptir convert demo "),
    "file": ("m.gguf", "int4", "m.gguf: format 'int4' is one of folders: name one"),
    "folder": ("m", "q8_0", "m: format 'q8_0' is one of GGUF files: call it NAME.gguf"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_quantize_refuses(case: str, tmp_path: Path, command: Command) -> None:
    out, format, message = REFUSED[case]
    done = command("quantize", "demo", tmp_path / out, "--format", format)
    assert done.code == 2 and message in done.err and not (tmp_path / out).exists()


def test_a_folder_is_written_for_whole_numbers_in_words(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "folder"
    value = command("quantize", "random:llama-tiny", path, "--format", "int4", "--json").value
    assert (value["types"], value["tensors"]) == ({"f32": 9, "ct-int4-g32": 21}, 30)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    options = (tmp_path / "text.txt", "--window", 32, "--json")
    before, after = (command("eval", one, *options).value for one in ("random:llama-tiny", path))
    assert after["counted"] == before["counted"] and abs(after["nll"] - before["nll"]) < 0.05
    done = command("quantize", "demo", tmp_path / "other", "--format", "int8")
    assert done.code == 4 and "'gpt2' stores weights as [inputs, outputs]" in done.err


def test_methods_are_those_that_can_be_chosen(tmp_path: Path, command: Command) -> None:
    assert set(METHODS) == {ROUNDING, *CALIBRATED}
    done = command("quantize", "demo", tmp_path / "m.gguf", "--format", "q8_0", "--method", "gptx")
    assert done.code == 2 and "'gptx' is not one of 'rtn', 'gptq', 'awq'" in done.err


@pytest.mark.parametrize("method", CALIBRATED)
def test_a_model_is_quantized_for_a_text(tmp_path: Path, command: Command, method: str) -> None:
    text, path = tmp_path / "text.txt", tmp_path / "m.gguf"
    text.write_text(TEXT * 3, encoding="utf-8")
    how = ("--format", "q4_0", "--method", method, "--calibration", text, "--window", 32)
    done = command("quantize", "random:llama-tiny", path, *how, "--samples", 4)
    assert done.code == 0 and not done.out
    first, *rest = (line for line in done.err.splitlines()[-4:] if " and not " not in line)
    assert first.startswith("calibrated 22 of 23 matrices on 4 window(s), 128 tokens, in ")
    assert rest[0] == (
        "rounded to nearest: embed_tokens.weight: its rows are looked up, or it is read by no"
        " product of the program"
    )
    assert rest[1].startswith(f"wrote {path}: ")
    told = ("--overwrite", "--samples", 2, "--json")
    value = command("quantize", "random:llama-tiny", path, *how, *told).value
    found = value["calibration"]
    assert (value["method"], found["windows"], found["tokens"]) == (method, 2, 64)
    assert len(found["calibrated"]) == 22 and list(found["rounded"]) == ["embed_tokens.weight"]
    assert found["seconds"] > 0 and not found["unreached"]


MISUSED = {
    "no text": (("--method", "gptq"), "--method gptq needs a text: give --calibration FILE"),
    "rtn": (("--samples", 3), "--samples is for --method gptq and awq; rtn reads no text"),
    "order": (
        ("--method", "awq", "--calibration", __file__, "--no-act-order"),
        "--act-order is for --method gptq; awq has no order of inputs",
    ),
    "window": (
        ("--method", "awq", "--calibration", __file__, "--window", 300),
        "window 300: must be 2 to 256, the context of the model",
    ),
}


@pytest.mark.parametrize("case", MISUSED)
def test_options_of_calibration_are_refused(tmp_path: Path, command: Command, case: str) -> None:
    how, message = MISUSED[case]
    done = command("quantize", "demo", tmp_path / "m.gguf", "--format", "q4_0", *how)
    assert done.code == 2 and message in done.err and not (tmp_path / "m.gguf").exists()


def test_formats_and_suffixes_are_known_in_any_case(tmp_path: Path, command: Command) -> None:
    done = command("quantize", "demo", tmp_path / "d.GGUF", "--format", "Q8_0")
    assert done.code == 0 and (tmp_path / "d.GGUF").read_bytes()[:4] == b"GGUF"
    assert command("convert", "demo", tmp_path / "e.GGUF").code == 0
    assert (tmp_path / "e.GGUF").is_file()


def test_a_mixture_becomes_a_folder(tmp_path: Path, command: Command) -> None:
    """All but what is looked up, chooses experts, or is the output."""
    path = tmp_path / "q"
    value = command("quantize", "random:mixtral-tiny", path, "--format", "int4", "--json").value
    assert value["types"] == {"f32": 12, "ct-int4-g32": 3 * (4 + 3 * 5)}
    run = command("run", path, "--tokens", "1,2,3", "-n", 4, "--temp", 0, "--json").value
    assert len(run["token_ids"]) == 4


@pytest.mark.parametrize("name", ["random:granitemoe-tiny", "random:gpt_oss-tiny"])
def test_a_folder_of_experts_in_one_tensor_is_refused(
    name: str, tmp_path: Path, command: Command
) -> None:
    """Others would load random ones."""
    done = command("quantize", name, tmp_path / "q", "--format", "int4")
    assert done.code == 4 and "stores all experts of a layer as one tensor" in done.err
    assert "write a GGUF file (--format q4_k_m)" in done.err and not (tmp_path / "q").exists()


def test_words_become_a_file_of_floats_where_that_is_asked(
    tmp_path: Path, command: Command
) -> None:
    folder, file = tmp_path / "q", tmp_path / "q.gguf"
    assert command("quantize", "random:llama-tiny", folder, "--format", "int4").code == 0
    refused = command("convert", folder, file)
    assert refused.code == 1 and not file.exists()
    assert "has weights in ct-int4-g32, which GGUF files do not have" in refused.err
    assert "--dtype f16" in refused.err
    assert command("convert", folder, file, "--dtype", "f32").code == 0
    tokens = ("--tokens", "1,2,3", "-n", 8, "--temp", 0, "--json")
    found = [command("run", model, *tokens).value["token_ids"] for model in (folder, file)]
    assert found[0] == found[1] and len(found[0]) == 8
