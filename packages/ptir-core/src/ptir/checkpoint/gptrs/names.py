"""What gpt.rs calls the models and tensors that it shares with us, and how it lays them out.

A model's ``kind`` is a row of ``KINDS``; others are called by their ``model_type``, and their
tensors as they are. GPT-2 differs in names and layout: queries, keys and values are three maps
[outputs, inputs], where Transformers has one [inputs, 3 outputs]. Vision models are torchvision's
with each batch norm folded into the convolution before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ptir.checkpoint.gptrs.views import View, ViewedSource
from ptir.errors import CheckpointError, short
from ptir.models.fields import real
from ptir.params.source import Array, ParamSource
from ptir.types import TensorType

Settings: TypeAlias = Mapping[str, Any]

EPSILON: Final = 1e-5
"""Of batch norms whose configuration does not say it."""
PREFIX: Final = "transformer."
"""Before the names of GPT-2's tensors in the files that Transformers writes for the whole model."""
EMBEDDING: Final = "wte.weight"
HEAD: Final = "lm_head.weight"

_BLOCK, _OURS = "model.layers", "h"
_PROJECTIONS: Final = {
    "attn.c_attn": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn.c_proj": ("self_attn.o_proj",),
    "mlp.c_fc": ("mlp.up_proj",),
    "mlp.c_proj": ("mlp.down_proj",),
}
"""Linear maps of a block, and the maps [outputs, inputs] that they are in gpt.rs."""
_NORMS: Final = {"ln_1": "input_layernorm", "ln_2": "post_attention_layernorm"}
_AROUND: Final = {
    EMBEDDING: "model.embed_tokens.weight",
    "wpe.weight": "model.embed_positions.weight",
    "ln_f.weight": "model.norm.weight",
    "ln_f.bias": "model.norm.bias",
}
"""Tensors outside of blocks."""


@dataclass(frozen=True)
class Kind:
    """A model that gpt.rs has: the ``model_type`` here, and what configurations leave out.

    ``stored`` and ``opened`` give its tensors as gpt.rs has them, and back; the mapping after them
    holds what the way back must know, the last one is the configuration.
    """

    model_type: str
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stored: Callable[[ParamSource, dict[str, Any]], ParamSource] | None = None
    opened: Callable[[ParamSource, Settings, Settings], ParamSource] | None = None


def kind_of(config: Mapping[str, Any]) -> str:
    """The kind of a model by its configuration."""
    for name, kind in KINDS.items():
        said = config.get("model_type") == kind.model_type
        if said and all(config.get(key, value) == value for key, value in kind.defaults.items()):
            return name
    return str(config.get("model_type", ""))


# --- GPT-2 ---


def gpt2_stored(source: ParamSource, record: dict[str, Any]) -> ParamSource:
    """GPT-2 as gpt.rs has it; names that are not the model's stay.

    ``record`` is told the prefix of names, and whether the head was only the embedding.
    """
    names = source.names()
    record["prefix"] = PREFIX if PREFIX + EMBEDDING in names else ""
    record["tied"] = HEAD not in names
    views: dict[str, View] = {}
    for name in names:
        bare = name.removeprefix(record["prefix"])
        views |= _split(name, bare, source.type(name))
    if record["tied"]:
        views[HEAD] = views[_AROUND[EMBEDDING]]
    return ViewedSource(source, views)


def _split(name: str, bare: str, type: TensorType) -> dict[str, View]:
    """The tensors that one of ours is in gpt.rs."""
    match = re.fullmatch(rf"{_OURS}\.(\d+)\.(.+)\.(weight|bias)", bare)
    if match is None:
        return {_AROUND.get(bare, name): View(type, (name,), _same)}
    layer, inner, last = match.groups()
    into = _PROJECTIONS.get(inner)
    if into is None:
        also = _NORMS.get(inner)
        there = f"{_BLOCK}.{layer}.{also}.{last}" if also else name
        return {there: View(type, (name,), _same)}
    *rows, columns = type.shape
    if columns % len(into):
        raise CheckpointError(
            f"tensor {short(name)} is {type}; its last axis holds {len(into)} maps of one size"
        )
    part = columns // len(into)
    return {
        f"{_BLOCK}.{layer}.{one}.{last}": View(
            type.with_shape((part, *rows)), (name,), _columns(number * part, part)
        )
        for number, one in enumerate(into)
    }


def _columns(first: int, count: int) -> Callable[[Array], Array]:
    return lambda array: array[..., first : first + count].T


def _same(array: Array) -> Array:
    return array


def gpt2_opened(source: ParamSource, record: Settings, config: Settings) -> ParamSource:
    """gpt.rs's GPT-2 as Transformers has it."""
    prefix, tied, names = record.get("prefix", PREFIX), record.get("tied", False), source.names()
    if not isinstance(prefix, str) or not isinstance(tied, bool):
        raise CheckpointError(
            f"prefix {short(prefix)} and tied {short(tied)}: must be a text and true or false"
        )
    around = {theirs: ours for ours, theirs in _AROUND.items()}
    norms = {theirs: ours for ours, theirs in _NORMS.items()}
    maps = {part: ours for ours, parts in _PROJECTIONS.items() for part in parts}
    views: dict[str, View] = {}
    for name in names:
        match = re.fullmatch(rf"{re.escape(_BLOCK)}\.(\d+)\.(.+)\.(weight|bias)", name)
        layer, inner, last = match.groups() if match else ("", "", "")
        if inner in maps:
            ours = maps[inner]
            parts = [f"{_BLOCK}.{layer}.{one}.{last}" for one in _PROJECTIONS[ours]]
            if name == parts[0]:
                views[f"{prefix}{_OURS}.{layer}.{ours}.{last}"] = _joined(source, parts)
        elif inner in norms:
            made = View(source.type(name), (name,), _same)
            views[f"{prefix}{_OURS}.{layer}.{norms[inner]}.{last}"] = made
        elif name != HEAD or not tied:
            ours = prefix + around[name] if name in around else name
            if ours in views:
                raise CheckpointError(f"tensor {short(name)} is there by another name, too")
            views[ours] = View(source.type(name), (name,), _same)
    return ViewedSource(source, views)


def _joined(source: ParamSource, parts: list[str]) -> View:
    types = {part: source.type(part) for part in parts}  # those that are not there are refused
    first = next(iter(types.values()))
    if any(type != first for type in types.values()):
        listed = ", ".join(f"{part} {type}" for part, type in types.items())
        raise CheckpointError(f"{listed}: must be of one type to be one map")
    outputs, *inputs = first.shape
    return View(first.with_shape((*inputs, outputs * len(parts))), tuple(parts), _together)


def _together(*arrays: Array) -> Array:
    import numpy as np

    return np.concatenate([array.T for array in arrays], axis=-1)


# --- folded batch norms ---


def unfolded(source: ParamSource, record: Settings, config: Settings) -> ParamSource:
    """Convolutions with biases as convolutions and batch norms that only add: 1, bias, 0, 1."""
    names, epsilon = source.names(), real(config, "layer_norm_eps", EPSILON)
    if any(name.endswith(".running_mean") for name in names):
        return source
    views: dict[str, View] = {}
    for name in names:
        stem, _, last = name.rpartition(".")
        type = source.type(name)
        if last == "bias" and len(source.type(f"{stem}.weight").shape) == 4:
            views |= _norm(_norm_behind(stem), name, type, epsilon)
        else:
            views[name] = View(type, (name,), _same)
    return ViewedSource(source, views)


def _norm_behind(convolution: str) -> str:
    """The name of the norm behind a convolution: ``bn1`` behind ``conv1``, 1 behind 0."""
    stem, dot, last = convolution.rpartition(".")
    number = re.fullmatch(r"(conv)?(\d+)", last)
    if number is None:
        raise CheckpointError(f"tensor {convolution}.bias: no batch norm is known behind it")
    return f"{stem}{dot}" + (f"bn{number[2]}" if number[1] else str(int(last) + 1))


def _norm(name: str, bias: str, type: TensorType, epsilon: float) -> dict[str, View]:
    """The tensors of a norm that adds the convolution's bias."""

    def constant(value: float) -> Callable[[Array], Array]:
        import numpy as np

        return lambda array: np.full_like(array, value)

    makers = {
        "weight": constant(1.0),
        "bias": _same,
        "running_mean": constant(0.0),
        "running_var": constant(1.0 - epsilon),
    }
    return {f"{name}.{last}": View(type, (bias,), made) for last, made in makers.items()}


KINDS: Final[Mapping[str, Kind]] = {
    "gpt": Kind("gpt2", stored=gpt2_stored, opened=gpt2_opened),
    "resnet34": Kind(
        "resnet",
        {
            "layer_type": "basic",
            "depths": [3, 4, 6, 3],
            "hidden_sizes": [64, 128, 256, 512],
            "embedding_size": 64,
        },
        opened=unfolded,
    ),
    "mobilenet_v2": Kind("mobilenet_v2", opened=unfolded),
}
"""By what gpt.rs calls them."""
