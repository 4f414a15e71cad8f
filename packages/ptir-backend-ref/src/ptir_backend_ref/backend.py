"""The reference backend: handles are NumPy arrays, an instruction is what its op record says.

``prepare`` binds each instruction once: plain NumPy where that equals the record's reference bit
for bit, the whole composite where ``composites`` claims it, the reference itself everywhere else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Final

import numpy as np

from ptir.backend import Device, Executable, Interpreter, MemoryStats, OpQuery, Options, RunStats
from ptir.backend.contract import Prefetch, Queue
from ptir.backend.control import CONTROL
from ptir.backend.explanation import Explanation
from ptir.backend.interpreter import StepFunction
from ptir.errors import OutOfMemory
from ptir.ir import Instruction, Program
from ptir.ops import OPS
from ptir.ops import numerics as xp
from ptir.ops.profiles import PROFILES
from ptir.types import TensorType
from ptir_backend_ref.composites import CLAIMS
from ptir_backend_ref.linear import COLUMNS
from ptir_backend_ref.memory import Memory

Array = np.ndarray[Any, np.dtype[Any]]


class RefBackend(Interpreter):
    """NumPy on the host; handles are arrays, and results may be strided views of fresh memory."""

    name = "ref"
    lifts_casts = True
    cut_unit = COLUMNS
    correctly_rounded = frozenset({"div", "sqrt", "reciprocal"})
    claims = frozenset(PROFILES) - {"extension"}

    def __init__(self) -> None:
        self._device = Device(0, "numpy", "reference", f"NumPy {np.__version__}")
        self._stats = RunStats()
        self._lock = Lock()
        self._memory = Memory()

    def devices(self) -> Sequence[Device]:
        """The one device, always present."""
        return (self._device,)

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        """Everything in the op set is taken in the dtypes of its record; see ``CLAIMS``."""
        if query.is_composite:
            claim = CLAIMS.get(query.name)
            return claim.refusal(query) if claim else f"{query.name} is left to its lowering"
        if query.op not in OPS:
            return f"{query.op} is not an op"
        if query.op == "custom_call":
            return f"custom_call target {query.attributes.get('target')!r} is unknown here"
        return _dtype_refusal(query)

    def compile(self, program: Program, device: Device, options: Options) -> Executable:
        """Bind every instruction once; raises ``UnsupportedError``."""
        bound = super().compile(program, device, options)
        kernels = sum(_is_kernel(instruction) for instruction in program.main.instructions)
        return RefProgram(program, bound, kernels, self._stats, self._lock)

    def step(
        self, instruction: Instruction, operands: Sequence[Array], device: Device
    ) -> tuple[Array, ...]:
        """Run one instruction; nothing is overwritten."""
        with np.errstate(all="ignore"):
            results = self.prepare(instruction, device, frozenset())(*operands)
        return results if isinstance(results, tuple) else (results,)

    def prepare(
        self, instruction: Instruction, device: Device, reusable: frozenset[int]
    ) -> StepFunction:
        """The function that runs ``instruction``; NumPy's warnings are its caller's to silence."""
        run = self._bound(instruction, reusable)
        if instruction.op != "composite" and "view" in OPS[instruction.op].traits:
            return run
        return _counted(run, self._memory.count, len(instruction.types))

    def _bound(self, instruction: Instruction, reusable: frozenset[int]) -> StepFunction:
        if instruction.op == "composite":
            return CLAIMS[instruction.name].bind(instruction, reusable)
        special = SPECIAL.get(instruction.op)
        if special is not None:
            return special(instruction)
        direct = _direct(instruction)
        if direct is not None:
            return _in_place(direct, instruction.types[0], reusable)
        return partial(OPS[instruction.op].reference, xp, **instruction.attributes)

    def upload(self, array: Array, device: Device, *, borrow: bool = False) -> Array:
        """A C-contiguous copy; borrowed, a read-only view where the array's layout allows."""
        self._stats.bytes_uploaded += 0 if borrow else array.nbytes
        if not borrow:
            return self.copy(array, device)
        view = np.asarray(array, order="C").view()
        view.flags.writeable = False
        self._memory.count_alone(view)
        return view

    def prefetch(self, array: Array, device: Device) -> Prefetch:
        """The array itself, whose pages are what comes and goes; so does the view, which counts."""
        return Prefetch(self.upload(array, device, borrow=True))

    def download(self, handle: Array, device: Device) -> Array:
        """A C-contiguous copy."""
        self._stats.bytes_downloaded += handle.nbytes
        return np.array(handle, order="C", copy=True)

    def copy(self, handle: Array, device: Device) -> Array:
        """A C-contiguous copy, not counted as traffic."""
        with allocating():
            made = np.array(handle, order="C", copy=True)
        self._memory.count(made)
        return made

    def memory_stats(self, device: Device) -> MemoryStats:
        """Bytes of the arrays that exist now, and the most there were; see ``memory``."""
        return self._memory.stats()

    def stats(self, device: Device) -> RunStats:
        """The counters; a run counts its main block's steps, views and constants excluded."""
        return self._stats

    def export(self, handle: Array, device: Device) -> Array:
        """The array itself."""
        return handle


@dataclass
class RefProgram(Executable):
    """A bound program; ``kernels`` is what one run adds to the counters."""

    program: Program
    bound: Executable
    kernels: int
    stats: RunStats
    lock: Lock = field(repr=False)

    def run(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Run the steps in order; floating point raises no warnings."""
        with self.lock:
            self.stats.kernels_launched += self.kernels
        with np.errstate(all="ignore"), allocating():
            return self.bound.run(inputs)

    @property
    def workspace_bytes(self) -> int:
        """Most bytes of intermediates at once."""
        return self.bound.workspace_bytes

    def reads(self) -> Sequence[Collection[int]]:
        """The inputs that each op reads."""
        return self.bound.reads()

    def run_staged(
        self, inputs: Sequence[Array | None], drive: Callable[[Queue], None]
    ) -> tuple[Array, ...]:
        """``run``, some steps at a time."""
        with self.lock:
            self.stats.kernels_launched += self.kernels
        with np.errstate(all="ignore"), allocating():
            return self.bound.run_staged(inputs, drive)

    def explain(self) -> Explanation | None:
        """Every op."""
        return self.bound.explain()

    def timed(
        self, inputs: Sequence[Array], wait: Callable[[], None]
    ) -> tuple[tuple[Array, ...], tuple[float, ...]]:
        """``run``, and the seconds of every op."""
        with self.lock:
            self.stats.kernels_launched += self.kernels
        with np.errstate(all="ignore"), allocating():
            return self.bound.timed(inputs, wait)


@contextmanager
def allocating() -> Iterator[None]:
    """What NumPy raises where memory is short, as the contract's error."""
    try:
        yield
    except MemoryError as error:
        said = f"ref: {error or 'out of memory'}"
        raise OutOfMemory(f"{said}; use smaller shapes or a narrower dtype") from None


def _counted(run: StepFunction, count: Callable[[Array], None], results: int) -> StepFunction:
    """``run`` with its results counted as memory in use."""

    def one(*operands: Array) -> Array:
        result: Array = run(*operands)
        count(result)
        return result

    def several(*operands: Array) -> tuple[Array, ...]:
        found: tuple[Array, ...] = run(*operands)
        for result in found:
            count(result)
        return found

    return one if results == 1 else several


def _is_kernel(instruction: Instruction) -> bool:
    if instruction.op in ("constant", *CONTROL):
        return False
    return "view" not in OPS[instruction.op].traits


def _dtype_refusal(query: OpQuery) -> str | None:
    record = OPS[query.op]
    for index, found in enumerate(query.operands):
        name = record.operands[min(index, len(record.operands) - 1)]
        if found.dtype not in record.dtypes[name]:
            return f"{name.rstrip('*')} has dtype {found.dtype}, outside the record of {query.op}"
    return None


# --- plain NumPy, where it is bit for bit what the record means ---

# Not maximum and minimum, which order zeros, nor integer div and rem, which define zero.
UFUNCS: Final[dict[str, np.ufunc]] = {
    "neg": np.negative,
    "abs": np.absolute,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "is_finite": np.isfinite,
    "not": np.invert,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}

FLOAT_UFUNCS: Final[dict[str, np.ufunc]] = {"div": np.divide, "rem": np.fmod}

COMPARISONS: Final[dict[str, np.ufunc]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _direct(instruction: Instruction) -> np.ufunc | None:
    """The ufunc that an elementwise instruction is; None for others and for 0-d results."""
    result = instruction.types[0]
    if result.rank == 0:  # a ufunc gives a scalar there, and handles are arrays
        return None
    if instruction.op == "compare":
        return COMPARISONS[instruction.attributes["direction"]]
    if result.dtype.is_float and instruction.op in FLOAT_UFUNCS:
        return FLOAT_UFUNCS[instruction.op]
    return UFUNCS.get(instruction.op)


def _in_place(function: np.ufunc, result: TensorType, reusable: frozenset[int]) -> StepFunction:
    """``function``, into a reusable operand's memory where it has the result's type."""
    if not reusable or result.dtype.kind == "bool":
        return function
    if function.nin == 1:
        return lambda x: function(x, out=x if x.flags.writeable else None)
    if 0 in reusable:
        return lambda a, b: function(a, b, out=a if a.flags.writeable else None)
    return lambda a, b: function(a, b, out=b if b.flags.writeable else None)


def _reshape(instruction: Instruction) -> StepFunction:
    shape = instruction.types[0].shape
    return lambda x: x.reshape(shape)


def _transpose(instruction: Instruction) -> StepFunction:
    return operator.methodcaller("transpose", instruction.attributes["permutation"])


def _slice(instruction: Instruction) -> StepFunction:
    starts, limits = instruction.attributes["starts"], instruction.attributes["limits"]
    strides = instruction.attributes["strides"] or (1,) * len(starts)
    return operator.itemgetter((..., *map(slice, starts, limits, strides)))


def _select(instruction: Instruction) -> StepFunction:
    return np.where


def _stop_gradient(instruction: Instruction) -> StepFunction:
    return np.copy  # not a view to core, so its result must be memory of its own


SPECIAL: Final[dict[str, Callable[[Instruction], StepFunction]]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "select": _select,
    "stop_gradient": _stop_gradient,
}
