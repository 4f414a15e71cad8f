"""SentencePiece's tokenizers from GGUF metadata: ids of SentencePiece itself."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import sentencepiece
import tokenizers
from gguf_files import NORMAL, USER_DEFINED, converted, keyed, trained

from awkward_text import awkward_lines
from ptir.errors import CheckpointError
from ptir.text import Tokenizer
from ptir.text.gguf_tokenizer import tokenizer_of
from ptir.text.gguf_tokenizer.charsmap import CHARSMAP, charsmap_of
from ptir.text.gguf_tokenizer.merges import scored_merges
from ptir.text.gguf_tokenizer.vocabulary import TokenType, Vocabulary
from spaced_tokenizers import joined

PLAIN: Mapping[str, Any] = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bytes": ("bpe", {**PLAIN, "byte_fallback": True}, {}),
    "no_prefix": ("bpe", {**PLAIN, "byte_fallback": True, "add_dummy_prefix": False},
                  {"add_space_prefix": False}),
    "unknown": ("bpe", {**PLAIN, "character_coverage": 0.99}, {}),
    "runs": ("bpe", {**PLAIN, "byte_fallback": True, "split_by_whitespace": False,
                     "remove_extra_whitespaces": False}, {}),
    "unigram": ("unigram", {**PLAIN}, {"add_space_prefix": True}),
    "unigram_bytes": ("unigram", {**PLAIN, "byte_fallback": True, "add_dummy_prefix": False}, {}),
    "unigram_nfkc": ("unigram", {}, {"add_space_prefix": True, "remove_extra_whitespaces": True}),
}  # fmt: skip


def pair(kind: str) -> tuple[sentencepiece.SentencePieceProcessor, Tokenizer]:
    model, options, said = KINDS[kind]
    own = trained(model, 900, **options)
    if kind == "unigram_nfkc":
        said = {**said, "precompiled_charsmap": list(nfkc())}
    added = {"add_bos_token": False, "add_eos_token": False}
    metadata = converted("llama" if model == "bpe" else "t5", own, **said, **added)
    return own, tokenizer_of(metadata).tokenizer


def nfkc() -> bytes:
    """The table of SentencePiece's usual rule, out of the model that it trains by it."""
    proto = trained("unigram", 900).serialized_model_proto()
    return max(_fields(dict_of(proto, 3)), key=len)


def dict_of(message: bytes, number: int) -> bytes:
    return next(value for field, value in _parsed(message) if field == number)


def _fields(message: bytes) -> list[bytes]:
    return [value for _, value in _parsed(message) if isinstance(value, bytes)]


def _parsed(message: bytes) -> list[tuple[int, Any]]:
    """The fields of a message in protobuf's encoding: numbers, and texts or messages as bytes."""
    found: list[tuple[int, Any]] = []
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        value: Any
        if kind == 0:
            value, at = _varint(message, at)
        else:
            length, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            value, at = message[at : at + length], at + length
        found.append((tag >> 3, value))
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_sentencepiece(kind: str) -> None:
    own, built = pair(kind)
    lines = [line for line in awkward_lines(1500, 4) if "\0" not in line]
    other = [line for line in lines if built.encode(line) != own.encode(line)]
    if "unigram" in kind:  # sums of scores in f32 there, in f64 here: few lines are ties
        assert len(other) <= len(lines) // 50
        other = [line for line in other if not as_good(own, built.encode(line), own.encode(line))]
    assert other == []


def as_good(own: sentencepiece.SentencePieceProcessor, ids: list[int], others: list[int]) -> bool:
    """Whether the scores of ``ids`` have a sum that is no less, and is the same in f32."""
    one, other = (sum(map(own.get_score, found)) for found in (ids, others))
    return other <= one < other + 1e-5 * abs(other)


@pytest.mark.parametrize("kind", ["bytes", "no_prefix", "runs", "unigram_bytes"])
def test_texts_come_back(kind: str) -> None:
    _, built = pair(kind)
    for line in awkward_lines(300, 5):
        assert built.decode(built.encode(line)) == line.replace("▁", " ")


@pytest.mark.parametrize("kind", ["bytes", "no_prefix", "unigram"])
def test_streams_add_up_to_decoding_at_once(kind: str) -> None:
    own, built = pair(kind)
    rng, count = random.Random(6), own.get_piece_size()
    texts = [built.encode(line) for line in awkward_lines(100, 7)]
    wild = [[rng.randrange(min(count, rng.choice((280, count)))) for _ in range(14)]
            for _ in range(200)]  # fmt: skip
    for ids in texts + wild:
        stream = built.stream()
        assert "".join([*map(stream.push, ids), stream.flush()]) == built.decode(ids), ids


def test_what_continues_a_prompt_keeps_its_first_space() -> None:
    _, built = pair("bytes")
    prompt, ids = built.encode("one program"), built.encode("and the tests")
    alone, behind = built.stream(), built.stream(after=prompt)
    assert "".join([*map(alone.push, ids), alone.flush()]) == "and the tests"
    assert "".join([*map(behind.push, ids), behind.flush()]) == " and the tests"
    snow = built.encode("☃")[-3:]  # three bytes, and the prompt ends within a character
    torn = built.stream(after=[*prompt, *snow[:2]])
    assert "".join([*map(torn.push, ids), torn.flush()]) == " and the tests"


def test_bytes_of_a_letter_are_shown_when_they_are_complete() -> None:
    _, built = pair("bytes")
    stream = built.stream()
    ids = [*built.encode("a☃"), *built.encode("b")]
    shown = [stream.push(index) for index in ids]
    assert shown[1:4] == ["", "", ""]
    assert "".join([*shown, stream.flush()]) == "a☃ b"


def test_a_space_is_put_in_front_of_every_text_between_special_tokens() -> None:
    own = trained("bpe", 900, **KINDS["bytes"][1])
    built = tokenizer_of(converted("llama", own)).tokenizer
    one = built.encode("one", add_special_tokens=False)
    assert built.encode("one</s>one") == [own.bos_id(), *one, own.eos_id(), *one]
    assert one == own.encode("one")


def random_vocabulary(rng: random.Random, distinct: int) -> tuple[Vocabulary, list[float]]:
    tokens = list(rng.choice(("ab", "abc")))
    for _ in range(rng.randrange(3, 30)):
        token = rng.choice(tokens) + rng.choice(tokens)
        if token not in tokens and len(token) < 9:
            tokens.append(token)
    scores = [float(rng.randrange(distinct)) for _ in tokens]
    if distinct > 1000:
        scores = list(map(float, rng.sample(range(distinct), len(tokens))))
    ids = {token: index for index, token in enumerate(tokens)}
    return Vocabulary(tokens, [TokenType.NORMAL] * len(tokens), ids), scores


@pytest.mark.parametrize("distinct", [3, 40, 100_000])
def test_merges_by_scores_are_sentencepieces_rule_or_are_refused(distinct: int) -> None:
    rng, refused = random.Random(8), 0
    for _ in range(250):
        vocabulary, scores = random_vocabulary(rng, distinct)
        try:
            merges = scored_merges(vocabulary, scores)
        except CheckpointError:
            refused += 1
            continue
        inner = tokenizers.Tokenizer(tokenizers.models.BPE(dict(vocabulary.ids), merges))
        by_token = dict(zip(vocabulary.tokens, scores, strict=True))
        for _ in range(20):
            text = "".join(rng.choices(vocabulary.tokens[:2], k=rng.randrange(1, 30)))
            assert inner.encode(text).tokens == joined(text, by_token), (vocabulary, scores)
    assert (
        {3: 180, 40: 60, 100_000: -1}[distinct] < refused < {3: 250, 40: 200, 100_000: 1}[distinct]
    )


def runs(score: float) -> tuple[Vocabulary, list[float]]:
    tokens = ["▁", "a", *("▁" * length for length in range(2, 17)), "▁a"]
    ids = {token: index for index, token in enumerate(tokens)}
    scores = [-5.0, -6.0, *[score] * 15, -1.0]
    return Vocabulary(tokens, [TokenType.NORMAL] * len(tokens), ids), scores


def test_runs_of_one_score_are_joined_from_the_left() -> None:
    vocabulary, scores = runs(-1e9)
    merges = scored_merges(vocabulary, scores)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(dict(vocabulary.ids), merges))
    by_token = dict(zip(vocabulary.tokens, scores, strict=True))
    for length in range(1, 60):
        for text in ("▁" * length, "▁" * length + "a", "a" + "▁" * length):
            assert inner.encode(text).tokens == joined(text, by_token)


@pytest.mark.parametrize(
    ("tokens", "scores", "message"),
    [
        ("a b c ab bc", (0, 0, 0, -1, -1), None),
        ("a b c ab bc", (0, 0, 0, -1, -2), None),
        ("a b ab ba", (0, 0, -1, -1), "'ab' and 'ba' overlap in both ways"),
        ("a b ab aba", (0, 0, -1, -1), "2 tokens have one score .-1., .*, 'ab' among them"),
        ("a b aa aab", (0, 0, -2, -2), "'aa' among them"),
    ],
)
def test_scores_that_leave_open_what_is_joined_first_are_refused(
    tokens: str, scores: Sequence[float], message: str | None
) -> None:
    names = tokens.split()
    metadata = keyed(
        model="llama", tokens=[*names, "<unk>"], scores=[*scores, 0],
        token_type=[NORMAL] * len(names) + [2], unknown_token_id=len(names), add_bos_token=False,
    )  # fmt: skip
    if message is None:
        assert tokenizer_of(metadata).tokenizer.vocab_size == len(names) + 1
        return
    with pytest.raises(CheckpointError, match=rf"^tokenizer\.ggml\.scores: .*{message}"):
        tokenizer_of(metadata)


def test_scores_that_are_all_alike_are_refused() -> None:
    own = trained("bpe", 900, **KINDS["bytes"][1])
    metadata = converted("llama", own, scores=[-1000.0] * own.get_piece_size())
    with pytest.raises(CheckpointError, match=r"tokens have one score \(-1000\)"):
        tokenizer_of(metadata)


def test_characters_are_replaced_as_sentencepiece_replaces_them() -> None:
    normalizer = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )  # fmt: skip
    table = charsmap_of({CHARSMAP: nfkc()})
    assert table is not None
    for line in awkward_lines(1500, 9):
        if "\0" not in line:
            assert table.replaced(line) == normalizer.normalize(line), line


def test_the_name_of_a_byte_in_a_text_is_no_byte() -> None:
    _, built = pair("unigram_bytes")
    assert built.decode(built.encode("x<0x41>y")) == "x<0x41>y"
    byte = built.id_of("<0x41>")
    assert byte not in built.encode("x<0x41>y<0x41>")


def test_user_defined_tokens_are_found_before_pieces() -> None:
    own = trained("bpe", 900, **KINDS["bytes"][1])
    metadata = converted("llama", own, add_bos_token=False)
    for key, value in (("tokens", "<|x|> y"), ("scores", -1000.0), ("token_type", USER_DEFINED)):
        metadata[f"tokenizer.ggml.{key}"].append(value)
    built = tokenizer_of(metadata).tokenizer
    new = own.get_piece_size()
    assert built.encode("<|x|> y") == [new]
    assert built.encode("a<|x|> yb") == [*own.encode("a"), new, *own.encode("b")]
    assert built.decode([new]) == "<|x|> y"
    assert new not in built.special_ids


def test_user_defined_tokens_of_one_score_are_no_ties() -> None:
    """As Gemma's files have them: runs of lines and of spaces, tags, all of one score."""
    own = trained("bpe", 900, **KINDS["bytes"][1])
    metadata = converted("llama", own, add_bos_token=False)
    names = ["\n\n", "\n\n\n", "\n\n\n\n", "  ", "   ", "<td>", "</td>", "aa", "aaa", "aab"]
    for key, value in (("scores", -1000.0), ("token_type", USER_DEFINED)):
        metadata[f"tokenizer.ggml.{key}"] += [value] * len(names)
    metadata["tokenizer.ggml.tokens"] += names
    built = tokenizer_of(metadata).tokenizer
    new = {name: own.get_piece_size() + index for index, name in enumerate(names)}
    assert built.encode("\n\n\n\n\n<td>   </td>") == [
        new["\n\n\n\n"], *own.encode("\n"), new["<td>"], new["   "], new["</td>"]
    ]  # fmt: skip
    assert built.encode("aabaaaa") == [new["aab"], new["aaa"], *own.encode("a")]
