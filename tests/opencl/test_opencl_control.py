"""Control flow: the host decides, kernels compute, nothing is shared that should not be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.creation import tensor


def run(target: Target, function: Any, *arrays: Any) -> Any:
    inputs = [tensor(np.asarray(array), backend=target) for array in arrays]
    result = ptir.jit(function)(*inputs)
    return tuple(r.numpy() for r in result) if isinstance(result, tuple) else result.numpy()


def test_a_loop_runs_as_often_as_its_condition_holds(opencl: Target) -> None:
    def powers(x: Any) -> Any:
        start = F.full((), 0, "i32")
        return F.while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, y * 2.0 + 1.0), start, x)

    syncs = opencl.backend.stats(opencl.device).host_syncs
    count, found = run(opencl, powers, np.float32([1, -2]))
    assert count == 5
    assert found.tolist() == [63.0, -33.0]
    assert opencl.backend.stats(opencl.device).host_syncs == syncs + 6


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_only_the_chosen_branch_counts(opencl: Target, sign: float) -> None:
    def choose(x: Any) -> Any:
        y = x + 1.0
        z = F.cond(y.sum() > 0.0, lambda y: F.exp(y), lambda y: y * 10.0, y)
        return z - y

    x = np.float32([1, 2, 3]) * np.float32(sign)
    y = x + 1
    wanted = (np.exp(y) if y.sum() > 0 else y * 10) - y
    np.testing.assert_allclose(run(opencl, choose, x), wanted, rtol=1e-6)


def test_a_branch_that_returns_its_operand_returns_a_copy(opencl: Target) -> None:
    x = tensor(np.float32([1, 2]), backend=opencl)
    same = ptir.jit(lambda x: F.cond(x.sum() > 0.0, lambda y: y, lambda y: -y, x))(x)
    assert same.numpy().tolist() == [1, 2]
    same_handle = same.ref.node.payload.handle
    assert same_handle is not x.ref.node.payload.handle
