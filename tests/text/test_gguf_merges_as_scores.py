"""Merges of a ``tokenizer.json`` as scores of GGUF files: ids of the library ``tokenizers``."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers
from gguf_files import trained as trained_by_sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from awkward_text import awkward_lines
from ptir.errors import CheckpointError
from ptir.text import Tokenizer
from ptir.text.gguf_tokenizer import tokenizer_of
from ptir.text.gguf_tokenizer.model_file import piece_scores
from ptir.text.gguf_tokenizer.vocabulary import TokenType
from ptir.text.gguf_tokenizer.writing import described_tokenizer
from spaced_tokenizers import BYTES, joined, marks, trained

NAMES = {"phi": {"general.name": "Phi-3-mini"}}
STYLES = ("llama", "gemma", "phi", "unknown")
TOKENS, TYPES, SCORES = (f"tokenizer.ggml.{key}" for key in ("tokens", "token_type", "scores"))


def described(text: str, style: str = "", **others: Any) -> dict[str, Any]:
    count = tokenizers.Tokenizer.from_str(text).get_vocab_size()
    return described_tokenizer(text, count, {}, names=NAMES.get(style, {}), **others)


@functools.cache
def pair(style: str) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    """The tokenizer of a style's own file, and that of the metadata."""
    own = tokenizers.Tokenizer.from_str(trained(style))
    return own, tokenizer_of(metadata_of(style)).tokenizer


@functools.cache
def metadata_of(style: str) -> dict[str, Any]:
    return described(trained(style), style) | NAMES.get(style, {})


def lines_for(style: str, count: int, seed: int) -> list[str]:
    """Awkward lines; Gemma's runs of spaces are no tokens of a text that spells ``▁`` twice."""
    lines = awkward_lines(count, seed, *marks(style))
    return [line for line in lines if style != "gemma" or "▁▁" not in line]


@pytest.mark.parametrize("style", STYLES)
def test_ids_are_those_of_the_tokenizer_json(style: str) -> None:
    own, again = pair(style)
    for line in lines_for(style, 10_000, 21):
        assert again.encode(line) == own.encode(line).ids, line


@settings(max_examples=300)
@given(style=st.sampled_from(STYLES), text=st.text(max_size=60))
def test_ids_of_any_text_are_the_same(style: str, text: str) -> None:
    if style == "gemma":
        text = text.replace("▁", "_")
    own, again = pair(style)
    assert again.encode(text) == own.encode(text).ids


@pytest.mark.parametrize("style", STYLES)
def test_a_folder_of_the_file_is_described_the_same_again(style: str) -> None:
    first = metadata_of(style)
    text = tokenizer_of(first, portable=True).tokenizer.to_json()
    own, back = tokenizers.Tokenizer.from_str(trained(style)), Tokenizer.from_json(text)
    for line in lines_for(style, 500, 22):
        assert back.encode(line) == own.encode(line).ids, line
    second = described(text, style) | NAMES.get(style, {})
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert np.array_equal(value, second[key]), key


def test_types_and_scores_are_what_files_have() -> None:
    found = metadata_of("gemma")
    by_name = dict(zip(found[TOKENS], zip(found[TYPES], found[SCORES], strict=True), strict=True))
    assert by_name["<unk>"] == (TokenType.UNKNOWN, -1000)
    assert by_name["<bos>"] == by_name["<end_of_turn>"] == (TokenType.CONTROL, -1000)
    assert by_name["\n\n"] == by_name["<td>"] == (TokenType.USER_DEFINED, -1000)
    assert {by_name[one] for one in BYTES} == {(TokenType.BYTE, 0)}
    assert by_name["▁▁▁"][0] == by_name["e"][0] == TokenType.NORMAL
    assert by_name["▁▁▁"][1] > by_name["▁▁"][1] > by_name["▁t"][1] > by_name["e"][1]
    keys = {key.rpartition(".")[2]: value for key, value in found.items()}
    assert (keys["model"], keys["pre"], keys["add_space_prefix"]) == ("llama", "default", False)
    assert (keys["add_bos_token"], keys["add_eos_token"]) == (True, False)
    assert (keys["bos_token_id"], keys["unknown_token_id"]) == (2, 3)
    assert metadata_of("llama")["tokenizer.ggml.add_space_prefix"] is True


def test_ids_beyond_the_tokens_are_called_unused_and_stay_so() -> None:
    text = trained("llama")
    first = described_tokenizer(text, 903, {})
    assert first[TOKENS][900:] == ["[PAD900]", "[PAD901]", "[PAD902]"]
    again = described(tokenizer_of(first, portable=True).tokenizer.to_json())
    assert again[TYPES].tolist() == first[TYPES].tolist()
    assert first[TYPES][900:].tolist() == [TokenType.UNUSED] * 3


def test_gemma_4_lists_its_merges() -> None:
    text, named = trained("gemma"), {"general.architecture": "gemma4"}
    found = described_tokenizer(text, 920, {}, names=named) | named
    assert found["tokenizer.ggml.model"] == "gemma4" and SCORES not in found
    own, again = tokenizers.Tokenizer.from_str(text), tokenizer_of(found).tokenizer
    for line in awkward_lines(1000, 23, *marks("gemma")):
        assert again.encode(line) == own.encode(line).ids, line


ALPHABET = "ab▁"


@st.composite
def merged(draw: st.DrawFn) -> dict[str, Any]:
    """A ``tokenizer.json`` of any merges, and tokens that no merge makes."""
    tokens, merges = list(ALPHABET), []
    for _ in range(draw(st.integers(1, 14))):
        pair = [draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))]
        if len("".join(pair)) < 9 and pair not in merges:
            merges.append(pair)
            tokens += [] if "".join(pair) in tokens else ["".join(pair)]
    merges = draw(st.permutations(merges))
    for one in draw(st.lists(st.text(ALPHABET, min_size=2, max_size=4), max_size=2)):
        tokens += [] if one in tokens else [one]
    return spaced([*tokens, "<unk>"], merges)


def spaced(tokens: list[str], merges: list[list[str]], **model: Any) -> dict[str, Any]:
    """A ``tokenizer.json`` of merges over a text whose spaces are ``▁``."""
    return {
        "added_tokens": [added(tokens.index("<unk>"), "<unk>")] if "<unk>" in tokens else [],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "model": {
            "type": "BPE", "vocab": {one: index for index, one in enumerate(tokens)},
            "merges": merges, "unk_token": "<unk>", "fuse_unk": True,
        } | model,
    }  # fmt: skip


def added(index: int, content: str, **how: Any) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": index, "content": content, "special": True, **flags, **how}


@settings(max_examples=250)
@given(whole=merged(), texts=st.lists(st.text("ab ", min_size=1, max_size=24), max_size=8))
def test_scores_of_any_merges_join_the_same_or_there_are_none(
    whole: dict[str, Any], texts: list[str]
) -> None:
    own = tokenizers.Tokenizer.from_str(json.dumps(whole))
    tokens = [one for one in whole["model"]["vocab"] if one != "<unk>"]
    try:
        found = described(json.dumps(whole))
    except CheckpointError as error:
        assert "which the score of a token would join" in str(error)
        halves = [(one, own.encode(one.replace("▁", " ")).tokens) for one in tokens]
        assert any(len(parts) == 2 for _, parts in halves)  # joined by any score, and not here
        return
    scores = dict(zip(found[TOKENS], found[SCORES].tolist(), strict=True))
    again = tokenizer_of(found).tokenizer
    for text in (*texts, *(one.replace("▁", " ") for one in tokens)):
        wanted = own.encode(text)
        assert joined(text.replace(" ", "▁"), scores) == wanted.tokens
        assert again.encode(text) == wanted.ids


def metaspace(**fields: Any) -> Callable[[dict[str, Any]], None]:
    def change(whole: dict[str, Any]) -> None:
        whole["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", **fields}
        whole["normalizer"] = None

    return change


def model(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda whole: whole["model"].update(fields)


def one_more(content: str, **how: Any) -> Callable[[dict[str, Any]], None]:
    return lambda whole: whole["added_tokens"].append(added(900, content, **how))


def less(token: str) -> Callable[[dict[str, Any]], None]:
    return lambda whole: whole["model"]["vocab"].pop(token)


def stepped(**step: Any) -> Callable[[dict[str, Any]], None]:
    return lambda whole: whole["normalizer"]["normalizers"].append(step)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "first": (metaspace(prepend_scheme="first", split=False), "prepend_scheme 'first': puts a"),
    "always": (metaspace(add_prefix_space=True, split=False), "prepend_scheme 'always'"),
    "words": (metaspace(prepend_scheme="never"), "Metaspace with split true: merges nothing"),
    "a step": (stepped(type="NFC"), "a step NFC around merges"),
    "spaces stay": (lambda w: w["normalizer"]["normalizers"].pop(), "spaces stay beside ▁"),
    "suffix": (model(end_of_word_suffix="</w>"), "model.end_of_word_suffix '</w>': is nothing"),
    "a byte less": (less("<0x41>"), "model.byte_fallback true: 255 of 256 bytes are tokens"),
    "no fallback": (model(byte_fallback=False), "model.byte_fallback false: all bytes are tokens"),
    "whole texts": (model(ignore_merges=True), "ignore_merges true: a text '<0x00>' is one token"),
    "joined by scores": (
        lambda w: w["model"]["vocab"].update(zq=900), "token 'zq': model.merges make 'z' and 'q'"
    ),
    "white space": (one_more("<x>", rstrip=True), 'added token "<x>" with rstrip true: .*phi-3'),
    "words alone": (one_more("<x>", single_word=True), 'added token "<x>" with single_word true'),
    "normalized": (one_more("<x>", normalized=True), "<x>. with normalized true: a GGUF file"),
    "an end": (
        lambda w: w["model"]["vocab"].update({"<|im_end|>": 900}),
        r'token "<\|im_end\|>" \(900\): is found in a text as it stands as a GGUF file',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_file_says_is_refused_by_its_property(case: str) -> None:
    change, words = REFUSED[case]
    whole = json.loads(trained("llama"))
    change(whole)
    with pytest.raises(CheckpointError, match=f"tokenizer.json: .*{words}"):
        described(json.dumps(whole))


def test_unknown_characters_that_are_not_one_token_are_refused() -> None:
    whole = json.loads(trained("unknown"))
    whole["model"]["fuse_unk"] = False
    with pytest.raises(CheckpointError, match="characters in a row that no token has are one"):
        described(json.dumps(whole))


def test_metaspace_that_puts_nothing_in_front_is_described() -> None:
    whole = json.loads(trained("gemma"))
    metaspace(prepend_scheme="never", split=False)(whole)
    own = tokenizers.Tokenizer.from_str(json.dumps(whole))
    again = tokenizer_of(described(json.dumps(whole))).tokenizer
    for line in lines_for("gemma", 500, 24):
        assert again.encode(line) == own.encode(line).ids, line


@functools.cache
def by_sentencepiece() -> sentencepiece.SentencePieceProcessor:
    return trained_by_sentencepiece(
        "bpe", 900, normalization_rule_name="identity", remove_extra_whitespaces=False,
        byte_fallback=True,
    )  # fmt: skip


def as_json(own: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """The ``tokenizer.json`` of a ``tokenizer.model``: all merges of a piece, by its score."""
    ids = {own.id_to_piece(index): index for index in range(own.get_piece_size())}
    plain = [one for one in ids if not own.is_byte(ids[one]) and ids[one] > 2]
    merges = [
        [piece[:at], piece[at:]]
        for piece in sorted(plain, key=lambda one: -own.get_score(ids[one]))
        for at in range(len(piece) - 1, 0, -1)
        if piece[:at] in ids and piece[at:] in ids
    ]
    whole = spaced([*ids], merges, byte_fallback=True)
    whole["added_tokens"] = [added(index, own.id_to_piece(index)) for index in range(3)]
    front = {"type": "Prepend", "prepend": "▁"}
    whole["normalizer"] = {"type": "Sequence", "normalizers": [front, whole["normalizer"]]}
    return whole


def test_scores_are_counted_as_sentencepiece_counts_them(tmp_path: Path) -> None:
    own = by_sentencepiece()
    wanted = [own.get_score(index) for index in range(3, own.get_piece_size())]
    found = described(json.dumps(as_json(own)))
    assert found[SCORES][3:].tolist() == wanted
    again = tokenizer_of(found | {"tokenizer.ggml.add_bos_token": False}).tokenizer
    for line in awkward_lines(1000, 25):
        if "\0" not in line:
            assert again.encode(line) == own.encode(line)


def rescored(proto: bytes, scores: Mapping[str, float]) -> bytes:
    """A ``tokenizer.model`` with other scores of some pieces."""
    found = bytearray(proto)
    for piece, score in scores.items():
        text = piece.encode()
        at = found.index(bytes([10, len(text)]) + text + b"\x15") + len(text) + 3
        found[at : at + 4] = np.float32(score).tobytes()
    return bytes(found)


def test_scores_are_those_of_the_tokenizer_model_beside(tmp_path: Path) -> None:
    own = by_sentencepiece()
    proto, path = own.serialized_model_proto(), tmp_path / "tokenizer.model"
    path.write_bytes(proto)
    pieces = piece_scores(path)
    assert pieces == {
        own.id_to_piece(index): own.get_score(index)
        for index in range(own.get_piece_size())
        if not own.is_byte(index) and index > 2
    }
    path.write_bytes(rescored(proto, {one: score / 2 - 7 for one, score in pieces.items()}))
    found = described(json.dumps(as_json(own)), model_file=path)
    assert found[SCORES][-1] == own.get_score(own.get_piece_size() - 1) / 2 - 7
    path.write_bytes(rescored(proto, {"▁t": pieces["▁a"]}))  # merges alone tell them apart
    tied = described(json.dumps(as_json(own)), model_file=path)
    assert tied[SCORES][3:].tolist() == [
        own.get_score(index) for index in range(3, own.get_piece_size())
    ]
    whole = as_json(own)
    whole["model"]["merges"].reverse()
    with pytest.raises(CheckpointError, match=r"tokenizer\.model beside it scores them"):
        described(json.dumps(whole), model_file=path)
    for damaged in (proto[:-3], b"<html>", bytes(9)):
        path.write_bytes(damaged)
        with pytest.raises(
            CheckpointError, match=r"tokenizer\.model: is no model of SentencePiece"
        ):
            piece_scores(path)


def test_a_tokenizer_model_that_merges_nothing_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    for kind, scores in ((1, {}), (2, {"a": 0.0})):  # unigrams, byte-pair encoding
        path.write_bytes(b"\x0a\x03\x0a\x01a\x12\x02\x18" + bytes([kind]))
        assert piece_scores(path) == scores
