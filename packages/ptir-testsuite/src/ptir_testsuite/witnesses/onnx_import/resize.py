"""ONNX Resize and Upsample: every axis by itself, as a constant matrix of weights or as places.

The rules (which input position a result looks at, and the weights around it) are those of the
ONNX operator page; they are computed in float64 when the program is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ptir.capture import Tensor, call
from ptir.capture.tensor import full as scalar
from ptir_testsuite.witnesses.onnx_import.contraction import along
from ptir_testsuite.witnesses.onnx_import.movement import select_static
from ptir_testsuite.witnesses.onnx_import.scope import constant
from ptir_testsuite.witnesses.onnx_import.table import Array, Node, onnx_op, refuse


@dataclass(frozen=True)
class Axis:
    """How one axis is resized: sizes, the scale asked for, and the region of interest."""

    size: int
    result: int
    scale: float
    start: float = 0.0
    end: float = 1.0


Position = Callable[[Array, Axis], Array]


def _half_pixel_symmetric(i: Array, a: Axis) -> Array:
    adjustment = a.result / (a.scale * a.size)
    offset = a.size / 2 * (1 - adjustment)
    return offset + (i + 0.5) / a.scale - 0.5


def _crop(i: Array, a: Axis) -> Array:
    if a.result == 1:
        return np.full(1, 0.5 * (a.start + a.end) * (a.size - 1))
    step = (a.end - a.start) * (a.size - 1) / (a.result - 1)
    return a.start * (a.size - 1) + i * step


POSITIONS: Final[dict[str, Position]] = {
    "half_pixel": lambda i, a: (i + 0.5) / a.scale - 0.5,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": lambda i, a: (i + 0.5) / a.scale - 0.5 if a.result > 1 else i * 0.0,
    "align_corners": lambda i, a: i * (a.size - 1) / max(a.scale * a.size - 1, 1e-300),
    "asymmetric": lambda i, a: i / a.scale,
    "tf_crop_and_resize": _crop,
}
NEAREST: Final[dict[str, Callable[[Array], Array]]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(distance: Array, _: float) -> Array:
    return np.maximum(1.0 - np.abs(distance), 0.0)


def _cubic(distance: Array, a: float) -> Array:
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def weights(node: Node, axis: Axis, positions: Array, antialias: bool) -> Array:
    """The matrix [result, size] of one axis; neighbours outside count as the edge or not at all."""
    cubic = node.attr("mode") == "cubic"
    stretch = min(1.0, axis.scale) if antialias else 1.0
    kernel, reach = (_cubic, 2) if cubic else (_linear, 1)
    radius = math.ceil(reach / stretch)
    matrix = np.zeros((axis.result, axis.size))
    for row, at in enumerate(positions):
        places = np.arange(math.floor(at) - radius, math.floor(at) + radius + 2)
        share = kernel((places - at) * stretch, node.attr("cubic_coeff_a", -0.75))
        inside = (places >= 0) & (places < axis.size)
        if node.attr("exclude_outside", 0):
            share = np.where(inside, share, 0.0)
        share = share / share.sum() if antialias or node.attr("exclude_outside", 0) else share
        np.add.at(matrix[row], np.clip(places, 0, axis.size - 1), share)
    return matrix


def resized(node: Node, x: Tensor, at: int, axis: Axis) -> Tensor:
    """``x`` with one axis resized."""
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    if mode not in POSITIONS:
        raise refuse(f"Resize with coordinates {mode}")
    positions = POSITIONS[mode](np.arange(axis.result, dtype=np.float64), axis)
    outside = (positions < 0) | (positions > axis.size - 1)
    if node.attr("mode", "nearest") == "nearest":
        found = NEAREST[node.attr("nearest_mode", "round_prefer_floor")](positions)
        x = select_static(x, at, np.clip(found, 0, axis.size - 1).astype(int).tolist())
    else:
        x = along(x, at, weights(node, axis, positions, bool(node.attr("antialias", 0))))
    if mode != "tf_crop_and_resize" or not outside.any():
        return x
    flags = outside.reshape([-1 if a == at else 1 for a in range(x.ndim)])
    value = scalar(node.attr("extrapolation_value", 0.0), x.dtype, x.shape)
    return call("select", constant(flags).broadcast_to(x.shape), value, x)


def sizes_of(node: Node, axes: list[int]) -> dict[int, tuple[int, float]]:
    """For each axis: its new size, and the scale, from ``sizes`` or ``scales``."""
    x, given = node[0], node.static(2)
    if given is not None and given.size:
        return {
            a: (math.floor(x.shape[a] * s), s) for a, s in zip(axes, _floats(given), strict=True)
        }
    wanted = node.ints(3) or ()
    ratios = [n / x.shape[a] for a, n in zip(axes, wanted, strict=True)]
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return {a: (n, r) for a, n, r in zip(axes, wanted, ratios, strict=True)}
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return {a: (math.floor(x.shape[a] * ratio + 0.5), ratio) for a in axes}


def _floats(array: Array) -> list[float]:
    return [float(value) for value in array.reshape(-1)]


@onnx_op("Resize", since=11)
def resize(node: Node) -> Tensor:
    """Each axis in turn whose size changes or whose region is cropped."""
    x, roi = node[0], node.static(1)
    axes = [a % x.ndim for a in node.attr("axes") or range(x.ndim)]
    regions: Any = [0.0] * len(axes) + [1.0] * len(axes)
    if node.attr("coordinate_transformation_mode") == "tf_crop_and_resize" and roi is not None:
        regions = _floats(roi)
    for place, (at, (result, scale)) in enumerate(sizes_of(node, axes).items()):
        start, end = regions[place], regions[place + len(axes)]
        axis = Axis(node[0].shape[at], result, scale, start, end)
        if result != axis.size or scale != 1.0 or (start, end) != (0.0, 1.0):
            x = resized(node, x, at, axis)
    return x


@onnx_op("Upsample")
def upsample(node: Node) -> Tensor:
    """Nearest neighbours by whole scales."""
    x, given = node[0], node.static(1)
    scales = node.attr("scales") if given is None else _floats(given)
    if node.attr("mode", "nearest") != "nearest":
        raise refuse("Upsample by interpolation")
    for at, scale in enumerate(scales):
        places = np.arange(math.floor(x.shape[at] * scale)) / scale
        x = select_static(x, at, places.astype(int).tolist())
    return x
