"""When each token was said: cross-attention weights, smoothed, and dynamic time warping.

Source: Radford et al.'s implementation of "Robust Speech Recognition via Large-Scale Weak
Supervision", 2022; Sakoe and Chiba, "Dynamic programming algorithm optimization for spoken word
recognition", 1978.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ptir.errors import CheckpointError, short
from ptir.models.whisper import Config

MEDIAN: Final = 7
"""Positions of which the middle weight is taken."""

Array = np.ndarray[Any, Any]
Heads = tuple[tuple[int, int], ...]


def alignment_heads(generation_config: Mapping[str, Any], config: Config) -> Heads:
    """The pairs of a layer and a head whose weights tell when a token was said.

    ``generation_config.json`` has found them out; without, all of the later half of the layers are
    taken. Raises ``CheckpointError``.
    """
    tower = config.decoder
    found = generation_config.get("alignment_heads")
    if found is None:
        later = range(tower.layers // 2, tower.layers)
        return tuple((layer, head) for layer in later for head in range(tower.heads))
    pairs = [*found] if isinstance(found, Sequence) and not isinstance(found, str) else []
    if not pairs or not all(_is_head(pair, tower.layers, tower.heads) for pair in pairs):
        raise CheckpointError(
            f"generation_config.json: alignment_heads {short(found)} must be pairs of a layer < "
            f"{tower.layers} and a head < {tower.heads}; correct it, or fetch the file again"
        )
    return tuple(sorted({(layer, head) for layer, head in pairs}))


def _is_head(pair: Any, layers: int, heads: int) -> bool:
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        return False
    whole = all(type(one) is int and one >= 0 for one in pair)
    return whole and pair[0] < layers and pair[1] < heads


def median_width(config: Mapping[str, Any]) -> int:
    """``median_filter_width`` of ``config.json``; raises ``CheckpointError``."""
    found = config.get("median_filter_width", MEDIAN)
    if type(found) is not int or not (1 <= found < 1000 and found % 2):
        raise CheckpointError(
            f"median_filter_width {short(found)} in config.json must be an odd integer in [1, 999];"
            " correct it, or fetch the file again"
        )
    return found


def token_positions(weights: Array, width: int = MEDIAN) -> Array:
    """The first position of each token's, i64[T], by weights [heads, T, S].

    Weights are compared with those of the other tokens (mean 0, deviation 1), the median of
    ``width`` positions is taken, and the mean of heads. Positions never go back.
    """
    weights = weights.astype(np.float64)
    deviation = weights.std(axis=1, keepdims=True)
    weights = (weights - weights.mean(axis=1, keepdims=True)) / np.where(deviation, deviation, 1.0)
    tokens, positions = warped(-_smooth(weights, width).mean(axis=0))
    return positions[np.diff(tokens, prepend=-1) > 0]


def _smooth(weights: Array, width: int) -> Array:
    """The median of ``width`` elements of the last axis, of which ends are mirrored."""
    beside = width // 2
    if weights.shape[-1] <= beside:
        return weights
    padded = np.pad(weights, ((0, 0), (0, 0), (beside, beside)), mode="reflect")
    found: Array = np.median(np.lib.stride_tricks.sliding_window_view(padded, width, -1), axis=-1)
    return found


def warped(costs: Array) -> tuple[Array, Array]:
    """The cheapest path through ``costs`` [T, S] from the first place to the last one.

    A step goes to the next row, the next column, or both. Gives rows and columns of the path.
    """
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    came = np.zeros((rows + 1, columns + 1), np.int8)
    came[0, :], came[:, 0] = _COLUMN, _ROW
    for diagonal in range(2, rows + columns + 1):  # all of a diagonal depend on the two before
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, row, column = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        step = np.where((both < row) & (both < column), _BOTH, _COLUMN)
        step = np.where((row < both) & (row < column), _ROW, step)
        came[i, j] = step
        total[i, j] = costs[i - 1, j - 1] + np.choose(step, (both, row, column))
    path, i, j = list[tuple[int, int]](), rows, columns
    while i > 0 or j > 0:
        path.append((i - 1, j - 1))
        step = came[i, j]
        i, j = i - (step != _COLUMN), j - (step != _ROW)
    found = np.array(path[::-1])
    return found[:, 0], found[:, 1]


_BOTH, _ROW, _COLUMN = range(3)
