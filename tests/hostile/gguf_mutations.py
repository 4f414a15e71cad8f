"""What is done to right GGUF files: one field of a kind at a time, by its name, or some bytes.

``CHANGES`` is the table. After a change of tensors their bytes are laid out anew in half of the
files: what only then still fits together reaches the checks behind the first ones.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gguf_bytes import ARRAY, AWKWARD, BOOL, F32, F64, I32, STRING, U32, U64, mutated
from hostile.models import Files
from hostile.parts import ALIGNMENT, SIZES, Entry, Items, Pair, Parts, Text, fitting, texts, whole
from ptir.checkpoint.gguf import LAYOUTS
from ptir.text.gguf_tokenizer import MODELS, REFUSED
from ptir.text.gguf_tokenizer.pre_tokenizers import ROWS
from ptir.text.gguf_tokenizer.special import KEYS, LOOKED_UP

HUGE = (10**12, 1 << 31, (1 << 63) - 1, (1 << 64) - 1)
NUMBERS = (*AWKWARD, -1, -2, 4, 5, 6, 9, 12, 16, 17, 24, 33, 48, 96, 97, 100, 128, 512, 1000)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-8, 0.5, 2.0, 1e4, 1e30, 3e38, 1e308)
FLOATS += (float("inf"), float("-inf"), float("nan"))
KINDS = tuple(range(13))
WORDS = (
    b"",
    b" ",
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"a" * 70,
    b"a" * 4000,
    b"ab" * 300_000,
    b"_\n{%",
)
NAMED = tuple(
    one.encode()
    for one in (*MODELS, *REFUSED, *LAYOUTS, *(name for row in ROWS for name in row.names))
) + tuple(sorted(one.encode() for one in LOOKED_UP))
NAMED += (b"clip", b"bert", b"gemma3", b"model", b"adapter", b"mmproj", b"imatrix", b"linear")
NAMED += (b"yarn", b"none", b"longrope", b"phi-3", b"modern-bert", b"{}", b'{"model": null}')
STEMS = ("vocab_size", "block_count", "expert_count", "rope.scale_linear", "rope.scaling.type")
STEMS += ("rope.scaling.original_context_length", "attention.sliding_window", "context_length")
STEMS += ("pooling_type", "attention.causal", "classifier.output_labels", "hidden_act")
STEMS += ("attention.sliding_window_pattern", "rope.freq_base_swa")
TOKENIZER = ("model", "pre", "tokens", "token_type", "scores", "merges", "precompiled_charsmap")
TOKENIZER += ("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix")
TOKENIZER += ("remove_extra_whitespaces", "normalizer.lowercase", "normalizer.strip_accents")
TOKENIZER += ("token_type_count",)
OTHERS = ("general.architecture", "general.alignment", "general.type", "general.name")
OTHERS += ("split.no", "split.count", "split.tensors.count", "tokenizer.chat_template")
OTHERS += ("tokenizer.huggingface.json", "tokenizer.chat_template.tool_use", "ptir.sentence_files")


def known_keys(architecture: str) -> tuple[bytes, ...]:
    """Every key that some reader asks for."""
    numbers = [row.name for layout in LAYOUTS.values() for row in layout.numbers]
    stems = [f"{architecture}.{stem}" for stem in dict.fromkeys((*numbers, *STEMS))]
    ids = [one for names in KEYS.values() for one in names]
    described = [f"tokenizer.ggml.{one}" for one in (*TOKENIZER, *ids)]
    return tuple(one.encode() for one in (*stems, *described, *OTHERS))


@dataclass
class Subject:
    """The files that are changed, of which one is meant, and where draws come from."""

    files: Files
    name: str
    rng: random.Random

    @property
    def parts(self) -> Parts:
        return self.files[self.name]

    def one(self, options: Any) -> Any:
        return self.rng.choice(options)

    def odds(self, one_in: int) -> bool:
        return self.rng.randrange(one_in) == 0

    def number(self, near: int = 0) -> int:
        """A number that is awkward by itself, or beside another."""
        if self.odds(3):
            return int(near + self.one((-2, -1, 1, 2, near, -near, 31, 32, 256)))
        return int(self.one((*NUMBERS, self.rng.getrandbits(64))))

    def text(self) -> Text:
        raw = self.one((*WORDS, *NAMED)) if self.odds(2) else self.rng.randbytes(4)
        return Text(raw, self.one(HUGE) if self.odds(12) else None)

    def value(self, kind: int, depth: int = 0) -> Any:
        """Something of a kind."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            inner = self.one((STRING, U32, I32, F32, self.one(KINDS) if depth < 2 else U32))
            count = self.one((0, 1, 2, 3, 17))
            return Items(inner, [self.value(inner, depth + 1) for _ in range(count)])
        if kind in (F32, F64):
            return self.one(FLOATS)
        return self.rng.randrange(4) if kind == BOOL else self.number()

    def pair(self) -> Pair | None:
        """A pair: keys that are read by name as often as the others."""
        return self.one(self.parts.pairs) if self.parts.pairs else None

    def entry(self) -> Entry | None:
        return self.one(self.parts.entries) if self.parts.entries else None

    def architecture(self) -> str:
        found = self.parts.pair(b"general.architecture")
        raw = found.value.raw if found and isinstance(found.value, Text) else b"llama"
        return str(raw.decode("latin-1"))


# --- metadata ---


def number_of_a_pair(it: Subject) -> None:
    chosen = [p for p in it.parts.pairs if not isinstance(p.value, Text | Items)]
    if chosen:
        pair = it.one(chosen)
        floats = pair.kind in (F32, F64)
        pair.value = it.one(FLOATS) if floats else it.number(whole(pair.value))


def kind_of_a_pair(it: Subject) -> None:
    """Another kind for the same bytes, or for the same number."""
    pair = it.pair()
    if pair is None:
        return
    kind = it.one((*KINDS, 13, 255, (1 << 32) - 1))
    if isinstance(pair.value, Text | Items) or kind in (STRING, ARRAY) or kind > 12 or it.odds(2):
        pair.said = kind
    else:
        pair.kind = kind


def value_of_a_pair(it: Subject) -> None:
    """Anything else, of any kind, whole."""
    pair = it.pair()
    if pair is not None:
        pair.kind = it.one(KINDS) if it.odds(2) else pair.kind
        pair.value = it.value(pair.kind)


def pair_lost(it: Subject) -> None:
    if it.parts.pairs:
        del it.parts.pairs[it.rng.randrange(len(it.parts.pairs))]


def pair_twice(it: Subject) -> None:
    pair = it.pair()
    if pair is not None:
        it.parts.pairs.insert(it.rng.randrange(len(it.parts.pairs)), copy.deepcopy(pair))


def pair_renamed(it: Subject) -> None:
    pair = it.pair()
    if pair is not None:
        known = Text(it.one(known_keys(it.architecture())))
        pair.key = known if it.odds(2) else it.text()


def pair_added(it: Subject) -> None:
    kind = it.one((*KINDS, STRING, ARRAY, U32, I32, U64))
    key = Text(it.one(known_keys(it.architecture())))
    it.parts.pairs.append(Pair(key, kind, it.value(kind)))


def pairs_moved(it: Subject) -> None:
    it.rng.shuffle(it.parts.pairs)


def values_swapped(it: Subject) -> None:
    one, other = it.pair(), it.pair()
    if one is not None and other is not None:
        one.kind, other.kind = other.kind, one.kind
        one.value, other.value = other.value, one.value


def text_of_a_pair(it: Subject) -> None:
    chosen = [p for p in it.parts.pairs if isinstance(p.value, Text)]
    if chosen:
        it.one(chosen).value = it.text()


def length_of_a_text(it: Subject) -> None:
    found = it.one(list(texts(it.parts)) or [Text(b"")])
    found.length = it.one(HUGE) if it.odds(2) else max(0, it.number(len(found.raw)))
    found.length &= (1 << 64) - 1


def bytes_of_a_text(it: Subject) -> None:
    found = it.one(list(texts(it.parts)) or [Text(b"")])
    found.raw = it.text().raw


def array_of(it: Subject) -> Items | None:
    chosen = [p.value for p in it.parts.pairs if isinstance(p.value, Items)]
    return it.one(chosen) if chosen else None


def kind_of_an_array(it: Subject) -> None:
    items = array_of(it)
    if items is not None:
        items.said = it.one((*KINDS, 13, (1 << 32) - 1))


def count_of_an_array(it: Subject) -> None:
    items = array_of(it)
    if items is not None:
        items.count = it.number(len(items.values)) & (1 << 64) - 1


def element_of_an_array(it: Subject) -> None:
    items = array_of(it)
    if items is not None and items.values:
        for _ in range(it.one((1, 1, 3))):
            place = it.rng.randrange(len(items.values))
            again = it.one(items.values) if it.odds(3) else it.value(items.kind)
            items.values[place] = copy.deepcopy(again)


def length_of_an_array(it: Subject) -> None:
    items = array_of(it)
    if items is not None:
        keep = it.one((0, 1, len(items.values) // 2, max(0, len(items.values) - 1)))
        more = [it.value(items.kind) for _ in range(it.one((0, 1, 2, 50)))]
        items.values = [*items.values[:keep], *more] if it.odds(2) else [*items.values, *more]


def array_nested(it: Subject) -> None:
    items = array_of(it)
    if items is None:
        return
    for _ in range(it.one((1, 2, 40))):
        inner = Items(items.kind, items.values, items.count)
        items.kind, items.values, items.count = ARRAY, [inner], None


def tokens_of_another_count(it: Subject) -> None:
    """A vocabulary and an embedding of different sizes, all lists of the vocabulary alike."""
    keys = (b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type", b"tokenizer.ggml.scores")
    found = [pair.value for key in keys if (pair := it.parts.pair(key)) is not None]
    lists = [one for one in found if isinstance(one, Items) and one.values]
    if it.odds(2):
        keep = it.rng.randrange(1, 300)
        for items in lists:
            items.values = items.values[:keep]
        return
    for items in lists:
        new = [Text(b"new %d" % n) for n in range(9)] if items.kind == STRING else items.values[-1:]
        items.values = [*items.values, *(new * 9)[:9]]


# --- counts and layout ---


def version(it: Subject) -> None:
    it.parts.version = it.one((0, 1, 2, 3, 4, 3 << 24, 1 << 16, (1 << 32) - 1))


def counts(it: Subject) -> None:
    tensors, keys = len(it.parts.entries), len(it.parts.pairs)
    some = it.number(tensors), None
    it.parts.counts = some if it.odds(2) else (None, it.number(keys))


def alignment(it: Subject) -> None:
    """The key, right or wrong, and in half of the files the layout too."""
    value = it.one((0, 1, 2, 3, 8, 24, 64, 4096, 1 << 20, 1 << 31, (1 << 32) - 1))
    kind = U32 if it.odds(4) else it.one((U32, U64, I32, F32, BOOL))
    it.parts.pairs = [p for p in it.parts.pairs if p.key.raw != ALIGNMENT]
    it.parts.pairs.append(Pair(Text(ALIGNMENT), kind, value))
    if 0 < value <= 4096 and it.odds(2):
        it.parts.alignment = value


def tail(it: Subject) -> None:
    it.parts.tail = it.rng.randbytes(it.one((1, 31, 4096)))


# --- tensors ---


def name_of_a_tensor(it: Subject) -> None:
    entry = it.entry()
    if entry is not None:
        other = it.one(it.parts.entries).name.raw
        stems = [other, other.replace(b"0", b"1"), entry.name.raw + b"s", b"output.weight"]
        stems += [b"rope_freqs.weight", b"blk.0.attn_q.bias", b"blk.99999.attn_q.weight"]
        entry.name = Text(it.one(stems)) if it.odds(2) else it.text()


def sizes_of_a_tensor(it: Subject) -> None:
    entry = it.entry()
    if entry is None:
        return
    if entry.sizes and not it.odds(3):
        place = it.rng.randrange(len(entry.sizes))
        entry.sizes[place] = it.number(entry.sizes[place]) & (1 << 64) - 1
    else:
        new: list[list[int]] = [[], entry.sizes[::-1], entry.sizes[1:], [1, *entry.sizes]]
        new += [[*entry.sizes, 1], [0], [1] * 5, [1] * 100_000, [0, 1 << 62, 1 << 62]]
        entry.sizes = it.one(new)
    _refit(it, entry)


def kind_of_a_tensor(it: Subject) -> None:
    entry = it.entry()
    if entry is not None:
        entry.kind = it.one((*SIZES, *SIZES, 4, 5, 31, 36, 43, 255, (1 << 32) - 1))
        _refit(it, entry)


def _refit(it: Subject, entry: Entry) -> None:
    """Give a tensor as many bytes as it says, in most files."""
    size = fitting(entry)
    if size is not None and not it.odds(4):
        entry.data = (entry.data * (size // max(1, len(entry.data)) + 1))[:size].ljust(size, b"\1")


def offset_of_a_tensor(it: Subject) -> None:
    entry = it.entry()
    if entry is not None:
        true = 0
        for other in it.parts.entries:
            if other is entry:
                break
            true += -(-len(other.data) // it.parts.alignment) * it.parts.alignment
        entry.offset = it.number(true) & (1 << 64) - 1


def tensor_lost(it: Subject) -> None:
    if it.parts.entries:
        del it.parts.entries[it.rng.randrange(len(it.parts.entries))]


def tensor_twice(it: Subject) -> None:
    entry = it.entry()
    if entry is not None:
        again = copy.deepcopy(entry)
        if it.odds(2):
            again.name = Text(it.one((b"other.weight", b"blk.1.attn_q.weight", b"x.bias")))
        it.parts.entries.append(again)


def tensors_moved(it: Subject) -> None:
    it.rng.shuffle(it.parts.entries)


def tensors_swapped(it: Subject) -> None:
    """The bytes, sizes and types of two tensors, each under the other's name."""
    one, other = it.entry(), it.entry()
    if one is not None and other is not None:
        one.name, other.name = other.name, one.name


def data_of_a_tensor(it: Subject) -> None:
    entry = it.entry()
    if entry is not None:
        size = len(entry.data)
        value = it.one((b"\xff", b"\0", b"\x7f", b"\x00\x00\xc0\x7f", b"\x00\x7c", b"\x80\x7f"))
        entry.data = it.rng.randbytes(size) if it.odds(2) else (value * size)[:size]


# --- parts of a model ---


def part_lost(it: Subject) -> None:
    if len(it.files) > 1:
        del it.files[it.one(list(it.files)[1:])]


def parts_in_another_order(it: Subject) -> None:
    names, files = list(it.files), list(it.files.values())
    it.rng.shuffle(files)
    it.files.update(zip(names, files, strict=True))


def part_of_another(it: Subject) -> None:
    """A part stands there twice, under two names."""
    it.files[it.name] = copy.deepcopy(it.one(list(it.files.values())))


def split_keys(it: Subject) -> None:
    key = it.one((b"split.no", b"split.count", b"split.tensors.count"))
    it.parts.pairs = [p for p in it.parts.pairs if p.key.raw != key]
    if not it.odds(4):
        kind = it.one((U32, U32, I32, U64, STRING, F32, BOOL, ARRAY))
        value = it.rng.randrange(-1, 8) if kind in (U32, I32) and it.odds(2) else it.value(kind)
        it.parts.pairs.append(Pair(Text(key), kind, value))


class Change(NamedTuple):
    """A row: how often it is drawn beside the others, and whether parts of a model are meant."""

    change: Callable[[Subject], None]
    often: int = 2
    parts: bool = False


CHANGES: tuple[Change, ...] = (
    Change(number_of_a_pair, 5),
    Change(kind_of_a_pair, 3),
    Change(value_of_a_pair, 3),
    Change(pair_lost, 3),
    Change(pair_twice, 1),
    Change(pair_renamed, 2),
    Change(pair_added, 5),
    Change(pairs_moved, 1),
    Change(values_swapped, 2),
    Change(text_of_a_pair, 4),
    Change(length_of_a_text, 2),
    Change(bytes_of_a_text, 3),
    Change(kind_of_an_array, 2),
    Change(count_of_an_array, 2),
    Change(element_of_an_array, 5),
    Change(length_of_an_array, 3),
    Change(array_nested, 1),
    Change(tokens_of_another_count, 3),
    Change(version, 1),
    Change(counts, 2),
    Change(alignment, 2),
    Change(tail, 1),
    Change(name_of_a_tensor, 3),
    Change(sizes_of_a_tensor, 4),
    Change(kind_of_a_tensor, 4),
    Change(offset_of_a_tensor, 2),
    Change(tensor_lost, 2),
    Change(tensor_twice, 2),
    Change(tensors_moved, 1),
    Change(tensors_swapped, 2),
    Change(data_of_a_tensor, 4),
    Change(part_lost, 4, parts=True),
    Change(parts_in_another_order, 4, parts=True),
    Change(part_of_another, 4, parts=True),
    Change(split_keys, 2),
    Change(split_keys, 12, parts=True),
)
WEIGHTS = {True: [row.often for row in CHANGES]}
WEIGHTS[False] = [0 if row.parts else row.often for row in CHANGES]


def mutated_files(right: Files, rng: random.Random) -> Mapping[str, bytes]:
    """Files with one to three changes; one in six by their bytes alone."""
    files = copy.deepcopy(right)
    if rng.randrange(6):
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            it = Subject(files, rng.choice(list(files)), rng)
            (row,) = rng.choices(CHANGES, WEIGHTS[len(files) > 1])
            row.change(it)
        return {name: parts.written() for name, parts in files.items()}
    found = {name: parts.written() for name, parts in files.items()}
    name = rng.choice(list(found))
    return {**found, name: mutated(found[name], rng)}
