"""Folders of sentence-transformers: what follows the model, against NumPy in f64, and bad input.

Folders that sentence-transformers wrote are tests/parity's matter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import image_models
import ptir
import text_models
from ptir.checkpoint import open_checkpoint, save_folder, save_single_file
from ptir.errors import CheckpointError
from ptir.runtime import TextModel
from running import REF

CASE = text_models.cases()["bert"]
WORDS = "\n".join(text_models.WORDS[:40]) + "\n"
TEXTS = ["a bad cab", "c", "def abc", "fade"]
TYPE = "sentence_transformers.models."
POOLED: dict[str, Any] = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "mean_sqrt_len_tokens": lambda x: x.sum(axis=0) / np.sqrt(len(x)),
    "weightedmean": lambda x: np.average(x, axis=0, weights=np.arange(len(x)) + 1.0),
    "lasttoken": lambda x: x[-1],
}
"""What each mode makes of the vectors f64[T,D] of a text's tokens."""
LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def modules(*kinds: str, model: str = "") -> list[dict[str, str]]:
    names = [("Transformer", model), *((kind, f"{n}_{kind}") for n, kind in enumerate(kinds, 1))]
    return [
        {"name": str(n), "path": path, "type": TYPE + kind} for n, (kind, path) in enumerate(names)
    ]


def folder(place: Path, rows: Any, files: dict[str, Any]) -> Path:
    given = image_models.checkpoint(CASE["config"], CASE["shapes"])
    return text_models.saved(given, place, **{"modules.json": rows, "vocab.txt": WORDS, **files})


def loaded(path: Path) -> TextModel:
    model = ptir.load_model(path, backend=REF)
    assert isinstance(model, TextModel)
    return model


def vectors(model: TextModel) -> list[np.ndarray[Any, Any]]:
    """The vectors of each text's tokens, f64[T,D]."""
    rows = model.encode_texts(TEXTS)
    return [model.forward(list(row.ids)).astype(np.float64) for row in rows]


def dense(folder: Path, inputs: int, outputs: int) -> tuple[Any, Any]:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(5)
    weight = rng.standard_normal((outputs, inputs)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "model.safetensors")
    return weight.astype(np.float64), bias.astype(np.float64)


def assert_alike(found: Any, wanted: Any) -> None:
    wanted = np.stack(wanted)
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_every_way_to_pool_is_what_its_name_says(tmp_path: Path) -> None:
    path = folder(tmp_path, modules("Pooling"), {"1_Pooling/config.json": {}})
    for legacy, mode in LEGACY.items():
        for said in ({legacy: True}, {"pooling_mode": mode, "embedding_dimension": 16}):
            (path / "1_Pooling/config.json").write_text(json.dumps(said))
            model = loaded(path)
            assert_alike(model.embed(TEXTS), [POOLED[mode](x) for x in vectors(model)])
    every = dict.fromkeys(LEGACY, True)
    (path / "1_Pooling/config.json").write_text(json.dumps(every))
    model = loaded(path)
    found = [np.concatenate([one(x) for one in POOLED.values()]) for x in vectors(model)]
    assert_alike(model.embed(TEXTS), found)


def test_projection_and_norm_follow_in_their_order_and_survive_saving(tmp_path: Path) -> None:
    said = {"in_features": 16, "out_features": 5, "bias": True}
    path = folder(
        tmp_path,
        modules("Pooling", "Dense", "Normalize"),
        {
            "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
            "2_Dense/config.json": said,
            "sentence_bert_config.json": {"max_seq_length": 12},
            "config_sentence_transformers.json": {
                "prompts": {"query": "a ", "document": "b "},
                "default_prompt_name": "query",
            },
        },
    )
    weight, bias = dense(path / "2_Dense", 16, 5)
    model = loaded(path)
    assert model.limit == 12 and model.says_pooling

    def wanted(x: Any) -> Any:
        made = np.tanh(x.mean(axis=0) @ weight.T + bias)
        return made / np.linalg.norm(made)

    plain = model.embed(TEXTS, prompt="document")
    model.said.prompts["document"] = ""  # type: ignore[index]
    assert_alike(model.embed(TEXTS, prompt="document"), [wanted(x) for x in vectors(model)])
    asked = model.embed([f"a {one}" for one in TEXTS], prompt="document")
    np.testing.assert_array_equal(model.embed(TEXTS), asked)
    assert np.abs(plain - asked).max() > 1e-3
    again = save_folder(open_checkpoint(path), tmp_path / "again")
    assert (again / "2_Dense" / "model.safetensors").is_file()
    alone = save_single_file(open_checkpoint(path), tmp_path / "alone.safetensors")
    for other in (again, alone):
        np.testing.assert_array_equal(loaded(other).embed(TEXTS), model.embed(TEXTS))
    save_folder(open_checkpoint(path), again, overwrite=True)


def test_a_model_in_a_folder_of_its_own_is_found(tmp_path: Path) -> None:
    path = folder(tmp_path, modules("Pooling"), {"1_Pooling/config.json": {}})
    wanted = loaded(path).embed(TEXTS)
    inner = path / "0_Transformer"
    inner.mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (path / name).rename(inner / name)
    (path / "modules.json").write_text(json.dumps(modules("Pooling", model="0_Transformer")))
    (inner / "sentence_roberta_config.json").write_text('{"max_seq_length": 9}')
    model = loaded(path)
    assert model.limit == 9
    np.testing.assert_array_equal(model.embed(TEXTS), wanted)
    again = save_folder(open_checkpoint(path), tmp_path / "again")
    np.testing.assert_array_equal(loaded(again).embed(TEXTS), wanted)


POOLING: dict[str, Any] = {"1_Pooling/config.json": {}}
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    ({}, {}, "modules.json: must be a list of 1 to 32"),
    ([], {}, "modules.json: must be a list of 1 to 32"),
    ([{"path": ""}], {}, "module 0 must have a type and a path"),
    ("[", {}, "modules.json is not valid JSON"),
    (modules("Pooling", model="../elsewhere"), POOLING, "'../elsewhere' must name a folder inside"),
    (modules("Pooling", model="0_T"), POOLING, "module 0: '0_T' is no folder"),
    (modules("Pooling", model="vocab.txt"), POOLING, "module 0: 'vocab.txt' is no folder"),
    (modules("Pooling", model="/etc"), POOLING, "'/etc' must name a folder inside"),
    (modules("Pooling", "LSTM"), POOLING, "'sentence_transformers.models.LSTM', which is not impl"),
    ([{"path": "", "type": "os.Transformer"}], {}, "'os.Transformer', which is not implemented"),
    (modules("Normalize"), {}, "must name one Pooling, behind the model"),
    (modules("Pooling"), {}, "1_Pooling/config.json is missing"),
    (
        modules("Pooling"),
        {"1_Pooling/config.json": {"pooling_mode": "median"}},
        "pooling_mode 'median' is not implemented; cls, max, mean",
    ),
    (
        modules("Pooling"),
        {"1_Pooling/config.json": {"pooling_mode": [["mean"]]}},
        r"pooling_mode \[\['mean'\]\] is not implemented",
    ),
    (
        modules("Pooling"),
        {"1_Pooling/config.json": {"include_prompt": False}},
        "include_prompt false is not implemented",
    ),
    (
        modules("Pooling", "Dense"),
        {**POOLING, "2_Dense/config.json": {"in_features": 16, "out_features": 0}},
        "2_Dense: has no model.safetensors",
    ),
    (
        modules("Pooling"),
        {**POOLING, "sentence_bert_config.json": {"max_seq_length": -1}},
        "sentence_bert_config.json: max_seq_length -1",
    ),
    (
        modules("Pooling"),
        {**POOLING, "config_sentence_transformers.json": {"default_prompt_name": "q"}},
        "default_prompt_name 'q' is none of the prompts",
    ),
    (
        modules("Pooling"),
        {**POOLING, "config_sentence_transformers.json": {"default_prompt_name": ["q"]}},
        r"default_prompt_name \['q'\] is none of the prompts",
    ),
    (
        modules("Pooling"),
        {**POOLING, "config_sentence_transformers.json": {"prompts": {"q": 3}}},
        "prompts .* must be an object of texts",
    ),
]


def test_what_is_wrong_in_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    for rows, files, words in WRONG:
        path = folder(tmp_path, rows, files)
        with pytest.raises(CheckpointError, match=words) as raised:
            loaded(path)
        assert str(path) in str(raised.value)


def test_a_damaged_weight_is_named_instead_of_vectors_without_numbers(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    path = folder(tmp_path, modules("Pooling"), POOLING)
    weights, name = load_file(path / "model.safetensors"), "embeddings.LayerNorm.weight"
    weights[name][3] = np.nan
    save_file(weights, path / "model.safetensors")
    words = f"the results for text . are NaN: '{name}' of the checkpoint holds NaN"
    for call in (lambda m: m.embed(TEXTS), lambda m: m.rerank("a", TEXTS)):
        with pytest.raises(CheckpointError, match=words):
            call(loaded(path))


def test_a_projection_is_checked_against_what_it_follows(tmp_path: Path) -> None:
    said: dict[str, Any] = {"in_features": 16, "out_features": 5, "bias": True}
    path = folder(tmp_path, modules("Pooling", "Dense"), {**POOLING, "2_Dense/config.json": said})
    dense(path / "2_Dense", 16, 4)
    with pytest.raises(CheckpointError, match=r"sentence.dense.0.weight is f32\[4,16\], expected"):
        loaded(path)
    dense(path / "2_Dense", 16, 5)
    for change, words in (
        ({"in_features": 32}, "in_features 32 follows vectors of 16"),
        ({"activation_function": "os.system"}, "'os.system' is not implemented; Tanh"),
        ({"use_residual": True}, "use_residual True is not implemented"),
        ({"out_features": 0}, "2_Dense/config.json: out_features 0"),
    ):
        (path / "2_Dense/config.json").write_text(json.dumps({**said, **change}))
        with pytest.raises(CheckpointError, match=words):
            loaded(path)


def test_a_decoder_may_have_modules_that_nobody_reads(tmp_path: Path) -> None:
    """Its folder is one of a language model first."""
    from running import small_checkpoint

    path = text_models.saved(small_checkpoint(), tmp_path, **{"modules.json": modules("LSTM")})
    assert ptir.load_model(path, backend=REF).generate([1, 2], max_tokens=2).token_ids
