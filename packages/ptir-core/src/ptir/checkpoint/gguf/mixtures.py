"""**Table** of what ``ptir quantize`` makes: which type each tensor of a file gets.

Most matrices get one type. Some count for more: the output, and in formats with ``_m`` also values
and the way back out of every few layers. Which ones is llama.cpp's choice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ptir.checkpoint.gguf.architectures.layout import EMBEDDING, IN_LAYER, OUTPUT
from ptir.weights import FORMATS

KEPT: Final = frozenset(
    {"position_embd.weight", "token_types.weight", "cls.weight", "cls.output.weight"}
)
"""Matrices that stay f32."""
KEPT_PARTS: Final = (
    ".ffn_gate_inp",
    ".ssm_conv1d.",
    ".ssm_norm.",
    ".shortconv.conv.",
    "per_layer_model_proj.",
)
"""What names hold of matrices that stay f32 too: routers, convolutions, small projections."""
EXPERTS: Final = frozenset({"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"})
SENSITIVE: Final = re.compile("attn_v|attn_qkv|ffn_down|ffn_down_exps")
"""The tensors of a layer that get more bits in some layers."""
FALLBACKS: Final = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What a matrix gets whose rows are no whole super-blocks."""
WITHOUT_BLOCKS: Final = "F16"
"""What it gets when not even 32 divide its rows."""


class Replaced(NamedTuple):
    """A matrix that got another type than its mixture's: its rows are no whole blocks of that."""

    tensor: str
    wanted: str
    type: str
    inputs: int


class Facts(NamedTuple):
    """Of a model: how many layers it has, whether its embedding serves as the output, and so on."""

    layers: int
    tied: bool = False
    encodes: bool = False
    experts: bool = False


@dataclass(frozen=True)
class Mixture:
    """A file's format: its name, its ``general.file_type``, and the types of its matrices.

    ``output`` is the type of the output, or of the embedding that serves as one; ``embedding`` that
    of another embedding, without it as ``most``; ``better`` that of what counts for more;
    ``beside`` that of all matrices but the experts' where there are any.
    """

    name: str
    file_type: int
    most: str
    output: str
    embedding: str = ""
    better: str = ""
    beside: str = ""

    def facts(self, tensors: Collection[str], layers: int, encodes: bool) -> Facts:
        """What types depend on, of a model, or an encoder, of so many layers and these tensors."""
        stems = {match["stem"] for match in map(IN_LAYER.fullmatch, tensors) if match}
        return Facts(
            layers,
            tied=OUTPUT not in tensors,
            encodes=encodes,
            experts=not stems.isdisjoint(EXPERTS),
        )

    def type_of(self, tensor: str, shape: tuple[int, ...], facts: Facts) -> str:
        """The type of a tensor by GGUF's name and the shape in the file."""
        if len(shape) < 2 or tensor in KEPT or stays_f32(tensor):
            return "F32"
        return fitting(self._wanted(tensor, facts), shape[-1])

    def replaced(self, tensors: Mapping[str, tuple[int, ...]], facts: Facts) -> Iterator[Replaced]:
        """Of tensors by name and shape those whose rows the blocks of their type do not fill."""
        for tensor, shape in tensors.items():
            if len(shape) < 2 or tensor in KEPT or stays_f32(tensor):
                continue
            wanted, type = self._wanted(tensor, facts), self.type_of(tensor, shape, facts)
            if type != wanted:
                yield Replaced(tensor, wanted, type, shape[-1])

    def _wanted(self, tensor: str, facts: Facts) -> str:
        if tensor == OUTPUT or (facts.tied and tensor == EMBEDDING):
            return self.output
        if tensor == EMBEDDING:
            return self.embedding or self.most
        inside = IN_LAYER.fullmatch(tensor)
        stem = inside["stem"] if inside else ""
        if facts.experts and self.beside and stem not in EXPERTS:
            return self.beside
        if inside and self.better and SENSITIVE.fullmatch(stem):
            if facts.encodes and stem == "attn_v":  # one product with queries and keys
                return self.most
            return self.better if counts_for_more(int(inside["layer"]), facts.layers) else self.most
        return self.most


def stays_f32(tensor: str) -> bool:
    """Whether a matrix keeps 32 bits in any format: also the vectors that experts have each."""
    ends = (".bias", ".ssm_a", ".ssm_d")
    return tensor.endswith(ends) or any(part in tensor for part in KEPT_PARTS)


def counts_for_more(layer: int, layers: int) -> bool:
    """Whether a layer is of the first or the last eighth, or every third in between."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def fitting(name: str, inputs: int) -> str:
    """A type whose blocks fill rows of ``inputs``: this one, or the nearest that does."""
    if inputs % FORMATS[name].block == 0:
        return name
    other = FALLBACKS.get(name, name)
    return other if inputs % FORMATS[other].block == 0 else WITHOUT_BLOCKS


MIXTURES: Final[Mapping[str, Mixture]] = {
    row.name: row
    for row in (
        Mixture("q8_0", 7, "Q8_0", "Q8_0"),
        Mixture("q4_0", 2, "Q4_0", "Q6_K"),
        Mixture("q4_1", 3, "Q4_1", "Q6_K"),
        Mixture("q5_0", 8, "Q5_0", "Q6_K"),
        Mixture("q5_1", 9, "Q5_1", "Q6_K"),
        Mixture("q4_k", 14, "Q4_K", "Q6_K"),
        Mixture("q4_k_m", 15, "Q4_K", "Q6_K", better="Q6_K"),
        Mixture("q5_k", 16, "Q5_K", "Q6_K"),
        Mixture("q5_k_m", 17, "Q5_K", "Q6_K", better="Q6_K"),
        Mixture("q6_k", 18, "Q6_K", "Q6_K"),
        Mixture("mxfp4", 38, "MXFP4", "Q8_0", embedding="Q8_0", beside="Q8_0"),
    )
}
"""By name. The numbers are llama.cpp's: those of Q4_K_S and Q5_K_S stand for q4_k and q5_k."""
