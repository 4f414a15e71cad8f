"""One GGUF model, in one file or in several parts: its tensors, and what kind of file it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from ptir.checkpoint.gguf.header import GgufFile, GgufTensor
from ptir.checkpoint.gguf.metadata import AGAIN, Value
from ptir.errors import CheckpointError, short

NAME: Final = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
"""How the parts of a split model are called."""
TYPE: Final = "general.type"
ARCHITECTURE: Final = "general.architecture"
TOKENS: Final = "tokenizer.ggml.tokens"
NUMBER, COUNT, TENSOR_COUNT = "split.no", "split.count", "split.tensors.count"

_MODEL: Final = "give the model that it belongs to"
OTHER_TYPES: Final[Mapping[str, str]] = {
    "adapter": f"a LoRA adapter, which changes a model and is none; {_MODEL}",
    "mmproj": f"a projector of images or sound (mmproj), which a language model reads; {_MODEL}",
    "imatrix": f"an importance matrix, which quantizers read; {_MODEL}",
}
"""By ``general.type``: what is no model, and what to do."""
OTHER_ARCHITECTURES: Final[Mapping[str, str]] = {"clip": OTHER_TYPES["mmproj"]}
"""The same by ``general.architecture``, for files that have no type."""


class GgufModel:
    """The files of a model, opened and checked together; metadata is the first one's.

    ``path`` may be any of the parts. Raises ``CheckpointError`` for files that are missing or do
    not belong together, and for files that hold no model.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = _parts(path)
        first = self.files[0]
        self.metadata: Mapping[str, Value] = first.metadata
        self.types: Mapping[str, int] = first.types
        self._file_of = _placed(self.files)
        _refuse_others(first, with_tensors=bool(self._file_of))
        wanted = _whole(first, TENSOR_COUNT, len(self._file_of))
        if wanted != len(self._file_of):
            rule = f"{wanted} tensors; the {len(self.files)} parts hold {len(self._file_of)}"
            _refuse(first.path, f"key {TENSOR_COUNT!r}: {rule}; fetch all parts of one model")

    @property
    def tensors(self) -> dict[str, GgufTensor]:
        """All tensors, files in order."""
        return {name: file.tensors[name] for name, file in self._file_of.items()}

    def file(self, name: str) -> GgufFile:
        """The file that a tensor is in."""
        return self._file_of[name]


def _parts(path: Path) -> tuple[GgufFile, ...]:
    opened = GgufFile(path)
    count = _whole(opened, COUNT, 1)
    if count <= 1:
        return (opened,)
    match = NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        ending = f"-00001-of-{count:05}.gguf"
        rule = f"{count} parts, so the file's name must end as {ending} does"
        _refuse(path, f"key {COUNT!r}: {rule}; give the files their names back")
    names = [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    lost = [name for name in names if not path.with_name(name).exists()]
    if lost:
        shown = ", ".join(lost[:5])
        _refuse(path, f"{len(lost)} of {count} parts are missing ({shown}); fetch them too")
    files = tuple(GgufFile(path.with_name(name)) for name in names)
    for number, file in enumerate(files):
        found = _whole(file, NUMBER, -1), _whole(file, COUNT, -1)
        if found != (number, count):
            rule = f"part {found[0]} of {found[1]}, where part {number} of {count} is expected"
            _refuse(file.path, f"keys {NUMBER!r} and {COUNT!r}: {rule}; fetch it again")
    return files


def _placed(files: tuple[GgufFile, ...]) -> dict[str, GgufFile]:
    found: dict[str, GgufFile] = {}
    for file in files:
        for name in file.tensors:
            if name in found:
                where = f"is in {found[name].path.name} too"
                _refuse(file.path, f"tensor {short(name)}: {where}; names must be unique; {AGAIN}")
            found[name] = file
    return found


def _refuse_others(first: GgufFile, *, with_tensors: bool) -> None:
    """Name a file that holds something else than a model."""
    kind = first.metadata.get(TYPE, "model")
    architecture = first.metadata.get(ARCHITECTURE)
    by_architecture = OTHER_ARCHITECTURES.get(str(architecture))
    told = OTHER_TYPES.get(str(kind)) or by_architecture
    if told is not None:
        _refuse(first.path, f"is {told}")
    if not isinstance(kind, str) or kind != "model":  # an array has no truth of its own
        _refuse(first.path, f"key {TYPE!r}: {short(kind)}; only a 'model' can be run")
    if not with_tensors and TOKENS in first.metadata:
        told = "holds a vocabulary and no tensors; give the file with the model's weights"
        _refuse(first.path, told)


def _whole(file: GgufFile, key: str, default: int) -> int:
    found = file.metadata.get(key, default)
    if type(found) is not int:
        _refuse(file.path, f"key {key!r}: {short(found)} must be a whole number; {AGAIN}")
    return found


def _refuse(path: Path, rule: str) -> NoReturn:
    raise CheckpointError(f"{path}: {rule}")
