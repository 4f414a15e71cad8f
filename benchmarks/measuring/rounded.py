"""Peers whose factors are bytes, and how far results in bytes are from exact ones.

ONNX Runtime quantizes what PyTorch exported: weights alone beforehand and activations by the range
of each call (``dynamic``), as is meant for models of texts, or all by ranges that it sees in some
calls (``static``), as is meant for models of images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

BYTES: Final = "int8: "
"""What the names of rows whose factors are bytes begin with."""

Array = np.ndarray[Any, Any]


def dynamic(path: str) -> str:
    """The file of ONNX Runtime's dynamic quantization of a model."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    made = str(Path(path).with_name("dynamic.onnx"))
    quantize_dynamic(path, made, weight_type=QuantType.QInt8, per_channel=True)
    return made


def static(path: str, name: str, seen: Array) -> str:
    """The file of its static quantization, with the ranges that it has for ``seen``."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.left = [{name: seen}]

        def get_next(self) -> dict[str, Array] | None:
            return self.left.pop() if self.left else None

    made = str(Path(path).with_name("static.onnx"))
    quantize_static(
        path,
        made,
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return made


def scores_agree(exact: Array, found: Array) -> dict[str, float]:
    """How far scores [N,classes] are off, over the greatest, and how many have the same best."""
    off = np.abs(found - exact).max() / np.abs(exact).max()
    return {"off": float(off), "same best": float((found.argmax(1) == exact.argmax(1)).mean())}


def vectors_agree(exact: Array, found: Array) -> dict[str, float]:
    """The least and the middle cosine of vectors [N,D], and how alike their rankings are."""
    cosines = (exact * found).sum(1)
    return {
        "least cosine": float(cosines.min()),
        "median cosine": float(np.median(cosines)),
        **rankings_agree(exact @ exact.T, found @ found.T),
    }


def rankings_agree(exact: Array, found: Array) -> dict[str, float]:
    """How many rows have the same best other, and how many pairs of others the same order."""
    best, same, pairs = 0, 0, 0
    for number, (wanted, given) in enumerate(zip(exact, found, strict=True)):
        others = np.delete(np.arange(len(wanted)), number)
        wanted, given = wanted[others], given[others]
        best += int(wanted.argmax() == given.argmax())
        upper = np.triu_indices(len(others), 1)
        differences = (np.subtract.outer(one, one)[upper] for one in (wanted, given))
        signs = np.multiply(*map(np.sign, differences))
        same, pairs = same + int((signs >= 0).sum()), pairs + len(signs)
    return {"same best": best / len(exact), "same order": same / pairs}


def agreements(
    calls: dict[str, Callable[[], Array]],
    own: str,
    agree: Callable[[Array, Array], dict[str, float]],
) -> Iterator[tuple[str, dict[str, float]]]:
    """For each row in bytes, how its results agree with the exact ones of ``own``."""
    exact = calls[own]()
    for name, call in calls.items():
        if name.startswith(BYTES):
            yield name, agree(exact, call())
