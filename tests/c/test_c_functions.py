"""Vector functions of f32: against mpmath at chosen places, and the same in every lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import mpmath
import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.run import run_program
from ptir.types import spec
from ptir_backend_c.device import CDevice

FUNCTIONS: Final[dict[str, tuple[Callable[[Any], Any], float]]] = {
    "exp": (mpmath.exp, 0.9),
    "expm1": (mpmath.expm1, 0.51),
    "log": (mpmath.log, 0.9),
    "log1p": (mpmath.log1p, 0.51),
    "tanh": (mpmath.tanh, 1.2),
    "erf": (mpmath.erf, 1.0),
    "sin": (mpmath.sin, 0.6),
    "cos": (mpmath.cos, 0.6),
}
"""The function and the error that ours may have, in units of the last place."""

EDGES: Final = (0.0, -0.0, 1.0, -1.0, 0.6875, 0.927734375, 4.0, 88.72, -103.9, 0.3465, 2.0**-126)
EDGES_TOO: Final = (1e-45, 2.0**20, 2.0**20 + 1, 1e30, 3.0e38, 0.70710677, 1.4142135, 11.0)
SPECIAL: Final = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)


def computed(target: Target, name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    program = ptir.capture(getattr(F, name), spec("f32", *x.shape))
    (port,) = program.ports
    (found,) = run_program(program, {port.name: x}, target)
    return np.asarray(found)


def places(name: str) -> np.ndarray[Any, Any]:
    """Numbers of every size, near what the algorithms split at, within the domain."""
    rng = np.random.default_rng(3)
    sizes = np.exp2(rng.uniform(-30, 8, 400))
    x = np.concatenate([sizes, -sizes, EDGES, EDGES_TOO]).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(9e9)), np.nextafter(x, np.float32(-9e9))])
    if name == "log":
        x = np.abs(x)
    if name == "log1p":
        x = x[x > -1]
    return x if name in ("sin", "cos", "log", "log1p", "tanh", "erf") else x[np.abs(x) < 104]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_agree_with_mpmath(c: Target, name: str) -> None:
    oracle, bound = FUNCTIONS[name]
    x = places(name)
    x = x[x != 0]
    found = computed(c, name, x)
    with mpmath.workprec(200):
        exact = [oracle(mpmath.mpf(float(one))) for one in x]
        with np.errstate(over="ignore"):
            nearest = np.array([float(one) for one in exact]).astype(np.float32)
        unit = [mpmath.mpf(float(one)) for one in np.spacing(np.abs(nearest))]
        errors = [
            float(abs(mpmath.mpf(float(f)) - e) / u) if np.isfinite(n) else float(f != n)
            for f, e, u, n in zip(found, exact, unit, nearest, strict=True)
        ]
    worst = int(np.argmax(errors))
    assert errors[worst] <= bound, f"{name}({x[worst]!r}) = {found[worst]!r}: {errors[worst]} ulp"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_numpys(c: Target, name: str) -> None:
    if name == "erf":
        wanted = np.array([1, -1, np.nan, 0.0, -0.0], np.float32)
    else:
        with np.errstate(all="ignore"):
            wanted = getattr(np, name)(SPECIAL)
    for x, y in ((SPECIAL, wanted), (np.tile(SPECIAL, 16), np.tile(wanted, 16))):
        found = computed(c, name, x)
        np.testing.assert_array_equal(found, y)
        np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(y[y == 0]))


@pytest.mark.parametrize("name", [*FUNCTIONS, "floor", "ceil", "round", "sqrt"])
def test_a_value_does_not_depend_on_its_neighbours(c: Target, name: str) -> None:
    x = np.resize(places(name), 16 * 60)
    wide = computed(c, name, x)
    one_by_one = computed(c, name, np.concatenate([x[:15]]))  # below a vector: single lanes
    np.testing.assert_array_equal(wide[:15].view(np.uint32), one_by_one.view(np.uint32))
    turned = computed(c, name, np.roll(x, 7))
    np.testing.assert_array_equal(np.roll(wide, 7).view(np.uint32), turned.view(np.uint32))


def test_powers_agree_with_mpmath(c: Target) -> None:
    rng = np.random.default_rng(5)
    x = np.exp2(rng.uniform(-8, 8, 300)).astype(np.float32)
    y = rng.uniform(-12, 12, 300).astype(np.float32)
    program = ptir.capture(lambda x, y: x**y, spec("f32", 300), spec("f32", 300))
    (found,) = run_program(program, {"x": x, "y": y}, c)
    exact = [mpmath.power(float(a), float(b)) for a, b in zip(x, y, strict=True)]
    unit = np.spacing(np.array([float(one) for one in exact]).astype(np.float32))
    errors = [abs(float(f) - e) / float(u) for f, e, u in zip(found, exact, unit, strict=True)]
    assert max(errors) <= 0.51


def test_nothing_is_contracted_that_does_not_say_so(c: Target) -> None:
    rng = np.random.default_rng(9)
    x, y, z = (rng.standard_normal(1000, np.float32) for _ in range(3))
    program = ptir.capture(lambda x, y, z: x * y + z, *(spec("f32", 1000),) * 3)
    (found,) = run_program(program, {"x": x, "y": y, "z": z}, c)
    np.testing.assert_array_equal(found, x * y + z)


BOUNDS: Final[dict[str, tuple[Callable[[Any], Any], Callable[[float], float]]]] = {
    "relu": (lambda x: F.maximum(x, 0.0), lambda x: max(x, 0.0) + 0.0),
    "relu6": (lambda x: F.minimum(F.maximum(x, 0.0), 6.0), lambda x: min(max(x, 0.0), 6.0) + 0.0),
    "below -3": (lambda x: F.minimum(x, -3.0), lambda x: min(x, -3.0)),
    "above -3": (lambda x: F.maximum(-3.0, x), lambda x: max(x, -3.0)),
}
"""Bounds of numbers that are no NaN, by ptir and by Python, to which zeros are equal."""


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_keeps_nan_and_the_order_of_zeros_in_every_lane(c: Target, name: str) -> None:
    """Wide ones are an instruction of the processor, which takes its second operand for NaN."""
    bounded, plain = BOUNDS[name]
    some = np.array([*SPECIAL, 6.0, np.nextafter(np.float32(6), 7), 1e-45, -1e-45, -3.0], "f4")
    x = np.concatenate([np.roll(some, n) for n in range(len(some))])[: 6 * 16 + 3]
    program = ptir.capture(bounded, spec("f32", *x.shape))
    (found,) = run_program(program, {program.ports[0].name: x}, c)
    wanted = np.array([one if np.isnan(one) else plain(float(one)) for one in x], "f4")
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


def test_a_bound_is_one_instruction(
    c: Target, built_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    build = CDevice.build
    monkeypatch.setattr(
        CDevice, "build", lambda self, text: texts.append(text) or build(self, text)
    )
    relu6, _ = BOUNDS["relu6"]
    program = ptir.capture(relu6, spec("f32", 320))
    run_program(program, {program.ports[0].name: np.ones(320, "f4")}, c)
    body = texts[-1].rpartition("void ")[2]
    assert [body.count(name) for name in ("max_vf32(", "min_vf32(", "select_vf32(")] == [1, 1, 0]
