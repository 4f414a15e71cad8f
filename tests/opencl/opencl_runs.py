"""Functions run on a device with arrays or stored parameters: shared by the tests of families."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import ptir
from ptir.backend.contract import Target
from ptir.capture.creation import parameter, tensor
from ptir.capture.jit import record as record_function
from ptir.capture.plan import plan_for
from ptir.params.source import ArraySource
from ptir.params.store import ParamStore
from ptir.types import spec
from ptir.weights.packing import pack

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


def words_of(values: Array, bits: int) -> Array:
    """Whole numbers [inputs, outputs] as words along the inputs."""
    return np.ascontiguousarray(pack(values.T.astype(np.uint8), bits).T)


def with_parameters(
    target: Target, body: Any, x: Array, *stored: Array, beside: Sequence[Array] = ()
) -> Array:
    """``body(x, *beside, *parameters)``; at least one parameter must have been packed."""
    names = [f"p{number}" for number in range(len(stored))]
    store = ParamStore(ArraySource(dict(zip(names, stored, strict=True))), target)

    def closed(*given: Any) -> Any:
        return body(*given, *(parameter(store, name) for name in names))

    given = (x, *beside)
    types = tuple(spec("f32", *array.shape) for array in given)
    captured, _ = record_function(closed, types, tuple(f"x{n}" for n in range(len(given))))
    plan = plan_for(captured.program, target)
    assert any(p.name.startswith("derived:") for p in plan.optimized.ports)
    handles = [target.backend.upload(array, target.device) for array in given]
    (result,) = plan.run(handles, plan.bind(captured.parameters))
    found: Array = target.backend.download(result, target.device)
    return found
