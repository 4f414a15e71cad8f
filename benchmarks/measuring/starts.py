"""How long starting takes: compiling a whole step, and a cold process to its first token."""

from __future__ import annotations

import argparse
import tempfile

from measuring import bars
from measuring.bars import FORMATS, Row
from measuring.workers import Worker

PREFILL = 512


def compile_rows(given: argparse.Namespace, name: str) -> list[Row]:
    """Capturing and compiling each step in a process that finds nothing on disk."""
    dtype, quant = FORMATS[name]
    rows = list[Row]()
    fast = (False, True) if given.fast and name in bars.FAST_PREFILL_LLAMA else (False,)
    for rounded in fast:
        for what, length in (("decode", 1), (f"prefill of {PREFILL}", PREFILL)):
            samples = list[float]()
            for _ in range(given.rounds):
                with tempfile.TemporaryDirectory() as cache:
                    worker = Worker(
                        "steps",
                        max(given.threads),
                        cache,
                        backend=given.backend,
                        dtype=dtype,
                        quant=quant,
                        fast=rounded,
                    )
                    samples.append(sum(worker.call("compiled", length)))
                    worker.close()
            figure = f"{'ptir --fast: ' if rounded else ''}{what}, compiled cold"
            bar = bars.COMPILE_SECONDS
            rows.append(Row(f"{name}, compile", figure, samples, "s", bar, at_most=True))
    return rows


def cold_rows(given: argparse.Namespace) -> list[Row]:
    """From a cold process to the first token of GPT-2 124M."""
    from cold_start import measure

    whole = measure(given.backend, "f32", given.rounds)["seconds"]["whole"]
    samples = [whole["min"], whole["median"], whole["max"]]
    figure = "cold process to first token"
    return [Row("cold", figure, samples, "s", bars.COLD_SECONDS, at_most=True)]


def demo_rows(given: argparse.Namespace) -> list[Row]:
    """From a cold process to the first token of the model that is part of the package."""
    from cold_start import beside

    found = beside("demo", [given.backend, "ref"], 4 * given.rounds)
    ratios = [own / ref for own, ref in zip(found[given.backend], found["ref"], strict=True)]
    return [
        Row("demo", "cold process to first token", found[given.backend], "s"),
        Row("demo", "the same of the reference", found["ref"], "s"),
        Row("demo", "x reference", ratios, "x", bars.DEMO, at_most=True),
    ]
