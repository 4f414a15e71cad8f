"""Tokenizers: known ids, exact round trips, and streams that add up."""

import functools
import importlib.resources
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptir.errors import CheckpointError, UsageError
from ptir.text import Tokenizer

DATA = importlib.resources.files("ptir") / "data"


@functools.cache
def gpt2() -> Tokenizer:
    files = DATA / "gpt2-tokenizer"
    vocab = (files / "vocab.json").read_text("utf-8")
    return Tokenizer.from_gpt2(vocab, (files / "merges.txt").read_text("utf-8"))


@functools.cache
def demo() -> Tokenizer:
    return Tokenizer.from_json((DATA / "demo" / "tokenizer.json").read_text("utf-8"))


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*map(stream.push, ids), stream.flush()]


def test_gpt2_files_give_the_published_ids() -> None:
    ids = gpt2().encode("Hello world, portable tensors!")
    assert ids == [15496, 995, 11, 17726, 11192, 669, 0]
    assert gpt2().decode(ids) == "Hello world, portable tensors!"
    assert gpt2().vocab_size == 50257


def test_end_of_text_is_one_special_token_that_decoding_skips() -> None:
    ids = gpt2().encode("a<|endoftext|>")
    assert ids == [64, 50256]
    assert gpt2().special_ids == {50256}
    assert gpt2().id_of("<|endoftext|>") == 50256
    assert gpt2().decode(ids) == "a"
    assert gpt2().decode(ids, skip_special_tokens=False) == "a<|endoftext|>"
    assert demo().special_ids == {0}


@given(st.text())
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    for tokenizer in (gpt2(), demo()):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@given(st.text())
def test_streamed_text_adds_up_without_broken_characters(text: str) -> None:
    for tokenizer in (gpt2(), demo()):
        pieces = streamed(tokenizer, tokenizer.encode(text))
        assert "".join(pieces) == text
        assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, 1023), max_size=40))
def test_streams_of_any_ids_add_up_to_decoding_them_at_once(ids: list[int]) -> None:
    for tokenizer in (gpt2(), demo()):
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("text", ["😀", "語", "👩‍👩‍👧 in 東京"])
def test_characters_split_over_byte_tokens_appear_whole(text: str) -> None:
    ids = demo().encode(text)
    assert len(ids) > len(text)
    pieces = streamed(demo(), ids)
    assert pieces[0] == ""
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_flushing_shows_an_unfinished_character_once() -> None:
    stream = demo().stream()
    shown = [stream.push(index) for index in demo().encode("😀")[:-1]]
    assert shown == [""] * len(shown)
    assert set(stream.flush()) == {"\ufffd"}
    assert stream.flush() == ""


def test_what_a_stream_comes_after_changes_no_text_of_bytes() -> None:
    whole = gpt2().encode("Hear 😀 me")
    for at in range(len(whole) + 1):
        stream = gpt2().stream(after=whole[:at])
        shown = "".join([*map(stream.push, whole[at:]), stream.flush()])
        assert shown == gpt2().decode(whole[at:])


@pytest.mark.parametrize("index", [-1, 1 << 32, 1 << 70])
def test_what_can_be_no_id_is_refused(index: int) -> None:
    for use in (lambda: gpt2().decode([0, index]), lambda: gpt2().stream().push(index)):
        with pytest.raises(UsageError, match=rf"token id {index}: must be an integer in"):
            use()


@pytest.mark.parametrize("index", [50257, 60000, (1 << 32) - 1])
def test_ids_without_a_token_have_no_text(index: int) -> None:
    """As transformers decodes them: a model's vocabulary may be padded."""
    ids = gpt2().encode("Hear 😀 me")
    mixed = [part for i in ids for part in (index, i)]
    assert gpt2().decode(mixed) == "Hear 😀 me"
    stream = gpt2().stream()
    assert "".join([*map(stream.push, mixed), stream.flush()]) == "Hear 😀 me"


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(UsageError, match=r"text holds '\\udc80' at 2: it must be Unicode"):
        gpt2().encode("ab\udc80")


def test_unknown_tokens_are_refused() -> None:
    with pytest.raises(UsageError, match="'<nope>' is not in the vocabulary of 50257"):
        gpt2().id_of("<nope>")


def test_truncation_and_padding_in_the_file_do_not_change_encoding() -> None:
    spec = json.loads((DATA / "demo" / "tokenizer.json").read_text("utf-8"))
    spec["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
    }  # fmt: skip
    spec["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
    }  # fmt: skip
    text = "one two three four five"
    assert Tokenizer.from_json(json.dumps(spec)).encode(text) == demo().encode(text)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": 3}'])
def test_damaged_tokenizer_json_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"^tokenizer.json"):
        Tokenizer.from_json(text)


@pytest.mark.parametrize(
    ("vocab", "merges", "message"),
    [
        ("[]", "", "vocab.json holds a JSON list"),
        ('{"a": "b"}', "", "vocab.json: token 'a' has id 'b'"),
        ('{"a": true}', "", "vocab.json: token 'a' has id True"),
        ('{"a": 0, "b": 0}', "", "vocab.json: two tokens share an id"),
        ('{"a": 0}', "#version: 0.2\na b c\n", r"merges.txt: line 2 is \['a', 'b', 'c'\]"),
        ('{"a": 0}', "#version: 0.2\na b\n", "vocab.json and merges.txt do not fit"),
        ('{"e": 0, "e</w>": 1}', "", "marks the ends of words .* save the tokenizer as tokeniz"),
    ],
)
def test_damaged_gpt2_files_are_refused(vocab: str, merges: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_gpt2(vocab, merges)


def test_words_of_a_vocab_txt_are_split_into_their_longest_pieces() -> None:
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "un",
        "##aff",
        "##able",
        "a",
        ",",
        "ete",
    ]
    tokenizer = Tokenizer.from_words("\r\n".join(pieces), {})
    found = tokenizer.encode_text("UNaffable, Été")
    assert [tokenizer.token(index) for index in found.ids] == [
        *("[CLS]", "un", "##aff", "##able", ",", "ete", "[SEP]")
    ]
    assert found.places[1:3] == ((0, 2), (2, 5)) and found.added == (True, *[False] * 5, True)
    pair = tokenizer.encode_text("a", "un , a", limit=6)
    assert [tokenizer.token(n) for n in pair.ids] == ["[CLS]", "a", "[SEP]", "un", ",", "[SEP]"]
    assert pair.kinds == (0, 0, 0, 1, 1, 1) and pair.length == 7
    cased = Tokenizer.from_words("\n".join(pieces), {"do_lower_case": False})
    assert cased.encode("UN a") == [2, 1, 8, 3]
    with pytest.raises(UsageError, match="2 tokens leave no room for a text"):
        tokenizer.encode_text("a", limit=2)
    with pytest.raises(CheckpointError, match="two lines are the same piece"):
        Tokenizer.from_words("[CLS]\na\na\n", {})
    with pytest.raises(CheckpointError, match=r"has no sep_token \(\[SEP\] or </s>\)"):
        Tokenizer.from_words("[CLS]\n[UNK]\na\n", {})


def test_a_vocabulary_with_robertas_marks_marks_the_ends_of_texts() -> None:
    marks = ["<s>", "<pad>", "</s>", "<unk>"]
    ids = {token: number for number, token in enumerate([*marks, "a", "b", "<mask>"])}
    tokenizer = Tokenizer.from_gpt2(json.dumps(ids), "#version: 0.2\n")
    assert list(tokenizer.encode_text("a").ids) == [0, 4, 2]
    assert list(tokenizer.encode_text("a", "b").ids) == [0, 4, 2, 2, 5, 2]
    assert tokenizer.encode_text("a <mask>").ids[-2] == 6
