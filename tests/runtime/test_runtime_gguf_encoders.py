"""GGUF files of encoders: the vectors and scores of the folders they are made of, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

import gguf_encoders
import image_models
import ptir
import text_models
from ptir.checkpoint import Checkpoint, open_checkpoint, save_folder
from ptir.checkpoint.gguf.mixtures import MIXTURES
from ptir.errors import CheckpointError, UsageError
from ptir.params.source import ArraySource
from ptir.runtime import TextModel
from ptir.runtime.gguf_file import save_gguf
from ptir.runtime.published import with_files
from ptir.runtime.specs import random_checkpoint
from running import REF, Command, command
from together import together

__all__ = ["command"]

CASES = text_models.cases()
FAMILIES = ("bert", "bert, texts", "roberta", "modernbert")
TEXTS = ["a cat", "dog.gy cat", "zebras and dogs"]


def checkpoint(name: str, **change: Any) -> Checkpoint:
    """A small model under Transformers' names; RoBERTa without its classifier of tokens."""
    case = CASES["roberta, tokens" if name == "roberta" else name]
    shapes, config = case["shapes"], dict(case["config"])
    if name == "roberta":
        shapes = {key: one for key, one in shapes.items() if not key.startswith("classifier")}
        config |= {"architectures": ["RobertaModel"]}
        config = {key: one for key, one in config.items() if "label" not in key}
    return image_models.checkpoint({**config, **change}, shapes)


def loaded(path: Path) -> TextModel:
    model = ptir.load_model(path, backend=REF)
    assert isinstance(model, TextModel)
    return model


def outputs(model: TextModel) -> np.ndarray[Any, Any]:
    """What the network gives for a padded batch of rows; beside the tokens it is anything."""
    ids, kinds, count = text_models.rows([13, 1, 6], 40)
    found = text_models.output(model, ids, kinds, count)
    return found if found.ndim == 2 else found[np.arange(13) < count[:, None]]


@together()
@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_gives_what_the_folder_gives_to_the_bit(name: str, tmp_path: Path) -> None:
    given = checkpoint(name)
    wanted = outputs(loaded(text_models.saved(given, tmp_path)))
    pooling = 4 if name == "bert, texts" else 1
    path = gguf_encoders.write(tmp_path / "m.gguf", given, pooling=pooling)
    assert np.array_equal(outputs(loaded(path)), wanted)


@together()
@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_becomes_a_file_and_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    given = open_checkpoint(text_models.saved(checkpoint(name), tmp_path))
    wanted = outputs(loaded(given.path))
    path = save_gguf(given, tmp_path / f"{given.path.name}.gguf")
    theirs = gguf_encoders.tensors(given.source, str(given.config["model_type"]))
    held = {one.name: one.data.reshape(one.shape[::-1]) for one in gguf.GGUFReader(path).tensors}
    assert held.keys() == theirs.keys()
    for key, value in held.items():
        assert np.array_equal(value, theirs[key]), key
    back = save_folder(with_files(open_checkpoint(path)), tmp_path / f"{path.stem}-back")
    for one in (path, back):
        assert np.array_equal(outputs(loaded(one)), wanted)


def test_random_models_whose_projections_are_one_matrix_are_written(tmp_path: Path) -> None:
    for name in ("bert-tiny-reranker", "roberta-tiny", "distilbert-tiny", "modernbert-tiny"):
        given = random_checkpoint(name, 0)
        folder = save_folder(given, tmp_path / name)
        path = save_gguf(given, tmp_path / f"{name}.gguf")
        found, wanted = (loaded(one).forward([5, 6, 7]) for one in (path, folder))
        assert np.array_equal(found, wanted), name


WAYS = {1: "mean", 2: "cls", 3: "lasttoken"}


def test_a_file_says_how_its_vectors_are_pooled_and_they_have_the_length_1(tmp_path: Path) -> None:
    given, rows = checkpoint("bert"), [[3, 9, 4], [5, 6, 7, 8]]
    for number, way in WAYS.items():
        path = gguf_encoders.write(tmp_path / f"{way}.gguf", given, pooling=number)
        model = loaded(path)
        assert model.says_pooling and model.said.pooling is not None
        assert model.said.pooling.modes == (way,)
        vectors = [loaded(path).forward(row) for row in rows]
        whole = {"mean": lambda v: v.mean(0), "cls": lambda v: v[0], "lasttoken": lambda v: v[-1]}
        wanted = np.array([whole[way](one) for one in vectors])
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        found = np.concatenate([model.computed(np.array([row], np.int32)) for row in rows])
        assert np.abs(found - wanted).max() < 1e-6
    plain = loaded(gguf_encoders.write(tmp_path / "none.gguf", given))
    assert not plain.says_pooling


def test_all_that_a_sentence_folder_says_comes_back(tmp_path: Path) -> None:
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate({"Transformer": "", "Pooling": "1_Pooling"}.items())
    ]
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode": ["mean", "max"]},
        "config_sentence_transformers.json": {"prompts": {"query": "dog "}},
        "sentence_bert_config.json": {"max_seq_length": 9},
    }
    folder = text_models.saved(checkpoint("bert"), tmp_path, **files)
    path = save_gguf(open_checkpoint(folder), tmp_path / "m.gguf")
    one, other = loaded(folder), loaded(path)
    assert other.said == one.said and other.limit == 9
    ids = np.array([[3, 9, 4, 8]], np.int32)
    assert np.array_equal(one.computed(ids), other.computed(ids))
    held = gguf.GGUFReader(path)
    assert held.fields["bert.pooling_type"].contents() == 0  # two ways have no number
    back = save_folder(with_files(open_checkpoint(path)), tmp_path / "back")
    assert json.loads((back / "1_Pooling/config.json").read_text()) == {
        "pooling_mode": ["mean", "max"]
    }


def test_a_projection_behind_the_pooling_is_refused(tmp_path: Path) -> None:
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(kinds.items())
    ]
    dense = {"in_features": 16, "out_features": 4}
    files = {"modules.json": modules, "1_Pooling/config.json": {}, "2_Dense/config.json": dense}
    arrays = {
        "sentence.dense.0.weight": np.ones((4, 16), np.float32),
        "sentence.dense.0.bias": np.ones(4, np.float32),
    }
    held = text_models.changed(checkpoint("bert"), **arrays)
    texts = {key: json.dumps(one) for key, one in files.items()}
    given = Checkpoint(**{**vars(held), "sentence_files": texts})
    with pytest.raises(CheckpointError, match="names a Dense module, which GGUF files of encoders"):
        save_gguf(given, tmp_path / "m.gguf")


CLASSES = {"id2label": {"0": "bad", "1": "fair", "2": "good"}}


def test_classes_keep_their_names(tmp_path: Path) -> None:
    given = checkpoint("bert, texts", **CLASSES)
    ours = save_gguf(given, tmp_path / "ours.gguf")
    more = {"classifier.output_labels": ["bad", "fair", "good"]}
    theirs = gguf_encoders.write(tmp_path / "theirs.gguf", given, pooling=4, more=more)
    for path in (ours, theirs):
        assert loaded(path).labels == ("bad", "fair", "good")
        assert loaded(path).capabilities == ("classify", "forward", "trace")
    key = gguf.GGUFReader(ours).fields["bert.classifier.output_labels"]
    assert key.contents() == ["bad", "fair", "good"]


def test_a_classifier_without_a_projection_scores_the_first_vector(tmp_path: Path) -> None:
    """So llama.cpp's converter writes a BERT's, and so that reads it."""
    given = checkpoint("bert, texts")
    path = gguf_encoders.write(tmp_path / "m.gguf", given, pooling=4, projected=False)
    bare = Checkpoint(**{**vars(given), "config": {**given.config, "architectures": ["BertModel"]}})
    kept = {n: given.source.read(n) for n in given.source.names() if not n.startswith("classifier")}
    plain = text_models.saved(
        Checkpoint(**{**vars(bare), "source": ArraySource(kept), "config": {
            key: one for key, one in bare.config.items() if "label" not in key
        }}), tmp_path,
    )  # fmt: skip
    first = loaded(plain).forward([4, 5, 6])[0]
    names = [one for one in given.source.names() if one.startswith("classifier")]
    weight, bias = (given.source.read(one) for one in sorted(names, reverse=True))
    wanted = weight.astype(np.float64) @ first + bias
    assert np.abs(loaded(path).forward([4, 5, 6]) - wanted).max() < 1e-5


def widened(size: int, inner: int) -> Checkpoint:
    """The small BERT with rows that blocks fill."""
    change = {"hidden_size": size, "intermediate_size": inner}
    shapes, wide = CASES["bert"]["shapes"], {16: size, 20: inner}
    case = {name: [wide.get(one, one) for one in shape] for name, shape in shapes.items()}
    return image_models.checkpoint({**CASES["bert"]["config"], **change}, case)


def test_blocks_run_as_they_are_stored(tmp_path: Path) -> None:
    given = widened(64, 96)
    kinds = {"attn_v": Kind.Q4_0}
    path = gguf_encoders.write(
        tmp_path / "m.gguf", given, kinds=lambda name: Kind.Q8_0 if "blk" in name else Kind.F32
    )
    model = loaded(path)
    held = set(model.store.source.names())
    assert {f"layers.0.{one}.weight:Q8_0.words" for one in ("attention.qkv", "up")} <= held
    decoded = {}
    for name in given.source.names():
        array = given.source.read(name)
        inside = name.startswith("encoder.layer") and array.ndim == 2
        decoded[name] = dequantize(quantize(array, Kind.Q8_0), Kind.Q8_0) if inside else array
    folder = text_models.saved(text_models.changed(given, **decoded), tmp_path)
    wanted = outputs(loaded(folder))
    assert np.abs(outputs(model) - wanted).max() <= 1e-5 * np.abs(wanted).max()
    # Parts of one product in several types are read as numbers.
    mixed = gguf_encoders.write(
        tmp_path / "mixed.gguf",
        given,
        kinds=lambda name: kinds.get(name.split(".")[2], Kind.Q8_0) if "blk" in name else Kind.F32,
    )
    held = set(loaded(mixed).store.source.names())
    assert "layers.0.attention.qkv.weight" in held
    assert "layers.0.up.weight:Q8_0.words" in held
    again = save_gguf(open_checkpoint(mixed), tmp_path / "again.gguf")
    one, other = ({t.name: t for t in gguf.GGUFReader(p).tensors} for p in (mixed, again))
    for name, tensor in one.items():
        assert other[name].tensor_type == tensor.tensor_type, name
        assert other[name].data.tobytes() == tensor.data.tobytes(), name


def test_quantized_files_of_a_folder(tmp_path: Path) -> None:
    given = widened(256, 256)
    wanted = outputs(loaded(text_models.saved(given, tmp_path)))
    for name, most, error in (("q8_0", "Q8_0", 0.03), ("q4_k_m", "Q4_K", 0.4)):
        path = save_gguf(given, tmp_path / f"{name}.gguf", mixture=MIXTURES[name])
        types = {one.name: one.tensor_type.name for one in gguf.GGUFReader(path).tensors}
        assert types["position_embd.weight"] == types["token_types.weight"] == "F32"
        assert {types[f"blk.{n}.attn_{one}.weight"] for n in range(2) for one in "qkv"} == {most}
        assert types["blk.1.ffn_down.weight"] == {"Q8_0": "Q8_0", "Q4_K": "Q6_K"}[most]
        model = loaded(path)
        assert np.abs(outputs(model) - wanted).max() < error * np.abs(wanted).max()
        assert f"layers.0.attention.qkv.weight:{most}.words" in model.store.source.names()


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "causal": ("bert", {"attention.causal": True}, "an encoder sees the whole text"),
    "pooling": ("bert", {"pooling_type": 7}, "one of 0, 1, 2, 3, 4 is implemented"),
    "labels": ("bert, texts", {"classifier.output_labels": ["a"]}, "the names of 3 classes"),
    "no size": ("bert", {"embedding_length": None}, "embedding_length': is missing"),
    "another size": ("bert", {"context_length": 17}, "of another shape or kind"),
    "scaling": ("modernbert", {"rope.scaling.type": "yarn"}, "only none is implemented"),
    "windows": (
        "modernbert",
        {"attention.sliding_window_pattern": [True, True, False]},
        "at even distances, from the first on",
    ),
}


@together()
@pytest.mark.parametrize("case", REFUSED)
def test_files_that_say_another_model_are_refused(case: str, tmp_path: Path) -> None:
    name, more, message = REFUSED[case]
    path = gguf_encoders.write(tmp_path / "m.gguf", checkpoint(name), more=more)
    with pytest.raises(CheckpointError, match=message):
        loaded(path)


def test_which_layers_have_a_window_may_be_a_list(tmp_path: Path) -> None:
    given = checkpoint("modernbert")
    windows = {"attention.sliding_window_pattern": [False, True, False]}
    paths = [
        gguf_encoders.write(tmp_path / "list.gguf", given, more=windows),
        gguf_encoders.write(tmp_path / "number.gguf", given),
    ]
    one, other = (outputs(loaded(path)) for path in paths)
    assert np.array_equal(one, other)


UNWRITTEN: dict[str, tuple[str, str]] = {
    "tokens": ("bert-tiny-tagger", "classifies tokens, and GGUF files have classifiers of texts"),
    "distances": ("mpnet-tiny", "model_type 'mpnet' cannot be written as GGUF"),
}


def test_encoders_that_no_file_can_say_are_refused(tmp_path: Path) -> None:
    for name, message in UNWRITTEN.values():
        with pytest.raises(CheckpointError, match=message):
            save_gguf(random_checkpoint(name, 0), tmp_path / "m.gguf")
    distilled = checkpoint("distilbert, texts")
    with pytest.raises(CheckpointError, match="its classifier's activation is relu"):
        save_gguf(distilled, tmp_path / "m.gguf")
    odd = checkpoint("modernbert", layer_types=["sliding_attention"] * 2 + ["full_attention"])
    with pytest.raises(CheckpointError, match="says kinds"):
        save_gguf(odd, tmp_path / "m.gguf")
    with pytest.raises(UsageError, match="an encoder, whose weights are not calibrated"):
        save_gguf(
            random_checkpoint("bert-tiny", 0),
            tmp_path / "m.gguf",
            mixture=MIXTURES["q8_0"],
            calibrate=lambda *given: pytest.fail("asked"),
        )
    assert not [*tmp_path.iterdir()]


def test_commands_take_files_of_encoders(tmp_path: Path, command: Command) -> None:
    words = text_models.WORDS
    for name, pooling in (("bert", 1), ("bert, texts", 4)):
        given = checkpoint(name, **(CLASSES if pooling == 4 else {}))
        wide = {key: given.source.read(key) for key in given.source.names()}
        rows = wide["embeddings.word_embeddings.weight" if pooling == 1 else
                    "bert.embeddings.word_embeddings.weight"]  # fmt: skip
        grown = np.resize(rows, (len(words), rows.shape[1]))
        key = next(one for one in wide if one.endswith("word_embeddings.weight"))
        given = Checkpoint(**{**vars(given), "config": {**given.config, "vocab_size": len(words)},
                              "source": ArraySource({**wide, key: grown})})  # fmt: skip
        more = {"classifier.output_labels": ["bad", "fair", "good"]} if pooling == 4 else {}
        gguf_encoders.write(
            tmp_path / f"{pooling}.gguf",
            given,
            pooling=pooling,
            more=more,
            vocabulary=lambda writer: gguf_encoders.words(writer, words),
        )
    done = command("embed", tmp_path / "1.gguf", "a cat", "--json")
    assert done.code == 0, done.err
    vector = done.value["texts"][0]["embedding"]
    assert abs(np.linalg.norm(vector) - 1) < 1e-5
    assert "does not say how a text" not in done.err
    done = command("rerank", tmp_path / "1.gguf", "a cat", "dog", "cat", "--json")
    assert done.code == 0 and done.value["by"] == "cosine", done.err
    done = command("classify", tmp_path / "4.gguf", "a cat", "--json")
    assert done.code == 0, done.err
    assert {one["name"] for one in done.value["texts"][0]["labels"]} == {"bad", "fair", "good"}
    done = command("quantize", tmp_path / "1.gguf", tmp_path / "q.gguf", "--format", "q8_0")
    assert done.code == 0, done.err
    done = command("convert", tmp_path / "1.gguf", tmp_path / "folder")
    assert done.code == 0, done.err
    done = command("embed", tmp_path / "folder", "a cat", "--json")
    assert np.allclose(done.value["texts"][0]["embedding"], vector)
