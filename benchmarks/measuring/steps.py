"""Several prompts at once, and long contexts: what a token costs beside one that stands alone."""

from __future__ import annotations

import argparse
from functools import partial

from measuring import bars
from measuring.bars import FORMATS, Row
from measuring.probing import PIECES, in_pieces
from measuring.workers import Worker

STEPS = 16
"""Tokens of every sequence in a piece of a round."""
PROMPTS = 4
POSITIONS = (64, 900, 4000)
LONG = 4096
"""Positions of the model that long contexts are measured with: GPT-2 124M with more of them."""


def prompt_rows(given: argparse.Namespace, name: str) -> list[Row]:
    """Four prompts at once over one."""
    dtype, quant = FORMATS[name]
    threads = max(given.threads)
    worker = Worker("ptir", threads, backend=given.backend, dtype=dtype, quant=quant)
    for rows in (1, PROMPTS):
        worker.call("keep", str(rows), 8, rows)
    works = {str(n): partial(worker.call, "continued", str(n), STEPS) for n in (1, PROMPTS)}
    alone, together, ratios = [], [], []
    for number in range(given.rounds + 1):  # the first one warms up
        found = in_pieces(works, threads)
        speeds = [n * PIECES * STEPS / found[str(n)][0] for n in (1, PROMPTS)]
        if number:
            alone.append(speeds[0])
            together.append(speeds[1])
            ratios.append(speeds[1] / speeds[0])
    worker.close()
    subject = f"{name}, prompts"
    return [
        Row(subject, "one: decode", alone, "tok/s"),
        Row(subject, f"{PROMPTS} at once: decode", together, "tok/s"),
        Row(subject, f"{PROMPTS} at once, x one", ratios, "x", bars.PROMPTS),
    ]


def context_rows(given: argparse.Namespace, name: str, cache: str) -> list[Row]:
    """What a token costs behind 64, 900 and 4,000 others, and what of it is reading the cache."""
    dtype, quant = FORMATS[name]
    threads = max(given.threads)
    worker = Worker(
        "ptir",
        threads,
        backend=given.backend,
        dtype=dtype,
        quant=quant,
        positions=LONG,
        cache_dtype=cache,
    )
    for position in POSITIONS:
        worker.call("keep", str(position), position)
    works = {str(n): partial(worker.call, "continued", str(n), STEPS // 2) for n in POSITIONS}
    in_pieces(works, threads)
    steps, each = PIECES * STEPS // 2, worker.call("cache_bytes")
    worker.call("continued", str(POSITIONS[0]), 1)
    weights = worker.call("weight_bytes")
    spent: dict[int, list[float]] = {n: [] for n in POSITIONS}
    beyond: dict[int, list[float]] = {n: [] for n in POSITIONS}
    growth: dict[int, list[float]] = {n: [] for n in POSITIONS[1:]}
    first = POSITIONS[0]
    for number in range(given.rounds):
        found = in_pieces(works, threads)
        for position in POSITIONS:
            seconds, bandwidth = found[str(position)][0] / steps, found[str(position)][1]
            filled = position + (number + 1.5) * steps  # in the middle of this round
            spent[position].append(1e3 * seconds)
            reading = (weights + each * filled) / bandwidth
            beyond[position].append(1e3 * (seconds - reading))
            if position in growth:
                more = seconds - found[str(first)][0] / steps
                growth[position].append(more / (each * (position - first) / bandwidth))
    worker.close()
    subject = f"{name}, cache {cache}"
    rows = [Row(subject, f"a token behind {n}", spent[n], "ms") for n in POSITIONS]
    rows += [Row(subject, f"beyond reading, behind {n}", beyond[n], "ms") for n in POSITIONS]
    for n, found_growth in growth.items():
        what = f"growth from {first} to {n}, x reading the cache"
        rows.append(Row(subject, what, found_growth, "x", bars.GROWTH, at_most=True))
    return rows
