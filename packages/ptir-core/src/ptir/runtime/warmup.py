"""Warming up: run every program that a model may need once, so that kernels are cached."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptir import events
from ptir.capture.plan import PLANS
from ptir.runtime.kinds import kind_of

if TYPE_CHECKING:
    from ptir.runtime.handle import Model

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Warmth:
    """What a warm-up ran and built, and how long it took.

    ``capacities`` are those of caches, the lengths of an encoder's texts, or numbers of images.
    """

    capacities: tuple[int, ...]
    programs: int
    kernel_files_built: int
    kernel_files_restored: int
    seconds: float


def warm_up(
    model: Model, tokens: int | None = None, batch: int = 1, progress: Progress | None = None
) -> Warmth:
    """Compile and run what a model of any kind needs, for ``batch`` prompts or images at once.

    ``tokens`` limits it to generations of that length, prompt included, or to texts of up to so
    many. Of a model of speech it is what transcribing up to ``batch`` windows at once needs, of an
    encoder that of up to so many texts. Raises ``UsageError``.
    """
    jobs = kind_of(model).jobs(model, tokens, batch)
    built: list[bool] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.KernelsBuilt):
            built.append(event.restored)

    began, before = time.perf_counter(), PLANS.compiled
    remove = events.subscribe(listen)
    try:
        with model.policies():
            for number, job in enumerate(jobs.run):
                job()
                if progress:
                    progress(number + 1, len(jobs.run))
    finally:
        remove()
    restored = sum(built)
    return Warmth(
        jobs.sizes,
        PLANS.compiled - before,
        len(built) - restored,
        restored,
        time.perf_counter() - began,
    )
