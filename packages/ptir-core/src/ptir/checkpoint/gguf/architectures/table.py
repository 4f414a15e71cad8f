"""**Table** of architectures that GGUF files may name: tensors and keys of each, as a family here.

A row says how a tensor is called there and here, which rows are rotated in another order, and what
the metadata means as a configuration. An architecture is added with a row in the file of its kin,
or with a file of rows, which is joined here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ptir.checkpoint.gguf.architectures import (
    encoders,
    experts,
    gemma,
    gpt2,
    hybrids,
    layer_norms,
    llama,
    phi3,
)
from ptir.checkpoint.gguf.architectures.layout import Layout
from ptir.checkpoint.gguf.architectures.llama import EXPERTS
from ptir.checkpoint.gguf.fields import Keys
from ptir.checkpoint.gguf.splits import GgufModel
from ptir.errors import CheckpointError, nearest, short

LAYOUTS: Final[Mapping[str, Layout]] = {
    **gpt2.LAYOUTS,
    **llama.LAYOUTS,
    **layer_norms.LAYOUTS,
    **phi3.LAYOUTS,
    **gemma.LAYOUTS,
    **experts.LAYOUTS,
    **hybrids.LAYOUTS,
    **encoders.LAYOUTS,
}
"""By ``general.architecture``."""


def layout_of(model: GgufModel) -> tuple[str, Layout]:
    """A model's architecture and its row; raises ``CheckpointError`` naming those there are."""
    found = model.metadata.get("general.architecture")
    known = ", ".join(LAYOUTS)
    where = f"{model.path}: key 'general.architecture'"
    if not isinstance(found, str):
        what = "is missing" if found is None else f"{short(found)} must be a string"
        raise CheckpointError(f"{where} {what}: nothing says which model it is; {known} can be run")
    if found not in LAYOUTS:
        near = nearest(found, LAYOUTS)
        hint = f" (nearest: {', '.join(near)})" if near else ""
        raise CheckpointError(
            f"{where}: {short(found)}{hint} is not implemented; {known} are: choose a model of one"
            " of these"
        )
    row = LAYOUTS[found]
    if row.mixture is None or Keys(model.path, model.metadata, found).optional(*EXPERTS) is None:
        return found, row
    return found, row.mixture
