"""Weights quantized on the way to a file: rows in chunks, on all processors, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ptir.errors import QuantizationError
from ptir.params.processors import usable_processors
from ptir.params.source import Array
from ptir.weights import WeightFormat

CHUNK: Final = 1 << 17
"""Weights that a thread quantizes at a time: NumPy's arrays of a step fit its cache."""
AHEAD: Final = 2
"""Chunks of each thread that may wait for their turn to be written."""


def quantized_rows(
    name: str, format: WeightFormat, values: Array, order: Array | slice
) -> Iterator[Array]:
    """The blocks of a parameter's rows [outputs, inputs], in ``order``, as arrays of some rows.

    Never more than a few chunks are in memory. NumPy lets other threads run while it computes.
    Raises ``QuantizationError`` that names the parameter.
    """
    import numpy as np

    from ptir.weights.quantizers import quantize

    rows = np.arange(len(values))[order]
    step = max(1, CHUNK // max(1, values.shape[1]))

    def chunk(first: int) -> Array:
        chosen = values[rows[first : first + step]].astype(np.float32)
        try:
            (blocks,) = quantize(format, chosen).values()
        except QuantizationError as error:
            raise QuantizationError(f"parameter {name!r}: {error}") from None
        return blocks

    count = usable_processors()
    with ThreadPoolExecutor(count) as pool:
        waiting: deque[Future[Array]] = deque()
        try:
            for first in range(0, len(rows), step):
                waiting.append(pool.submit(chunk, first))
                if len(waiting) >= AHEAD * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:
                one.cancel()
