"""Memory on a device: what is written over what, what comes back, what a fault leaves behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.codegen.families.elements import Elements
from ptir.ops.implementations import active_overrides
from ptir.passes.context import PassContext
from ptir.passes.pipeline import optimize
from ptir.types import spec


def square(seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal((32, 32), np.float32)


def donating(target: Target, body: Any, *arrays: Any) -> list[Any]:
    """The results of ``body`` on arrays of which the first is donated."""
    program = ptir.capture(body, *(spec("f32", *array.shape) for array in arrays))
    context = PassContext(target.backend, target.device, active_overrides())
    options = Options(donated=frozenset((0,)))
    executable = target.backend.compile(optimize(program, context), target.device, options)
    handles = [target.backend.upload(array, target.device) for array in arrays]
    return [target.backend.download(each, target.device) for each in executable.run(handles)]


BODIES = {
    "over": lambda x, y: F.exp(x) * 2.0 + y,
    "reversed": lambda x, y: F.exp(x[::-1]) + x + y,
    "turned": lambda x, y: x.transpose(1, 0) * 3.0 + x - y,
    "twice": lambda x, y: ((x + y) @ y, F.tanh((x + y) @ y) * 2.0),
}
MEANT = {
    "over": lambda x, y: np.exp(x) * 2 + y,
    "reversed": lambda x, y: np.exp(x[::-1]) + x + y,
    "turned": lambda x, y: x.T * 3 + x - y,
    "twice": lambda x, y: np.tanh((x + y) @ y) * 2,
}


@pytest.mark.parametrize("name", BODIES)
def test_a_map_over_a_donated_input_computes_the_same(opencl: Target, name: str) -> None:
    x, y = square(0), square(1)
    found = donating(opencl, BODIES[name], x, y)[-1]
    meant = MEANT[name](x.astype(np.float64), y.astype(np.float64))
    np.testing.assert_allclose(found, meant, rtol=1e-4, atol=1e-4)


def test_a_planted_takeover_of_what_is_read_elsewhere_is_seen(
    opencl: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Elements, "over", lambda self: frozenset(self._loaded | self._elsewhere))
    x, y = square(0), square(1)
    found = donating(opencl, BODIES["reversed"], x, y)[-1]
    meant = MEANT["reversed"](x.astype(np.float64), y.astype(np.float64))
    assert not np.allclose(found, meant, rtol=1e-4, atol=1e-4)
