"""Models with linear attention on their way to a GGUF file, and back: in the order that each has.

Files of Qwen3.5 have one head of values for each head of keys, then the next for each, where
folders have those of one head of keys beside each other. Files of Qwen3-Next have the gate apart
from queries, keys and values, each of these for all heads together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ptir.checkpoint import Checkpoint
from ptir.models import definition
from ptir.models.qwen3_5 import TILED
from ptir.models.qwen3_next import PARTED
from ptir.params.arranged import lines_alone
from ptir.params.source import (
    Array,
    BlockSource,
    Counters,
    JoinedSource,
    ParamSource,
    RenamedSource,
    lookup,
)
from ptir.types import TensorType
from ptir.weights import WeightFormat

Rules = dict[str, dict[str, "Gather"]]
"""By the end of a stored name: the ends of the names that take its place, and what each is."""


@dataclass(frozen=True)
class Gather:
    """Which indices of an axis of a stored tensor are taken, in an order."""

    numbers: Array
    axis: int = 0


def as_stored(checkpoint: Checkpoint) -> Checkpoint:
    """The model that computes the same from parameters in a file's order; most are in it already.

    Its configuration says so.
    """
    known = ORDERS.get(str(checkpoint.config["model_type"]))
    if known is None:
        return checkpoint
    key, rules = known
    config = {**definition(str(checkpoint.config["model_type"])).defaults, **checkpoint.config}
    if config.get(key):
        return checkpoint
    source = _ordered(checkpoint.source, rules(config))
    return replace(checkpoint, config={**checkpoint.config, key: True}, source=source)


def as_published(checkpoint: Checkpoint) -> Checkpoint:
    """A model of a file with its heads of values in the order of folders, as others read it."""
    config = dict(checkpoint.config)
    known = ORDERS.get(str(config["model_type"]))
    if known is None or known[0] != TILED or not config.pop(TILED, False):
        return checkpoint
    rules = {
        end: {new: Gather(np.argsort(one.numbers), one.axis) for new, one in parts.items()}
        for end, parts in known[1](config).items()
    }
    return replace(checkpoint, config=config, source=_ordered(checkpoint.source, rules))


def _ordered(source: ParamSource, rules: Rules) -> ParamSource:
    changed: dict[str, tuple[str, Gather]] = {}
    kept: dict[str, str] = {}
    for name in source.names():
        end = next((one for one in rules if name.endswith(one)), "")
        if not end:
            kept[name] = name
            continue
        before = name.removesuffix(end)
        changed |= {f"{before}{new}": (name, places) for new, places in rules[end].items()}
    return JoinedSource(RenamedSource(source, kept), OrderedSource(source, changed))


class OrderedSource:
    """Gathered parts of another source's tensors, under names of their own."""

    def __init__(self, source: ParamSource, places: Mapping[str, tuple[str, Gather]]) -> None:
        self.counters = Counters()
        self._source, self._places = source, dict(places)

    def names(self) -> tuple[str, ...]:
        """The names, in the order given."""
        return tuple(self._places)

    def type(self, name: str) -> TensorType:
        """Stored element type, and the shape that these places have."""
        stored, places = lookup(self._places, name)
        whole = self._source.type(stored)
        shape = list(whole.shape)
        shape[places.axis] = len(places.numbers)
        return TensorType(whole.dtype, tuple(shape))

    def read(self, name: str) -> Array:
        """A copy of the values in their order."""
        stored, places = lookup(self._places, name)
        found = self._source.read(stored).take(places.numbers, places.axis)
        found.setflags(write=False)
        self.counters.record(name, found.nbytes)
        return found

    def release(self, name: str) -> None:
        """Release the stored tensor."""
        self._source.release(lookup(self._places, name)[0])

    def format(self, name: str) -> WeightFormat | None:
        """How the blocks of outputs are read, where each has its own; inputs become numbers."""
        stored, places = lookup(self._places, name)
        if not isinstance(self._source, BlockSource) or places.axis:
            return None
        found = self._source.format(stored)
        return found if found is not None and lines_alone(found) else None

    def blocks(self, name: str) -> Mapping[str, Array]:
        """The stored arrays of a parameter that has a format."""
        stored, places = lookup(self._places, name)
        assert isinstance(self._source, BlockSource)
        return {key: one[places.numbers] for key, one in self._source.blocks(stored).items()}


def _sizes(config: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Heads of keys, heads of values for each, and the sizes of both."""
    keys, values = (int(config[f"linear_num_{one}_heads"]) for one in ("key", "value"))
    key, value = (int(config[f"linear_{one}_head_dim"]) for one in ("key", "value"))
    return keys, values // keys, key, value


def _tiled(config: Mapping[str, Any]) -> Rules:
    keys, shared, key, value = _sizes(config)

    def heads(size: int, before: int = 0) -> Array:
        """Those of values, of so many places each, behind places that stay."""
        places = np.arange(keys * shared * size).reshape(keys, shared, size)
        return np.concatenate((np.arange(before), before + places.swapaxes(0, 1).reshape(-1)))

    mixed, one = Gather(heads(value, 2 * keys * key)), Gather(heads(1))
    ordered = {
        "in_proj_qkv.weight": mixed,
        "conv1d.weight": mixed,
        "in_proj_z.weight": Gather(heads(value)),
        "in_proj_a.weight": one,
        "in_proj_b.weight": one,
        "A_log": one,
        "dt_bias": one,
        "out_proj.weight": Gather(heads(value), axis=1),
    }
    return {f"linear_attn.{end}": {f"linear_attn.{end}": ordered[end]} for end in ordered}


def _parted(config: Mapping[str, Any]) -> Rules:
    keys, shared, key, value = _sizes(config)
    sizes = (key, key, shared * value, shared * value)
    places = np.arange(keys * sum(sizes)).reshape(keys, -1)
    *mixed, gate = (one.reshape(-1) for one in np.split(places, np.cumsum(sizes)[:-1], axis=1))
    return {
        "linear_attn.in_proj_qkvz.weight": {
            "linear_attn.in_proj_qkv.weight": Gather(np.concatenate(mixed)),
            "linear_attn.in_proj_z.weight": Gather(gate),
        }
    }


ORDERS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], Rules]]]] = {
    "qwen3_5_text": (TILED, _tiled),
    "qwen3_5_moe_text": (TILED, _tiled),
    "qwen3_next": (PARTED, _parted),
}
"""By family: the key of a configuration that says the order of files, and the way there."""
