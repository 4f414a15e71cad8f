"""Files that are often given where safetensors are wanted: how each is told, and what to do.

``FOREIGN`` is the whole of it; the first row whose signature a file begins with is what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SIGNATURE_BYTES: Final = 32
"""How much of a file's beginning is enough to tell."""

_OTHER_FORM: Final = (
    "give the folder of the same model that holds config.json and model*.safetensors"
)
_PICKLED: Final = (
    "which can run code when loaded and is never opened; download or convert the model as"
    " safetensors"
)


@dataclass(frozen=True)
class Foreign:
    """A kind of file: what to call it, how it begins, what its name ends in, and what to do."""

    called: Callable[[bytes], str]
    signatures: tuple[bytes, ...]
    suffixes: tuple[str, ...]
    advice: str


def _always(name: str) -> Callable[[bytes], str]:
    return lambda start: name


def _gguf(start: bytes) -> str:
    """With the version that follows the signature, in whichever byte order makes it small."""
    if len(start) < 8:
        return "a GGUF file"
    version = min(int.from_bytes(start[4:8], order) for order in ("little", "big"))
    return f"a GGUF file (version {version})"


FOREIGN: Final = (
    Foreign(
        _gguf,
        (b"GGUF",),
        (".gguf",),
        "which is a model of its own; give the path of that file as the model",
    ),
    Foreign(
        _always("a pickle"),
        tuple(bytes([0x80, protocol]) for protocol in range(2, 6)),
        (".bin", ".pt", ".pth", ".ckpt"),
        _PICKLED,
    ),
    Foreign(
        _always("a zip archive (of PyTorch or NumPy)"),
        (b"PK\x03\x04",),
        (".npz",),
        f"{_PICKLED}; arrays of NumPy are saved with ptir.checkpoint.save_archive",
    ),
    Foreign(
        _always("an HDF5 file"),
        (b"\x89HDF\r\n\x1a\n",),
        (".h5", ".hdf5"),
        f"which ptir does not read; {_OTHER_FORM}",
    ),
    Foreign(
        _always("an ONNX model"),  # a protobuf: the version of its format, then its producer
        tuple(bytes([0x08, version, 0x12]) for version in range(1, 32)),
        (".onnx",),
        f"which ptir does not read; {_OTHER_FORM}",
    ),
    Foreign(
        _always("a NumPy array"),
        (b"\x93NUMPY",),
        (".npy",),
        "which names no tensors; save arrays with ptir.checkpoint.save_archive",
    ),
    Foreign(
        _always("a pointer of Git LFS"),
        (b"version https://git-lfs",),
        (),
        "which stands for a file that was not fetched; run `git lfs pull` where it was cloned",
    ),
    Foreign(
        _always("a web page"),
        (b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML"),
        (),
        "which a server sent in place of the file; download it again",
    ),
    Foreign(_always("JSON text"), (b"{",), (), f"which holds no tensors; {_OTHER_FORM}"),
)


def recognized(start: bytes) -> str | None:
    """What a file that begins with ``start`` is, and what to do; None where no row says."""
    for row in FOREIGN:
        if start.startswith(row.signatures):
            return f"{row.called(start)}, {row.advice}"
    return None


def held(folder: Path) -> tuple[str, str] | None:
    """The name of a file in ``folder`` that a row's suffix tells, what it is and what to do."""
    names = sorted(file.name for file in folder.iterdir())
    for row in FOREIGN:
        for name in names:
            if row.suffixes and name.lower().endswith(row.suffixes):
                return name, f"{row.called(b'')}, {row.advice}"
    return None


def told(name: str) -> bool:
    """Whether a row's suffix tells a file called ``name`` to be of another kind."""
    return any(row.suffixes and name.lower().endswith(row.suffixes) for row in FOREIGN)
