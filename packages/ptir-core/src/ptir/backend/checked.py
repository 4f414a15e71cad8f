"""What comes out of a backend, checked before core goes on: a step's results and downloads.

A backend with such a defect is told which rule it breaks, where NumPy would complain far from here,
or nobody would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptir.backend.contract import Backend, Device, Handle
from ptir.backend.entries import cause
from ptir.backend.raised import frames, place
from ptir.errors import DeviceError, PtirError
from ptir.ir.program import Instruction
from ptir.types import TensorType

Step = Callable[[Instruction, Sequence[Handle], Device], Any]


def stepped(name: str, step: Step, instruction: Instruction, device: Device) -> Callable[..., Any]:
    """A function of handles that runs ``instruction`` by the ``step`` of the backend ``name``.

    It gives one handle, or a tuple where there are several results. It raises ``DeviceError`` for
    another number of results, and from whatever ``step`` raises that is no error of ptir.
    """
    count = len(instruction.types)

    def run(*operands: Handle) -> Any:
        try:
            results = step(instruction, operands, device)
        except PtirError:
            raise
        except Exception as error:
            raise DeviceError(_foreign(error, _named(name, instruction))) from error
        if not isinstance(results, tuple) or len(results) != count:
            raise DeviceError(f"{_named(name, instruction)} {_miscounted(results, count)}")
        return results[0] if count == 1 else results

    return run


def _foreign(error: Exception, step: str) -> str:
    """The error itself first, then where it came from and the rule that it breaks."""
    where = place(frames(error))
    at = f" at {where}" if where else ""
    return f"{cause(error)}{at} ({step}); backends raise only errors of ptir.errors"


def _named(name: str, instruction: Instruction) -> str:
    return f"{name}: step of {instruction.name} -> {', '.join(map(str, instruction.types))}"


def _miscounted(results: Any, count: int) -> str:
    is_tuple = isinstance(results, tuple)
    found = f"a tuple of {len(results)}" if is_tuple else type(results).__name__
    return f"gave {found}; it must return a tuple of {count} handle{'s' * (count > 1)}"


def downloaded(backend: Backend, handle: Handle, device: Device, type: TensorType) -> Any:
    """The elements of a handle of this type; raises ``DeviceError`` where they have another."""
    import numpy as np

    array = backend.download(handle, device)
    wanted = type.dtype.numpy
    if not isinstance(array, np.ndarray):
        found = f"{array.__class__.__name__}, not a NumPy array"
    elif array.dtype != wanted or array.shape != type.shape:
        found = f"an array of {array.dtype}{list(array.shape)}"
    else:
        return array
    raise DeviceError(
        f"{backend.name}: download of {type} gave {found}; it must be {wanted}{list(type.shape)}."
        f" `ptir-conformance run --backend {backend.name}` names the op that is wrong"
    )
