"""Multi-token prediction (MTP): a block behind a model's, which says what follows the next token.

The head reads what the model made of a position and the token behind it (DeepSeek-V3, 2024), and
shares the model's embedding and output. Qwen stores one as ``mtp.*``, GGUF files as ``nextn``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.models.causal import CachePositions, Decoder, DecoderBlock
from ptir.models.fields import whole_or_none
from ptir.nn import Linear, Module, RMSNorm, last_rows
from ptir.nn.state import HiddenStates, LayerState, LayerTensors, State, whole

HEADS: Final = "mtp_num_hidden_layers"
"""The key of config.json that counts heads."""
HEAD: Final = "mtp."
"""What the names of a head's parameters begin with."""
OWN: Final = (f"{HEAD}embed_tokens.weight", f"{HEAD}lm_head.weight")
"""Tensors of heads that do not share the model's embedding or output, which are not implemented."""


def stored_heads(config: Mapping[str, Any], names: Collection[str]) -> int:
    """How many heads of the implemented kind are stored, whole or in part: as said, or one."""
    said = whole_or_none(config, HEADS)
    stored = any(one.startswith(HEAD) for one in names) and not any(one in names for one in OWN)
    return (1 if said is None else said) if stored else 0


def has_head(config: Mapping[str, Any]) -> bool:
    """Whether a model is to be built with a head; one is implemented."""
    return whole_or_none(config, HEADS) == 1


class NextN(Module):
    """A head: the joined norms of an embedding and of a hidden state, a block, a norm.

    ``block`` is called as those of the model are, ``norms`` are for the embedding, the hidden state
    and the output. Attribute names are the keys of Qwen's
    checkpoints.
    """

    def __init__(
        self, size: int, block: DecoderBlock, norms: tuple[RMSNorm, RMSNorm, RMSNorm]
    ) -> None:
        self.size = size
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = norms
        self.fc = Linear(2 * size, size, bias=False)
        self.layers = [block]

    @property
    def state(self) -> LayerState:
        """What the block carries between steps."""
        return self.layers[0].state

    def __call__(
        self, embedded: Tensor, hidden: Tensor, cache: LayerTensors, at: CachePositions
    ) -> tuple[Tensor, LayerTensors]:
        """Both f32[B,T,D] to what the model's output reads, f32[B,T,D], and the next state.

        ``hidden`` is what the model's output reads at a position, or what this head gave there;
        ``embedded`` is of the token behind it.
        """
        both = (self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden))
        x, cache = self.layers[0](self.fc(F.concat(both, axis=-1)), cache, at)
        return self.norm(x), cache


class Predicting:
    """A model whose steps keep what its head will read; a ``CausalModel``.

    Its state is the model's, then the head's, then the hidden states of all positions. The head
    stands a token behind: its position p has hidden state p and token p + 1. It reads nothing
    before it is asked, and then all that came since at once, which costs little more than a token.
    """

    def __init__(self, model: Decoder, head: NextN) -> None:
        self._model, self._head = model, head

    def states(self) -> tuple[LayerState, ...]:
        """Those of the model's layers, the head's and the hidden states.

        The head keeps all positions, since it proposes from places that no session knows of.
        """
        own = self._model.states()
        return (*own, *whole((self._head.state,)), HiddenStates(self._head.size))

    def __call__(
        self, tokens: Tensor, state: State, start: Tensor, count: Tensor, *, every: bool = False
    ) -> tuple[Tensor, State]:
        """Logits and the next state; see ``CausalModel``."""
        *own, cache, (kept,) = state
        x, after = self._model.hidden(tokens, tuple(own), start, count)
        x = self._model.normed(x)
        rows = x.reshape(x.shape[0], 1, *x.shape[1:]).astype(kept.dtype)
        kept = F.cache_update(kept, rows, start, count)
        logits = self._model.output(x if every else last_rows(x, count))
        return logits, (*after, cache, (kept,))

    def read(
        self, tokens: Tensor, kept: Tensor, cache: LayerTensors, start: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, LayerTensors, Tensor]:
        """The head takes in ``tokens`` i32[B,T], of which ``count`` i32[B] are real.

        They stand behind the ``start`` i32[B] positions that it holds and the next one, whose
        hidden states are in ``kept`` [B,1,C,D]. Returns the most likely token behind them, the
        head's hidden state f32[B,D] there, its next state and the position of that token, for
        ``propose``.
        """
        (rows, length), (places, size) = tokens.shape, kept.shape[2:]
        step = F.minimum(start.reshape(rows, 1) + F.arange(length), places - 1)
        flat = kept.reshape(rows * places, size)
        hidden = F.take(flat, step + (F.arange(rows) * places).reshape(rows, 1))
        at = CachePositions.of(start, count, length)
        embedded = self._model.embedded(tokens, at)
        x, cache = self._head(embedded, hidden.astype(embedded.dtype), cache, at)
        return self._said(last_rows(x, count), cache, start + count + 1)

    def propose(
        self, token: Tensor, hidden: Tensor, cache: LayerTensors, start: Tensor
    ) -> tuple[Tensor, Tensor, LayerTensors, Tensor]:
        """What follows ``token`` i32[B], which the head said stands at position ``start`` i32[B].

        ``hidden`` f32[B,D] is the head's own of the position before. Returns the most likely token,
        the head's hidden state, its next state and the next ``start``.
        """
        at = CachePositions.of(start - 1, F.full((token.shape[0],), 1, "i32"), 1)
        embedded = self._model.embedded(token.reshape(-1, 1), at)
        x, cache = self._head(embedded, hidden.reshape(hidden.shape[0], 1, -1), cache, at)
        return self._said(x.reshape(*hidden.shape), cache, start + 1)

    def _said(
        self, x: Tensor, cache: LayerTensors, start: Tensor
    ) -> tuple[Tensor, Tensor, LayerTensors, Tensor]:
        return self._model.output(x).argmax(1), x, cache, start
