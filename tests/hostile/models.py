"""Small right models as GGUF files, which mutations begin with: of every family and tokenizer."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from tokenizers.pre_tokenizers import ByteLevel

import gguf_encoders
import image_models
import text_models
from gguf_models import f32, kind_of_matrices, write
from hostile.parts import Entry, Parts, Text, parsed
from layer_norm_families import CONFIGS, checkpoint
from ptir.checkpoint import Checkpoint, open_checkpoint
from running import llama_folder, small_checkpoint

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
WORDS = ("a", "e", "n", "t", "h", "th", "the", "an", "é", "!", "ing")
Files = dict[str, Parts]
"""By name; the first one is given to the engine."""


def _charsmap() -> list[int]:
    """A trie of one key, ``A``, which becomes ``a``."""
    units = [0] * 256
    units[0x41] = 0x41 | 1 << 8 | 1 << 10
    units[0x40] = 1 << 31
    return list(struct.pack("<I", 4 * len(units)) + struct.pack("<256I", *units) + b"a\0")


def byte_level(writer: gguf.GGUFWriter, pre: str = "gpt-2") -> None:
    """All bytes, a few merges, and a token that ends a text."""
    letters = sorted(ByteLevel.alphabet())
    merged = ["th", "he", "the", "an", "Ġa", "Ġan", "in", "ing"]
    merges = ["t h", "h e", "th e", "a n", "Ġ a", "Ġa n", "i n", "in g"]
    _tokens(writer, "gpt2", ["<|endoftext|>", *letters, *merged, "<|im_end|>"])
    kinds = [CONTROL, *[NORMAL] * (len(letters) + len(merged)), USER_DEFINED]
    writer.add_token_types(kinds)
    writer.add_tokenizer_pre(pre)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)


def _pieces(writer: gguf.GGUFWriter, model: str) -> int:
    """Pieces with scores, all bytes among them; how many there are."""
    special = ["<unk>", "<s>", "</s>"]
    pieces = ["▁", *WORDS, *(f"▁{word}" for word in WORDS)]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    _tokens(writer, model, tokens)
    writer.add_token_scores([0.0] * 259 + [-1.0 - n / 4 for n in range(len(pieces))])
    writer.add_token_types([UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)])
    for use, index in (("unk", 0), ("bos", 1), ("eos", 2)):
        getattr(writer, f"add_{use}_token_id")(index)
    return len(tokens)


def scored(writer: gguf.GGUFWriter) -> None:
    """SentencePiece's merges by score."""
    _pieces(writer, "llama")
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages }}")


def unigram(writer: gguf.GGUFWriter) -> None:
    """SentencePiece's pieces, with a table of characters."""
    _pieces(writer, "t5")
    writer.add_array("tokenizer.ggml.precompiled_charsmap", np.uint8(_charsmap()).tolist())
    writer.add_remove_extra_whitespaces(True)
    writer.add_add_space_prefix(True)


def word_piece(writer: gguf.GGUFWriter) -> None:
    """BERT's pieces."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = [*(f"▁{word}" for word in WORDS), *WORDS]
    _tokens(writer, "bert", [*special, *pieces])
    writer.add_token_types([CONTROL] * 5 + [NORMAL] * len(pieces))
    for use, index in (("pad", 0), ("unk", 1), ("bos", 2), ("sep", 3), ("mask", 4)):
        getattr(writer, f"add_{use}_token_id")(index)


def spaced(writer: gguf.GGUFWriter) -> None:
    """Gemma's: merges over text whose spaces are ``▁``."""
    _pieces(writer, "gemma4")
    writer.add_token_merges(["t h", "th e", "a n", "▁ a", "▁a n"])


def _tokens(writer: gguf.GGUFWriter, model: str, tokens: list[str]) -> None:
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_name("small")


ENCODERS = {"bert": "bert", "bert-classifier": "bert, texts", "modernbert": "modernbert"}
"""Cases of tests/data/encoders.json."""
Vocabulary = Callable[[gguf.GGUFWriter], None]
MIXED = {"attn_q": Kind.Q6_K, "attn_k": Kind.Q5_K, "attn_v": Kind.Q3_K, "ffn_up": Kind.Q2_K}
MIXED |= {"ffn_down": Kind.IQ4_XS, "ffn_gate": Kind.TQ2_0, "attn_output": Kind.IQ2_XS}


def mixed(name: str) -> Kind:
    """A type of super-blocks for each matrix."""
    found = next((kind for stem, kind in MIXED.items() if stem in name), Kind.Q4_K)
    return Kind.F32 if "norm" in name else found


@dataclass(frozen=True)
class Recipe:
    """How a right model is made: its family, types, vocabulary, and what is changed in it then."""

    family: str
    kinds: Callable[[str], Kind] = f32
    vocabulary: Vocabulary = lambda writer: None
    rows: int = 97
    config: Mapping[str, Any] | None = None
    parts: int = 0
    version: int = 3
    changed: Callable[[Parts], None] = lambda parts: None

    def made(self, folder: Path) -> Files:
        """The files."""
        folder.mkdir(parents=True)
        if self.family in ENCODERS:
            return self._encoder(folder)
        checkpoint = self._checkpoint(folder)
        written = write(
            folder / "m.gguf",
            checkpoint,
            self.kinds,
            vocabulary=self.vocabulary,
            parts=self.parts,
            extra=_factors(self.config or {}),
        )
        paths = sorted(folder.glob("m*.gguf"))
        assert written.path in paths or self.parts
        files = {path.name: parsed(path.read_bytes()) for path in paths}
        for parts in files.values():
            parts.version = self.version
        self.changed(next(iter(files.values())))
        return files

    def _encoder(self, folder: Path) -> Files:
        case = text_models.cases()[ENCODERS[self.family]]
        rows = case["config"]["vocab_size"]
        shapes = {
            name: [self.rows, *shape[1:]] if _has_tokens(name, shape, rows) else shape
            for name, shape in case["shapes"].items()
        }
        config = {**case["config"], **(self.config or {}), "vocab_size": self.rows}
        path = gguf_encoders.write(
            folder / "m.gguf",
            image_models.checkpoint(config, shapes),
            pooling=int(config.get("pooling", 1)),
            kinds=self.kinds,
            vocabulary=self.vocabulary,
        )
        return {path.name: parsed(path.read_bytes())}

    def _checkpoint(self, folder: Path) -> Checkpoint:
        config = {"vocab_size": self.rows, **(self.config or {})}
        if self.family == "gpt2":
            return small_checkpoint(n_layer=1, **config)
        if self.family in CONFIGS:
            return checkpoint({**CONFIGS[self.family], **config, "num_hidden_layers": 1})
        sizes = {"num_hidden_layers": 1, "model_type": self.family, **config}
        return open_checkpoint(llama_folder(folder, **sizes))


def _has_tokens(name: str, shape: list[int], rows: int) -> bool:
    """Whether a tensor has a row for each of ``rows`` tokens; others may be as large by chance."""
    return "embeddings" in name and shape[0] == rows


def _factors(config: Mapping[str, Any]) -> dict[str, Any]:
    """Divisors of frequencies where heads are of four pairs."""
    usual = "hidden_size" not in config and config.get("rope") == "divided"
    return {"rope_freqs.weight": np.float32([1, 1, 2, 4])} if usual else {}


def fused(parts: Parts) -> None:
    """Queries, keys and values of a layer as one tensor."""
    stems = [f"blk.0.attn_{one}.weight".encode() for one in "qkv"]
    three = [next(e for e in parts.entries if e.name.raw == stem) for stem in stems]
    rows = sum(entry.sizes[1] for entry in three)
    data = b"".join(entry.data for entry in three)
    whole = Entry(Text(b"blk.0.attn_qkv.weight"), [three[0].sizes[0], rows], three[0].kind, data)
    parts.entries = [e for e in parts.entries if e.name.raw not in stems] + [whole]


TWO_NORMS = {"new_decoder_architecture": True}
WIDE = {"hidden_size": 256, "intermediate_size": 256}
PIECES = 3 + 256 + 1 + 2 * len(WORDS)
LETTERS = 1 + 256 + 8 + 1

RECIPES: dict[str, Recipe] = {
    "gpt2": Recipe("gpt2", f32, byte_level, LETTERS),
    "gpt2-old": Recipe("gpt2", kind_of_matrices(Kind.Q5_0), byte_level, LETTERS, version=2),
    "llama": Recipe("llama", kind_of_matrices(Kind.Q4_0), scored, PIECES),
    "llama-mixed": Recipe("llama", mixed, unigram, PIECES, WIDE),
    "llama-factors": Recipe(
        "llama", kind_of_matrices(Kind.IQ4_NL), word_piece, 27, {"rope": "divided"}
    ),
    "llama-fused": Recipe(
        "llama", kind_of_matrices(Kind.MXFP4), byte_level, LETTERS, version=2, changed=fused
    ),
    "llama-parts": Recipe("llama", kind_of_matrices(Kind.F16), scored, PIECES, parts=4),
    "qwen2": Recipe(
        "qwen2", kind_of_matrices(Kind.Q8_0), lambda w: byte_level(w, "qwen2"), LETTERS
    ),
    "qwen2-spaced": Recipe("qwen2", kind_of_matrices(Kind.BF16), spaced, PIECES),
    "gpt_neox": Recipe("gpt_neox", kind_of_matrices(Kind.Q8_0), byte_level, LETTERS),
    "falcon": Recipe("falcon", f32, byte_level, LETTERS, {**TWO_NORMS, "num_kv_heads": 2}),
    "stablelm": Recipe("stablelm", kind_of_matrices(Kind.Q4_0), byte_level, LETTERS),
    "starcoder2": Recipe("starcoder2", kind_of_matrices(Kind.F16), byte_level, LETTERS),
    "bert": Recipe("bert", f32, word_piece, 27),
    "bert-rank": Recipe("bert-classifier", f32, unigram, PIECES, {"pooling": 4}),
    "modernbert": Recipe("modernbert", kind_of_matrices(Kind.F16), byte_level, LETTERS),
    "phi": Recipe("phi", kind_of_matrices(Kind.Q5_0), byte_level, LETTERS),
}
"""By a name of ours."""
