"""GPTQ (Frantar et al. 2023): weights rounded input by input, each error made up for by the rest.

``hessian`` is the sum of x xᵀ over the inputs x that a matrix met. With it the error of an output
row is d H dᵀ, where d is what rounding changed. The factor U of H⁻¹ = Uᵀ U, which is upper
triangular, says how the inputs that are not rounded yet make up best for one that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptir.errors import QuantizationError
from ptir.weights.decode import codes_of, quantity_of, raw_bytes
from ptir.weights.encode import codes_for, encode, numbers_within
from ptir.weights.quantizers import quantize
from ptir.weights.record import Codebook, Integer, Numbers, Quantity, WeightFormat

Array = NDArray[Any]
INPUTS: Final = 128
"""Inputs whose errors reach those behind them in one product."""
ROWS: Final = 256
"""Outputs that a thread rounds at a time. A constant: it is part of how sums are rounded."""
DAMPING: Final = 0.01
"""What is added to the diagonal, as a share of its mean."""
MOST_DAMPING: Final = 1.0
"""Up to where damping is raised tenfold while the sum is singular."""


class Factor(NamedTuple):
    """U f64[inputs, inputs], upper triangular, its inputs in ``order``, and the damping it took."""

    upper: Array
    order: Array
    damping: float


def factor_of(hessian: Array, *, damping: float = DAMPING, act_order: bool = False) -> Factor:
    """The factor of a damped ``hessian`` f64[inputs, inputs].

    With ``act_order`` inputs that matter most, by the diagonal, are rounded first. Damping is
    raised while the sum has no Cholesky factor. Raises ``QuantizationError`` for sums that are not
    finite, that are 0, and that have no
    factor with the most damping.
    """
    diagonal = np.diagonal(hessian)
    if not np.isfinite(hessian).all():
        raise QuantizationError(
            "the sum of activations holds NaN or infinity: they overflow, or the model is damaged"
        )
    mean = float(diagonal.mean()) if diagonal.size else 0.0
    if mean <= 0:
        raise QuantizationError("all activations are 0: the calibration text says nothing of them")
    count = len(diagonal)
    order = np.argsort(-diagonal, kind="stable") if act_order else np.arange(count)
    ordered, share = hessian[np.ix_(order, order)], damping
    while True:
        damped = ordered + np.diag(np.full(count, share * mean))
        try:
            return Factor(_inverted(damped), order, share)
        except np.linalg.LinAlgError:
            if share >= MOST_DAMPING:
                raise QuantizationError(
                    f"the sum of activations has no Cholesky factor with damping {share:g} either:"
                    " give more calibration text, or round to nearest (--method rtn)"
                ) from None
            share = min(max(share * 10, DAMPING), MOST_DAMPING)


def _inverted(damped: Array) -> Array:
    """U of a positive definite matrix: its factor from the end, inverted.

    H = A Aᵀ with A upper triangular gives H⁻¹ = A⁻ᵀ A⁻¹, so nothing but A is inverted.
    """
    from_end = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
    upper = np.triu(np.linalg.inv(from_end))
    if not np.isfinite(upper).all():
        raise np.linalg.LinAlgError
    return upper


def gptq(
    format: WeightFormat, weights: Array, factor: Factor, processors: int = 1
) -> dict[str, Array]:
    """Weights f32[outputs, inputs] as the arrays of a format, with the least error of outputs.

    The scales of a block are those that rounding to nearest chooses for what its weights are when
    it is reached; of another order of inputs than theirs, for what they are at first. Raises
    ``QuantizationError`` as ``quantize`` does.
    """
    parts = [weights[first : first + ROWS] for first in range(0, len(weights), ROWS)]
    if processors == 1 or len(parts) == 1:
        found = [_rounded(format, part, factor) for part in parts]
    else:
        with ThreadPoolExecutor(min(processors, len(parts))) as pool:
            found = list(pool.map(lambda part: _rounded(format, part, factor), parts))
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


class _Steps(NamedTuple):
    """The scales of blocks: their codes, and what a number is times and plus, [inputs, outputs]."""

    codes: Mapping[Numbers, Array]
    scale: Array
    minimum: Array


def _rounded(format: WeightFormat, weights: Array, factor: Factor) -> dict[str, Array]:
    """Some rows; ``left`` [inputs in order, outputs] is what the weights are by now."""
    upper, order, _ = factor
    count, block = len(order), format.block
    in_order = bool((order == np.arange(count)).all())
    left = np.ascontiguousarray(weights.T[order], np.float64)
    fixed = None if in_order else _steps(format, weights)
    chosen: list[_Steps] = []
    numbers = np.zeros((count, len(weights)), np.float32)
    for first in range(0, count, INPUTS):
        end = min(first + INPUTS, count)
        errors = np.empty((end - first, len(weights)))
        for at in range(first, end):
            place = int(order[at])
            if fixed is None and place % block == 0:
                chosen.append(_steps(format, left[at : at + block].T))
            steps = fixed or chosen[-1]
            within = place if fixed else place % block
            number, value = _nearest(format, left[at], steps.scale[within], steps.minimum[within])
            numbers[place] = number
            errors[at - first] = (left[at] - value) / upper[at, at]
            left[at + 1 : end] -= upper[at, at + 1 : end, None] * errors[at - first]
        left[end:] -= upper[first:end, end:].T @ errors
    every = [fixed] if fixed is not None else chosen
    codes = {one: np.concatenate([s.codes[one] for s in every], axis=1) for one in every[0].codes}
    grouped = numbers.T.reshape(len(weights), -1, block)
    return encode(format, {format.codes: codes_for(format.codes, grouped), **codes})


def _steps(format: WeightFormat, weights: Array) -> _Steps:
    """The scales that rounding to nearest chooses for whole blocks [outputs, inputs]."""
    raw = raw_bytes(format, quantize(format, weights.astype(np.float32)))
    kept = [one for one in numbers_within(format.value) if one != format.codes]
    scale, minimum = (
        _for_each(quantity, raw, weights.shape, empty)
        for quantity, empty in ((format.value.scale, 1.0), (format.value.minimum, 0.0))
    )
    return _Steps({one: codes_of(one, raw) for one in kept}, scale, minimum)


def _for_each(
    quantity: Quantity | None, raw: Mapping[str, Array], shape: tuple[int, ...], empty: float
) -> Array:
    """A quantity f32[inputs, outputs] of every weight; ``empty`` where there is none."""
    outputs, inputs = shape
    if quantity is None:
        return np.full((inputs, outputs), empty, np.float32)
    found = quantity_of(quantity, raw)
    blocks = next(iter(raw.values())).shape[1]
    each = inputs // blocks // found.shape[-1] if found.shape[-1] > 1 else 1
    whole = np.broadcast_to(
        np.repeat(found, each, axis=-1) if each > 1 else found, (outputs, blocks, inputs // blocks)
    )
    return np.ascontiguousarray(whole.reshape(outputs, inputs).T)


def _nearest(
    format: WeightFormat, weights: Array, scale: Array, minimum: Array
) -> tuple[Array, Array]:
    """The numbers f32 of one input's weights, and what these stand for, as a decoder has it."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        wanted = (weights - minimum) / scale
    wanted = np.where(scale == 0, 0, wanted)
    reading = format.codes.reading
    if isinstance(reading, Integer):
        low, most = reading.range(format.bits)
        number = np.clip(np.rint(wanted), low, most).astype(np.float32)
    else:
        assert isinstance(reading, Codebook)
        table = np.array(reading.values, np.float32)
        number = table[codes_for(format.codes, wanted)]
    return number, number * scale + minimum
