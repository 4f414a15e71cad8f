"""What causal language models share: an embedding, blocks, the last norm, a head, and one step.

A family's class says what these parts are called (``PartNames``) and which blocks it has; each
block declares what it carries from step to step. What a family does besides is an override of
``embedded``, ``narrowed`` or ``output``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.nn import Embedding, Linear, Module, last_rows
from ptir.nn.state import LayerState, LayerTensors, State


@dataclass(frozen=True)
class CachePositions:
    """Where the tokens of a step stand, and how many of each row are real."""

    start: Tensor
    count: Tensor
    positions: Tensor

    @staticmethod
    def of(start: Tensor, count: Tensor, length: int) -> CachePositions:
        """Those of ``length`` tokens of which ``count[b]`` are real, from ``start[b]`` on."""
        positions = start.reshape(-1, 1) + F.arange(length)
        return CachePositions(start, count, positions)


Step = Callable[[Tensor, LayerTensors, CachePositions], tuple[Tensor, LayerTensors]]
"""What attention, a recurrence and a block do: f32[B,T,D] and a layer's state to f32[B,T,D] and the
next state."""


class DecoderBlock(Protocol):
    """A block: a step that declares the state it takes and returns."""

    @property
    def state(self) -> LayerState:
        """What it carries between steps."""
        ...

    def __call__(
        self, x: Tensor, state: LayerTensors, at: CachePositions, /
    ) -> tuple[Tensor, LayerTensors]:
        """See ``Step``."""
        ...


class PartNames(NamedTuple):
    """What the parts of a decoder are called: attributes, and so the keys of checkpoints."""

    embedding: str = "embed_tokens"
    blocks: str = "layers"
    norm: str = "norm"
    head: str = "lm_head"


class Decoder(Module):
    """A causal language model (``CausalModel``) of blocks.

    ``names`` are those of a family. Its ``rows`` of the embedding are ``width`` wide, as wide as
    the blocks (``size``) unless it is said. ``norm`` may be None. A ``tied`` model has no head but
    the embedding.
    """

    names: ClassVar[PartNames] = PartNames()

    def __init__(
        self,
        rows: int,
        size: int,
        blocks: Sequence[DecoderBlock],
        norm: Module | None,
        *,
        tied: bool,
        width: int | None = None,
        head_bias: bool = False,
    ) -> None:
        width = width or size
        head = None if tied else Linear(width, rows, bias=head_bias)
        setattr(self, self.names.embedding, Embedding(rows, width, is_head=tied))
        setattr(self, self.names.blocks, list(blocks))
        setattr(self, self.names.norm, norm)
        setattr(self, self.names.head, head)

    def states(self) -> tuple[LayerState, ...]:
        """What each block carries between steps."""
        return tuple(block.state for block in self._blocks())

    def _blocks(self) -> Sequence[DecoderBlock]:
        found: Sequence[DecoderBlock] = getattr(self, self.names.blocks)
        return found

    def _embedding(self) -> Embedding:
        found: Embedding = getattr(self, self.names.embedding)
        return found

    def embedded(self, tokens: Tensor, at: CachePositions) -> Tensor:
        """i32[B,T] to f32[B,T,D], the input of the first block."""
        return self._embedding()(tokens)

    def narrowed(self, x: Tensor) -> Tensor:
        """What the head reads of the last norm's output f32[...,D]; all of it, mostly."""
        return x

    def normed(self, x: Tensor) -> Tensor:
        """What the last norm makes of the output of the last block, both f32[...,D]."""
        norm: Callable[[Tensor], Tensor] | None = getattr(self, self.names.norm)
        return x if norm is None else norm(x)

    def output(self, x: Tensor) -> Tensor:
        """The last norm's output f32[...,D] to logits f32[...,V]."""
        head: Linear | None = getattr(self, self.names.head)
        x = self.narrowed(x)
        return F.linear(x, self._embedding().weight, layout="oi") if head is None else head(x)

    def logits(self, x: Tensor) -> Tensor:
        """The output of the last block f32[...,D] to f32[...,V]."""
        return self.output(self.normed(x))

    def hidden(
        self, tokens: Tensor, state: State, start: Tensor, count: Tensor
    ) -> tuple[Tensor, State]:
        """What the last block gives for ``tokens`` i32[B,T], f32[B,T,D], and the next state."""
        at = CachePositions.of(start, count, tokens.shape[1])
        x = self.embedded(tokens, at)
        after: list[LayerTensors] = []
        for block, before in zip(self._blocks(), state, strict=True):
            x, left = block(x, before, at)
            after.append(left)
        return x, tuple(after)

    def __call__(
        self, tokens: Tensor, state: State, start: Tensor, count: Tensor, *, every: bool = False
    ) -> tuple[Tensor, State]:
        """Logits and the next state; see ``CausalModel``."""
        x, after = self.hidden(tokens, state, start, count)
        return self.logits(x if every else last_rows(x, count)), after
