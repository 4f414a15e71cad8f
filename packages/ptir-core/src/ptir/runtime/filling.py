"""Masked words: which tokens are likeliest in their places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ptir.errors import UsageError, short
from ptir.runtime.batches import batches
from ptir.runtime.finite import check_numbers
from ptir.text import EncodedText
from ptir.text.found import Filled

if TYPE_CHECKING:
    from ptir.runtime.text_model import TextModel

MASKS: Final = ("[MASK]", "<mask>")
"""What a masked word is called where the tokenizer's settings do not say."""
TOGETHER: Final = 8
"""Masked words of a text that are scored in one run."""


class Masked(NamedTuple):
    """Some masked words of a text: the number of the text, its tokens, and their places."""

    text: int
    row: EncodedText
    places: tuple[int, ...]


def mask_token(model: TextModel) -> str:
    """How a masked word is written for a model; raises ``UsageError`` where there is no token."""
    said = model.checkpoint.tokenizer_config.get("mask_token")
    said = said.get("content") if isinstance(said, dict) else said
    tokenizer = model.tokenizer
    if tokenizer is None:
        model.lacks_tokenizer()
    for name in (said, *MASKS):
        if isinstance(name, str) and tokenizer.knows(name):
            return name
    raise UsageError(
        f"model {model.name!r}: its tokenizer has no token for a masked word"
        f" ({' or '.join(MASKS)}): fetch the tokenizer that came with the model"
    )


def filled(
    model: TextModel, texts: Sequence[str], top: int, truncate: bool
) -> list[tuple[tuple[Filled, ...], ...]]:
    """Of each text, of each masked word in it, the ``top`` likeliest tokens, the best first."""
    if not isinstance(top, Integral) or isinstance(top, bool) or not 1 <= top <= model.vocabulary:
        raise UsageError(
            f"top {top!r}: must be an integer from 1 to the {model.vocabulary} tokens of the model"
        )
    name = mask_token(model)
    assert model.tokenizer is not None
    mask = model.tokenizer.id_of(name)
    rows = model.encode_texts(texts, truncate=truncate)
    parts = [one for n, row in enumerate(rows) for one in _parts(n, row, texts[n], mask, name)]
    found: list[list[tuple[Filled, ...]]] = [[] for _ in rows]
    scores = _scores(model, parts)
    for one in parts:
        for row in next(scores):
            found[one.text].append(_likeliest(model, row, int(top)))
    return [tuple(one) for one in found]


def _parts(number: int, row: EncodedText, text: str, mask: int, name: str) -> Iterator[Masked]:
    places = [place for place, token in enumerate(row.ids) if token == mask]
    if not places:
        cut = row.length > len(row.ids) and name in text
        why = f"lost its {name} when it was cut" if cut else f"has no {name}"
        raise UsageError(f"text {number} ({short(text)}) {why}: put it where a word is missing")
    for first in range(0, len(places), TOGETHER):
        yield Masked(number, row, tuple(places[first : first + TOGETHER]))


def _scores(model: TextModel, parts: Sequence[Masked]) -> Iterator[Any]:
    """Scores f32[M,V] of the masked words of each part, in their order."""
    found: list[Any] = [None] * len(parts)
    for batch in batches([len(one.row.ids) for one in parts], model.context):
        inputs = model.padded_rows([parts[number].row for number in batch.texts], batch)
        most = max(len(parts[number].places) for number in batch.texts)
        places = np.zeros((batch.rows, 1 << (most - 1).bit_length()), np.int32)
        for at, number in enumerate(batch.texts):
            places[at, : len(parts[number].places)] = parts[number].places
        output = model.run_filling(*inputs, places)
        for at, number in enumerate(batch.texts):
            one = output[at, : len(parts[number].places)]
            what = f"{model.name}: the scores for text {parts[number].text}"
            check_numbers(one, what, model.checkpoint.source)
            found[number] = one
    yield from found


def _likeliest(model: TextModel, scores: Any, top: int) -> tuple[Filled, ...]:
    """The softmax of all scores in f64; of equal ones the first token comes first."""
    wide = np.asarray(scores, np.float64)
    weights = np.exp(wide - wide.max())
    shares = weights / weights.sum()
    best = np.argsort(-shares, kind="stable")[:top].tolist()
    assert model.tokenizer is not None
    texts = [model.tokenizer.decode([one], skip_special_tokens=False) for one in best]
    return tuple(
        Filled(one, text, float(shares[one])) for one, text in zip(best, texts, strict=True)
    )
