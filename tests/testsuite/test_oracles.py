"""Oracles against outsiders, and their independence of what they judge."""

from __future__ import annotations

import ast
import math
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

import ptir_testsuite
from ptir.ir.attributes import Attributes
from ptir.ops import OPS
from ptir.types import DTYPES, TensorType, dtype_of
from ptir_testsuite.oracles import ORACLES, Given
from ptir_testsuite.oracles.accuracy import Terms, bound_of
from ptir_testsuite.oracles.creation import philox
from ptir_testsuite.running.compare import compare
from together import together

SOURCE = Path(ptir_testsuite.__file__).parent
JUDGES = [
    *sorted((SOURCE / "oracles").glob("*.py")),
    *(SOURCE / f"{name}.py" for name in ("running/compare", "corpus/values")),
]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@together()
@pytest.mark.parametrize("path", JUDGES, ids=lambda path: path.stem)
def test_what_judges_imports_neither_backends_nor_the_meanings_of_ops(path):
    found = set(imported(path))
    assert found
    wrong = [n for n in found if "numerics" in n or "backend" in n or "mutants" in n]
    assert wrong == []
    assert ".reference" not in path.read_text(encoding="utf-8")


def ask(op, *arrays, regions=(), **attributes):
    """What the oracle of ``op`` expects of a call."""
    types = [TensorType(dtype_of(a), a.shape) for a in arrays]
    bound = Attributes(OPS[op].bind(attributes))
    results = OPS[op].infer(types, bound, regions)
    return ORACLES[op](Given(op, arrays, tuple(types), bound, results, regions))


SAMPLES = [
    pytest.param(op, number, id=f"{op.name}-{number}")
    for op in OPS.values()
    for number in range(len(op.samples))
]


@together("op")
@pytest.mark.parametrize(("op", "number"), SAMPLES)
def test_oracle_gives_the_literals_of_every_sample(op, number):
    example = op.samples[number]
    arrays = [a.numpy() for a in example.operands]
    found = ask(op.name, *arrays, regions=example.regions, **example.attributes)
    for expected, literal in zip(found, example.gives, strict=True):
        bound = bound_of(op, literal.type.dtype)  # a literal of f64 may come from a C library
        verdict = compare(literal.numpy(), expected, literal.type, bound, Terms())
        assert verdict.fault is None, verdict.fault


F32 = st.floats(width=32)


@settings(max_examples=300)
@given(F32, F32)
def test_arithmetic_is_that_of_ieee_hardware(x, y):
    a, b = np.array([x], np.float32), np.array([y], np.float32)
    wanted = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
    with np.errstate(all="ignore"):
        for name, ufunc in {**wanted, "rem": np.fmod}.items():
            (found,) = ask(name, a, b)
            np.testing.assert_array_equal(found.values, ufunc(a, b))
            assert np.signbit(found.values) == np.signbit(ufunc(a, b)) or np.isnan(found.values)
        (root,) = ask("sqrt", a)
        np.testing.assert_array_equal(root.values, np.sqrt(a))


LIBRARY = {
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "sin": math.sin,
    "cos": math.cos,
    "tanh": math.tanh,
    "erf": math.erf,
}


@settings(max_examples=200)
@given(F32)
def test_transcendentals_agree_with_the_c_library_to_its_last_bits(x):
    for name, function in LIBRARY.items():
        try:
            wanted = function(x)
        except (ValueError, OverflowError):
            continue
        (found,) = ask(name, np.array([x], np.float32))
        exact = float(found.exact[0])
        if abs(wanted) > 1e-300:
            assert exact == pytest.approx(wanted, rel=1e-15), (name, x)


@settings(max_examples=200)
@given(st.floats(2.0**-20, 2.0**20, width=32), st.floats(-16, 16, width=32))
def test_powers_agree_with_fractions_and_the_c_library(x, y):
    (found,) = ask("pow", np.array([x], np.float32), np.array([y], np.float32))
    assert float(found.exact[0]) == pytest.approx(math.pow(x, y), rel=1e-14)
    whole = round(y)
    (found,) = ask("pow", np.array([-x], np.float32), np.array([whole], np.float32))
    exact = Fraction(-x) ** whole
    assert found.exact[0] == exact.numerator / exact.denominator


def c_power(x, y):
    """The C library's pow, with what Python turns into exceptions put back."""
    try:
        return math.pow(x, y)
    except ValueError:  # a zero to a negative power, or a negative number to a fraction
        odd = x == 0 and y % 2 == 1
        return math.nan if x else math.copysign(math.inf, x) if odd else math.inf


def test_special_powers_are_those_of_the_c_standard():
    values = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, math.inf, -math.inf, math.nan]
    for x in values:
        for y in values:
            wanted = c_power(x, y)
            (found,) = ask("pow", np.array([x], np.float32), np.array([y], np.float32))
            value = found.values[0]
            assert value == np.float32(wanted) or (np.isnan(value) and np.isnan(wanted)), (x, y)
            assert np.isnan(value) or np.signbit(value) == np.signbit(wanted), (x, y)


def test_a_product_is_exact_where_double_precision_is_not():
    big = np.float32(1 << 24)
    lhs = np.array([big, 1, -big], np.float32) * np.float32(1 << 30)
    rhs = np.array([big, 1, big], np.float32) * np.float32(1 << 30)
    (found,) = ask("dot_general", lhs, rhs, lhs_contract=(0,), rhs_contract=(0,))
    assert found.values == 2.0**60
    assert found.magnitude == 2.0**109 + 2.0**60


def test_a_sum_that_may_overflow_on_the_way_is_left_open():
    last = np.finfo(np.float32).max
    (found,) = ask("reduce", np.array([last, last, -last], np.float32), axes=(0,), kind="sum")
    assert found.free and found.exact == float(last)
    (found,) = ask("reduce", np.array([last, last], np.float32), axes=(0,), kind="sum")
    assert not found.free and found.values == np.inf


def test_random_words_are_the_known_answers_of_the_paper():
    ones = 0xFFFFFFFF
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((ones,) * 4, (ones,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    digits = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert philox(*digits) == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


def test_integer_powers_wrap_like_repeated_multiplication():
    base = np.arange(-8, 8, dtype=np.int32)
    for exponent in range(40):
        (found,) = ask("pow", base, np.full_like(base, exponent))
        wanted = np.ones_like(base)
        with np.errstate(over="ignore"):
            for _ in range(exponent):
                wanted = wanted * base
        np.testing.assert_array_equal(found.values, wanted)


def test_casts_to_bf16_round_once():
    wide = np.array([(1 << 30) + (1 << 22) + 1, 2**31 - 1, -7], np.int32)
    (found,) = ask("cast", wide, dtype=DTYPES["bf16"])
    assert found.values.dtype == ml_dtypes.bfloat16
    assert found.values.astype(float).tolist() == [2.0**30 + 2.0**23, 2.0**31, -7.0]


def test_order_is_that_of_a_stable_sort():
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (4, 33)).astype(np.float32)
    x[0, 5] = x[1, 0] = np.nan
    values, indices = ask("sort", x, axis=1)
    order = np.argsort(x, axis=1, kind="stable")
    np.testing.assert_array_equal(indices.values, order)
    np.testing.assert_array_equal(values.values, np.take_along_axis(x, order, 1))


def test_products_over_several_axes_are_those_of_einsum():
    rng = np.random.default_rng(2)
    lhs, rhs = (rng.integers(-9, 9, (2, 3, 4, 5)).astype(np.float32) for _ in range(2))
    attributes = {
        "lhs_batch": (1,),
        "rhs_batch": (1,),
        "lhs_contract": (3, 0),
        "rhs_contract": (3, 0),
    }
    (found,) = ask("dot_general", lhs, rhs, **attributes)
    np.testing.assert_array_equal(found.values, np.einsum("abcd,abed->bce", lhs, rhs))


def test_tiny_arguments_keep_every_bit():
    with mp.workprec(400):
        for name in ("expm1", "log1p", "tanh", "erf", "sin"):
            for x in (1e-300, -3e-40, 1e-20):
                (found,) = ask(name, np.array([np.float32(x)], np.float32))
                slope = 2 / mp.sqrt(mp.pi) if name == "erf" else 1
                wanted = float(slope * mp.mpf(float(np.float32(x))))
                assert float(found.exact[0]) == pytest.approx(wanted, rel=1e-15)
