"""Which models are on this machine, what each is, and whether it runs; no weight is read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from ptir.checkpoint import Checkpoint, open_checkpoint
from ptir.checkpoint.folder import CONFIG
from ptir.checkpoint.gguf.file_types import FILE_TYPE, Stored, format_of
from ptir.checkpoint.gguf.header import GgufFile
from ptir.checkpoint.gguf.source import GgufSource
from ptir.checkpoint.gguf.splits import ARCHITECTURE
from ptir.checkpoint.json_text import read_json_object
from ptir.errors import PtirError
from ptir.models import definition
from ptir.params.source import SizedSource, stored_formats
from ptir.params.storage import AUTO, storage_rule
from ptir.runtime.held import held_parameters
from ptir.runtime.load import described_weights
from ptir.runtime.published import expert_share
from ptir.runtime.specs import DEMO, data_folder
from ptir.stores import Found, distinct, found_models, models_under, typed_names

SHIPPED: Final = "ptir"
"""Where the demo is kept."""
REACHED: Final[Mapping[str, Mapping[int, float]]] = {
    "c": {32: 0.88, 16: 0.85, 8: 0.70, 4: 0.67},
    "opencl": {32: 0.91, 16: 0.84, 8: 0.81, 4: 0.68},
}
"""By backend, of those that were measured on processors, and the bits of weights: the share of the
memory's bandwidth at which decoding reads them.

Between what they reached on three machines and on one, docs/results/performance.md.
"""


@dataclass(frozen=True)
class InCaches:
    """What decoding waits for where the weights of a step fit the processor's caches.

    ``reached`` is as in ``REACHED``, of the caches' bandwidth; a step takes ``step`` seconds, and
    ``layer`` seconds for each layer, beside reading weights.
    """

    reached: Mapping[int, float]
    step: float
    layer: float


IN_CACHES: Final[Mapping[str, InCaches]] = {
    "c": InCaches({32: 0.84, 16: 0.32, 8: 0.44, 4: 0.31}, step=14e-6, layer=3.6e-6),
}
"""By backend; fitted to 33 models on two cores of Zen 5, docs/results/performance.md."""


class Small(NamedTuple):
    """The caches' bandwidth in bytes per second for what a model reads, and how its steps wait."""

    bandwidth: float
    waits: InCaches
    layers: int


NO_FILE: Final = re.compile(r"^is no \w+( file)? but ")
"""What stands before what a file is that is no model."""
NEAREST: Final = re.compile(r" \(nearest: [^)]*\)")
"""What stands behind a name that does not exist."""
LONGEST: Final = 80
"""Characters of a reason in few words."""


@dataclass(frozen=True)
class Entry:
    """A model on this machine: what it is, and what decoding reads, or why it does not run.

    ``name`` is what commands take, ``family`` the architecture, ``format`` how most of its weights
    are stored, as its headers say and whatever it is called, ``nbytes`` what its files take.
    ``token_bytes`` are read for a token with the defaults of ``load_model``, by the bits that
    weights are held in; there are none for a model that generates nothing, and where ``problem``
    says why it does not run. ``layers`` is how many layers a token goes through.
    """

    name: str
    store: str
    path: Path
    family: str
    format: str
    nbytes: int
    token_bytes: Mapping[int, int]
    problem: str
    layers: int = 0

    @property
    def reason(self) -> str:
        """The problem in few words."""
        return in_few_words(self.problem, self.path)


def catalog(given: Sequence[Path] = ()) -> Iterator[Entry]:
    """The demo, the models in the folders ``given`` and those of every store, one by one.

    A file that two of them have is one. What cannot be opened is an entry with its error.
    """
    kept = found_models()
    folder = data_folder(DEMO)
    demo = Found(DEMO, "", folder, SHIPPED, tuple(sorted(folder.iterdir())))
    named = [(demo, DEMO)]
    named += [(found, str(found.path)) for path in given for found in models_under(path)]
    named += zip(kept, typed_names(kept), strict=True)
    names = {id(found): name for found, name in named}
    for found in distinct(found for found, _ in named):
        yield entry_of(found, names[id(found)])


def entry_of(found: Found, name: str) -> Entry:
    """What a model is, from its headers; whatever goes wrong is its problem."""
    nbytes = _on_disk(found.files)

    def entry(
        family: str = "",
        format: str = "",
        token: Mapping[int, int] = MappingProxyType({}),
        problem: str = "",
        layers: int = 0,
    ) -> Entry:
        where = found.store, found.path
        return Entry(name, *where, family, format, nbytes, token, problem, layers)

    if found.companion or found.problem:
        return entry(*_headed(found.path), problem=found.companion or found.problem)
    try:
        checkpoint = open_checkpoint(found.path)
    except Exception as error:  # noqa: BLE001  one damaged file must not hide the others
        return entry(*_headed(found.path), problem=_said(error))
    family = str(checkpoint.config.get("model_type") or "")
    format = ""
    try:
        format = stored_as(checkpoint)
        return entry(family, format, token_bytes(checkpoint), layers=layer_count(checkpoint))
    except Exception as error:  # noqa: BLE001
        return entry(family, format, problem=_said(error))


def token_bytes(
    checkpoint: Checkpoint, dtype: str = AUTO, quant: str | None = None
) -> dict[int, int]:
    """Bytes of parameters that decoding a token reads, by the bits that ``load_model`` holds.

    A model that generates nothing reads none; of experts those that work for a token are read.
    Raises ``CheckpointError`` for a model that does not open, and ``QuantizationError``.
    """
    read = described_weights(checkpoint)
    if "generate" not in read.architecture.capabilities:
        return {}
    held = held_parameters(read.module, read.source, quant, str(checkpoint.path))
    return held.token_bytes(read.module, storage_rule(dtype), expert_share(checkpoint))


def layer_count(checkpoint: Checkpoint) -> int:
    """How many layers a model has, as its ``config.json`` says; 0 where it does not."""
    architecture = definition(str(checkpoint.config["model_type"]))
    config = {**architecture.defaults, **architecture.prepare(checkpoint.config)}
    return sum(int(config.get(key) or 0) for key in architecture.layers)


def estimated_speed(
    token_bytes: Mapping[int, int],
    bandwidth: float,
    reached: Mapping[int, float],
    small: Small | None = None,
) -> float:
    """Tokens per second of decoding, where memory has a ``bandwidth`` in bytes per second.

    ``reached`` is a backend's row of ``REACHED``. For weights of other bits the share is that of
    the next wider ones. A ``small`` model is read at the speed of caches, where that is greater,
    and its steps wait for more than weights.
    """

    def seconds(bits: int, nbytes: int) -> float:
        speed = bandwidth * _share(reached, bits)
        if small is not None:
            speed = max(speed, small.bandwidth * _share(small.waits.reached, bits))
        return nbytes / speed

    step = sum(seconds(bits, nbytes) for bits, nbytes in token_bytes.items())
    if small is not None:
        step += small.waits.step + small.waits.layer * small.layers
    return 1 / step


def _share(reached: Mapping[int, float], bits: int) -> float:
    return reached[min((width for width in reached if width >= bits), default=max(reached))]


def stored_as(checkpoint: Checkpoint) -> str:
    """What the weights are stored in: a GGUF file's mixture, else what most bytes are in."""
    source, formats = checkpoint.source, stored_formats(checkpoint.source)
    tensors: list[Stored] = []
    for name in source.names():
        type = source.type(name)
        called = formats[name].name if name in formats else type.dtype.name
        bits = formats[name].stored_bits if name in formats else type.dtype.bits
        nbytes = int(type.size * bits / 8)
        if isinstance(source, SizedSource):
            nbytes = source.stored_bytes(name)
        if isinstance(source, GgufSource):
            called = source.stored_as(name)
        tensors.append(Stored(called, type.rank, type.size, nbytes))
    return format_of(checkpoint.file_metadata.get(FILE_TYPE), tensors)


def in_few_words(problem: str, path: Path) -> str:
    """The first of an error's clauses, as many as fit, without the path and the nearest names."""
    text = problem.replace(f"{path}: ", "").replace(f"{path}/", "").removeprefix(f"{CONFIG}: ")
    text = NEAREST.sub("", NO_FILE.sub("", text))
    said, *others = text.split("; ")
    for clause in others:
        if clause.startswith("known: ") or len(said) + len(clause) + 2 > LONGEST:
            break
        said = f"{said}; {clause}"
    return said if len(said) <= LONGEST else f"{said[: LONGEST - 3].rstrip()}..."


def _said(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    return first if isinstance(error, PtirError | OSError) else f"{type(error).__name__}: {first}"


def _headed(path: Path) -> tuple[str, str]:
    """The family and the format of what cannot be run, as its headers say; nothing otherwise."""
    try:
        if path.is_dir():
            return str(read_json_object(path / CONFIG).get("model_type") or ""), ""
        file = GgufFile(path)
    except Exception:  # noqa: BLE001  the entry has the error already
        return "", ""
    tensors = (
        Stored(one.type.name, len(one.shape), math.prod(one.shape), one.nbytes)
        for one in file.tensors.values()
    )
    family = file.metadata.get(ARCHITECTURE)
    return (
        family if isinstance(family, str) else "",
        format_of(file.metadata.get(FILE_TYPE), tensors),
    )


def _on_disk(files: Iterable[Path]) -> int:
    """Bytes of files, each counted once; those that are gone have none."""
    known = {path.resolve() for path in files}
    return sum(path.stat().st_size for path in known if path.is_file())
