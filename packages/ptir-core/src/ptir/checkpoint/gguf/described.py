"""A model's configuration as the metadata of a GGUF file: the rows of reading, the other way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ptir.checkpoint.gguf.architectures.layout import BLOCKS, Layout
from ptir.checkpoint.gguf.architectures.llama import FACTOR, SCALING, THETA
from ptir.checkpoint.gguf.architectures.table import LAYOUTS
from ptir.errors import CheckpointError, short

LAYERS: Final = ("num_hidden_layers", "n_layer")


def layout_for(model_type: Any) -> tuple[str, Layout]:
    """The architecture of a family, and its row; raises ``CheckpointError``."""
    for architecture, layout in LAYOUTS.items():
        if layout.model_type == model_type and layout.is_written:
            return architecture, layout
    known = ", ".join(one.model_type for one in LAYOUTS.values() if one.is_written)
    raise CheckpointError(
        f"model_type {short(model_type)} cannot be written as GGUF; {known} can: convert to a"
        " folder or to a .safetensors file"
    )


def architecture_metadata(
    architecture: str, layout: Layout, config: Mapping[str, Any], rope: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The keys of an architecture: ``config`` has the fields that they are read to.

    ``rope`` is the entry of ``rope_parameters``, in normal form, for all layers.
    """
    numbers = {row.name: config.get(row.field) for row in layout.numbers}
    found = {key: value for key, value in numbers.items() if value is not None}
    found["vocab_size"] = config["vocab_size"]
    found[BLOCKS] = next(config[key] for key in LAYERS if key in config)
    if rope is not None:
        found[THETA.name] = float(rope[THETA.field])
        if rope.get("rope_type") == "linear":
            found |= {SCALING: "linear", FACTOR.name: float(rope[FACTOR.field])}
    return {f"{architecture}.{key}": value for key, value in found.items()}
