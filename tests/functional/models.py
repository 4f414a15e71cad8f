"""Independent float64 models of the functionals, written with loops and plain NumPy."""

from __future__ import annotations

import math

import numpy as np


def softmax(x, axis=-1):
    x = np.asarray(x, np.float64)
    top = x.max(axis=axis, keepdims=True, initial=-np.inf)
    weights = np.where(np.isneginf(x), 0.0, np.exp(x - np.where(np.isneginf(top), 0.0, top)))
    total = weights.sum(axis=axis, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)


def erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def attention(
    q,
    k,
    v,
    start=None,
    length=None,
    scale=None,
    causal=True,
    window=None,
    soft_cap=None,
    sinks=None,
):
    """One query at a time, over a Python list of the keys it sees."""
    B, H, T, D = q.shape
    group = H // k.shape[1]
    scale = 1 / math.sqrt(D) if scale is None else scale
    result = np.zeros(q.shape, np.float64)
    for b, h, t in np.ndindex(B, H, T):
        position = t + (0 if start is None else int(start[b]))
        limit = k.shape[2] if length is None else min(k.shape[2], int(length[b]))
        seen = [
            j
            for j in range(limit)
            if (not causal or j <= position) and (window is None or j > position - window)
        ]
        if not seen:
            continue
        keys, values = k[b, h // group, seen], v[b, h // group, seen]
        scores = keys.astype(np.float64) @ q[b, h, t].astype(np.float64) * scale
        if soft_cap is not None:
            scores = soft_cap * np.tanh(scores / soft_cap)
        weights = softmax(scores if sinks is None else np.append(scores, sinks[h]))
        result[b, h, t] = weights[: len(seen)] @ values.astype(np.float64)
    return result


def cache_update(cache, new, start, count):
    result = cache.copy()
    for b in range(cache.shape[0]):
        for t in range(min(new.shape[2], int(count[b]))):
            at = int(start[b]) + t
            if 0 <= at < cache.shape[2]:
                result[b, :, at] = new[b, :, t]
    return result


def causal_conv1d(x, weight, tail, count, bias=0.0):
    """Each channel by itself, through NumPy's own convolution."""
    result, kept = np.zeros(x.shape, np.float64), tail.copy()
    for b, c in np.ndindex(x.shape[0], x.shape[2]):
        line = np.concatenate([tail[b, :, c], x[b, :, c]]).astype(np.float64)
        result[b, :, c] = np.convolve(line, weight[c, ::-1].astype(np.float64), "valid")[
            : x.shape[1]
        ]
        real = min(max(int(count[b]), 0), x.shape[1])
        kept[b, :, c] = np.concatenate([tail[b, :, c], x[b, :real, c]])[real:]
    return result + bias, kept


def gated_delta_rule(q, k, v, g, beta, state, count):
    """Each head by itself: S <- (1 - beta k k^T) e^g S + beta k v^T, in float64."""
    B, G, T = g.shape
    shared, K = G // q.shape[1], q.shape[3]
    result, after = np.zeros(v.shape), state.astype(np.float64)
    for b, h in np.ndindex(B, G):
        S = after[b, h]
        for t in range(T):
            key, rate = k[b, h // shared, t].astype(np.float64)[:, None], float(beta[b, h, t])
            if t < count[b]:
                S = (np.eye(K) - rate * key @ key.T) @ (S * math.exp(g[b, h, t]))
                S = S + rate * key @ v[b, h, t].astype(np.float64)[None, :]
            result[b, h, t] = q[b, h // shared, t].astype(np.float64) @ S
        after[b, h] = S
    return result, after


def gated_linear_attention(q, k, v, g, state, count):
    """Every token against every earlier one, weighed by the decays between them, in float64."""
    B, G, T = g.shape
    shared = G // q.shape[1]
    result, after = np.zeros(v.shape), np.zeros(state.shape)
    for b, h in np.ndindex(B, G):
        steps = min(max(int(count[b]), 0), T)
        keys, values = k[b, h // shared].astype(np.float64), v[b, h].astype(np.float64)
        decay = np.where(np.arange(T) < steps, g[b, h].astype(np.float64), 0.0)

        def left(t, decay=decay, keys=keys, values=values, steps=steps, start=state[b, h]):
            S = start * math.exp(decay[:t].sum())
            for s in range(min(t, steps)):
                S = S + math.exp(decay[s + 1 : t].sum()) * np.outer(keys[s], values[s])
            return S

        for t in range(T):
            result[b, h, t] = q[b, h // shared, t].astype(np.float64) @ left(t + 1)
        after[b, h] = left(T)
    return result, after


def rope(x, positions, theta, layout, rotary):
    """Each pair is a complex number, turned by multiplication."""
    result = x.astype(np.float64)
    half = rotary // 2
    for i in range(half):
        first, second = (i, i + half) if layout == "half" else (2 * i, 2 * i + 1)
        turn = np.exp(1j * positions[:, None, :] * theta ** (-2 * i / rotary))
        turned = (x[..., first] + 1j * x[..., second].astype(np.float64)) * turn
        result[..., first], result[..., second] = turned.real, turned.imag
    return result


def distribution(logits, temperature, top_k, top_p, min_p):
    """The tokens that survive the filters, most likely first, as (token, weight) pairs.

    The second result is the least distance of a top-p or min-p decision from its threshold.
    """
    tokens = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    tokens = [i for i in tokens if logits[i] > -math.inf][: top_k if top_k > 0 else None]
    top = float(logits[tokens[0]])
    weights = {i: math.exp((float(logits[i]) - top) / temperature) for i in tokens}
    total = sum(weights.values())
    kept, before, margin = [], 0.0, math.inf
    for i in tokens:
        nucleus = top_p >= 1 or before < top_p * total
        if top_p < 1:
            margin = min(margin, abs(before / total - top_p))
        if min_p > 0:
            margin = min(margin, abs(weights[i] - min_p))
        if i == tokens[0] or (nucleus and weights[i] >= min_p):
            kept.append((i, weights[i]))
        before += weights[i]
    return kept, margin


def draw(kept, uniform):
    """The token whose stretch of the running sum holds ``uniform``, and how clear that is."""
    total, running = sum(w for _, w in kept), 0.0
    margin = math.inf
    chosen = None
    for token, weight in kept:
        running += weight
        margin = min(margin, abs(running / total - uniform))
        if chosen is None and running / total > uniform:
            chosen = token
    return kept[-1][0] if chosen is None else chosen, margin
