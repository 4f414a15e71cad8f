"""Tensor archives: named arrays in one file, for inputs, outputs and traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ptir.checkpoint.safetensors_file import MappedSource, read_header
from ptir.checkpoint.safetensors_write import write_safetensors
from ptir.params.source import Array, ArraySource


@dataclass(frozen=True)
class Archive:
    """Arrays by name in the order saved (read-only, mapped from the file), and string metadata."""

    arrays: Mapping[str, Array]
    metadata: Mapping[str, str]


def save_archive(
    path: str | Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays of any PTIR element type to ``path``, replacing it atomically."""
    source = ArraySource(arrays)
    types = {name: source.type(name) for name in source.names()}
    write_safetensors(path, ((name, source.read(name)) for name in types), types, metadata)


def load_archive(path: str | Path) -> Archive:
    """The arrays of any safetensors file, or of a tensor archive of gpt.rs.

    Raises ``CheckpointError`` when it is damaged.
    """
    path = Path(path)
    from ptir.checkpoint.gptrs import is_archive, read_archive  # safetensors need none of it

    if is_archive(path):
        return Archive(MappingProxyType(dict(read_archive(path))), MappingProxyType({}))
    source = MappedSource([path])
    arrays = {name: source.read(name) for name in source.names()}
    return Archive(MappingProxyType(arrays), MappingProxyType(dict(read_header(path).metadata)))
