"""The workloads of ``ptir eval`` by name, run beside a peer where one was asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ptir.cli.eval_comparisons import trace_result, validate_result
from ptir.cli.eval_measures import accuracy_result, bench_result, perplexity_result
from ptir.cli.eval_options import Asked
from ptir.cli.eval_tables import Result, peer_line
from ptir.switches import THREADS

if TYPE_CHECKING:
    from ptir.cli.common import CommonOptions
    from ptir.peers.subject import Pair
    from ptir.runtime import Model

RUNS: Final[dict[str, Callable[[Model, Pair | None, Asked], Result]]] = {
    "perplexity": perplexity_result,
    "accuracy": accuracy_result,
    "bench": bench_result,
    "validate": validate_result,
    "trace": trace_result,
}
"""What runs each of ``WORKLOADS``."""


def compared(common: CommonOptions, model: Model, asked: Asked) -> Result:
    """Run the workload that was asked for, beside the peer where one was."""
    run = RUNS[asked.workload]
    if asked.against is None:
        return run(model, None, asked)
    with beside(common, model, asked.model, asked.against) as pair:
        return run(model, pair, asked)


@contextmanager
def beside(common: CommonOptions, model: Model, spec: str, against: str) -> Iterator[Pair]:
    """The model that was loaded from ``spec`` with that of a library, which is told on stderr."""
    from ptir.cli import show
    from ptir.peers.process import library
    from ptir.peers.subject import paired
    from ptir.runtime.specs import resolve

    given, checkpoint = os.environ.get(THREADS), resolve(spec, seed=common.seed or 0)
    threads = int(given) if given else None
    with paired(model, checkpoint, library(against), threads) as pair:
        show.note(f"beside {peer_line(pair)}")
        yield pair
