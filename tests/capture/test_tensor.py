"""The Tensor API against NumPy: operators, promotion, broadcasting, indexing, reductions."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ptir
from ptir.capture.promote import promote
from ptir.errors import TypeRuleError
from ptir.types import DTYPES
from together import together

FLOATS = np.array([[-2.5, -0.0, 0.5], [1.0, 3.0, 7.25]], np.float32)
INTS = np.array([[-7, -1, 0], [1, 2, 9]], np.int32)

BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
]


@pytest.mark.parametrize("apply", BINARY)
def test_float_operators_agree_with_numpy_both_ways(apply):
    x = ptir.tensor(FLOATS)
    np.testing.assert_array_equal(apply(x, 2.0).numpy(), apply(FLOATS, np.float32(2)))
    row = np.array([1.5, -2.0, 4.0], np.float32)
    np.testing.assert_array_equal(apply(x, ptir.tensor(row)).numpy(), apply(FLOATS, row))
    divisors = np.abs(FLOATS) + 1
    reflected = apply(3.0, ptir.tensor(divisors)).numpy()
    np.testing.assert_array_equal(reflected, apply(np.float32(3), divisors))


def test_a_zero_remainder_has_the_sign_of_the_divisor():
    x = np.array([4.0, -4.0, 4.0, -4.0, -0.0, 0.0, -0.0], np.float32)
    y = np.array([2.0, 2.0, -2.0, -2.0, 3.0, -3.0, np.inf], np.float32)
    found, expected = (ptir.tensor(x) % ptir.tensor(y)).numpy(), x % y
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("divisor", [-3, 2, 5])
def test_integer_division_follows_python(divisor):
    x = ptir.tensor(INTS)
    np.testing.assert_array_equal((x // divisor).numpy(), INTS // divisor)
    np.testing.assert_array_equal((x % divisor).numpy(), INTS % divisor)
    true = (x / divisor).numpy()
    assert true.dtype == np.float32
    np.testing.assert_allclose(true, INTS / divisor, rtol=1e-7)


@pytest.mark.parametrize("apply", [operator.and_, operator.or_, operator.xor])
def test_bit_operators_agree_with_numpy(apply):
    np.testing.assert_array_equal(apply(ptir.tensor(INTS), 6).numpy(), apply(INTS, np.int32(6)))


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_agree_with_numpy(name):
    apply = getattr(operator, name)
    np.testing.assert_array_equal(apply(ptir.tensor(FLOATS), 0.5).numpy(), apply(FLOATS, 0.5))


@together()
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "max", "min", "mean"])
def test_reductions_agree_with_numpy(name, axis, keepdims):
    ours = getattr(ptir.tensor(FLOATS), name)(axis, keepdims).numpy()
    np.testing.assert_allclose(ours, getattr(np, name)(FLOATS, axis=axis, keepdims=keepdims))


def test_python_scalars_are_weak_and_tensors_promote():
    halves = ptir.tensor(np.ones(2, np.float16))
    assert (ptir.tensor(INTS) + 1).dtype.name == "i32"
    assert (ptir.tensor(INTS) + 1.5).dtype.name == "f32"
    assert (ptir.tensor(INTS) + ptir.tensor(FLOATS)).dtype.name == "f32"
    assert (halves + ptir.tensor(FLOATS[:, :2])).dtype.name == "f32"


def test_promotion_is_symmetric_and_idempotent():
    for a in DTYPES.values():
        assert promote(a, a) == a
        for b in DTYPES.values():
            if {a.name, b.name} & {"u64"} and {a.kind, b.kind} == {"int", "uint"}:
                with pytest.raises(TypeRuleError, match="no common integer type"):
                    promote(a, b)
            else:
                assert promote(a, b) == promote(b, a)


def test_matmul_agrees_with_numpy_over_ranks():
    rng = np.random.default_rng(0)
    shapes = [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4))]
    shapes += [((5, 2, 3), (5, 3, 4)), ((2, 1, 2, 3), (1, 4, 3, 2))]
    for left, right in shapes:
        a = rng.standard_normal(left).astype(np.float32)
        b = rng.standard_normal(right).astype(np.float32)
        ours = (ptir.tensor(a) @ ptir.tensor(b)).numpy()
        np.testing.assert_allclose(ours, a @ b, rtol=1e-5, atol=1e-6)


ARRAY = np.arange(2 * 3 * 5, dtype=np.int32).reshape(2, 3, 5)


def axis_keys(size):
    bounds = st.none() | st.integers(-size - 1, size + 1)
    steps = st.none() | st.integers(-3, 3).filter(bool)
    return st.integers(-size, size - 1) | st.builds(slice, bounds, bounds, steps)


@settings(max_examples=150)
@given(
    st.tuples(axis_keys(2), axis_keys(3), axis_keys(5)),
    st.integers(0, 3),
    st.none() | st.integers(0, 3),
    st.booleans(),
)
def test_basic_indexing_agrees_with_numpy(keys, used, new_axis, dots):
    key = [*keys[:used]]
    if new_axis is not None:
        key.insert(min(new_axis, len(key)), None)
    if dots:
        key.append(Ellipsis)
    np.testing.assert_array_equal(ptir.tensor(ARRAY)[tuple(key)].numpy(), ARRAY[tuple(key)])


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_tensor_index_gathers_along_its_axis(before):
    chosen = np.array([[1, 0], [0, 1]], np.int32)
    key = (slice(None),) * before
    ours = ptir.tensor(ARRAY)[(*key, ptir.tensor(chosen))].numpy()
    np.testing.assert_array_equal(ours, ARRAY[(*key, chosen)])


@pytest.mark.parametrize("number", [0, -1])
def test_a_tensor_index_follows_an_integer(number):
    chosen = np.array([[1, 0], [2, 1]], np.int32)
    np.testing.assert_array_equal(
        ptir.tensor(ARRAY)[number, ptir.tensor(chosen)].numpy(), ARRAY[number, chosen]
    )


def test_a_tensor_index_is_clamped_into_range():
    ours = ptir.tensor(ARRAY)[ptir.tensor([-5, 7])].numpy()
    np.testing.assert_array_equal(ours, ARRAY[[0, 1]])


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (9, IndexError, "index 9 is out of range for i32.2,3,5. .axis of size 2."),
        ((0, 0, 0, 0), IndexError, "4 indices"),
        (1.5, TypeRuleError, "1.5 is not an integer, slice or tensor"),
        ((..., ...), IndexError, "more than one"),
    ],
)
def test_bad_keys_say_what_is_wrong(key, error, message):
    with pytest.raises(error, match=message):
        ptir.tensor(ARRAY)[key]


def test_iteration_and_len_follow_the_first_axis():
    x = ptir.tensor(ARRAY)
    assert len(x) == 2
    np.testing.assert_array_equal([row.numpy() for row in x], ARRAY)


def test_item_needs_one_element():
    with pytest.raises(TypeRuleError, match=r"item\(\) of i32\[2,3,5\]: needs exactly one element"):
        ptir.tensor(ARRAY).item()
