"""Encoders: the keys and numbers of Transformers, batches, and what is refused.

Odd sizes, backends and folders of sentence-transformers are tests/parity's matter.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import image_models
import ptir
import text_models
from ptir.errors import CheckpointError, UnsupportedError, UsageError
from ptir.models.bert import distance_buckets
from ptir.models.table import MODELS, READS, definition, load_modules, presets
from ptir.params.source import ArraySource
from ptir.runtime import TextModel
from ptir.runtime.batches import batches, padded
from ptir.runtime.load import described_weights
from ptir.runtime.specs import parameter_types
from running import REF
from together import together

CASES = text_models.cases()
TINY = ("bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "modernbert")


def loaded(spec: str | Path, **options: Any) -> TextModel:
    model = ptir.load_model(spec, backend=REF, **options)
    assert isinstance(model, TextModel)
    return model


def folder(name: str, place: Path, **change: Any) -> Path:
    case = CASES[name]
    given = image_models.checkpoint({**case["config"], **change}, case["shapes"])
    return text_models.saved(given, place)


@together()
@pytest.mark.parametrize("name", CASES)
def test_a_padded_batch_computes_what_transformers_does_of_each_row_alone(
    name: str, tmp_path: Path
) -> None:
    case = CASES[name]
    ids, kinds, count = text_models.rows(case["lengths"], case["config"]["vocab_size"])
    found = text_models.output(loaded(folder(name, tmp_path)), ids, kinds, count)
    if found.ndim == 3:
        found = found[np.arange(ids.shape[1]) < count[:, None]]
    wanted = np.array(case["output"])
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@together()
@pytest.mark.parametrize("name", TINY)
def test_each_text_of_a_batch_is_read_alone(name: str) -> None:
    model = loaded(f"random:{name}-tiny", seed=2)
    texts = ["a b", "one two three four", "x" * 40, "the cat sat on a mat", "z"]
    whole = model.embed(texts)
    assert whole.shape == (5, 24)
    for number, text in enumerate(texts):
        np.testing.assert_allclose(model.embed(text)[0], whole[number], rtol=2e-4, atol=2e-6)
    assert np.ptp(whole, axis=0).max() > 0.05 * np.abs(whole).max()


def test_gamma_and_beta_are_the_vectors_of_a_norm(tmp_path: Path) -> None:
    """Files that were made from TensorFlow's, as the first BERT is, have these keys."""
    case = CASES["bert"]
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    given = image_models.checkpoint(case["config"], case["shapes"])
    held = {}
    for name in given.source.names():
        key = next((name.replace(new, was) for new, was in old.items() if new in name), name)
        held[f"bert.{key}"] = given.source.read(name)
    renamed = type(given)(**{**vars(given), "source": ArraySource(held)})
    ids = text_models.rows([9], 40)
    found = text_models.output(loaded(text_models.saved(renamed, tmp_path)), *ids)
    wanted = text_models.output(loaded(folder("bert", tmp_path)), *ids)
    np.testing.assert_array_equal(found, wanted)


SIBLINGS = [
    ("bert", {"model_type": "roberta"}, "embeddings.kind.weight is f32.2,16., expected f32.1,16."),
    ("bert", {"model_type": "mpnet"}, "relative_bias.weight"),
    ("bert", {"model_type": "distilbert"}, "tensors of 0 layers are stored"),
    (
        "modernbert",
        {"model_type": "bert", "layer_norm_eps": 1e-5},
        "40 tensors missing .embeddings.word",
    ),
    ("bert", {"num_hidden_layers": 3}, "says num_hidden_layers 3, and tensors of 2 layers"),
    ("bert", {"hidden_size": 18}, "of another shape"),
    ("bert, texts", {"num_labels": 4}, "says 4 num_labels, and the classifier .* has 3"),
    ("bert, texts", {"architectures": ["BertModel"]}, "do not say of what"),
    ("modernbert, tokens", {"architectures": None}, "do not say of what"),
    ("modernbert", {"local_attention": 0}, "local_attention 0 .* must be an integer >= 1"),
    ("modernbert", {"layer_types": ["full_attention", "ring"]}, "must be a list of 3, each"),
    ("bert", {"position_embedding_type": "relative_key"}, "'relative_key' is not implemented"),
    ("bert", {"hidden_act": "mish"}, "hidden_act 'mish' is not implemented"),
    ("bert", {"is_decoder": True}, "is_decoder true is not implemented"),
    ("bert", {"num_attention_heads": 3}, "hidden_size 16 must be a multiple of"),
    ("roberta, tokens", {"pad_token_id": 0}, "pad_token_id 0 is not implemented; 1 is"),
    ("mpnet", {"max_position_embeddings": 2}, "position.weight is f32.18,16., expected f32.2,16."),
]


@together()
@pytest.mark.parametrize(("name", "change", "words"), SIBLINGS)
def test_a_sibling_and_a_wrong_value_are_refused_by_name(
    name: str, change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    if change.get("model_type") == "roberta":
        change = {**change, "type_vocab_size": 1}
    with pytest.raises(CheckpointError, match=words):
        case = CASES[name]
        described_weights(image_models.checkpoint({**case["config"], **change}, case["shapes"]))


def test_buckets_of_distances_are_those_of_the_definition() -> None:
    """One distance each up to 8; then the logarithm, whose steps at powers of two are exact."""
    found = distance_buckets(200, 32)
    behind, ahead = found[198::-1], found[200:]
    assert found[199] == 0 and [one + 16 for one in behind] == ahead
    assert behind[:7] == [1, 2, 3, 4, 5, 6, 7]
    wanted = [min(15, 8 + int(2 * np.log2(n / 8) + 1e-6)) for n in range(8, 200)]
    assert behind[7:] == wanted


def test_presets_have_the_sizes_of_the_models_that_people_use() -> None:
    """Parameters in millions, without what pools for another purpose."""
    wanted = {"bert-base": 108.89, "bert-large": 334.09, "minilm-l6": 22.57}
    wanted |= {"roberta-base": 124.06, "distilbert-base": 66.36, "mpnet-base": 108.90}
    wanted |= {"modernbert-base": 149.01, "modernbert-large": 394.78, "xlm-roberta-base": 277.45}
    for name, millions in wanted.items():
        model, config = presets()[name]
        sizes = [type.size for type in parameter_types(model, config).values()]
        assert sum(sizes) / 1e6 == pytest.approx(millions, abs=0.01), name


def test_every_family_is_in_the_table() -> None:
    load_modules()
    assert {*TINY} == {name for name, one in MODELS.items() if one.capabilities == READS}


def test_a_model_says_what_it_can_do_and_refuses_the_rest() -> None:
    reads, speaks = loaded("random:bert-tiny"), ptir.load_model("demo", backend=REF)
    assert reads.capabilities == ("embed", "rerank", "forward", "trace")
    for spec, able in (
        ("classifier", ("classify", "forward", "trace")),
        ("tagger", ("classify_tokens", "forward", "trace")),
        ("reranker", ("classify", "rerank", "forward", "trace")),
    ):
        assert loaded(f"random:bert-tiny-{spec}").capabilities == able
    for call in (
        lambda: reads.generate("x"),
        lambda: reads.chat([{"role": "user", "content": "x"}]),
        lambda: reads.new_state(1, 8),
        lambda: reads.classify("x"),
        lambda: reads.classify_tokens("x"),
        lambda: reads.embed_texts(["x"]),
        lambda: speaks.embed("x"),
        lambda: speaks.rerank("x", ["y"]),
        lambda: loaded("random:bert-tiny-classifier").embed("x"),
        lambda: loaded("random:bert-tiny-classifier").rerank("x", ["y"]),
    ):
        with pytest.raises(UnsupportedError, match=r"cannot .*; it can "):
            call()


def test_what_is_given_is_checked() -> None:
    model = loaded("random:bert-tiny")
    for given, words in (
        ("", "text 0 is empty"),
        (["a", " \n"], "text 1 is empty"),
        ([], "there is no text"),
        (["a", 3], "text 1 is int"),
        (3, "texts are int"),
        (b"word", "texts are bytes"),
        ("word " * 300, r"tokens, and model 'random:bert-tiny' takes 66 \(its positions\)"),
        ("\ud800", "must be Unicode"),
    ):
        with pytest.raises(UsageError, match=words):
            model.embed(given)
    with pytest.raises(UsageError, match="unknown prompt 'query'"):
        model.embed("x", prompt="query")
    with pytest.raises(UsageError, match="67 tokens do not fit the context of 66"):
        model.forward([1] * 67)
    with pytest.raises(UsageError, match=r"token id 512: must be an integer in \[0, 512\)"):
        model.forward([512])


def test_a_text_that_is_cut_is_told_and_read_up_to_there() -> None:
    model = loaded("random:bert-tiny")
    with pytest.warns(UserWarning, match=r"1 of 2 texts had more than 66 tokens \(up to 150\)"):
        found = model.embed(["a" * 150, "b"], truncate=True)
    ids = model.tokenizer.encode("a" * 150)[:66] if model.tokenizer else []
    np.testing.assert_allclose(model.forward(ids).mean(axis=0), found[0], rtol=1e-4, atol=1e-6)


def test_every_layer_is_traced() -> None:
    model = loaded("random:bert-tiny-classifier")
    traced = model.trace("a cat")
    assert {"embeddings.norm", "layers.1.attention", "layers.0.up", "head", "output"} <= {*traced}
    np.testing.assert_array_equal(traced["output"][0], model.forward("a cat"))


@together()
@pytest.mark.parametrize("seed", range(6))
def test_batches_hold_every_text_once_and_pad_little(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = (
        np.minimum(rng.lognormal(3, 0.9, int(rng.integers(1, 90))) + 2, 500).astype(int).tolist()
    )
    found = list(batches(sizes, 512))
    assert sorted(n for batch in found for n in batch.texts) == list(range(len(sizes)))
    for batch in found:
        assert len(batch.texts) <= batch.rows and batch.rows in (1, 4, 16, 32)
        assert max(sizes[n] for n in batch.texts) <= batch.length <= 512
        assert batch.rows * batch.length <= 8192
    computed = sum(batch.rows * batch.length for batch in found)
    alone = sum(padded(size, 512) for size in sizes)
    together_ = len(sizes) * max(sizes)
    assert computed <= 1.5 * alone + 64 and computed <= max(together_ * 1.5, 200)


def test_a_definition_knows_its_context() -> None:
    for name, wanted in (("bert", 512), ("roberta", 512), ("mpnet", 512), ("modernbert", 8192)):
        one = definition(name)
        config = {**one.defaults, **next(iter(one.presets.values()))}
        assert one.context(config) == wanted
    two = {**definition("mpnet").defaults, "model_type": "mpnet", "max_position_embeddings": 2}
    with pytest.raises(CheckpointError, match="2 leaves no position: the first 2 stand for no"):
        definition("mpnet").context(two)


def test_a_pair_is_read_with_the_kinds_of_its_tokens(tmp_path: Path) -> None:
    case = CASES["bert, texts"]
    given = image_models.checkpoint(case["config"], case["shapes"])
    words = "\n".join(text_models.WORDS[:40])
    model = loaded(text_models.saved(given, tmp_path, **{"vocab.txt": words}))
    (row,) = model.encode_texts([("a b", "c d")])
    assert row.kinds == (0, 0, 0, 0, 1, 1, 1)
    ids, kinds = (np.array([one], np.int32) for one in (row.ids, row.kinds))
    (scores,) = text_models.output(model, ids, kinds, np.array([7], np.int32)).astype(float)
    wanted = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    (found,) = model.classify([("a b", "c d")])
    assert [one.id for one in found] == np.argsort(-wanted).tolist()
    np.testing.assert_allclose([one.probability for one in found], np.sort(wanted)[::-1], rtol=1e-5)
    (other,) = text_models.output(model, ids, np.zeros_like(kinds), np.array([7], np.int32))
    assert np.abs(other - scores).max() > 1e-3


def test_batches_cost_as_little_as_any_cut_of_the_sorted_texts() -> None:
    rng = np.random.default_rng(4)
    for _ in range(40):
        sizes = sorted(rng.integers(2, 130, int(rng.integers(1, 9))).tolist(), reverse=True)
        costs = []
        for cuts in range(1 << (len(sizes) - 1)):
            starts = [0, *(n for n in range(1, len(sizes)) if cuts >> (n - 1) & 1), len(sizes)]
            costs.append(
                sum(
                    min(rows for rows in (1, 4, 16) if rows >= end - first)
                    * padded(sizes[first], 512)
                    + 48
                    for first, end in pairwise(starts)
                )
            )
        found = list(batches(sizes, 512))
        assert sum(one.rows * one.length + 48 for one in found) == min(costs)
