"""Linear attention whose past decays: what Mamba-2 computes of its state space.

A step of tokens and the state that those before have left give what the tokens see and the next
state. Of row b only the first ``count[b]`` tokens are real; the others change no state.
"""

from __future__ import annotations

from typing import NamedTuple

from ptir.capture import Tensor, call
from ptir.functional import elementwise as each
from ptir.functional.arrays import arange
from ptir.functional.check import Checked
from ptir.functional.control import scan
from ptir.functional.define import composite_multi, functional, implementation
from ptir.functional.elementwise import where
from ptir.functional.recurrence import (
    Two,
    chunks_of,
    decays,
    over_chunks,
    padded,
    product,
    state_kept,
)


class _Step(NamedTuple):
    """Operands of which nothing is unreal: q, k of [B,H,T,...], v and g of [B,G,T,...]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor


def _prepared(q: Tensor, k: Tensor, v: Tensor, g: Tensor, count: Tensor, size: int) -> _Step:
    """Operands of ``size`` tokens: those that are none neither decay nor write."""
    B, _, T = g.shape
    real = (arange(T) < count.reshape(B, 1)).reshape(B, 1, T)
    k, v = (where(real.reshape(B, 1, T, 1), x, 0.0) for x in (k, v))
    return _Step(*(padded(x, size) for x in (q, k, v, where(real, g, 0.0))))


@functional("gated_linear_attention", "S e^g + k v^T, and S^T q of that, token by token")
def _gated_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, count: Tensor
) -> Two:
    return (_recurrent if q.shape[2] == 1 else _chunked)(q, k, v, g, state, count)


@implementation("gated_linear_attention", "recurrent")
def _recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, count: Tensor) -> Two:
    """A token after the other, as it is written; for decoding."""
    (B, H, T, K), (_, G, _, V) = q.shape, v.shape
    if T == 0:
        return v, state
    step = _prepared(q, k, v, g, count, T)

    def each_head(x: Tensor) -> Tensor:
        return x.reshape(B, H, 1, K).broadcast_to(B, H, G // H, K).reshape(B, G, K)

    def token(S: Tensor, at: _Step) -> Two:
        """S is read once for what q sees, and once to be replaced: q sees (q k) v more."""
        query, key = each_head(at.q), each_head(at.k)
        decay = each.exp(at.g).reshape(B, G, 1)
        found = product(query.reshape(B, G, 1, K), S, over=(1, 0)).reshape(B, G, V)
        seen = found * decay + (query * key).sum(axis=-1, keepdims=True) * at.v
        return S * decay.reshape(B, G, 1, 1) + key.reshape(B, G, K, 1) * at.v[:, :, None], seen

    if T == 1:
        new, seen = token(state, _Step(*(x.reshape(*x.shape[:2], *x.shape[3:]) for x in step)))
        return seen.reshape(v.shape), state_kept(count, new, state)
    rows = tuple(x.transpose(2, 0, 1, *range(3, x.ndim)) for x in step)
    new, found = scan(lambda S, at: token(S, _Step(*at)), state, rows)
    return found.transpose(1, 2, 0, 3), state_kept(count, new, state)


class _Chunks(NamedTuple):
    """What is known of every chunk before the state that it begins with.

    Heads of values that share keys stand beside each other, their columns in one matrix W of the
    state: it gives ``since (queries W) + inside values`` and leaves ``decay W + keys^T left``.
    """

    queries: Tensor
    keys: Tensor
    inside: Tensor
    values: Tensor
    since: Tensor
    left: Tensor
    decay: Tensor


@implementation("gated_linear_attention", "chunked")
def _chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, count: Tensor) -> Two:
    """Chunks of tokens as products of matrices, the state once a chunk; for prompts."""
    (B, H, T, K), (_, G, _, V) = q.shape, v.shape
    if T == 0:
        return v, state
    size, chunks = chunks_of(T)
    R, whole = G // H, _prepared(q, k, v, g, count, chunks * size)
    parts = _of(whole, (B, H, R, chunks, size))

    def step(W: Tensor, at: _Chunks) -> Two:
        across = product(at.queries, W.reshape(B, H, K, R * V), over=(1, 0))
        across = across.reshape(B, H, size, R, V).transpose(0, 1, 3, 2, 4) * at.since
        added = product(at.keys, at.left, over=(0, 0)).reshape(B, H, K, R, V)
        return W * at.decay + added, across + product(at.inside, at.values, over=(1, 0))

    wide = state.reshape(B, H, R, K, V).transpose(0, 1, 3, 2, 4)
    wide, found = over_chunks(step, wide, parts, chunks)
    new = wide.transpose(0, 1, 3, 2, 4).reshape(B, G, K, V)
    seen = found.transpose(1, 2, 3, 0, 4, 5).reshape(B, G, chunks * size, V)
    return seen[:, :, :T], state_kept(count, new, state)


def _of(whole: _Step, sizes: tuple[int, int, int, int, int]) -> _Chunks:
    """From operands of [B,H,N*size,...] and [B,G,N*size,...], for all chunks at once."""
    (B, H, R, N, size), (K, V) = sizes, (whole.k.shape[3], whole.v.shape[3])
    q, k = (x.reshape(B, H, N, size, K) for x in (whole.q, whole.k))
    v = whole.v.reshape(B, H, R, N, size, V).transpose(0, 1, 3, 2, 4, 5)
    g = whole.g.reshape(B, H, R, N, size).transpose(0, 1, 3, 2, 4)
    row, column = arange(size).reshape(size, 1), arange(size)
    between = decays(g, row > column)
    scores = product(q, k, over=(1, 1)).reshape(B, H, N, 1, size, size)
    since = each.exp(call("cumulative", g, axis=4, kind="sum")).reshape(B, H, N, R, size, 1)
    left = v * between[..., size - 1, :].reshape(B, H, N, R, size, 1)
    return _Chunks(
        queries=q,
        keys=k,
        inside=where(row >= column, scores * between, 0.0),
        values=v,
        since=since,
        left=left.transpose(0, 1, 2, 4, 3, 5).reshape(B, H, N, size, R * V),
        decay=since[..., size - 1, :].reshape(B, H, N, 1, R, 1),
    )


def gated_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    """Linear attention with decays of q, k f32[B,H,T,K] and v f32[B,G,T,V], and its state.

    Value head h uses query and key head h // (G // H). Of each, ``state`` holds a matrix S
    f32[B,G,K,V]. Token by token S becomes S exp(g) + k v^T, with g f32[B,G,T] not above 0, and
    S^T q is given: f32[B,G,T,V]. Tokens from ``count[b]`` (i32[B]) on neither decay nor add: a row
    with count 0 keeps its state bit for bit. In the terms of state spaces k is B, q is C, v the
    input times its time step, and g the time step times A. Raises ``TypeRuleError``. Source: Dao
    and Gu, "Transformers are SSMs", 2024.
    """
    signature = "q[B,H,T,K] k[B,H,T,K] v[B,G,T,V] g[B,G,T] state[B,G,K,V] count:i32[B]"
    operands = {"q": q, "k": k, "v": v, "g": g, "state": state, "count": count}
    checked = Checked("gated_linear_attention", signature, **operands)
    H, G = checked["H"], checked["G"]
    fits = H > 0 and G % H == 0
    checked.require(fits, "q v", f"value heads {G} are not a multiple of key heads {H}")
    checked.require(min(checked["K"], checked["V"]) > 0, "q v", "the heads are empty")
    seen, new = composite_multi("gated_linear_attention", *operands.values())
    return seen, new
