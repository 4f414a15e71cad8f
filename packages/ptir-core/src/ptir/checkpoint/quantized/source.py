"""A folder's parameters, some of them stored quantized: found by the table, checked, decoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from ptir.checkpoint.config import QUANTIZED
from ptir.checkpoint.quantized.fields import Fields
from ptir.checkpoint.quantized.table import METHODS, Method
from ptir.checkpoint.quantized.tensors import ModuleTensors, StoredWeight
from ptir.errors import CheckpointError, short, unknown_name
from ptir.params.source import Array, Counters, ParamSource, lookup
from ptir.types import F32, TensorType
from ptir.weights import WeightFormat
from ptir.weights.decode import decode
from ptir.weights.record import EVERY

QUANTIZATION, CONFIG = QUANTIZED
TURNED: Final = {"gpt2": ("c_attn", "c_proj", "c_fc")}
"""The modules whose weight a model wants as [inputs, outputs], by ``model_type``."""
_LONGEST: Final = 100
_CHUNK: Final = 1 << 22
"""Weights that are decoded at a time."""


def quantized_source(config: Mapping[str, Any], source: ParamSource) -> QuantizedFolder:
    """The parameters of a folder whose configuration says how weights are quantized.

    Raises ``CheckpointError`` for what is not known, and for tensors that do not fit.
    """
    method, fields = method_of(config)
    turned = TURNED.get(str(config.get("model_type")), ())
    modules = quantized_modules(method, source)
    _check_ignored(method, fields, modules)
    weights = {f"{name}.weight": method.weight(fields, held) for name, held in modules.items()}
    return QuantizedFolder(source, weights, lambda name: name.split(".")[-2] in turned)


def method_of(config: Mapping[str, Any]) -> tuple[Method, Fields]:
    """The row of a configuration, and its fields."""
    whole = Fields(config, "config.json")
    fields = whole.inner(CONFIG if config.get(CONFIG) else QUANTIZATION)
    name = fields.values.get("quant_method")
    if name is None and config.get(QUANTIZATION):
        return METHODS["mlx"], whole.inner(QUANTIZATION)
    if not isinstance(name, str) or name not in METHODS:
        named = name if isinstance(name, str) and len(name) < _LONGEST else short(name)
        said = unknown_name("quant_method", named, METHODS)
        raise CheckpointError(f"{fields.where}: {said}")
    return METHODS[name], fields


def quantized_modules(method: Method, source: ParamSource) -> dict[str, ModuleTensors]:
    """The modules that have a mark, with all tensors that belong to them."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    suffixes = sorted(method.suffixes, key=len, reverse=True)
    for name in source.names():
        suffix = next((one for one in suffixes if name.endswith(method.joint + one)), None)
        if suffix is not None:
            found[name[: -len(method.joint + suffix)]][suffix] = name
    return {
        module: ModuleTensors(module, names, source)
        for module, names in found.items()
        if any(mark in names for mark in method.marks)
    }


class QuantizedFolder:
    """Another source's parameters, with ``weights`` in place of the tensors that hold them.

    ``turned(name)`` says that a parameter is [inputs, outputs].
    """

    def __init__(
        self,
        source: ParamSource,
        weights: Mapping[str, StoredWeight],
        turned: Callable[[str], bool],
    ) -> None:
        self.counters = Counters()
        self._source, self._weights, self._turned = source, dict(weights), turned
        gone = {name for weight in weights.values() for name in weight.tensors}
        kept = [name for name in source.names() if name not in gone]
        _check_kept(kept, weights, source)
        self._names = (*kept, *weights)

    def names(self) -> tuple[str, ...]:
        """All names: what is stored as it is, then what is quantized."""
        return self._names

    def type(self, name: str) -> TensorType:
        """Element type and shape; f32 for what is quantized."""
        if name not in self._weights:
            return self._source.type(lookup(dict.fromkeys(self._names, name), name))
        shape = self._weights[name].shape
        return TensorType(F32, shape[::-1] if self._turned(name) else shape)

    def read(self, name: str) -> Array:
        """The numbers, decoded where they are quantized."""
        if name not in self._weights:
            return self._source.read(name)
        found = decoded(self._weights[name])
        found = found.T if self._turned(name) else found
        found.setflags(write=False)
        self.counters.record(name, found.nbytes)
        return found

    def release(self, name: str) -> None:
        """Release the tensors behind a parameter."""
        for stored in self._stored(name):
            self._source.release(stored)

    def format(self, name: str) -> WeightFormat | None:
        """The record of a quantized parameter."""
        return self._weights[name].format if name in self._weights else None

    def blocks(self, name: str) -> Mapping[str, Array]:
        """The arrays of a quantized parameter, outputs first, as its record names them."""
        found = lookup(self._weights, name).arrays()
        self.counters.record(name, sum(array.nbytes for array in found.values()))
        return found

    def stored_bytes(self, name: str) -> int:
        """Bytes of all tensors behind a parameter."""
        return sum(self._source.type(stored).nbytes for stored in self._stored(name))

    def _stored(self, name: str) -> tuple[str, ...]:
        return self._weights[name].tensors if name in self._weights else (name,)


def decoded(weight: StoredWeight) -> Array:
    """The numbers f32[outputs, inputs] of a weight, by its record."""
    arrays = weight.arrays()
    if weight.flat:
        outputs, inputs = weight.shape
        return decode(weight.format, arrays)[0, : outputs * inputs].reshape(weight.shape)
    found = np.empty(weight.shape, np.float32)
    order = weight.format.order
    columns = slice(None) if order is None else np.frombuffer(order.numbers, np.int32)
    for first, part in _parts(weight, arrays):
        lines = decode(weight.format, part)[:, : weight.shape[1]]
        found[first : first + len(lines), columns] = lines
    return found


def _parts(
    weight: StoredWeight, arrays: Mapping[str, Array]
) -> Iterator[tuple[int, dict[str, Array]]]:
    """Runs of outputs that are small enough; they begin where outputs that share a scale do."""
    outputs, inputs = weight.shape
    shared = max(one.outputs for one in weight.format.arrays)
    assert shared < EVERY, "scales of a whole tensor are spread over its outputs"
    step = max(1, _CHUNK // max(inputs * shared, 1)) * shared
    for first in range(0, outputs, step):
        part = {}
        for one in weight.format.arrays:
            begin, end = first // one.outputs, -(-min(first + step, outputs) // one.outputs)
            part[one.name] = arrays[one.name][begin:end]
        yield first, part


def _check_ignored(method: Method, fields: Fields, modules: Mapping[str, ModuleTensors]) -> None:
    for name in fields.names(*method.ignored):
        for module in modules:
            if module == name or module.endswith(f".{name}"):
                raise CheckpointError(
                    f"{fields.where}: module {short(module)} is listed as not quantized, and"
                    f" stored as {', '.join(modules[module].names)}; fetch the checkpoint again"
                )


def _check_kept(kept: list[str], weights: Mapping[str, StoredWeight], source: ParamSource) -> None:
    """What is left must not be a quantized weight that lacks its scales."""
    for name in kept:
        if name in weights:
            raise CheckpointError(f"tensor {short(name)} is stored quantized and as it is too")
        type = source.type(name)
        if name.endswith(".weight") and (not type.dtype.is_float or type.dtype.bits == 8):
            raise CheckpointError(
                f"tensor {short(name)} is {type}, and no scales of it are stored; fetch the"
                " checkpoint again"
            )
