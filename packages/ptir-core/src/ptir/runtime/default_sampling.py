"""How a checkpoint wants its texts sampled: what is applied of its ``generation_config``.

A folder says it in ``generation_config.json``, a GGUF file in ``general.sampling.*``, which are
read under the same names (``checkpoint.gguf.sampling``). Transformers and llama.cpp take them for
defaults; so do ``ptir run`` and ``ptir chat``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final, NamedTuple

from ptir.checkpoint import Checkpoint
from ptir.checkpoint.config import SAMPLED
from ptir.errors import CheckpointError, UsageError, short
from ptir.runtime.generation import SamplingOptions

APPLIED: Final = tuple(field.name for field in fields(SamplingOptions) if field.name != "seed")
NOT_APPLIED: Final[Mapping[str, float | None]] = {
    "bad_words_ids": None,
    "begin_suppress_tokens": None,
    "encoder_repetition_penalty": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "mirostat": 0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "penalty_alpha": 0,
    "sequence_bias": None,
    "suppress_tokens": None,
    "typical_p": 1,
    "xtc_probability": 0,
}
"""Other fields that choose tokens, and the number at which each does nothing."""

MEND: Final = "correct it, take it out, or take the likeliest tokens (--temp 0)"
"""What helps where a value is out of range: greedy choices ask for none."""


class DefaultSampling(NamedTuple):
    """``SamplingOptions`` that a checkpoint sets, by name, and its fields that are not applied."""

    options: Mapping[str, int | float]
    ignored: tuple[str, ...]


def default_sampling(checkpoint: Checkpoint) -> DefaultSampling:
    """What ``checkpoint`` sets; temperature 0 where it says that nothing is to be sampled.

    Raises ``CheckpointError`` for values that are out of range.
    """
    said = {key: value for key, value in checkpoint.generation_config.items() if value is not None}
    where = f"{checkpoint.path}: generation_config"
    sampled = said.get(SAMPLED, True)
    if not isinstance(sampled, bool):
        raise CheckpointError(f"{where}: {SAMPLED} {short(sampled)} must be true or false; {MEND}")
    options = {name: said[name] for name in APPLIED if name in said}
    if isinstance(options.get("top_k"), int):
        options["top_k"] = max(0, options["top_k"])  # -1, too, is none to llama.cpp and vLLM
    if not sampled:
        options = {"temperature": 0.0}
    try:
        SamplingOptions(**options)
    except UsageError as error:
        raise CheckpointError(f"{where}: {error}; {MEND}") from error
    others = ((key, none) for key, none in NOT_APPLIED.items() if key in said)
    ignored = (key for key, none in others if said[key] not in ([], {}, none))
    return DefaultSampling(options, tuple(ignored))
