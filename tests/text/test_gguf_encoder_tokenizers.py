"""Tokenizers of encoders as GGUF files describe them: ids, marks and kinds of their own files."""

from __future__ import annotations

import base64
import functools
import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
import tokenizers
from gguf_files import gpt2_files, trained
from test_gguf_sentencepiece import nfkc

from awkward_text import awkward_lines
from ptir.errors import CheckpointError
from ptir.text import Tokenizer
from ptir.text.gguf_tokenizer import tokenizer_of
from ptir.text.gguf_tokenizer.writing import described_tokenizer
from text_models import WORDS

BERT = {"general.architecture": "bert"}


def word_piece(**config: Any) -> str:
    return Tokenizer.from_words("\n".join(WORDS), config).to_json()


@functools.cache
def roberta() -> str:
    """GPT-2's pieces between RoBERTa's marks."""
    vocab, merges = gpt2_files()
    plain = [one for one in json.loads(vocab) if one != "<|endoftext|>"]
    names = ["<s>", "<pad>", "</s>", "<unk>", *plain, "<mask>"]
    ids = {token: number for number, token in enumerate(names)}
    return Tokenizer.from_gpt2(json.dumps(ids), merges).to_json()


@functools.cache
def unigram() -> str:
    """As XLM-RoBERTa's tokenizer.json has them: four marks, SentencePiece's pieces, the mask."""
    from tokenizers import decoders, normalizers, pre_tokenizers, processors

    own = trained("unigram", 900)
    pieces = [(own.id_to_piece(n), own.get_score(n)) for n in range(3, own.get_piece_size())]
    marks = ["<s>", "<pad>", "</s>", "<unk>"]
    rows = [*((mark, 0.0) for mark in marks), *pieces, ("<mask>", 0.0)]
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram(rows, unk_id=3))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(nfkc()), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    inner.decoder = decoders.Metaspace()
    inner.add_special_tokens(
        [*marks, tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)]
    )
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return inner.to_str()


def described(text: str, kinds: int, mask: str) -> dict[str, Any]:
    given = Tokenizer.from_json(text)
    ids = {"mask": given.id_of(mask)}
    return described_tokenizer(text, given.vocab_size, ids, names=BERT, kinds=kinds) | BERT


CASES: dict[str, tuple[Any, int, str]] = {
    "word piece": (word_piece, 2, "[MASK]"),
    "word piece, cased": (lambda: word_piece(do_lower_case=False), 2, "[MASK]"),
    "byte level": (roberta, 1, "<mask>"),
    "unigram": (unigram, 1, "<mask>"),
}
NO_SPACE = "\x85"
"""White space to ``tokenizers`` alone, where XLM-RoBERTa's own file drops it."""


def lines(count: int, seed: int) -> list[str]:
    return [one for one in awkward_lines(count, seed) if not {"\0", NO_SPACE} & {*one}]


@pytest.mark.parametrize("case", CASES)
def test_a_described_tokenizer_gives_the_ids_of_its_own_file(case: str) -> None:
    make, kinds, mask = CASES[case]
    given = Tokenizer.from_json(make())
    metadata = described(make(), kinds, mask)
    again = tokenizer_of(metadata).tokenizer
    texts = lines(300, 11)
    if case == "unigram":  # its own file is normalized by grapheme
        again = tokenizer_of(metadata, portable=True).tokenizer
    for line in (*texts, f"a cat {mask} dog", f"{mask}x"):
        assert again.encode(line) == given.encode(line), line
    for one, other in itertools.pairwise(texts[:40]):
        found, wanted = again.encode_text(one, other), given.encode_text(one, other)
        assert found.ids == wanted.ids
        assert kinds < 2 or found.kinds == wanted.kinds
    assert kinds > 1 or set(again.encode_text("a", "b").kinds) == {0}


@pytest.mark.parametrize("case", CASES)
def test_what_was_described_is_a_tokenizer_json_again(case: str) -> None:
    make, kinds, mask = CASES[case]
    given = Tokenizer.from_json(make())
    portable = tokenizer_of(described(make(), kinds, mask), portable=True).tokenizer
    back = Tokenizer.from_json(portable.to_json())
    for line in lines(100, 12):
        assert back.encode(line) == given.encode(line)


def test_a_table_of_characters_is_kept_to_the_byte() -> None:
    metadata = described(unigram(), 1, "<mask>")
    assert bytes(metadata["tokenizer.ggml.precompiled_charsmap"]) == nfkc()
    text = tokenizer_of(metadata, portable=True).tokenizer.to_json()
    found = json.dumps(json.loads(text)["normalizer"])
    assert base64.b64encode(nfkc()).decode() in found


def test_a_model_with_one_kind_of_tokens_tells_none_apart() -> None:
    metadata: Mapping[str, Any] = described(word_piece(), 2, "[MASK]")
    for count, kinds in ((1, {0}), (2, {0, 1}), (None, {0, 1})):
        key = "tokenizer.ggml.token_type_count"
        said = {name: one for name, one in metadata.items() if name != key}
        said |= {} if count is None else {key: count}
        assert set(tokenizer_of(said).tokenizer.encode_text("a", "cat").kinds) == kinds


def test_word_pieces_by_another_rule_are_refused() -> None:
    changed = json.loads(word_piece())
    changed["normalizer"]["lowercase"] = False
    changed["normalizer"]["strip_accents"] = True
    changed["pre_tokenizer"] = {"type": "Whitespace"}
    with pytest.raises(CheckpointError, match=r"as a GGUF file describes it .* has other ids"):
        described(json.dumps(changed), 2, "[MASK]")
    changed = json.loads(word_piece())
    changed["normalizer"]["handle_chinese_chars"] = False
    with pytest.raises(CheckpointError, match="handle_chinese_chars false of WordPiece is nothing"):
        described(json.dumps(changed), 2, "[MASK]")
    changed = json.loads(word_piece())
    changed["post_processor"]["pair"][2:3] = []
    with pytest.raises(CheckpointError, match="two texts that are read together have other marks"):
        described(json.dumps(changed), 2, "[MASK]")
