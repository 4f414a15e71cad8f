"""Works in alternating pieces, each between two probes of read bandwidth."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

PIECES = 4
"""Pieces of a work in a round: works alternate and bandwidth is probed in between."""


@functools.cache
def probe(threads: int) -> Any:
    """The probe of what so many threads read, whose memory is kept."""
    from ptir.cli.bandwidth import HostProbe, host_probe
    from ptir.params.processors import usable_processors

    return host_probe() if threads == usable_processors() else HostProbe(threads)


def in_pieces(
    works: Mapping[str, Callable[[], float]], threads: int
) -> dict[str, tuple[float, float]]:
    """Each work's seconds for all pieces, and the bandwidth meanwhile, as its time saw it.

    What a work could have read is the sum over its pieces of seconds times bandwidth around them.
    """
    spent, readable = dict.fromkeys(works, 0.0), dict.fromkeys(works, 0.0)
    before = probe(threads).bandwidth()
    for _ in range(PIECES):
        for name, work in works.items():
            seconds = work()
            after = probe(threads).bandwidth()
            spent[name] += seconds
            readable[name] += seconds * (before + after) / 2
            before = after
    return {name: (spent[name], readable[name] / spent[name]) for name in works}
