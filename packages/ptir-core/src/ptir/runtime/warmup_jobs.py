"""What warming up runs of each kind of model: everything that it may be asked for, once.

A generation runs a prompt in chunks of a few sizes, on caches of a few capacities, and then one
step for each token, greedy or sampled. Texts run in batches of few shapes, images and windows of
speech in powers of two. There are few of each on purpose, so all can be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ptir.errors import UsageError
from ptir.runtime.batches import ROWS, lengths, row_counts
from ptir.runtime.generation import SamplingOptions
from ptir.runtime.session import Session, capacity_for
from ptir.runtime.steps import chunk_sizes

if TYPE_CHECKING:
    from ptir.runtime.handle import Model
    from ptir.runtime.image_model import ImageModel, ImageTextModel
    from ptir.runtime.speech import SpeechModel
    from ptir.runtime.text_model import TextModel

VARIANTS = (
    SamplingOptions(temperature=0.0, seed=0),
    SamplingOptions(temperature=0.8, seed=0),
)
"""Greedy and sampled: every sampling option but these two gives the same programs."""


@dataclass(frozen=True)
class Jobs:
    """What is run, one after another, and what each is for: ``sizes`` of something, by its name."""

    what: str
    sizes: tuple[int, ...]
    run: Sequence[Callable[[], object]]


def capacities(context: int, tokens: int | None = None) -> tuple[int, ...]:
    """The cache capacities of generations of ``tokens`` tokens in all, or of any length."""
    if tokens is not None:
        return (capacity_for(tokens, context),)
    return tuple(dict.fromkeys(capacity_for(n, context) for n in _powers(context)))


def _powers(context: int) -> Iterator[int]:
    size = 1
    while size < context:
        yield size
        size *= 2
    yield context


def prompts(capacity: int) -> tuple[int, ...]:
    """The shortest prompt lengths that together use every chunk size a capacity allows."""
    seen: set[int] = set()
    found = []
    for length in range(1, capacity + 1):
        sizes = {size for size, _ in chunk_sizes(length)}
        if not sizes <= seen:
            seen |= sizes
            found.append(length)
    return tuple(found)


def batches(most: int) -> tuple[int, ...]:
    """How many windows there may be at once: powers of two, and ``most``."""
    return tuple(dict.fromkeys(min(1 << n, most) for n in range(most.bit_length() + 1)))


def generations(model: Model, tokens: int | None, batch: int) -> Jobs:
    """Generating from ``batch`` prompts on caches for ``tokens`` tokens, or of every size."""
    _check(model, tokens, model.context, "context")
    sizes = capacities(model.context, tokens)
    return Jobs("cache", sizes, [partial(_generate, model, one, batch) for one in sizes])


def sights(model: ImageModel, tokens: int | None, batch: int) -> Jobs:
    """Scores and features of up to ``batch`` images, of the size that they are prepared to."""
    from ptir.runtime.image_model import BATCH

    _refuse(model, tokens, "takes images")
    sizes = _filled(batch, BATCH)
    return Jobs("batch", sizes, [partial(_see, model, one) for one in sizes])


def matches(model: ImageTextModel, tokens: int | None, batch: int) -> Jobs:
    """The same, and features of as many texts."""
    from ptir.runtime.image_model import TEXTS

    seen = sights(model, tokens, batch)
    rows = _filled(batch, TEXTS)
    texts = [partial(model.read, [[0]] * one) for one in rows]
    return Jobs(seen.what, tuple(dict.fromkeys((*seen.sizes, *rows))), [*seen.run, *texts])


def readings(model: TextModel, tokens: int | None, batch: int) -> Jobs:
    """Batches of every shape in which up to ``batch`` texts of up to ``tokens`` tokens run."""
    _check(model, tokens, model.limit, "limit of its texts")
    most = model.limit if tokens is None else tokens
    ladder = lengths(model.context)
    sizes = ladder[: 1 + next(n for n, one in enumerate(ladder) if one >= most)]
    fewest = next((rows for rows in ROWS if rows >= batch), ROWS[-1])
    return Jobs("text", sizes, [partial(_read, model, one, fewest) for one in sizes])


def transcriptions(model: SpeechModel, tokens: int | None, batch: int) -> Jobs:
    """Transcribing, up to ``batch`` windows at once."""
    _refuse(model, tokens, "hears, with one size of caches")
    jobs = [partial(_transcribe, model, rows) for rows in batches(batch)]
    return Jobs("batch", (model.context,), jobs)


def _check(model: Model, tokens: int | None, most: int, what: str) -> None:
    if tokens is not None and not 1 <= tokens <= most:
        raise UsageError(f"{tokens} tokens: must be from 1 to the {what} of {most}")


def _refuse(model: Model, tokens: int | None, why: str) -> None:
    if tokens is not None:
        raise UsageError(f"{tokens} tokens: model {model.name!r} {why}; leave it out")


def _filled(batch: int, most: int) -> tuple[int, ...]:
    """The powers of two to which up to ``batch`` rows are filled up, ``most`` in one run."""
    return tuple(1 << n for n in range((min(batch, most) - 1).bit_length() + 1))


def _generate(model: Model, capacity: int, batch: int) -> None:
    """Prompts with every chunk size, then a token and one more, in each variant."""
    active = np.ones(batch, np.bool_)
    for options in VARIANTS:
        lengths = prompts(capacity) if options is VARIANTS[0] else prompts(capacity)[:1]
        for length in lengths:
            session = Session.of(model, batch, capacity, options)
            for capture in session.slide_captures():
                capture()
            logits = session.prefill([[0] * length] * batch)
        session.pick(logits)
        session.advance(active)


def _see(model: ImageModel, rows: int) -> None:
    """Features, and scores where there is a classifier."""
    from ptir.runtime.recorded import random_images

    pixels = random_images(model, rows, model.preprocessing.size)
    model.features(pixels)
    if model.module.classes:
        model.forward(pixels)


def _read(model: TextModel, length: int, fewest: int) -> None:
    """Texts of a length in every number of rows, and a masked word of each."""
    for rows in (one for one in row_counts(length) if one <= fewest):
        tokens: Any = np.zeros((rows, length), np.int32)
        model.computed(tokens)
        if "fill" in model.capabilities:
            model.fill_computed(tokens, np.zeros((rows, 1), np.int32))


def _transcribe(model: SpeechModel, rows: int) -> None:
    """Features, and ``rows`` windows with a token and one more, in each variant."""
    from ptir.runtime.speech.decoding import Manner

    settings, decoder = model.settings, model.decoder
    features = model.features(np.zeros(settings.frames * settings.hop, np.float32))
    source = decoder.hear([features], rows)
    for one in batches(rows)[:-1]:
        decoder.pick(source, [*range(rows - one, rows)])  # those that are decoded again
    for options in VARIANTS:
        decoder.rehearse(source, 1, Manner(timestamps=True, temperature=options.temperature))
