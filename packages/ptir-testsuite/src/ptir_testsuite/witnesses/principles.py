"""Cases in which we differ from a witness on purpose, or it from its own definition, and why.

A case that matches a row must differ: one that agrees after all makes its row stale, an error.
"""

from __future__ import annotations

import fnmatch
from typing import Final

ONNX: Final[dict[str, str]] = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad": (
        "inputs and expected values are typed with four digits each, and do not fit exactly"
    ),
    "test_dft_opset19": "expected by an FFT, whose error is relative to the line, not the element",
    "test_dft_inverse_opset19": "as test_dft_opset19",
    "test_nllloss_NCd1d2d3_none_no_weight_negative_ii*": (
        "ONNX's body multiplies an ignored element by 0, which gives -0; its reference leaves +0"
    ),
    "test_dft": "as test_dft_opset19",
    "test_dft_inverse": "as test_dft_opset19",
}


def principle(case: str, table: dict[str, str] | None = None) -> str:
    """Why a case differs, or nothing."""
    rows = ONNX if table is None else table
    return next((why for pattern, why in rows.items() if fnmatch.fnmatch(case, pattern)), "")
