"""The kernels of the gated delta rule, beside the rule token by token in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opencl_runs import Array, normal, run

from ptir import functional as F
from ptir.backend.contract import Target


def operands(heads: tuple[int, int], length: int, sizes: tuple[int, int], count: list[int]) -> Any:
    """As models have them: keys of length 1, decays, rates below 1."""
    (H, G), (K, V), B = heads, sizes, len(count)
    q, k, v = (normal(B, h, length, d, seed=n) for n, (h, d) in enumerate(((H, K), (H, K), (G, V))))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g, beta = (np.abs(normal(B, G, length, seed=n)) for n in (3, 4))
    state = normal(B, G, K, V, seed=5)
    return q, k, v, -g, np.minimum(beta, 1), state, np.array(count, np.int32)


def wanted(q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, count: Array) -> Any:
    """Token by token, head by head."""
    q, k, v, g, beta, S = (x.astype(np.float64) for x in (q, k, v, g, beta, state))
    shared, seen = v.shape[1] // q.shape[1], np.zeros(v.shape)
    for b, h, t in np.ndindex(*v.shape[:3]):
        key = k[b, h // shared, t]
        if t < count[b]:
            S[b, h] *= np.exp(g[b, h, t])
            S[b, h] += np.outer(key, beta[b, h, t] * (v[b, h, t] - key @ S[b, h]))
        seen[b, h, t] = q[b, h // shared, t] @ S[b, h]
    return seen, S


@pytest.mark.slice(4)
@pytest.mark.parametrize("length", [1, 2, 8, 9, 21])
@pytest.mark.parametrize("sizes", [(16, 16), (9, 21), (8, 64), (5, 3)])
@pytest.mark.parametrize("heads", [(1, 1), (2, 4), (1, 3)])
def test_a_delta_rule_is_that_of_tokens_one_by_one(
    opencl: Target, length: int, sizes: tuple[int, int], heads: tuple[int, int]
) -> None:
    given = operands(heads, length, sizes, [length, 0, (length + 1) // 2])
    given[1][1], given[2][2, :, (length + 1) // 2 :] = np.inf, np.nan  # of tokens that are none
    seen, state = run(opencl, F.gated_delta_rule, *given)
    known = [np.nan_to_num(x, nan=0, posinf=0) for x in given]
    for found, right in zip((seen, state), wanted(*known), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5 * np.abs(right).max())
    assert state[1].tobytes() == given[5][1].tobytes()


def test_a_rule_writes_its_state_in_place_and_reads_what_it_was_given(opencl: Target) -> None:
    given = operands((1, 2), 3, (8, 16), [3])

    def twice(*tensors: Any) -> Any:
        seen, state = F.gated_delta_rule(*tensors)
        again, after = F.gated_delta_rule(*tensors[:5], state, tensors[6])
        return seen, again, after, tensors[5] + 0.0

    seen, again, after, before = run(opencl, twice, *given)
    first, state = wanted(*given)
    second, last = wanted(*given[:5], state, given[6])
    for found, right in ((seen, first), (again, second), (after, last), (before, given[5])):
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
