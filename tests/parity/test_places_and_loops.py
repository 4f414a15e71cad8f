"""Places and loops beside PyTorch: gather, scatters, and a recurrent layer by scan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import ptir
from ptir import functional as F
from ptir.ops import numerics as xp
from running import REF


def tensor(value: Any) -> ptir.Tensor:
    return ptir.tensor(value, backend=REF)


@pytest.mark.parametrize("kind", ["sum", "prod", "amax", "amin"])
def test_scatter_equals_pytorch(kind):
    ours = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}[kind]
    random = np.random.default_rng(3)
    x = random.standard_normal((4, 5)).astype(np.float32)
    updates = random.standard_normal((4, 9)).astype(np.float32)
    indices = random.integers(0, 5, (4, 9))
    wanted = torch.tensor(x).scatter_reduce(1, torch.tensor(indices), torch.tensor(updates), kind)
    found = xp.scatter_reduce(x, indices[..., None], updates, axes=(1,), batch=1, kind=ours)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-6)
    read = torch.gather(torch.tensor(x), 1, torch.tensor(indices)).numpy()
    assert np.array_equal(xp.gather(x, indices[..., None], axes=(1,), batch=1), read)


def test_a_gru_by_scan_equals_pytorch() -> None:

    torch.manual_seed(0)
    cell = torch.nn.GRU(3, 4)
    weights = {n: tensor(p.detach().numpy()) for n, p in cell.named_parameters()}
    xs = np.random.default_rng(1).standard_normal((6, 2, 3)).astype(np.float32)

    def sigmoid(x: Any) -> Any:
        return 1.0 / (1.0 + F.exp(-x))

    def step(h: Any, x: Any) -> Any:
        a = x @ weights["weight_ih_l0"].T + weights["bias_ih_l0"]
        b = h @ weights["weight_hh_l0"].T + weights["bias_hh_l0"]
        r, z = sigmoid(a[:, :4] + b[:, :4]), sigmoid(a[:, 4:8] + b[:, 4:8])
        h = (1.0 - z) * F.tanh(a[:, 8:] + r * b[:, 8:]) + z * h
        return h, h

    last, outputs = ptir.jit(lambda xs: F.scan(step, F.full((2, 4), 0.0), xs))(tensor(xs))
    with torch.no_grad():
        wanted, hidden = cell(torch.tensor(xs))
    np.testing.assert_allclose(outputs.numpy(), wanted.numpy(), atol=1e-6)
    np.testing.assert_allclose(last.numpy(), hidden.numpy()[0], atol=1e-6)
