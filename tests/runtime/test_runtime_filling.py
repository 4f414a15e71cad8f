"""``Model.fill``: masked words, by a head that is computed again in NumPy, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
import text_models
from ptir.errors import UnsupportedError, UsageError
from ptir.runtime import TextModel
from ptir.runtime.filling import TOGETHER
from ptir.runtime.specs import random_checkpoint
from running import REF, Command, command

__all__ = ["command"]

PLACES = 40
"""Positions of the model."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT for masked words with a vocabulary of letters."""
    place = tmp_path_factory.mktemp("words")
    given = random_checkpoint("bert-tiny-words", 3)
    held = {name: given.source.read(name) for name in given.source.names()}
    count = len(text_models.WORDS)
    config = {**given.config, "vocab_size": count, "max_position_embeddings": PLACES}
    cut = {"embeddings.word.weight": count, "words.bias": count}
    cut["embeddings.position.weight"] = PLACES
    arrays = {name: 4 * array[: cut.get(name)] for name, array in held.items()}
    arrays["words.norm.weight"] = arrays["words.norm.weight"] / 4
    made = text_models.changed(
        type(given)(**{**vars(given), "config": config, "tokenizer": None}), **arrays
    )
    return text_models.saved(
        made,
        place,
        **{
            "vocab.txt": "\n".join(text_models.WORDS),
            "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "mask_token": "[MASK]"},
        },
    )


@pytest.fixture(scope="module")
def model(folder: Path) -> TextModel:
    loaded = ptir.load_model(folder, backend=REF)
    assert isinstance(loaded, TextModel)
    return loaded


def expected(model: TextModel, ids: list[int], place: int) -> np.ndarray[Any, Any]:
    """The probability of every token at a place, by the head's definition in f64."""
    held = {name: model.checkpoint.source.read(name).astype("f8") for name in NAMES}
    x = model.forward([ids])[0][place].astype("f8") @ held["words.dense.weight"].T
    x = gelu(x + held["words.dense.bias"])
    x = (x - x.mean()) / np.sqrt(x.var() + float(model.checkpoint.config["layer_norm_eps"]))
    x = x * held["words.norm.weight"] + held["words.norm.bias"]
    scores = x @ held["embeddings.word.weight"].T + held["words.bias"]
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


NAMES = (
    *("words.dense.weight", "words.dense.bias", "words.norm.weight", "words.norm.bias"),
    *("words.bias", "embeddings.word.weight"),
)


def gelu(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    from math import erf

    return x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2


def test_the_likeliest_tokens_of_each_masked_word(model: TextModel) -> None:
    texts = ["a [MASK] cat", "[MASK] dog . [MASK]"]
    for text, masks in zip(texts, model.fill(texts, top=4), strict=True):
        (row,) = model.encode_texts([text])
        places = [n for n, one in enumerate(row.ids) if one == text_models.WORDS.index("[MASK]")]
        assert len(masks) == len(places) == text.count("[MASK]")
        for words, place in zip(masks, places, strict=True):
            wanted = expected(model, list(row.ids), place)
            assert [one.id for one in words] == np.argsort(-wanted, kind="stable")[:4].tolist()
            for one in words:
                assert one.probability == pytest.approx(wanted[one.id], rel=1e-4)
                assert one.text == text_models.WORDS[one.id]
    (whole,) = model.fill("a [MASK]", top=len(text_models.WORDS))[0]
    assert sum(one.probability for one in whole) == pytest.approx(1.0)


def test_many_masked_words_are_scored_as_one_is(model: TextModel) -> None:
    count = 2 * TOGETHER + 3
    text = " ".join(["[MASK]"] * count)
    (found,) = model.fill([text], top=1)
    (row,) = model.encode_texts([text])
    assert len(found) == count
    for place, (one,) in enumerate(found, 1):
        wanted = expected(model, list(row.ids), place)
        assert one.id == wanted.argmax()
        assert one.probability == pytest.approx(wanted.max(), rel=1e-4)


def test_what_cannot_be_filled_is_refused(model: TextModel) -> None:
    with pytest.raises(UsageError, match=r"text 1 \('a cat'\) has no \[MASK\]"):
        model.fill(["a [MASK]", "a cat"])
    long = " ".join(["a"] * PLACES) + " [MASK]"
    with pytest.raises(UsageError, match=rf"tokens, and model .* takes {PLACES}"):
        model.fill(long)
    with (
        pytest.raises(UsageError, match=r"lost its \[MASK\] when it was cut"),
        pytest.warns(UserWarning),
    ):
        model.fill(long, truncate=True)
    for top in (0, -1, len(text_models.WORDS) + 1, True, 2.0, "5"):
        with pytest.raises(UsageError, match=r"top .* must be an integer from 1 to"):
            model.fill("a [MASK]", top=top)  # type: ignore[arg-type]
    for spec in ("random:bert-tiny", "random:bert-tiny-classifier"):
        with pytest.raises(UnsupportedError, match="cannot fill; it can"):
            ptir.load_model(spec, backend=REF).fill("a [MASK]")


def test_a_tokenizer_without_a_mask_is_named(folder: Path, tmp_path: Path) -> None:
    without = [one for one in text_models.WORDS if one != "[MASK]"] + ["zz"]
    for name in folder.iterdir():
        (tmp_path / name.name).write_bytes(name.read_bytes())
    (tmp_path / "vocab.txt").write_text("\n".join(without))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"no token for a masked word \(\[MASK\] or <mask>\)"):
        ptir.load_model(tmp_path, backend=REF).fill("a [MASK]")


def test_the_command_prints_words_and_their_probability(command: Command, folder: Path) -> None:
    text = "a [MASK] cat [MASK]"
    found = json.loads(command("fill", folder, text, "--top", 2, "--json").out)["texts"]
    wanted = ptir.load_model(folder, backend=REF).fill(text, top=2)
    assert found == [
        {
            "text": text,
            "masks": [
                [
                    {"id": one.id, "text": one.text, "probability": pytest.approx(one.probability)}
                    for one in words
                ]
                for words in wanted[0]
            ],
        }
    ]
    lines = command("fill", folder, text, "--top", 2).out.splitlines()
    assert lines[0].split() == ["mask", "probability", "word"]
    assert len(lines) == 5
    best = wanted[0][1][0]
    assert lines[3].split() == ["2", f"{best.probability:.2%}", best.text]
    done = command("fill", folder, "a cat")
    assert (done.code, done.out) == (2, "")
