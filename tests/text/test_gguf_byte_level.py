"""Byte-level tokenizers from GGUF metadata: ids of the model's own, words as the rules say."""

import itertools
import random
from typing import Any

import pytest
import regex
import tokenizers
from gguf_files import CONTROL, NORMAL, USER_DEFINED, gpt2, gpt2_own, keyed

from awkward_text import awkward_lines
from ptir.errors import CheckpointError
from ptir.text.gguf_tokenizer import tokenizer_of
from ptir.text.gguf_tokenizer.pre_tokenizers import BY_NAME, ROWS
from together import together

LEVEL = [row for row in ROWS if row.byte_level]


def byte_letters() -> list[str]:
    return sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def words(pre: str, text: str) -> list[str]:
    """The words that ``text`` is split into: a vocabulary without merges spells them byte by byte.

    Each word ends in a token of its own: merges join all bytes of what is one word.
    """
    inner = tokenizer_of(keyed(model="gpt2", pre=pre, tokens=byte_letters(), merges=[],
                               add_bos_token=False)).tokenizer._inner  # fmt: skip
    if inner.normalizer is not None:
        text = inner.normalizer.normalize_str(text)
    found = inner.pre_tokenizer.pre_tokenize_str(text)
    return [text[begin:end] for _, (begin, end) in found]


def expected(splits: tuple[str, ...], text: str) -> list[str]:
    """The same by the module ``regex``: what matches, and what lies between the matches."""
    parts = [text] if text else []
    for split in splits:
        parts = [piece for part in parts for piece in _isolated(split, part)]
    return parts


def _isolated(split: str, part: str) -> list[str]:
    spans = [match.span() for match in regex.finditer(split, part, flags=regex.VERSION1)]
    cuts = sorted({0, len(part), *(at for span in spans for at in span)})
    return [part[begin:end] for begin, end in itertools.pairwise(cuts)]


def test_gpt2_as_metadata_gives_the_ids_of_its_own_files() -> None:
    built = gpt2().tokenizer
    lines = awkward_lines(10_000, 1, "<|endoftext|>")
    assert [built.encode(line) for line in lines] == [gpt2_own().encode(line) for line in lines]
    assert built.vocab_size == gpt2_own().vocab_size
    assert built.special_ids == gpt2_own().special_ids == {50256}


def test_gpt2_as_metadata_decodes_as_its_own_files() -> None:
    built, rng = gpt2().tokenizer, random.Random(2)
    for _ in range(200):
        ids = [rng.randrange(50300) for _ in range(9)]
        assert built.decode(ids) == gpt2_own().decode(ids)


@together()
@pytest.mark.parametrize("row", LEVEL, ids=lambda row: row.names[0])
def test_words_are_those_that_another_engine_finds_by_the_row(row: Any) -> None:
    for line in awkward_lines(60, 3):
        composed = tokenizers.normalizers.NFC().normalize_str(line) if row.composes else line
        assert words(row.names[0], line) == expected(row.splits, composed), line


SENTENCE = "we'LL iPhone12345 en\u0301(=\r\n\t\n  東ab 3.5€!\n"
SPLIT = {
    "default": "we|'|LL| iPhone|123|45| en|\u0301|(=|\r\n\t\n | 東ab| |3|.|5|€|!|\n",
    "gpt-2": "we|'|LL| iPhone|12345| en|\u0301(=|\r\n\t\n | 東ab| 3|.|5|€!|\n",
    "mpt": "we|'|LL| iPhone|12345| e\u0144|(=|\r\n\t\n | 東ab| 3|.|5|€!|\n",
    "jina-v1-en": "we|'|LL| iPhone|12345| en|\u0301(=|\r\n\t\n | 東ab| 3|.|5|€!|\n",
    "starcoder": "we|'|LL| iPhone|1|2|3|4|5| en|\u0301(=|\r\n\t\n | 東ab| |3|.|5|€!|\n",
    "command-r": "we|'|LL| iPhone|1|2|3|4|5| e\u0144|(=|\r\n\t\n | 東ab| |3|.|5|€!|\n",
    "falcon": "we|'|LL| iPhone|123|45| en|\u0301|(=|\r\n\t\n | 東ab| 3|.|5|€|!|\n",
    "llama3": "we|'LL| iPhone|123|45| en|\u0301(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "dbrx": "we|'LL| iPhone|123|45| en|\u0301(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "glm4": "we|'LL| iPhone|123|45| en|\u0301(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "jais-2": "we|'LL| iPhone|123|45| en|\u0301(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "minicpm5": "we|'LL| iPhone|123|45| en|\u0301(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "qwen2": "we|'LL| iPhone|1|2|3|4|5| e\u0144|(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "deepseek-r1-qwen": "we|'LL| iPhone|1|2|3|4|5| en|\u0301(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "qwen35": "we|'LL| iPhone|1|2|3|4|5| e\u0144|(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "ufakzeka": "we|'LL| iPhone|1|2|3|4|5| en|\u0301(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "laguna": "we|'LL| iPhone|1|2|3|4|5| en|\u0301(=\r|\n|\t|\n| | 東ab| |3|.|5|€!|\n",
    "seed-coder": "we|'LL| iPhone|1|2|3|4|5| en|\u0301(=|\r\n\t\n| | 東ab| |3|.|5|€!|\n",
    "bailingmoe": "we|'LL| iPhone|1|2|3|4|5| en|\u0301(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "exaone-moe": "we|'LL| iPhone|1|2|3|4|5| en\u0301|(=\r|\n\t\n| | 東ab| |3|.|5|€!\n",
    "gpt-4o": "we'LL| i|Phone|123|45| en\u0301|(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "granite-embed-multi-97m": "we'LL| i|Phone|123|45| en\u0301|(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "tiny_aya": "we'LL| i|Phone|12|345| en\u0301|(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "tekken": "we|'LL| i|Phone|1|2|3|4|5| en\u0301|(=\r\n|\t\n| | 東ab| |3|.|5|€!\n",
    "youtu": "we'LL| i|Phone|1|2|3|4|5| en\u0301|(=\r\n|\t\n|  |東|ab| |3|.|5|€!\n",
    "kimi-k2": "we'LL| i|Phone|123|45| en\u0301|(=\r\n|\t\n| | |東|ab| |3|.|5|€!\n",
    "deepseek-v3": "we|'LL| iPhone|123|45| en\u0301|(=\r\n|\t\n|  |東|ab| |3|.|5|€!\n",
    "spark2_5": "we|'LL| iPhone|1|2|3|4|5| en\u0301|(=|\r|\n|\t\n  |東|ab| |3|.|5|€!|\n",
    "deepseek-llm": "we|'|LL| iPhone|12345| en|\u0301|(=|\r|\n|\t|\n|  |東|ab| |3|.|5|€|!|\n",
    "deepseek-coder":
        "we|'|LL| iPhone|1|2|3|4|5| en|\u0301|(|=|\r|\n|\t|\n| | |東|ab| |3|.|5|€|!|\n",
    "afmoe": "we|'LL| iPhone|12|345| en\u0301|(=\r\n|\t\n|  |東|ab| |3|.|5|€!\n",
    "bloom": "we'LL| iPhone12345| en\u0301|(|=|\r\n\t\n | 東ab| 3|.|5€|!\n",
    "viking": "we'LL| iPhone|1|2|3|4|5| en\u0301|(|=|\r\n\t\n | 東ab| |3|.|5|€|!\n",
    "superbpe": "we'LL iPhone|12|345| en\u0301(=\r\n\t\n  東ab |3|.|5|€!\n",
    "chameleon": "we|'|LL| iPhone|1|2|3|4|5| en|\u0301|(|=|\r|\n|\t|\n|  |東ab| |3|.|5|€|!|\n",
}  # fmt: skip
"""The words of ``SENTENCE``, by the first name of each row, as llama.cpp has them too.

It splits differently where its expressions stand for others: of gpt-4o, tekken and kimi-k2 it takes
marks for no letters, of youtu and kimi-k2 letters of all cases alike.
"""


@together()
@pytest.mark.parametrize("pre", SPLIT)
def test_a_sentence_is_split_as_the_model_splits_it(pre: str) -> None:
    assert "|".join(words(pre, SENTENCE)) == SPLIT[pre]


def test_every_row_has_its_words_and_every_name_one_row() -> None:
    assert list(SPLIT) == [row.names[0] for row in LEVEL]
    assert len(BY_NAME) == sum(len(row.names) for row in ROWS)


def small(**others: Any) -> dict[str, Any]:
    """A vocabulary of bytes and of what two merges make, with tokens of every other type."""
    tokens = [*byte_letters(), "ab", "abc", "bc", "<s>", "<|im_end|>", "  ", "né"]
    types = [NORMAL] * 259 + [CONTROL, CONTROL, USER_DEFINED, USER_DEFINED]
    return keyed(
        model="gpt2", pre="gpt-2", tokens=tokens, token_type=types, merges=["a b", "b c", "ab c"],
        bos_token_id=259,
    ) | keyed(**others)  # fmt: skip


def named(text: str, **others: Any) -> list[str]:
    built = tokenizer_of(small(**others))
    names = small()["tokenizer.ggml.tokens"]
    return [names[index] for index in built.tokenizer.encode(text)]


def test_control_and_user_defined_tokens_are_found_before_words() -> None:
    assert named("abc<|im_end|>x   <s>né") == ["abc", "<|im_end|>", "x", "  ", "Ġ", "<s>", "né"]
    built = tokenizer_of(small()).tokenizer
    ids = built.encode("abc<|im_end|>  né")
    assert built.decode(ids) == "abc  né"
    assert built.decode(ids, skip_special_tokens=False) == "abc<|im_end|>  né"


def test_a_word_that_is_a_token_is_taken_whole_where_the_row_says_so() -> None:
    tokens = [*byte_letters(), "ab", "bc", "cabc"]
    merges = ["a b", "b c"]

    def ids(pre: str) -> list[int]:
        built = tokenizer_of(keyed(model="gpt2", pre=pre, tokens=tokens, merges=merges,
                                   add_bos_token=False))  # fmt: skip
        return [tokens[i] for i in built.tokenizer.encode("cabc")]

    assert ids("llama-bpe") == ["cabc"]
    assert ids("dbrx") == ["c", "ab", "c"]


@pytest.mark.parametrize(
    ("said", "around"),
    [
        ({}, ["abc"]),
        ({"add_bos_token": True}, ["<s>", "abc"]),
        ({"add_eos_token": True, "eos_token_id": 260}, ["abc", "<|im_end|>"]),
        ({"pre": "tekken"}, ["<s>", "abc"]),
        ({"pre": "tekken", "add_bos_token": False}, ["abc"]),
    ],
)
def test_what_is_put_around_a_text_is_what_the_file_or_else_the_row_says(
    said: dict[str, Any], around: list[str]
) -> None:
    assert named("abc", **said) == around
    built = tokenizer_of(small(**said)).tokenizer
    assert len(built.encode("abc", add_special_tokens=False)) == 1


@pytest.mark.parametrize("pre", ["gpt4", "Qwen2", "", "whitespace"])
def test_a_rule_that_is_not_known_is_refused_by_name(pre: str) -> None:
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.pre: unknown pre-tokenizer '{pre}'"):
        tokenizer_of(small(pre=pre))


def test_a_file_without_a_rule_is_refused() -> None:
    metadata = small()
    del metadata["tokenizer.ggml.pre"]
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.pre: missing; it names the rule"):
        tokenizer_of(metadata)


def test_a_tokenizer_json_in_the_file_is_used() -> None:
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel({"abc": 5, "?": 0}, unk_token="?"))
    built = tokenizer_of(small() | {"tokenizer.huggingface.json": own.to_str()})
    assert built.tokenizer.encode("abc") == [5]
    own.add_tokens([f"token{index}" for index in range(300)])
    with pytest.raises(CheckpointError, match=r"has 302 tokens, and tokenizer\.ggml\.tokens 263"):
        tokenizer_of(small() | {"tokenizer.huggingface.json": own.to_str()})


@pytest.mark.parametrize("pre", ["gemma4", "sarvam-moe"])
def test_merges_over_text_with_spaces_fall_back_to_bytes(pre: str) -> None:
    tokens = ["<unk>", "<bos>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256)),
              "▁", "a", "b", "▁a", "\n", "\n\n"]  # fmt: skip
    types = [2, CONTROL, CONTROL, *[6] * 256, *[NORMAL] * 6]
    metadata = keyed(
        model="gemma4" if pre == "gemma4" else "gpt2", pre=pre, tokens=tokens, token_type=types,
        merges=["▁ a", "\n \n"], unknown_token_id=0, bos_token_id=1, eos_token_id=2,
        add_bos_token=False,
    )  # fmt: skip
    built = tokenizer_of(metadata)
    found = [tokens[index] for index in built.tokenizer.encode("b a é\n\n")]
    bos = ["<bos>"] if pre == "gemma4" else []
    assert found == [*bos, "b", "▁a", "▁", "<0xC3>", "<0xA9>", "\n\n"]
    assert built.tokenizer.decode(built.tokenizer.encode(" b a é\n")) == " b a é\n"
    assert built.ends == {2}
