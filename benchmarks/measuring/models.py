"""Decoding and prompts of GPT-2 124M in one weight format, beside llama.cpp and the reference."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from measuring import bars
from measuring.bars import FORMATS, Row
from measuring.probing import PIECES, in_pieces
from measuring.workers import Worker

PROMPT, DECODED, VOCABULARY = 512, 64, 50257
FAST = "ptir --fast"


def tokens(count: int) -> list[int]:
    """Random tokens, always the same ones."""
    found: list[int] = np.random.default_rng(0).integers(0, VOCABULARY, count).tolist()
    return found


def subject_of(name: str, threads: int) -> str:
    """How rows of a format with fewer threads than the most are headed."""
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


Seconds = dict[str, dict[str, list[float]]]
"""By peer and figure, a sample for each round."""


def add_round(
    seconds: Seconds,
    peers: Mapping[str, Worker],
    piece: list[int],
    prompt: list[int],
    threads: int,
) -> None:
    """Decode and read a prompt with every peer in alternation; samples of those in ``seconds``."""
    for worker in peers.values():
        worker.call("begin", piece[0])
    works = {peer: partial(worker.call, "decode", piece) for peer, worker in peers.items()}
    decoded = in_pieces(works, threads)
    prefills = {peer: worker.call("prefill", prompt) for peer, worker in peers.items()}
    for peer, found in seconds.items():
        found["decode"].append(decoded[peer][0])
        found["probe"].append(decoded[peer][1])
        found["prefill"].append(prefills[peer])


def model_rows(given: argparse.Namespace, name: str, folder: Path, threads: int) -> list[Row]:
    """All figures of one weight format; bars hold for the most threads."""
    dtype, quant = FORMATS[name]
    every = threads == max(given.threads)
    given_as: dict[str, Any] = {"backend": given.backend, "dtype": dtype, "quant": quant}
    ours = Worker("ptir", threads, **given_as)
    peers = {"ptir": ours}
    if given.fast and name in bars.FAST_PREFILL_LLAMA:
        peers[FAST] = Worker("ptir", threads, **given_as, fast=True)
    if given.llama:
        from measuring.llama import write_files

        path = write_files(folder, [name])[name]
        peers["llama.cpp"] = Worker("llama.cpp", path=str(path), threads=threads)
    reference = (
        Worker("ptir", **{**given_as, "backend": "ref"}) if given.reference and every else None
    )
    piece = tokens(DECODED // PIECES)
    seconds: Seconds = {peer: defaultdict(list) for peer in peers}
    reference_prefills: list[float] = []
    for number in range(given.rounds + 1):  # the first one warms up
        add_round(seconds if number else {}, peers, piece, tokens(PROMPT), threads)
        if reference and number < 3:
            prefill = reference.call("prefill", tokens(PROMPT))
            if number:
                reference_prefills.append(prefill)
    seconds["ref"] = {"prefill": reference_prefills}
    facts = {peer: worker.call("facts") for peer, worker in peers.items()}
    launches = ours.call("replay", tokens(DECODED))
    for worker in (*peers.values(), *([reference] if reference else [])):
        worker.close()
    wanted = bars.BARS[given.bars or bars.USUAL.get(given.backend, "first")]
    rows = _rows(name, seconds, facts, launches, wanted)
    if every:
        return rows
    return [replace(row, subject=subject_of(name, threads), bar=None) for row in rows]


def _rows(
    name: str,
    seconds: Seconds,
    facts: dict[str, dict[str, Any]],
    launches: list[float],
    wanted: bars.Bars,
) -> list[Row]:
    rows = list[Row]()

    def ratio(peer: str, what: str, over: str = "ptir") -> list[float]:
        pairs = zip(seconds[peer][what], seconds[over][what], strict=False)
        return [theirs / own for theirs, own in pairs]

    def add(figure: str, samples: list[float], *rest: Any, **more: Any) -> None:
        rows.append(Row(name, figure, samples, *rest, **more))

    def speeds(peer: str) -> None:
        own, weights = seconds[peer], facts[peer]["weight_bytes"]
        pairs = zip(own["decode"], own["probe"], strict=True)
        shares = [DECODED * weights / spent / probe for spent, probe in pairs]
        bar = wanted.share[name] if peer == "ptir" else None
        add(f"{peer}: decode", [DECODED / s for s in own["decode"]], "tok/s")
        add(f"{peer}: decode, share of the probe", shares, "%", bar)
        add(f"{peer}: prefill of {PROMPT}", [PROMPT / s for s in own["prefill"]], "tok/s")

    speeds("ptir")
    if seconds["ref"]["prefill"]:
        add("prefill, x reference", ratio("ref", "prefill"), "x", bars.PREFILL_REFERENCE)
    if "llama.cpp" in facts:
        speeds("llama.cpp")
        add("decode, x llama.cpp", ratio("llama.cpp", "decode"), "x", wanted.decode[name])
        add("prefill, x llama.cpp", ratio("llama.cpp", "prefill"), "x", wanted.prefill[name])
    if FAST in facts:
        speeds(FAST)
        for what in ("decode", "prefill"):
            add(f"{FAST}: {what}, x exact", ratio("ptir", what, FAST), "x")
            bar = bars.FAST_PREFILL_LLAMA[name] if what == "prefill" else None
            if "llama.cpp" in facts:
                add(f"{FAST}: {what}, x llama.cpp", ratio("llama.cpp", what, FAST), "x", bar)
    add("probe", [p / 1e9 for peer in facts for p in seconds[peer]["probe"]], "GB/s")
    if launches:
        micro = [1e6 * s for s in launches]
        add("host cost of a launch", micro, "us", 1e6 * bars.REPLAY_SECONDS, at_most=True)
    if (peak := facts["ptir"]["peak_bytes"]) is not None:
        over = peak / facts["ptir"]["parameters_and_cache"]
        add("peak memory over weights + cache", [over], "x", bars.MEMORY, at_most=True)
    return rows
