"""GGUF files as models: what each is told by, what it lacks, and what nothing here can run."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from gguf_bytes import (
    ARRAY,
    F32,
    I32,
    STRING,
    U32,
    entry,
    items,
    mutated,
    pair,
)
from gguf_bytes import (
    gguf as raw_file,
)
from gguf_models import kind_of_matrices, write
from ptir.checkpoint import Checkpoint, DescribedTokenizer, open_checkpoint
from ptir.checkpoint.gguf import LAYOUTS, GgufFile
from ptir.checkpoint.gguf.architectures.layout import NUMBERS
from ptir.errors import CheckpointError
from ptir.params import stored_formats
from ptir.runtime.load import described
from running import llama_folder, small_checkpoint

Change = dict[str, Any]


def llama(folder: Path) -> Checkpoint:
    return open_checkpoint(llama_folder(folder))


REFUSED = {
    "granitemoe": {f"blk.{{bid}}.ffn_{what}_shexp" for what in ("gate", "up", "down")},
    "lfm2": {"dense_2"},
}
"""Tensors of models that are refused: experts for all tokens, embeddings of texts."""


@pytest.mark.parametrize("architecture", LAYOUTS)
def test_names_of_tensors_are_those_of_the_witness(architecture: str) -> None:
    """Every tensor that ``gguf`` knows of an architecture is one of ours, but what no file has."""
    kinds = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}
    known = {gguf.TENSOR_NAMES[kind] for kind in gguf.MODEL_TENSORS[kinds[architecture]]}
    experts = {
        f"blk.{{bid}}.ffn_{what}" for what in ("gate_inp", "gate_exps", "down_exps", "up_exps")
    }
    layout = LAYOUTS[architecture]
    ours = set(layout.outside) | {f"blk.{{bid}}.{name}" for name in layout.inside}
    others = (layout.ignored, layout.fused, layout.stacked, layout.two_norms)
    ours |= {f"blk.{{bid}}.{name}" for names in others for name in names}
    ours |= {
        f"blk.{{bid}}.{name.removesuffix(f'.{kind}')}"
        for name in layout.named
        for kind in ("weight", "bias")
        if name.endswith(kind) or "." not in name
    }
    ours |= {name.removesuffix(".weight") for name in NUMBERS} | REFUSED.get(architecture, set())
    ours |= {"blk.{bid}.ffn_norm"} if architecture == "phi2" else set()  # its blocks have one norm
    ours |= {"output_norm"} if architecture == "bert" else set()  # its converter writes none
    if architecture == "phi3":  # whose converter writes them as one
        ours |= {f"blk.{{bid}}.attn_{one}" for one in "qkv"}
    assert known - experts <= ours
    assert set(layout.outside) <= known


CONFIGS: dict[str, tuple[Change, str]] = {
    "no layers": ({"block_count": None}, r"key 'llama.block_count': is missing; it must be an int"),
    "many layers": (
        {"block_count": 3},
        "key 'llama.block_count': 3: tensors of layer 2 are not st",
    ),
    "huge": (
        {"block_count": 1 << 31},
        r"key 'llama.block_count': 2147483648 must be an integer >= 1",
    ),
    "no width": (
        {"embedding_length": 0},
        r"key 'llama.embedding_length': 0 must be an integer >= 1",
    ),
    "text": (
        {"embedding_length": "wide"},
        r"key 'llama.embedding_length': 'wide' must be an in",
    ),
    "layers differ": (
        {"feed_forward_length": [64, 32]},
        r"key 'llama.feed_forward_length': \[64, 32\] differs between layers",
    ),
    "no epsilon": (
        {"attention.layer_norm_rms_epsilon": None},
        "key 'llama.attention.layer_norm_rms_epsilon': is missing; it must be a number > 0",
    ),
    "epsilon": (
        {"attention.layer_norm_rms_epsilon": float("nan")},
        "epsilon': nan must be a number",
    ),
    "values": (
        {"attention.value_length": 16},
        "key 'llama.attention.value_length': 16: heads of 8 must be read and rotated whole",
    ),
    "partial": (
        {"rope.dimension_count": 4},
        "key 'llama.rope.dimension_count': 4: heads of 8 must",
    ),
    "no head size": ({"attention.head_count": 5}, "key 'llama.attention.key_length': is missing"),
    "experts": ({"expert_count": 8}, "key 'llama.expert_used_count': is missing"),
    "vocabulary": ({"vocab_size": 96}, "key 'llama.vocab_size': 96: the embedding has 97 rows"),
    "yarn": (
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.yarn_attn_factor": 0.5,
        },
        "key 'llama.rope.scaling.yarn_attn_factor': .*: only 1 is implemented with yarn",
    ),
    "longrope": (
        {"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0},
        "key 'llama.rope.scaling.type': 'longrope': this scaling of positions is not implemented",
    ),
    "scaling": ({"rope.scaling.type": 3}, "key 'llama.rope.scaling.type': 3 must be a string"),
    "theta": ({"rope.freq_base": -1.0}, "key 'llama.rope.freq_base': -1.0 must be a number > 0"),
    "rows": (
        {"attention.head_count": 2, "attention.key_length": 8},
        r"does not fit the model: .* of another shape.*self_attn.q_proj.weight is f32\[32,32\]",
    ),
    "odd rows": (
        {"attention.head_count": 3, "attention.head_count_kv": 3, "attention.key_length": 8},
        r"tensor 'blk.0.attn_q.weight': F32\[32,32\] has 32 rows; 32 from 0 on of 3 heads, two",
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_configuration_that_cannot_be_run_is_refused_by_its_key(
    tmp_path: Path, case: str
) -> None:
    keys, message = CONFIGS[case]
    written = write(tmp_path / "m.gguf", llama(tmp_path), keys=keys)
    with pytest.raises(CheckpointError, match=message):
        described(open_checkpoint(written.path))


def test_values_for_each_layer_count_as_one_where_they_are_equal(tmp_path: Path) -> None:
    keys = {"feed_forward_length": [64, 64], "attention.head_count_kv": [2, 2]}
    found = open_checkpoint(write(tmp_path / "m.gguf", llama(tmp_path), keys=keys).path).config
    assert (found["intermediate_size"], found["num_key_value_heads"]) == (64, 2)
    assert type(found["intermediate_size"]) is int


FOREIGN: dict[str, tuple[list[bytes], str]] = {
    "adapter": (
        [pair("general.type", STRING, "adapter"), pair("adapter.type", STRING, "lora")],
        "is a LoRA adapter, which changes a model and is none; give the model",
    ),
    "mmproj": ([pair("general.type", STRING, "mmproj")], r"is a projector of images .*\(mmproj\)"),
    "old mmproj": (
        [pair("general.architecture", STRING, "clip")],
        r"is a projector of images or sound \(mmproj\)",
    ),
    "imatrix": (
        [pair("general.type", STRING, "imatrix")],
        "is an importance matrix, which quantiz",
    ),
    "type": ([pair("general.type", STRING, "soup")], "key 'general.type': 'soup'; only a 'model'"),
    "no text": ([pair("general.type", ARRAY, items(F32, ()))], r"key 'general.type': array\(\[\]"),
    "no architecture": (
        [],
        "key 'general.architecture' is missing: .*; gpt2, llama, .* can be",
    ),
    "architecture's type": (
        [pair("general.architecture", U32, 3)],
        "key 'general.architecture' 3 must be a string",
    ),
    "architecture": (
        [pair("general.architecture", STRING, "zamba")],
        "key 'general.architecture': 'zamba' .*is not implemented; gpt2, llama, qwen2, qwe",
    ),
    "nearly": (
        [pair("general.architecture", STRING, "qwen")],
        r"'qwen' \(nearest: qwen3, qwen2, qwen35\) is not implemented",
    ),
    "no embedding": (
        [pair("general.architecture", STRING, "llama")]
        + [pair(f"llama.{key}", U32, 1) for key in ("embedding_length", "attention.head_count")],
        "tensor 'token_embd.weight' is missing; a matrix of tokens by width is needed",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_is_no_model_that_runs_is_named_as_what_it_is(tmp_path: Path, case: str) -> None:
    keys, message = FOREIGN[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_file(keys, [entry("t")], bytes(256)))
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_vocabulary_without_weights_says_so(tmp_path: Path) -> None:
    keys = [pair("general.architecture", STRING, "llama")]
    keys += [pair("tokenizer.ggml.tokens", ARRAY, items(STRING, ("a", "b")))]
    (tmp_path / "ggml-vocab.gguf").write_bytes(raw_file(keys))
    with pytest.raises(
        CheckpointError, match="holds a vocabulary and no tensors; give the file wi"
    ):
        open_checkpoint(tmp_path / "ggml-vocab.gguf")


def test_types_that_cannot_be_decoded_are_refused_by_name(tmp_path: Path) -> None:
    checkpoint = llama(tmp_path)
    content = write(tmp_path / "m.gguf", checkpoint, kind_of_matrices(Kind.Q8_0)).path.read_bytes()
    name = b"blk.0.attn_v.weight"
    at = content.index(name) + len(name) + 4 + 16
    rows = int.from_bytes(content[at - 8 : at], "little")
    assert (content[at], rows) == (Kind.Q8_0, 16)
    for kind in (Kind.IQ2_XXS, Kind.TQ1_0):
        (tmp_path / "x.gguf").write_bytes(content[:at] + bytes([kind]) + content[at + 1 :])
        with pytest.raises(
            CheckpointError, match="rows of 32 elements are not whole blocks of 256"
        ):
            open_checkpoint(tmp_path / "x.gguf")


def test_a_type_that_is_known_by_its_size_alone_is_refused_where_it_is_needed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.gguf"
    keys = [pair("general.architecture", STRING, "llama")]
    for key in ("embedding_length", "context_length", "feed_forward_length", "block_count"):
        keys.append(pair(f"llama.{key}", U32, 256 if key != "block_count" else 1))
    keys.append(pair("llama.attention.head_count", U32, 4))
    keys.append(pair("llama.attention.layer_norm_rms_epsilon", F32, 1e-5))
    tensors = [entry("token_embd.weight", (256, 2), 9), entry("blk.0.x.weight", (1,), 0, 640)]
    path.write_bytes(raw_file(keys, tensors, bytes(768)))
    message = "tensor 'token_embd.weight': is Q8_1, which cannot be decoded; F32, F16, Q4_0"
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(path)


def test_tensors_that_the_family_lacks_are_named(tmp_path: Path) -> None:
    norm = {"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}
    clash = {"layers.0.self_attn.q_proj.weight": np.ones((1, 1), np.float32)}
    checkpoint = llama(tmp_path)
    for extra, name in ((norm, "blk.0.attn_q_norm.weight"), (clash, "not a parameter: layers.0")):
        written = write(tmp_path / "m.gguf", checkpoint, extra=extra)
        with pytest.raises(
            CheckpointError, match=rf"1 tensors not expected \({name}.*the file's meta"
        ):
            described(open_checkpoint(written.path))


def test_factors_of_frequencies_must_be_one_for_each_pair(tmp_path: Path) -> None:
    checkpoint = llama(tmp_path)
    for factors, message in (
        (np.ones(3, np.float32), r"tensor 'rope_freqs.weight': F32\[3\]; F32\[4\] is needed"),
        (
            np.float32([1, 2, np.nan, 1]),
            r"'rope_freqs.weight': number 2 is nan; it must be a number",
        ),
        (
            np.float32([1, 2, 0, 1]),
            r"'rope_freqs.weight': number 2 is 0.0; it must be a number > 0",
        ),
    ):
        extra = {"rope_freqs.weight": factors}
        written = write(tmp_path / "m.gguf", checkpoint, extra=extra)
        with pytest.raises(CheckpointError, match=message):
            described(open_checkpoint(written.path))


def test_the_tokenizer_and_the_ends_of_texts_come_from_the_metadata(tmp_path: Path) -> None:
    def vocabulary(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list(["a", "b", "c"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_eot_token_id(2)
        writer.add_chat_template("{{ x }}")

    checkpoint = small_checkpoint(vocab_size=3)
    found = open_checkpoint(write(tmp_path / "m.gguf", checkpoint, vocabulary=vocabulary).path)
    assert (found.config["bos_token_id"], found.config["eos_token_id"]) == (0, [1, 2])
    assert found.tokenizer_config == {"chat_template": "{{ x }}"}
    assert isinstance(found.tokenizer, DescribedTokenizer) and found.tokenizer.beside is None
    plain = found.tokenizer.vocabulary.plain()
    assert plain["tokenizer.ggml.tokens"] == ["a", "b", "c"]
    (tmp_path / "tokenizer.json").write_text("{}")
    again = open_checkpoint(tmp_path / "m.gguf").tokenizer
    assert isinstance(again, DescribedTokenizer) and again.beside == "{}"


@pytest.mark.parametrize("count", [96, 98])
def test_a_vocabulary_has_a_token_for_each_row_of_the_embedding(tmp_path: Path, count: int) -> None:
    def vocabulary(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list([f"t{number}" for number in range(count)])

    written = write(tmp_path / "m.gguf", llama(tmp_path), vocabulary=vocabulary)
    message = (
        f"^{written.path}: key 'tokenizer.ggml.tokens': {count} tokens, and tensor 'token_embd"
    )
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(written.path)


def test_stored_formats_are_those_of_the_file(tmp_path: Path) -> None:
    written = write(tmp_path / "m.gguf", llama(tmp_path), kind_of_matrices(Kind.Q4_0))
    source = open_checkpoint(written.path).source
    formats = stored_formats(source)
    assert {format.name for format in formats.values()} == {"Q4_0"}
    assert "norm.weight" not in formats and "layers.1.mlp.up_proj.weight" in formats
    for name, wanted in written.weights.items():
        read = source.read(name)
        assert not read.flags.writeable
        assert np.array_equal(read, wanted), name
        source.release(name)


def test_a_file_that_is_cut_while_it_is_in_use_is_an_error(tmp_path: Path) -> None:
    written = write(tmp_path / "m.gguf", llama(tmp_path))
    source = open_checkpoint(written.path).source
    os.truncate(written.path, 3000)
    with pytest.raises(
        CheckpointError, match=r"the file was cut from .* to 3000 bytes while it was"
    ):
        source.read("norm.weight")


def test_mutated_models_open_or_are_refused(tmp_path: Path) -> None:
    """More of them: the module as a script, with ``tests`` on the path and a count."""
    ends = fuzz(tmp_path, int(os.environ.get("PTIR_SLICE", "0")), 250)
    assert ends["refused"] > 60


def fuzz(folder: Path, seed: int, count: int) -> dict[str, int]:
    """Open mutated models; anything but a model or a ``CheckpointError`` is raised."""
    rng, ends = random.Random(seed), {"refused": 0, "opened": 0}
    right = [_header_and_rest(folder, make) for make in (llama, lambda _: small_checkpoint())]
    path = folder / "x.gguf"
    for header, rest in right:
        path.write_bytes(header + rest)
        described(open_checkpoint(path))
    for number in range(count):
        header, rest = rng.choice(right)
        path.write_bytes(mutated(header, rng) + rest)
        try:
            described(open_checkpoint(path))
            ends["opened"] += 1
        except CheckpointError:
            ends["refused"] += 1
        except Exception as error:
            error.add_note(f"seed {seed}, number {number}")
            raise
    return ends


def _header_and_rest(folder: Path, make: Callable[[Path], Checkpoint]) -> tuple[bytes, bytes]:
    extra = {"rope_freqs.weight": np.full(4, 2, np.float32)} if make is llama else {}
    path = write(folder / "m.gguf", make(folder), kind_of_matrices(Kind.Q8_0), extra=extra).path
    start = min(tensor.start for tensor in GgufFile(path).tensors.values())
    content = path.read_bytes()
    return content[:start], content[start:]


def test_numbers_of_the_wrong_kind_in_split_keys_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for keys, message in (
        ([pair("split.count", STRING, "2")], "key 'split.count': '2' must be a whole number"),
        ([pair("split.count", I32, 2)], r"key 'split.count': 2 parts, so the file's name must end"),
        (
            [pair("split.tensors.count", I32, 2)],
            "key 'split.tensors.count': 2 tensors; the 1 parts",
        ),
    ):
        path.write_bytes(raw_file(keys, [entry("t")], bytes(256)))
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(path)


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
        print(fuzz(Path(name), int(sys.argv[2]) if len(sys.argv) > 2 else 0, wanted))
