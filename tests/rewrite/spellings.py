"""What people and frameworks write for functionals, and what only looks like it.

A row of ``SPELLINGS`` is capture code, the functional that it is, the attributes, and where it was
found. A row of ``NEAR_MISSES`` is code that is not the functional, and what is different. Exports
are those of ``torch.export`` with its default decompositions, PyTorch 2.13; those of JAX are what
the functions named write as primitives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ptir
from ptir import functional as F
from ptir.ir.program import Block

Code = Callable[..., Any]
X, D, PAIR = ("f32", 2, 5, 8), ("f32", 8), ("i32", 2)
Q, K = ("f32", 2, 6, 5, 4), ("f32", 2, 3, 5, 4)
QKV = (Q, Q, Q)
LOWEST = -3.4028234663852886e38


@dataclass(frozen=True)
class Written:
    """Code, the functional that it is or is not, where it is from or what is different."""

    name: str
    code: Code
    specs: tuple[Any, ...]
    functional: str
    source: str
    attributes: dict[str, Any] = field(default_factory=dict)

    def block(self) -> Block:
        return ptir.capture(self.code, *(ptir.spec(*spec) for spec in self.specs)).main


SPELLINGS: list[Written] = []
NEAR_MISSES: list[Written] = []


def spelled(functional: str, source: str, *specs: Any, **attributes: Any) -> Callable[[Code], Code]:
    def add(code: Code) -> Code:
        name = code.__name__
        SPELLINGS.append(Written(name, code, specs, functional, source, attributes))
        return code

    return add


def differs(functional: str, what: str, *specs: Any) -> Callable[[Code], Code]:
    def add(code: Code) -> Code:
        NEAR_MISSES.append(Written(code.__name__, code, specs, functional, what))
        return code

    return add


def mean(x: Any, axis: int = -1) -> Any:
    return x.sum(axis=axis, keepdims=True) / float(x.shape[axis])


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + F.exp(-x))


def plain_softmax(x: Any, axis: int = -1) -> Any:
    weights = F.exp(x - x.max(axis=axis, keepdims=True))
    return weights / weights.sum(axis=axis, keepdims=True)


def repeated(k: Any, count: int) -> Any:
    """repeat_kv of Transformers."""
    batch, heads, length, size = k.shape
    wide = k.reshape(batch, heads, 1, length, size).broadcast_to(batch, heads, count, length, size)
    return wide.reshape(batch, heads * count, length, size)


def causal(queries: int, keys: int) -> Any:
    return F.arange(keys).reshape(1, keys) <= F.arange(queries).reshape(queries, 1)


# --- softmax ---


@spelled("softmax", "torch.export: _softmax, as its decomposition in torch/_refs", X, axis=2)
def softmax_torch(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    weights = F.exp(shifted)
    return weights / weights.sum(axis=-1, keepdims=True)


@spelled("softmax", "jax.nn.softmax: stop_gradient of the maximum", X, axis=1)
def softmax_jax(x):
    weights = F.exp(x - F.stop_gradient(x.max(axis=1, keepdims=True)))
    return weights / weights.sum(axis=1, keepdims=True)


@spelled("softmax", "exp of torch.log_softmax", X, axis=2)
def softmax_of_log_softmax(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    return F.exp(shifted - F.log(F.exp(shifted).sum(axis=-1, keepdims=True)))


@spelled("softmax", "Keras backends: a multiplication by the reciprocal", X, axis=2)
def softmax_reciprocal(x):
    weights = F.exp(x - x.max(axis=-1, keepdims=True))
    return weights * F.reciprocal(weights.sum(axis=-1, keepdims=True))


@spelled("softmax", "torch.export: scaled_dot_product_attention, _safe_softmax", X, axis=2)
def softmax_guarded(x):
    shown = (~(x == -math.inf)).any(axis=-1, keepdims=True)
    return F.where(~shown, 0.0, plain_softmax(x))


# --- norms ---


@spelled("layer_norm", "Keras: the variance of centred values", X, D, D, epsilon=1e-5)
def layer_norm_centred(x, weight, bias):
    centred = x - mean(x)
    return centred / F.sqrt(mean(centred * centred) + 1e-5) * weight + bias


@spelled("layer_norm", "torch.export: native_layer_norm, by var_mean", X, D, D, epsilon=1e-5)
def layer_norm_torch(x, weight, bias):
    average = x.sum(axis=2, keepdims=True) * 0.125
    variance = ((x - average) ** 2.0).sum(axis=2, keepdims=True) * 0.125
    return (x - average) * F.rsqrt(variance + 1e-5) * weight + bias


@spelled("layer_norm", "flax.linen.LayerNorm: mean of squares, clipped", X, D, D, epsilon=1e-6)
def layer_norm_flax(x, weight, bias):
    average = mean(x)
    variance = F.maximum(0.0, mean(x * x) - average * average)
    factor = F.rsqrt(variance + 1e-6) * weight.reshape(1, 1, 8)
    return (x - average) * factor + bias.reshape(1, 1, 8)


@spelled("layer_norm", "TensorFlow's BERT: tf.nn.batch_normalization", X, D, D, epsilon=1e-12)
def layer_norm_bert(x, weight, bias):
    average = mean(x)
    factor = F.rsqrt(mean((x - average) * (x - average)) + 1e-12) * weight
    return x * factor + (bias - average * factor)


@spelled("layer_norm", "minGPT-like code: pow(-0.5)", X, D, D, epsilon=1e-5)
def layer_norm_pow(x, weight, bias):
    centred = x - mean(x)
    return bias + weight * (centred * (mean(centred**2.0) + 1e-5) ** -0.5)


@spelled("layer_norm", "nanoGPT by hand: mean of squares", X, D, D, epsilon=1e-5)
def layer_norm_squares(x, weight, bias):
    average = mean(x)
    variance = mean(x * x) - average**2.0
    return weight * (x - average) / F.sqrt(variance + 1e-5) + bias


@spelled("rms_norm", "Transformers: LlamaRMSNorm", X, D, epsilon=1e-6)
def rms_norm_transformers(x, weight):
    variance = mean(x**2.0)
    return weight * (x * F.rsqrt(variance + 1e-6))


@spelled("rms_norm", "torch.export: nn.RMSNorm", X, D, epsilon=1e-6)
def rms_norm_torch(x, weight):
    return x * F.rsqrt((x**2.0).sum(axis=2, keepdims=True) * 0.125 + 1e-6) * weight


@spelled("rms_norm", "Flax: RMSNorm, the factor first", X, D, epsilon=1e-6)
def rms_norm_flax(x, weight):
    return x * (F.rsqrt(mean(x * x) + 1e-6) * weight)


@spelled("rms_norm", "llama2.c: one over the root", X, D, epsilon=1e-5)
def rms_norm_llama2c(x, weight):
    scale = 1.0 / F.sqrt((x * x).sum(axis=-1, keepdims=True) / 8.0 + 1e-5)
    return weight * (scale * x)


@spelled("rms_norm", "Gemma: one plus the weight", X, D, epsilon=1e-6)
def rms_norm_gemma(x, weight):
    return x * F.rsqrt(mean(x * x) + 1e-6) * (1.0 + weight)


@spelled("batch_norm", "PyTorch: _native_batch_norm_legit_no_training", X, D, D, D, D, epsilon=1e-5)
def batch_norm_torch(x, weight, bias, average, variance):
    return (x - average) * (1.0 / F.sqrt(variance + 1e-5)) * weight + bias


@spelled("batch_norm", "Keras: tf.nn.batch_normalization", X, D, D, D, D, epsilon=1e-3)
def batch_norm_keras(x, weight, bias, average, variance):
    factor = F.rsqrt(variance + 1e-3) * weight
    return x * factor + (bias - average * factor)


@spelled("batch_norm", "Flax: BatchNorm at inference", X, D, D, D, D, epsilon=1e-5)
def batch_norm_flax(x, weight, bias, average, variance):
    centred = x - average.reshape(1, 1, 8)
    factor = F.rsqrt(variance.reshape(1, 1, 8) + 1e-5) * weight.reshape(1, 1, 8)
    return centred * factor + bias.reshape(1, 1, 8)


# --- activations ---


@spelled("gelu", "torch/_refs: gelu, M_SQRT1_2", X, approximate="none")
def gelu_torch(x):
    return x * 0.5 * (1.0 + F.erf(x * 0.7071067811865476))


@spelled("gelu", "jax.nn.gelu(approximate=False), BERT's own", X, approximate="none")
def gelu_bert(x):
    return 0.5 * x * (1.0 + F.erf(x / math.sqrt(2.0)))


@spelled("gelu", "ONNX exports: Div, Erf, Add, Mul, Mul", X, approximate="none")
def gelu_onnx(x):
    return (x * (F.erf(x / 1.4142135381698608) + 1.0)) * 0.5


@spelled("gelu", "Transformers: NewGELUActivation", X, approximate="tanh")
def gelu_new(x):
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3.0)
    return 0.5 * x * (1.0 + F.tanh(inner))


@spelled("gelu", "Transformers: FastGELUActivation", X, approximate="tanh")
def gelu_fast(x):
    return 0.5 * x * (1.0 + F.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


@spelled("gelu", "jax.nn.gelu: the cumulative distribution first", X, approximate="tanh")
def gelu_jax(x):
    distribution = 0.5 * (1.0 + F.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return x * distribution


@spelled("silu", "torch.export: sigmoid, mul", X)
def silu_torch(x):
    return x * sigmoid(x)


@spelled("silu", "llama2.c, llama.cpp: a quotient", X)
def silu_quotient(x):
    return x / (1.0 + F.exp(-x))


@spelled("silu", "XLA: logistic by tanh", X)
def silu_xla(x):
    return x * (0.5 + 0.5 * F.tanh(0.5 * x))


@spelled("swiglu", "Transformers: LlamaMLP, act_fn(gate) * up", X, X)
def swiglu_transformers(gate, up):
    return gate * sigmoid(gate) * up


@spelled("swiglu", "llama2.c: the other factor first", X, X)
def swiglu_llama2c(gate, up):
    return up * (gate / (1.0 + F.exp(-gate)))


# --- linear ---


@spelled("linear", "torch.export: view, permute, addmm, view", X, ("f32", 6, 8), ("f32", 6))
def linear_addmm(x, weight, bias):
    return (x.reshape(10, 8) @ weight.transpose(1, 0) + bias).reshape(2, 5, 6)


@spelled("linear", "flax.linen.Dense: dot_general", X, ("f32", 8, 6), ("f32", 6), layout="io")
def linear_flax(x, kernel, bias):
    return x @ kernel + bias.reshape(1, 1, 6)


@spelled("linear", "torch.nn.functional.linear without a bias", X, ("f32", 6, 8), layout="oi")
def linear_transposed(x, weight):
    return x @ weight.transpose(1, 0)


# --- attention ---


@spelled("attention", "Attention Is All You Need, as written down", *QKV, causal=False, scale=0.5)
def attention_paper(q, k, v):
    return plain_softmax(q @ k.transpose(0, 1, 3, 2) / math.sqrt(4)) @ v


@spelled("attention", "jax.nn.dot_product_attention: BTHD", *[("f32", 2, 5, 6, 4)] * 3, scale=0.5)
def attention_heads_last(q, k, v):
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    return (plain_softmax((q * 0.5) @ k.transpose(0, 1, 3, 2)) @ v).transpose(0, 2, 1, 3)


@spelled("attention", "nanoGPT: masked_fill with -inf", *QKV, causal=True, scale=0.5)
def attention_masked_fill(q, k, v):
    scores = q @ k.transpose(0, 1, 3, 2) * (1.0 / math.sqrt(4))
    return plain_softmax(F.where(~causal(5, 5), -math.inf, scores)) @ v


@spelled("attention", "scores replaced by -1e10", *QKV, causal=True, scale=0.5)
def attention_openai(q, k, v):
    scores = q @ k.transpose(0, 1, 3, 2) * 0.5
    return plain_softmax(F.where(causal(5, 5), scores, -1e10)) @ v


@spelled("attention", "Transformers: repeat_kv, an added mask", Q, K, K, causal=True, scale=0.5)
def attention_transformers(q, k, v):
    k, v = repeated(k, 2), repeated(v, 2)
    mask = F.where(causal(5, 5), 0.0, LOWEST).reshape(1, 1, 5, 5)
    return plain_softmax(q @ k.transpose(0, 1, 3, 2) * 0.5 + mask) @ v


@spelled("attention", "torch.export: scaled_dot_product_attention", *QKV, causal=True, scale=0.5)
def attention_sdpa(q, k, v):
    q, k = q * 0.7071067811865476, k.transpose(0, 1, 3, 2) * 0.7071067811865476
    offset = F.arange(5).reshape(1, 5) - F.arange(5).reshape(5, 1)
    bias = F.where(offset <= 0, 0.0, -math.inf)
    scores = (q.reshape(12, 5, 4) @ k.reshape(12, 4, 5)).reshape(2, 6, 5, 5) + bias
    weights = softmax_guarded(scores).reshape(12, 5, 5)
    return (weights @ v.reshape(12, 5, 4)).reshape(2, 6, 5, 4)


@spelled("attention", "a step at a position in the cache", *QKV, PAIR, causal=True, scale=0.5)
def attention_positions(q, k, v, start):
    place = start.reshape(2, 1, 1, 1) + F.arange(5).reshape(1, 1, 5, 1)
    seen = F.arange(5).reshape(1, 1, 1, 5) <= place
    return plain_softmax(F.where(seen, q @ k.transpose(0, 1, 3, 2) * 0.5, LOWEST)) @ v


@spelled("attention", "Mistral: a sliding window", *QKV, causal=True, scale=0.5, window=2)
def attention_window(q, k, v):
    near = F.arange(5).reshape(1, 5) > F.arange(5).reshape(5, 1) - 2
    mask = F.where(causal(5, 5) & near, 0.0, -math.inf)
    return plain_softmax(q @ k.transpose(0, 1, 3, 2) * 0.5 + mask) @ v


@spelled("attention", "Gemma 2: soft cap", *QKV, causal=True, scale=0.5, soft_cap=50.0)
def attention_soft_cap(q, k, v):
    scores = F.tanh(q @ k.transpose(0, 1, 3, 2) * 0.5 / 50.0) * 50.0
    return plain_softmax(scores + F.where(causal(5, 5), 0.0, -math.inf)) @ v


@spelled("attention", "an added triangle of -inf, folded", *QKV, causal=True, scale=1.0)
def attention_unscaled(q, k, v):
    mask = F.constant([0.0 if j <= i else -math.inf for i in range(5) for j in range(5)])
    mask = mask.reshape(5, 5)
    return plain_softmax(q @ k.transpose(0, 1, 3, 2) + mask) @ v


# --- rope ---

ROPE = (("f32", 2, 6, 5, 8), ("i32", 2, 5))


def inverse(theta: float) -> Any:
    return F.constant([theta ** (-2 * i / 8) for i in range(4)])


def rotate_half(x: Any) -> Any:
    return F.concat([-x[..., 4:], x[..., :4]], -1)


@spelled("rope", "Transformers: apply_rotary_pos_emb", *ROPE, layout="half", theta=10000.0)
def rope_transformers(x, positions):
    angles = positions.reshape(2, 5, 1).astype("f32") * inverse(10000.0)
    both = F.concat([angles, angles], -1)
    cosine, sine = F.cos(both).reshape(2, 1, 5, 8), F.sin(both).reshape(2, 1, 5, 8)
    return x * cosine + rotate_half(x) * sine


@spelled("rope", "Transformers 4: inv_freq @ position_ids", *ROPE, layout="half", theta=500000.0)
def rope_matmul(x, positions):
    speeds = inverse(500000.0).reshape(1, 4, 1).broadcast_to(2, 4, 1)
    angles = (speeds @ positions.reshape(2, 1, 5).astype("f32")).transpose(0, 2, 1)
    both = F.concat([angles, angles], -1)
    cosine, sine = F.cos(both).reshape(2, 1, 5, 8), F.sin(both).reshape(2, 1, 5, 8)
    return x * cosine + rotate_half(x) * sine


@spelled("rope", "Llama's own: complex numbers", *ROPE, layout="interleaved", theta=10000.0)
def rope_complex(x, positions):
    angles = positions.reshape(2, 1, 5, 1).astype("f32") * inverse(10000.0)
    cosine, sine = F.cos(angles), F.sin(angles)
    pairs = x.reshape(2, 6, 5, 4, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return F.stack([a * cosine - b * sine, a * sine + b * cosine], -1).reshape(2, 6, 5, 8)


@spelled("rope", "JAX by hand: two halves joined", *ROPE, layout="half", theta=10000.0)
def rope_halves(x, positions):
    angles = positions.reshape(2, 1, 5, 1).astype("f32") * inverse(10000.0)
    cosine, sine = F.cos(angles), F.sin(angles)
    a, b = x[..., :4], x[..., 4:]
    return F.concat([a * cosine - b * sine, b * cosine + a * sine], -1)


@spelled("rope", "GPT-J: every second element", *ROPE, layout="interleaved", theta=10000.0)
def rope_gptj(x, positions):
    angles = positions.reshape(2, 5, 1).astype("f32") * inverse(10000.0)
    both = F.stack([angles, angles], -1).reshape(2, 1, 5, 8)
    pairs = x.reshape(2, 6, 5, 4, 2)
    turned = F.stack([-pairs[..., 1], pairs[..., 0]], -1).reshape(2, 6, 5, 8)
    return x * F.cos(both) + turned * F.sin(both)


# --- embedding ---


@spelled("embedding", "torch.nn.functional.embedding", ("f32", 11, 8), ("i32", 2, 5))
def embedding_take(table, ids):
    return F.take(table, ids, axis=0)
