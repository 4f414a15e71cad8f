"""Products of activations that were rounded to bf16, in cooperative schedules."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from opencl_runs import close, normal, with_parameters

from ptir import functional as F
from ptir.backend.contract import Target


@pytest.mark.parametrize("rows", [3, 9, 40])
def test_a_norm_in_front_of_rounded_activations(opencl: Target, rows: int) -> None:
    """The norm's kernel stores its rows in f32, and nothing in bf16."""
    bf16 = np.dtype(ml_dtypes.bfloat16)
    x, weight = normal(rows, 40), normal(40, 64, seed=1).astype(bf16)
    scale = np.ones(40, np.float32)

    def product(x, scale, weight):
        rounded = F.rms_norm(x, scale, epsilon=1e-5).astype("bf16").astype("f32")
        return F.linear(rounded, weight.astype("f32"), layout="io")

    found = with_parameters(opencl, product, x, scale, weight)
    wide = x.astype(np.float64)
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    wanted = normed.astype(np.float32).astype(bf16).astype(np.float64) @ weight.astype(np.float64)
    close(found, wanted, 5e-2)
