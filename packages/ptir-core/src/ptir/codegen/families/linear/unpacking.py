"""A panel of weights below 32 bits as floats in scratch memory, made once for many rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ptir.codegen.expressions.index import Axis, Index
from ptir.codegen.families.linear.parts import LinearEmitter
from ptir.codegen.schedules.kernel import scratch_value
from ptir.codegen.weights.panels import LANES
from ptir.types import F32

Held: TypeAlias = Callable[[Index], Index]
"""Where the weights of an input go in the scratch memory, one per lane."""


def unpack(emitter: LinearEmitter, output: Index, held: Held) -> None:
    """The 16 outputs of a panel, which lie at ``output``, as floats."""
    if emitter.linear.quantized is not None:
        _dequantize(emitter, output, held)
    else:
        _widen(emitter, output, held)


def _dequantize(emitter: LinearEmitter, output: Index, held: Held) -> None:
    writer, together = emitter.writer, emitter.groups_together
    with writer.each("h", emitter.groups // together) as h, writer.lanes(Axis("lane", LANES)):
        for n in range(together):
            _dequantize_group(emitter, output, h * together + n, held)


def _dequantize_group(emitter: LinearEmitter, output: Index, group: Index, held: Held) -> None:
    source, quantized = scratch_value(emitter.fusion, 0), emitter.quantized
    words = quantized.group // quantized.per
    for w in range(words):
        found = quantized.dequantized(emitter.builder, output, group, group * words + w)
        for place, value in enumerate(found):
            input = group * quantized.group + (w * quantized.per + place)
            emitter.writer.store(source, F32, held(input), value)


def _widen(emitter: LinearEmitter, output: Index, held: Held) -> None:
    writer, source, per = emitter.writer, scratch_value(emitter.fusion, 0), emitter.panels.per
    words = emitter.linear.inputs // per
    with writer.each("k", words) as k, writer.lanes(Axis("lane", LANES)):
        for inner in range(per):
            input = k * per + inner
            writer.store(source, F32, held(input), emitter.weight(output, input))
