"""Text to token ids and back, over the ``tokenizers`` library, with streaming detokenization."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ptir.checkpoint.json_text import parse_json_object
from ptir.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    import tokenizers

_END_OF_TEXT: Final = "<|endoftext|>"
_BYTE: Final = re.compile("<0x[0-9A-F]{2}>")
_BROKEN: Final = "\ufffd"
_CONTEXT: Final = 32


_ROBERTA: Final = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
"""The special tokens of RoBERTa's vocabularies, which are otherwise like GPT-2's."""


@dataclass(frozen=True)
class EncodedText:
    """A text, or two that are read together, as an encoder takes it.

    By token: its id, the number of its text, where in that text it stands (characters, from and
    to), and whether it is one that the tokenizer's template added. ``length`` is how many tokens
    there were before some were cut off.
    """

    ids: tuple[int, ...]
    kinds: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    added: tuple[bool, ...]
    length: int


class Tokenizer:
    """Encodes and decodes text; built with ``from_json``, ``from_gpt2`` or ``from_words``."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        added = inner.get_added_tokens_decoder()
        self.special_ids: Final = frozenset(i for i, token in added.items() if token.special)
        self._lock = threading.Lock()

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The tokenizer of a ``tokenizer.json``'s text; raises ``CheckpointError``.

        Truncation and padding set in the file are dropped: encoding never loses or adds text.
        """
        import tokenizers

        parse_json_object(text, "tokenizer.json")
        try:
            return cls(tokenizers.Tokenizer.from_str(text))
        except Exception as error:  # the library raises nothing more specific
            raise CheckpointError(f"tokenizer.json: cannot be used: {error}") from error

    @classmethod
    def from_gpt2(cls, vocab: str, merges: str) -> Tokenizer:
        """Byte-level BPE without prefix space from the texts of ``vocab.json`` and ``merges.txt``.

        ``<|endoftext|>`` is special when the vocabulary has it. One with all special tokens of
        RoBERTa marks the ends of texts as that does. Raises ``CheckpointError``.
        """
        import tokenizers

        ids = _vocabulary(vocab)
        if "e</w>" in ids:
            raise CheckpointError(
                "vocab.json marks the ends of words (</w>), as CLIP's does; that is read from"
                " tokenizer.json alone: save the tokenizer as tokenizer.json beside it"
            )
        try:
            model = tokenizers.models.BPE(ids, _merges(merges))
        except Exception as error:  # the library raises nothing more specific
            raise CheckpointError(f"vocab.json and merges.txt do not fit: {error}") from error
        inner = tokenizers.Tokenizer(model)
        inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = tokenizers.decoders.ByteLevel()
        if _END_OF_TEXT in ids:
            inner.add_special_tokens([_END_OF_TEXT])
        if ids.keys() >= set(_ROBERTA):
            marks = (tokenizers.AddedToken(name, lstrip=name == "<mask>") for name in _ROBERTA)
            inner.add_special_tokens([*marks])
            inner.post_processor = _ends(ids, "<s>", "</s>", kinds=False)
        return cls(inner)

    @classmethod
    def from_words(cls, vocab: str, config: Mapping[str, Any]) -> Tokenizer:
        """WordPiece from the text of a ``vocab.txt``, a piece a line, as BERT's tokenizer has it.

        ``config`` is what ``tokenizer_config.json`` says: ``do_lower_case`` (true unless it says
        otherwise), ``strip_accents``, ``tokenize_chinese_chars`` and special tokens. Raises
        ``CheckpointError``.
        """
        import tokenizers
        from tokenizers import decoders, normalizers, pre_tokenizers

        pieces = vocab.split("\n")
        pieces = pieces[:-1] if pieces[-1] == "" else pieces
        ids = {piece.rstrip("\r"): number for number, piece in enumerate(pieces)}
        if len(ids) != len(pieces):
            raise CheckpointError("vocab.txt: two lines are the same piece; pieces must differ")
        first, last, unknown = (
            _special(config, ids, key, names)
            for key, names in (
                ("cls_token", ("[CLS]", "<s>")),
                ("sep_token", ("[SEP]", "</s>")),
                ("unk_token", ("[UNK]", "<unk>")),
            )
        )
        lower = config.get("do_lower_case", True) is not False
        inner = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=100)
        )
        inner.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=config.get("tokenize_chinese_chars", True) is not False,
            strip_accents=config.get("strip_accents"),
            lowercase=lower,
        )
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.decoder = decoders.WordPiece()
        known = (first, last, unknown, "[PAD]", "<pad>", "[MASK]", "<mask>")
        inner.add_special_tokens([name for name in dict.fromkeys(known) if name in ids])
        inner.post_processor = _ends(ids, first, last, kinds=first == "[CLS]")
        return cls(inner)

    def to_json(self) -> str:
        """The text of a ``tokenizer.json``; raises ``CheckpointError`` for parts in Python."""
        try:
            text: str = self._inner.to_str(pretty=True)
        except Exception as error:  # the library raises nothing more specific
            raise CheckpointError(f"the tokenizer cannot be saved: {error}") from error
        return text

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return self._inner.get_vocab_size(with_added_tokens=True)

    def added_tokens(self) -> dict[int, dict[str, bool]]:
        """The tokens that are found in a text before it is split, by id, and how they are found.

        ``single_word``, ``lstrip`` and ``rstrip`` as the library has them; ``normalized`` holds
        only where that changes what is found.
        """
        normalizer = self._inner.normalizer

        def changed(name: str) -> bool:
            return normalizer is not None and (
                "▁" in name or normalizer.normalize_str(name) != name
            )

        return {
            index: {
                "single_word": one.single_word,
                "lstrip": one.lstrip,
                "rstrip": one.rstrip,
                "normalized": one.normalized and changed(one.content),
            }
            for index, one in self._inner.get_added_tokens_decoder().items()
        }

    def encode(
        self, text: str, *, add_special_tokens: bool = True, quoted: Sequence[range] = ()
    ) -> list[int]:
        """Token ids of ``text``; raises ``UsageError`` for text that is not valid Unicode.

        ``add_special_tokens`` applies the tokenizer's own template (such as a leading ``<s>``).
        ``quoted`` are the places of characters that spell special tokens and are text all the same.
        """
        _check_unicode(text)
        with self._lock:
            found = self._inner.encode(text, add_special_tokens=add_special_tokens)
        if not quoted:
            whole: list[int] = found.ids
            return whole
        starts = frozenset(place.start for place in quoted)
        ids: list[int] = []
        for index, (first, end) in zip(found.ids, found.offsets, strict=True):
            within = index in self.special_ids and not starts.isdisjoint(range(first, end))
            ids += self._letters(text[first:end]) if within else [index]
        return ids

    def encode_text(
        self, text: str, second: str | None = None, *, limit: int | None = None
    ) -> EncodedText:
        """A text, or two that are read together, with what the tokenizer's template adds.

        At most ``limit`` tokens: more are cut off, of the longer text first. Raises ``UsageError``
        for text that is not valid Unicode and for a limit that leaves nothing of it.
        """
        pair = second is not None
        for one in (text, second or ""):
            _check_unicode(one)
        with self._lock:
            inner = self._inner
            if limit is not None and inner.num_special_tokens_to_add(pair) >= limit:
                raise UsageError(f"{limit} tokens leave no room for a text beside its marks")
            found = inner.encode(text, second)
            length = len(found.ids)
            if limit is not None and length > limit:
                inner.enable_truncation(limit)
                try:
                    found = inner.encode(text, second)
                finally:
                    inner.no_truncation()
        added = tuple(bool(mask) for mask in found.special_tokens_mask)
        return EncodedText(
            tuple(found.ids), tuple(found.type_ids), tuple(found.offsets), added, length
        )

    @cached_property
    def control(self) -> re.Pattern[str]:
        """Special tokens as they are spelled in a text, the longest first."""
        names = sorted((self.token(index) for index in self.special_ids), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def _letters(self, text: str) -> list[int]:
        """Token ids of a text in which no token is special."""
        with self._lock:
            self._inner.encode_special_tokens = True
            try:
                ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
            finally:
                self._inner.encode_special_tokens = False
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; bytes that are no character become U+FFFD.

        Ids that the tokenizer lacks have no text, as in Hugging Face's libraries: a model's
        vocabulary may be padded beyond its tokenizer's. Raises ``UsageError`` for what is no id.
        """
        known = [index for index in ids if self.has(index)]
        return self._inner.decode(known, skip_special_tokens=skip_special_tokens)

    def stream(self, *, skip_special_tokens: bool = True, after: Sequence[int] = ()) -> TextStream:
        """A detokenizer for ids that arrive one at a time, behind the ids ``after``.

        A tokenizer that puts a space in front of every text takes it off where a text begins, so
        what continues a prompt is told the prompt: its first word keeps its space.
        """
        return TextStream(self, skip_special_tokens, after)

    def id_of(self, token: str) -> int:
        """The id of one token as spelled in the vocabulary; raises ``UsageError``."""
        index = self._inner.token_to_id(token)
        if index is None:
            raise UsageError(f"token {token!r} is not in the vocabulary of {self.vocab_size}")
        return index

    def knows(self, token: str) -> bool:
        """Whether a token is spelled so in the vocabulary."""
        return self._inner.token_to_id(token) is not None

    def token(self, index: int) -> str:
        """How a token is spelled in the vocabulary; nothing for an id that is none."""
        return self._inner.id_to_token(index) or ""

    def has(self, index: int) -> bool:
        """Whether ``index`` is the id of a token; ``UsageError`` for what can be no id."""
        if not 0 <= index < 1 << 32:
            raise UsageError(f"token id {index}: must be an integer in [0, 2**32)")
        return self._inner.id_to_token(index) is not None

    def is_byte(self, index: int) -> bool:
        """Whether ``index`` is one byte (``<0xE2>``) of a character that is no token itself."""
        token = self._inner.id_to_token(index)
        return self._has_bytes and token is not None and _BYTE.fullmatch(token) is not None

    @cached_property
    def _has_bytes(self) -> bool:
        """Whether tokens called ``<0x41>`` are decoded to bytes."""
        letter = self._inner.token_to_id("<0x41>")
        return letter is not None and self._inner.decode([letter]) == "A"


class TextStream:
    """Detokenizes ids one at a time, never splitting a character.

    What ``push`` and ``flush`` return adds up to ``decode`` of all ids, or to what that gives of
    them behind ``after``. Bytes that are tokens are held back until another token follows: what
    they are depends on all of them.
    """

    def __init__(self, owner: Tokenizer, skip_special_tokens: bool, after: Sequence[int]) -> None:
        self._owner = owner
        self._unseen = owner.special_ids if skip_special_tokens else frozenset[int]()
        self._ids: list[int] = self._context(after)
        self._shown = len(self._ids)  # how many ids have been shown
        self._start = 0  # of the shown ones, where those begin that the next are decoded behind
        self._known = len(self._decoded())  # how much of the text from there has been shown

    def push(self, index: int) -> str:
        """The text that ``index`` completes, often empty, and always for ids without a token."""
        if not self._owner.has(index) or index in self._unseen:
            return ""
        self._ids.append(index)
        text = "" if self._owner.is_byte(index) else self._decoded()
        if len(text) <= self._known or text.endswith(_BROKEN):
            return ""
        new = text[self._known :]
        self._start, self._shown = self._shown, len(self._ids)
        self._known = len(self._decoded())
        return new

    def flush(self) -> str:
        """The rest, at the end: bytes that never became a character appear as U+FFFD."""
        text = self._decoded()
        new, self._known = text[self._known :], len(text)
        return new

    def _decoded(self) -> str:
        return self._owner.decode(self._ids[self._start :], skip_special_tokens=False)

    def _context(self, after: Sequence[int]) -> list[int]:
        """The last of ``after`` that is text by itself, if one of its last few is."""
        for index in reversed(after[-_CONTEXT:]):
            if index in self._unseen or not self._owner.has(index) or self._owner.is_byte(index):
                continue
            if _BROKEN not in self._owner.decode([index], skip_special_tokens=False):
                return [index]
        return []


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        bad = text[error.start]
        raise UsageError(f"text holds {bad!r} at {error.start}: it must be Unicode") from error


def _special(
    config: Mapping[str, Any], ids: Mapping[str, int], key: str, usual: Sequence[str]
) -> str:
    """The special token that a configuration names, or the first of the usual ones there is."""
    said = config.get(key)
    said = said.get("content") if isinstance(said, Mapping) else said
    for name in (said, *usual):
        if isinstance(name, str) and name in ids:
            return name
    raise CheckpointError(
        f"vocab.txt has no {key} ({' or '.join(usual)}); put the model's tokenizer.json beside it"
    )


def _ends(ids: Mapping[str, int], first: str, last: str, *, kinds: bool) -> Any:
    """What marks the ends of texts: of two, tokens have kinds, or an end mark more stands between.

    The former as BERT was trained, the latter as RoBERTa.
    """
    from tokenizers import processors

    between, second = ("", ":1") if kinds else (f" {last}", "")
    return processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last}{between} $B{second} {last}{second}",
        special_tokens=[(name, ids[name]) for name in (first, last)],
    )


def _vocabulary(text: str) -> dict[str, int]:
    ids: dict[str, Any] = parse_json_object(text, "vocab.json")
    for token, index in ids.items():
        if type(index) is not int or not 0 <= index < 1 << 32:
            raise CheckpointError(f"vocab.json: token {token!r} has id {index!r}, not an id")
    if len(set(ids.values())) != len(ids):
        raise CheckpointError("vocab.json: two tokens share an id; ids must be unique")
    return ids


def _merges(text: str) -> list[tuple[str, str]]:
    lines = [line.rstrip("\r") for line in text.split("\n")]
    first = 1 if lines[0].startswith("#version") else 0
    rows = {number: line.split(" ") for number, line in enumerate(lines, 1) if line}
    pairs: list[tuple[str, str]] = []
    for number, row in rows.items():
        if number > first and len(row) != 2:
            raise CheckpointError(f"merges.txt: line {number} is {row}, not two tokens")
        if number > first:
            pairs.append((row[0], row[1]))
    return pairs
