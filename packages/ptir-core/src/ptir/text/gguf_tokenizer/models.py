"""A ``tokenizers.Tokenizer`` for each kind of tokenizer that GGUF files describe."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ptir.errors import CheckpointError, short
from ptir.text.gguf_tokenizer.charsmap import charsmap_of
from ptir.text.gguf_tokenizer.fields import AGAIN, PREFIX, Metadata, flag, text
from ptir.text.gguf_tokenizer.merges import listed_merges, scored_merges, scores_of
from ptir.text.gguf_tokenizer.pre_tokenizers import BY_NAME, PreTokenizer, pre_tokenizer
from ptir.text.gguf_tokenizer.special import Roles, special_ids
from ptir.text.gguf_tokenizer.vocabulary import SPACE, TOKENS, TokenType, Vocabulary

if TYPE_CHECKING:
    import tokenizers


_IN_BYTE: Final = "(?<=<)(?=0x[0-9A-F]{2}>)"
"""Where texts are split that spell the name of a byte: such tokens are not for text."""


class Adds(NamedTuple):
    """Which tokens a text is given: one in front (``bos``), one behind (``eos`` or ``sep``)."""

    bos: bool = False
    eos: bool = False
    sep: bool = False


class Described(NamedTuple):
    """All that a builder is told: the file's ``metadata`` and what was read of it.

    What is ``portable`` can be written as a ``tokenizer.json``.
    """

    metadata: Metadata
    model: str
    vocabulary: Vocabulary
    roles: Roles
    portable: bool = False


class Model(NamedTuple):
    """One kind: how it is built, and which tokens a text is given where the file does not say."""

    build: Callable[[Described], tokenizers.Tokenizer]
    adds: Callable[[Metadata], Adds]


def _pre_tokenizer(metadata: Metadata, model: str) -> PreTokenizer:
    if model == "gemma4":
        return BY_NAME["gemma4"]
    name = text(metadata, f"{PREFIX}pre")
    if name is None:
        raise CheckpointError(
            f"{PREFIX}pre: missing; it names the rule by which text is split into words, and files"
            f" before April 2024 lack it: {AGAIN}, or take the model's own tokenizer.json"
        )
    return pre_tokenizer(name)


def _bpe(described: Described) -> tokenizers.Tokenizer:
    """Byte-pair encoding by a list of merges."""
    row = _pre_tokenizer(described.metadata, described.model)
    merges = listed_merges(described.metadata, described.vocabulary, described.model)
    return _byte_level(described, row, merges) if row.byte_level else _spaced(described, merges)


def _byte_level(
    described: Described, row: PreTokenizer, merges: list[tuple[str, str]]
) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers

    model = tokenizers.models.BPE(
        dict(described.vocabulary.ids), merges, ignore_merges=row.ignore_merges
    )
    inner = tokenizers.Tokenizer(model)
    splits = [pre_tokenizers.Split(tokenizers.Regex(one), "isolated") for one in row.splits]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([*splits, spelled])
    inner.decoder = decoders.Sequence([*_texts_spelled(described), decoders.ByteLevel()])
    if row.composes:
        inner.normalizer = normalizers.NFC()
    return inner


def _texts_spelled(described: Described) -> list[tokenizers.decoders.Decoder]:
    """What spells tokens that are text, such as a user's ``né``, where they look like bytes."""
    import tokenizers
    from tokenizers import decoders, pre_tokenizers

    vocabulary = described.vocabulary
    texts = special_ids(vocabulary, described.roles).union(
        vocabulary.of_type(TokenType.USER_DEFINED)
    )
    letters = set(pre_tokenizers.ByteLevel.alphabet())
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [
        decoders.Replace(
            tokenizers.Regex(rf"\A{re.escape(text)}\z"), bytes_of.pre_tokenize_str(text)[0][0]
        )
        for text in (vocabulary.tokens[index] for index in sorted(texts))
        if not text.isascii() and letters.issuperset(text)
    ]


def _spaced(described: Described, merges: list[tuple[str, str]]) -> tokenizers.Tokenizer:
    """Merges over a whole text whose spaces are ``▁``; characters that are no token are bytes."""
    import tokenizers

    model = tokenizers.models.BPE(
        dict(described.vocabulary.ids),
        merges,
        unk_token=_unknown(described),
        fuse_unk=True,
        byte_fallback=_has_bytes(described.vocabulary),
    )
    prefix = flag(described.metadata, f"{PREFIX}add_space_prefix", described.model == "llama")
    return _with_spaces(tokenizers.Tokenizer(model), prefix)


def _scored(described: Described) -> tokenizers.Tokenizer:
    """Byte-pair encoding by scores, as SentencePiece does it."""
    scores = scores_of(described.metadata, described.vocabulary, described.model)
    return _spaced(described, scored_merges(described.vocabulary, scores))


def _with_spaces(
    inner: tokenizers.Tokenizer, prefix: bool, *before: tokenizers.normalizers.Normalizer
) -> tokenizers.Tokenizer:
    from tokenizers import decoders, normalizers

    first = [normalizers.Prepend(SPACE)] if prefix else []
    inner.normalizer = normalizers.Sequence([*before, *first, normalizers.Replace(" ", SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    inner.decoder = decoders.Sequence(parts)
    return inner


def _unigram(described: Described) -> tokenizers.Tokenizer:
    """The pieces whose scores have the greatest sum, after characters were replaced."""
    import tokenizers
    from tokenizers import normalizers, pre_tokenizers

    metadata, vocabulary = described.metadata, described.vocabulary
    scores = scores_of(metadata, vocabulary, described.model)
    model = tokenizers.models.Unigram(
        list(zip(vocabulary.tokens, scores, strict=True)),
        unk_id=vocabulary.ids[_unknown(described)],
        byte_fallback=_has_bytes(vocabulary),
    )
    table = charsmap_of(metadata)
    before: list[Any] = []
    if table is not None:
        as_json = normalizers.Precompiled(table.whole) if described.portable else None
        before.append(as_json or normalizers.Normalizer.custom(table))
    if flag(metadata, f"{PREFIX}remove_extra_whitespaces", False):
        before.append(normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), ""))
        before.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(_IN_BYTE), "isolated")
    return _with_spaces(inner, flag(metadata, f"{PREFIX}add_space_prefix", False), *before)


def _word_piece(described: Described) -> tokenizers.Tokenizer:
    """The longest pieces of each word; GGUF marks pieces that begin one, BERT those that do not."""
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers

    lower = flag(described.metadata, f"{PREFIX}normalizer.lowercase", True)
    strip = flag(described.metadata, f"{PREFIX}normalizer.strip_accents", lower)
    unknown = _unknown(described)
    model = tokenizers.models.WordPiece(
        _marked(described), unk_token=unknown, max_input_chars_per_word=100
    )
    inner = tokenizers.Tokenizer(model)
    inner.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    return inner


def _marked(described: Described) -> dict[str, int]:
    vocabulary, roles = described.vocabulary, described.roles
    names = special_ids(vocabulary, roles).union(
        vocabulary.of_type(TokenType.USER_DEFINED), [roles.ids["unk"]]
    )
    ids: dict[str, int] = {}
    for index, token in enumerate(vocabulary.tokens):
        begins = token.startswith(SPACE)
        name = token if index in names else token[1:] if begins else f"##{token}"
        if ids.setdefault(name, index) != index:
            raise CheckpointError(
                f"{TOKENS}: tokens {ids[name]} and {index} both are {short(name)} to BERT; {AGAIN}"
            )
    return ids


def _unknown(described: Described) -> str:
    index = described.roles.ids.get("unk")
    if index is None:
        raise CheckpointError(
            f"{PREFIX}unknown_token_id: missing; {described.model!r} needs a token for characters"
            f" that no token has; {AGAIN}"
        )
    return described.vocabulary.tokens[index]


def _has_bytes(vocabulary: Vocabulary) -> bool:
    return all(f"<0x{byte:02X}>" in vocabulary.ids for byte in range(256))


def _bpe_adds(metadata: Metadata) -> Adds:
    row = _pre_tokenizer(metadata, text(metadata, f"{PREFIX}model") or "")
    return Adds(bos=row.adds_bos, sep=row.adds_sep)


MODELS: Final[Mapping[str, Model]] = {
    "gpt2": Model(_bpe, _bpe_adds),
    "gemma4": Model(_bpe, _bpe_adds),
    "llama": Model(_scored, lambda _: Adds(bos=True)),
    "bert": Model(_word_piece, lambda _: Adds(bos=True, sep=True)),
    "t5": Model(_unigram, lambda _: Adds(eos=True)),
}
"""By ``tokenizer.ggml.model``: every kind that can be built."""

REFUSED: Final[Mapping[str, str]] = {
    "rwkv": "its tokens are chosen by a trie of bytes, the longest first",
    "plamo2": "its tokens are chosen by a table of suffixes",
    "hybriddna": "its tokens depend on tags in the text",
    "whitespace": "it drops the white space between words",
    "none": "the file has no tokenizer; run it on token ids",
    "no_vocab": "the file has no tokenizer; run it on token ids",
}
"""By ``tokenizer.ggml.model``: kinds that exist and are not built, and why."""
