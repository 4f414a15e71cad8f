"""The composites that the reference backend takes whole: one row each in ``CLAIMS``.

All compute in f32. Work is cut into blocks that fit a cache; see ``threads`` for who runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from ptir.backend import OpQuery
from ptir.ir import Instruction
from ptir.ops import numerics as xp
from ptir_backend_ref.attention import Attention
from ptir_backend_ref.convolution import conv2d
from ptir_backend_ref.experts import expert_linear
from ptir_backend_ref.linear import linear
from ptir_backend_ref.pooling import avg_pool2d, max_pool2d
from ptir_backend_ref.threads import over_rows

Array = np.ndarray[Any, np.dtype[Any]]
Kernel = Callable[..., Any]
f32 = np.float32


@dataclass(frozen=True)
class Claim:
    """A composite taken whole: operand dtypes, attributes (with choices, if few) and its binder.

    Several dtypes of an operand are written ``f32|f16``. ``bind(instruction, reusable)`` gives the
    function of the operands; operands named in ``optional`` count from the end of ``dtypes`` and
    may be missing.
    """

    dtypes: str
    bind: Callable[[Instruction, frozenset[int]], Kernel]
    attributes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    optional: int = 0

    def refusal(self, query: OpQuery) -> str | None:
        """Why the composite is left to its lowering, or None."""
        wanted, found = self.dtypes.split(), [t.dtype.name for t in query.operands]
        fits = all(f in w.split("|") for f, w in zip(found, wanted, strict=False))
        if not len(wanted) - self.optional <= len(found) <= len(wanted) or not fits:
            return f"{query.name} is taken whole for ({', '.join(wanted)}) only"
        if set(query.attributes) - {"name"} != set(self.attributes):
            return f"{query.name} is taken whole with {sorted(self.attributes)} only"
        for name, choices in self.attributes.items():
            if choices and query.attributes[name] not in choices:
                return f"{query.name} is taken whole with {name} one of {choices} only"
        return None


def place(x: Array, reuse: bool) -> Array:
    """Where a result in the shape of ``x`` goes: its own memory if nobody reads that again."""
    return x if reuse and x.flags.writeable and x.flags.c_contiguous else np.empty(x.shape, x.dtype)


def as_rows(x: Array) -> Array:
    """``x`` as a matrix of its last axis."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


# --- rows: norms and softmax ---


def layer_norm(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """``(x - mean) / sqrt(variance + epsilon) * weight + bias`` over the last axis."""
    epsilon = f32(instruction.attributes["epsilon"])

    def run(x: Array, weight: Array, bias: Array) -> Array:
        def piece(first: int, end: int) -> None:
            part = np.subtract(source[first:end], mean(source[first:end]), out=out[first:end])
            part /= np.sqrt(mean(np.square(part)) + epsilon)
            part *= weight
            part += bias

        result = place(x, 0 in reusable)
        source, out = as_rows(x), as_rows(result)
        over_rows(piece, *out.shape)
        return result

    return run


def rms_norm(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """``x / sqrt(mean of squares + epsilon) * weight`` over the last axis."""
    epsilon = f32(instruction.attributes["epsilon"])

    def run(x: Array, weight: Array) -> Array:
        def piece(first: int, end: int) -> None:
            part = source[first:end]
            root = np.sqrt(mean(np.square(part)) + epsilon)
            part = np.divide(part, root, out=out[first:end])
            part *= weight

        result = place(x, 0 in reusable)
        source, out = as_rows(x), as_rows(result)
        over_rows(piece, *out.shape)
        return result

    return run


def mean(rows: Array) -> Array:
    """The mean of each row, as a column."""
    total: Array = np.add.reduce(rows, axis=1, keepdims=True)
    total /= f32(rows.shape[1])
    return total


def softmax(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """``exp(x - max) / sum`` along an axis; a line that is -inf throughout gives 0."""
    axis = instruction.attributes["axis"]

    def run(x: Array) -> Array:
        def piece(first: int, end: int) -> None:
            part = source[first:end]
            most = np.maximum.reduce(part, axis=1, keepdims=True)
            most[most == -np.inf] = 0
            part = np.subtract(part, most, out=out[first:end])
            np.exp(part, out=part)
            total = np.add.reduce(part, axis=1, keepdims=True)
            total[total == 0] = 1
            part /= total

        moved = np.moveaxis(x, axis, -1)
        result = place(moved, 0 in reusable)
        source, out = as_rows(moved), as_rows(result)
        if out.size:
            over_rows(piece, *out.shape)
        return np.moveaxis(result, -1, axis)

    return run


# --- elements: activations ---


def _elements(body: Callable[..., Any], reusable: frozenset[int]) -> Kernel:
    """A kernel that calls ``body(out, *operands)`` on blocks of flat elements."""

    def run(*operands: Array) -> Array:
        def piece(first: int, end: int) -> None:
            body(out[first:end], *[x[first:end] for x in flat])

        result = place(operands[0], 0 in reusable)
        out, flat = result.reshape(-1), [x.reshape(-1) for x in operands]
        over_rows(piece, out.size, 1)
        return result

    return run


def gelu(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """``x / 2 * (1 + erf(x / sqrt(2)))``, or its tanh approximation."""
    tanh = instruction.attributes["approximate"] == "tanh"
    return _elements(_gelu_tanh if tanh else _gelu_erf, reusable)


_SLOPE: Final = f32(math.sqrt(2 / math.pi))
_CUBE: Final = f32(0.044715)


def _gelu_tanh(out: Array, x: Array) -> None:
    t = np.square(x)
    t *= _CUBE
    t *= x
    t += x
    t *= _SLOPE
    np.tanh(t, out=t)
    _gate(out, x, t)


def _gelu_erf(out: Array, x: Array) -> None:
    _gate(out, x, xp.erf(x * f32(math.sqrt(0.5))))


def _gate(out: Array, x: Array, t: Array) -> None:
    """``x / 2 * (1 + t)`` into ``out``; ``t`` is overwritten."""
    t += f32(1)
    t *= f32(0.5)
    np.multiply(t, x, out=out)


def silu(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """``x / (1 + exp(-x))``."""
    return _elements(_silu, reusable)


def _silu(out: Array, x: Array) -> None:
    t = np.negative(x)
    np.exp(t, out=t)
    t += f32(1)
    np.divide(x, t, out=out)


def swiglu(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """``silu(gate) * up``."""
    return _elements(_swiglu, reusable)


def _swiglu(out: Array, gate: Array, up: Array) -> None:
    _silu(out, gate)
    out *= up


# --- positions: cache, embedding, rope, attention ---


def cache_update(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """The cache with each row's new entries written, in place if nobody reads the old one."""
    inside = 0 in reusable

    def run(cache: Array, new: Array, start: Array, count: Array) -> Array:
        out = cache if inside and cache.flags.writeable else cache.copy(order="C")
        capacity, most = cache.shape[2], new.shape[2]
        for row, (at, given) in enumerate(zip(start.tolist(), count.tolist(), strict=True)):
            first, end = max(0, -at), min(given, most, capacity - at)
            if first < end:
                out[row, :, at + first : at + end] = new[row, :, first:end]
        return out

    return run


def embedding(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """The table's rows by id, clamped into range."""
    return lambda table, ids: xp.take(table, ids, axis=0)


def rope(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """Pairs of the first ``rotary`` entries turned by position * theta ** (-2 i / rotary).

    The frequencies may be given instead.
    """
    rotary, theta = instruction.attributes["rotary"], instruction.attributes["theta"]
    half = rotary // 2
    speeds = (float(theta) ** (np.arange(half) * (-2.0 / max(1, rotary)))).astype(f32)
    halves = instruction.attributes["layout"] == "half"
    even, odd = (
        (slice(0, half), slice(half, rotary))
        if halves
        else (slice(0, rotary, 2), slice(1, rotary, 2))
    )

    def run(x: Array, positions: Array, frequencies: Array = speeds) -> Array:
        angles = positions.astype(f32)[:, None, :, None] * frequencies
        cos, sin = xp.cos(angles), xp.sin(angles)
        out = np.empty(x.shape, f32)
        a, b = x[..., even], x[..., odd]
        np.subtract(a * cos, b * sin, out=out[..., even])
        np.add(b * cos, a * sin, out=out[..., odd])
        out[..., rotary:] = x[..., rotary:]
        return out

    return run


def attention(instruction: Instruction, reusable: frozenset[int]) -> Kernel:
    """See ``attention.Attention``."""
    given: dict[str, Any] = {
        name: value for name, value in instruction.attributes.items() if name != "name"
    }
    return Attention(instruction.types[0], **given)


CLAIMS: Final[dict[str, Claim]] = {
    "linear": Claim("f32 f32 f32", linear, {"layout": ("io", "oi")}, optional=1),
    "layer_norm": Claim("f32 f32 f32", layer_norm, {"epsilon": ()}),
    "rms_norm": Claim("f32 f32", rms_norm, {"epsilon": ()}),
    "softmax": Claim("f32", softmax, {"axis": ()}),
    "gelu": Claim("f32", gelu, {"approximate": ("none", "tanh")}),
    "silu": Claim("f32", silu),
    "swiglu": Claim("f32 f32", swiglu),
    "attention": Claim(
        "f32 f32 f32 i32 i32 f32",
        attention,
        {"scale": (), "causal": (), "window": (), "soft_cap": ()},
        optional=1,
    ),
    "conv2d": Claim(
        "f32 f32 f32",
        conv2d,
        {
            **dict.fromkeys(("strides", "low", "high", "dilation", "groups"), ()),
            "layout": ("hwio", "oihw"),
        },
        optional=1,
    ),
    "max_pool2d": Claim(
        "f32",
        max_pool2d,
        dict.fromkeys(("window", "strides", "low", "high", "dilation"), ()),
    ),
    "avg_pool2d": Claim(
        "f32",
        avg_pool2d,
        dict.fromkeys(("window", "strides", "low", "high", "count_include_pad"), ()),
    ),
    "cache_update": Claim("f32|f16|bf16 f32|f16|bf16 i32 i32", cache_update),
    "embedding": Claim("f32 i32", embedding),
    "expert_linear": Claim("f32 f32|f16|bf16 i32", expert_linear, {"experts": ()}),
    "rope": Claim(
        "f32 i32 f32",
        rope,
        {"theta": (), "layout": ("half", "interleaved"), "rotary": ()},
        optional=1,
    ),
}
