"""The vocabulary of a GGUF file: its tokens, what kind each is, and what they are for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Final

from ptir.errors import CheckpointError, short
from ptir.text.gguf_tokenizer.fields import (
    AGAIN,
    PREFIX,
    Metadata,
    integers,
    of_length,
    sequence,
    texts,
)

TOKENS: Final = f"{PREFIX}tokens"
"""The key of the list of tokens; a token's place in it is its id."""

TYPES: Final = f"{PREFIX}token_type"
"""The key of the list of their types."""


LONGEST: Final = 4096
"""Characters of a token, far above those of any model: merges are found by every way to cut it."""

SPACE: Final = "▁"
"""What stands for a space in vocabularies that are not byte-level."""


class TokenType(IntEnum):
    """What a token is (``tokenizer.ggml.token_type``)."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, their types, and the id of each."""

    tokens: Sequence[str]
    types: list[TokenType]
    ids: Mapping[str, int]

    def of_type(self, *types: TokenType) -> list[int]:
        """The ids of the tokens of these types, ascending."""
        return sorted(chain.from_iterable(self._by_type.get(one, ()) for one in types))

    @cached_property
    def _by_type(self) -> Mapping[TokenType, list[int]]:
        """The ids of the tokens of each type, ascending."""
        found: dict[TokenType, list[int]] = defaultdict(list)
        for index, one in enumerate(self.types):
            found[one].append(index)
        return found


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """The vocabulary that ``metadata`` holds; raises ``CheckpointError``.

    A file without types has normal tokens alone. Empty tokens, which say nothing, are called
    ``[EMPTY_i]``, so that they differ from each other.
    """
    tokens = texts(metadata, TOKENS)
    if not tokens:
        raise CheckpointError(f"{TOKENS}: there are none, so text has no ids; {AGAIN}")
    if "" in tokens:
        tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if max(map(len, tokens)) > LONGEST:
        raise CheckpointError(_long(tokens))
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) < len(tokens):
        raise CheckpointError(_twice(tokens))
    return Vocabulary(tokens, _types(metadata, len(tokens)), ids)


def find_tokens(metadata: Metadata, names: Container[str]) -> Vocabulary:
    """The vocabulary with the ids of ``names`` alone, and without types: one pass, no checks."""
    tokens = sequence(metadata, TOKENS) or ()
    ids = {token: index for index, token in enumerate(tokens) if token in names}
    return Vocabulary(tokens, [], ids)


def _long(tokens: list[str]) -> str:
    index = next(index for index, token in enumerate(tokens) if len(token) > LONGEST)
    found = f"{short(tokens[index])} has {len(tokens[index])} characters"
    return f"{TOKENS}[{index}]: {found}; at most {LONGEST} may be; {AGAIN}"


def _twice(tokens: list[str]) -> str:
    seen: dict[str, int] = {}
    for index, token in enumerate(tokens):
        first = seen.setdefault(token, index)
        if first != index:
            break
    return (
        f"{TOKENS}: {short(token)} is token {first} and token {index}; tokens must be unique, or"
        f" text has more than one id; {AGAIN}"
    )


def _types(metadata: Metadata, count: int) -> list[TokenType]:
    found = integers(metadata, TYPES)
    if found is None:
        return [TokenType.NORMAL] * count
    of_length(TYPES, found, count)
    known = {int(one): one for one in TokenType}
    try:
        return [*map(known.__getitem__, found)]
    except KeyError as error:
        (wrong,) = error.args
        raise CheckpointError(
            f"{TYPES}[{found.index(wrong)}]: {short(wrong)} is no type of tokens; they are 0 to"
            f" {max(known)}; {AGAIN}"
        ) from None
