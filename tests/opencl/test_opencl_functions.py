"""exp, tanh and erf of f32 on OpenCL: as close as is claimed, and the same in every lane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from opencl_runs import Array, run

from ptir import functional as F
from ptir.backend import registry
from ptir.backend.contract import Target
from ptir.codegen.expressions.exponentials import EXPONENTIALS
from ptir_backend_opencl.dialect import SCALAR, WIDE

ORACLES: dict[str, Any] = {"exp": np.exp, "tanh": np.tanh, "erf": np.vectorize(math.erf)}
OURS = {"exp": 0.9, "tanh": 1.2, "erf": 1.0}
BUILT_IN = {"exp": 3.0, "tanh": 5.0, "erf": 16.0}
"""The greatest error in units of the last place."""


def numbers() -> Array:
    """Some f32 of every size and sign, infinities and NaN."""
    bits = np.arange(0, 1 << 32, 37 * 4096, dtype=np.uint64).astype(np.uint32)
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 88.72283, -103.9, 0.6875], np.float32)
    return np.concatenate([bits.view(np.float32), special])


def is_ours(target: Target) -> bool:
    dialect = target.backend.opened(target.device).device.dialect  # type: ignore[attr-defined]
    return "NAMED(tanh)" in dialect.prelude()


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", EXPONENTIALS)
def test_exponentials_are_close(opencl: Target, name: str) -> None:
    x = numbers()
    found = run(opencl, lambda x: getattr(F, name)(x), x)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = ORACLES[name](x.astype(np.float64))
        nearest = exact.astype(np.float32)
        unit = np.spacing(np.abs(nearest)).astype(np.float64)
        errors = np.abs(found.astype(np.float64) - exact) / unit
    same = (found == nearest) | (np.isnan(found) & np.isnan(nearest))
    np.testing.assert_array_equal(same[~np.isfinite(nearest)], True)
    worst = int(np.argmax(np.where(np.isfinite(nearest), errors, 0)))
    bound = (OURS if is_ours(opencl) else BUILT_IN)[name]
    assert errors[worst] <= bound, f"{name}({x[worst]!r}) = {found[worst]!r}: {errors[worst]} ulp"
    zeros = x == 0
    if name != "exp":
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(x[zeros]))


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", EXPONENTIALS)
def test_ours_do_not_depend_on_lane_or_language(opencl: Target, name: str) -> None:
    if not is_ours(opencl):
        pytest.skip("the device's own functions are used")
    x = numbers()[: 16 * 400]
    x = x[~np.isnan(x)]

    def bits(target: Target, x: Array) -> Array:
        found: Array = run(target, lambda x: getattr(F, name)(x), x).view(np.uint32)
        return found

    wide = bits(opencl, x)
    np.testing.assert_array_equal(wide[:15], bits(opencl, x[:15]))  # below a vector: single lanes
    np.testing.assert_array_equal(np.roll(wide, 7), bits(opencl, np.roll(x, 7)))
    if any(s.name == "c" and s.status != "unavailable" for s in registry.status_table()):
        np.testing.assert_array_equal(wide, bits(registry.get("c"), x))


@pytest.mark.parametrize("name", ["cast", "load_bool", "load_bf16", "store_bool", "store_bf16"])
def test_single_numbers_are_converted_by_casts(name: str) -> None:
    """Intel's vectorizer crashes on a ``convert_`` of C in a loop of sums; vectors need them."""
    assert "convert_" not in str(SCALAR[name])
    assert "convert_" in str(WIDE[name])
