"""A ``tokenizer.json`` that merges as SentencePiece does, said by scores as GGUF files say it.

Merges have ranks, and files have a score for each token: of all neighbours that are a token
together those are joined whose token has the best score, the leftmost first. What a token is last
made of where it stands alone is what it is made of in any text: no merge crosses where it begins
and ends until then, so those within it are the same. So each token has *one* merge that ever
happens, and its rank is the order of the scores. A token that stands alone as two others, which no
merge joins, is joined by its score all the same: then there are no scores with the same ids.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

from ptir.errors import CheckpointError, short
from ptir.text.gguf_tokenizer.fields import PREFIX
from ptir.text.gguf_tokenizer.merges import MERGES, SCORES
from ptir.text.gguf_tokenizer.model_file import piece_scores
from ptir.text.gguf_tokenizer.special import KEYS
from ptir.text.gguf_tokenizer.vocabulary import SPACE, TOKENS, TYPES, TokenType

ADVICE: Final = "convert to a folder or to a .safetensors file, which carry any tokenizer"
"""What to do about a tokenizer that GGUF files cannot describe."""
ADDED: Final = -1000.0
"""The score of tokens that are found before text is merged, as llama.cpp's converter has it."""
LISTS_MERGES: Final = ("gemma4",)
"""Architectures whose files list merges instead of scores, and have that name for the kind."""

_BYTE: Final = re.compile("<0x[0-9A-F]{2}>")
_UNSAID: Final[Mapping[str, tuple[Any, ...]]] = {
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "dropout": (None, 0, 0.0),
}
"""Fields of the model that no key says, and what they are where they do nothing."""
_REPLACE: Final = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND: Final = {"type": "Prepend", "prepend": SPACE}
_SPLIT: Final = {
    "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False
}  # fmt: skip
"""What Gemma's file says besides; no space is left there to split at."""

Rank = Mapping[tuple[str, str], int]


def merges_spaces(whole: Mapping[str, Any]) -> bool:
    """Whether a ``tokenizer.json`` merges text whose spaces are ``▁``."""
    steps = [*_steps(whole.get("normalizer")), *_steps(whole.get("pre_tokenizer"))]
    return any(
        one.get("type") == "Metaspace" or one.get("content") == SPACE or one == _PREPEND
        for one in steps
    )


def described_merges(
    whole: Mapping[str, Any],
    rows: dict[str, Any],
    architecture: str = "",
    model_file: Path | None = None,
) -> dict[str, Any]:
    """The metadata of such a tokenizer, whose tokens and their types are ``rows``.

    ``model_file`` is its ``tokenizer.model``, whose scores it has, where there is one. Raises
    ``CheckpointError`` where no metadata gives the same ids, with what it is of the file.
    """
    import numpy as np

    prefix = _prefix(whole)
    ranks = {_pair(one): rank for rank, one in enumerate(whole["model"]["merges"])}
    tokens, types = list(rows[TOKENS]), [TokenType(int(one)) for one in rows[TYPES]]
    unknown = _mark(whole, tokens, types)
    said = {f"{PREFIX}add_space_prefix": prefix} | unknown
    _check_model(whole["model"], tokens, types, ranks)
    if architecture in LISTS_MERGES and not prefix:
        return {
            f"{PREFIX}model": architecture,
            TOKENS: tokens,
            TYPES: np.array(types, np.int32),
            MERGES: [" ".join(pair) for pair in ranks],
            **said,
        }
    order = _order(tokens, types, ranks, _found_before(whole))
    if whole["model"].get("ignore_merges"):
        _check_whole(tokens, types, order)
    scores = {} if model_file is None else piece_scores(model_file)
    made = order.keys() & _plain(whole)
    types = [
        TokenType.NORMAL if token in made else kind
        for token, kind in zip(tokens, types, strict=True)
    ]
    return {
        f"{PREFIX}model": "llama",
        f"{PREFIX}pre": "default",
        TOKENS: tokens,
        TYPES: np.array(types, np.int32),
        SCORES: np.array(_scores(tokens, types, order, scores), np.float32),
        **said,
    }


def refuse(what: str, why: str, advice: str = ADVICE) -> NoReturn:
    """Raise for a property of a ``tokenizer.json``."""
    raise CheckpointError(f"tokenizer.json: {what}: {why}: {advice}")


def _steps(given: Any) -> list[Mapping[str, Any]]:
    if not isinstance(given, dict):
        return []
    inner = given.get("normalizers", given.get("pretokenizers"))
    return [given] if inner is None else [step for one in inner for step in _steps(one)]


def _prefix(whole: Mapping[str, Any]) -> bool:
    """Whether every text is given a space in front; raises for any other rule of spaces."""
    first, then = _steps(whole.get("normalizer")), _steps(whole.get("pre_tokenizer"))
    for one in then:
        if one.get("type") != "Metaspace":
            continue
        before = "always" if one.get("add_prefix_space", True) else "never"  # as older files say it
        scheme = one.get("prepend_scheme", before)
        if scheme != "never" or one.get("replacement", SPACE) != SPACE:
            refuse(
                f"pre_tokenizer Metaspace with prepend_scheme {scheme!r}",
                "puts a space in front of some texts (not of those that begin with one), and files"
                " say that all are given one or none (add_space_prefix)",
            )
        if one.get("split", True):
            refuse(
                "pre_tokenizer Metaspace with split true",
                "merges nothing across spaces, and files of scores have no words",
            )
    spaces = [one for one in then if one.get("type") == "Metaspace"]
    other = [one for one in first if one not in (_REPLACE, _PREPEND)]
    other += [one for one in then if one not in spaces and one != _SPLIT]
    if other:
        refuse(
            f"a step {other[0].get('type')} around merges with {SPACE}",
            "files say that spaces are replaced and that one stands in front, and no more",
        )
    if _REPLACE not in first and (_SPLIT in then or not spaces):
        refuse(f"spaces stay beside {SPACE}", "files say that all are replaced")
    if first.count(_PREPEND) > 1:
        refuse(f"{SPACE} is put in front twice", "files say it of one (add_space_prefix)")
    return _PREPEND in first


def _pair(merge: Any) -> tuple[str, str]:
    left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
    return left, right


def _mark(whole: Mapping[str, Any], tokens: list[str], types: list[TokenType]) -> dict[str, int]:
    """Set the types of bytes and of the unknown token, and of ids without a token."""
    for index, token in enumerate(tokens):
        if types[index] is TokenType.NORMAL and _BYTE.fullmatch(token):
            types[index] = TokenType.BYTE
        if types[index] is TokenType.NORMAL and token == f"[PAD{index}]":
            types[index] = TokenType.UNUSED
    name = whole["model"].get("unk_token")
    if name not in tokens:
        return {}
    unknown = tokens.index(name)
    types[unknown] = TokenType.UNKNOWN
    return {PREFIX + KEYS["unk"][0]: unknown}


def _check_model(
    model: Mapping[str, Any], tokens: list[str], types: list[TokenType], ranks: Rank
) -> None:
    for field, values in _UNSAID.items():
        if model.get(field) not in values:
            refuse(f"model.{field} {model[field]!r}", "is nothing that files say")
    held = [token for token, kind in zip(tokens, types, strict=True) if kind is TokenType.BYTE]
    if model.get("byte_fallback") and len(held) < 256:
        refuse(
            "model.byte_fallback true",
            f"{len(held)} of 256 bytes are tokens (<0x00> to <0xFF>), and files say that characters"
            " without a token are bytes where all of them are",
        )
    if not model.get("byte_fallback") and len(held) == 256:
        refuse("model.byte_fallback false", "all bytes are tokens, so files say that it is true")
    if not held and (model.get("unk_token") is None or not model.get("fuse_unk")):
        refuse(
            f"model.unk_token {model.get('unk_token')!r}, fuse_unk {bool(model.get('fuse_unk'))}",
            "characters in a row that no token has are one unknown token in files of scores",
        )
    names = set(held)
    for pair in ranks:
        if not names.isdisjoint((*pair, "".join(pair))):
            refuse(f"model.merges {short(pair)}", "bytes are not merged in files")


def _found_before(whole: Mapping[str, Any]) -> list[str]:
    """Added tokens that no text has any more when it is merged."""
    return [
        one["content"]
        for one in whole.get("added_tokens", [])
        if SPACE not in one["content"] and not one["single_word"]
    ]


def _order(
    tokens: list[str], types: list[TokenType], ranks: Rank, before: Collection[str]
) -> dict[str, int]:
    """The rank of the merge that makes each token, of those that are ever made."""
    found: dict[str, int] = {}
    for token, kind in zip(tokens, types, strict=True):
        if len(token) < 2 or not _spelled(token, kind):
            continue
        parts, rank = _joined(token, ranks)
        if len(parts) < 3 and kind in _MARKS:
            refuse(f"special token {short(token)}", "is made by merges of a text that has spaces")
        if len(parts) == 1:
            found[token] = rank
        elif len(parts) == 2 and not any(one in token for one in before):
            refuse(
                f"token {short(token)}",
                f"model.merges make {short(parts[0])} and {short(parts[1])} of it, which the score"
                " of a token would join",
            )
    return found


_MARKS: Final = (TokenType.CONTROL, TokenType.UNKNOWN)


def _spelled(token: str, kind: TokenType) -> bool:
    """Whether text that is merged may spell it: added ones are found before, but for spaces."""
    return SPACE in token or kind not in (*_MARKS, TokenType.USER_DEFINED)


def _plain(whole: Mapping[str, Any]) -> set[str]:
    """Added tokens of spaces, such as Gemma's runs, which are normal ones where merges make them.

    As user-defined ones they would be found in texts that spell ``▁``, but in none with spaces.
    """
    marks = ("special", "single_word", "lstrip", "rstrip", "normalized")
    return {
        one["content"]
        for one in whole.get("added_tokens", [])
        if SPACE in one["content"] and not any(one[mark] for mark in marks)
    }


def _joined(text: str, ranks: Rank) -> tuple[list[str], int]:
    """What merges make of a text, and the rank of the last one."""
    parts, last, never = list(text), -1, len(ranks)
    while len(parts) > 1:
        found = [ranks.get(pair, never) for pair in pairwise(parts)]
        best = min(found)
        if best == never:
            break
        at = found.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        last = best
    return parts, last


def _check_whole(tokens: list[str], types: list[TokenType], order: Mapping[str, int]) -> None:
    """A text that is a token as it stands is that token (``ignore_merges``): merges must say so."""
    for token, kind in zip(tokens, types, strict=True):
        if len(token) > 1 and token not in order and _spelled(token, kind):
            refuse(
                "model.ignore_merges true",
                f"a text {short(token)} is one token and merges do not make it, as files need",
            )


def _scores(
    tokens: list[str],
    types: list[TokenType],
    order: Mapping[str, int],
    pieces: Mapping[str, float],
) -> list[float]:
    """The ``pieces``' scores where they say the order of merges, or as SentencePiece counts them.

    It counts merges from 0 downwards, and then single characters.
    """
    kinds = dict(zip(tokens, types, strict=True))
    merged = [one for one in sorted(order, key=order.__getitem__) if kinds[one] in _PIECES]
    single = [one for one in tokens if one not in order and kinds[one] in _PIECES]
    lowest = min(pieces.values(), default=0.0) - 1
    known = [token for token in merged if token in pieces]
    if not (_in_order(known, pieces) and pieces and len(known) == len(merged)):
        pieces = {token: -float(number) for number, token in enumerate([*merged, *single])}
    return [
        pieces.get(token, lowest) if kinds[token] in _PIECES else _OTHERS.get(kinds[token], ADDED)
        for token in tokens
    ]


_PIECES: Final = (TokenType.NORMAL, TokenType.UNUSED)
_OTHERS: Final = {TokenType.BYTE: 0.0}


def _in_order(merged: list[str], pieces: Mapping[str, float]) -> bool:
    """Whether no two scores are equal, but for runs of one character, the longest first.

    Refuses scores of a ``tokenizer.model`` by which other tokens are made first.
    """
    distinct = True
    for one, other in pairwise(merged):
        if pieces[one] < pieces[other]:
            refuse(
                f"model.merges make {short(one)} before {short(other)}",
                f"and the tokenizer.model beside it scores them {pieces[one]:g} and"
                f" {pieces[other]:g}, so they are not of one tokenizer",
                "take the file away that is not this model's",
            )
        runs = len({*one, *other}) == 1 and len(one) > len(other)
        distinct = distinct and (runs or pieces[one] > pieces[other])
    return distinct
