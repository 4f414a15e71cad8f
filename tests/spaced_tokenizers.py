"""Tokenizers that merge text whose spaces are ``▁``: as files of Llama 2, Gemma, Phi-3 say it."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

REPOSITORY: Final = Path(__file__).resolve().parents[1]
BYTES: Final = tuple(f"<0x{byte:02X}>" for byte in range(256))
LLAMA: Final = ("<unk>", "<s>", "</s>")
GEMMA: Final = ("<pad>", "<eos>", "<bos>", "<unk>")
OTHERS: Final = (
    "привет мир и ёлка, Ελλάδα, עברית שלום, العربية, हिन्दी में, ภาษาไทย, தமிழ்",
    "中文测试和東京タワーの한국어 naïve résumé Việt straße 🚀👍🏽 x = y² + ½; don't we'll I'VE",
    "def f(x):\n\treturn {x['a']: 0x1F}  # ...!!!    <td>  </td>\n\n\nclass A:\n        pass",
)  # fmt: skip
"""What the pages do not have: other scripts, runs of white space."""
LONGEST_RUN: Final = 6
"""Of spaces and of lines, in Gemma's style."""


@functools.cache
def trained(style: str, size: int = 900) -> str:
    """The ``tokenizer.json`` of a style: ``llama`` (and ``phi``), ``gemma``, ``unknown``."""
    gemma, fallback = style == "gemma", style != "unknown"
    first = (*(GEMMA if gemma else LLAMA), *(BYTES if fallback else ()))
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*first], limit_alphabet=220, show_progress=False
    )
    pages = [page.read_text("utf-8") for page in sorted((REPOSITORY / "docs").glob("*.md"))]
    lines = [line for page in pages for line in page.splitlines()]
    inner.train_from_iterator(
        [line for line in [*lines, *OTHERS * 9] if "<0x" not in line], trainer
    )
    return _finished(style, json.loads(inner.to_str()))


def _finished(style: str, whole: dict[str, Any]) -> str:
    gemma = style == "gemma"
    names = GEMMA if gemma else LLAMA
    whole["added_tokens"] = [one for one in whole["added_tokens"] if one["content"] in names]
    whole["pre_tokenizer"] = None
    whole["model"]["byte_fallback"] = style != "unknown"
    runs = []
    if gemma:  # longest first, as the merges of tokens of one score are sorted
        runs = [mark * count for mark in "▁\n" for count in range(2, LONGEST_RUN + 1)]
        vocabulary, merges = whole["model"]["vocab"], whole["model"]["merges"]
        kept = [pair for pair in merges if "".join(pair) not in runs]
        for name in ("\n", *runs):
            vocabulary.setdefault(name, len(vocabulary))
        made = [
            [mark * left, mark * (count - left)]
            for count in range(LONGEST_RUN, 1, -1)
            for left in range(count - 1, 0, -1)
            for mark in "▁\n"
        ]
        whole["model"]["merges"] = [*made, *kept]
    inner = tokenizers.Tokenizer.from_str(json.dumps(whole))
    spaces = normalizers.Replace(" ", "▁")
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if gemma:
        inner.normalizer = spaces
        inner.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        inner.add_tokens([AddedToken(one, normalized=False) for one in (*runs, "<td>", "</td>")])
        inner.add_special_tokens(["<start_of_turn>", "<end_of_turn>"])
    else:
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        parts.append(decoders.Strip(" ", 1, 0))
    if style == "phi":
        stripped = ("</s>", "<|user|>", "<|assistant|>", "<|end|>")
        inner.add_special_tokens([AddedToken(n, rstrip=True, normalized=False) for n in stripped])
        inner.add_special_tokens(["<|endoftext|>"])
    inner.decoder = decoders.Sequence(parts)
    begin = "<bos>" if gemma else "<s>"
    inner.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, inner.token_to_id(begin))]
    )
    return inner.to_str()


def marks(style: str) -> tuple[str, ...]:
    """Special and added tokens of a style, to stand in texts."""
    return {
        "gemma": ("<bos>", "<end_of_turn>", "<td>", "<unk>"),
        "phi": ("<s>", "<|user|>", "<|end|> ", "</s>\n", "<|endoftext|>"),
    }.get(style, ("<s>", "</s>", "<unk>"))


def joined(text: str, scores: Mapping[str, float]) -> list[str]:
    """SentencePiece's rule, slow and short: of neighbours that are a token the best score first.

    Of equal ones it is the leftmost.
    """
    parts = list(text)
    while True:
        pairs = enumerate(itertools.pairwise(parts))
        found = [(-scores[a + b], at) for at, (a, b) in pairs if a + b in scores]
        if not found:
            return parts
        at = min(found)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
