"""Files that are often given where safetensors or GGUF are wanted: how each is told, what to do.

``FOREIGN`` is the whole of it; the first row whose signature a file begins with, or that takes its
beginning for its own, is what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    """A kind of file: what to call it, how it begins, what its name ends in, and what to do.

    ``is_such`` tells those that no signature tells.
    """

    called: Callable[[bytes], str]
    signatures: tuple[bytes, ...]
    suffixes: tuple[str, ...]
    advice: str
    is_such: Callable[[bytes], bool] = lambda start: False

    def takes(self, start: bytes) -> bool:
        """Whether a file that begins so is of this kind."""
        return start.startswith(self.signatures) or self.is_such(start)


_SENT: Final = "which a server sent in place of the file"
_AGAIN: Final = (
    "fetch it again, from its /resolve/ address and not from its /blob/ page, or with `ptir pull`"
)
_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"7z\xbc\xaf": "7-Zip",
    b"Rar!": "RAR",
}
"""By how they begin."""
_PAGES: Final = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<!--")


def _compressed(start: bytes) -> str:
    kind = next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), "")
    return f"a compressed file ({kind})"


def _either_order(magic: bytes) -> tuple[bytes, bytes]:
    """A signature, and the same as a little-endian number has its bytes."""
    return magic, magic[::-1]


def _is_page(start: bytes) -> bool:
    """Whether a text is HTML or XML, behind a mark of its byte order and white space or not."""
    return start.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_PAGES)


def _is_text(start: bytes) -> bool:
    """Whether all of it is printable."""
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start)


def _text(start: bytes) -> str:
    return f"text ({start.decode('ascii', 'replace').strip()!r}...)"


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
        _always("an empty file"),
        (),
        (),
        "which a download left that did not go on; fetch it again",
        lambda start: not start,
    ),
    Foreign(
        _always("zeros at its beginning"),
        (),
        (),
        "which stand for what a download did not bring; fetch it again",
        lambda start: len(start) == SIGNATURE_BYTES and not any(start),
    ),
    Foreign(
        _always("an adapter (LoRA) of llama.cpp before GGUF"),
        _either_order(b"ggla"),
        (),
        "which is no longer read; fetch a model, or one that the adapter was merged into, as GGUF",
    ),
    Foreign(
        _always("a session that llama.cpp saved"),
        (*_either_order(b"ggsn"), *_either_order(b"ggsq")),
        (),
        "which holds no weights; give the model that it belongs to",
    ),
    Foreign(
        _always("a GGML file of before GGUF"),
        tuple(one for magic in (b"ggml", b"ggmf", b"ggjt") for one in _either_order(magic)),
        (),
        "which GGUF replaced and which is no longer read; fetch the same model as GGUF, or as a"
        " folder with config.json and safetensors",
    ),
    Foreign(
        _always("a safetensors file"),
        (),
        (),
        "whose name ends as those of other files; call it NAME.safetensors, or put it back into the"
        " folder with its config.json and give that",
        lambda start: start[5:8] == bytes(3) and start[8:10] == b'{"',
    ),
    Foreign(
        _compressed,
        tuple(_COMPRESSED),
        (),
        "which must be unpacked first",
    ),
    Foreign(_always("a web page"), (), (), f"{_SENT}; {_AGAIN}", _is_page),
    Foreign(_always("an error in JSON"), (b'{"error"',), (), f"{_SENT}; {_AGAIN}"),
    Foreign(_always("JSON text"), (b"{",), (), f"which holds no tensors; {_OTHER_FORM}"),
)
TEXT: Final = Foreign(_text, (), (), f"perhaps what a server answered; {_AGAIN}", _is_text)
"""What any other text is taken for where weights are wanted."""


def recognized(start: bytes) -> str | None:
    """What a file that begins with ``start`` is, and what to do; None where no row says."""
    return _first((*FOREIGN, TEXT), start)


def instead_of_json(text: str) -> str | None:
    """What a text that is no JSON is, and what to do; None where no row but those of JSON says."""
    start = text[:SIGNATURE_BYTES].encode("utf-8", "replace")[:SIGNATURE_BYTES]
    return None if start.startswith(b"{") else _first(FOREIGN, start)


def _first(rows: Iterable[Foreign], start: bytes) -> str | None:
    """What the first of some rows says that takes a beginning."""
    row = next((row for row in rows if row.takes(start)), None)
    return None if row is None else f"{row.called(start)}, {row.advice}"


def held(folder: Path) -> tuple[str, str] | None:
    """The name of a file in ``folder`` that a row's suffix tells, what it is and what to do.

    What it is says its beginning, where a row knows that: names ending in .bin are of many kinds.
    """
    names = sorted(file.name for file in folder.iterdir())
    for row in FOREIGN:
        for name in names:
            if row.suffixes and name.lower().endswith(row.suffixes):
                start = _start(folder / name)
                known = _first(FOREIGN, start) if start else None
                return name, known or f"{row.called(b'')}, {row.advice}"
    return None


def _start(path: Path) -> bytes:
    """The first bytes of a regular file; none of what cannot be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(SIGNATURE_BYTES)
    except OSError:
        return b""


def told(name: str) -> bool:
    """Whether a row's suffix tells a file called ``name`` to be of another kind."""
    return any(row.suffixes and name.lower().endswith(row.suffixes) for row in FOREIGN)
