"""What language models with layer norms share; a family's file says how its parts are called.

Sizes, heads that rotate and attend, a projection before and one after an activation, the order of
norms and residuals. The way of tokens through the blocks to logits is that of every decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import CheckpointError, short
from ptir.models.causal import CachePositions, Decoder, DecoderBlock
from ptir.models.fields import flag, whole, whole_or_none
from ptir.models.llama import ACTIVATIONS as GATED
from ptir.models.rotation import frequencies
from ptir.nn import LayerNorm, Linear, Module, cached_attention, fused_linear
from ptir.nn.state import LayerState, LayerTensors, keys_values


def _relu(x: Tensor) -> Tensor:
    return F.maximum(x, 0.0)


ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    **GATED,
    "gelu_fast": GATED["gelu_new"],
    "relu": _relu,
}
"""By the name that a configuration gives it."""

SIZES: Final = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
)
"""What every configuration calls so."""


def activation(config: Mapping[str, Any], key: str) -> str:
    """The activation that ``config`` names at ``key``; raises ``CheckpointError``."""
    found = config.get(key)
    if not isinstance(found, str) or found not in ACTIVATIONS:
        raise CheckpointError(
            f"{config.get('model_type')}: {key} {short(found)} is not implemented;"
            f" {', '.join(ACTIVATIONS)} are: choose a checkpoint with one of these"
        )
    return found


def context(read: Callable[[Mapping[str, Any]], Config]) -> Callable[[Mapping[str, Any]], int]:
    """How many positions a model has, by what ``read`` finds in its configuration."""
    return lambda config: read(config).sizes.max_position_embeddings


def rotated(config: Mapping[str, Any], head: int) -> tuple[float, ...]:
    """The angle per position of each pair of a head of ``head`` that rotates.

    How much of a head does is what the family means where ``rope_parameters`` say nothing of it.
    Raises ``CheckpointError``.
    """
    key = "partial_rotary_factor"
    meant = {key: config[key]} if key in config else {}
    given: Mapping[str, Any] = config.get("rope_parameters", {"rope_theta": 10000.0})
    nested = any(isinstance(one, Mapping) for one in given.values())
    entries = {kind: one for kind, one in given.items() if isinstance(one, Mapping)}
    by_type = {kind: {**meant, **one} for kind, one in entries.items()}
    rope = by_type if nested else {**meant, **given}
    return frequencies({**config, "rope_parameters": rope}, str(config.get("model_type")), head)


def refuse(config: Mapping[str, Any], key: str, wanted: bool) -> None:
    """Raise ``CheckpointError`` where a flag, ``wanted`` by default, is not ``wanted``."""
    if flag(config, key, wanted) != wanted:
        raise CheckpointError(
            f"{config.get('model_type')}: {key} {str(not wanted).lower()} is not implemented; only"
            f" {str(wanted).lower()} is: choose another checkpoint"
        )


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder; ``groups`` are the heads of keys and values."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    groups: int
    head_dim: int

    @staticmethod
    def of(
        config: Mapping[str, Any], *, groups: int | None = None, inner: int | None = None
    ) -> Sizes:
        """Read ``config``; ``inner`` is its ``intermediate_size`` where that is called otherwise.

        Without ``groups`` every head has its own keys. Raises ``CheckpointError``.
        """
        model = config.get("model_type")
        given = {name: whole(config, name) for name in SIZES}
        size, heads = given["hidden_size"], given["num_attention_heads"]
        if size % heads:
            raise CheckpointError(
                f"{model}: hidden_size {size} must be a multiple of num_attention_heads {heads};"
                " check config.json"
            )
        if heads % (groups or heads):
            raise CheckpointError(
                f"{model}: num_attention_heads {heads} must be a multiple of the {groups} heads of"
                " keys; check config.json"
            )
        head = whole_or_none(config, "head_dim") or size // heads
        if head * heads != size:
            raise CheckpointError(
                f"{model}: head_dim {head} is not implemented; only {size // heads}, hidden_size /"
                " num_attention_heads, is: choose another checkpoint"
            )
        return Sizes(
            **given,
            intermediate_size=inner or whole(config, "intermediate_size"),
            groups=groups or heads,
            head_dim=head,
        )


@dataclass(frozen=True)
class Heads:
    """How the heads of a layer attend: what is rotated, how far back is seen, which have biases."""

    sizes: Sizes
    bias: bool
    output_bias: bool
    frequencies: tuple[float, ...] = ()
    window: int | None = None
    layout: str = "half"

    def attended(
        self, q: Tensor, k: Tensor, v: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """What q f32[B,H,T,D] attends to, as f32[B,T,H*D], and the cache with k and v."""
        batch, _, length, _ = q.shape
        if self.frequencies:
            q, k = (self._rotated(part, at) for part in (q, k))
        seen, cache = cached_attention(q, k, v, cache, at.start, at.count, window=self.window)
        return seen.transpose(0, 2, 1, 3).reshape(batch, length, -1), cache

    def _rotated(self, x: Tensor, at: CachePositions) -> Tensor:
        rotary = 2 * len(self.frequencies)
        speeds = F.constant(self.frequencies)
        return F.rope(x, at.positions, speeds, layout=self.layout, rotary=rotary)


@dataclass(frozen=True)
class Config:
    """The part of ``config.json`` that shapes the computation of every family here."""

    sizes: Sizes
    heads: Heads
    epsilon: float
    activation: str
    parallel: bool = False

    @property
    def frequencies(self) -> tuple[float, ...]:
        """Those of the heads."""
        return self.heads.frequencies

    @property
    def state(self) -> LayerState:
        """What a layer keeps: the keys and values of its groups."""
        return keys_values(self.sizes.groups, self.sizes.head_dim, self.heads.window)


class FusedAttention(Module):
    """Attention with one projection, in which each group has its queries, its keys, its values.

    Its rows are [groups, heads of a group + 2, head size]; what it gives is taken apart, so that
    the weights stay as they are stored.
    """

    def __init__(self, heads: Heads) -> None:
        sizes = heads.sizes
        self.heads = heads
        outputs = (sizes.num_attention_heads + 2 * sizes.groups) * sizes.head_dim
        self.query_key_value = Linear(sizes.hidden_size, outputs, bias=heads.bias)
        self.dense = Linear(sizes.hidden_size, sizes.hidden_size, bias=heads.output_bias)

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        sizes, (batch, length, _) = self.heads.sizes, x.shape
        each = sizes.num_attention_heads // sizes.groups
        fused = self.query_key_value(x)
        fused = fused.reshape(batch, length, sizes.groups, each + 2, sizes.head_dim)
        q = fused[:, :, :, :each].reshape(batch, length, sizes.num_attention_heads, sizes.head_dim)
        parts = (q, fused[:, :, :, each], fused[:, :, :, each + 1])
        q, k, v = (part.transpose(0, 2, 1, 3) for part in parts)
        seen, cache = self.heads.attended(q, k, v, cache, at)
        return self.dense(seen), cache


class SplitAttention(Module):
    """Attention with a projection for queries, one for keys, one for values.

    ``output`` is what the family calls the last projection.
    """

    def __init__(self, heads: Heads, *, output: str) -> None:
        sizes = heads.sizes
        self.heads, self.output = heads, output
        rows = sizes.groups * sizes.head_dim
        self.q_proj = Linear(sizes.hidden_size, sizes.hidden_size, bias=heads.bias)
        self.k_proj = Linear(sizes.hidden_size, rows, bias=heads.bias)
        self.v_proj = Linear(sizes.hidden_size, rows, bias=heads.bias)
        last = Linear(sizes.hidden_size, sizes.hidden_size, bias=heads.output_bias)
        setattr(self, output, last)

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys f32[B,H,T,D] before they are rotated; as they are, in most families."""
        return q, k

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        batch, length, _ = x.shape
        projected = fused_linear(x, (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (
            part.reshape(batch, length, -1, self.heads.sizes.head_dim).transpose(0, 2, 1, 3)
            for part in projected
        )
        seen, cache = self.heads.attended(*self.normed(q, k), v, cache, at)
        last: Linear = getattr(self, self.output)
        return last(seen), cache


class MLP(Module):
    """Two projections around an activation; ``names`` are what the family calls them."""

    def __init__(self, config: Config, *, names: tuple[str, str], bias: bool) -> None:
        self.names, self.activation = names, config.activation
        size, inner = config.sizes.hidden_size, config.sizes.intermediate_size
        setattr(self, names[0], Linear(size, inner, bias=bias))
        setattr(self, names[1], Linear(inner, size, bias=bias))

    def __call__(self, x: Tensor) -> Tensor:
        """f32[B,T,D] to f32[B,T,D]."""
        first, last = (getattr(self, name) for name in self.names)
        result: Tensor = last(ACTIVATIONS[self.activation](first(x)))
        return result


class BlockNames(NamedTuple):
    """What the parts of a block are called: attributes, and so the keys of checkpoints.

    A block without a ``second`` norm has no name of one.
    """

    attention: str = "self_attn"
    mlp: str = "mlp"
    first: str = "input_layernorm"
    second: str = "post_attention_layernorm"


class ResidualBlock(Module):
    """Attention and MLP beside a residual, each behind a norm.

    Where it is ``parallel`` both read the block's input, else the MLP reads what attention has been
    added to. Without a second norm the MLP reads what the first makes of the block's input.
    """

    names: BlockNames = BlockNames()

    def __init__(self, config: Config, attention: Module, mlp: Module) -> None:
        self.state = config.state
        self.parallel = config.parallel
        for name in filter(None, (self.names.first, self.names.second)):
            setattr(self, name, LayerNorm(config.sizes.hidden_size, epsilon=config.epsilon))
        setattr(self, self.names.attention, attention)
        setattr(self, self.names.mlp, mlp)

    def __call__(
        self, x: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """f32[B,T,D] and this layer's cache to f32[B,T,D] and the extended cache."""
        attention, mlp, first = (getattr(self, name) for name in self.names[:3])
        second = getattr(self, self.names.second) if self.names.second else None
        normed = first(x)
        attended, cache = attention(normed, cache, at)
        if self.parallel:
            return x + attended + mlp(normed if second is None else second(x)), cache
        assert second is not None
        x = x + attended
        return x + mlp(second(x)), cache


class LayerNormDecoder(Decoder):
    """A language model whose last norm is a layer norm, or which has none (``last_norm``)."""

    def __init__(
        self,
        config: Config,
        make_block: Callable[[], DecoderBlock],
        *,
        tied: bool,
        width: int | None = None,
        last_norm: bool = True,
        head_bias: bool = False,
    ) -> None:
        sizes = config.sizes
        norm = LayerNorm(sizes.hidden_size, epsilon=config.epsilon) if last_norm else None
        super().__init__(
            sizes.vocab_size,
            sizes.hidden_size,
            [make_block() for _ in range(sizes.num_hidden_layers)],
            norm,
            tied=tied,
            width=width,
            head_bias=head_bias,
        )
        self.config = config
