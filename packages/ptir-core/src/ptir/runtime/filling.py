"""Masked words: which tokens are likeliest in their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ptir.errors import UsageError, short
from ptir.text import EncodedText, Tokenizer
from ptir.text.found import Filled

Array = np.ndarray[Any, Any]

MASKS: Final = ("[MASK]", "<mask>")
"""What a masked word is called where the tokenizer's settings do not say."""
TOGETHER: Final = 8
"""Masked words of a text that are scored in one run."""


class Masked(NamedTuple):
    """Some masked words of a text: the number of the text, its tokens, and their places."""

    text: int
    row: EncodedText
    places: tuple[int, ...]


def mask_token(tokenizer: Tokenizer, settings: Mapping[str, Any], model: str) -> str:
    """How a masked word is written, by tokenizer_config.json's ``settings`` or as all write it.

    Raises ``UsageError`` where the tokenizer has no token for one.
    """
    said = settings.get("mask_token")
    said = said.get("content") if isinstance(said, dict) else said
    for name in (said, *MASKS):
        if isinstance(name, str) and tokenizer.knows(name):
            return name
    raise UsageError(
        f"model {model!r}: its tokenizer has no token for a masked word ({' or '.join(MASKS)}):"
        " fetch the tokenizer that came with the model"
    )


def masked(rows: Sequence[EncodedText], texts: Sequence[str], mask: int, name: str) -> list[Masked]:
    """The words that are masked in texts, by the token ``mask``, which is written ``name``.

    Raises ``UsageError`` for a text without one.
    """
    return [
        one
        for number, (row, text) in enumerate(zip(rows, texts, strict=True))
        for one in _parts(number, row, text, mask, name)
    ]


def _parts(number: int, row: EncodedText, text: str, mask: int, name: str) -> Iterator[Masked]:
    places = [place for place, token in enumerate(row.ids) if token == mask]
    if not places:
        cut = row.length > len(row.ids) and name in text
        why = f"lost its {name} when it was cut" if cut else f"has no {name}"
        raise UsageError(f"text {number} ({short(text)}) {why}: put it where a word is missing")
    for first in range(0, len(places), TOGETHER):
        yield Masked(number, row, tuple(places[first : first + TOGETHER]))


def places_of(parts: Sequence[Masked], rows: int) -> Array:
    """Where words are masked in each row of a batch, i32[rows,M]; 0 where there is no further."""
    most = max(len(one.places) for one in parts)
    places = np.zeros((rows, 1 << (most - 1).bit_length()), np.int32)
    for row, one in enumerate(parts):
        places[row, : len(one.places)] = one.places
    return places


def likeliest_tokens(tokenizer: Tokenizer, scores: Array, top: int) -> tuple[Filled, ...]:
    """The ``top`` likeliest by scores f32[V]: their softmax in f64; of equal ones the first."""
    wide = scores.astype(np.float64)
    weights = np.exp(wide - wide.max())
    shares = weights / weights.sum()
    best = np.argsort(-shares, kind="stable")[:top].tolist()
    texts = [tokenizer.decode([one], skip_special_tokens=False) for one in best]
    return tuple(
        Filled(one, text, float(shares[one])) for one, text in zip(best, texts, strict=True)
    )
