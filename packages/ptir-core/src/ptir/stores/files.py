"""Model files of one repository: which belong together, what each is called, and which are none."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from ptir.checkpoint.gguf.splits import NAME

SUFFIX: Final = ".gguf"
LABEL: Final = re.compile(
    r"(?:^|[-._])(?P<label>(?:UD[-_])?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|NVFP4|BF16|F16|F32))",
    re.IGNORECASE | re.ASCII,
)
"""The quantization that a file's name ends in."""
ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER: Final = "a LoRA adapter, which changes a model"
COMPANIONS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(rule, re.IGNORECASE), what)
    for rule, what in (
        (r"mmproj\b.*|.*[-._]mmproj\b.*", "a projector of images or sound (mmproj)"),
        (r"mtp-.*", "a head that predicts several tokens (MTP)"),
        (r".*-lora", ADAPTER),
        (r".*-vocab", "a vocabulary without weights"),
        (r"(.*[-._])?imatrix", "an importance matrix, which quantizers read"),
    )
)
"""By the name without ``.gguf`` and quantization: files beside models, and what each is."""


class Group(NamedTuple):
    """The files of one model, the one to open first, and how they are told from others.

    ``companion`` says what they are where that is no model.
    """

    variant: str
    files: tuple[str, ...]
    companion: str = ""


@dataclass(frozen=True)
class Found:
    """A model that a store keeps: its repository, which of its files, and where they lie.

    ``path`` is what is opened, ``problem`` why it cannot be. A ``companion`` is no model.
    """

    repository: str
    variant: str
    path: Path
    store: str
    files: tuple[Path, ...] = ()
    problem: str = ""
    companion: str = ""
    stem: str = ""

    @property
    def name(self) -> str:
        """What to type where no other store has the same name."""
        return f"{self.repository}:{self.variant}" if self.variant else self.repository

    @property
    def full_name(self) -> str:
        """The name that says the store too."""
        return f"{self.store}:{self.name}"


def companion(stem: str) -> str:
    """What a file called ``stem`` is where that is no model; nothing for a model."""
    bare = stem.removesuffix(label(stem)).rstrip("-._")
    found = (what for rule, what in COMPANIONS if rule.fullmatch(stem) or rule.fullmatch(bare))
    return next(found, "")


def grouped(names: Iterable[str]) -> list[Group]:
    """The models among the files of a repository, ordered by name; parts of one are one.

    A model is told by its quantization; where two have the same, by its file's name.
    """
    parts: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        if name.lower().endswith(SUFFIX):
            match = NAME.fullmatch(name)
            key = (match["stem"], match["count"]) if match else (name[: -len(SUFFIX)], "")
            parts.setdefault(key, []).append(name)
    stems = {key: PurePosixPath(key[0]).name for key in parts}
    models = [key for key in parts if not companion(stems[key])]
    labels = Counter(label(stems[key]).lower() for key in models)
    names_of = Counter(stems[key].lower() for key in parts)

    def variant(key: tuple[str, str]) -> str:
        stem = stems[key]
        found = label(stem)
        if key in models and found and labels[found.lower()] == 1:
            return found
        return stem if names_of[stem.lower()] == 1 else parts[key][0][: -len(SUFFIX)]

    return [Group(variant(key), tuple(parts[key]), companion(stems[key])) for key in parts]


def stem_of(name: str) -> str:
    """The name of a file without its folder, ``.gguf`` and the number of its part."""
    base = PurePosixPath(name).name
    match = NAME.fullmatch(base)
    return match["stem"] if match else base[: -len(SUFFIX)]


def models_in(folder: Path, repository: str, store: str) -> Iterator[Found]:
    """The models in a folder: each GGUF file, and the folder where it has weights of its own.

    Only names are read.
    """
    names = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    yield from gguf_models(names, repository, store)
    ggufs = any(name.lower().endswith(SUFFIX) for name in names)
    if not names or (ggufs and not any(name.endswith(".safetensors") for name in names)):
        return
    files = tuple(path for name, path in names.items() if not name.lower().endswith(SUFFIX))
    told = ADAPTER if ADAPTER_CONFIG in names and "config.json" not in names else ""
    yield Found(repository, "", folder, store, files, broken(files), told)


def gguf_models(names: Mapping[str, Path], repository: str, store: str) -> Iterator[Found]:
    """The GGUF models among files by their names within a repository."""
    for group in grouped(names):
        paths = tuple(names[name] for name in group.files)
        stem = stem_of(group.files[0])
        problem, told = broken(paths), group.companion
        yield Found(repository, group.variant, paths[0], store, paths, problem, told, stem)


def broken(files: Iterable[Path]) -> str:
    """That one of the files is a link to nothing; nothing where all are there."""
    lost = next((path.name for path in files if not path.exists()), None)
    return f"{lost} is a link to a file that is gone; fetch it again" if lost is not None else ""


def _files(folder: Path) -> Iterator[Path]:
    for where, inside, names in os.walk(folder):
        inside.sort()
        yield from (Path(where) / name for name in sorted(names))


def label(stem: str) -> str:
    """The quantization that a file's name without ``.gguf`` ends in; nothing where it has none."""
    match = next((m for m in LABEL.finditer(stem) if m.end() == len(stem)), None)
    return match["label"] if match else ""
