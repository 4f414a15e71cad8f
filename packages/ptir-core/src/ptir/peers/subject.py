"""A model on both sides: ours, and the peer's on the same weights in a folder that it can open."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ptir.checkpoint import Checkpoint, save_folder
from ptir.checkpoint.config import QUANTIZED
from ptir.models.divisors import portable
from ptir.models.encoder import OF_TEXTS, OF_TOKENS
from ptir.models.key_layouts import KeyLayout, layout_of, parameter_of, restored
from ptir.models.table import GENERATES, HEARS, MATCHES, READS, SEES, ModelDefinition
from ptir.models.timm import named_by_timm
from ptir.params.source import ArraySource, ParamSource, RenamedSource
from ptir.peers import definitions as peer
from ptir.peers.names import Modules, Parameter, called_alike, of_the_same_parameters
from ptir.peers.process import Library, PeerProcess
from ptir.runtime.kinds import row_of
from ptir.runtime.load import DescribedWeights, described_weights, prepared
from ptir.runtime.published import with_files

if TYPE_CHECKING:
    from ptir.runtime import Model

Array = np.ndarray[Any, Any]

TRANSFORMERS: Final = "transformers"
"""The name of the layout of keys that a peer opens."""
OWN: Final = KeyLayout("ptir", mark="")
"""Of parameters that are called as our modules call them."""
_OF_TEXTS: Final = {"": peer.EMBED, OF_TEXTS: peer.SCORE_TEXTS, OF_TOKENS: peer.SCORE_TOKENS}


@dataclass(frozen=True)
class Pair:
    """A model of ours and the peer's, both open."""

    model: Model
    peer: PeerProcess
    task: str
    parameters: Mapping[str, Parameter]
    """Of the peer's tensors, which of ours they are; empty where names are alike."""

    def counterparts(self, layers: list[str]) -> dict[str, Modules]:
        """For layers of ours the peer's modules that compute the same."""
        if not self.parameters:
            return called_alike(layers, self.peer.layers)
        return of_the_same_parameters(layers, self.peer.layers, self.parameters)


def task_of(model: Model) -> str:
    """What a peer opens a model for."""
    return row_of(_TASKS, model)(model)


def _text_task(model: Any) -> str:
    return _OF_TEXTS[model.module.scored]


def _image_task(model: Model) -> str:
    return peer.SCORE_IMAGES if "classify" in model.capabilities else peer.SEE


_TASKS: Final[Mapping[tuple[str, ...], Callable[[Any], str]]] = {
    GENERATES: lambda model: peer.GENERATE,
    SEES: _image_task,
    MATCHES: lambda model: peer.SEE,
    READS: _text_task,
    HEARS: lambda model: peer.HEAR,
}
"""By what an architecture can do."""


@contextmanager
def paired(
    model: Model, checkpoint: Checkpoint, library: Library, threads: int | None = None
) -> Iterator[Pair]:
    """The model beside that of ``library``, which ends with the block.

    It computes on ``threads`` threads, or on as many as the library chooses.
    ``checkpoint`` is what the model was loaded from, as it was resolved.
    A folder of Transformers is opened as it lies; any other model is written to a temporary one,
    blocks and quantized weights as the floats that they stand for.
    """
    task = task_of(model)
    with PeerProcess(library) as process, tempfile.TemporaryDirectory(prefix="ptir-peer-") as room:
        read = described_weights(prepared(checkpoint))
        theirs = _layout(read.architecture)
        written = replace(with_files(checkpoint), config=_config(checkpoint, read))
        parameters: dict[str, Parameter] = {}
        if theirs is not None:
            empty = save_folder(replace(written, source=ArraySource({})), Path(room) / "config")
            names = process.saved_names(empty, task)
            written = replace(written, source=restored(read.source, OWN, theirs, names))
            known = {*read.source.names()}
            ours = ((module, parameter_of(name, theirs)) for name, module in names.items())
            parameters = {module: one for module, one in ours if one[0] in known}
        else:
            written = replace(written, source=_prefixed(written.source, read.architecture))
        folder = checkpoint.path
        if not _opens_as_it_lies(checkpoint, read.architecture):
            folder = save_folder(written, Path(room) / "model")
        process.open(folder, task, threads)
        yield Pair(model, process, task, parameters)


def _layout(architecture: ModelDefinition) -> KeyLayout | None:
    """How Transformers calls a family's tensors; None where the family does as well."""
    return next((one for one in architecture.key_layouts if one.name == TRANSFORMERS), None)


def _opens_as_it_lies(checkpoint: Checkpoint, architecture: ModelDefinition) -> bool:
    config = checkpoint.config
    folder = checkpoint.path.is_dir() and (checkpoint.path / "config.json").is_file()
    if not folder or "model_type" not in config or any(key in config for key in QUANTIZED):
        return False
    layouts = architecture.key_layouts
    found = layout_of(layouts, checkpoint.source.names()) if layouts else None
    return not layouts or (found is not None and found.name == TRANSFORMERS)


def _prefixed(source: ParamSource, architecture: ModelDefinition) -> ParamSource:
    """``source`` with the family's prefix before all names but the head's, where none has one.

    A head that is stored by another name has none, either.
    """
    names = source.names()
    if not architecture.prefixes or any(name.startswith(architecture.prefixes) for name in names):
        return source
    prefix = architecture.prefixes[-1]
    heads = {name.rpartition(".")[0] for name in architecture.tied}
    heads |= {name.rpartition(".")[0] for name in architecture.renamed}
    named = {n if n.rpartition(".")[0] in heads else f"{prefix}{n}": n for n in names}
    return RenamedSource(source, named)


def _config(checkpoint: Checkpoint, read: DescribedWeights) -> dict[str, Any]:
    """What Transformers' configuration of the same model says, with weights that are floats.

    Keys that are left out mean the same there, but for those of a library that means something
    else by its own names of tensors.
    """
    config = named_by_timm(checkpoint.config)
    layouts = read.architecture.key_layouts
    found = layout_of(layouts, checkpoint.source.names()) if layouts else None
    said = {**(found.defaults if found else {}), **config}
    classes = getattr(read.module, "classes", 0)
    said |= {"num_labels": classes} if classes else {}
    return {key: value for key, value in portable(said).items() if key not in QUANTIZED}
