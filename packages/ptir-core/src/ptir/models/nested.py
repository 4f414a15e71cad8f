"""Configurations of models that also see: the part that is about text, brought to the top."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ptir.errors import CheckpointError, short

TEXT: Final = "text_config"
OUTER: Final = (
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "ptir_overrides",
    "quantization",
    "quantization_config",
    "tie_word_embeddings",
    "torch_dtype",
)
"""What is said beside the part about text and holds for it."""
PREFIXES: Final = ("language_model.model.", "model.language_model.", "model.")
"""What stands before the names of a language model's tensors, alone or beside others."""
RENAMED: Final = {"language_model.lm_head.weight": "lm_head.weight"}
SEEING: Final = tuple(
    f"{before}{part}.*"
    for before in ("", "model.")
    for part in ("vision_tower", "multi_modal_projector")
)
"""Tensors of what sees, which nothing here reads."""


def text_part(config: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """What ``config`` says of its language model, of a ``model_type`` unless it says another.

    A config without such a part is about text alone. Raises ``CheckpointError``.
    """
    if config.get(TEXT) is None:
        return dict(config)
    given = config[TEXT]
    if not isinstance(given, Mapping):
        raise CheckpointError(
            f"config.json: {TEXT} {short(given)} must be an object; fetch the file again"
        )
    outer = {key: config[key] for key in OUTER if config.get(key) is not None}
    return {"model_type": model_type, **given, **outer}
