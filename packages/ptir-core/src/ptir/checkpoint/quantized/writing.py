"""Weights as folders of compressed-tensors have them: the way back of ``compressed.py``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ptir.errors import QuantizationError
from ptir.params.parted import WORDS, PartedSource
from ptir.params.quantized import round_to_nearest
from ptir.params.source import Array, ParamSource
from ptir.types import BF16, I32, I64, TensorType
from ptir.weights import WeightFormat
from ptir.weights.words import words_for


class PackedSource(PartedSource):
    """Another source, some matrices of which are words, scales and a shape (``pack-quantized``).

    Values are rounded as ``ptir.params.quantized`` does while a model loads: whole numbers times
    a bf16 scale of each group; those of ``arrays`` are words and scales already. Raises
    ``QuantizationError`` where groups do not divide the inputs.
    """

    def __init__(
        self,
        source: ParamSource,
        format: WeightFormat,
        names: tuple[str, ...],
        arrays: Mapping[str, Mapping[str, Array]] | None = None,
    ) -> None:
        self._format, self._arrays = format, arrays or {}
        parts: dict[str, dict[str, tuple[str, TensorType]]] = {}
        for name in names:
            outputs, inputs = source.type(name).shape
            if inputs % format.group:
                raise QuantizationError(
                    f"parameter {name!r}: {format.name} takes groups of {format.group} inputs,"
                    f" which do not divide {inputs}; write a GGUF file (--format q8_0)"
                )
            words = TensorType(I32, (outputs, words_for(inputs, format.bits)))
            scale = TensorType(BF16, (outputs, inputs // format.group))
            parts[name] = {
                WORDS: (f"{name}_packed", words),
                "scale": (f"{name}_scale", scale),
                "shape": (f"{name}_shape", TensorType(I64, (2,))),
            }
        super().__init__(source, parts)

    def has_rows(self, base: str) -> bool:
        """Parts are written whole."""
        return False

    def parts_of(self, base: str, rows: slice | None = None) -> dict[str, Array]:
        """Words, scales and the shape of a weight, rounded if they are not there."""
        shape = np.array(self._source.type(base).shape, np.int64)
        if base in self._arrays:
            words, scale = (self._arrays[base][part] for part in (WORDS, "scale"))
        else:
            try:
                words, scale = round_to_nearest(self._source.read(base), 1, self._format)
            except QuantizationError as error:
                raise QuantizationError(f"parameter {base!r}: {error}") from None
        return {WORDS: words.view(np.int32), "scale": scale, "shape": shape}


def packed_config(format: WeightFormat, floats: Iterable[str] = ()) -> Mapping[str, Any]:
    """The ``quantization_config`` of a folder whose linear modules but the output are packed.

    Modules whose names end in one of ``floats`` are not packed either.
    """
    weights = {
        "num_bits": format.bits,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": format.group,
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", *(f"re:.*{re.escape(end)}$" for end in floats)],
    }
