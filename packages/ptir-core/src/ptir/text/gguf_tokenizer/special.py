"""What single tokens are for: which begin and end a text, and which end a generation.

Old files lack the ids of tokens that end a turn, so those are also looked up by name, as llama.cpp
looks them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ptir.errors import CheckpointError
from ptir.text.gguf_tokenizer.fields import AGAIN, PREFIX, Metadata, text, whole
from ptir.text.gguf_tokenizer.vocabulary import TokenType, Vocabulary

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id", "separator_token_id"),
    "pad": ("padding_token_id",),
    "cls": ("cls_token_id",),
    "mask": ("mask_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}
"""The keys of each use of a token, the first that a file has counting (one is misspelled there)."""

DEFAULTS: Final[Mapping[str, Mapping[str, int]]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "bert": {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
}
"""By tokenizer model: the ids where a file does not say."""

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "eom": ("<|eom_id|>",),
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>",
                "▁<PRE>", "<|code_prefix|>", "<|prefix|>"),
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>",
                "▁<SUF>", "<|code_suffix|>", "<|suffix|>"),
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>",
                "▁<MID>", "<|code_middle|>", "<|middle|>"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
"""The names of tokens by which a use is found that no key says."""

ENDS: Final = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
"""The names of tokens that end a generation wherever they are in a vocabulary."""

ENDING: Final = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
"""The uses of tokens that end a generation."""

NO_ENDS: Final = (
    ("<|end|>", ("<|return|>", "<|call|>")),
    ("<|end|>", ("<|return|>", "<|calls|>")),
    ("<|end|>", ("<|flush|>", "<|call|>")),
    ("<|end|>", ("<|flush|>", "<|calls|>")),
    ("</s>", ("<|tool_response>",)),
    ("</s>", ("<|plamo:eos|>",)),
)
"""Names that end nothing where others do: ``<|end|>`` closes a part of an answer of gpt-oss."""


class Roles(NamedTuple):
    """What tokens are for: the ``ids`` by use, and which ones end a generation (``ends``).

    ``control`` has those that are no text whatever their type says.
    """

    ids: Mapping[str, int]
    ends: frozenset[int]
    control: frozenset[int]


def roles_of(metadata: Metadata, vocabulary: Vocabulary, model: str) -> Roles:
    """What the tokens are for; raises ``CheckpointError`` for an id that no token has."""
    named = {use: _named(vocabulary, names) for use, names in NAMES.items()}
    known = _known(metadata, vocabulary, model)
    found = {use: one for use, one in named.items() if one is not None and use not in known}
    ids = found | known
    by_use = {ids[use] for use in ENDING if use in ids}
    by_name = {vocabulary.ids[name] for name in ENDS if name in vocabulary.ids}
    ends = _without(by_use | by_name, vocabulary)
    return Roles(ids, ends, frozenset((by_name & ends) | set(found.values())))


LOOKED_UP: Final = frozenset(ENDS).union(*NAMES.values())
"""All names that are looked up."""


def _named(vocabulary: Vocabulary, names: Iterable[str]) -> int | None:
    return next((vocabulary.ids[name] for name in names if name in vocabulary.ids), None)


def _known(metadata: Metadata, vocabulary: Vocabulary, model: str) -> dict[str, int]:
    """The ids that keys give, or else the model's defaults, where they are tokens."""
    count = len(vocabulary.tokens)
    ids = {use: one for use, one in DEFAULTS.get(model, {}).items() if one < count}
    for use, names in KEYS.items():
        key = next((PREFIX + name for name in names if PREFIX + name in metadata), "")
        found = whole(metadata, key)
        if found is None:
            continue
        if 0 <= found < count:
            ids[use] = found
        elif use != "pad":  # files are about whose padding lies past the end; nothing here pads
            raise CheckpointError(
                f"{key}: {found} is the id of no token; there are {count}, from 0 on; {AGAIN}"
            )
    if model == "bert" and f"{PREFIX}bos_token_id" not in metadata and "cls" in ids:
        ids["bos"] = ids["cls"]
    return ids


def _without(ends: set[int], vocabulary: Vocabulary) -> frozenset[int]:
    names = {vocabulary.tokens[index] for index in ends}
    kept = {name for name, others in NO_ENDS if names.issuperset(others)}
    return frozenset(index for index in ends if vocabulary.tokens[index] not in kept)


class Strip(NamedTuple):
    """White space that special tokens take with them: which file says so, and which tokens do.

    A file is meant whose ``key`` holds one of ``parts``. Tokens called ``left`` take what is on
    their left; where ``but`` is a tuple, all special tokens except those take what is on their
    right.
    """

    key: str
    parts: tuple[str, ...]
    left: tuple[str, ...] = ()
    but: tuple[str, ...] | None = None


STRIPS: Final = (
    Strip(f"{PREFIX}pre", ("jina-v2-de", "jina-v2-es", "jina-v2-code"), left=("<mask>",)),
    Strip("general.architecture", ("modern-bert",), left=("[MASK]",)),
    Strip("general.architecture", ("bert",), left=("<mask>",)),
    Strip("general.name", ("phi-3", "phi3"), but=("<unk>", "<s>", "<|endoftext|>")),
    Strip("general.name", ("modern-bert",), left=("[MASK]",)),
)
"""No key says it, so models are known by what other keys say."""


def strip_of(metadata: Metadata) -> Strip | None:
    """The row of the model that ``metadata`` describes, if it has one."""
    said = {row.key: (text(metadata, row.key) or "").lower() for row in STRIPS}
    return next((row for row in STRIPS if any(p in said[row.key] for p in row.parts)), None)


def special_ids(vocabulary: Vocabulary, roles: Roles) -> frozenset[int]:
    """The ids of tokens that are no text: control tokens, the unknown token, what ends."""
    return roles.control.union(vocabulary.of_type(TokenType.CONTROL, TokenType.UNKNOWN))
