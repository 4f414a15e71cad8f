"""The metadata of a GGUF file that describes a tokenizer: what reading makes one of again.

Byte-level BPE whose rule of splitting is a row of ``ROWS`` can be described. What is described is
read back and must give the same ids, or it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ptir.checkpoint.json_text import parse_json_object
from ptir.errors import CheckpointError
from ptir.text.gguf_tokenizer import tokenizer_of
from ptir.text.gguf_tokenizer.fields import PREFIX
from ptir.text.gguf_tokenizer.merges import MERGES
from ptir.text.gguf_tokenizer.pre_tokenizers import GPT2, ROWS, PreTokenizer
from ptir.text.gguf_tokenizer.special import KEYS
from ptir.text.gguf_tokenizer.vocabulary import TOKENS, TYPES, TokenType
from ptir.text.tokenizer import Tokenizer

ENDING: Final = ("eos", "eot", "eom")
"""The uses that the first, second and third token that ends a text are written as."""
PROBES: Final = (
    "Once upon a time, there's 1 of 23 or 45678.",
    "  two  spaces\t\n\n\n and\r\nlines  \n",
    "naïve Ångström e\u0301 猫 🐈‍⬛ I'LL DON'T we've",
    "def f(x): return {x['a']: 0x1F} # ...!!!\u00a0\u3000x",
)
"""Texts whose ids must be the same of the described tokenizer."""
_ADVICE: Final = "convert to a folder or to a .safetensors file, which carry any tokenizer"


def described_tokenizer(text: str, vocabulary: int, ids: Mapping[str, int]) -> dict[str, Any]:
    """The metadata that describes a ``tokenizer.json``, for a model with so many ids.

    ``ids`` are single tokens by their use (``bos``, ``eos``, ``pad`` and so on). Raises
    ``CheckpointError`` for a tokenizer that GGUF files cannot describe.
    """
    given, whole = Tokenizer.from_json(text), parse_json_object(text, "tokenizer.json")
    row, model = _row(whole), whole["model"]
    metadata = {
        f"{PREFIX}model": "gpt2",
        f"{PREFIX}pre": row.names[0],
        **_tokens(whole, vocabulary),
        MERGES: [one if isinstance(one, str) else " ".join(one) for one in model["merges"]],
        **_around(given, dict(ids)),
    }
    _check(given, metadata)
    return metadata


def _tokens(whole: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """All tokens by id, and their types; ids without a token are called so, and are not used."""
    import numpy as np

    named = {index: (token, TokenType.NORMAL) for token, index in whole["model"]["vocab"].items()}
    for one in whole.get("added_tokens", []):
        kind = TokenType.CONTROL if one["special"] else TokenType.USER_DEFINED
        named[one["id"]] = one["content"], kind
    count = max(vocabulary, max(named, default=-1) + 1)
    rows = [named.get(n, (f"[PAD{n}]", TokenType.UNUSED)) for n in range(count)]
    return {
        TOKENS: [token for token, _ in rows],
        TYPES: np.array([int(kind) for _, kind in rows], np.int32),
    }


def _around(given: Tokenizer, ids: dict[str, int]) -> dict[str, Any]:
    """Single tokens' keys, and whether a text is given one in front and one behind."""
    bare = given.encode("a", add_special_tokens=False)
    full = given.encode("a")
    at = next((n for n in range(len(full)) if full[n : n + len(bare)] == bare), 0)
    front, back = full[:at], full[at + len(bare) :]
    if len(front) > 1 or len(back) > 1:
        raise CheckpointError(
            f"tokenizer.json: puts the tokens {front} in front of a text and {back} behind it;"
            f" GGUF files have one each: {_ADVICE}"
        )
    if front:
        ids["bos"] = front[0]
    if back:
        ids["eos"] = back[0]
    found: dict[str, Any] = {PREFIX + KEYS[use][0]: one for use, one in ids.items()}
    return found | {
        f"{PREFIX}add_bos_token": bool(front),
        f"{PREFIX}add_eos_token": bool(back),
    }


def _row(whole: Mapping[str, Any]) -> PreTokenizer:
    """The row that splits text as a ``tokenizer.json`` does."""
    model = whole.get("model", {})
    kind = model.get("type", "BPE")
    splits, composes = _splits(whole.get("pre_tokenizer")), _composes(whole.get("normalizer"))
    if kind == "BPE" and splits is not None and composes is not None:
        wanted = splits, composes, bool(model.get("ignore_merges"))
        for row in ROWS:
            if row.byte_level and (row.splits, row.composes, row.ignore_merges) == wanted:
                return row
    raise CheckpointError(
        f"tokenizer.json: {kind} with this way of splitting text is none that GGUF files are"
        f" written with here (byte-level BPE by a rule that has a name is): {_ADVICE}"
    )


def _splits(given: Any) -> tuple[str, ...] | None:
    """The expressions of a pre-tokenizer that ends with bytes; None for any other."""
    parts: Sequence[Any] = given.get("pretokenizers", [given]) if isinstance(given, dict) else []
    if not parts or parts[-1].get("type") != "ByteLevel" or parts[-1].get("add_prefix_space"):
        return None
    found = [_split(part) for part in parts[:-1]]
    if any(one is None for one in found):
        return None
    last = [GPT2] if parts[-1].get("use_regex", True) else []
    return tuple([*(one for one in found if one is not None), *last])


def _split(part: Mapping[str, Any]) -> str | None:
    if part.get("type") == "Digits" and part.get("individual_digits"):
        return r"\p{N}"
    plain = part.get("behavior") == "Isolated" and not part.get("invert")
    pattern = part.get("pattern", {})
    return pattern.get("Regex") if part.get("type") == "Split" and plain else None


def _composes(given: Any) -> bool | None:
    if given is None or given == {"type": "Sequence", "normalizers": []}:
        return False
    return True if given == {"type": "NFC"} else None


def _check(given: Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Refuse what gives other ids when it is read back."""
    again = tokenizer_of(metadata).tokenizer
    for probe in PROBES:
        found, wanted = again.encode(probe), given.encode(probe)
        if found != wanted:
            raise CheckpointError(
                f"tokenizer.json: as a GGUF file describes it {json.dumps(probe)} has other ids"
                f" ({found[:8]} for {wanted[:8]}): {_ADVICE}"
            )
