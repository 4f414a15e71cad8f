"""Which models are run, how their weights are drawn and stored, and what each row does with them.

The weights of the tiny ones are whole numbers times a power of two, so few that every type in which
they are stored holds them exactly: there is one right answer, whatever the storage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np

from ptir.checkpoint import Checkpoint
from ptir.models import ModelDefinition
from ptir.models.table import definition
from ptir.params.source import ArraySource
from ptir.runtime.specs import parameter_types, resolve
from ptir.types import TensorType
from ptir_testsuite.corpus.values import Draws
from ptir_testsuite.oracles.floats import Array

FILE: Final = "expected.npz"
GROUP: Final = 32
"""Weights that share a scale when quantized."""
NEW: Final = 20
"""Tokens that follow every prompt."""
BOUND: Final = 2.0**-17
"""How far a logit may be off, as a part of the greatest one of its position."""
LENGTHS: Final = (1, 6, 33, 70)
"""Of the prompts of a batch: within a block of positions, beyond one, beyond a chunk."""

_GPT2: Final[dict[str, Any]] = {
    "model_type": "gpt2",
    "vocab_size": 96,
    "n_positions": 128,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
}
_LLAMA: Final[dict[str, Any]] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
}
_MISTRAL: Final = {**_LLAMA, "model_type": "mistral", "sliding_window": 12}
_LFM2: Final[dict[str, Any]] = {
    "model_type": "lfm2",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "block_auto_adjust_ff_dim": False,
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "conv_L_cache": 3,
    "max_position_embeddings": 128,
    "norm_eps": 1e-5,
    "rope_theta": 500.0,
    "tie_word_embeddings": True,
}
_QWEN3_5: Final[dict[str, Any]] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-3,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.25,
    },
    "tie_word_embeddings": False,
}


_MODERNBERT: Final[dict[str, Any]] = {
    "model_type": "modernbert",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "norm_eps": 1e-5,
    "local_attention": 20,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}


_WHISPER: Final[dict[str, Any]] = {
    "model_type": "whisper",
    "vocab_size": 96,
    "num_mel_bins": 16,
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 96,
    "max_source_positions": 24,
    "max_target_positions": 80,
    "bos_token_id": 60,
    "eos_token_id": 60,
    "pad_token_id": 60,
    "decoder_start_token_id": 61,
    "begin_suppress_tokens": None,
}


GENERATED: Final = ("logits", "tokens", "alone")
ENCODED: Final = ("vectors",)
HEARD: Final = ("heard",)
"""What is done with a model that generates, an encoder, one of speech; keys of ``KINDS``."""


@dataclass(frozen=True)
class Subject:
    """A model: its configuration (none: one that ships with ptir), levels, storages, rows' kinds.

    Weights are whole numbers up to ``levels`` in size, which stand in every group of ``GROUP``.
    Caches of windows have ``room`` for so many positions more, where that is said.
    """

    storages: tuple[str, ...]
    config: Mapping[str, Any] | None = None
    levels: int = 0
    room: int | None = None
    kinds: tuple[str, ...] = GENERATED


SUBJECTS: Final[dict[str, Subject]] = {
    "demo": Subject(("f32",)),
    "gpt2": Subject(("f32", "f16", "bf16", "int8"), _GPT2, 127),
    "gpt2-coarse": Subject(("int4",), _GPT2, 8),
    "llama": Subject(("f32", "f16", "bf16", "int8"), _LLAMA, 127),
    "llama-coarse": Subject(("int4",), _LLAMA, 8),
    "mistral": Subject(("f32",), _MISTRAL, 127, room=8),
    "lfm2": Subject(("f32",), _LFM2, 127),
    "qwen3.5": Subject(("f32",), _QWEN3_5, 127),
    "modernbert": Subject(("f32", "bf16"), _MODERNBERT, 127, kinds=ENCODED),
    "whisper": Subject(("f32", "bf16"), _WHISPER, 127, kinds=HEARD),
}
"""The models, one of each kind of state among them, and an encoder, which has none.

127 levels are exact in 8 bits, 8 (of which the last is the greatest) in 4.
"""

QUANTIZED: Final = ("int8", "int4")

KINDS: Final[dict[str, str]] = {
    "logits": "the logits of all positions of the longest prompt, in one call",
    "tokens": "prompts of several lengths continued together, with and without log probabilities",
    "alone": "each prompt continued by itself, as it was beside the others",
    "vectors": "a vector for each token of texts of several lengths, in one batch and one by one",
    "heard": "logits of prompts of several lengths, each behind other sound, and the tokens of one",
}
"""What a row does."""


@dataclass(frozen=True)
class ModelRun:
    """One row: what is done (``kind``) with a model whose weights are stored in one way."""

    name: str
    storage: str
    kind: str

    @property
    def subject(self) -> Subject:
        """The model's row of the table."""
        return SUBJECTS[self.name]

    @property
    def id(self) -> str:
        """A hash of the weights and of what is expected."""
        return f"model-{self.name}-{self.storage}-{self.kind}-{_digest(self.name)}"

    @property
    def call(self) -> str:
        """The row for a reader."""
        return f"{self.name} in {self.storage}: {self.kind}"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The element types that its programs take; words and their scales where quantized."""
        stored = {"f32": (), **dict.fromkeys(QUANTIZED, ("u32", "bf16"))}
        return ("f32", *stored.get(self.storage, (self.storage,)), "i32")

    @property
    def profiles(self) -> frozenset[str]:
        """The profiles beyond those of ``dtypes``."""
        return frozenset({"model", "quantized"} if self.storage in QUANTIZED else {"model"})


def model_runs(name: str = "") -> Iterator[ModelRun]:
    """Every row (of one model); prompts alone in one storage only, which is no matter to them."""
    for one, subject in SUBJECTS.items():
        for storage in subject.storages if name in ("", one) else ():
            for kind in subject.kinds:
                if kind != "alone" or (subject.config and storage == "f32"):
                    yield ModelRun(one, storage, kind)


@cache
def expectations() -> dict[str, Array]:
    """The arrays of the file, by MODEL.WHAT."""
    data = (resources.files("ptir_testsuite.corpus") / FILE).read_bytes()
    with np.load(BytesIO(data)) as file:
        return {name: file[name] for name in file.files}


def expected(name: str, what: str) -> Array:
    """What PyTorch found: prompts, tokens, logits or logprobs of a model."""
    return expectations()[f"{name}.{what}"]


def prompts(name: str) -> list[list[int]]:
    """The prompts of a model."""
    found = expected(name, "prompts")
    return [[int(t) for t in row if t >= 0] for row in found]


SPOKEN: Final = "en", "transcribe"
"""The language and task for which tokens of a model of speech are expected."""


def features(name: str, number: int) -> Array:
    """What is heard before prompt ``number``: f32[frames, mels], exact in every storage."""
    config = SUBJECTS[name].config or {}
    shape = 2 * config["max_source_positions"], config["num_mel_bins"]
    draws = Draws("features", name, number)
    return ((draws.below(33, shape[0] * shape[1]) - 16).reshape(shape) / 16).astype(np.float32)


@cache
def _digest(name: str) -> str:
    state = hashlib.blake2b(digest_size=6)
    if SUBJECTS[name].config is not None:
        for array in weights(name).values():
            state.update(array.tobytes())
    for what, array in sorted(expectations().items()):
        if what.startswith(f"{name}."):
            state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


# --- weights ---


def checkpoint(name: str) -> Checkpoint:
    """The model as it would come from a folder."""
    config = SUBJECTS[name].config
    if config is None:
        return resolve(name)
    return Checkpoint(Path(name), config, {}, {}, ArraySource(weights(name)), None, ())


@cache
def weights(name: str) -> dict[str, Array]:
    """The parameters of a tiny model, in f32."""
    subject = SUBJECTS[name]
    model, config = architecture(subject)
    types = parameter_types(model, {**model.defaults, **config})
    return {key: _drawn(name, key, type, subject.levels) for key, type in types.items()}


def architecture(subject: Subject) -> tuple[ModelDefinition, Mapping[str, Any]]:
    """The definition and the configuration of a tiny model."""
    config = subject.config or {}
    return definition(config["model_type"]), config


def _drawn(name: str, key: str, type: TensorType, levels: int) -> Array:
    draws = Draws("model", name, key, type)
    if type.rank == 1:
        steps = draws.below(13, type.size) - 6
        middle = 16 if key.endswith(".weight") else 0
        return ((steps + middle) / 16).astype(np.float32)
    most = levels - 1
    size = draws.below(most + 1, type.size) + draws.below(most + 1, type.size)
    values = (size - most).reshape(type.shape)
    signs = (2 * draws.below(2, type.size) - 1).reshape(type.shape)
    place = np.indices(type.shape).sum(0)
    values = np.where(place % GROUP == 0, levels * signs, values)
    step = 0.25 / (1 << most.bit_length())  # a power of two
    return (values * step).astype(np.float32)
