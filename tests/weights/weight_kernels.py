"""Kernels that write out a stored weight, element by element, as the generator reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ptir.backend.kernel import Dialect
from ptir.codegen.expressions.expr import Expr, Load, interned
from ptir.codegen.expressions.index import Axis, Index, axis
from ptir.codegen.kernel_ir.writer import Writer
from ptir.codegen.schedules.kernel import KernelCode
from ptir.codegen.weights.values import Read, fused_value_at
from ptir.types import F32
from ptir.weights import FusedFormat, StoredArray

LANES: Final = 16
RESULT: Final = -1
"""The number of what is written; stored arrays are numbered from 0 on."""


def numbered(format: FusedFormat) -> list[tuple[int, StoredArray]]:
    """The arrays of every run, in order, with the number of their run."""
    return [(n, one) for n, run in enumerate(format.runs) for one in run.format.arrays]


def reader(format: FusedFormat, run: int, inputs: int) -> Read:
    """Elements of a run's arrays in memory."""
    numbers = {one: number for number, (of, one) in enumerate(numbered(format)) if of == run}
    blocks = inputs // format.runs[run].format.block

    def read(stored: StoredArray, line: Index, column: Index) -> Expr:
        width = -(-blocks // stored.blocks) * stored.count
        return Load(stored.dtype, numbers[stored], line * width + column)

    return read


def written_out(format: FusedFormat, inputs: int, dialect: Dialect, wide: bool) -> KernelCode:
    """A kernel that writes f32[outputs, inputs]; where ``wide``, 16 outputs of a column at once."""
    with interned({}):
        return _written_out(format, inputs, dialect, wide)


def _written_out(format: FusedFormat, inputs: int, dialect: Dialect, wide: bool) -> KernelCode:
    writer = Writer(dialect)
    reads = [reader(format, run, inputs) for run in range(len(format.runs))]
    for stored, number in ((one, n) for n, (_, one) in enumerate(numbered(format))):
        writer.memory(number, stored.dtype)
    rows = format.outputs // LANES if wide else format.outputs
    with (
        writer.loop(Axis("o", rows), 0, rows),
        writer.loop(Axis("i", inputs), 0, inputs),
        writer.lanes(Axis("lane", LANES) if wide else None),
    ):
        output = axis("o", rows) * LANES + axis("lane", LANES) if wide else axis("o", rows)
        value = fused_value_at(format, reads, output, axis("i", inputs))
        writer.store(RESULT, F32, output * inputs + axis("i", inputs), value)
    return KernelCode.of(writer)


def nbytes(format: FusedFormat, sizes: Sequence[int], inputs: int) -> dict[str, int]:
    """The bytes of every argument."""
    found = {f"b{number}": size for number, size in enumerate(sizes)}
    return found | {f"b{len(sizes)}": 4 * format.outputs * inputs}
