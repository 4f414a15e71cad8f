"""Weights quantized while they are loaded: round to nearest, symmetric, in groups along the inputs.

A quantized weight appears as two parameters: its values in u32 words (the packing of the op
``quantize``) and a bf16 scale per group. The bias of a group is its scale times a fixed zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ptir.errors import QuantizationError, unknown_name
from ptir.params.parted import WORDS, PartedSource, in_runs
from ptir.params.source import Array, ParamSource, rows_of
from ptir.types import BF16, U32, TensorType
from ptir.weights import FORMATS, QUANTIZERS, WeightFormat
from ptir.weights.words import per_word, words_for


def quantization(name: str) -> WeightFormat:
    """The format called ``name``; raises ``QuantizationError`` with the nearest names."""
    if name not in QUANTIZERS:
        raise QuantizationError(unknown_name("quantization", name, QUANTIZERS))
    return FORMATS[name]


def zero_point(format: WeightFormat) -> int:
    """The value that stands for 0: a group's bias is its scale times the negative of it.

    Raises ``QuantizationError`` for a format whose bias is stored, or that has no such value.
    """
    zero = format.zero
    if zero is None or zero != int(zero):
        raise QuantizationError(
            f"{format.name} has no value for 0; choose one of {', '.join(QUANTIZERS)}"
        )
    return int(zero)


@dataclass(frozen=True)
class QuantizedNames:
    """The names of the two parameters that stand for a quantized weight."""

    words: str
    scale: str


def quantized_names(name: str, format: WeightFormat) -> QuantizedNames:
    """The names behind the weight called ``name``."""
    return QuantizedNames(f"{name}:{format.name}.words", f"{name}:{format.name}.scale")


class QuantizedSource(PartedSource):
    """Another source's parameters, and the quantized parts of some of its weights.

    ``axes`` maps the weights to quantize to the axis of their inputs, which the group must divide.
    """

    def __init__(self, source: ParamSource, format: WeightFormat, axes: Mapping[str, int]) -> None:
        self._format, self._axes = format, dict(axes)
        parts: dict[str, dict[str, tuple[str, TensorType]]] = {}
        for name, axis in axes.items():
            shape = source.type(name).shape
            if shape[axis] % format.group:
                raise QuantizationError(
                    f"{name!r}: {format.name} takes groups of {format.group} inputs, which do not"
                    f" divide {shape[axis]}; choose another quantization"
                )
            both = quantized_names(name, format)
            words = TensorType(U32, resized(shape, axis, words_for(shape[axis], format.bits)))
            scale = TensorType(BF16, resized(shape, axis, shape[axis] // format.group))
            parts[name] = {WORDS: (both.words, words), "scale": (both.scale, scale)}
        super().__init__(source, parts)

    def has_rows(self, base: str) -> bool:
        """Whether inputs are the last of two axes."""
        return self._axes[base] == 1 and self._source.type(base).rank == 2

    def parts_of(self, base: str, rows: slice | None = None) -> dict[str, Array]:
        """Words and scales of a weight, rounded."""
        import numpy as np

        axis = self._axes[base]
        if rows is None:
            weight = np.moveaxis(self._source.read(base), axis, -1)
        else:  # of a matrix whose inputs are the last axis
            first, end, _ = rows.indices(self._source.type(base).shape[0])
            weight = rows_of(self._source, base, first, end)

        def run(some: slice) -> dict[str, Array]:
            words, scale = round_to_nearest(weight[some], -1, self._format)
            return {WORDS: words, "scale": scale}

        found = in_runs(len(weight), weight.size // max(len(weight), 1), run)
        return {n: np.ascontiguousarray(np.moveaxis(part, -1, axis)) for n, part in found.items()}


def resized(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    """A shape with another size along an axis."""
    return (*shape[:axis], size, *shape[axis + 1 :])


def round_to_nearest(weight: Array, axis: int, format: WeightFormat) -> tuple[Array, Array]:
    """Words and bf16 scales of a matrix, its inputs along ``axis``.

    The scale makes the entry of greatest size exact: at the lower end for 4 bits, where there is
    one value more, at 127 for 8 bits. Raises ``QuantizationError`` for weights that are not finite.
    """
    import numpy as np

    from ptir.weights.quantizers import to_words

    rows = np.moveaxis(np.asarray(weight, np.float32), axis, -1)
    if not np.isfinite(rows).all():
        raise QuantizationError("a weight holds NaN or infinity; it cannot be quantized")
    codes = dict(to_words(format, rows.reshape(-1, *_blocks(rows.shape[-1], format))))
    values = codes.pop(format.codes).astype(np.uint32)
    (scales,) = codes.values()
    per = per_word(format.bits)
    lines = values.reshape(*rows.shape[:-1], rows.shape[-1] // per, per)
    shifts = (np.arange(per) * format.bits).astype(np.uint32)
    words = np.bitwise_or.reduce(lines << shifts, axis=-1)
    scale = scales.view(BF16.numpy).reshape(*rows.shape[:-1], -1)
    return tuple(np.ascontiguousarray(np.moveaxis(x, -1, axis)) for x in (words, scale))  # type: ignore[return-value]


def _blocks(inputs: int, format: WeightFormat) -> tuple[int, int]:
    return inputs // format.block, format.block
