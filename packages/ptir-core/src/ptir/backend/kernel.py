"""Level 2 of the contract: a dialect and a device, from which core makes everything else.

A *dialect* says how one C-like language spells kernels, types, literals, vectors and scalar ops.
A *device* allocates, copies, builds and launches. ``ptir.codegen`` writes fused kernels in the
dialect, plans memory, caches binaries and replays them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from ptir.backend.contract import BUDGET
from ptir.backend.mma import MmaInstruction
from ptir.types import F32, DType

if TYPE_CHECKING:
    import numpy as np

Memory = Any
"""Whatever the device calls a piece of its memory.

It may have no ``__del__``: memory that dies in a cycle of references goes back to the pool while
the cycle is taken apart, and is used again.
"""


def _nothing() -> None:
    """What is to be done where the queue is in order."""


@dataclass(frozen=True)
class Argument:
    """One buffer argument of a kernel: its name, element type, and whether it is written."""

    name: str
    dtype: DType
    written: bool


class WholeKernel(Protocol):
    """What a dialect looks at of a kernel (``codegen.schedules.kernel.Kernel``)."""

    @property
    def statements(self) -> Sequence[Any]:
        """All that a workgroup does: statements of the kernel IR."""

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The buffers that it takes, in order."""

    @property
    def workgroups(self) -> int:
        """How many workgroups a launch has."""

    @property
    def workgroup_size(self) -> int:
        """Threads of a workgroup; 1 where the kernel is serial."""


@dataclass(frozen=True)
class PersistentPrimitives:
    """How persistent threads are spelled: templates of what they do from phase to phase.

    ``{0}`` is the address of a 32-bit counter in the device's memory (a pointer as ``pointer``
    gives it).
    """

    function: str
    """What stands before the name of a function that gives nothing back."""
    table: str
    """A table of constants at the top of a file: its name, its numbers."""
    fetch_add: str
    """An expression: adds one to the counter and gives what it was."""
    signal: str
    """A statement: what was written before is visible to whoever sees the counter, to which
    ``{1}`` is added."""
    poll: str
    """An expression: the counter as it is now."""
    yield_thread: str
    """A statement that gives way to other threads; nothing where that cannot be."""
    fence: str
    """A statement: what others wrote before their ``signal`` is visible from here on."""


@dataclass(frozen=True)
class WorkgroupPrimitives:
    """How workgroups are spelled: templates of what the threads of one do together.

    The threads of a workgroup see each other's *shared* memory, and what they write to the device's
    memory, behind a barrier. Threads next to each other, ``subgroup_size`` of them, may shuffle
    values of 32 bits without one.
    """

    kernel: str
    """A kernel up to its body: ``{0}`` its name, ``{1}`` its arguments, ``{2}`` the threads of a
    workgroup."""
    workgroup_id: str
    """An expression: the number of the workgroup in the launch."""
    local_id: str
    """An expression: the number of the thread in its workgroup."""
    barrier: str
    """A statement: goes on when all threads of the workgroup are here, and shows each what the
    others wrote to shared memory and to the device's."""
    shared_array: str
    """A statement at the top of a kernel: an array for the workgroup. ``{0}`` is the type of its
    elements, ``{1}`` its name, ``{2}`` their number; 16-byte aligned."""
    load_vector: str
    """A statement: declares ``{0}``, the 16 bytes of buffer ``{1}`` from its element ``{2}`` on, at
    an address that 16 divides. ``{0}.x`` to ``{0}.w`` are its four u32 words."""
    store_vector: str
    """A statement: writes the u32 words ``{2}`` to ``{5}`` to buffer ``{0}`` from its element
    ``{1}`` on, at an address that 16 divides."""
    shuffle_xor: str = ""
    """An expression: what the variable ``{0}`` of 32 bits is in the thread whose number differs in
    the only bit of ``{1}``, a number less than ``subgroup_size``."""
    subgroup_size: int = 0
    """Threads that shuffle values with each other: a power of two, or 0 where none do."""
    mma: MmaInstruction | None = None
    """The matrix instruction of a subgroup, where there is one."""


@dataclass(frozen=True)
class ChangingVectors:
    """How wide variables that change are spelled, for compilers that hold vectors in parts.

    Templates of the type of a wide value: ``type`` is that of the variable, ``held`` what it holds
    of a value, ``value`` the value of what it holds.
    """

    type: str
    held: str
    value: str


class Language(ABC):
    """What the generator asks of any language before it writes a kernel for it."""

    name: str
    lanes: int = 16
    """Lanes of a wide value."""
    persistent: PersistentPrimitives | None = None
    """How persistent kernels are spelled, where they are (``codegen.planning.persistent``)."""
    workgroup: WorkgroupPrimitives | None = None
    """How workgroups are spelled, where they are: *cooperative* schedules are written with it."""
    dots: frozenset[str] = frozenset()
    """The dot products (``dot_bytes``, ``dot_bf16``) that the device has instructions for."""
    changing: ChangingVectors | None = None
    """How wide variables that change are spelled; None: as those that do not."""
    ordered_extremes: bool = False
    """Whether ``max`` and ``min`` are there for wide f32 too: the first operand where it is
    greater or smaller, else the second, also where one is NaN or both are zeros."""
    permutes_bytes: bool = False
    """Whether wide words have instructions that move bytes across lanes and bits within words:
    ``permute_bytes`` and the other ops that ``codegen.expressions.expr`` lists beside it."""
    permutes_words: bool = False
    """Whether an instruction takes words out of a wide one by number: ``table_words``."""
    no_unroll: str = ""
    """What stands in front of a loop that the compiler must not unroll."""
    lacks: frozenset[str] = frozenset()
    """What the language does not have of what kernels are made of: rows of the table of lowerings
    (``codegen.lowering.table.LOWERINGS``)."""
    max_buffers: int = 0
    """Most buffers of a kernel; 0: any number."""

    def whole_kernel(self, kernel: WholeKernel, name: str) -> str | None:
        """A whole kernel in a language that is no relative of C; None where texts are joined."""
        return None

    def reduce_lanes(self, op: str, dtype: DType, text: str) -> str | None:
        """All lanes of a wide variable combined: lane i with lane i + half, until one is left.

        ``op`` is a scalar op. None where that is to be written out lane by lane.
        """
        return None

    def scalar(self) -> Self:
        """The same with wide values of one lane, which are scalars: for cooperative schedules.

        A dialect's ``splat``, ``gathered`` and ``lane`` of one lane are the scalar itself.
        """
        made = copy(self)
        made.lanes = 1
        return made

    @abstractmethod
    def prelude(self) -> str:
        """What stands before the kernels of a source file."""


class Dialect(Language):
    """How a C-like language is spelled. Texts are expressions unless said otherwise.

    Values of f16 and bf16 are carried as f32; bool is carried as a 32-bit mask, 0 or all ones.
    ``width`` is 1 or a number of lanes.
    """

    @abstractmethod
    def type(self, dtype: DType, width: int = 1) -> str:
        """The type that carries values of ``dtype``."""

    @abstractmethod
    def literal(self, dtype: DType, value: float | int) -> str:
        """A scalar constant, exact to the bit (NaN's payload aside)."""

    @abstractmethod
    def splat(self, dtype: DType, width: int, text: str) -> str:
        """A scalar in every lane."""

    @abstractmethod
    def gathered(self, dtype: DType, texts: Sequence[str]) -> str:
        """A wide value from one scalar per lane."""

    def looked_up(self, dtype: DType, buffer: str, places: str, factor: int) -> str | None:
        """A wide value of elements of a buffer: in each lane the one at ``factor`` times a place.

        ``places`` is a wide i32. None where elements are to be read one by one (``gathered``).
        """
        return None

    @abstractmethod
    def lane(self, text: str, number: int) -> str:
        """One lane of a wide variable."""

    @abstractmethod
    def apply(self, op: str, dtype: DType, of: DType, width: int, args: Sequence[str]) -> str:
        """A scalar op (``codegen.expressions.expr.SCALAR_OPS``) lane by lane.

        ``dtype`` is the result's type and ``of`` the first operand's. Integers wrap: where a
        language leaves the overflow of signed ones open, they are computed as unsigned.
        """

    @abstractmethod
    def load(self, dtype: DType, width: int, buffer: str, index: str) -> str:
        """Elements from ``index`` on, as carried."""

    def prefetch(self, buffer: str, index: str) -> str:
        """A statement that has the cache fetch what lies at an index, which may be beyond the end.

        Nothing where the language cannot say so.
        """
        return ""

    @abstractmethod
    def store(self, dtype: DType, width: int, buffer: str, index: str, text: str) -> str:
        """A statement that writes elements from ``index`` on."""

    @abstractmethod
    def private_load(self, width: int, array: str, index: str, dtype: DType = F32) -> str:
        """Elements of a private array of a 32-bit type; ``dtype`` is that of several."""

    @abstractmethod
    def private_store(
        self, width: int, array: str, index: str, text: str, dtype: DType = F32
    ) -> str:
        """A statement that writes elements of a private array.

        i8 and bf16 ones (from ``index`` on, counted in such) go into an array of u32.
        """

    @abstractmethod
    def private(self, array: str, size: int, dtype: DType = F32) -> str:
        """A statement that declares a private array of a 32-bit type."""

    @abstractmethod
    def constants(self, array: str, numbers: Sequence[int]) -> str:
        """A statement that declares an array of u32 which never change."""

    @abstractmethod
    def pointer(self, argument: Argument) -> str:
        """The type of a buffer argument, ready for its name to follow."""

    @abstractmethod
    def kernel(self, name: str, arguments: Sequence[Argument], body: str) -> str:
        """A whole serial kernel. ``body`` finds the number of its workgroup in ``item``."""

    def kernel_with_preamble(
        self, name: str, arguments: Sequence[Argument], preamble: str, body: str
    ) -> str:
        """A whole kernel whose workgroups all begin with ``preamble``, the same for each of them.

        A language in which one thread does several workgroups of a launch does it once for them.
        """
        return self.kernel(name, arguments, f"{preamble}\n{body}" if preamble else body)

    def workgroup_kernel(
        self, name: str, arguments: Sequence[Argument], workgroup_size: int, body: str
    ) -> str:
        """A whole cooperative kernel.

        ``body`` finds the workgroup's number in ``item`` and the thread's in ``member``.
        """
        assert self.workgroup is not None, f"{self.name} has no work-groups"
        listed = ", ".join(f"{self.pointer(a)}{a.name}" for a in arguments)
        head = self.workgroup.kernel.format(name, listed, workgroup_size)
        numbers = ("item", self.workgroup.workgroup_id), ("member", self.workgroup.local_id)
        declared = "\n".join(f"  const int {what} = {text};" for what, text in numbers)
        return f"{head} {{\n{declared}\n{body}\n}}"


@dataclass(frozen=True)
class Traits:
    """What schedules need to know about a device."""

    compute_units: int
    """Workgroups that run at the same time at full speed."""
    has_f64: bool
    """Whether f64 can be computed with."""
    max_allocation_bytes: int
    """Bytes of the largest single allocation."""
    alignment: int
    """Bytes that a part of an allocation must be aligned to."""
    identity: str
    """Names the device, its driver, their versions and the build options: part of cache keys."""
    max_persistent_buffers: int = 0
    """Most buffers of a persistent kernel; 0: kernels are launched one by one."""
    device_class: str = "cpu-avx512"
    """The row of ``codegen.schedules.tiles.TILES`` that schedules start from."""
    max_workgroup_size: int = 0
    """Most threads of a workgroup; 0 where there are no workgroups."""
    shared_memory_bytes: int = 0
    """Bytes of the memory that a workgroup shares."""

    @property
    def aligned_allocation_bytes(self) -> int:
        """Bytes of the largest allocation that ends at an aligned place."""
        return self.max_allocation_bytes // self.alignment * self.alignment


class CommandBuffer(ABC):
    """Launches that a device makes in one call, up to ``KernelDevice.runs_per_call`` times over."""

    @abstractmethod
    def bind_slot(self, slot: int) -> None:
        """Remember what the kernels are bound to now as what they use in run ``slot`` (from 0)."""

    @abstractmethod
    def submit(self, count: int) -> None:
        """Launch all kernels ``count`` times, each time with what its slot was bound to."""

    def timed(self) -> Sequence[float] | None:
        """``submit(1)``, waited for: the seconds of each launch; None, and nothing, if unknown."""
        return None


class KernelDevice(ABC):
    """One device: memory, builds and launches. Raises only errors of ``ptir.errors``."""

    traits: Traits
    dialect: Language
    partitioning: Literal["never", "cheaper", "always"] = "never"
    """When programs are partitioned among its units as workers (``record_partitioned``): never,
    where that is cheaper by ``codegen.partitioned.rule``, or wherever it can be."""
    not_partitioned_reason: str = ""
    """What is said of a run that is never partitioned; nothing where units cannot be workers."""
    runs_per_call: int = 1
    """How many times in a row one call of a ``CommandBuffer`` may launch it."""
    budget: int = BUDGET
    """Bytes of weights that the runs of one call may read: an interrupt waits for them."""
    lost: bool = False
    """Whether it stopped answering (``DeviceLost`` was raised): it is opened again then."""

    @abstractmethod
    def allocate(self, nbytes: int) -> Memory:
        """Fresh memory; raises ``OutOfMemory``."""

    @abstractmethod
    def subspan(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        """A part of an allocation as memory of its own; ``offset`` is aligned."""

    @abstractmethod
    def borrow(self, array: np.ndarray[Any, Any]) -> Memory | None:
        """Memory that shares a contiguous host array, or None where that cannot be."""

    @abstractmethod
    def write(self, memory: Memory, array: np.ndarray[Any, Any]) -> None:
        """Copy a contiguous host array to the start of ``memory``; done when it returns."""

    def send(self, memory: Memory, array: np.ndarray[Any, Any]) -> object:
        """Queue what ``write`` does; ``array`` stays as it is until the queue is done.

        The result, whatever it is, is kept that long too.
        """
        self.write(memory, array)
        return None

    def send_beside(
        self, memory: Memory, array: np.ndarray[Any, Any]
    ) -> tuple[Callable[[], object], Callable[[], object]]:
        """What begins to copy ``array`` beside the queue, and what has the queue wait for that.

        The copy waits for what was queued before this call, which may use the memory; what comes
        between the two does not wait. ``array`` stays as it is. Here the queue copies.
        """
        return partial(self.send, memory, array), _nothing

    @abstractmethod
    def read(self, memory: Memory, array: np.ndarray[Any, Any]) -> None:
        """Copy the start of ``memory`` into a contiguous host array; done when it returns."""

    def fetch(self, memory: Memory, array: np.ndarray[Any, Any]) -> Callable[[], object] | None:
        """Queue what ``read`` does; what is returned waits for it, and not for what comes later.

        None where the queue is empty whenever a launch returns.
        """
        return None

    @abstractmethod
    def copy(self, source: Memory, destination: Memory, nbytes: int) -> None:
        """Queue a copy on the device."""

    @abstractmethod
    def build(self, source: str) -> Any:
        """A source file built for the device; raises ``CompileError``."""

    def binary(self, built: Any) -> bytes | None:
        """A built source file as bytes to keep on disk, or None where there is no such thing."""
        return None

    def load(self, source: str, binary: bytes) -> Any | None:
        """What ``binary`` was made from, or None where the driver does not take it any more."""
        return None

    @abstractmethod
    def kernel(self, built: Any, name: str, arguments: int) -> Any:
        """A kernel of a built file, with ``arguments`` buffers of its own to be bound."""

    @abstractmethod
    def bind(self, kernel: Any, position: int, memory: Memory) -> None:
        """Make ``memory`` the kernel's argument at ``position`` until bound again.

        Whoever launches the kernel keeps the memory: the kernel need not.
        """

    def binder(self, arguments: Sequence[tuple[Any, int]]) -> Callable[[Memory], None]:
        """What binds kernels' arguments, at these positions, to one memory, all of them."""

        def bind(memory: Memory) -> None:
            for kernel, position in arguments:
                self.bind(kernel, position, memory)

        return bind

    @abstractmethod
    def launch(self, kernel: Any, workgroups: int, workgroup_size: int = 1) -> None:
        """Queue ``workgroups`` of ``workgroup_size`` threads; the kernel's arguments are all bound.

        Serial kernels have workgroups of one thread.
        """

    def copy_kernel(self, nbytes: int) -> Any | None:
        """A kernel of one workgroup that copies ``nbytes`` from its first buffer to its second.

        None where copies are commands of their own (``copy``).
        """
        return None

    def record(self, launches: Sequence[tuple[Any, int, int]]) -> CommandBuffer | None:
        """Kernels, their workgroups and the size of each: launched in order, in one call.

        None where they are launched one by one. A kernel is in one command buffer at most.
        """
        return None

    def record_partitioned(
        self, launches: Sequence[tuple[Any, int, int]], counts: Sequence[Sequence[int]]
    ) -> CommandBuffer | None:
        """What runs a partitioned program in one call.

        ``counts`` says how many of the launches, in order, each worker does in each phase. A worker
        does all workgroups of its launches, one launch after the other; all wait for each other
        between phases. None where launches are queued one by one, which is right too.
        """
        return None

    def timed(self, queue: Sequence[Callable[[], object]]) -> tuple[float, ...]:
        """Call what queues launches and copies, one by one: the seconds that each takes.

        Here each is waited for; a device with a clock of its own has less to add.
        """
        seconds: list[float] = []
        self.finish()
        for call in queue:
            began = time.perf_counter()
            call()
            self.finish()
            seconds.append(time.perf_counter() - began)
        return tuple(seconds)

    @abstractmethod
    def finish(self) -> None:
        """Wait for everything queued; raises ``DeviceError``."""
