"""Encoders of text on their way to a GGUF file: under the names that files' rows know.

Files have one architecture for BERT and its kin. RoBERTa's positions begin behind two that stand
for no token, which are cut off; DistilBERT's tokens have no kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ptir.checkpoint import Checkpoint
from ptir.checkpoint.gguf.architectures.layout import Layout
from ptir.errors import CheckpointError
from ptir.models import definition
from ptir.models.encoder import OF_TOKENS, Encoder
from ptir.models.key_layouts import parameter_of, restored
from ptir.params.arranged import Lines, LinesSource
from ptir.params.source import ParamSource
from ptir.runtime.load import described

POSITIONS: Final = "embeddings.position_embeddings.weight"
_FOLDER: Final = "convert to a folder or to a .safetensors file"


def as_written(checkpoint: Checkpoint, layout: Layout) -> Checkpoint:
    """An encoder as the family that ``layout`` reads, its tensors under that family's names.

    Raises ``CheckpointError`` for one that a file would say to be another model.
    """
    read = described(checkpoint)
    module: Encoder = read.module
    family = str(checkpoint.config["model_type"])
    if module.scored == OF_TOKENS:
        raise CheckpointError(
            f"{checkpoint.path}: classifies tokens, and GGUF files have classifiers of texts alone:"
            f" {_FOLDER}"
        )
    if module.sentence.dense:
        raise CheckpointError(
            f"{checkpoint.path}: names a Dense module, which GGUF files of encoders have no tensors"
            f" for: {_FOLDER}"
        )
    config = {**definition(family).defaults, **checkpoint.config, "num_labels": module.classes}
    if family != layout.model_type:
        config = _as_bert(checkpoint, module, config)
    ours, theirs = (definition(name).key_layouts[0] for name in (family, layout.model_type))
    names = layout.names(int(config["num_hidden_layers"]))
    kept = module.parameters()
    source = restored(checkpoint.source, ours, theirs, names)
    runs = {name: _run(name, source, config) for name in source.names()
            if parameter_of(name, theirs)[0] in kept}  # fmt: skip
    return replace(checkpoint, config=config, source=LinesSource(source, runs))


def _as_bert(checkpoint: Checkpoint, module: Encoder, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the BERT that computes the same."""
    from ptir.models.bert import KINDS, spelled

    kind, bert = KINDS[str(config["model_type"])], KINDS["bert"]
    if module.classes and kind.head != bert.head:
        raise CheckpointError(
            f"{checkpoint.path}: its classifier's activation is {kind.head.activation}, and GGUF"
            f" files of this architecture have {bert.head.activation}: {_FOLDER}"
        )
    config = {**spelled(config), "model_type": "bert"}
    end = "ForSequenceClassification" if module.classes else "Model"
    return {
        **config,
        "architectures": [f"Bert{end}"],
        "max_position_embeddings": config["max_position_embeddings"] - kind.first_position,
        "type_vocab_size": config["type_vocab_size"] if kind.has_kinds else 0,
    }


def _run(name: str, source: ParamSource, config: Mapping[str, Any]) -> Lines:
    """A whole tensor, but for the positions that stand for no token."""
    rows = source.type(name).shape[0]
    return Lines(name, rows - config["max_position_embeddings"] if name == POSITIONS else 0, rows)
