"""The one error family of ptir: what third parties raise, and nothing else crosses the contract.

Each class has a stable ``code`` (shown in brackets by the command line, listed in
docs/reference/errors.md) and the ``exit_code`` a command ends with when the error reaches it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any, ClassVar, Final


class PtirError(Exception):
    """Base of every error ptir raises on purpose."""

    code: ClassVar[str] = "PTIR-000"
    exit_code: ClassVar[int] = 1


class TypeRuleError(PtirError):
    """An op or functional was called with operands or attributes its type rule refuses."""

    code = "PTIR-101"


class CaptureError(PtirError):
    """A tensor was used in a way that capture cannot record, or after its buffer was consumed."""

    code = "PTIR-102"


class VerifyError(PtirError):
    """A program is malformed: text that does not parse, a broken type, an undefined value."""

    code = "PTIR-103"
    exit_code = 5


class UnsupportedError(PtirError):
    """A backend cannot run this op on this device, and said so before running anything."""

    code = "PTIR-201"
    exit_code = 4


class CompileError(PtirError):
    """A backend accepted a program and then failed to build it."""

    code = "PTIR-202"


class DeviceError(PtirError):
    """A device failed while it held or computed something."""

    code = "PTIR-203"


class OutOfMemory(DeviceError):
    """A device has too little memory for an allocation."""

    code = "PTIR-204"


class DeviceLost(DeviceError):
    """A device stopped answering; its buffers are gone."""

    code = "PTIR-205"


class CheckpointError(PtirError):
    """A checkpoint, archive or configuration file is missing, damaged or does not fit the model."""

    code = "PTIR-301"


class QuantizationError(PtirError):
    """A tensor cannot be quantized or dequantized as asked."""

    code = "PTIR-302"


class ImageError(PtirError):
    """An image is missing, damaged, of a kind that is not read, or larger than is allowed."""

    code = "PTIR-303"


class AudioError(PtirError):
    """A recording is missing, damaged, empty, of a kind that is not read, or too long."""

    code = "PTIR-304"


class PluginError(PtirError):
    """A plugin distribution is broken, incompatible or claims a name twice."""

    code = "PTIR-401"


class BackendUnavailable(PluginError):
    """The backend or device asked for is not installed, not working or not compatible."""

    code = "PTIR-402"
    exit_code = 3


class UsageError(PtirError):
    """A name, option or value given by the user is not one that exists."""

    code = "PTIR-501"
    exit_code = 2


MANY: Final = 24
"""More known names than this are not listed in a message that has near ones to offer."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Message for a name that does not exist: the nearest ones, and all of them if they are few."""
    names = sorted(known)
    near = ", ".join(nearest(name, names))
    if len(names) > MANY and near:
        return f"unknown {kind} {name!r} (nearest: {near}; {len(names)} are known)"
    hint = f" (nearest: {near})" if near else ""
    return f"unknown {kind} {name!r}{hint}; known: {', '.join(names) or '(none)'}"


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that are spelled most like ``name``; none where nothing is like it."""
    import difflib  # only messages need it, and every start would wait for it

    return difflib.get_close_matches(name, list(known), n=most, cutoff=0.5)


def short(value: Any) -> str:
    """``value`` as a message shows it: never a page of it, whatever a file holds."""
    limited = reprlib.Repr()
    limited.maxstring = 80
    try:
        return limited.repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return f"an integer of {value.bit_length()} bits"
