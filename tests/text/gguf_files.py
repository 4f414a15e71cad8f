"""Metadata as converters to GGUF write it, from tokenizers that other libraries trained."""

from __future__ import annotations

import functools
import importlib.resources
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentencepiece

from ptir.text import Tokenizer
from ptir.text.gguf_tokenizer import GgufTokenizer, tokenizer_of

REPOSITORY = Path(__file__).resolve().parents[2]
GPT2 = importlib.resources.files("ptir") / "data" / "gpt2-tokenizer"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def keyed(**values: Any) -> dict[str, Any]:
    """Metadata with the keys of tokenizers, by their last part."""
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


@functools.cache
def gpt2_files() -> tuple[str, str]:
    """The texts of GPT-2's ``vocab.json`` and ``merges.txt``."""
    return (GPT2 / "vocab.json").read_text("utf-8"), (GPT2 / "merges.txt").read_text("utf-8")


@functools.cache
def gpt2_own() -> Tokenizer:
    """GPT-2's tokenizer, from its own files."""
    return Tokenizer.from_gpt2(*gpt2_files())


def gpt2_metadata(**others: Any) -> dict[str, Any]:
    """GPT-2's tokenizer as metadata, and ``others``."""
    vocab, merges = gpt2_files()
    ids = json.loads(vocab)
    tokens = sorted(ids, key=ids.__getitem__)
    return keyed(
        model="gpt2", pre="gpt-2", tokens=tokens, token_type=[NORMAL] * 50256 + [CONTROL],
        merges=merges.splitlines()[1:], eos_token_id=50256, bos_token_id=50256,
    ) | keyed(**others)  # fmt: skip


def gpt2(**others: Any) -> GgufTokenizer:
    """The tokenizer of ``gpt2_metadata``."""
    return tokenizer_of(gpt2_metadata(**others))


@functools.cache
def pages() -> tuple[str, ...]:
    """The lines of the repository's pages, which small tokenizers are trained on."""
    files = sorted((REPOSITORY / "docs").rglob("*.md"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    return tuple(line for line in lines if line.strip())


@functools.cache
def trained(kind: str, size: int, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A tokenizer that SentencePiece trains on the pages."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(pages()), model_writer=model, model_type=kind, vocab_size=size,
        minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def converted(
    model: str, own: sentencepiece.SentencePieceProcessor, **others: Any
) -> dict[str, Any]:
    """The metadata of a tokenizer of SentencePiece."""
    ids = range(own.get_piece_size())
    return keyed(
        model=model,
        tokens=[own.id_to_piece(index) for index in ids],
        scores=[own.get_score(index) for index in ids],
        token_type=[_type(own, index) for index in ids],
        bos_token_id=own.bos_id(),
        eos_token_id=own.eos_id(),
        unknown_token_id=own.unk_id(),
    ) | keyed(**others)


def _type(own: sentencepiece.SentencePieceProcessor, index: int) -> int:
    kinds = {UNKNOWN: own.is_unknown, CONTROL: own.is_control, UNUSED: own.is_unused,
             BYTE: own.is_byte}  # fmt: skip
    return next((kind for kind, holds in kinds.items() if holds(index)), NORMAL)


def without(metadata: Mapping[str, Any], key: str) -> dict[str, Any]:
    """``metadata`` less one key of tokenizers."""
    return {name: value for name, value in metadata.items() if name != f"tokenizer.ggml.{key}"}
