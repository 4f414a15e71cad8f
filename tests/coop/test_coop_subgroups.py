"""Subgroups of any size give right results, the same in every run; a wrong mask does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from opencl_runs import Array, close, normal, run, with_parameters
from subgroups import WithSubgroups

from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture import call


def results(target: Target) -> dict[str, tuple[Array, Array]]:
    """What groups bring together in every way, and what it should come to."""
    x = normal(5, 700)
    wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    greatest = run(target, lambda x: call("arg_max", x, axis=1), x)
    best = run(target, lambda x: F.top_k(x, 3)[1], x)
    softmax = run(target, lambda x: F.softmax(x, axis=-1), x)
    return {
        "softmax": (softmax, wide / wide.sum(-1, keepdims=True)),
        "arg_max": (greatest, x.argmax(-1)),
        "top_k": (best, np.argsort(-x, axis=-1, kind="stable")[:, :3]),
    }


def product(target: Target) -> tuple[Array, Array]:
    """The same of a product's sums, which PoCL compiles for seconds."""
    y, weight = normal(3, 130, seed=1), normal(130, 40, seed=2)
    found = with_parameters(target, lambda y, w: F.linear(y, w, layout="io"), y, weight)
    return found, y.astype(np.float64) @ weight


@pytest.mark.slice(1)
@pytest.mark.parametrize("width", [8, 32, 64])
def test_subgroups_of_any_size(opencl: Target, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "dialect", WithSubgroups(width))
    for found, wanted in results(opencl).values():
        close(found, wanted, 1e-4)


@pytest.mark.parametrize("width", [8, 32, 64])
def test_products_by_subgroups_of_any_size(
    opencl: Target, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "dialect", WithSubgroups(width))
    close(*product(opencl), 1e-4)


def test_a_wrong_mask_is_seen(opencl: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "dialect", WithSubgroups(32, mask="({1} & 15)"))
    wrong = []
    for name, (found, wanted) in (results(opencl) | {"linear": product(opencl)}).items():
        try:
            close(found, wanted, 1e-4)
        except AssertionError:
            wrong.append(name)
    assert wrong == ["softmax", "arg_max", "top_k", "linear"]
