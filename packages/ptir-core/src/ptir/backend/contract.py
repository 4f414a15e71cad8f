"""The contract between core and a backend.

A backend is one object with the methods of ``Backend``. It exchanges opaque *handles* (whatever
it calls device memory) with core; who owns a handle, donation and poisoning are core's business.
Level 1 backends subclass ``ptir.backend.Interpreter`` and write ``upload``, ``download`` and
``step``; level 3 backends write ``compile``. Only the errors of ``ptir.errors`` may come out.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from ptir.backend.explanation import Explanation
from ptir.ir.attributes import Attributes
from ptir.ir.program import Block, Port, Program
from ptir.types import TensorType

if TYPE_CHECKING:
    import numpy as np

API_VERSION = (1, 0)

DeviceKind = Literal["discrete", "integrated", "cpu", "reference"]

Handle = Any

BUDGET: Final = 1 << 30
"""Bytes of weights that the runs of one call may read, unless a backend says otherwise."""


@dataclass(frozen=True)
class Device:
    """One device of a backend; ``kind`` decides its place in the ranking."""

    index: int
    name: str
    kind: DeviceKind
    detail: str = ""


@dataclass(frozen=True)
class Target:
    """Where something runs: a backend and one of its devices."""

    backend: Backend
    device: Device

    def __str__(self) -> str:
        return f"{self.backend.name}:{self.device.index} ({self.device.name})"


@dataclass(frozen=True)
class Finding:
    """Something that a backend looked at for ``ptir doctor``; ``fix`` is empty when it is well."""

    what: str
    found: str
    fix: str = ""


@dataclass(frozen=True)
class OpQuery:
    """One concrete application of an op or composite, as the capability predicate sees it.

    A composite's attributes are its ``name`` and every attribute of the functional, filled in
    where the caller gave none; optional operands come last and may be absent.
    """

    op: str
    attributes: Attributes
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]

    @property
    def name(self) -> str:
        """The composite's own name, else the op's."""
        return str(self.attributes["name"]) if self.op == "composite" else self.op

    @property
    def is_composite(self) -> bool:
        """Whether the query asks about taking a composite whole."""
        return self.op == "composite"


@dataclass(frozen=True)
class Options:
    """How a program is to be compiled.

    ``donated`` are the numbers of inputs whose handles the executable may overwrite and must
    treat as consumed; ``aliases`` groups inputs that may be one and the same handle.
    ``check_indices`` asks for a ``DeviceError`` where an index is outside (the ``bounds`` of an op
    record say where indices are); a backend that cannot tell raises ``UnsupportedError``.
    """

    donated: frozenset[int] = frozenset()
    aliases: tuple[tuple[int, ...], ...] = ()
    check_indices: bool = False
    staged: bool = False
    """Whether it is run by ``Executable.run_staged``, because its parameters come and go."""
    largest: int = 0
    """Bytes that a parameter may have under a budget, above which it is cut by rows; 0: any. Core
    cuts, and gives backends none."""
    apart: tuple[frozenset[int], ...] = ()
    """Groups of inputs, rows of parameters: no launch is to read those of two groups."""


Queue = Callable[[int, int, Mapping[int, Handle]], None]
"""Queues the launches from a number up to another, with the handles of inputs by number."""


def _nothing() -> None:
    """What is to be done where everything is done."""


@dataclass(frozen=True)
class Prefetch:
    """Values on their way to a device beside what it computes."""

    handle: Handle
    shared: bool = False
    """Whether the handle is the array's memory itself, read where it lies."""
    begin: Callable[[], object] = _nothing
    """Starts the way; it waits for what was queued before the record was made."""
    join: Callable[[], object] = _nothing
    """Has what is queued from now on wait for the values. ``begin`` comes first."""


@dataclass(frozen=True)
class MemoryStats:
    """Bytes on a device: live now and the most that were live at once."""

    live_bytes: int
    peak_bytes: int


@dataclass
class RunStats:
    """Counters of a device since it was opened."""

    kernels_launched: int = 0
    bytes_uploaded: int = 0
    bytes_downloaded: int = 0
    host_fallback_ops: int = 0
    host_syncs: int = 0


Feeds = Sequence[tuple[int, int]]
"""Numbers of inputs, each with that of the output which it is in the next run."""


def repeat_by_runs(
    run: Callable[[Sequence[Handle]], tuple[Handle, ...]],
    inputs: Sequence[Handle],
    feeds: Feeds,
    count: int,
    keep: int,
) -> tuple[list[Handle], tuple[Handle, ...]]:
    """``Executable.repeat`` by one run after the other."""
    given, kept = list(inputs), list[Handle]()
    outputs: tuple[Handle, ...] = ()
    for _ in range(count):
        for into, out in feeds if outputs else ():
            given[into] = outputs[out]
        outputs = run(given)
        kept.append(outputs[keep])
    return kept, outputs


class Executable(ABC):
    """A compiled program. Safe to call from several threads, each downloading what it got."""

    program: Program

    @abstractmethod
    def run(self, inputs: Sequence[Handle]) -> tuple[Handle, ...]:
        """Submit one run: handles in port order to handles of the outputs.

        Outputs alias nothing but declared donations. Raises ``DeviceError``.
        """

    def repeat(
        self, inputs: Sequence[Handle], feeds: Feeds, count: int, keep: int
    ) -> tuple[list[Handle], tuple[Handle, ...]]:
        """``count`` runs in a row: output ``keep`` of each, and all outputs of the last.

        ``feeds`` pairs inputs with the outputs that they are from the second run on.
        """
        return repeat_by_runs(self.run, inputs, feeds, count, keep)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of intermediates and constants, as far as they are known before a run."""
        return 0

    def reads(self) -> Sequence[Collection[int]]:
        """The inputs that each launch reads, in order: one launch, unless a backend knows more."""
        return (range(len(self.program.inputs)),)

    def run_staged(
        self, inputs: Sequence[Handle | None], drive: Callable[[Queue], None]
    ) -> tuple[Handle, ...]:
        """``run`` by whoever ``drive``s it: all launches of ``reads``, in order, some at a time.

        Inputs that are None are given with the launches that read them, and no longer used when
        these are queued.
        """
        given, outputs = list(inputs), tuple[Handle, ...]()

        def queue(first: int, end: int, handles: Mapping[int, Handle]) -> None:
            nonlocal outputs
            for number, handle in handles.items():
                given[number] = handle
            outputs = self.run(given)

        drive(queue)
        return outputs

    def explain(self) -> Explanation | None:
        """What one run does, part by part, or None where the backend cannot tell."""
        return None

    def timed(
        self, inputs: Sequence[Handle], wait: Callable[[], None]
    ) -> tuple[tuple[Handle, ...], tuple[float, ...]]:
        """``run``, waiting after each part: the outputs and the seconds of ``explain``'s parts.

        ``wait`` waits for the device. Without parts to tell apart, there are no seconds.
        """
        return self.run(inputs), ()


Point = Literal["pre", "raised", "selected", "cleanup"]
"""Where passes from outside run: before composites are raised from ops, after that, after an
implementation was selected for each, and at the end."""


@dataclass(frozen=True)
class BackendPass:
    """A program-to-program pass of a backend or a plugin, at a point of the pipeline."""

    name: str
    point: Point
    run: Callable[[Program], Program] = field(compare=False)


@dataclass(frozen=True)
class Derivation:
    """How a derived parameter is computed from stored ones: a block and the ports that feed it."""

    block: Block
    ports: tuple[Port, ...]


def derived_name(derivation: Derivation) -> str:
    """The port name of a derived parameter: equal derivations of equal ports share one."""
    names = repr([port.name for port in derivation.ports])
    content = derivation.block.digest + names.encode()
    return f"derived:{hashlib.blake2b(content, digest_size=16).hexdigest()}"


class Backend(ABC):
    """What every backend provides, whatever its level."""

    name: str
    api_version: tuple[int, int] = API_VERSION
    lifts_casts: bool = False
    """Whether up-casts of parameters are done once (True) or belong inside kernels (False)."""
    stages: bool = False
    """Whether what it compiles with ``Options.staged`` has a launch for each part of a run; other
    backends' programs are cut at their layers then."""
    cut_unit: int = 1
    """Rows of a weight that are cut off together under a budget, or a multiple of them: products
    with some rows give, bit for bit, what they give with all."""
    claims: frozenset[str] = frozenset({"core"})
    """The conformance profiles that the backend claims; inside them nothing may be unsupported."""
    correctly_rounded: frozenset[str] = frozenset()
    """Ops with the accuracy ``rounded or ulp:N`` whose results the backend rounds correctly."""

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """The devices present, best first; empty when there is none."""

    @abstractmethod
    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """Why ``query`` cannot run on ``device``, or None when it can: the capability predicate."""

    @abstractmethod
    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """Build ``program``; raises ``UnsupportedError`` or ``CompileError``."""

    def compile_all(
        self, programs: Sequence[tuple[Program, Options]], device: Device
    ) -> list[Executable]:
        """Build several programs, for less than one by one where a backend can; raises as one.

        For callers that need all of them at once: the programs of a model, or of a test.
        """
        return [self.compile(program, device, options) for program, options in programs]

    @abstractmethod
    def upload(
        self, array: np.ndarray[Any, Any], device: Device, *, borrow: bool = False
    ) -> Handle:
        """A handle with the array's elements.

        Copies, unless ``borrow``: then the handle may share the array's memory, which core
        promises to keep alive, unchanged and undonated.
        """

    def is_borrowed(self, handle: Handle) -> bool:
        """Whether a handle that was uploaded with ``borrow`` shares the array's memory.

        By default it may: files behind such memory are watched while programs read it.
        """
        return True

    @abstractmethod
    def download(self, handle: Handle, device: Device) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array that shares nothing with the handle."""

    def fetch(self, handle: Handle, device: Device) -> Callable[[], np.ndarray[Any, Any]] | None:
        """Start a download; what is returned waits for it, and not for what is submitted later.

        None where runs are over when they return: then there is nothing to overlap with.
        """
        return None

    def prefetch(self, array: np.ndarray[Any, Any], device: Device) -> Prefetch:
        """A handle whose values come beside what the device computes; ``array`` stays as it is."""
        return Prefetch(self.upload(array, device, borrow=True))

    def runs_per_call(self, device: Device) -> int:
        """How many runs one call of ``Executable.repeat`` submits at once; 1: one by one."""
        return 1

    def budget(self, device: Device) -> int:
        """Bytes of weights that the runs of one call may read: an interrupt waits for them."""
        return BUDGET

    def copy(self, handle: Handle, device: Device) -> Handle:
        """A handle with equal elements that shares nothing with ``handle``."""
        return self.upload(self.download(handle, device), device)

    def synchronize(self, device: Device) -> None:  # noqa: B027  synchronous backends need nothing
        """Wait until everything submitted to ``device`` is done."""

    def incarnation(self, device: Device) -> int:
        """How often ``device`` was opened again because it was lost.

        Handles and executables of an earlier incarnation are gone: they raise ``DeviceLost``.
        """
        return 0

    def cache_identity(self, device: Device) -> str | None:
        """A text that differs where passes make other programs or compute other weights.

        That is, where the code, the device, or what was measured on it differs. With it, optimized
        programs are kept on disk; None: they are not.
        """
        return None

    def limit_memory(self, device: Device, nbytes: int) -> None:  # noqa: B027  few keep any
        """Somebody has ``nbytes`` for all that comes: keep no memory for reuse beyond that."""

    def memory_stats(self, device: Device) -> MemoryStats | None:
        """Bytes live and peak on ``device``, or None when the backend cannot tell."""
        return None

    def stats(self, device: Device) -> RunStats:
        """The counters of ``device``."""
        return RunStats()

    def claimed(self, device: Device) -> frozenset[str]:
        """The profiles claimed for one device: ``claims``, less what it lacks."""
        return self.claims

    def tuning(self, device: Device) -> AbstractContextManager[Any] | None:
        """A context in which programs are recorded, to be measured with other sizes at its end.

        What was fastest is kept on disk and used from then on. It gives an object whose
        ``facts()`` say afterwards what was found. None where there is nothing to choose.
        """
        return None

    def capabilities(self, device: Device) -> Mapping[str, Any]:
        """Facts about ``device`` for people and scripts, by name: JSON values only."""
        return {}

    def findings(self) -> Sequence[Finding]:
        """What the backend depends on and how it is, for ``ptir doctor``."""
        return ()

    def fix_for(self, problem: str) -> str | None:
        """The fix for a problem that the backend knows, given the message, or None."""
        return None

    def passes(self) -> Sequence[BackendPass]:
        """Passes of the backend's own."""
        return ()

    def prepack(self, program: Program, device: Device) -> tuple[Program, Mapping[str, Derivation]]:
        """``program`` reading its parameters in the form that the backend wants them resident in.

        Runs last in the pipeline. Returns how the new parameter ports are derived, by name.
        """
        return program, {}

    def composite_ranges(self) -> Mapping[str, Any]:
        """How places of composites that ``prepack`` makes come from their operands, by name.

        See ``ptir.passes.ranges.CompositeRange``.
        """
        return {}

    def adopt(self, value: Any, device: Device) -> tuple[Handle, TensorType] | None:
        """A handle over the memory of a DLPack object that lies on ``device``, and its type.

        What is queued afterwards sees what its library has queued before; the object's memory stays
        until everything that reads the handle is done, and core never donates it. None where the
        object lies elsewhere: it is read on the host then. Raises ``UnsupportedError``.
        """
        return None

    def export(self, handle: Handle, device: Device) -> Any:
        """An object with ``__dlpack__`` that shares the handle's memory."""
        return self.download(handle, device)
