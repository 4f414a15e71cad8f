"""The metadata of a GGUF file that describes a tokenizer: what reading makes one of again.

Byte-level BPE whose rule of splitting is a row of ``ROWS``, BPE over a text whose spaces are ``▁``,
BERT's WordPiece and SentencePiece's unigrams can be described. What is described is read back and
must give the same ids, or it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ptir.checkpoint.json_text import parse_json_object
from ptir.errors import CheckpointError
from ptir.text.gguf_tokenizer import tokenizer_of
from ptir.text.gguf_tokenizer.charsmap import CHARSMAP
from ptir.text.gguf_tokenizer.fields import PREFIX
from ptir.text.gguf_tokenizer.merges import MERGES, SCORES
from ptir.text.gguf_tokenizer.pre_tokenizers import GPT2, ROWS, PreTokenizer
from ptir.text.gguf_tokenizer.sentencepiece import (
    ADVICE,
    described_merges,
    merges_spaces,
    refuse,
)
from ptir.text.gguf_tokenizer.special import KEYS
from ptir.text.gguf_tokenizer.vocabulary import SPACE, TOKENS, TYPES, TokenType
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


def described_tokenizer(
    text: str,
    vocabulary: int,
    ids: Mapping[str, int],
    *,
    names: Mapping[str, str] | None = None,
    kinds: int | None = None,
    model_file: Path | None = None,
) -> dict[str, Any]:
    """The metadata that describes a ``tokenizer.json``, for a model with so many ids.

    ``ids`` are single tokens by their use (``bos``, ``eos``, ``pad`` and so on), ``names`` the
    file's other keys that tokenizers depend on, ``model_file`` the ``tokenizer.model`` beside it,
    whose scores merges of SentencePiece have. An encoder of text gives the number of ``kinds`` of
    tokens that it tells apart, and pairs of texts are described too. Raises ``CheckpointError``
    for a tokenizer that GGUF files cannot describe.
    """
    given, whole = Tokenizer.from_json(text), parse_json_object(text, "tokenizer.json")
    names = names or {}
    kind = str(whole.get("model", {}).get("type", "BPE"))
    spaced = kind == "BPE" and merges_spaces(whole)
    if spaced:
        architecture = names.get("general.architecture", "")
        found = described_merges(whole, _tokens(whole, vocabulary), architecture, model_file)
    else:
        found = _KINDS.get(kind, _byte_level)(whole, vocabulary)
    metadata = {**found, **_around(given, dict(ids))}
    if kinds is not None:
        metadata[f"{PREFIX}token_type_count"] = max(kinds, 1)
        metadata |= _separator(given)
    again = tokenizer_of({**metadata, **names}).tokenizer
    if spaced:
        _check_added(given, again, found[TYPES].tolist())
    _check(given, again, metadata, kinds)
    return metadata


def _byte_level(whole: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    row, model = _row(whole), whole["model"]
    return {
        f"{PREFIX}model": "gpt2",
        f"{PREFIX}pre": row.names[0],
        **_tokens(whole, vocabulary),
        MERGES: [one if isinstance(one, str) else " ".join(one) for one in model["merges"]],
    }


def _word_piece(whole: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """Pieces that begin a word are marked, instead of those that do not."""
    normalizer = whole.get("normalizer") or {}
    for key in ("clean_text", "handle_chinese_chars"):
        if normalizer.get(key, True) is False:
            raise CheckpointError(
                f"tokenizer.json: {key} false of WordPiece is nothing that files say: {ADVICE}"
            )
    lower = bool(normalizer.get("lowercase", False))
    strip = normalizer.get("strip_accents")
    found = {
        f"{PREFIX}model": "bert",
        f"{PREFIX}pre": "default",
        f"{PREFIX}normalizer.lowercase": lower,
        f"{PREFIX}normalizer.strip_accents": lower if strip is None else bool(strip),
        **_tokens(whole, vocabulary),
    }
    prefix = str(whole["model"].get("continuing_subword_prefix", "##"))

    def marked(token: str) -> str:
        return token.removeprefix(prefix) if token.startswith(prefix) else f"{SPACE}{token}"

    pairs = zip(found[TOKENS], found[TYPES].tolist(), strict=True)
    found[TOKENS] = [marked(one) if kind == TokenType.NORMAL else one for one, kind in pairs]
    return found | _unknown(whole, str(whole["model"].get("unk_token")))


def _unigram(whole: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """SentencePiece's pieces and their scores, and what it makes of characters and of spaces."""
    import base64

    import numpy as np

    model = whole["model"]
    pieces = {token: number for number, (token, _) in enumerate(model["vocab"])}
    rows = _tokens({**whole, "model": {"vocab": pieces}}, vocabulary)
    scores = np.full(len(rows[TOKENS]), _NEVER, np.float32)
    scores[: len(pieces)] = [score for _, score in model["vocab"]]
    parts = _parts(whole.get("normalizer"), "normalizers")
    tables = [one["precompiled_charsmap"] for one in parts if one.get("type") == "Precompiled"]
    table = {CHARSMAP: np.frombuffer(base64.b64decode(tables[0]), np.uint8)} if tables else {}
    splits = _parts(whole.get("pre_tokenizer"), "pretokenizers")
    spaces = [one for one in splits if one.get("type") == "Metaspace"]
    front = any(one.get("prepend_scheme", "always") != "never" for one in spaces)
    return {
        f"{PREFIX}model": "t5",
        f"{PREFIX}pre": "default",
        **rows,
        SCORES: scores,
        f"{PREFIX}add_space_prefix": front,
        f"{PREFIX}remove_extra_whitespaces": len(splits) > 1 or len(parts) > 1,
        **table,
        **_unknown(whole, model["vocab"][model["unk_id"]][0]),
    }


_KINDS: Final[Mapping[str, Callable[[Mapping[str, Any], int], dict[str, Any]]]] = {
    "WordPiece": _word_piece,
    "Unigram": _unigram,
}
"""By the type of a ``tokenizer.json``'s model; all others are byte-level."""
_NEVER: Final = -10000.0
"""The score of an id without a piece."""


def _parts(given: Any, key: str) -> list[Mapping[str, Any]]:
    """The steps of a sequence, or the one that stands alone."""
    if not isinstance(given, dict):
        return []
    found = given.get(key, [given])
    return [one for one in found if isinstance(one, dict)]


def _unknown(whole: Mapping[str, Any], token: str) -> dict[str, int]:
    vocabulary = whole["model"]["vocab"]
    if isinstance(vocabulary, dict):
        return {PREFIX + KEYS["unk"][0]: vocabulary[token]} if token in vocabulary else {}
    return {PREFIX + KEYS["unk"][0]: int(whole["model"]["unk_id"])}


def _separator(given: Tokenizer) -> dict[str, Any]:
    """The token that stands between two texts; whether it stands there beside the one behind."""
    ids = given.encode("a")
    if not ids or ids[-1] not in given.special_ids:
        return {}
    pair = given.encode_text("a", "a").ids
    return {
        PREFIX + KEYS["sep"][0]: ids[-1],
        f"{PREFIX}add_sep_token": pair.count(ids[-1]) > 2,
    }


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
            f" GGUF files have one each: {ADVICE}"
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
        " written with here (byte-level BPE by a rule that has a name is, and so are WordPiece and"
        f" unigrams): {ADVICE}"
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


def _check_added(given: Tokenizer, again: Tokenizer, types: Sequence[int]) -> None:
    """Refuse where other tokens are found before text is merged, or are found otherwise."""
    one, other = given.added_tokens(), again.added_tokens()
    one = {index: how for index, how in one.items() if types[index] != TokenType.NORMAL}
    for index in sorted({*one, *other}):
        wanted, found = (each.get(index, {}) for each in (one, other))
        token = given.token(index)
        if not wanted or not found:
            told = "is found in a text as it stands" if found else "is merged of a text"
            refuse(
                f"token {json.dumps(token)} ({index})",
                f"{told} as a GGUF file describes it, and otherwise by its own",
            )
        for field in wanted:
            if wanted[field] != found[field]:
                refuse(
                    f"added token {json.dumps(token)} with {field} {str(wanted[field]).lower()}",
                    f"a GGUF file says {str(found[field]).lower()}: {_STRIPPED[field]}",
                )


_STRIPPED: Final = {
    "single_word": "nothing there says it of a token",
    "normalized": "nothing there says it of a token, and this one is changed",
    "lstrip": "only of models known by name some tokens take white space",
    "rstrip": "only of models known by name, such as phi-3, tokens take white space; a file has the"
    " name of the folder",
}
"""By field of an added token: why a file says no other."""


def _check(
    given: Tokenizer, again: Tokenizer, metadata: Mapping[str, Any], kinds: int | None
) -> None:
    """Refuse what gives other ids when it is read back, and for an encoder other kinds."""
    mask = metadata.get(PREFIX + KEYS["mask"][0])
    masked = () if mask is None else (f"Paris is the {given.token(mask)} of France.",)
    for probe in (*PROBES, *masked):
        found, wanted = again.encode(probe), given.encode(probe)
        if found != wanted:
            raise CheckpointError(
                f"tokenizer.json: as a GGUF file describes it {json.dumps(probe)} has other ids"
                f" ({found[:8]} for {wanted[:8]}): {ADVICE}"
            )
    if kinds is None:
        return
    one, other = (each.encode_text(PROBES[0], PROBES[0]) for each in (again, given))
    if one.ids != other.ids or (kinds > 1 and one.kinds != other.kinds):
        raise CheckpointError(
            "tokenizer.json: as a GGUF file describes it two texts that are read together have"
            f" other marks than with it: {ADVICE}"
        )
