"""Layers with a state of one size: the causal convolution with its tail, and the gated delta rule.

Both are given a step of tokens and the state that the tokens before have left, and return what they
leave. Of row b only the first ``count[b]`` tokens are real; the others change no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from ptir.capture import Tensor, call
from ptir.functional import elementwise as each
from ptir.functional.arrays import arange, concat, full, stack
from ptir.functional.check import STORAGE, Checked
from ptir.functional.control import scan
from ptir.functional.define import composite_multi, functional, implementation
from ptir.functional.elementwise import where
from ptir.types import F32

Two = tuple[Tensor, Tensor]


@functional("causal_conv1d", "each channel's last W steps times its weights, plus bias; the tail")
def _causal_conv1d(
    x: Tensor, weight: Tensor, tail: Tensor, count: Tensor, bias: Tensor | None = None
) -> Two:
    (B, T, C), W = x.shape, weight.shape[1]
    steps = concat([tail, x], axis=1)
    taps = weight.astype(F32)
    y = steps[:, W - 1 :] * taps[:, W - 1]
    for tap in range(W - 1):
        y = y + steps[:, tap : tap + T] * taps[:, tap]
    rows = each.clamp(count, 0, T).reshape(B, 1) + arange(W - 1)
    flat = rows + (arange(B) * (T + W - 1)).reshape(B, 1)
    kept = call("take", steps.reshape(B * (T + W - 1), C), flat, axis=0) if B and W > 1 else tail
    return y if bias is None else y + bias, kept


def causal_conv1d(
    x: Tensor, weight: Tensor, tail: Tensor, count: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The depthwise convolution of x f32[B,T,C] over time that sees no later step, and its tail.

    ``y[b,t,c]`` is the sum over w of ``weight[c,w]`` times channel c at step t - (W - 1) + w; steps
    before the first are those of ``tail`` f32[B,W-1,C]. The weight [C,W] may be stored as f32, f16
    or bf16, the bias is f32[C]. The new tail is the last W - 1 steps of tail and x up to
    ``count[b]`` (i32[B]) steps of x: a row with count 0 keeps its own. Returns f32[B,T,C] and
    f32[B,W-1,C]. Raises ``TypeRuleError``.
    """
    signature = f"x[B,T,C] weight:{STORAGE}[C,W] tail[B,V,C] count:i32[B] bias[C]"
    operands = {"x": x, "weight": weight, "tail": tail, "count": count}
    operands |= {} if bias is None else {"bias": bias}
    checked = Checked("causal_conv1d", signature, **operands)
    W, V = checked["W"], checked["V"]
    rule = f"the tail has {V} steps; a weight of {W} taps needs W - 1, and W at least 1"
    checked.require(W > 0 and V == W - 1, "weight tail", rule)
    y, kept = composite_multi("causal_conv1d", *operands.values())
    return y, kept


CHUNK: Final = 64
"""Tokens of which the chunked form makes one step of the state (Yang et al. 2024)."""

UNROLLED: Final = 16
"""Chunks up to which it is written out; more are a loop."""


class _Step(NamedTuple):
    """The operands of a delta rule with a key head for each value head, and nothing unreal."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


def _prepared(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, count: Tensor, size: int
) -> _Step:
    """Operands of ``size`` tokens: those that are none neither decay nor write."""
    B, H, T, _ = q.shape
    Hv = v.shape[1]
    real = (arange(T) < count.reshape(B, 1)).reshape(B, 1, T)

    def shared(x: Tensor) -> Tensor:
        D = x.shape[3]
        each_head = x.reshape(B, H, 1, T, D).broadcast_to(B, H, Hv // H, T, D)
        return each_head.reshape(B, Hv, T, D)

    k, v = (where(real.reshape(B, 1, T, 1), x, 0.0) for x in (shared(k), v))
    g, beta = (where(real, x, 0.0) for x in (g, beta))
    return _Step(*(padded(x, size) for x in (shared(q), k, v, g, beta)))


def padded(x: Tensor, size: int) -> Tensor:
    """``x`` [B,H,T,...] with zeros behind its steps, which are ``size`` then."""
    (B, H, T), rest = x.shape[:3], x.shape[3:]
    return x if size == T else concat([x, full((B, H, size - T, *rest), 0.0)], axis=2)


def chunks_of(length: int) -> tuple[int, int]:
    """How many tokens a chunk of ``length`` tokens has, a power of two, and how many there are."""
    size = CHUNK if length > CHUNK else 1 << (length - 1).bit_length()
    return size, -(-length // size)


def product(a: Tensor, b: Tensor, *, over: tuple[int, int]) -> Tensor:
    """The product of matrices, summed over an axis of each; all axes but the last two are batch."""
    batch = tuple(range(a.ndim - 2))
    first, second = (a.ndim - 2 + axis for axis in over)
    return call(
        "dot_general",
        a,
        b,
        lhs_contract=(first,),
        rhs_contract=(second,),
        lhs_batch=batch,
        rhs_batch=batch,
    )


def state_kept(count: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The state after a step: rows without a token keep theirs, bit for bit."""
    return where((count > 0).reshape(count.shape[0], 1, 1, 1), new, old)


Operands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@functional("gated_delta_rule", "S e^g, then S + k (beta (v - S^T k))^T, and S^T q, token by token")
def _gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, count: Tensor
) -> Two:
    form = _recurrent if q.shape[2] == 1 else _chunked
    return form(q, k, v, g, beta, state, count)


@implementation("gated_delta_rule", "recurrent")
def _recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, count: Tensor
) -> Two:
    """A token after the other, as the rule is written; for decoding."""
    if q.shape[2] == 0:
        return v, state
    step = _prepared(q, k, v, g, beta, count, q.shape[2])

    def token(S: Tensor, at: _Step) -> Two:
        """S is read once for what k and q see, and once to be replaced: q sees (q k) delta more."""
        both = product(stack([at.k, at.q], axis=2), S, over=(1, 0))
        decay, beta = each.exp(at.g), at.beta.reshape(*at.beta.shape, 1)
        delta = beta * (at.v - both[:, :, 0] * decay.reshape(*decay.shape, 1))
        shared = (at.q * at.k).sum(axis=-1, keepdims=True)
        seen = both[:, :, 1] * decay.reshape(*decay.shape, 1) + shared * delta
        decay, key = decay.reshape(*decay.shape, 1, 1), at.k.reshape(*at.k.shape, 1)
        return S * decay + key * delta.reshape(*delta.shape[:2], 1, delta.shape[2]), seen

    if q.shape[2] == 1:
        new, seen = token(state, _Step(*(x.reshape(*x.shape[:2], *x.shape[3:]) for x in step)))
        return seen.reshape(v.shape), state_kept(count, new, state)
    rows = [x.transpose(2, 0, 1, *range(3, x.ndim)) for x in step]
    new, found = scan(lambda S, at: token(S, _Step(*at)), state, tuple(rows))
    return found.transpose(1, 2, 0, 3), state_kept(count, new, state)


@implementation("gated_delta_rule", "chunked")
def _chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, count: Tensor
) -> Two:
    """Chunks of tokens as products of matrices, the state once a chunk; for prompts."""
    (B, Hv, T, dv), dk = v.shape, q.shape[3]
    if T == 0:
        return v, state
    size, chunks = chunks_of(T)
    whole = _prepared(q, k, v, g, beta, count, chunks * size)
    cut = _Step(*(x.reshape(B, Hv, chunks, size, *x.shape[3:]) for x in whole))
    parts = _Chunks.of(cut, size)

    def step(S: Tensor, at: _Chunks) -> Two:
        delta = at.values - product(at.keys, S, over=(1, 0))
        seen = product(at.queries, S, over=(1, 0)) + product(at.inside, delta, over=(1, 0))
        return S * at.decay + product(at.left, delta, over=(0, 0)), seen

    S, found = over_chunks(step, state, parts, chunks)
    seen = found.transpose(1, 2, 0, 3, 4).reshape(B, Hv, chunks * size, dv)
    return seen[:, :, :T], state_kept(count, S.reshape(B, Hv, dk, dv), state)


class _Chunks(NamedTuple):
    """What is known of every chunk before the state S that it begins with.

    Its errors are ``delta = values - keys S``; it gives ``queries S + inside delta`` and leaves
    ``decay S + left^T delta``.
    """

    values: Tensor
    keys: Tensor
    queries: Tensor
    inside: Tensor
    left: Tensor
    decay: Tensor

    @staticmethod
    def of(cut: _Step, size: int) -> _Chunks:
        """From operands [B,H,N,size,...], for all chunks at once."""
        row, column = arange(size).reshape(size, 1), arange(size)
        between = decays(cut.g, row > column)
        since = each.exp(call("cumulative", cut.g, axis=3, kind="sum"))
        since, beta = (x.reshape(*x.shape, 1) for x in (since, cut.beta))
        mixed = where(row > column, product(cut.k, cut.k, over=(1, 1)) * between * beta, 0.0)
        solved = _unit_lower_inverse(mixed, size)
        inside = where(row >= column, product(cut.q, cut.k, over=(1, 1)) * between, 0.0)
        until_end = between[..., size - 1, :]
        return _Chunks(
            values=product(solved, cut.v * beta, over=(1, 0)),
            keys=product(solved, cut.k * (since * beta), over=(1, 0)),
            queries=cut.q * since,
            inside=inside,
            left=cut.k * until_end.reshape(*until_end.shape, 1),
            decay=since[..., size - 1 :, :],
        )


def decays(g: Tensor, after: Tensor) -> Tensor:
    """``exp(g[j+1] + ... + g[i])`` at (i, j), and 1 where ``after`` does not hold.

    Each sum is added up by itself: a difference of two long sums would lose small decays beside
    large ones.
    """
    size = g.shape[-1]
    rows = g.reshape(*g.shape, 1).broadcast_to(*g.shape, size)
    return each.exp(call("cumulative", where(after, rows, 0.0), axis=g.ndim - 1, kind="sum"))


def _unit_lower_inverse(strict: Tensor, size: int) -> Tensor:
    """The inverse of 1 + ``strict``, which is strictly lower triangular [...,size,size].

    Blocks along the diagonal are inverted, pairs of them joined to blocks of twice their size.
    (Powers of ``strict`` would need fewer products; where keys are alike they cancel badly.)
    """
    row, column = arange(size).reshape(size, 1), arange(size)
    result = where(row == column, 1.0, 0.0).broadcast_to(*strict.shape)
    for level in range(size.bit_length() - 1):
        (above, left), (below, right) = (
            [each.shift_right(axis, bits) for bits in (level, level + 1)] for axis in (column, row)
        )
        joins = where((below > above) & (left == right), strict, 0.0)
        if level:
            joins = product(product(result, joins, over=(1, 0)), result, over=(1, 0))
        result = result - joins
    return result


Chunks = TypeVar("Chunks", bound=tuple[Tensor, ...])


def over_chunks(
    step: Callable[[Tensor, Chunks], Two], state: Tensor, parts: Chunks, chunks: int
) -> Two:
    """The last state, and what the chunks [B,H,N,...] give, stacked along a first axis."""
    rows = tuple(x.transpose(2, 0, 1, *range(3, x.ndim)) for x in parts)
    made = type(parts)._make  # type: ignore[attr-defined]  # chunks are records with names
    if chunks > UNROLLED:
        last, found = scan(lambda S, at: step(S, made(at)), state, rows)
        return last, found
    given = []
    for number in range(chunks):
        state, seen = step(state, made(x[number] for x in rows))
        given.append(seen)
    return state, stack(given)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    """The gated delta rule over q, k f32[B,H,T,K] and v f32[B,G,T,V]: f32[B,G,T,V] and the state.

    Value head h uses query and key head h // (G // H). Of each, ``state`` holds a matrix S
    f32[B,G,K,V]. Token by token S is multiplied by exp(g), then k (beta (v - S^T k))^T is added,
    and S^T q is given; g and beta are f32[B,G,T]. Tokens from ``count[b]`` (i32[B]) on neither
    decay nor add: a row with count 0 keeps its state bit for bit. Results are accurate where keys
    are of length 1 at most, beta is in 0 .. 1 and g is not above 0, as models have them. Raises
    ``TypeRuleError``. Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2025.
    """
    signature = "q[B,H,T,K] k[B,H,T,K] v[B,G,T,V] g[B,G,T] beta[B,G,T] state[B,G,K,V] count:i32[B]"
    operands = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "state": state, "count": count}
    checked = Checked("gated_delta_rule", signature, **operands)
    H, G = checked["H"], checked["G"]
    fits = H > 0 and G % H == 0
    checked.require(fits, "q v", f"value heads {G} are not a multiple of key heads {H}")
    checked.require(min(checked["K"], checked["V"]) > 0, "q v", "the heads are empty")
    seen, new = composite_multi("gated_delta_rule", *operands.values())
    return seen, new
