"""Models to folders of compressed-tensors, whose layers' weights are whole numbers in groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ptir.checkpoint import Checkpoint, save_folder
from ptir.checkpoint.quantized.writing import PackedSource, packed_config
from ptir.errors import UnsupportedError
from ptir.models import definition
from ptir.runtime.gguf_file import refuse_quantized, with_files
from ptir.runtime.load import described
from ptir.weights import WeightFormat


def save_quantized_folder(
    checkpoint: Checkpoint, path: str | Path, format: WeightFormat, *, overwrite: bool = False
) -> Path:
    """Write ``checkpoint`` as a folder whose layers' matrices are packed in ``format``.

    Embeddings, the output and vectors keep their floats. Raises ``CheckpointError`` as
    ``save_folder`` does, ``UsageError`` for quantizing what is quantized, ``QuantizationError``
    for weights that are not finite or do not make whole groups, and ``UnsupportedError`` for a
    family whose weights are [inputs, outputs].
    """
    read = described(checkpoint)
    refuse_quantized(checkpoint.path, read.source)
    architecture = definition(str(checkpoint.config["model_type"]))
    inside = architecture.layers[1] if architecture.layers else ""
    axes = {n: axis for n, axis in read.module.weights().items() if n.startswith(inside)}
    if any(axis != 1 for axis in axes.values()):
        raise UnsupportedError(
            f"model_type {architecture.model_type!r} stores weights as [inputs, outputs], which"
            " compressed-tensors does not know: write a GGUF file (--format q8_0)"
        )
    whole = with_files(checkpoint)
    stored = tuple(
        name for name in whole.source.names() if _bare(name, architecture.prefixes) in axes
    )
    source = PackedSource(whole.source, format, stored)
    packed = replace(whole, source=source)
    return save_folder(packed, path, overwrite=overwrite, quantization=packed_config(format))


def _bare(name: str, prefixes: tuple[str, ...]) -> str:
    """A parameter's name without what may stand before every one."""
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name
