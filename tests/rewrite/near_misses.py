"""Code that looks like a functional and is none; rows of ``NEAR_MISSES``."""

from __future__ import annotations

import math

from spellings import (
    LOWEST,
    PAIR,
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
)

from ptir import functional as F

# --- softmax ---


@differs("softmax", "the maximum is along another axis than the sum", X)
def softmax_other_axis(x):
    weights = F.exp(x - x.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=2, keepdims=True)


@differs("softmax", "no maximum: it overflows", X)
def softmax_without_maximum(x):
    return F.exp(x) / F.exp(x).sum(axis=-1, keepdims=True)


@differs("softmax", "the exponentials are read by somebody else", X)
def softmax_read_inside(x):
    weights = F.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True), weights * 2.0


@differs("softmax", "one more in the sum", X)
def softmax_one(x):
    weights = F.exp(x - x.max(axis=-1, keepdims=True))
    return weights / (weights.sum(axis=-1, keepdims=True) + 1.0)


@differs("softmax", "the minimum is subtracted", X)
def softmax_of_minimum(x):
    weights = F.exp(x - x.min(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@differs("softmax", "powers of two", X)
def softmax_base_two(x):
    weights = F.exp((x - x.max(axis=-1, keepdims=True)) * math.log(2.0))
    return weights / F.exp(x - x.max(axis=-1, keepdims=True)).sum(axis=-1, keepdims=True)


@differs("softmax", "the sum is of another tensor", X, X)
def softmax_other_sum(x, y):
    weights, others = (F.exp(a - x.max(axis=-1, keepdims=True)) for a in (x, y))
    return weights / others.sum(axis=-1, keepdims=True)


@differs("softmax", "the guard is for a line of -20000, not of -inf", X)
def softmax_other_guard(x):
    greatest = x.max(axis=-1, keepdims=True)
    weights = F.exp(x - F.where(greatest == -20000.0, 0.0, greatest))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / F.where(total == 0.0, 1.0, total)


# --- norms ---


@differs("layer_norm", "epsilon is outside of the root", X, D, D)
def layer_norm_epsilon_outside(x, weight, bias):
    centred = x - mean(x)
    return centred / (F.sqrt(mean(centred * centred)) + 1e-5) * weight + bias


@differs("layer_norm", "the statistics are of another axis", ("f32", 2, 8, 8), D, D)
def layer_norm_other_axis(x, weight, bias):
    centred = x - mean(x, 1)
    return centred * F.rsqrt(mean(centred * centred, 1) + 1e-5) * weight + bias


@differs("layer_norm", "mean and variance are of different axes", ("f32", 2, 8, 8), D, D)
def layer_norm_two_axes(x, weight, bias):
    centred = x - mean(x, 2)
    return centred * F.rsqrt(mean(centred * centred, 1) + 1e-5) * weight + bias


@differs("layer_norm", "the variance is Bessel's", X, D, D)
def layer_norm_bessel(x, weight, bias):
    centred = x - mean(x)
    variance = (centred * centred).sum(axis=-1, keepdims=True) / 7.0
    return centred * F.rsqrt(variance + 1e-5) * weight + bias


@differs("layer_norm", "the weight is along another axis", ("f32", 2, 8, 8), D, D)
def layer_norm_other_weight(x, weight, bias):
    centred = x - mean(x)
    normed = centred * F.rsqrt(mean(centred * centred) + 1e-5)
    return normed * weight.reshape(1, 8, 1) + bias


@differs("layer_norm", "the centred values are read by somebody else", X, D, D)
def layer_norm_read_inside(x, weight, bias):
    centred = x - mean(x)
    return centred * F.rsqrt(mean(centred * centred) + 1e-5) * weight + bias, centred * 3.0


@differs("layer_norm", "no bias: the residual is added", X, D)
def layer_norm_residual(x, weight):
    centred = x - mean(x)
    return centred * F.rsqrt(mean(centred * centred) + 1e-5) * weight + x


@differs("layer_norm", "the weight is a tensor as large as x", X, X, D)
def layer_norm_full_weight(x, weight, bias):
    centred = x - mean(x)
    return centred * F.rsqrt(mean(centred * centred) + 1e-5) * weight + bias


@differs("rms_norm", "epsilon is outside of the mean's root", X, D)
def rms_norm_epsilon_outside(x, weight):
    return x / (F.sqrt(mean(x * x)) + 1e-6) * weight


@differs("rms_norm", "a sum for the mean: an L2 norm", X, D)
def rms_norm_l2(x, weight):
    return x * F.rsqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6) * weight * 1.5


@differs("rms_norm", "absolute values for squares", X, D)
def rms_norm_absolute(x, weight):
    return x * F.rsqrt(mean(F.abs(x)) + 1e-6) * weight


@differs("rms_norm", "squares of another tensor", X, X, D)
def rms_norm_of_another(x, y, weight):
    return x * F.rsqrt(mean(y * y) + 1e-6) * weight


@differs("rms_norm", "the root without a reciprocal", X, D)
def rms_norm_multiplied(x, weight):
    return x * F.sqrt(mean(x * x) + 1e-6) * weight


@differs("batch_norm", "epsilon is added to the root", X, D, D, D, D)
def batch_norm_epsilon_outside(x, weight, bias, average, variance):
    return (x - average) / (F.sqrt(variance) + 1e-5) * weight + bias


@differs("batch_norm", "the shift forgets the weight", X, D, D, D, D)
def batch_norm_wrong_shift(x, weight, bias, average, variance):
    factor = F.rsqrt(variance + 1e-5)
    return x * (factor * weight) + (bias - average * factor)


@differs("batch_norm", "channels lie along another axis", ("f32", 2, 8, 8), D, D, D, D)
def batch_norm_channels_first(x, weight, bias, average, variance):
    weight, bias, average, variance = (
        v.reshape(1, 8, 1) for v in (weight, bias, average, variance)
    )
    return (x - average) * F.rsqrt(variance + 1e-5) * weight + bias


# --- activations ---


@differs("gelu", "a sigmoid for the distribution: QuickGELU", X)
def gelu_quick(x):
    return x * sigmoid(1.702 * x)


@differs("gelu", "another coefficient", X)
def gelu_other_coefficient(x):
    return 0.5 * x * (1.0 + F.tanh(0.7978845608 * (x + 0.044 * x**3.0)))


@differs("gelu", "a square for the cube", X)
def gelu_square(x):
    return 0.5 * x * (1.0 + F.tanh(0.7978845608 * (x + 0.044715 * x * x)))


@differs("gelu", "erf without the root of two", X)
def gelu_without_root(x):
    return 0.5 * x * (1.0 + F.erf(x))


@differs("gelu", "erf of another tensor", X, X)
def gelu_of_two(x, y):
    return 0.5 * x * (1.0 + F.erf(y * 0.7071067811865476))


@differs("gelu", "erf is read by somebody else", X)
def gelu_read_inside(x):
    distribution = 1.0 + F.erf(x * 0.7071067811865476)
    return 0.5 * x * distribution, distribution - 1.0


@differs("silu", "another slope: swish with beta", X)
def silu_beta(x):
    return x * sigmoid(1.5 * x)


@differs("silu", "the sign is gone", X)
def silu_sign(x):
    return x / (1.0 + F.exp(x))


@differs("silu", "two in the sum", X)
def silu_two(x):
    return x / (2.0 + F.exp(-x))


@differs("swiglu", "a sigmoid gate: GLU", X, X)
def swiglu_glu(gate, up):
    return up * sigmoid(gate)


@differs("swiglu", "the gated value is read by somebody else", X, X)
def swiglu_read_inside(gate, up):
    gated = gate * sigmoid(gate)
    return gated * up, gated + 1.0


@differs("swiglu", "a sum for the product", X, X)
def swiglu_sum(gate, up):
    return gate * sigmoid(gate) + up


# --- linear ---


@differs("linear", "a weight for each batch", X, ("f32", 2, 8, 6))
def linear_batched(x, weight):
    return x @ weight


@differs("linear", "whole numbers", ("i32", 2, 5, 8), ("i32", 8, 6))
def linear_of_integers(x, weight):
    return x @ weight


# --- attention ---


@differs("attention", "a mask from outside", *QKV, ("bool", 2, 1, 5, 5))
def attention_given_mask(q, k, v, mask):
    return plain_softmax(F.where(mask, q @ k.transpose(0, 1, 3, 2) * 0.5, -math.inf)) @ v


@differs("attention", "a bias from outside is added", *QKV, ("f32", 1, 6, 5, 5))
def attention_biased(q, k, v, bias):
    return plain_softmax(q @ k.transpose(0, 1, 3, 2) * 0.5 + bias) @ v


@differs("attention", "softmax over the queries", *QKV)
def attention_over_queries(q, k, v):
    return plain_softmax(q @ k.transpose(0, 1, 3, 2) * 0.5, axis=2) @ v


@differs("attention", "later keys are seen, earlier ones are not", *QKV)
def attention_anticausal(q, k, v):
    seen = F.arange(5).reshape(1, 5) >= F.arange(5).reshape(5, 1)
    return plain_softmax(F.where(seen, q @ k.transpose(0, 1, 3, 2) * 0.5, -math.inf)) @ v


@differs("attention", "a mask of another shape: by head", *QKV)
def attention_masked_heads(q, k, v):
    seen = F.arange(6).reshape(6, 1, 1) < 4
    return plain_softmax(F.where(seen, q @ k.transpose(0, 1, 3, 2) * 0.5, -math.inf)) @ v


@differs("attention", "a mask of -1e4, which scores in the thousands pass", *QKV)
def attention_low_mask(q, k, v):
    scores = q @ k.transpose(0, 1, 3, 2) * 0.5
    return plain_softmax(scores + F.where(causal(5, 5), 0.0, -1e4)) @ v


@differs("attention", "a mask that leaves weight: -1", *QKV)
def attention_weak_mask(q, k, v):
    mask = F.where(causal(5, 5), 0.0, -1.0)
    return plain_softmax(q @ k.transpose(0, 1, 3, 2) * 0.5 + mask) @ v


@differs("attention", "the weights are read by somebody else", *QKV)
def attention_weights_read(q, k, v):
    weights = plain_softmax(q @ k.transpose(0, 1, 3, 2) * 0.5)
    return weights @ v, weights + 0.0


@differs("attention", "the weights add up to two", *QKV)
def attention_doubled(q, k, v):
    return plain_softmax(q @ k.transpose(0, 1, 3, 2) * 0.5) * 2.0 @ v


@differs("attention", "squares of the scores", *QKV)
def attention_squares(q, k, v):
    scores = q @ k.transpose(0, 1, 3, 2)
    return plain_softmax(scores * scores) @ v


@differs("attention", "the position counts backwards", *QKV, PAIR)
def attention_backwards(q, k, v, start):
    place = F.arange(5).reshape(1, 1, 5, 1) - start.reshape(2, 1, 1, 1)
    seen = F.arange(5).reshape(1, 1, 1, 5) <= place
    return plain_softmax(F.where(seen, q @ k.transpose(0, 1, 3, 2) * 0.5, LOWEST)) @ v


# --- rope ---


@differs("rope", "the other half has the minus", *ROPE)
def rope_backwards(x, positions):
    angles = positions.reshape(2, 1, 5, 1).astype("f32") * inverse(10000.0)
    both = F.concat([angles, angles], -1)
    turned = F.concat([x[..., 4:], -x[..., :4]], -1)
    return x * F.cos(both) + turned * F.sin(both)


@differs("rope", "angles of pairs for a rotation of halves", *ROPE)
def rope_mixed_layouts(x, positions):
    angles = positions.reshape(2, 5, 1).astype("f32") * inverse(10000.0)
    both = F.stack([angles, angles], -1).reshape(2, 1, 5, 8)
    return x * F.cos(both) + rotate_half(x) * F.sin(both)


@differs("rope", "sine and cosine have changed places", *ROPE)
def rope_swapped(x, positions):
    angles = positions.reshape(2, 1, 5, 1).astype("f32") * inverse(10000.0)
    both = F.concat([angles, angles], -1)
    return x * F.sin(both) + rotate_half(x) * F.cos(both)


@differs("rope", "angles scaled apart: cosine of twice the angle", *ROPE)
def rope_two_angles(x, positions):
    angles = positions.reshape(2, 1, 5, 1).astype("f32") * inverse(10000.0)
    both = F.concat([angles, angles], -1)
    return x * F.cos(both * 2.0) + rotate_half(x) * F.sin(both)


# --- embedding ---


@differs("embedding", "columns are taken", ("f32", 8, 11), ("i32", 2, 5))
def embedding_columns(table, ids):
    return F.take(table, ids, axis=1)
