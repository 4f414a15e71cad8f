"""More of both tables: layouts of JAX and of Llama's own code, and what lies close to them."""

from __future__ import annotations

import math

from spellings import (
    LOWEST,
    QKV,
    ROPE,
    D,
    X,
    causal,
    differs,
    inverse,
    mean,
    plain_softmax,
    rotate_half,
    sigmoid,
    spelled,
)

from ptir import functional as F
from ptir.capture import call

ROWS = (("f32", 2, 5, 8),) * 3
HEADS_LAST = (("f32", 2, 5, 6, 8), ("i32", 2, 5))


def turned_pairs(x):
    """Of pairs (a, b) the pairs (-b, a)."""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    return F.stack([-pairs[..., 1], pairs[..., 0]], -1).reshape(*x.shape)


# --- what is found ---


@spelled("gelu", "jax.nn.gelu(approximate=False): erfc of -x", X, approximate="none")
def gelu_complement(x):
    return 0.5 * x * (1.0 - F.erf(-x * math.sqrt(0.5)))


@spelled("attention", "a lecture's single head: [B,T,C]", *ROWS, causal=True, scale=8**-0.5)
def attention_of_one_head(q, k, v):
    scores = q @ k.transpose(0, 2, 1) * 8**-0.5
    return plain_softmax(F.where(causal(5, 5), scores, -math.inf)) @ v


@spelled("attention", "Transformers: OPT, heads joined with the batch", *[("f32", 12, 5, 4)] * 3)
def attention_of_joined_heads(q, k, v):
    scores = ((q * 0.5) @ k.transpose(0, 2, 1)).reshape(2, 6, 5, 5)
    scores = scores + F.where(causal(5, 5), 0.0, LOWEST)
    return plain_softmax(scores.reshape(12, 5, 5)) @ v


@spelled("attention", "einsum BTKGH, BSKH", ("f32", 2, 5, 6, 4), *[("f32", 2, 5, 3, 4)] * 2)
def attention_of_grouped_queries(q, k, v):
    batch = {"lhs_batch": (0, 2), "rhs_batch": (0, 2)}
    grouped = q.reshape(2, 5, 3, 2, 4)
    scores = call("dot_general", grouped, k, lhs_contract=(4,), rhs_contract=(3,), **batch)
    scores = F.where(causal(5, 5), scores.transpose(0, 1, 3, 2, 4) * 0.5, LOWEST)
    batch = {"lhs_batch": (0, 1), "rhs_batch": (0, 2)}
    given = call(
        "dot_general", plain_softmax(scores), v, lhs_contract=(4,), rhs_contract=(1,), **batch
    )
    return given.transpose(0, 3, 1, 2, 4).reshape(2, 5, 6, 4)


@spelled("rope", "GPT-J: repeat_interleave of sine and cosine", *ROPE, layout="interleaved")
def rope_repeated_cosines(x, positions):
    angles = positions.reshape(2, 1, 5, 1).astype("f32") * inverse(10000.0)
    cosine, sine = (
        v.reshape(2, 1, 5, 4, 1).broadcast_to(2, 1, 5, 4, 2).reshape(2, 1, 5, 8)
        for v in (F.cos(angles), F.sin(angles))
    )
    return x * cosine + turned_pairs(x) * sine


@spelled("rope", "RoFormer: stacked sines and cosines", *ROPE, layout="interleaved")
def rope_stacked_cosines(x, positions):
    angles = positions.reshape(2, 1, 5, 1).astype("f32") * inverse(10000.0)
    cosine, sine = (F.stack([v, v], -1).reshape(2, 1, 5, 8) for v in (F.cos(angles), F.sin(angles)))
    return x * cosine + turned_pairs(x) * sine


@spelled("rope", "GPT-NeoX: sines and cosines joined twice", *ROPE, layout="half")
def rope_joined_cosines(x, positions):
    angles = positions.reshape(2, 1, 5, 1).astype("f32") * inverse(10000.0)
    cosine, sine = (F.concat([v, v], -1) for v in (F.cos(angles), F.sin(angles)))
    return x * cosine + rotate_half(x) * sine


@spelled("rope", "Gemma in Flax: [B,T,N,H], over a time scale", *HEADS_LAST, layout="half")
def rope_time_scale(x, positions):
    scale = 10000.0 ** (F.arange(4).astype("f32") * 2.0 / 8.0)
    angles = positions.reshape(2, 5, 1).astype("f32") / scale.reshape(1, 1, 4)
    cosine, sine = (v.reshape(2, 5, 1, 4) for v in (F.cos(angles), F.sin(angles)))
    a, b = x[..., :4], x[..., 4:]
    return F.concat([a * cosine - b * sine, b * cosine + a * sine], -1)


@spelled("rope", "Llama's own, before heads are moved", *HEADS_LAST, layout="interleaved")
def rope_complex_heads_last(x, positions):
    angles = positions.reshape(2, 5, 1, 1).astype("f32") * inverse(10000.0)
    cosine, sine = F.cos(angles), F.sin(angles)
    pairs = x.reshape(2, 5, 6, 4, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return F.stack([a * cosine - b * sine, a * sine + b * cosine], -1).reshape(2, 5, 6, 8)


# --- what is not ---


@differs("softmax", "a small number in the sum", X)
def softmax_epsilon(x):
    weights = F.exp(x - x.max(axis=-1, keepdims=True))
    return weights / (weights.sum(axis=-1, keepdims=True) + 1e-9)


@differs("softmax", "the sum over half of a line", X)
def softmax_half_sum(x):
    weights = F.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights[..., :4].sum(axis=-1, keepdims=True)


@differs("layer_norm", "the bias before the weight", X, D, D)
def layer_norm_bias_first(x, weight, bias):
    centred = x - mean(x)
    return (centred * F.rsqrt(mean(centred * centred) + 1e-5) + bias) * weight


@differs("layer_norm", "groups of a line", X, D, D)
def layer_norm_groups(x, weight, bias):
    groups = x.reshape(2, 5, 2, 4)
    centred = groups - mean(groups)
    normed = centred * F.rsqrt(mean(centred * centred) + 1e-5)
    return normed.reshape(2, 5, 8) * weight + bias


@differs("rms_norm", "the mean of a part", X, D)
def rms_norm_part(x, weight):
    part = x[..., :4]
    return x * F.rsqrt(mean(part * part) + 1e-6) * weight


@differs("rms_norm", "groups of a line: Mamba 2", X, D)
def rms_norm_groups(x, weight):
    groups = x.reshape(2, 5, 2, 4)
    return (groups * F.rsqrt(mean(groups * groups) + 1e-6)).reshape(2, 5, 8) * weight


@differs("gelu", "the logistic function, whose ends are more exact than one more than tanh", X)
def gelu_logistic(x):
    return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@differs("gelu", "the logistic function without the cube", X)
def gelu_logistic_without_cube(x):
    return x * sigmoid(1.5957691216057308 * x)


@differs("gelu", "another coefficient in the logistic function", X)
def gelu_logistic_coefficient(x):
    return x * sigmoid(1.5957691216057308 * (x + 0.0447 * x * x * x))


@differs("gelu", "one less erf, not more", X)
def gelu_minus(x):
    return 0.5 * x * (1.0 - F.erf(x * math.sqrt(0.5)))


@differs("silu", "the logistic function of -x", X)
def silu_minus(x):
    return x * sigmoid(-x)


@differs("swiglu", "one is added to what is gated: gpt-oss", X, X)
def swiglu_plus_one(gate, up):
    return gate * sigmoid(1.702 * gate) * (up + 1.0)


@differs("attention", "a key does not see itself", *QKV)
def attention_strictly_causal(q, k, v):
    seen = F.arange(5).reshape(1, 5) < F.arange(5).reshape(5, 1)
    return plain_softmax(F.where(seen, q @ k.transpose(0, 1, 3, 2) * 0.5, -math.inf)) @ v


@differs("attention", "a window to both sides", *QKV)
def attention_two_sided(q, k, v):
    offset = F.abs(F.arange(5).reshape(1, 5) - F.arange(5).reshape(5, 1))
    return plain_softmax(F.where(offset < 2, q @ k.transpose(0, 1, 3, 2) * 0.5, -math.inf)) @ v


@differs("attention", "the first keys are seen by all: a prefix", *QKV)
def attention_prefix(q, k, v):
    seen = causal(5, 5) | (F.arange(5).reshape(1, 5) < 2)
    return plain_softmax(F.where(seen, q @ k.transpose(0, 1, 3, 2) * 0.5, -math.inf)) @ v


@differs("attention", "the mask is bent with the scores", *QKV)
def attention_mask_bent(q, k, v):
    scores = q @ k.transpose(0, 1, 3, 2) * 0.5 + F.where(causal(5, 5), 0.0, -1e9)
    return plain_softmax(F.tanh(scores / 50.0) * 50.0) @ v


@differs("rope", "the angles of the halves differ", *ROPE)
def rope_two_bases(x, positions):
    place = positions.reshape(2, 1, 5, 1).astype("f32")
    both = F.concat([place * inverse(10000.0), place * inverse(5000.0)], -1)
    return x * F.cos(both) + rotate_half(x) * F.sin(both)


@differs("rope", "both scaled: YaRN", *ROPE)
def rope_scaled(x, positions):
    angles = positions.reshape(2, 1, 5, 1).astype("f32") * inverse(10000.0)
    both = F.concat([angles, angles], -1)
    return x * (F.cos(both) * 1.1) + rotate_half(x) * (F.sin(both) * 1.1)


@differs("rope", "[B,T,N,H], positions of heads", ("f32", 2, 5, 6, 8), ("i32", 2, 6))
def rope_positions_of_heads(x, positions):
    angles = positions.reshape(2, 1, 6, 1).astype("f32") * inverse(10000.0)
    angles = angles + F.arange(5).reshape(1, 5, 1, 1).astype("f32") * 0.5
    both = F.concat([angles, angles], -1)
    return x * F.cos(both) + rotate_half(x) * F.sin(both)


@differs("rope", "one cosine for both of a pair, of the next pair's angle", *ROPE)
def rope_shifted_pairs(x, positions):
    angles = positions.reshape(2, 1, 5, 1).astype("f32") * inverse(10000.0)
    next_angles = F.concat([angles[..., 1:], angles[..., :1]], -1)
    cosine, sine = (
        F.stack([f(angles), f(next_angles)], -1).reshape(2, 1, 5, 8) for f in (F.cos, F.sin)
    )
    return x * cosine + turned_pairs(x) * sine
