"""Models to folders of compressed-tensors, whose layers' weights are whole numbers in groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ptir.checkpoint import Checkpoint, save_folder
from ptir.checkpoint.quantized.writing import PackedSource, packed_config
from ptir.checkpoint.save import converted, refuse_existing
from ptir.errors import UnsupportedError
from ptir.models import definition
from ptir.models.mixture import ROUTERS
from ptir.models.table import ModelDefinition
from ptir.params.source import Array, Counters, ParamSource, rows_of
from ptir.params.stacked import stored_names
from ptir.params.unstacked import EXPERTS, apart, are_apart
from ptir.runtime.gguf_file import Calibrate, refuse_quantized
from ptir.runtime.load import described
from ptir.runtime.published import expert_count, with_files
from ptir.types import TensorType
from ptir.weights import WeightFormat

if TYPE_CHECKING:  # it needs NumPy
    from ptir.runtime.calibration.record import Calibrated


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
    ``UnsupportedError`` for a family whose weights are [inputs, outputs], or whose checkpoints have
    all experts of a layer as one tensor. Experts are written one by one; routers keep their floats.
    """
    read = described(checkpoint)
    refuse_quantized(checkpoint.path, read.source)
    architecture = definition(str(checkpoint.config["model_type"]))
    inside = (*architecture.layers.values(),) or ""
    multiplied = read.module.weights()
    axes = {n: axis for n, axis in multiplied.items() if n.startswith(inside)}
    _check_axes(architecture, axes)
    refuse_existing(Path(path), overwrite)
    whole = _apart(with_files(checkpoint), architecture)
    parts = _parts(whole.source, architecture)
    stored = tuple(
        name for name, one in parts.items() if one.of in axes and not one.of.endswith(ROUTERS)
    )
    source = PackedSource(whole.source, format, stored)
    if calibrate is not None:
        formats = {parts[name].of: format for name in stored}
        changeable = frozenset(one.of for one in parts.values())
        found = calibrate(checkpoint, read, formats, changeable)
        floats = _Changed(whole.source, found.source, parts, stored)
        source = PackedSource(floats, format, stored, _arrays(found, parts, stored))
    heads = {*architecture.tied, *architecture.tied.values()}
    others = multiplied.keys() - heads - {parts[name].of for name in stored}
    unpacked = (name for name in parts if parts[name].of in others)
    how = packed_config(format, _modules(unpacked, architecture))
    packed = replace(whole, source=source)
    return save_folder(packed, path, overwrite=overwrite, quantization=how)


def _apart(checkpoint: Checkpoint, architecture: ModelDefinition) -> Checkpoint:
    """The checkpoint with a tensor for each projection of each expert, if it has some."""
    experts = expert_count(checkpoint)
    if experts is None:
        return checkpoint
    return replace(checkpoint, source=apart(checkpoint.source, architecture.stacked, experts))


def _modules(names: Iterable[str], architecture: ModelDefinition) -> tuple[str, ...]:
    """What modules of matrices are called in every layer: the last two parts of their names."""
    bare = (_bare(name, architecture.prefixes) for name in names)
    return tuple(dict.fromkeys(".".join(name.split(".")[-3:-1]) for name in bare))


def _check_axes(architecture: ModelDefinition, axes: Mapping[str, int]) -> None:
    """Refuse families whose matrices compressed-tensors has no names or no order for."""
    if any(axis != 1 for axis in axes.values()):
        raise UnsupportedError(
            f"model_type {architecture.model_type!r} stores weights as [inputs, outputs], which"
            " compressed-tensors does not know: write a GGUF file (--format q8_0)"
        )
    if any(EXPERTS in name for name in axes) and not are_apart(architecture.stacked):
        raise UnsupportedError(
            f"model_type {architecture.model_type!r} stores all experts of a layer as one tensor,"
            " which Transformers does not read from compressed-tensors: write a GGUF file"
            " (--format q4_k_m)"
        )


def _arrays(
    found: Calibrated, parts: Mapping[str, _Part], stored: Iterable[str]
) -> dict[str, dict[str, Array]]:
    """What calibration found of stored tensors; nothing of those that are rounded to nearest."""
    return {
        name: {key: parts[name].rows(one) for key, one in found.arrays[parts[name].of].items()}
        for name in stored
        if parts[name].of in found.arrays
    }


class _Part(NamedTuple):
    """What a stored tensor is: a parameter of the model, or the part of one of its experts."""

    of: str
    number: int = 0
    experts: int = 1

    def some(self, rows: int) -> slice:
        """Which of all rows, those of outputs, are its own."""
        each = rows // self.experts
        return slice(self.number * each, (self.number + 1) * each)

    def rows(self, values: Array) -> Array:
        """Its own rows of an array."""
        return values[self.some(len(values))]


def _parts(source: ParamSource, architecture: ModelDefinition) -> dict[str, _Part]:
    """By the names of stored tensors; parameters have the model's names."""
    bare = partial(_bare, prefixes=architecture.prefixes)
    found = {name: _Part(bare(name)) for name in source.names()}
    for stack, stored in stored_names(source.names(), architecture.stacked).items():
        for number, name in enumerate(stored):
            found[name] = _Part(bare(stack.name), number, len(stored))
    return found


class _Changed:
    """Parameters with the values that another source has for them, under the names of ``parts``.

    All but those that are ``packed`` have the types in which they are stored.
    """

    def __init__(
        self,
        stored: ParamSource,
        values: ParamSource,
        parts: Mapping[str, _Part],
        packed: Collection[str],
    ) -> None:
        self.counters = Counters()
        self._stored, self._values, self._packed = stored, values, frozenset(packed)
        known = frozenset(values.names())
        self._parts = {name: one for name, one in parts.items() if one.of in known}

    def names(self) -> tuple[str, ...]:
        """The names that are stored."""
        return self._stored.names()

    def type(self, name: str) -> TensorType:
        """The stored type."""
        return self._stored.type(name)

    def read(self, name: str) -> Array:
        """The other source's values, or those that are stored where it does not know the name."""
        if name not in self._parts:
            return self._stored.read(name)
        one = self._parts[name]
        if one.experts == 1:
            values = self._values.read(one.of)
        else:
            some = one.some(self._values.type(one.of).shape[0])
            values = rows_of(self._values, one.of, some.start, some.stop)
        return values if name in self._packed else converted(name, values, self.type(name).dtype)

    def release(self, name: str) -> None:
        """Release what is stored."""
        self._stored.release(name)


def _bare(name: str, prefixes: tuple[str, ...]) -> str:
    """A parameter's name without what may stand before every one."""
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name
