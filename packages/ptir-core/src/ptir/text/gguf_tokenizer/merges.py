"""Merges of byte-pair encoding: as a file lists them, or derived from SentencePiece's scores."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from typing import Final

from ptir.errors import CheckpointError, short
from ptir.text.gguf_tokenizer.fields import (
    AGAIN,
    PREFIX,
    Metadata,
    numbers,
    of_length,
    texts,
)
from ptir.text.gguf_tokenizer.vocabulary import SPACE, TokenType, Vocabulary

MERGES: Final = f"{PREFIX}merges"
"""The key of the merges, first to last: two tokens, a space between them."""

SCORES: Final = f"{PREFIX}scores"
"""The key of the tokens' scores."""

_MOST_ALIKE: Final = 1000
_OTHER: Final = "take a file whose scores are the model's own, or the model's tokenizer.json"

Merge = tuple[str, str]
"""Two tokens that become one."""


def listed_merges(metadata: Metadata, vocabulary: Vocabulary, model: str) -> list[Merge]:
    """The merges that ``metadata`` lists; raises ``CheckpointError``.

    The two tokens stand on the two sides of the first space that is not the first character.
    """
    lines = texts(metadata, MERGES)
    if lines is None:
        raise CheckpointError(
            f"{MERGES}: missing; a tokenizer of {model!r} is made of merges; {AGAIN}"
        )
    merges = [
        (left, right) if left else _pair(line)
        for line in lines
        for left, _, right in (line.partition(" "),)
    ]
    whole = map("".join, merges)
    known = all(map(vocabulary.ids.__contains__, chain(whole, *merges)))
    if not known or len({*merges}) < len(merges):
        _refuse_first(lines, merges, vocabulary)
    return merges


def _pair(line: str) -> Merge:
    at = line.find(" ", 1)
    return (line[:at], line[at + 1 :]) if at > 0 else (line, "")


def _refuse_first(lines: Sequence[str], merges: Sequence[Merge], vocabulary: Vocabulary) -> None:
    """Raise ``CheckpointError`` for the first merge that must not be."""
    before: dict[Merge, int] = {}
    for index, (line, merge) in enumerate(zip(lines, merges, strict=True)):
        wrong = _wrong(merge, vocabulary, before)
        if wrong:
            raise CheckpointError(f"{MERGES}[{index}]: {short(line)}: {wrong}; {AGAIN}")
        before[merge] = index


def _wrong(merge: Merge, vocabulary: Vocabulary, before: dict[Merge, int]) -> str:
    left, right = merge
    if not right:
        return "must be two tokens with a space between them"
    for part in (left, right, left + right):
        if part not in vocabulary.ids:
            return f"{short(part)} is no token; what is merged, and what becomes of it, must be one"
    return f"stands at {before[merge]} too" if merge in before else ""


def scores_of(metadata: Metadata, vocabulary: Vocabulary, model: str) -> list[float]:
    """The score of each token; raises ``CheckpointError``."""
    scores = numbers(metadata, SCORES)
    if scores is None:
        raise CheckpointError(
            f"{SCORES}: missing; a tokenizer of {model!r} chooses tokens by them; {AGAIN}"
        )
    of_length(SCORES, scores, len(vocabulary.tokens))
    return scores


def scored_merges(vocabulary: Vocabulary, scores: list[float]) -> list[Merge]:
    """Merges in an order that gives the tokens of SentencePiece's encoder; ``CheckpointError``.

    That one joins, of all neighbours that are a token together, those whose token has the best
    score, the leftmost first. A merge has one rank wherever it stands, so tokens of equal scores
    are put in an order in which what overlaps is joined from the left; where there is none, they
    are refused. Characters that are no token of their own are never joined.
    """
    merges = _all_merges(vocabulary)
    by_score: defaultdict[float, list[str]] = defaultdict(list)
    for token in merges:
        by_score[scores[vocabulary.ids[token]]].append(token)
    tied = {token for tokens in by_score.values() if len(tokens) > 1 for token in tokens}
    wholes = _wholes(merges, tied)
    ordered: list[Merge] = []
    for score in sorted(by_score, reverse=True):
        alike = {token: merges[token] for token in by_score[score]}
        if len(alike) > 1:
            best = {t: [w for w in wholes[t] if scores[vocabulary.ids[w]] >= score] for t in alike}
            alike = {token: alike[token] for token in _in_order(score, alike, best)}
        ordered.extend(pair for pairs in alike.values() for pair in pairs)
    return ordered


def _all_merges(vocabulary: Vocabulary) -> dict[str, list[Merge]]:
    """By token: the pairs of tokens that make it up, those with the longest left part first.

    User-defined tokens are found before, so what is left to merge has none, unless they are spelled
    with what spaces become only then.
    """
    parts = {
        token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
        if kind in (TokenType.NORMAL, TokenType.UNUSED)
        or (kind is TokenType.USER_DEFINED and SPACE in token)
    }
    found: dict[str, list[Merge]] = {}
    for token in filter(parts.__contains__, vocabulary.tokens):
        pairs = [
            (token[:at], token[at:])
            for at in range(len(token) - 1, 0, -1)
            if token[:at] in parts and token[at:] in parts
        ]
        if pairs:
            found[token] = pairs
    return found


def _wholes(merges: Mapping[str, Sequence[Merge]], parts: set[str]) -> dict[str, set[str]]:
    """By part: the tokens that it is a part of."""
    found: dict[str, set[str]] = {part: set() for part in parts}
    for token, pairs in merges.items():
        for part in (part for pair in pairs for part in pair if part in parts):
            found[part].add(token)
    return found


def _in_order(
    score: float, alike: Mapping[str, Sequence[Merge]], best: Mapping[str, Sequence[str]]
) -> list[str]:
    """Tokens of one score, so that of two that overlap in a text the left one is made first.

    ``best`` are the tokens of no worse score that each is a part of: there must be none, or what
    is made next depends on where the first stood. Only runs of one character may be made of each
    other: joined from the left they grow, so the longest comes first.
    """
    longest_first = sorted(alike, key=len, reverse=True)
    if len(set("".join(alike))) == 1 and all(set(best[t]) <= set(alike) for t in alike):
        return longest_first
    whole = next((token for token in alike if best[token]), None)
    if len(alike) > _MOST_ALIKE or whole is not None:
        part = short(whole or longest_first[0])
        raise CheckpointError(f"{SCORES}: {_tied(len(alike), score)}, {part} among them; {_OTHER}")
    try:
        return list(TopologicalSorter(_left_of(longest_first, alike)).static_order())
    except CycleError as error:
        one, other = map(short, error.args[1][:2])
        both = f"{one} and {other} overlap in both ways"
        raise CheckpointError(f"{SCORES}: {_tied(len(alike), score)}; {both}; {_OTHER}") from error


def _tied(count: int, score: float) -> str:
    return f"{count} tokens have one score ({score:g}), which one is made first is open"


def _left_of(tokens: list[str], merges: Mapping[str, Sequence[Merge]]) -> dict[str, set[str]]:
    """By token: the others that may end with a part that it begins with."""
    ending: defaultdict[str, set[str]] = defaultdict(set)
    for token in tokens:
        for _, right in merges[token]:
            ending[right].add(token)
    return {
        token: set[str]().union(*(ending.get(left, ()) for left, _ in merges[token])) - {token}
        for token in tokens
    }
