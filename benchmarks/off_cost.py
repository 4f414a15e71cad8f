"""What seeing and swapping cost while nobody uses them: listeners, overrides, profiles.

Decoding: a model makes tokens one at a time, in short pieces. In every other piece all that a run
looks at for listeners, overrides and profiles is gone (``measuring/unhooked.py``); the same process
and the same memory do both, in the order with, without, without, with. A ratio is the time with
over the time without; of a round it is the median of ``GROUPS``. Beside it stands what the method
gives where all pieces are alike, and the looks timed by themselves, around a step without kernels.
``ptir --help``: fresh processes of this tree and of an earlier commit in turns.

    python benchmarks/off_cost.py --before 4cebce42 --json out.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from cold_start import CODE
from measuring.bars import FORMATS, Row
from measuring.reported import Reported
from measuring.trees import ROOT, checked_out, importing
from measuring.workers import Worker

MOST = 1.01
MODELS = {"demo": "f32", "random:gpt2": "f32", "random:gpt2 int4": "int4"}
"""Models, with the format of their weights."""
STEPS = {"demo": 32, "random:gpt2": 4, "random:gpt2 int4": 12}
"""Tokens of a piece: some 20 ms, so that what else the machine does falls on neighbours alike."""
GROUPS = 12
"""Times four pieces, in a round."""


def decode_rows(name: str, given: argparse.Namespace) -> Iterator[Row]:
    """Decoding with what is looked at over decoding without, and over decoding with it again."""
    dtype, quant = FORMATS[MODELS[name]]
    options = {"model": name.split()[0], "backend": given.backend, "dtype": dtype, "quant": quant}
    steps, spent, looks = STEPS[name], list[float](), list[float]()
    ratios: dict[bool, list[float]] = {False: [], True: []}
    with Worker("unhooked", given.threads, **options) as worker:
        for number in range(given.rounds + 1):  # the first one warms up
            for other, kept in ratios.items():
                found = [pieces(worker, steps, other) for _ in range(GROUPS)]
                if number:
                    kept.append(statistics.median(with_ / without for with_, without in found))
                    spent.append(statistics.median(with_ / 2 / steps for with_, _ in found))
            more, less = worker.call("looks", True), worker.call("looks", False)
            looks.append(1e6 * (more - less))
    subject = f"{name}, {given.backend}"
    yield Row(subject, "a step", [1e6 * one for one in spent], "us")
    yield Row(subject, "of it looks", looks[1:], "us")
    yield Row(subject, "with, x without", ratios[False], "x", MOST, at_most=True, digits=3)
    yield Row(subject, "with, x with", ratios[True], "x", digits=3)


def pieces(worker: Worker, steps: int, other: bool) -> tuple[float, float]:
    """Seconds of the outer and of the inner two of four pieces, the inner ones as ``other``."""
    first, second, third, last = (
        worker.call("decode", steps, hooked) for hooked in (True, other, other, True)
    )
    return first + last, second + third


def help_rows(given: argparse.Namespace) -> Iterator[Row]:
    """``ptir --help`` of this tree and of the earlier commit."""
    with checked_out(given.before) as tree:
        trees = {"before": importing(tree), "now": importing(ROOT)}
        seconds: dict[str, list[float]] = {"before": [], "now": []}
        for number in range(given.processes + 3):  # the first ones write byte code
            for name in (*trees, *reversed(trees)):
                spent = help_seconds(trees[name])
                if number >= 3:
                    seconds[name].append(spent)
    pairs = zip(seconds["now"], seconds["before"], strict=True)
    ratios = [now / before for now, before in pairs]
    yield Row("ptir --help", f"at {given.before}", [1e3 * s for s in seconds["before"]], "ms")
    yield Row("ptir --help", "now", [1e3 * s for s in seconds["now"]], "ms")
    yield Row("ptir --help", "now, x before", ratios, "x", MOST, at_most=True, digits=3)


def help_seconds(environment: Mapping[str, str]) -> float:
    """Seconds of a fresh process."""
    command = [sys.executable, "-c", CODE, "--help"]
    began = time.perf_counter()
    subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, check=True
    )
    return time.perf_counter() - began


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--threads", type=int, default=2, help="of the C backend")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processes", type=int, default=20, help="pairs of `ptir --help`, doubled")
    parser.add_argument("--before", help="an earlier commit, whose `ptir --help` is timed too")
    parser.add_argument("--json", type=Path)
    parser.set_defaults(llama=False)  # nobody else is measured
    return parser.parse_args()


def main() -> int:
    given = arguments()
    told = Reported(given)
    for name in given.models:
        told.add(lambda name=name: [*decode_rows(name, given)])
    if given.before:
        told.add(lambda: [*help_rows(given)])
    told.judge()
    return 1 if any(one.verdict == "short" for one in told.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
