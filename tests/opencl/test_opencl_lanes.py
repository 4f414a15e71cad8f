"""Each lane of a wide value is what it would be alone: where drivers' vectors are known to fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any, Final

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.creation import tensor

pytestmark = pytest.mark.turns(2)

LARGE: Final = (1.7976931348623157e308, 1e300, 1e17, 37.25, 3.0, 1.5, 1.0, 0.5, 0.1)
SMALL: Final = (1e-5, 1e-300, 2.2250738585072014e-308, 1.1e-308, 5e-324, 0.0)
VALUES: Final = (*LARGE, *SMALL, *(-x for x in (*LARGE, *SMALL)), np.inf, -np.inf, np.nan)


def run(function: Callable[..., Any], target: Target, *arrays: Any) -> Any:
    return ptir.jit(function)(*(tensor(array, backend=target) for array in arrays)).numpy()


@pytest.mark.parametrize(("function", "reference"), [(F.pow, np.power), (F.rem, np.fmod)])
def test_doubles_of_every_size_side_by_side(
    opencl: Target, function: Callable[..., Any], reference: Callable[..., Any]
) -> None:
    """PoCL's pow of vectors of f64 gives a lane its neighbour's case; its fmod may not return."""
    if "f64" not in opencl.backend.claimed(opencl.device):
        pytest.skip("the device has no f64")
    pairs = np.array(list(product(VALUES, VALUES)))
    a, b = np.random.default_rng(0).permutation(pairs).T.copy()
    with np.errstate(all="ignore"):
        wanted = reference(a, b)
    found = run(function, opencl, a, b)
    np.testing.assert_allclose(found, wanted, rtol=16 * 2.0**-52, atol=5e-324)


@pytest.mark.parametrize("function", [F.sin, F.cos])
def test_angles_of_every_size_side_by_side(opencl: Target, function: Callable[..., Any]) -> None:
    """PoCL's sin and cos of vectors lose small angles beside huge ones."""
    angles = np.float32([x for x in VALUES if 1e-30 < abs(x) < 1e30])
    angles = np.random.default_rng(0).permutation(np.repeat(angles, 40))
    wanted = {F.sin: np.sin, F.cos: np.cos}[function](angles.astype(np.float64))
    np.testing.assert_allclose(run(function, opencl, angles), wanted, rtol=1e-6)


@pytest.mark.parametrize("count", [9, 40])
def test_the_largest_doubles_are_exponentials(opencl: Target, count: int) -> None:
    """PoCL's exp of f64 is infinite a little before the logarithm of the largest number."""
    if "f64" not in opencl.backend.claimed(opencl.device):
        pytest.skip("the device has no f64")
    last = 709.782712893384
    arguments = [last - step for step in (1.0, 0.01, 2e-6, 1e-6, 1e-9, 0.0)]
    x = np.resize([*arguments, np.nextafter(last, np.inf), -745.1, -745.2], count)
    with np.errstate(over="ignore", under="ignore"):
        wanted = np.exp(x)
    assert np.isfinite(wanted[5]) and np.isinf(wanted[6])
    np.testing.assert_allclose(run(F.exp, opencl, x), wanted, rtol=3 * 2.0**-52, atol=0)


@pytest.mark.parametrize("parts", [(258, 262, 264), range(64, 512)], ids=["single", "wide"])
def test_nothing_is_left_of_multiples_of_the_smallest(opencl: Target, parts: Any) -> None:
    """Intel's fmod of f32 leaves the divisor of some of its multiples below 2^-125."""
    divisors = np.float32(2.0**-134) * np.array(parts, np.float32)
    for times in (1, -1, 2, 3):
        found = run(F.rem, opencl, np.float32(times) * divisors, divisors)
        assert not found.any() and (np.signbit(found) == (times < 0)).all()


@pytest.mark.slice(3)
@pytest.mark.parametrize("columns", [16, 17, 37, 47])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_lines_of_16_bits_begin_anywhere(opencl: Target, dtype: str, columns: int) -> None:
    """A line of a row program is stored 16 elements at a time, wherever it begins."""
    x = np.random.default_rng(0).standard_normal((5, columns)).astype(np.float16)

    def centered(x: Any) -> Any:
        y = x.astype(dtype)
        return (y - y.max(axis=1, keepdims=True)).astype("f32")

    def stored(x: Any) -> Any:
        y = x.astype(dtype)
        return y - y.max(axis=1, keepdims=True)

    wide, narrow = run(centered, opencl, x), run(stored, opencl, x)
    assert np.array_equal(narrow.astype(np.float32), wide)
    if dtype == "f16":
        assert np.array_equal(narrow, x - x.max(axis=1, keepdims=True))


@pytest.mark.slice(3)
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_the_greatest_of_complements(opencl: Target, name: str, dtype: str) -> None:
    """Intel's compiler gives what lay in a register for the greater of two single complements."""
    x = np.array([[3, 5], [2, 1], [4, 4]], dtype)
    found = run(lambda x: getattr(F.not_(x), name)(axis=1), opencl, x)
    assert np.array_equal(found, getattr(~x, name)(axis=1))


@pytest.mark.slice(2)
@pytest.mark.parametrize("count", [5, 40])
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_the_sign_bit_of_a_negation(opencl: Target, dtype: str, count: int) -> None:
    """Intel's compiler takes it for x > 0, which is another where -x is x: of the least number."""
    bits = np.dtype(dtype).itemsize * 8
    top = np.array(1 << (bits - 1), f"uint{bits}").astype(dtype)
    x = np.resize(np.array([0, 1, top, top + 1, 3], dtype), count)
    nothing = np.zeros_like(x)
    with np.errstate(over="ignore"):
        wanted = ((nothing - x) >> (bits - 1)) & 1
    for negated in (lambda x: -x, lambda x: 0 - x):
        found = run(lambda x, negated=negated: (negated(x) >> (bits - 1)) & 1, opencl, x)
        assert np.array_equal(found, wanted)


@pytest.mark.slice(2)
@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_what_wrapped_to_nothing_divides_as_nothing(opencl: Target, dtype: str, count: int) -> None:
    """A compiler that may assume that signed numbers do not overflow sees no zero in x + x."""
    least = np.iinfo(dtype).min
    x = np.full(count, least, dtype)
    for zero in (lambda x: x + x, lambda x: x - (-x), lambda x: x * 2, lambda x: x * x):
        assert (run(lambda x, zero=zero: F.div(x, zero(x)), opencl, x) == -1).all()
    assert (run(lambda x: F.maximum(F.abs(x), -x), opencl, x) == least).all()


SAME_IN_EVERY_LINE: Final = """\
import numpy as np
import ptir
from ptir import functional as F
from ptir.backend import registry
from ptir.capture.creation import tensor

def chosen(x):  # a compiler sees that it is 1.5 everywhere, core does not
    most = x.max(axis=1, keepdims=True)
    always = (most >= 0).broadcast_to(x.shape)
    return F.where(always, F.full(x.shape, 1.5, "f16"), x.astype("f16"))

x = tensor(np.arange(5 * 37, dtype=np.uint8).reshape(5, 37), backend=registry.get("opencl"))
assert (ptir.jit(chosen)(x).numpy() == 1.5).all()
"""


def test_a_value_known_before_the_loop_is_stored_anywhere(opencl: Target) -> None:
    """PoCL stores a wide half that it holds in a register as if every line were aligned.

    That ends the process, so another one is asked.
    """
    done = subprocess.run(
        [sys.executable, "-c", SAME_IN_EVERY_LINE], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"


@pytest.mark.slice(2)
@pytest.mark.parametrize(("start", "count"), [(0, 1), (3, 2), (1, 8)])
def test_two_caches_of_a_program_are_written(
    opencl: Target, monkeypatch: pytest.MonkeyPatch, start: int, count: int
) -> None:
    """Intel's compiler runs the wrong threads of the second of two kernels that copy rows."""
    monkeypatch.setenv("PTIR_SCHEDULE", "coop")
    cache = np.zeros((1, 1, 64, 32), np.float32)
    rows = np.random.default_rng(0).standard_normal((1, 8, 192)).astype(np.float32)

    def written(keys: Any, values: Any, rows: Any, start: Any, count: Any) -> Any:
        parts = [rows[:, :, None, at : at + 32].transpose(0, 2, 1, 3) for at in (0, 160)]
        given = zip((keys, values), parts, strict=True)
        return tuple(F.cache_update(cache, new, start, count) for cache, new in given)

    where = np.array([start], np.int32), np.array([count], np.int32)
    step = ptir.jit(written)
    found = step(*(tensor(x, backend=opencl) for x in (cache, cache, rows, *where)))
    for one, at in zip(found, (0, 160), strict=True):
        wanted = cache.copy()
        wanted[0, 0, start : start + count] = rows[0, :count, at : at + 32]
        assert np.array_equal(one.numpy(), wanted)
