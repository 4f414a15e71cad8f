"""A model's configuration as the metadata of a GGUF file: the rows of reading, the other way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ptir.checkpoint.gguf.architectures.layout import BLOCKS, Layout
from ptir.checkpoint.gguf.architectures.llama import FACTOR, SCALING, THETA, YARN
from ptir.checkpoint.gguf.architectures.table import LAYOUTS
from ptir.errors import CheckpointError, short

LAYERS: Final = ("num_hidden_layers", "n_layer")


KIN: Final = {
    "roberta": "bert",
    "xlm-roberta": "bert",
    "distilbert": "bert",
    "mistral": "llama",
}
"""What families are written as that have no architecture of their own."""


def layout_for(model_type: Any) -> tuple[str, Layout]:
    """The architecture of a family, and its row; raises ``CheckpointError``."""
    wanted = (model_type, KIN.get(model_type) if isinstance(model_type, str) else None)
    written = list(_rows())
    for architecture, layout in written:
        if layout.model_type in wanted:
            return architecture, layout
    known = ", ".join((*(one.model_type for _, one in written), *KIN))
    raise CheckpointError(
        f"model_type {short(model_type)} cannot be written as GGUF; {known} can: convert to a"
        " folder or to a .safetensors file"
    )


def _rows() -> Iterator[tuple[str, Layout]]:
    """Every architecture and its row, and with it that of its files that have experts."""
    for architecture, layout in LAYOUTS.items():
        yield architecture, layout
        if layout.mixture is not None:
            yield architecture, layout.mixture


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
    found |= layout.said(config)
    found = {key: value for key, value in found.items() if value is not None}
    if rope is not None:
        found[THETA.name] = float(rope[THETA.field])
        kind = rope.get("rope_type")
        if kind in ("linear", "yarn"):
            found |= {SCALING: kind, FACTOR.name: float(rope[FACTOR.field])}
        if kind == "yarn":
            said = {row.name: rope.get(row.field) for row in YARN}
            found |= {key: _number(key, one) for key, one in said.items() if one is not None}
    return {f"{architecture}.{key}": value for key, value in found.items()}


def _number(key: str, value: float) -> int | float:
    """A count of positions as an integer, whatever else as f32."""
    return int(value) if key.endswith("_length") else float(value)
