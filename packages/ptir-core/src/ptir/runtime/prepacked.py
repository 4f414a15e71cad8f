"""Weights as kernels read them, on disk: what one process packed, the next ones map.

A weight in words, its packed panels and what else is computed from parameters alone take as long as
reading the file several times. They are written once for a model on a device, and mapped after
that: nothing is computed, processes share the memory, and no byte of it is anonymous.

A file holds arrays, each at the begin of a page, and behind them an index and its length. Files
are written in one step and looked through for their sizes; the numbers have no checksum, because
that would read all of them. What an entry depends on is in its file's name: the weight files with
sizes and times of change, the device, and the state of the code.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from ptir.backend.code_state import code_states
from ptir.backend.contract import Target
from ptir.backend.disk_cache import DiskCache, digest_key
from ptir.backend.folders import ENVIRONMENT, replacing
from ptir.errors import PtirError
from ptir.params.mapped_files import mapped
from ptir.switches import WEIGHTS_LIMIT, switched_on
from ptir.types import TensorType, dtype_of, parse_type

if TYPE_CHECKING:
    from ptir.params.source import Array
    from ptir.params.store import Fetch

FORMAT: Final = 1
WEIGHTS: Final = DiskCache("weights", FORMAT, limit=32 << 30, variable=WEIGHTS_LIMIT)

LEAST: Final = 16 << 20
"""Bytes below which nothing is written: computing them again is as fast."""

PAGE: Final = 4096
_LENGTH: Final = 8
"""Bytes of a length."""


class PrepackedWeights:
    """The computed parameters of one model on one device; files that cannot be used are warnings.

    ``find`` gives what an earlier process computed, as arrays that are mapped and read-only;
    ``add`` notes what this one did, and ``save`` writes that.
    """

    def __init__(self, model: str, cache: DiskCache = WEIGHTS, least: int | None = None) -> None:
        """What takes less than ``least`` bytes (``LEAST``) is not written."""
        self._model, self._cache, self._least = model, cache, least
        self._found: dict[str, Array] | None = None
        self._added: dict[str, tuple[int, Fetch]] = {}

    def find(self, key: str) -> Array | None:
        """The array under ``key``."""
        if self._found is None:
            self._found = dict(self._mapped())
        return self._found.get(key)

    def add(self, key: str, nbytes: int, fetch: Fetch) -> None:
        """Note an array; ``fetch`` is called when it is written."""
        self._added[key] = nbytes, fetch

    def save(self) -> None:
        """Write what was noted, where it is worth a file and there is room."""
        added, self._added = self._added, {}
        size = sum(nbytes for nbytes, _ in added.values())
        least = LEAST if self._least is None else self._least
        if not added or not least <= size <= self._cache.most:
            return
        path = self._cache.path(f"{self._model}-{digest_key(*sorted(added))}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(path.parent).free >= 2 * size:
                _write(path, self._cache.magic, {key: fetch for key, (_, fetch) in added.items()})
        except OSError as error:
            warnings.warn(
                f"packed weights: {self._cache.folder} cannot be written ({error.strerror}); they"
                f" are packed again by every process; set {ENVIRONMENT} to a folder of yours",
                stacklevel=2,
            )
        else:
            self._cache.make_room(size, self._cache.most)

    def _paths(self) -> list[Path]:
        return sorted(self._cache.folder.glob(f"{self._model}-*.{self._cache.name}"))

    def reload(self) -> None:
        """Find what was written since the first search."""
        self._found = None

    def _mapped(self) -> Iterator[tuple[str, Array]]:
        for path in self._paths():
            try:
                yield from _arrays(path, self._cache.magic)
                os.utime(path)  # it was used
            except (OSError, ValueError, KeyError, TypeError, PtirError) as error:
                warnings.warn(
                    f"packed weights: {path} cannot be used ({error}); they are packed again",
                    stacklevel=2,
                )


class SpilledWeights(PrepackedWeights):
    """The computed parameters of one model in this process: files that go when it ends.

    Nothing but their mapping keeps them, where the system has that.
    """

    def __init__(self, cache: DiskCache = WEIGHTS) -> None:
        super().__init__(f"spilled-{os.getpid()}-{next(_spilled)}", cache, least=0)
        self._kept: dict[str, Array] = {}

    def find(self, key: str) -> Array | None:
        """The array under ``key``."""
        return self._kept.get(key)

    def reload(self) -> None:
        """Map what was written, and take its name away."""
        self._kept |= dict(self._mapped())
        for path in self._paths():
            with suppress(OSError):  # a system that does not take a mapped file's name
                path.unlink()


_spilled = itertools.count()


def streamed_weights(files: Sequence[Path], target: Target) -> PrepackedWeights:
    """Where computed weights are kept from which parameters are streamed: all of them, always."""
    return prepacked(files, target, least=0) or SpilledWeights()


def prepacked(
    files: Sequence[Path], target: Target, least: int | None = None
) -> PrepackedWeights | None:
    """Where computed weights of ``files`` are kept for a target.

    None for files of fewer bytes than ``LEAST``, where the state of the code is unknown, and under
    PTIR_REBUILD_KERNELS.
    """
    stated = [(path.resolve(), path.stat()) for path in files]
    large = sum(status.st_size for _, status in stated) >= LEAST
    code = code_states(type(target.backend)) if large else None
    if code is None or switched_on("PTIR_REBUILD_KERNELS"):
        return None
    weights = [f"{path}:{status.st_size}:{status.st_mtime_ns}" for path, status in stated]
    return PrepackedWeights(digest_key(str(FORMAT), str(target), *code, *weights), least=least)


# --- files ---


def _write(path: Path, magic: bytes, arrays: Mapping[str, Fetch]) -> None:
    """Write the arrays, of which one is in memory at a time, or a run of one."""
    index: dict[str, tuple[str, int]] = {}
    with replacing(path) as file:
        file.write(magic)
        for name, fetch in arrays.items():
            _pad(file)
            index[name] = _written(file, fetch())
        text = json.dumps(index).encode()
        file.write(text + len(text).to_bytes(_LENGTH, "little"))


def _written(file: IO[bytes], found: Array | Iterator[Array]) -> tuple[str, int]:
    """The type of an array, and where it was written."""
    import numpy as np

    place, rows, last = file.tell(), 0, None
    for array in [found] if isinstance(found, np.ndarray) else found:
        file.write(np.ascontiguousarray(array).reshape(-1).view("u1").data)
        rows, last = rows + len(array) if array.ndim else 0, array
    assert last is not None
    shape = (rows, *last.shape[1:]) if last.ndim else ()
    return str(TensorType(dtype_of(last), shape)), place


def _pad(file: IO[bytes]) -> None:
    file.write(bytes(-file.tell() % PAGE))


def _arrays(path: Path, magic: bytes) -> Iterator[tuple[str, Array]]:
    """The arrays of a file; raises ``ValueError``, ``KeyError``, ``TypeError`` or ``PtirError``."""
    import numpy as np

    with path.open("rb") as file:
        content = mapped(file.fileno(), path)
    end = len(content) - _LENGTH
    start = end - int.from_bytes(content[end:], "little")
    if content[: len(magic)] != magic or not len(magic) <= start <= end:
        raise ValueError("it is not whole")
    for name, (text, offset) in json.loads(content[start:end]).items():
        type_ = parse_type(text)
        if offset % PAGE or not 0 < offset <= start - type_.nbytes:
            raise ValueError(f"{name} lies outside of it")
        flat = np.frombuffer(content, type_.dtype.numpy, type_.size, offset)
        yield name, flat.reshape(type_.shape)
