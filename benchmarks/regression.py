"""Whether this tree is as fast as an earlier commit: both measured in alternation, as ratios.

Decoding and prompts of GPT-2 124M in four formats of its weights, steps compiled with nothing on
disk, and a cold process to the first token of the demo model. A ratio is the earlier commit's time
over this tree's within a round: above one, this tree is faster. What lies below ``LEAST`` is named,
and the exit code is 1.

    python benchmarks/regression.py v0.1.0 --backend c
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from cold_start import first_token
from measuring import bars
from measuring.bars import FORMATS, Row
from measuring.models import DECODED, PROMPT, tokens
from measuring.origin import origin
from measuring.others import Others
from measuring.probing import PIECES, in_pieces
from measuring.reported import IDLE
from measuring.trees import ROOT, checked_out, importing
from measuring.workers import Worker

LEAST = 0.97
Trees = dict[str, dict[str, str]]
"""Environments by "before" and "now"."""
Seconds = dict[str, list[float]]


def model_rows(name: str, given: argparse.Namespace, trees: Trees) -> list[Row]:
    """Decoding and a prompt, in one format."""
    piece = tokens(DECODED // PIECES)
    decoding, prompts = _nothing(), _nothing()
    with ExitStack() as stack:
        peers = {
            tree: stack.enter_context(
                Worker("ptir", given.threads, environment=environment, **_given_as(given, name))
            )
            for tree, environment in trees.items()
        }
        for number in range(given.rounds + 1):  # the first one warms up
            for worker in peers.values():
                worker.call("begin", piece[0])
            works = {tree: partial(worker.call, "decode", piece) for tree, worker in peers.items()}
            decoded = in_pieces(works, given.threads)
            for tree, worker in peers.items():
                prompt = worker.call("prefill", tokens(PROMPT))
                if number:
                    decoding[tree].append(decoded[tree][0])
                    prompts[tree].append(prompt)
    figures = {f"decoding {DECODED}": decoding, f"prompt of {PROMPT}": prompts}
    return [row(name, figure, seconds) for figure, seconds in figures.items()]


def compile_rows(given: argparse.Namespace, trees: Trees) -> list[Row]:
    """Capturing and compiling steps of one format in a process that finds nothing on disk."""
    name = given.formats[-1]
    rows = list[Row]()
    for length in (1, PROMPT):
        seconds = _nothing()
        for number in range(given.rounds + 1):  # the first one writes byte code
            for tree, environment in trees.items():
                with tempfile.TemporaryDirectory() as cache:
                    options = {"environment": environment, **_given_as(given, name)}
                    with Worker("steps", given.threads, cache, **options) as worker:
                        spent = sum(worker.call("compiled", length))
                if number:
                    seconds[tree].append(spent)
        rows.append(row(name, f"step of {length} compiled cold", seconds))
    return rows


def cold_rows(given: argparse.Namespace, trees: Trees) -> list[Row]:
    """From a cold process to the first token of the demo model; twice a round, it is short."""
    seconds = _nothing()
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(2 * given.rounds + 2):  # the first two fill the cache
            for tree, environment in trees.items():
                cache = Path(scratch) / tree
                spent = first_token("demo", given.backend, "f32", cache, environment)["whole"]
                if number >= 2:
                    seconds[tree].append(spent)
    return [row("demo", "cold process to first token", seconds)]


def parts(given: argparse.Namespace) -> Iterator[Measure]:
    """What is measured, one table each."""
    for section in given.sections:
        if section == "models":
            yield from (partial(model_rows, name) for name in given.formats)
        else:
            yield ALONE[section]


Measure = Callable[[argparse.Namespace, Trees], list[Row]]
ALONE: dict[str, Measure] = {"compile": compile_rows, "cold": cold_rows}
SECTIONS = ("models", *ALONE)


def row(subject: str, figure: str, seconds: Seconds) -> Row:
    """The earlier commit's time over this tree's, by round."""
    pairs = zip(seconds["before"], seconds["now"], strict=True)
    return Row(subject, figure, [before / now for before, now in pairs], "x", LEAST)


def _given_as(given: argparse.Namespace, name: str) -> dict[str, Any]:
    dtype, quant = FORMATS[name]
    return {"backend": given.backend, "dtype": dtype, "quant": quant}


def _nothing() -> Seconds:
    return {"before": [], "now": []}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("before", nargs="?", default="HEAD", help="the earlier commit")
    parser.add_argument("--backend", default="c")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2, help="of the C backend")
    parser.add_argument("--json", type=Path)
    parser.set_defaults(llama=False)  # nobody else is measured
    return parser.parse_args()


def main() -> int:
    given = arguments()
    rows: list[Row] = []
    with checked_out(given.before) as tree:
        trees = {"before": importing(tree), "now": importing(ROOT)}
        for measure in parts(given):
            others = Others()
            more = measure(given, trees)
            rows += more
            print(bars.table(more), flush=True)
            if (taken := others.share()) is not None and taken > IDLE:
                print(f"! others took {taken:.0%} of the processors: measure again")
    if given.json:
        found = origin(given) | {"before": given.before, "rows": [one.json() for one in rows]}
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    short = [one for one in rows if one.verdict == "short"]
    print(f"{len(rows) - len(short)} of {len(rows)} figures are at least {LEAST} of {given.before}")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
