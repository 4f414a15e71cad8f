"""What people give where tensors are made: kept, converted by the rules, or refused in words."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.errors import OutOfMemory, TypeRuleError, UsageError


def t(value, dtype=None):
    return ptir.tensor(value, dtype)


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (2**40, "i64", np.array(2**40)),
        ([0.1], "f64", np.array([0.1])),
        ([1 + 2**-8 + 2**-30], "bf16", np.array([1 + 2**-7], ml_dtypes.bfloat16)),
        ([1.7, float("nan"), 1e20], "i32", np.array([1, 0, 2**31 - 1], "i4")),
        (np.array([300, -1]), "u8", np.array([44, 255], "u1")),
        (np.array([1.5], ">f4"), None, np.array([1.5], "f4")),
        (np.array([258], ">i2"), "i32", np.array([258], "i4")),
        ([2, 0], "bool", np.array([True, False])),
        ([1.0], "float32", np.array([1.0], "f4")),
        ([1.0], np.float16, np.array([1.0], "f2")),
        ([1.0], np.dtype("f8"), np.array([1.0])),
        (np.arange(6).reshape(2, 3).T[::-1], None, np.arange(6).reshape(2, 3).T[::-1]),
    ],
)
def test_values_are_kept(value, dtype, wanted):
    found = t(value, dtype).numpy()
    assert found.dtype == wanted.dtype and found.dtype.isnative
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: t(2**40), "1099511627776 does not fit i32"),
        (lambda: t([-1], "u32"), r"-1 does not fit u32 \(0 to 4294967295\)"),
        (lambda: t([1], "i32") + 2**31, r"2147483648 does not fit i32"),
        (lambda: t([1], "u32") - -1, r"-1 does not fit u32"),
        (lambda: t(10**30), "not a rectangular array of numbers"),
        (lambda: t([[1], [1, 2]]), "inhomogeneous"),
        (lambda: t(None), "not a rectangular array"),
        (lambda: t([1.0]).transpose(1), r"transpose\(f32\[1\]\): axis 1 is out of range"),
        (lambda: t([1.0]).argmax(4), "axis 4 is out of range"),
        (lambda: t([1.0]).sum("a"), "axis 'a' is out of range"),
        (lambda: t([1.0]).reshape(2.0), r"sizes \(2.0,\) are not integers"),
        (lambda: ptir.spec("f32", 2.5), "axis sizes must be integers"),
        (lambda: ptir.capture(lambda x: x, t([1.0])), "Tensor is not a type; write ptir.spec"),
        (lambda: F.concat([t([1.0]), np.ones(1)]), r"tensors\[1\] is ndarray, not a Tensor"),
        (lambda: t([1.0])[[0.5]], "does not hold integers"),
    ],
)
def test_what_would_lose_a_value_is_refused(make, message):
    with pytest.raises(TypeRuleError, match=message):
        make()


def test_a_big_endian_array_beside_a_tensor_keeps_its_values():
    assert (t([1.0]) + np.array([2.0], ">f4")).numpy().tolist() == [3]


def test_arrays_take_part_in_products_from_both_sides():
    x, y = np.array([[1.0, 2.0]], np.float32), np.array([[3.0], [4.0]], np.float32)
    assert (t(x) @ y).numpy().tolist() == (x @ t(y)).numpy().tolist() == [[11]]
    with pytest.raises(TypeError, match="unsupported operand"):
        t(x) @ "y"


def test_lists_and_arrays_index_as_in_numpy():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for key in ([0, -1], (slice(None), [3, 1, -4]), np.array([[2], [-3]]), ([],), (None, [1])):
        np.testing.assert_array_equal(t(x)[key].numpy(), x[key])
    for key in ([3], [-4], (0, [4]), [2**40]):
        with pytest.raises(IndexError, match="out of range for f32"):
            t(x)[key]


def test_bools_are_counted_and_compared():
    x = t([[True, False], [True, True]])
    assert (int(x.sum()), x.sum(0).dtype.name) == (3, "i32")
    assert (x.max(1).numpy().tolist(), x.min(1).numpy().tolist()) == ([True, True], [False, True])
    assert int(t([[1.0, 5.0], [7.0, 2.0]]).argmax(None)) == 2


def test_tensors_are_copied_pickled_and_formatted():
    x = t([1.5, -2.0])
    twin = copy.deepcopy({"x": x})["x"]
    ptir.jit(lambda v: v * 2.0, donate=["v"])(x)
    assert twin.numpy().tolist() == pickle.loads(pickle.dumps(twin)).numpy().tolist() == [1.5, -2]
    assert f"{t(1.25):.1f} {t([1.0])}" == "1.2 Tensor(f32[1], [1.])"


def test_memory_that_is_not_there_is_the_contracts_error():
    with pytest.raises(OutOfMemory, match=r"ref: Unable to allocate .*; use smaller shapes"):
        (t([1.0]).broadcast_to(1 << 42) + 1.0).numpy()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: ptir.tensr, r"unknown name of ptir 'tensr' \(nearest: tensor"),
        (lambda: F.sofmax, r"unknown functional 'sofmax' \(nearest: softmax"),
    ],
)
def test_misspelt_names_give_the_nearest(use, message):
    with pytest.raises(AttributeError, match=message):
        use()


def test_a_backend_is_a_name_or_a_target():
    with pytest.raises(UsageError, match="backend is int; give a name"):
        ptir.tensor([1.0], backend=3)
