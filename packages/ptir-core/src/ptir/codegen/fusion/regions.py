"""Which instructions behind a hero may join its kernel: regions with a single output."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from ptir.codegen.fusion.graph import Graph

LIMIT: Final = 96
"""Most instructions of one region: kernels stay readable and builds short."""


def region_outputs(
    graph: Graph, values: tuple[int, ...], joins: Callable[[int], bool]
) -> Iterator[tuple[int, frozenset[int]]]:
    """Values that everything computed from ``values`` so far leads to, the nearest first.

    Each comes with the positions of the instructions up to it. An instruction is taken in when
    ``joins(position)``; the search ends at the first one that may not be, or that is taken.
    """
    open_readers = {value: len(graph.readers.get(value, ())) for value in values}
    pending = sorted({p for value in values for p in graph.readers.get(value, ())})
    queued, members = set(pending), list[int]()
    while pending and len(members) < LIMIT:
        position = heapq.heappop(pending)
        if position in graph.taken or not joins(position):
            return
        members.append(position)
        for operand in set(graph.block.instructions[position].operands):
            if operand in open_readers:
                open_readers[operand] -= 1
        _close(graph, open_readers)
        for result in graph.results[position]:
            readers = graph.readers.get(result, [])
            open_readers[result] = len(readers)
            for reader in readers:
                if reader not in queued:
                    queued.add(reader)
                    heapq.heappush(pending, reader)
        if len(open_readers) == 1:
            yield next(iter(open_readers)), frozenset(members)


def _close(graph: Graph, open_readers: dict[int, int]) -> None:
    """Forget values that nobody reads any more."""
    for value in [v for v, n in open_readers.items() if n == 0 and v not in graph.outputs]:
        del open_readers[value]
