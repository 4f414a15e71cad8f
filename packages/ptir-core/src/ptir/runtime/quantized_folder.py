"""Models to folders of compressed-tensors, whose layers' weights are whole numbers in groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from ptir.checkpoint import Checkpoint, save_folder
from ptir.checkpoint.quantized.writing import PackedSource, packed_config
from ptir.checkpoint.save import converted, refuse_existing
from ptir.errors import UnsupportedError
from ptir.models import definition
from ptir.params.source import Array, Counters, ParamSource
from ptir.runtime.gguf_file import Calibrate, experts_of, refuse_quantized
from ptir.runtime.load import described
from ptir.runtime.published import with_files
from ptir.types import TensorType
from ptir.weights import WeightFormat


def save_quantized_folder(
    checkpoint: Checkpoint,
    path: str | Path,
    format: WeightFormat,
    *,
    calibrate: Calibrate | None = None,
    overwrite: bool = False,
) -> Path:
    """Write ``checkpoint`` as a folder whose layers' matrices are packed in ``format``.

    Embeddings, the output and vectors keep their floats. ``calibrate`` says how matrices are
    quantized, once all else is checked; they are rounded to nearest without. Raises
    ``CheckpointError`` as ``save_folder`` does, ``UsageError`` for quantizing what is quantized,
    ``QuantizationError`` for weights that are not finite or do not make whole groups, and
    ``UnsupportedError`` for a family whose weights are [inputs, outputs], and for experts.
    """
    read = described(checkpoint)
    refuse_quantized(checkpoint.path, read.source)
    architecture = definition(str(checkpoint.config["model_type"]))
    if any(map(experts_of, getattr(read.module, "layers", ()))):
        raise UnsupportedError(
            f"model_type {architecture.model_type!r} is a mixture of experts, which is not written"
            " as compressed-tensors: write a GGUF file (--format q4_k_m)"
        )
    inside = (*architecture.layers.values(),) or ""
    axes = {n: axis for n, axis in read.module.weights().items() if n.startswith(inside)}
    if any(axis != 1 for axis in axes.values()):
        raise UnsupportedError(
            f"model_type {architecture.model_type!r} stores weights as [inputs, outputs], which"
            " compressed-tensors does not know: write a GGUF file (--format q8_0)"
        )
    refuse_existing(Path(path), overwrite)
    whole = with_files(checkpoint)
    bare = {name: _bare(name, architecture.prefixes) for name in whole.source.names()}
    stored = tuple(name for name in bare if bare[name] in axes)
    source = PackedSource(whole.source, format, stored)
    if calibrate is not None:
        formats = {bare[name]: format for name in stored}
        found = calibrate(checkpoint, read, formats, frozenset(bare.values()))
        arrays = {name: found.arrays[bare[name]] for name in stored if bare[name] in found.arrays}
        floats = _Changed(whole.source, found.source, bare, stored)
        source = PackedSource(floats, format, stored, arrays)
    packed = replace(whole, source=source)
    return save_folder(packed, path, overwrite=overwrite, quantization=packed_config(format))


class _Changed:
    """Parameters with the values that another source has for them, under its names.

    All but those that are ``packed`` have the types in which they are stored.
    """

    def __init__(
        self,
        stored: ParamSource,
        values: ParamSource,
        names: Mapping[str, str],
        packed: Collection[str],
    ) -> None:
        self.counters = Counters()
        self._stored, self._values, self._packed = stored, values, frozenset(packed)
        known = frozenset(values.names())
        self._names = {name: other for name, other in names.items() if other in known}

    def names(self) -> tuple[str, ...]:
        """The names that are stored."""
        return self._stored.names()

    def type(self, name: str) -> TensorType:
        """The stored type."""
        return self._stored.type(name)

    def read(self, name: str) -> Array:
        """The other source's values, or those that are stored where it does not know the name."""
        if name not in self._names:
            return self._stored.read(name)
        values = self._values.read(self._names[name])
        return values if name in self._packed else converted(name, values, self.type(name).dtype)

    def release(self, name: str) -> None:
        """Release what is stored."""
        self._stored.release(name)


def _bare(name: str, prefixes: tuple[str, ...]) -> str:
    """A parameter's name without what may stand before every one."""
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name
