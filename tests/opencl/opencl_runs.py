"""Functions run on a device with arrays or stored parameters: shared by the tests of families."""

from __future__ import annotations

from typing import Any

import numpy as np

import ptir
from ptir.backend.contract import Target
from ptir.capture.jit import record as record_function
from ptir.capture.lazy import parameter, tensor
from ptir.capture.plan import plan_for
from ptir.params.source import ArraySource
from ptir.params.store import ParamStore
from ptir.types import spec

Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int = 0) -> Array:
    """Normal random numbers, f32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def run(target: Target, function: Any, *arrays: Array) -> Any:
    """What ``function`` of tensors gives, as arrays."""
    inputs = [tensor(array, backend=target) for array in arrays]
    result = ptir.jit(function)(*inputs)
    return tuple(r.numpy() for r in result) if isinstance(result, tuple) else result.numpy()


def close(found: Array, wanted: Array, tolerance: float = 1e-5) -> None:
    """Equal shapes, and elements within an absolute plus a relative tolerance."""
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def with_parameters(target: Target, body: Any, x: Array, *stored: Array) -> Array:
    """``body(x, *parameters)``; at least one parameter must have been packed."""
    names = [f"p{number}" for number in range(len(stored))]
    store = ParamStore(ArraySource(dict(zip(names, stored, strict=True))), target)

    def closed(x: Any) -> Any:
        return body(x, *(parameter(store, name) for name in names))

    captured, _ = record_function(closed, (spec("f32", *x.shape),), ("x",))
    plan = plan_for(captured.program, target)
    assert any(p.name.startswith("derived:") for p in plan.optimized.ports)
    handle = target.backend.upload(x, target.device)
    (result,) = plan.run([handle], plan.bind(captured.parameters))
    found: Array = target.backend.download(result, target.device)
    return found
