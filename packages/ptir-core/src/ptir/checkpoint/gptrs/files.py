"""gpt.rs's files: tensors written one at a time, archives, and their tensors mapped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ptir.checkpoint.gptrs.index import ARCHIVE, preamble, read_preamble
from ptir.checkpoint.safetensors_file import MappedSource
from ptir.checkpoint.safetensors_write import little_endian_bytes, replacing
from ptir.errors import CheckpointError
from ptir.params.source import Array, ArraySource
from ptir.types import TensorType


def write_tensors(
    path: Path,
    magic: bytes,
    config: bytes,
    tensors: Iterable[tuple[str, Array]],
    types: Mapping[str, TensorType],
) -> None:
    """Write a file whole or not at all; ``tensors`` are those of ``types``, in any order.

    Raises ``CheckpointError`` for types that the format has not, and where it cannot be written.
    """
    front, starts = preamble(path, magic, config, types)
    with replacing(path) as file:
        file.write(front)
        for name, array in tensors:
            file.seek(starts[name])
            file.write(little_endian_bytes(array))
        end = max((starts[n] + types[n].nbytes for n in types), default=len(front))
        file.truncate(end)  # empty tensors at the end have a place too


def write_archive(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Write named arrays as a ``GPTRSTEN`` file of version 2, replacing ``path``.

    f32, f16, bf16 and i32; raises ``CheckpointError`` for others.
    """
    source = ArraySource(arrays)
    types = {name: source.type(name) for name in source.names()}
    tensors = ((name, source.read(name)) for name in types)
    write_tensors(Path(path), ARCHIVE, b"", tensors, types)


def read_archive(path: str | Path) -> Mapping[str, Array]:
    """The arrays of a ``GPTRSTEN`` file, read-only and mapped, in the order of its index."""
    source = mapped_source(Path(path), ARCHIVE)
    return {name: source.read(name) for name in source.names()}


def mapped_source(path: Path, magic: bytes) -> MappedSource:
    """The tensors of a file, mapped; raises ``CheckpointError`` where its index is damaged."""
    if not path.is_file():
        raise CheckpointError(f"{path}: is no file; give one that begins with {magic.decode()}")
    return MappedSource.of(path, read_preamble(path, magic).header)
