"""What GGUF metadata says of tokenizers: kinds, types, ids, ends, templates; what is refused."""

import functools
import random
import struct
from typing import Any

import numpy as np
import pytest
import tokenizers
from gguf_files import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    converted,
    gpt2_metadata,
    keyed,
    pages,
    trained,
    without,
)  # fmt: skip

from awkward_text import awkward_lines
from ptir.errors import CheckpointError
from ptir.text.gguf_tokenizer import MODELS, REFUSED, Adds, ends_of, tokenizer_of
from ptir.text.gguf_tokenizer.charsmap import CHARSMAP, charsmap_of
from ptir.text.gguf_tokenizer.special import ENDS, NAMES
from together import together


@functools.cache
def word_piece() -> tokenizers.Tokenizer:
    own = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    own.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    own.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    own.decoder = tokenizers.decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=1200, special_tokens=special, show_progress=False
    )
    own.train_from_iterator(pages(), trainer)
    own.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return own


def bert_metadata(**others: Any) -> dict[str, Any]:
    """``word_piece`` as a converter writes it: a mark on what begins a word, none on the rest."""
    ids = word_piece().get_vocab()
    names = sorted(ids, key=ids.__getitem__)
    phantom = [name if name.startswith("[") and len(name) > 2 else
               name[2:] if name.startswith("##") else f"▁{name}" for name in names]  # fmt: skip
    return keyed(
        model="bert", pre="bert-bge", tokens=phantom, unknown_token_id=1, cls_token_id=2,
        token_type=[CONTROL] * 5 + [NORMAL] * (len(names) - 5), seperator_token_id=3,
        padding_token_id=0, mask_token_id=4,
    ) | keyed(**others)  # fmt: skip


def test_word_pieces_are_those_of_the_trained_tokenizer() -> None:
    built = tokenizer_of(bert_metadata())
    for line in awkward_lines(1500, 11, "[MASK]", "[SEP]"):
        assert built.tokenizer.encode(line) == word_piece().encode(line).ids, line
    ids = built.tokenizer.encode("The portable tensors")
    assert built.tokenizer.decode(ids) == "the portable tensors"
    assert built.adds == Adds(bos=True, sep=True)


def test_word_pieces_keep_case_and_accents_where_the_file_says_so() -> None:
    kept = tokenizer_of(bert_metadata(**{"normalizer.lowercase": False})).tokenizer
    own = tokenizers.Tokenizer.from_str(word_piece().to_str())
    own.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    lower = tokenizer_of(bert_metadata(**{"normalizer.strip_accents": False})).tokenizer
    for line in awkward_lines(200, 12):
        assert kept.encode(line) == own.encode(line).ids
    own.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    for line in awkward_lines(200, 12):
        assert lower.encode(line) == own.encode(line).ids


def plain(*names: str, **others: Any) -> dict[str, Any]:
    """A vocabulary of control tokens called ``names``, behind ``a``."""
    return keyed(
        model="gpt2", pre="gpt-2", tokens=["a", *names], merges=[],
        token_type=[NORMAL] + [CONTROL] * len(names),
    ) | keyed(**others)  # fmt: skip


@together()
@pytest.mark.parametrize(
    ("names", "said", "ends"),
    [
        (["<s>", "</s>"], {}, {2}),
        (["x", "y", "z"], {"eos_token_id": 1, "eot_token_id": 2, "eom_token_id": 3}, {1, 2, 3}),
        (["<|im_end|>", "<|endoftext|>", "x"], {"eos_token_id": 3}, {1, 2, 3}),
        (["<|return|>", "<|call|>", "<|end|>"], {"eos_token_id": 1}, {1, 2}),
        (["<|flush|>", "<|calls|>", "<|end|>"], {}, {1, 2}),
        (["<|return|>", "<|end|>"], {}, {1, 2}),
        (["<eos>", "<turn|>", "<|tool_response>", "</s>"], {"eos_token_id": 1}, {1, 2, 3}),
        (["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"], {}, {1, 2, 3}),
        (["x", "<|fim_pad|>"], {"fim_pad_token_id": 1}, {1}),
        (["<|fim_prefix|>", "<MID>"], {}, set()),
        (["x"], {}, set()),
    ],
)
def test_what_ends_a_generation(names: list[str], said: dict[str, Any], ends: set[int]) -> None:
    assert tokenizer_of(plain(*names, **said)).ends == ends == ends_of(plain(*names, **said))


@together()
@pytest.mark.parametrize("name", [*ENDS, *(name for names in NAMES.values() for name in names)])
def test_tokens_known_by_name_are_special_whatever_their_type(name: str) -> None:
    built = tokenizer_of(plain(name, token_type=[NORMAL, NORMAL]))
    assert built.tokenizer.special_ids == {1}
    assert built.tokenizer.encode(f"a{name}a") == [0, 1, 0]


def test_ids_are_known_by_key_and_else_by_name_or_by_the_kind_of_tokenizer() -> None:
    names = ["<|fim_prefix|>", "<PRE>", "<|eom_id|>", "x"]
    assert tokenizer_of(plain(*names)).special == {"fim_pre": 1, "eom": 3}
    said = tokenizer_of(plain(*names, prefix_token_id=2, eos_token_id=4, seperator_token_id=0))
    assert said.special == {"fim_pre": 2, "eom": 3, "eos": 4, "sep": 0}
    own = trained("bpe", 900, byte_fallback=True)
    metadata = converted("llama", own)
    for use in ("bos", "eos", "unknown"):
        metadata = without(metadata, f"{use}_token_id")
    assert tokenizer_of(metadata).special == {"bos": 1, "eos": 2, "unk": 0}
    assert tokenizer_of(metadata).adds == Adds(bos=True)
    assert tokenizer_of(bert_metadata()).special["bos"] == 2
    assert "pad" not in tokenizer_of(plain("x", padding_token_id=9)).special


def test_templates_are_handed_on() -> None:
    metadata = gpt2_metadata() | {
        "tokenizer.chat_template": "{{ messages }}", "tokenizer.chat_template.rag": "{{ rag }}",
        "tokenizer.chat_templates": ["rag"],
    }  # fmt: skip
    built = tokenizer_of(metadata)
    assert built.chat_template == "{{ messages }}"
    assert built.chat_templates == {"rag": "{{ rag }}"}
    assert tokenizer_of(gpt2_metadata()).chat_template is None


@pytest.mark.parametrize(
    ("said", "text", "ids"),
    [
        ({}, "a <mask> a", [0, 3, 1, 3, 0]),
        ({"tokenizer.ggml.pre": "jina-v2-de"}, "a <mask> a", [0, 1, 3, 0]),
        ({"general.architecture": "nomic-bert-moe"}, "a <mask> a", [0, 1, 3, 0]),
        ({"general.name": "Phi-3 mini"}, "a <mask> a", [0, 3, 1, 0]),
        ({"general.name": "Phi3"}, "a <s> a", [0, 3, 2, 3, 0]),
    ],
)
def test_white_space_goes_with_tokens_of_models_that_are_known_for_it(
    said: dict[str, Any], text: str, ids: list[int]
) -> None:
    metadata = plain("<mask>", "<s>") | said
    metadata["tokenizer.ggml.tokens"].append("Ġ")
    metadata["tokenizer.ggml.token_type"].append(NORMAL)
    assert tokenizer_of(metadata).tokenizer.encode(text) == ids


def test_arrays_and_bytes_do_as_lists_and_texts() -> None:
    own = trained("bpe", 900, byte_fallback=True)
    metadata = converted("llama", own)
    plainly = tokenizer_of(metadata)
    for key, dtype in (("scores", np.float32), ("token_type", np.int32)):
        name = f"tokenizer.ggml.{key}"
        metadata[name] = np.array(metadata[name], dtype)
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.tokens"] = tuple(token.encode() for token in tokens)
    metadata["tokenizer.ggml.bos_token_id"] = np.uint32(1)
    built = tokenizer_of(metadata)
    assert [built.tokenizer.encode(x) for x in pages()[:50]] == [
        plainly.tokenizer.encode(x) for x in pages()[:50]
    ]
    assert built.special == plainly.special


def test_empty_tokens_have_names_of_their_own() -> None:
    built = tokenizer_of(plain("", "")).tokenizer
    assert (built.id_of("[EMPTY_1]"), built.id_of("[EMPTY_2]")) == (1, 2)


@together()
@pytest.mark.parametrize("model", REFUSED)
def test_kinds_of_tokenizers_that_are_not_built_are_refused_by_name(model: str) -> None:
    with pytest.raises(
        CheckpointError, match=f"tokenizer of {model!r} cannot be built: .*known: gpt2"
    ):
        tokenizer_of(plain(model=model))
    assert model not in MODELS


def unigram(**others: Any) -> dict[str, Any]:
    return keyed(
        model="t5", tokens=["<pad>", "</s>", "<unk>", "▁", "a"], scores=[0, 0, 0, -1, -2],
        token_type=[CONTROL, CONTROL, UNKNOWN, NORMAL, UNUSED],
    ) | keyed(**others)  # fmt: skip


SPM = {"model": "llama", "tokens": ["<unk>", "<s>", "</s>", "a", "b"], "scores": [0, 0, 0, -1, -2],
       "token_type": [UNKNOWN, CONTROL, CONTROL, NORMAL, NORMAL]}  # fmt: skip
DAMAGED: list[tuple[dict[str, Any], str]] = [
    (without(plain(), "model"), r"model: missing, so nothing says which kind of tokenizer it is"),
    (plain(model="gpt3"), r"model: unknown kind of tokenizer 'gpt3' \(nearest: gpt2\)"),
    (plain(model=7), r"model: 7 must be text"),
    (plain(model=b"\xff"), r"model: b'\\xff' is not UTF-8 text"),
    (without(plain(), "tokens"), r"tokens: there are none, so text has no ids"),
    (plain(tokens=[]), r"tokens: there are none"),
    (plain(tokens="abc"), r"tokens: 'abc' must be an array"),
    (plain("b", tokens=["a", 3]), r"tokens\[1\]: 3 must be text"),
    (plain("b", tokens=["a", b"\xc3"]), r"tokens\[1\]: b'\\xc3' is not UTF-8 text"),
    (plain("b", tokens=["a", "\udc80"]), r"tokens\[1\]: '\\udc80' is not UTF-8 text"),
    (plain("b" * 5000), r"tokens\[1\]: 'bbb.*' has 5000 characters; at most 4096 may be"),
    (plain("b", "a"), r"tokens: 'a' is token 0 and token 2; tokens must be unique"),
    (plain("b", token_type=[1]), r"token_type has 1 values for 2 tokens of tokenizer.ggml.tokens"),
    (plain("b", token_type=[1, 9]), r"token_type\[1\]: 9 is no type of tokens; they are 0 to 6"),
    (plain("b", token_type=[1, True]), r"token_type\[1\]: True must be an integer"),
    (plain("b", token_type=[1, "x"]), r"token_type\[1\]: 'x' must be an integer"),
    (without(plain(), "merges"), r"merges: missing; a tokenizer of 'gpt2' is made of merges"),
    (plain("b", merges=["a"]), r"merges\[0\]: 'a': must be two tokens with a space between"),
    (plain("b", merges=["a x"]), r"merges\[0\]: 'a x': 'x' is no token; what is merged"),
    (plain("b", merges=["x a"]), r"merges\[0\]: 'x a': 'x' is no token"),
    (plain("b", merges=["a b"]), r"merges\[0\]: 'a b': 'ab' is no token; .* what becomes of it"),
    (plain("b", "ab", merges=["a b", "a b"]), r"merges\[1\]: 'a b': stands at 0 too"),
    (plain(bos_token_id=5), r"bos_token_id: 5 is the id of no token; there are 1, from 0 on"),
    (plain(eos_token_id=-1), r"eos_token_id: -1 is the id of no token"),
    (plain(eot_token_id="x"), r"eot_token_id: 'x' must be an integer"),
    (plain(add_bos_token=1), r"add_bos_token: 1 must be true or false"),
    (plain(add_bos_token=True), r"add_bos_token: holds for 'gpt2', and .*bos_token_id"),
    (keyed(**{**SPM, "scores": None}), r"scores: missing; a tokenizer of 'llama' chooses tok"),
    (keyed(**{**SPM, "scores": [0, 0]}), r"scores has 2 values for 5 tokens"),
    (keyed(**{**SPM, "scores": [0, 0, 0, -1, float("nan")]}), r"scores\[4\]: nan must be a finite"),
    (keyed(**{**SPM, "scores": [0, 0, 0, -1, "x"]}), r"scores\[4\]: 'x' must be a finite number"),
    (unigram(unknown_token_id=7), r"unknown_token_id: 7 is the id of no token"),
    (unigram(tokens=["a", "b"], scores=[0, 0], token_type=[1, 1], add_eos_token=False),
     r"unknown_token_id: missing; 't5' needs a token for characters that no token has"),
    (unigram(precompiled_charsmap=[1, 2, 300]), r"precompiled_charsmap: holds 300, which is"),
    (unigram(precompiled_charsmap=b"\0\0"), r"precompiled_charsmap: 2 bytes: the trie is said to"),
    (keyed(model="bert", tokens=["a", "▁##a", "[UNK]"], token_type=[1, 1, 3], unknown_token_id=2,
           cls_token_id=2, seperator_token_id=2),
     r"tokens: tokens 0 and 1 both are '##a' to BERT"),
    (keyed(model="bert", tokens=["a"]), r"unknown_token_id: missing; 'bert' needs a token"),
]  # fmt: skip


@together()
@pytest.mark.parametrize(("metadata", "message"), DAMAGED)
def test_damaged_metadata_is_refused_by_key(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"^tokenizer\.ggml\.{message}"):
        tokenizer_of(metadata)


def charsmap(*units: int, texts: bytes = b"x\0") -> bytes:
    trie = struct.pack(f"<{len(units)}I", *units)
    return len(trie).to_bytes(4, "little") + trie + texts


LEAF, VALUE = 1 << 8, 1 << 31


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (charsmap(*[0] * 255), "node 0 has children beyond the 255 nodes"),
        (charsmap(300 << 10, *[0] * 255), "node 0 has children beyond the 256 nodes"),
        (charsmap(*[0] * 255, VALUE | 2), "node 255 has its replacement at 2 of 2 bytes"),
        (
            charsmap(*[0] * 255, VALUE | 1, texts="é\0".encode()),
            "node 255 has its replacement at 1 of 3",
        ),
        (charsmap(*[0] * 255, LEAF), "node 255 ends a key, and node 255 does not say what"),
        (charsmap(*[0] * 256, texts=b"x"), "the replacements must end with a zero byte"),
        (charsmap(*[0] * 256, texts=b"\xff\0"), "the replacements are not UTF-8 text"),
        (charsmap(*[0] * 256)[:40], "the trie is said to have 1024 bytes, not a multiple of four"),
    ],
)
def test_a_table_that_leads_out_of_itself_is_refused(table: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=f"precompiled_charsmap: .* bytes: {message}"):
        charsmap_of({CHARSMAP: table})
    assert charsmap_of({CHARSMAP: b""}) is None


def test_a_table_of_one_key_replaces_it() -> None:
    units = [0] * 256
    units[ord("A")] = ord("A") | LEAF | 200 << 10
    units[ord("A") ^ 200] = VALUE
    table = charsmap_of({CHARSMAP: charsmap(*units, texts="é!\0".encode())})
    assert table is not None
    assert table.replaced("BAxA") == "Bé!xé!"


def test_bytes_are_tokens_only_where_all_are() -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(255)), "▁"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 255, USER_DEFINED]
    built = tokenizer_of(
        keyed(model="llama", tokens=tokens, token_type=types, scores=[0.0] * 259)
    ).tokenizer
    assert built.encode("é") == [1, 258, 0]


JUNK = [
    None, True, -1, 0, 7, 1 << 40, 1.5, float("inf"), "", "a", "gpt2", "llama", "t5", "bert",
    "gemma4", "default", b"", b"\xff", [], [[]], ["a"], ["a", "b"], [None], [1.0, 2.0], [1, 2, 3],
    ["a b"], {}, object(), np.float32([0.5]), np.zeros((2, 2)), ["a"] * 3, ["", " ", "  "],
]  # fmt: skip


def damaged(rng: random.Random) -> dict[str, Any]:
    """Metadata of one of the kinds, with a few of its values replaced, cut, doubled or mixed up."""
    own = trained("bpe", 400, byte_fallback=True)
    whole = rng.choice(
        [plain("b", "ab", merges=["a b"]), keyed(**SPM), unigram(), converted("llama", own)]
    )
    metadata = dict(whole)
    for _ in range(rng.randrange(1, 4)):
        key = rng.choice(list(metadata))
        value = metadata[key]
        if isinstance(value, list) and rng.random() < 0.6:
            values = list(value)
            at = rng.randrange(len(values) + 1)
            values[at : at + rng.randrange(3)] = rng.choice([[], values[:1], [rng.choice(JUNK)]])
            metadata[key] = values
        else:
            metadata[key] = rng.choice(JUNK)
    return metadata


def test_any_damage_is_a_checkpoint_error_or_a_tokenizer_that_works() -> None:
    rng, built = random.Random(13), 0
    for _ in range(1500):
        metadata = damaged(rng)
        try:
            found = tokenizer_of(metadata)
        except CheckpointError as error:
            assert len(str(error)) < 1500
            continue
        built += 1
        ids = found.tokenizer.encode("ab <s> é\n")
        found.tokenizer.decode(ids)
    assert 50 < built < 1000
