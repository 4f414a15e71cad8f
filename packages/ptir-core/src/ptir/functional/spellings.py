"""Other ways in which people write functionals: what the ``raise`` pass finds besides lowerings.

A spelling gives what the functional does, of all real numbers; it may round differently, and give
NaN where the functional has a number (a line that is masked throughout). What algebra alone makes
equal (``rewrite.normal``: the order of sums and products, a quotient for a product, a scale on one
side of a contraction or on the other) needs no row here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ptir.capture import Tensor
from ptir.functional import elementwise as each
from ptir.functional.arrays import concat, stack
from ptir.functional.define import lowering
from ptir.functional.elementwise import where
from ptir.functional.position import pair_frequencies
from ptir.functional.softmax import softmax
from ptir.ops.implementations import SPELLINGS
from ptir.types import F32


def spelling(functional: str, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the decorated function, over tensors, to the spellings of a functional."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        SPELLINGS.setdefault(functional, {})[name] = lowering(function)
        return function

    return decorate


@spelling("softmax", "plain")
def _softmax_plain(x: Tensor, *, axis: int) -> Tensor:
    """Without a thought for lines that are -inf throughout: PyTorch, JAX."""
    weights = each.exp(x - x.max(axis=axis, keepdims=True))
    return weights / weights.sum(axis=axis, keepdims=True)


@spelling("softmax", "by logarithm")
def _softmax_by_log(x: Tensor, *, axis: int) -> Tensor:
    """The exponential of a logarithmic softmax."""
    shifted = x - x.max(axis=axis, keepdims=True)
    return each.exp(shifted - each.log(each.exp(shifted).sum(axis=axis, keepdims=True)))


@spelling("softmax", "guarded")
def _softmax_guarded(x: Tensor, *, axis: int) -> Tensor:
    """0 put where a line is -inf throughout: PyTorch's decomposition of attention."""
    empty = ~(~(x == -math.inf)).any(axis=axis, keepdims=True)
    return where(empty, 0.0, softmax(x, axis=axis))


@spelling("gelu", "factored")
def _gelu_factored(x: Tensor, *, approximate: str) -> Tensor:
    """With the cube taken out of the argument of tanh: llama.cpp, Keras."""
    if approximate == "none":
        return (each.erf(x / math.sqrt(2.0)) + 1.0) * 0.5 * x
    inner = x * math.sqrt(2 / math.pi) * (1.0 + x * x * 0.044715)
    return x * 0.5 * (each.tanh(inner) + 1.0)


@spelling("gelu", "distributed")
def _gelu_distributed(x: Tensor, *, approximate: str) -> Tensor:
    """A sum of two halves."""
    if approximate == "none":
        return x * 0.5 + x * 0.5 * each.erf(x * math.sqrt(0.5))
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 + x * 0.5 * each.tanh(inner)


@spelling("silu", "by tanh")
def _silu_by_tanh(x: Tensor) -> Tensor:
    """The logistic function by tanh, as XLA computes it."""
    return x * (each.tanh(x * 0.5) * 0.5 + 0.5)


@spelling("silu", "by quotient")
def _silu_by_quotient(x: Tensor) -> Tensor:
    """The logistic function as exp(x) / (1 + exp(x))."""
    return x * each.exp(x) / (each.exp(x) + 1.0)


@spelling("layer_norm", "by mean square")
def _layer_norm_by_mean_square(
    x: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float
) -> Tensor:
    """The variance as mean(x * x) - mean(x) ** 2."""
    count = float(x.shape[-1])
    mean = x.sum(axis=-1, keepdims=True) / count
    variance = (x * x).sum(axis=-1, keepdims=True) / count - mean * mean
    return (x - mean) * each.rsqrt(variance + epsilon) * weight + bias


@spelling("layer_norm", "by clipped mean square")
def _layer_norm_clipped(x: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float) -> Tensor:
    """The same, no less than 0: Flax."""
    count = float(x.shape[-1])
    mean = x.sum(axis=-1, keepdims=True) / count
    variance = (x * x).sum(axis=-1, keepdims=True) / count - mean * mean
    return (x - mean) * each.rsqrt(each.maximum(variance, 0.0) + epsilon) * weight + bias


@spelling("layer_norm", "by factor")
def _layer_norm_by_factor(x: Tensor, weight: Tensor, bias: Tensor, *, epsilon: float) -> Tensor:
    """One factor and one shift: tf.nn.batch_normalization."""
    count = float(x.shape[-1])
    mean = x.sum(axis=-1, keepdims=True) / count
    centred = x - mean
    variance = (centred * centred).sum(axis=-1, keepdims=True) / count
    factor = each.rsqrt(variance + epsilon) * weight
    return x * factor + (bias - mean * factor)


@spelling("batch_norm", "centred")
def _batch_norm_centred(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float
) -> Tensor:
    """The mean taken from x itself: PyTorch, Keras."""
    return (x - mean) * each.rsqrt(variance + epsilon) * weight + bias


@spelling("rope", "rotate_half")
def _rope_rotate_half(
    x: Tensor,
    positions: Tensor,
    frequencies: Tensor | None = None,
    *,
    theta: float,
    layout: str,
    rotary: int,
) -> Tensor:
    """``x * cos + rotate_half(x) * sin`` with angles that repeat: Transformers."""
    B, _, T, D = x.shape
    half = rotary // 2
    if frequencies is None:
        frequencies = pair_frequencies(theta, rotary)
    angles = positions.astype(F32).reshape(B, 1, T, 1) * frequencies
    if layout == "interleaved":
        angles = stack([angles, angles], -1).reshape(B, 1, T, rotary)
        pairs = x[..., :rotary].reshape(*x.shape[:3], half, 2)
        turned = stack([-pairs[..., 1], pairs[..., 0]], -1).reshape(*x.shape[:3], rotary)
    else:
        angles = concat([angles, angles], -1)
        turned = concat([-x[..., half:rotary], x[..., :half]], -1)
    rotated = x[..., :rotary] * each.cos(angles) + turned * each.sin(angles)
    return rotated if rotary == D else concat([rotated, x[..., rotary:]], -1)


@spelling("rope", "complex")
def _rope_complex(
    x: Tensor,
    positions: Tensor,
    frequencies: Tensor | None = None,
    *,
    theta: float,
    layout: str,
    rotary: int,
) -> Tensor:
    """Real and imaginary parts that are put side by side again: Llama's own code."""
    B, H, T, D = x.shape
    half = rotary // 2
    if frequencies is None:
        frequencies = pair_frequencies(theta, rotary)
    angles = positions.astype(F32).reshape(B, 1, T, 1) * frequencies
    cosine, sine = each.cos(angles), each.sin(angles)
    if layout == "interleaved":
        pairs = x[..., :rotary].reshape(B, H, T, half, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        joined = stack([a * cosine - b * sine, a * sine + b * cosine], -1)
    else:
        pairs = x[..., :rotary].reshape(B, H, T, 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        joined = stack([a * cosine - b * sine, a * sine + b * cosine], -2)
    rotated = joined.reshape(B, H, T, rotary)
    return rotated if rotary == D else concat([rotated, x[..., rotary:]], -1)


# --- attention: skeletons only; what is masked is settled by normal forms ---


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(0, 1, 3, 2)


@spelling("attention", "bare")
def _attention_bare(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Nothing masked."""
    return softmax(_scores(q, k)) @ v


@spelling("attention", "selected")
def _attention_selected(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Scores where the mask holds, elsewhere a number that has no weight."""
    return softmax(where(mask, _scores(q, k), -math.inf)) @ v


@spelling("attention", "filled")
def _attention_filled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Scores replaced where the mask holds: PyTorch's masked_fill."""
    return softmax(where(mask, -math.inf, _scores(q, k))) @ v


@spelling("attention", "added")
def _attention_added(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """A mask of zeros and numbers that have no weight, added."""
    return softmax(_scores(q, k) + mask) @ v


@spelling("attention", "bent")
def _attention_bent(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """With a soft cap: Gemma 2."""
    return softmax(each.tanh(_scores(q, k)) + mask) @ v
