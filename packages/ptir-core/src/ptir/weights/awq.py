"""AWQ (Lin et al. 2023): inputs that matter are scaled up, then extremes of weights are clipped.

Where the inputs x of matrices are divided by s and the matrices' columns multiplied, nothing
changes but how finely each column is rounded. Which s is found on a grid: powers of the mean
magnitude of each input, and of that over the usual magnitude of its weights. Blocks whose extremes
are clipped are rounded more finely; each block takes the share of its extreme that costs least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptir.weights.decode import decode
from ptir.weights.quantizers import quantize
from ptir.weights.record import WeightFormat

Array = NDArray[Any]
POWERS: Final = tuple(number / 20 for number in range(21))
"""The powers that are tried."""
SHARES: Final = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
"""The shares of a block's extreme that are tried; 1 clips nothing."""
SAMPLE: Final = 512
"""Rows of a matrix, equally far apart, by which scales are judged."""
ROWS: Final = 256
"""Rows whose clipping a thread looks for at a time."""
LEAST: Final = 1e-4
"""Magnitudes below this share of the greatest count as that."""


class Weighed(NamedTuple):
    """A matrix f32[outputs, inputs], its format, and the sum f64 of x xᵀ over its inputs."""

    format: WeightFormat
    weights: Array
    hessian: Array


class Scaling(NamedTuple):
    """The scale f32 of every input, and the errors without it and with it."""

    scales: Array
    before: float
    after: float

    @property
    def useful(self) -> bool:
        """Whether it makes the error less."""
        return self.after < self.before


def scales_tried(magnitudes: Array, weights: Array) -> Iterator[Array]:
    """Scales f32[inputs] to try, the greatest times the least of each 1; the first are all 1.

    ``magnitudes`` are those of inputs, ``weights`` the usual ones of the columns that they meet.
    """
    inputs, columns = (np.maximum(one, LEAST * (one.max() or 1.0)) for one in (magnitudes, weights))
    for power in POWERS:
        yield _balanced(inputs**power)
    for power in POWERS:
        yield _balanced(inputs**power / columns ** (1 - power))


def _balanced(scales: Array) -> Array:
    found: Array = (scales / np.sqrt(scales.max() * scales.min())).astype(np.float32)
    return found


def searched(
    matrices: Sequence[Weighed],
    magnitudes: Array,
    shared: Callable[[Array], Array],
    processors: int = 1,
) -> Scaling:
    """The scales f32[inputs] with the least error of all ``matrices``, which share their inputs.

    ``magnitudes`` f64[inputs] are not all 0. ``shared`` makes values of inputs that must have one
    scale the same.
    """
    sampled = [
        Weighed(one.format, one.weights[:: -(-len(one.weights) // SAMPLE)], one.hessian)
        for one in matrices
    ]
    usual = np.mean([_usual(one) for one in sampled], axis=0)
    tried = list(scales_tried(shared(magnitudes), shared(usual)))

    def error(scales: Array) -> float:
        return sum(_error(one, scales) for one in sampled)

    with ThreadPoolExecutor(processors) as pool:
        errors = list(pool.map(error, tried))
    best = min(range(len(tried)), key=errors.__getitem__)
    return Scaling(tried[best], errors[0], errors[best])


def _usual(one: Weighed) -> Array:
    """The mean share f64[inputs] that the weights of an input have of their blocks' extremes."""
    size = np.abs(one.weights).reshape(len(one.weights), -1, one.format.block)
    extreme = size.max(-1, keepdims=True)
    share = np.divide(size, extreme, out=np.zeros_like(size), where=extreme > 0)
    found: Array = share.reshape(one.weights.shape).mean(0, dtype=np.float64)
    return found


def _error(one: Weighed, scales: Array) -> float:
    """The error of the outputs of a matrix that is rounded with its inputs scaled."""
    rounded = decode(one.format, quantize(one.format, one.weights * scales)) / scales
    return output_error(rounded - one.weights, one.hessian)


def output_error(difference: Array, hessian: Array) -> float:
    """The sum of squares of what a difference f[outputs, inputs] of weights changes, in f64."""
    wide = difference.astype(np.float64)
    return float(np.einsum("oi,oi->", wide @ hessian, wide))


def clipping(one: Weighed, scales: Array, processors: int = 1) -> Array:
    """The share f32[outputs, blocks] of each block's extreme that costs least, ``scales`` applied.

    The error of a block counts without what the errors of others make of it.
    """
    block = one.format.block
    places = np.arange(len(one.hessian)).reshape(-1, block)
    hessians = one.hessian[places[:, :, None], places[:, None, :]]

    def part(first: int) -> Array:
        weights = one.weights[first : first + ROWS]
        errors = [_block_errors(one.format, weights, scales, hessians, s) for s in SHARES]
        found: Array = np.array(SHARES, np.float32)[np.argmin(errors, axis=0)]
        return found

    with ThreadPoolExecutor(processors) as pool:
        return np.concatenate(list(pool.map(part, range(0, len(one.weights), ROWS))))


def _block_errors(
    format: WeightFormat, weights: Array, scales: Array, hessians: Array, share: float
) -> Array:
    """The error f64[outputs, blocks] of each block with its extremes clipped to a share."""
    shares = np.full((len(weights), len(hessians)), share, np.float32)
    rounded = decode(format, quantize(format, clipped(weights * scales, shares))) / scales
    by_block = (rounded - weights).astype(np.float64).reshape(len(weights), *hessians.shape[:2])
    by_block = np.ascontiguousarray(by_block.transpose(1, 0, 2))
    found: Array = np.einsum("boi,boi->ob", by_block @ hessians, by_block)
    return found


def clipped(weights: Array, shares: Array) -> Array:
    """Weights f32[outputs, inputs] with each block's extreme cut to its share f32[outputs, blocks].

    A share of 1 changes nothing.
    """
    blocks = weights.reshape(*shares.shape, -1)
    most = np.abs(blocks).max(-1, keepdims=True) * shares[..., None]
    return np.clip(blocks, -most, most).reshape(weights.shape)
