"""**Table** of architectures that GGUF files may name: tensors and keys of each, as a family here.

A row says how a tensor is called there and here, which rows are rotated in another order, and what
the metadata means as a configuration. An architecture is added with a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from ptir.checkpoint.gguf.fields import Key, Keys
from ptir.checkpoint.gguf.header import GgufTensor
from ptir.checkpoint.gguf.source import Part
from ptir.checkpoint.gguf.splits import GgufModel
from ptir.errors import CheckpointError, nearest, short
from ptir.models.fields import FIELDS
from ptir.types import F32

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
BLOCKS: Final = "block_count"
"""The key that counts layers."""
FACTORS: Final = "rope_freqs.weight"
"""What divides the rotary frequency of each pair, for all layers."""
UNKNOWN: Final = "not a parameter: "
"""Stands before the name of a tensor that is called as a parameter is, and is none."""
IN_LAYER: Final = re.compile(
    r"blk\.(?P<layer>0|[1-9]\d{0,4})\.(?P<stem>\w+)\.(?P<kind>weight|bias)", re.ASCII
)
OUTSIDE: Final = re.compile(r"(?P<stem>\w+)\.(?P<kind>weight|bias)", re.ASCII)

Config = dict[str, Any]
Tensors = Mapping[str, GgufTensor]


class Rows(NamedTuple):
    """Rows of a fused tensor: the parameter that they are, and the keys that count them."""

    name: str
    sizes: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """One architecture.

    ``outside`` and ``inside`` a layer map GGUF's names to the family's, without ``.weight`` or
    ``.bias``; ``layer`` is what the family's names of layers begin with. ``rotated`` names tensors
    whose rows are in the order of interleaved pairs, by the key that counts their heads. ``turned``
    are stored as [outputs, inputs] and wanted the other way around. ``fused`` are cut into rows.
    ``ignored`` stand there and mean nothing. ``config(keys, tensors)`` gives the configuration, of
    which ``numbers`` are keys.
    """

    model_type: str
    config: Callable[[Keys, Tensors], Config]
    layer: str
    outside: Mapping[str, str]
    inside: Mapping[str, str]
    rotated: Mapping[str, str] = field(default_factory=dict[str, str])
    turned: frozenset[str] = frozenset()
    fused: Mapping[str, tuple[Rows, ...]] = field(default_factory=dict[str, tuple[Rows, ...]])
    ignored: frozenset[str] = frozenset()
    numbers: tuple[Key, ...] = ()

    def part(self, name: str, config: Config) -> Part | None:
        """What a parameter is stored as, under GGUF's name and whole; None for what is none."""
        stem, kind = self._stored_stem(name)
        return dict(self._parts_of(f"{stem}.{kind}", config)).get(name) if stem else None

    def _stored_stem(self, name: str) -> tuple[str, str]:
        """GGUF's name of a parameter without its kind; nothing for what is none of the family."""
        called, _, kind = name.rpartition(".")
        inside = called.startswith(self.layer)
        layer, _, rest = called.removeprefix(self.layer).partition(".") if inside else ("", "", "")
        table, wanted = (self.inside, rest) if inside else (self.outside, called)
        stem = next((stem for stem, ours in table.items() if ours == wanted), "")
        return (f"blk.{layer}.{stem}" if inside and stem else stem), kind

    def parts(self, tensors: Tensors, config: Config) -> dict[str, Part]:
        """What each parameter is made of; what is none of this family keeps the tensor's name."""
        found: dict[str, Part] = {}
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
        return tensor == FACTORS or (match is not None and match["stem"] in self.ignored)

    def _parts_of(self, tensor: str, config: Config) -> Iterator[tuple[str, Part]]:
        inside = IN_LAYER.fullmatch(tensor)
        match = inside or OUTSIDE.fullmatch(tensor)
        if match is None:
            return
        stem, kind = match["stem"], match["kind"]
        before = f"{self.layer}{inside['layer']}." if inside else ""
        names = self.inside if inside else self.outside
        if stem in names:
            turned = stem in self.turned and kind == "weight"
            name = f"{before}{names[stem]}.{kind}"
            yield name, Part(tensor, heads=self._heads(names[stem], config), turned=turned)
        first = 0
        for row in self.fused.get(stem, ()) if inside else ():
            count = 1
            for size in row.sizes:
                count *= config[size]
            yield (
                f"{before}{row.name}.{kind}",
                Part(tensor, first, count, self._heads(row.name, config)),
            )
            first += count

    def _heads(self, name: str, config: Config) -> int:
        key = self.rotated.get(name)
        return int(config[key]) if key else 0


def layout_of(model: GgufModel) -> tuple[str, Layout]:
    """A model's architecture and its row; raises ``CheckpointError`` naming those there are."""
    found = model.metadata.get("general.architecture")
    known = ", ".join(LAYOUTS)
    where = f"{model.path}: key 'general.architecture'"
    if not isinstance(found, str):
        what = "is missing" if found is None else f"{short(found)} must be a string"
        raise CheckpointError(f"{where} {what}: nothing says which model it is; {known} can be run")
    if found not in LAYOUTS:
        near = nearest(found, LAYOUTS)
        hint = f" (nearest: {', '.join(near)})" if near else ""
        raise CheckpointError(
            f"{where}: {short(found)}{hint} is not implemented; {known} are: choose a model of one"
            " of these"
        )
    return found, LAYOUTS[found]


def check_layers(keys: Keys, tensors: Tensors) -> int:
    """How many layers there are, all of which must have tensors."""
    said = int(keys.number(BLOCKS, "num_hidden_layers"))
    matches = (IN_LAYER.fullmatch(name) for name in tensors)
    stored = {int(match["layer"]) for match in matches if match}
    lost = next((layer for layer in range(said) if layer not in stored), None)
    keys.require(lost is None, BLOCKS, f"tensors of layer {lost} are not stored: fetch all")
    return said


def _vocabulary(keys: Keys, tensors: Tensors) -> int:
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


# --- llama and its kin ---

WIDTH: Final = Key("embedding_length", "hidden_size")
HEADS: Final = Key("attention.head_count", "num_attention_heads")
KV_HEADS: Final = Key("attention.head_count_kv", "num_key_value_heads")
HEAD: Final = Key("attention.key_length", "head_dim")
SAME_HEADS: Final = (
    Key("attention.value_length", "head_dim"),
    Key("rope.dimension_count", "head_dim"),
)
"""What must be as long as keys are."""
THETA: Final = Key("rope.freq_base", "rope_theta")
SCALING: Final = "rope.scaling.type"
WINDOW: Final = Key("attention.sliding_window", "sliding_window")
"""Which llama alone has and uses."""
FACTOR: Final = Key("rope.scaling.factor", "factor")
LLAMA_SIZES: Final = (
    WIDTH,
    Key("feed_forward_length", "intermediate_size"),
    Key("context_length", "max_position_embeddings"),
    Key("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    HEADS,
)
"""Numbers that every file has."""


def _llama(keys: Keys, tensors: Tensors) -> Config:
    size, heads = keys.at(WIDTH), keys.at(HEADS)
    head = keys.at(HEAD, size // heads if size % heads == 0 else None)
    for row in SAME_HEADS:
        same = keys.at(row, head) == head
        keys.require(same, row.name, f"heads of {head} must be read and rotated whole")
    keys.require(keys.optional("expert_count", "n_head") is None, "expert_count", NO_EXPERTS)
    config = {
        "vocab_size": _vocabulary(keys, tensors),
        **{row.field: keys.at(row) for row in LLAMA_SIZES},
        "num_hidden_layers": check_layers(keys, tensors),
        KV_HEADS.field: keys.at(KV_HEADS, heads),
        HEAD.field: head,
        "hidden_act": "silu",
        "rope_parameters": _rope(keys),
        "tie_word_embeddings": OUTPUT not in tensors,
    }
    if keys.prefix == "llama":  # others have the key and do not use it
        biased = any(f"blk.0.{stem}.bias" in tensors for stem in ("attn_q", "attn_qkv"))
        config["attention_bias"] = biased
        config["mlp_bias"] = "blk.0.ffn_gate.bias" in tensors
        config["sliding_window"] = keys.optional(*WINDOW)
    return config


NO_EXPERTS: Final = "a mixture of experts, which is not implemented: choose a dense model"


def _rope(keys: Keys) -> Config:
    """Frequencies, and by what they are scaled."""
    theta = float(keys.at(THETA, 10000.0))
    factor = keys.optional(*FACTOR)
    factor = factor or keys.optional("rope.scale_linear", "factor") or 1.0
    kind = keys.text(SCALING, "linear")
    rule = "this scaling of positions is not implemented; none and linear are: choose another model"
    keys.require(kind in ("none", "linear"), SCALING, rule)
    if kind == "none" or factor == 1.0:
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta, "factor": float(factor)}


LLAMA_OUTSIDE: Final = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
LLAMA_INSIDE: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA_FUSED: Final = {
    "attn_qkv": (
        Rows("self_attn.q_proj", ("num_attention_heads", "head_dim")),
        Rows("self_attn.k_proj", ("num_key_value_heads", "head_dim")),
        Rows("self_attn.v_proj", ("num_key_value_heads", "head_dim")),
    )
}
PAIRED: Final = {
    "self_attn.q_proj": "num_attention_heads",
    "self_attn.k_proj": "num_key_value_heads",
}
"""Queries and keys of architectures that rotate neighbours."""


def _like_llama(model_type: str, rotated: Mapping[str, str], *more: Key) -> Layout:
    return Layout(
        model_type,
        _llama,
        "layers.",
        LLAMA_OUTSIDE,
        LLAMA_INSIDE,
        rotated=rotated,
        fused=LLAMA_FUSED,
        ignored=frozenset({"attn_rot_embd"}),
        numbers=(*LLAMA_SIZES, KV_HEADS, HEAD, *SAME_HEADS, *more),
    )


# --- GPT-2 ---


GPT2_SIZES: Final = (
    Key("context_length", "n_positions"),
    Key("embedding_length", "n_embd"),
    Key("attention.head_count", "n_head"),
    Key("feed_forward_length", "n_inner"),
    Key("attention.layer_norm_epsilon", "layer_norm_epsilon"),
)


def _gpt2(keys: Keys, tensors: Tensors) -> Config:
    return {
        "vocab_size": _vocabulary(keys, tensors),
        "n_layer": check_layers(keys, tensors),
        **{row.field: keys.at(row) for row in GPT2_SIZES},
        "activation_function": "gelu_new",
        "tie_word_embeddings": OUTPUT not in tensors,
    }


GPT2_INSIDE: Final = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}

LAYOUTS: Final[dict[str, Layout]] = {
    "gpt2": Layout(
        "gpt2",
        _gpt2,
        "h.",
        {
            "token_embd": "wte",
            "position_embd": "wpe",
            "output_norm": "ln_f",
            "output": "lm_head",
        },
        GPT2_INSIDE,
        turned=frozenset({"attn_qkv", "attn_output", "ffn_up", "ffn_down"}),
        numbers=GPT2_SIZES,
    ),
    "llama": _like_llama("llama", PAIRED, WINDOW),
    "qwen2": _like_llama("qwen2", {}),
}
"""By ``general.architecture``."""


def divisors(model: GgufModel, config: Config, where: str) -> list[float] | None:
    """By what the rotary frequency of each pair is divided; None where by nothing.

    Raises ``CheckpointError`` for numbers that are none, or of another count than pairs.
    """
    tensor = model.tensors.get(FACTORS)
    if tensor is None:
        return None
    pairs = config["head_dim"] // 2
    if tensor.type.dtype != F32 or tensor.shape != (pairs,):
        raise CheckpointError(f"{where}: tensor {FACTORS!r}: {tensor}; F32[{pairs}] is needed")
    values = [float(one) for one in model.file(FACTORS).raw(FACTORS).view("<f4")]
    for number, value in enumerate(values):
        if not FIELDS["divisors"].holds(value):
            rule = f"number {number} is {value}; it must be {FIELDS['divisors']}"
            raise CheckpointError(f"{where}: tensor {FACTORS!r}: {rule}; fetch the file again")
    return None if all(value == 1.0 for value in values) else values
