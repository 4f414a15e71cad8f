"""Warming up: run every program that a model's generation needs once, so that kernels are cached.

A generation runs a prompt in chunks of a few sizes, on caches of a few capacities, and then one
step for each token, greedy or sampled. There are few of each on purpose, so all can be tried. A
model of speech hears a window, and has one capacity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ptir import events
from ptir.capture.plan import PLANS
from ptir.errors import UsageError
from ptir.runtime.generation import SamplingOptions
from ptir.runtime.session import Session, capacity_for
from ptir.runtime.steps import chunk_sizes

if TYPE_CHECKING:
    from ptir.runtime.handle import Model
    from ptir.runtime.speech import SpeechModel

VARIANTS = (
    SamplingOptions(temperature=0.0, seed=0),
    SamplingOptions(temperature=0.8, seed=0),
)
"""Greedy and sampled: every sampling option but these two gives the same programs."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Warmth:
    """What a warm-up ran and built, and how long it took."""

    capacities: tuple[int, ...]
    programs: int
    kernel_files_built: int
    kernel_files_restored: int
    seconds: float


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


def warm_up(
    model: Model, tokens: int | None = None, batch: int = 1, progress: Progress | None = None
) -> Warmth:
    """Compile and run what generating with ``model`` needs, for ``batch`` prompts at once.

    ``tokens`` limits it to generations of that length, prompt included. Of a model of speech it is
    what transcribing needs, up to ``batch`` windows at once. Raises ``UsageError``.
    """
    from ptir.runtime.speech import SpeechModel

    if isinstance(model, SpeechModel) and tokens is not None:
        raise UsageError(
            f"{tokens} tokens: model {model.name!r} hears, with one size of caches; leave it out"
        )
    if tokens is not None and not 1 <= tokens <= model.context:
        raise UsageError(f"{tokens} tokens: must be from 1 to the context of {model.context}")
    built: list[bool] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.KernelsBuilt):
            built.append(event.restored)

    began, before = time.perf_counter(), PLANS.compiled
    if isinstance(model, SpeechModel):
        sizes: tuple[int, ...] = (model.context,)
        jobs = [partial(_transcribe, model, rows) for rows in batches(batch)]
    else:
        sizes = capacities(model.context, tokens)
        jobs = [partial(_generate, model, capacity, batch) for capacity in sizes]
    remove = events.subscribe(listen)
    try:
        with model.policies():
            for number, job in enumerate(jobs):
                job()
                if progress:
                    progress(number + 1, len(jobs))
    finally:
        remove()
    restored = sum(built)
    return Warmth(
        sizes,
        PLANS.compiled - before,
        len(built) - restored,
        restored,
        time.perf_counter() - began,
    )


def batches(most: int) -> tuple[int, ...]:
    """How many windows there may be at once: powers of two, and ``most``."""
    return tuple(dict.fromkeys(min(1 << n, most) for n in range(most.bit_length() + 1)))


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
