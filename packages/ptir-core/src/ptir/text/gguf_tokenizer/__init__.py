"""Tokenizers from the metadata of GGUF files, with the ids that the models' own ones give.

``tokenizer.ggml.model`` says which kind of tokenizer it is (the table ``MODELS``), and
``tokenizer.ggml.pre`` by which rule a byte-level one splits text into words (the table ``ROWS``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ptir.errors import CheckpointError, unknown_name
from ptir.text.gguf_tokenizer.fields import AGAIN, PREFIX, Metadata, flag, text, whole
from ptir.text.gguf_tokenizer.models import MODELS, REFUSED, Adds, Described
from ptir.text.gguf_tokenizer.special import (
    KEYS,
    LOOKED_UP,
    Strip,
    roles_of,
    special_ids,
    strip_of,
)
from ptir.text.gguf_tokenizer.vocabulary import TokenType, find_tokens, read_vocabulary
from ptir.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

__all__ = ["MODELS", "REFUSED", "Adds", "GgufTokenizer", "ends_of", "tokenizer_of"]

HUGGINGFACE: Final = "tokenizer.huggingface.json"
"""The key of a whole ``tokenizer.json``, which few files have."""

TEMPLATE: Final = "tokenizer.chat_template"
"""The key of the chat template, and with a name behind it the key of others."""


@dataclass(frozen=True)
class GgufTokenizer:
    """A GGUF file's ``tokenizer`` and what else its metadata says of text.

    ``special`` has the ids of single tokens by their use (``bos``, ``eos``, ``eot``, ``unk``,
    ``pad`` and so on), ``ends`` the ids that end a generation, ``adds`` which tokens encoding puts
    around a text, ``chat_template`` the template's text and ``chat_templates`` others by name.
    """

    tokenizer: Tokenizer
    special: Mapping[str, int]
    ends: frozenset[int]
    adds: Adds
    chat_template: str | None
    chat_templates: Mapping[str, str]


def tokenizer_of(metadata: Metadata, *, portable: bool = False) -> GgufTokenizer:
    """The tokenizer that a GGUF file's ``metadata`` describes; raises ``CheckpointError``.

    One that is ``portable`` can be written as a ``tokenizer.json``: SentencePiece's table of
    characters is then walked as ``tokenizers`` does it, which differs in decomposed letters.

    A key's value is a number, a truth value, text (or its bytes), or a sequence of numbers or of
    text. Besides the keys of tokenizers, ``general.name`` and ``general.architecture`` are read:
    only they tell that a model's tokens take white space with them. Kinds of tokenizers and rules
    of splitting that are not known are refused by name.
    """
    model = _model(metadata)
    vocabulary = read_vocabulary(metadata)
    roles = roles_of(metadata, vocabulary, model)
    described = Described(metadata, model, vocabulary, roles, portable)
    adds = _adds(metadata, model)
    return GgufTokenizer(
        tokenizer=_own(described) or Tokenizer(_finished(described, adds)),
        special=roles.ids,
        ends=roles.ends,
        adds=adds,
        chat_template=text(metadata, TEMPLATE),
        chat_templates=_named_templates(metadata),
    )


def ends_of(metadata: Metadata) -> frozenset[int]:
    """The ids that end a generation, as in ``tokenizer_of``, found without building a tokenizer.

    Raises ``CheckpointError`` for kinds of tokenizers that are not known and ids of no token.
    """
    model = _model(metadata)
    return roles_of(metadata, find_tokens(metadata, LOOKED_UP), model).ends


def _model(metadata: Metadata) -> str:
    key = f"{PREFIX}model"
    name = text(metadata, key)
    if name is None:
        raise CheckpointError(
            f"{key}: missing, so nothing says which kind of tokenizer it is; {AGAIN}"
        )
    if name in REFUSED:
        raise CheckpointError(
            f"{key}: a tokenizer of {name!r} cannot be built: {REFUSED[name]}; known: "
            + ", ".join(MODELS)
        )
    if name not in MODELS:
        raise CheckpointError(f"{key}: {unknown_name('kind of tokenizer', name[:80], MODELS)}")
    return name


def _adds(metadata: Metadata, model: str) -> Adds:
    """What the file says to add; of BERT and Gemma 4 files say wrong things, so those are fixed."""
    usual = MODELS[model].adds(metadata)
    if model == "bert":
        return usual
    said = {
        use: flag(metadata, f"{PREFIX}add_{use}_token", one) for use, one in usual._asdict().items()
    }
    return Adds(**said | ({"bos": True} if model == "gemma4" else {}))


def _finished(described: Described, adds: Adds) -> tokenizers.Tokenizer:
    """The built tokenizer with its special tokens, and what goes around a text."""
    try:
        inner = MODELS[described.model].build(described)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises nothing more specific
        raise CheckpointError(f"{PREFIX}tokens: make no tokenizer: {error}; {AGAIN}") from error
    _add_tokens(inner, described)
    _surround(inner, described, adds)
    return inner


def _surround(inner: tokenizers.Tokenizer, described: Described, adds: Adds) -> None:
    """Have encoding put the tokens in front of a text and behind it that belong there.

    Between two texts BERT has the token behind once, and RoBERTa, whose name for it is ``</s>``,
    twice. Only BERT tells the texts' tokens apart, in models that have a vector for either kind.
    """
    from tokenizers.processors import TemplateProcessing

    front = ["bos"] if adds.bos else []
    back = ["sep"] if described.model == "bert" else ["eos"] if adds.eos else []
    ids, names = described.roles.ids, described.vocabulary.tokens
    for use in front + back:
        if use not in ids:
            raise CheckpointError(
                f"{PREFIX}add_{use}_token: holds for {described.model!r}, and"
                f" {PREFIX}{KEYS[use][0]} does not say which token that is; {AGAIN}"
            )
    if front or back:
        added = [{"id": u, "ids": [ids[u]], "tokens": [names[ids[u]]]} for u in front + back]
        twice = back if back and names[ids[back[0]]] == "</s>" else []
        kind = 1 if described.model == "bert" and _kinds(described) > 1 else 0
        second = [f"{one}:{kind}" for one in ("$B", *back)]
        inner.post_processor = TemplateProcessing(
            single=[*front, "$A", *back],
            pair=[*front, "$A", *back, *twice, *second],
            special_tokens=added,
        )


def _kinds(described: Described) -> int:
    """Into how many kinds a model tells tokens apart: BERT's two where the file does not say."""
    found = whole(described.metadata, f"{PREFIX}token_type_count")
    return 2 if found is None else found


def _add_tokens(inner: tokenizers.Tokenizer, described: Described) -> None:
    """Have special and user-defined tokens found in a text before it is split."""
    from tokenizers import AddedToken

    special = special_ids(described.vocabulary, described.roles)
    defined = described.vocabulary.of_type(TokenType.USER_DEFINED)
    strip = strip_of(described.metadata) or Strip("", ())

    def added(index: int, control: bool) -> AddedToken:
        name = inner.id_to_token(index)
        right = control and strip.but is not None and name not in strip.but
        left = name in strip.left
        return AddedToken(name, special=control, normalized=False, lstrip=left, rstrip=right)

    inner.add_special_tokens([added(index, True) for index in sorted(special)])
    inner.add_tokens([added(index, False) for index in defined if index not in special])


def _own(described: Described) -> Tokenizer | None:
    """The model's own tokenizer where the file carries it whole."""
    own = text(described.metadata, HUGGINGFACE)
    if own is None:
        return None
    found, count = Tokenizer.from_json(own), len(described.vocabulary.tokens)
    if found.vocab_size > count:
        raise CheckpointError(
            f"{HUGGINGFACE}: has {found.vocab_size} tokens, and {PREFIX}tokens {count}; {AGAIN}"
        )
    return found


def _named_templates(metadata: Metadata) -> dict[str, str]:
    keys = [key for key in metadata if key.startswith(f"{TEMPLATE}.")]
    return {key[len(TEMPLATE) + 1 :]: text(metadata, key) or "" for key in keys}
