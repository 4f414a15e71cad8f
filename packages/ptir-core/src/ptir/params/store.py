"""Resident parameters of one loaded model on one device: read when first needed, at most once.

A store sits between a ``ParamSource`` and a device: it converts floats to the types that the model
holds them in, uploads, and keeps derived parameters (folded, transposed, packed) beside their
origins. What takes long to compute may come from an earlier process (``Computed``).
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from ptir import events
from ptir.params.ids import NamespaceId, ParamKey, derived
from ptir.params.pages import MappedPages, mapping_of
from ptir.params.source import Array, ParamSource, rows_of
from ptir.params.storage import TypeRule, as_stored
from ptir.types import TensorType

if TYPE_CHECKING:
    from ptir.params.streaming import StreamedParameters

MOST_RUNS: Final = 64
"""Runs of rows that a parameter is read or computed in, at most: each costs something."""

Fetch: TypeAlias = "Callable[[], Array | Iterator[Array]]"
"""Gives an array, or runs of it along its first axis, one behind the other."""


class Uploader(Protocol):
    """What a store needs of its target (``backend.Target`` is one): where arrays go."""

    @property
    def backend(self) -> Any:
        """The backend, with ``upload(array, device, borrow=True)`` and ``incarnation(device)``."""
        ...

    @property
    def device(self) -> Any:
        """The device."""
        ...


class Computed(Protocol):
    """Arrays that earlier processes computed from a source's parameters, by key."""

    def find(self, key: str) -> Array | None:
        """What is there under ``key``, read-only."""
        ...

    def add(self, key: str, nbytes: int, fetch: Fetch) -> None:
        """Note an array that was computed."""
        ...

    def save(self) -> None:
        """Let later processes find what was noted."""
        ...

    def reload(self) -> None:
        """Find what was saved since the first search."""
        ...


class ParamStore:
    """Handles of a source's parameters on a target.

    ``types`` says which type a stored one becomes when it is read (``ptir.params.storage``);
    ``keep_dtype`` parameters, which are computed then, keep theirs. The backend may borrow the
    arrays' memory. What is computed is looked up in ``computed`` first, and noted there. With
    ``streamed`` parameters, programs have them under a budget (``ptir.capture.streamed``).
    """

    def __init__(
        self,
        source: ParamSource,
        target: Uploader,
        types: TypeRule = as_stored,
        keep_dtype: frozenset[str] = frozenset(),
        computed: Computed | None = None,
        streamed: StreamedParameters | None = None,
    ) -> None:
        self.streamed = streamed
        self._computed = computed
        self._keep_dtype = keep_dtype
        self.source = source
        self.target: Any = target
        self.namespace = NamespaceId()
        self._types = types
        self._handles: dict[ParamKey, Any] = {}
        self._mappings: dict[int, mmap.mmap] = {}
        self._incarnation = target.backend.incarnation(target.device)
        self._lock = threading.RLock()

    def type(self, name: str) -> TensorType:
        """The type programs see: the stored shape, floats as the store's rule says."""
        stored = self.source.type(name)
        return stored if name in self._keep_dtype else self._types(stored)

    @cached_property
    def matrix_dtypes(self) -> tuple[str, ...]:
        """The element types of matrices of floats, sorted; without the parts of those in words."""
        names = (name for name in self.source.names() if name not in self._keep_dtype)
        types = [type for type in map(self.type, names) if type.rank > 1 and type.dtype.is_float]
        return tuple(sorted({type.dtype.name for type in types}))

    def key(self, name: str) -> ParamKey:
        """The parameter's stable id within this load."""
        return ParamKey.of(self.namespace, name)

    def handle(self, name: str, *, keep: bool = True) -> Any:
        """The device handle of a parameter, read and uploaded now if it is not resident.

        ``keep=False`` is for computing a derived parameter: nothing stays behind.
        """
        key = self.key(name)
        with self._lock:
            self._forget_lost()
            if key in self._handles:
                return self._handles[key]
            if name not in self._keep_dtype:
                handle = self._load(name)
            elif keep:
                nbytes = self.type(name).nbytes
                handle = self._looked_up(name, lambda: self._load(name), nbytes)
            else:
                handle = self._known(name) or self._load(name)
            if keep:
                self._handles[key] = handle
            return handle

    def array(self, name: str) -> Array:
        """A parameter as programs see it, read now; it stays where it is."""
        array = self.source.read(name)
        wanted = self.type(name).dtype.numpy
        return array if array.dtype == wanted else array.astype(wanted)

    def _load(self, name: str) -> Any:
        began = time.perf_counter()
        array = self.source.read(name)
        wanted = self.type(name).dtype.numpy
        stored = array if array.dtype == wanted else array.astype(wanted)
        handle = self._uploaded(stored)
        if array.dtype != wanted:
            self.source.release(name)
        seconds = time.perf_counter() - began
        events.emit(events.ParameterLoaded(name, array.nbytes, seconds))
        return handle

    def derive(
        self, name: str, transform: str, backend: str, compute: Callable[[], Any], nbytes: int
    ) -> Any:
        """The handle of a parameter derived from ``name``, computed once per transform.

        ``transform`` stands for everything that it depends on but the values; it has ``nbytes``.
        """
        key = derived(self.key(name), transform, backend)
        with self._lock:
            self._forget_lost()
            if key not in self._handles:
                self._handles[key] = self._looked_up(transform, compute, nbytes)
            return self._handles[key]

    def has_derived(self, name: str, transform: str, backend: str) -> bool:
        """Whether ``derive`` has the handle already."""
        with self._lock:
            self._forget_lost()
            return derived(self.key(name), transform, backend) in self._handles

    def range_handle(self, name: str, axis: int, first: int, end: int) -> Any:
        """A handle of places along an axis of a parameter; nothing stays behind."""
        array = self._places(name, axis, first, end)
        return self.target.backend.upload(array, self.target.device, borrow=True)

    def _places(self, name: str, axis: int, first: int, end: int) -> Array:
        """Places along an axis of a parameter, in the type that programs see."""
        if axis == 0 and self.type(name).rank:
            found = rows_of(self.source, name, first, end)
        else:
            whole = self.source.read(name)
            found = whole[(slice(None),) * axis + (slice(first, end),)] if whole.ndim else whole
        wanted = self.type(name).dtype.numpy
        return found if found.dtype == wanted else found.astype(wanted)

    def mapped(self, name: str, largest: int) -> Array | None:
        """A parameter as programs see it, in a mapped file.

        None where no file has it so: it is noted then, to be found after ``save_mapped``, and
        written in runs of about ``largest`` bytes.
        """
        type = self.type(name)
        kept = name if name in self._keep_dtype else f"{name}:{type}"
        known = None if self._computed is None else self._computed.find(kept)
        if known is not None:
            return known
        if name not in self._keep_dtype:
            array = self.source.read(name)
            if array.dtype == type.dtype.numpy and MappedPages.of(array) is not None:
                return array

        def read() -> Iterator[Array]:
            rows = type.shape[0] if type.rank else 1
            each = max(1, -(-rows // MOST_RUNS), rows * largest // max(1, type.nbytes))
            for first in range(0, max(1, rows), each):
                yield self._places(name, 0, first, min(first + each, rows))
                self.source.release(name)

        return self._mapped(kept, type.nbytes, read)

    def mapped_derived(
        self, transform: str, compute: Callable[[], Iterator[Any]], nbytes: int
    ) -> Array | None:
        """The same of a parameter that ``compute`` gives the handle of, or those of its runs."""
        backend, device = self.target.backend, self.target.device
        return self._mapped(
            transform, nbytes, lambda: (backend.download(one, device) for one in compute())
        )

    def _mapped(self, key: str, nbytes: int, fetch: Fetch) -> Array | None:
        if self._computed is None:
            return None
        array = self._computed.find(key)
        if array is None:
            self._computed.add(key, nbytes, fetch)
        return array

    def save_mapped(self) -> None:
        """Write what was noted, one array after the other, and find it."""
        if self._computed is not None:
            self._computed.save()
            self._computed.reload()

    def save_computed(self) -> None:
        """Let later processes find what was computed since the last time."""
        if self._computed is not None:
            with self._lock:
                self._computed.save()

    def _looked_up(self, key: str, compute: Callable[[], Any], nbytes: int) -> Any:
        """What an earlier process computed, else the result of ``compute``."""
        found = self._known(key)
        if found is not None:
            return found
        handle = compute()
        if self._computed is not None:
            backend, device = self.target.backend, self.target.device
            self._computed.add(key, nbytes, lambda: backend.download(handle, device))
        return handle

    def _known(self, key: str) -> Any | None:
        array = None if self._computed is None else self._computed.find(key)
        if events.listening():
            events.emit(_lookup(key, array is not None, self._computed is not None))
        return None if array is None else self._uploaded(array)

    def _uploaded(self, array: Array) -> Any:
        """A handle of an array; a mapped file that the device then reads is noted."""
        backend = self.target.backend
        handle = backend.upload(array, self.target.device, borrow=True)
        mapping = mapping_of(array)
        if mapping is not None and backend.is_borrowed(handle):
            self._mappings[id(mapping)] = mapping
        return handle

    @property
    def mappings(self) -> tuple[mmap.mmap, ...]:
        """The mapped files that handles given so far are read from."""
        return tuple(self._mappings.values())

    def _forget_lost(self) -> None:
        """Give up what was on a device that was lost since: it is read again."""
        incarnation = self.target.backend.incarnation(self.target.device)
        if incarnation != self._incarnation:
            self._handles.clear()
            self._incarnation = incarnation


def _lookup(key: str, found: bool, kept: bool) -> events.CacheLookup:
    """What is told of a computed parameter that was looked for."""
    why = "no process kept it" if kept else "nothing is kept of these weights: few or not in a file"
    return events.CacheLookup("weights", key, found, "" if found else why)
