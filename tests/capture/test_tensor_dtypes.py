"""The Tensor API in every dtype, against Python's integers and exact fractions."""

from __future__ import annotations

import math
import operator
from fractions import Fraction

import numpy as np
import pytest

import ptir
from comparing import same_bits
from evaluation import awkward, awkward_values
from ptir.capture.promote import promote
from ptir.errors import TypeRuleError
from ptir.ops import numerics as xp
from ptir.types import DTYPES, F16, F32, F64, I32, spec
from together import together

EVERY = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
NUMBERS = [d for d in DTYPES.values() if d.kind != "bool" and d.bits + d.is_float != 9]
NUMERIC = pytest.mark.parametrize("dtype", NUMBERS, ids=str)
FLOATS = pytest.mark.parametrize("dtype", [d for d in NUMBERS if d.is_float], ids=str)
INTEGERS = [d for d in NUMBERS if d.is_integer]


def on_ref(array):
    return ptir.tensor(array, backend="ref")


def wrap(value, dtype):
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> dtype.bits - 1 else value


def nearest(exact, dtype):
    """The nearest value of a float dtype to a fraction of moderate size, found by search."""
    near = int(np.array(float(exact)).astype(dtype.numpy).view(f"u{dtype.itemsize}"))
    steps = np.array([near + d for d in range(-2, 3)], f"u{dtype.itemsize}")
    around = [float(v) for v in steps.view(dtype.numpy)]
    errors = sorted((abs(Fraction(v) - exact), v) for v in around)
    assert errors[0][0] != errors[1][0], "a tie is no good example"
    return errors[0][1]


@EVERY
def test_arrays_go_in_and_come_out_bit_for_bit(dtype):
    (array,) = awkward([spec(dtype, 2, 8)])
    x = on_ref(array)
    assert x.dtype == dtype
    assert x.numpy().tobytes() == array.tobytes()
    assert x[1, ::2].numpy().tobytes() == np.ascontiguousarray(array[1, ::2]).tobytes()
    assert x.T.reshape(-1).numpy().tobytes() == array.T.tobytes()
    item = x[0, 2].item()
    assert isinstance(item, float if dtype.is_float else bool if dtype.kind == "bool" else int)
    assert item == array[0, 2].item()


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_arithmetic_with_python_numbers_wraps(dtype):
    values = awkward_values(dtype)
    x = on_ref(np.array(values, dtype.numpy))
    operators = (operator.add, operator.sub, operator.mul)
    for apply in operators:
        assert apply(x, 3).numpy().tolist() == [wrap(apply(v, 3), dtype) for v in values]
        assert apply(3, x).numpy().tolist() == [wrap(apply(3, v), dtype) for v in values]
    assert (-x).numpy().tolist() == [wrap(-v, dtype) for v in values]
    assert (x // 3).numpy().tolist() == [v // 3 for v in values]
    assert (x // -3 if dtype.kind == "int" else x // 3).numpy().tolist() == [
        v // (-3 if dtype.kind == "int" else 3) for v in values
    ]
    assert (x // 0).numpy().tolist() == [wrap(-1, dtype)] * 16
    assert (x % 7).numpy().tolist() == [v % 7 for v in values]
    assert (x & 5).numpy().tolist() == [v & 5 for v in values]
    assert (~x).numpy().tolist() == [wrap(~v, dtype) for v in values]
    assert (x >> 1).numpy().tolist() == [v >> 1 for v in values]
    for apply in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        assert apply(x, 3).numpy().tolist() == [apply(v, 3) for v in values]
    assert (x + 1).dtype == dtype
    assert (x + 0.5).dtype == F32
    assert (x / 2).dtype == F32


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_numbers_that_do_not_fit_are_refused_by_name(dtype):
    ends = np.iinfo(dtype.numpy)
    x = on_ref(np.zeros(2, dtype.numpy))
    assert (x + int(ends.max)).numpy().tolist() == [ends.max] * 2
    for value in (int(ends.max) + 1, int(ends.min) - 1, 10**30):
        with pytest.raises(TypeRuleError, match=f"{value} does not fit {dtype} .*astype"):
            x + value


@FLOATS
def test_python_numbers_are_rounded_once(dtype):
    x = on_ref(np.ones(2, dtype.numpy))
    for value in (0.1, 1 + 2**-8 + 2**-40, 1 + 2**-11 + 2**-50, 1 / 3):
        constant = (x * 0 + value).numpy()
        assert constant.dtype == dtype.numpy
        assert float(constant[0]) == nearest(Fraction(value), dtype)
    assert (x * 10**400).numpy().tolist() == [math.inf] * 2
    assert (x - 10**400).numpy().tolist() == [-math.inf] * 2
    assert (x + (2**64 + 2**40)).dtype == dtype


@NUMERIC
def test_reductions(dtype):
    numbers = [3, 7, 5, 7]
    x = on_ref(np.array(numbers, dtype.numpy))
    product = wrap(735, dtype) if dtype.is_integer else nearest(Fraction(735), dtype)
    assert (x.sum().item(), x.prod().item()) == (22, product)
    assert (x.max().item(), x.min().item()) == (7, 3)
    assert x.sum().dtype == x.max().dtype == dtype
    assert (x.argmax().item(), x.argmin().item()) == (1, 0)
    assert x.mean().dtype == (dtype if dtype.is_float else F32)
    assert x.mean().item() == 5.5
    assert x.any().item() is True
    assert (x - 3).all().item() is False


def test_integer_sums_wrap_and_means_do_not():
    x = on_ref(np.full(4, 100, np.int8))
    assert x.sum().item() == wrap(400, DTYPES["i8"])
    assert x.mean().item() == 100.0
    assert on_ref(np.full((2, 2), 2**63, np.uint64)).sum(0).numpy().tolist() == [0, 0]


def test_means_of_narrow_floats_do_not_overflow_or_stall():
    assert on_ref(np.full(4, 60000, np.float16)).mean().item() == 60000.0
    ones = np.ones(5000, DTYPES["bf16"].numpy)
    assert on_ref(ones).mean().item() == 1.0


def test_bools_are_counted_and_compared():
    x = on_ref(np.array([[True, False, True], [True, True, True]]))
    assert x.sum(1).numpy().tolist() == [2, 3]
    assert x.sum().dtype == I32
    assert x.mean().item() == np.float32(5 / 6)
    assert x.all(1).numpy().tolist() == [False, True]
    assert x.any(0).numpy().tolist() == [True] * 3
    assert (x == on_ref(np.array(True))).numpy().tolist() == x.numpy().tolist()
    assert (x & False).numpy().any() == np.False_


@together("dtype")
@EVERY
@pytest.mark.parametrize("target", DTYPES.values(), ids=str)
def test_astype_is_the_cast_of_the_record(dtype, target):
    (array,) = awkward([spec(dtype, 16)])
    found = on_ref(array).astype(target).numpy()
    assert same_bits(found, xp.cast(array, dtype=target))


def test_tensors_meet_in_a_type_that_holds_both():
    for a in DTYPES.values():
        for b in DTYPES.values():
            if a.kind == b.kind:
                assert promote(a, b).holds(a)
                assert promote(a, b).holds(b)
    assert promote(F16, DTYPES["bf16"]) == F32
    assert promote(DTYPES["f8e5m2"], DTYPES["f8e4m3fn"]) == F16
    assert promote(DTYPES["u32"], DTYPES["i8"]) == DTYPES["i64"]
    assert promote(DTYPES["u64"], F64) == F64
    with pytest.raises(TypeRuleError, match="u64 and i8 have no common integer type"):
        promote(DTYPES["u64"], DTYPES["i8"])


def test_holds_agrees_with_every_value_of_the_small_types():
    for small in ("f8e4m3fn", "f8e5m2", "f16", "bf16", "i8", "u8", "i16", "u16", "bool"):
        kind = DTYPES[small]
        bits = np.arange(2 ** min(kind.bits, 16), dtype=f"u{kind.itemsize}")
        values = bits.astype(bool) if small == "bool" else bits.view(kind.numpy)
        for wide in DTYPES.values():
            there = xp.cast(values, dtype=wide)
            back = xp.cast(there, dtype=kind)
            kept = same_bits(back, values)
            if kind.is_float:  # a NaN has to stay one
                kept = kept and not (wide.is_integer or wide.kind == "bool")
            elif wide.is_integer:  # wrapping there and back keeps bits, not values
                kept = [int(v) for v in there] == [int(v) for v in values]
            assert wide.holds(kind) == kept, (wide, kind)


def test_matmul_of_small_integers_wraps_in_their_dtype():
    a = np.array([[100, 100], [1, -1]], np.int8)
    found = (on_ref(a) @ on_ref(a)).numpy()
    exact = [[sum(int(a[i, k]) * int(a[k, j]) for k in (0, 1)) for j in (0, 1)] for i in (0, 1)]
    assert found.dtype == np.int8
    assert found.tolist() == [[wrap(v, DTYPES["i8"]) for v in row] for row in exact]
