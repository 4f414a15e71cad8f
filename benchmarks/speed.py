"""The speed table: GPT-2 124M in four weight formats, beside the bars, llama.cpp and the reference.

Every peer runs in a process of its own. Peers alternate, every sixteen decoded tokens stand
between two probes of read bandwidth, and ratios are taken within a round; the table shows medians
and spreads. llama.cpp is left out, and said to be, where it is not installed
(``pip install llama-cpp-python gguf``, some minutes of building).

    python benchmarks/speed.py --backend opencl --json speed.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import bars
from measuring.bars import FORMATS, Row
from measuring.others import Others
from measuring.workers import Worker

PROMPT, DECODED, VOCABULARY = 512, 64, 50257
FAST = "ptir --fast"
PIECES = 4
"""Pieces of decoding in a round: peers alternate and bandwidth is probed in between."""
SECTIONS = ("models", "rows", "cold")


IDLE = 0.05
"""The most of the processors that others may take from figures that count."""


def tokens(count: int) -> list[int]:
    """Random tokens, always the same ones."""
    found: list[int] = np.random.default_rng(0).integers(0, VOCABULARY, count).tolist()
    return found


def has_llama() -> bool:
    """Whether llama.cpp and what writes its files are installed."""
    return all(importlib.util.find_spec(name) for name in ("llama_cpp", "gguf"))


def model_rows(given: argparse.Namespace, name: str, folder: Path) -> list[Row]:
    """All figures of one weight format."""
    dtype, quant = FORMATS[name]
    ours = Worker("ptir", backend=given.backend, dtype=dtype, quant=quant)
    peers = {"ptir": ours}
    if given.fast and name in bars.FAST_PREFILL_LLAMA:
        peers[FAST] = Worker("ptir", backend=given.backend, dtype=dtype, quant=quant, fast=True)
    if given.llama:
        from measuring.llama import write_files

        path = write_files(folder, [name])[name]
        peers["llama.cpp"] = Worker("llama.cpp", path=str(path), threads=given.threads)
    reference = Worker("ptir", backend="ref", dtype=dtype, quant=quant) if given.reference else None
    seconds: dict[str, dict[str, list[float]]] = {
        peer: {"decode": [], "prefill": [], "probe": []} for peer in (*peers, "ref")
    }
    for number in range(given.rounds + 1):  # the first one warms up
        decoded = decode_round(peers)
        prefills = {peer: worker.call("prefill", tokens(PROMPT)) for peer, worker in peers.items()}
        for peer in peers if number else ():
            found = seconds[peer]
            found["decode"].append(decoded[peer][0])
            found["probe"].append(decoded[peer][1])
            found["prefill"].append(prefills[peer])
        if reference and number < 3:
            prefill = reference.call("prefill", tokens(PROMPT))
            if number:
                seconds["ref"]["prefill"].append(prefill)
    facts = {peer: worker.call("facts") for peer, worker in peers.items()}
    launches = ours.call("replay", tokens(DECODED))
    for worker in (*peers.values(), *([reference] if reference else [])):
        worker.close()
    wanted = bars.BARS.get(given.backend, bars.FIRST)
    return _rows(name, seconds, facts, launches, wanted)


def decode_round(peers: dict[str, Worker]) -> dict[str, tuple[float, float]]:
    """Each peer's seconds for the whole decoding, and the bandwidth meanwhile, as its time saw it.

    What a peer could have read is the sum over its pieces of seconds times bandwidth around them.
    """
    from ptir.cli.bandwidth import host_probe

    probe, piece = host_probe(), tokens(DECODED // PIECES)
    spent = dict.fromkeys(peers, 0.0)
    readable = dict.fromkeys(peers, 0.0)
    for worker in peers.values():
        worker.call("begin", piece[0])
    before = probe.bandwidth()
    for _ in range(PIECES):
        for peer, worker in peers.items():
            seconds = worker.call("decode", piece)
            after = probe.bandwidth()
            spent[peer] += seconds
            readable[peer] += seconds * (before + after) / 2
            before = after
    return {peer: (spent[peer], readable[peer] / spent[peer]) for peer in peers}


def _rows(
    name: str,
    seconds: dict[str, dict[str, list[float]]],
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


def kernel_rows(given: argparse.Namespace) -> list[Row]:
    """Layer norm and softmax over copying."""
    worker = Worker("rows", backend=given.backend)
    names = ("copy", "negate", "layer_norm", "softmax")
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(given.rounds):
        for name in names:
            found[name].append(worker.call("bandwidth", name))
    worker.close()
    rows = [Row("rows", "copy by two threads", [b / 1e9 for b in found["copy"]], "GB/s")]
    for name in names[1:]:
        shares = [b / c for b, c in zip(found[name], found["copy"], strict=True)]
        bar = None if name == "negate" else bars.ROWS
        rows.append(Row("rows", f"{name}, share of copying", shares, "%", bar))
    return rows


def cold_rows(given: argparse.Namespace) -> list[Row]:
    """From a cold process to the first token."""
    from cold_start import measure

    whole = measure(given.backend, "f32", given.rounds)["seconds"]["whole"]
    samples = [whole["min"], whole["median"], whole["max"]]
    figure = "cold process to first token"
    return [Row("cold", figure, samples, "s", bars.COLD_SECONDS, at_most=True)]


def arguments() -> argparse.Namespace:
    """The command line; without llama.cpp that peer is left out, which is said."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of llama.cpp")
    parser.add_argument("--no-llama", dest="llama", action="store_false")
    parser.add_argument("--fast", action="store_true", help="with dot implementations beside")
    parser.add_argument("--no-reference", dest="reference", action="store_false")
    parser.add_argument("--folder", type=Path, help="where GGUF files are kept")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.llama and not has_llama():
        print("without llama.cpp: pip install llama-cpp-python gguf")
        given.llama = False
    return given


def main() -> None:
    """Measure, print each part of the table as it is done, write JSON."""
    given = arguments()
    rows: list[Row] = []

    def done(measure: Callable[..., list[Row]], *rest: Any) -> None:
        others = Others()
        more = measure(given, *rest)
        if (taken := others.share()) is not None:
            more.append(Row(more[0].subject, "processors taken by others", [taken], "%"))
        rows.extend(more)
        print(bars.table(more))
        if taken is not None and taken > IDLE:
            print(f"! others took {taken:.0%} of the processors: measure again")
        print(flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        for name in given.formats if "models" in given.sections else ():
            done(model_rows, name, folder)
    if "rows" in given.sections:
        done(kernel_rows)
    if "cold" in given.sections:
        done(cold_rows)
    short = [f"{row.subject}: {row.figure}" for row in rows if row.verdict == "short"]
    judged = sum(bool(row.verdict) for row in rows)
    print(f"{judged - len(short)} of {judged} bars reached")
    print("".join(f"  short: {one}\n" for one in short), end="")
    if given.json:
        found = {"machine": platform.platform(), "rows": [row.json() for row in rows]}
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
