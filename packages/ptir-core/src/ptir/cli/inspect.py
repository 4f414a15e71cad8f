"""``ptir inspect``: a checkpoint's configuration and tensors, from headers alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from ptir import units
from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, showing_only
from ptir.cli.model import model_argument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ptir.types import TensorType
    from ptir.weights import WeightFormat


@showing_only("json", "seed")
@click.command()
@model_argument
@click.option("--tensors", is_flag=True, help="List every tensor.")
@common_options
def command(common: CommonOptions, model: str, tensors: bool) -> None:
    """Show what MODEL holds: architecture, parameters, dtypes, tokenizer."""
    from ptir.checkpoint import normalize_config
    from ptir.params import SizedSource, stored_formats
    from ptir.runtime.catalog import stored_as
    from ptir.runtime.load import errors_name
    from ptir.runtime.specs import resolve

    checkpoint = resolve(model, seed=common.seed or 0)
    types = {name: checkpoint.source.type(name) for name in checkpoint.source.names()}
    formats = stored_formats(checkpoint.source)
    stored = {n: formats[n].name if n in formats else t.dtype.name for n, t in types.items()}
    source = checkpoint.source
    sizes = {n: _nbytes(t, formats.get(n)) for n, t in types.items()}
    if isinstance(source, SizedSource):
        sizes = {name: source.stored_bytes(name) for name in types}
    with errors_name(checkpoint.path):
        config = normalize_config(checkpoint.config)
    summary: dict[str, Any] = {
        "model_type": config.get("model_type"),
        "format": stored_as(checkpoint),
        "parameters": sum(t.size for t in types.values()),
        "tensors": len(types),
        "bytes": sum(sizes.values()),
        "dtypes": sorted(set(stored.values())),
        **({"weights": _held(formats.values())} if formats else {}),
        "auto": _chosen(type for name, type in types.items() if name not in formats),
        "tokenizer": checkpoint.tokenizer is not None,
        "files": [file.name for file in checkpoint.files],
    }
    rows: list[dict[str, Any]] = [
        {"name": n, "dtype": stored[n], "shape": list(t.shape)} for n, t in types.items()
    ]
    if common.json:
        show.value({**summary, "config": dict(checkpoint.config), "tensor_list": rows})
        return
    show.table(("property", "value"), [(k, _plain(k, v)) for k, v in summary.items()])
    if tensors:
        lines = [(r["name"], r["dtype"], r["shape"], math.prod(r["shape"])) for r in rows]
        show.table(("tensor", "dtype", "shape", "elements"), lines)


def _held(formats: Iterable[WeightFormat]) -> list[str]:
    """What weights that are stored quantized become when they are loaded."""
    from ptir.weights.affine_form import held_as

    return sorted({f"{format.name} becomes {held_as(format)}" for format in formats})


def _chosen(types: Iterable[TensorType]) -> list[str]:
    """What ``auto`` means for a file: types of matrices of floats, and of the cache."""
    from ptir.params.storage import AUTO, cache_type, storage_rule

    held = [type for type in map(storage_rule(AUTO), types) if type.rank > 1]
    dtypes = "+".join(sorted({type.dtype.name for type in held if type.dtype.is_float}))
    weights = [f"--dtype {dtypes}"] if dtypes else []
    return [*weights, f"--cache-dtype {cache_type(AUTO).name}"]


def _nbytes(type: TensorType, format: WeightFormat | None) -> int:
    """Bytes in the file."""
    return type.nbytes if format is None else int(type.size * format.stored_bits / 8)


def _plain(key: str, value: Any) -> object:
    """A property as people read it."""
    if isinstance(value, list):
        return ("; " if key == "weights" else ", ").join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key == "bytes":
        return f"{value:,} ({units.size(value)})"
    return f"{value:,}" if isinstance(value, int) else value
