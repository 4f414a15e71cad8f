"""What a row of the table of architectures is, and what it makes of a file's tensors and keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ptir.checkpoint.gguf.fields import Key, Keys
from ptir.checkpoint.gguf.header import GgufTensor
from ptir.checkpoint.gguf.source import Part
from ptir.checkpoint.gguf.splits import GgufModel
from ptir.errors import CheckpointError
from ptir.models.encoder import PROJECTED
from ptir.models.fields import FIELDS
from ptir.types import F32

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
BLOCKS: Final = "block_count"
"""The key that counts layers."""
BEHIND: Final = "mtp_num_hidden_layers"
"""The key of a configuration for layers behind the others, which predict further tokens."""
HEAD: Final = "mtp."
"""What the names of such a layer's parameters begin with."""
FACTORS: Final = "rope_freqs.weight"
"""What divides the rotary frequency of each pair, for all layers."""
LONGROPE: Final = {
    "short_factor": "rope_factors_short.weight",
    "long_factor": "rope_factors_long.weight",
}
"""The same for short and for long texts, by the field of a configuration."""
NUMBERS: Final = (FACTORS, *LONGROPE.values())
"""Tensors that are read with the configuration."""
UNKNOWN: Final = "not a parameter: "
"""Stands before the name of a tensor that is called as a parameter is, and is none."""
IN_LAYER: Final = re.compile(
    r"blk\.(?P<layer>0|[1-9]\d{0,4})\.(?P<rest>(?P<stem>[\w.]+?)(?:\.(?P<kind>weight|bias))?)",
    re.ASCII,
)
NUMBERED: Final = re.compile(r"(?P<stem>\w+)\.(?P<number>\d{1,6})", re.ASCII)
"""The stem of a tensor of one expert."""
OUTSIDE: Final = re.compile(r"(?P<stem>[\w.]+)\.(?P<kind>weight|bias)", re.ASCII)

Config = dict[str, Any]
Tensors = Mapping[str, GgufTensor]


class Rows(NamedTuple):
    """Rows of a fused tensor: the parameter that they are, and the keys that count them."""

    name: str
    sizes: tuple[str, ...]


class Named(NamedTuple):
    """A parameter whose name does not end as its tensor's does, or that is stored in another form.

    ``spread``, ``decay``, ``flat`` and ``row`` are those of ``Part``; ``lines`` is the key that
    counts the rows that a flat one is stored in.
    """

    name: str
    spread: bool = False
    decay: bool = False
    flat: bool = False
    row: bool = False
    lines: str = ""


class Cut(NamedTuple):
    """The stems of two tensors whose outputs are an expert's, below each other or in turns."""

    stems: tuple[str, str] = ("ffn_gate_exps", "ffn_up_exps")
    interleaved: bool = False


def nothing(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a file says besides numbers of most models."""
    return {}


@dataclass(frozen=True)
class Layout:
    """One architecture.

    ``outside`` and ``inside`` a layer map GGUF's names to the family's, without ``.weight`` or
    ``.bias``; ``layer`` is what the family's names of layers begin with. ``rotated`` names tensors
    whose rows are in the order of interleaved pairs, by the key that counts their heads. ``turned``
    are stored as [outputs, inputs] and wanted the other way around. ``fused`` are cut into rows.
    ``grouped`` are put together group by group, by the keys that count heads of queries and of
    keys. ``stacked`` have a row for each of the heads that a key counts, and each is a vector here.
    ``named`` are tensors inside a layer by their whole names, ``head`` those of a layer behind the
    others that stand beside its block; without it such layers are left out. ``numbered`` have one
    tensor for each expert, whose number stands in the parameter's name in the place of ``*``.
    ``two_norms`` are the names inside a layer whose attention and MLP have a norm each.
    ``ignored`` stand there and mean nothing. ``norm_plus`` is what was added to the weights of
    norms. ``config(keys, tensors)`` gives the configuration, of which ``numbers`` are keys.
    """

    model_type: str
    config: Callable[[Keys, Tensors], Config]
    layer: str
    outside: Mapping[str, str]
    inside: Mapping[str, str]
    rotated: Mapping[str, str] = field(default_factory=dict[str, str])
    turned: frozenset[str] = frozenset()
    fused: Mapping[str, tuple[Rows, ...]] = field(default_factory=dict[str, tuple[Rows, ...]])
    grouped: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    stacked: Mapping[str, Rows] = field(default_factory=dict[str, Rows])
    named: Mapping[str, Named] = field(default_factory=dict[str, Named])
    numbered: Mapping[str, str] = field(default_factory=dict[str, str])
    two_norms: Mapping[str, str] = field(default_factory=dict[str, str])
    head: Mapping[str, str] = field(default_factory=dict[str, str])
    ignored: frozenset[str] = frozenset()
    norm_plus: float = 0.0
    numbers: tuple[Key, ...] = ()
    mixture: Layout | None = None
    """The row of files of this architecture that have experts."""
    halves: Mapping[str, Cut] = field(default_factory=dict[str, Cut])
    """Parameters inside a layer that are two tensors, by their names without ``.weight``."""
    encodes: bool = False
    """Whether it reads whole texts, and a file says how a vector is made of one."""
    alone: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names outside of a classifier that has no projection."""
    said: Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(default=nothing)
    """What a file says of a configuration besides numbers, without the architecture's prefix."""

    def part(self, name: str, config: Config) -> Part | None:
        """What a parameter is stored as, under GGUF's name and whole; None for what is none."""
        tensor = self._stored_name(name, config)
        return dict(self._parts_of(tensor, config)).get(name) if tensor else None

    def _outside(self, config: Config) -> Mapping[str, str]:
        """The names outside of layers; ``cls.output`` stands for a classifier in any case."""
        return {**self.outside, **self.alone} if config.get(PROJECTED) is False else self.outside

    def names(self, layers: int) -> Iterator[str]:
        """All that parameters may be called, of a model of so many layers."""
        stems = [f"{self.layer}{n}.{one}" for n in range(layers) for one in self.inside.values()]
        for stem in (*self.outside.values(), *stems):
            yield from (f"{stem}.{kind}" for kind in ("weight", "bias"))

    def cut(self, name: str) -> tuple[Cut, str, str] | None:
        """How a parameter is cut in two, what stands before the stems, and its kind."""
        layer, _, rest = name.removeprefix(self.layer).partition(".")
        kind = "bias" if rest.endswith("_bias") else "weight"
        found = self.halves.get(rest.removesuffix("_bias").removesuffix(".weight"))
        if found is None or not name.startswith(self.layer):
            return None
        return found, f"blk.{layer}.", kind

    def experts(self, config: Mapping[str, Any]) -> int:
        """How many experts there are; 0 where files of this row have none."""
        key = next((row for row in self.numbers if row.name == "expert_count"), None)
        return int(config[key.field]) if key and config.get(key.field) else 0

    def _inside(self, config: Config) -> Mapping[str, str]:
        two = config.get("num_ln_in_parallel_attn") == 2
        return {**self.inside, **self.two_norms} if two else self.inside

    def _stored_name(self, name: str, config: Config) -> str:
        """GGUF's name of a parameter; nothing for what is none of the family."""
        if not name.startswith(self.layer):
            return self._stored_head(name, config) or _with_kind(self._outside(config), name)
        layer, _, rest = name.removeprefix(self.layer).partition(".")
        return self._stored_in(layer, rest, config)

    def _stored_head(self, name: str, config: Config) -> str:
        """The same of the layer behind the others; nothing for what is not of it."""
        if not self.head or not name.startswith(HEAD):
            return ""
        rest, behind = name.removeprefix(HEAD), int(config["num_hidden_layers"])
        if not rest.startswith(self.layer):
            stored = _with_kind(self.head, rest)
            return f"blk.{behind}.{stored}" if stored else ""
        number, _, rest = rest.removeprefix(self.layer).partition(".")
        layer = str(behind + int(number)) if number.isdecimal() else number
        return self._stored_in(layer, rest, config)

    def _stored_in(self, layer: str, rest: str, config: Config) -> str:
        """The same of a parameter inside a layer."""
        own = next((key for key, row in self.named.items() if row.name == rest), "")
        stored = own or _with_kind(self._inside(config), rest)
        return f"blk.{layer}.{stored}" if stored else ""

    def parts(self, tensors: Tensors, config: Config) -> dict[str, Part]:
        """What each parameter is made of; what is none of this family keeps the tensor's name."""
        found: dict[str, Part] = {}
        if not self.head:
            tensors = {name: one for name, one in tensors.items() if not _behind(name, config)}
        for tensor in tensors:
            for name, part in self._parts_of(tensor, config):
                found.setdefault(name, part)
        taken = {part.tensor for part in found.values()}
        for tensor in tensors:
            if tensor not in taken and not self._meaningless(tensor):
                found[f"{UNKNOWN if tensor in found else ''}{tensor}"] = Part(tensor)
        return found

    def _meaningless(self, tensor: str) -> bool:
        """Whether a tensor is read by nobody, or was read with the configuration."""
        match = IN_LAYER.fullmatch(tensor)
        return tensor in NUMBERS or (match is not None and match["stem"] in self.ignored)

    def _parts_of(self, tensor: str, config: Config) -> Iterator[tuple[str, Part]]:
        inside = IN_LAYER.fullmatch(tensor)
        match = inside or OUTSIDE.fullmatch(tensor)
        if match is None:
            return
        if inside is None:
            yield from self._whole(tensor, match, self._outside(config), "", config)
            return
        before, behind = f"{self.layer}{inside['layer']}.", _behind(tensor, config)
        if behind and inside["stem"] in self.head:
            stem = HEAD if behind == 1 else f"{HEAD}{behind - 1}."
            yield from self._whole(tensor, inside, self.head, stem, config)
            return
        if behind:
            before = f"{HEAD}{self.layer}{behind - 1}."
        if inside["rest"] in self.named:
            name, *forms, lines = self.named[inside["rest"]]
            spread, decay, flat, row = forms
            count = int(config[lines]) if lines else 0
            part = Part(tensor, spread=spread, decay=decay, flat=flat, row=row, lines=count)
            yield f"{before}{name}", part
        elif inside["kind"]:
            yield from self._whole(tensor, match, self._inside(config), before, config)
            yield from self._pieces(tensor, inside, before, config)

    def _whole(
        self,
        tensor: str,
        match: re.Match[str],
        names: Mapping[str, str],
        before: str,
        config: Config,
    ) -> Iterator[tuple[str, Part]]:
        """The parameter that a tensor is, where it is one."""
        stem, kind = match["stem"], match["kind"]
        if stem not in names:
            return
        counted = self.grouped.get(stem)
        yield (
            f"{before}{names[stem]}.{kind}",
            Part(
                tensor,
                heads=self._heads(names[stem], config),
                turned=stem in self.turned and kind == "weight",
                grouped=(int(config[counted[0]]), int(config[counted[1]])) if counted else None,
                plus=self.norm_plus if stem.endswith("norm") else 0.0,
            ),
        )

    def _pieces(
        self, tensor: str, inside: re.Match[str], before: str, config: Config
    ) -> Iterator[tuple[str, Part]]:
        """The parameters that are rows of a tensor, and the one that is a part of a parameter."""
        stem, kind = inside["stem"], inside["kind"]
        expert = NUMBERED.fullmatch(stem)
        if expert is not None and expert["stem"] in self.numbered:
            name = self.numbered[expert["stem"]].replace("*", expert["number"])
            yield f"{before}{name}.{kind}", Part(tensor)
        if stem in self.stacked:
            row = self.stacked[stem]
            for head in range(config[row.sizes[0]]):
                yield f"{before}{row.name}.{head}.{kind}", Part(tensor, head, 1, flat=True)
        first = 0
        for row in self.fused.get(stem, ()):
            count = 1
            for size in row.sizes:
                count *= config[size]
            heads = self._heads(row.name, config)
            yield f"{before}{row.name}.{kind}", Part(tensor, first, count, heads)
            first += count

    def _heads(self, name: str, config: Config) -> int:
        key = self.rotated.get(name)
        return int(config[key]) if key else 0


def _behind(tensor: str, config: Config) -> int:
    """The number of the layer behind those of the model that a tensor is of, from 1; 0: of none."""
    match = IN_LAYER.fullmatch(tensor)
    if match is None or not config.get(BEHIND):
        return 0
    number = int(match["layer"]) + 1 - int(config["num_hidden_layers"])
    return number if 0 < number <= int(config[BEHIND]) else 0


def _with_kind(names: Mapping[str, str], name: str) -> str:
    """GGUF's name of what is called ``name`` in a table of stems; nothing for what is not."""
    called, _, kind = name.rpartition(".")
    return next((f"{stem}.{kind}" for stem, ours in names.items() if ours == called), "")


def check_layers(keys: Keys, tensors: Tensors) -> int:
    """How many layers there are, all of which must have tensors."""
    said = int(keys.number(BLOCKS, "num_hidden_layers"))
    matches = (IN_LAYER.fullmatch(name) for name in tensors)
    stored = {int(match["layer"]) for match in matches if match}
    lost = next((layer for layer in range(said) if layer not in stored), None)
    keys.require(lost is None, BLOCKS, f"tensors of layer {lost} are not stored: fetch all")
    return said


def vocabulary_rows(keys: Keys, tensors: Tensors) -> int:
    """Rows of the embedding, which every other count must agree with."""
    tensor = tensors.get(EMBEDDING)
    if tensor is None or len(tensor.shape) != 2:
        found = "is missing" if tensor is None else f"is {tensor}"
        raise CheckpointError(
            f"{keys.path}: tensor {EMBEDDING!r} {found}; a matrix of tokens by width is needed"
        )
    rows = tensor.shape[0]
    said = keys.number("vocab_size", "vocab_size", rows)
    keys.require(said == rows, "vocab_size", f"the embedding has {rows} rows; both must agree")
    return rows


def divisors(model: GgufModel, pairs: int, where: str, name: str = FACTORS) -> list[float] | None:
    """By what the rotary frequency of each of ``pairs`` is divided; None where by nothing.

    Raises ``CheckpointError`` for numbers that are none, or of another count than pairs.
    """
    tensor = model.tensors.get(name)
    if tensor is None:
        return None
    if tensor.type.dtype != F32 or tensor.shape != (pairs,):
        raise CheckpointError(f"{where}: tensor {name!r}: {tensor}; F32[{pairs}] is needed")
    values = [float(one) for one in model.file(name).raw(name).view("<f4")]
    for number, value in enumerate(values):
        if not FIELDS["divisors"].holds(value):
            rule = f"number {number} is {value}; it must be {FIELDS['divisors']}"
            raise CheckpointError(f"{where}: tensor {name!r}: {rule}; fetch the file again")
    return None if all(value == 1.0 for value in values) and name == FACTORS else values
