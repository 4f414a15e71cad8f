"""Linear maps, norms, activations, softmax, rope and embedding against float64 NumPy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import ptir.functional as F
from functional.evaluate import f32, i32, run
from functional.models import erf, rope, softmax
from together import together

SHAPES = [(7,), (1, 7), (0, 7), (3, 7), (2, 3, 7), (1, 1, 1, 7)]
APPROXIMATELY = {"rtol": 2e-6, "atol": 1e-6}


def wide(x):
    return np.asarray(x, np.float64)


def close(found, wanted, **bound):
    assert found.dtype == np.float32 and found.shape == wanted.shape
    np.testing.assert_allclose(wide(found), wanted, **(APPROXIMATELY | bound))


@together()
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("storage", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", ["io", "oi"])
def test_linear_is_a_matrix_product_in_f32(shape, storage, layout) -> None:
    x, bias = f32(*shape), f32(4, seed=2)
    weight = f32(7, 4, seed=1).astype(storage)
    stored = weight if layout == "io" else np.ascontiguousarray(weight.T)
    close(run(F.linear, x, stored, layout=layout), wide(x) @ wide(weight))
    close(run(F.linear, x, stored, bias, layout=layout), wide(x) @ wide(weight) + bias)


def test_linear_over_nothing_is_the_bias() -> None:
    found = run(F.linear, f32(2, 0), f32(0, 3), np.array([1, -2, 3], np.float32))
    assert found.tolist() == [[1, -2, 3], [1, -2, 3]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("epsilon", [1e-5, 0.5])
def test_norms_over_the_last_axis(shape, epsilon) -> None:
    x, weight, bias = f32(*shape, scale=3) + np.float32(2), f32(7, seed=1), f32(7, seed=2)
    centred = wide(x) - wide(x).mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    close(run(F.layer_norm, x, weight, bias, epsilon=epsilon), scaled * weight + bias)
    scaled = wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + epsilon)
    close(run(F.rms_norm, x, weight, epsilon=epsilon), scaled * weight)


def test_layer_norm_survives_a_large_mean() -> None:
    x = (f32(2, 64) + np.float32(10000)).astype(np.float32)
    ones, zeros = np.ones(64, np.float32), np.zeros(64, np.float32)
    centred = wide(x) - wide(x).mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    close(run(F.layer_norm, x, ones, zeros), wanted, atol=2e-3)


@pytest.mark.parametrize("shape", [(), *SHAPES])
def test_activations(shape) -> None:
    x, up = np.asarray(f32(*shape, scale=4), np.float32), np.asarray(f32(*shape, seed=1))
    up = up.astype(np.float32)
    normal = 0.5 * wide(x) * (1 + erf(wide(x) / math.sqrt(2)))
    close(run(F.gelu, x), normal)
    inner = math.sqrt(2 / math.pi) * (wide(x) + 0.044715 * wide(x) ** 3)
    close(run(F.gelu, x, approximate="tanh"), 0.5 * wide(x) * (1 + np.tanh(inner)))
    logistic = wide(x) / (1 + np.exp(-wide(x)))
    close(run(F.silu, x), logistic)
    close(run(F.swiglu, x, up), logistic * up)


def test_activations_far_from_zero_neither_overflow_nor_give_nan() -> None:
    x = np.array([-1e30, -200, 200, 1e30], np.float32)
    for found in (run(F.gelu, x), run(F.gelu, x, approximate="tanh"), run(F.silu, x)):
        assert np.abs(found[:2]).tolist() == [0, 0] and found[2:].tolist() == x[2:].tolist()


@pytest.mark.parametrize("use", [None, {"softmax": "online"}], ids=["portable", "online"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((1,), 0), ((5,), -1), ((3, 40), 1), ((40, 3), 0), ((2, 300, 3), -2)]
)
def test_softmax_along_any_axis(shape, axis, use) -> None:
    x = f32(*shape, scale=5)
    found = run(F.softmax, x, axis=axis, use=use)
    close(found, softmax(x, axis))
    np.testing.assert_allclose(wide(found).sum(axis), 1, rtol=1e-5)


@pytest.mark.parametrize("use", [None, {"softmax": "online"}], ids=["portable", "online"])
def test_softmax_of_awkward_lines(use) -> None:
    x = f32(6, 40)
    x[0] = -np.inf
    x[1, :17] = -np.inf
    x[2, 16:] = -np.inf
    x[3] *= 1000
    x[4] = np.float32(3e38)
    x[5, 20] = np.nan
    found = run(F.softmax, x, use=use)
    close(found[:5], softmax(x[:5]))
    assert not found[0].any() and not found[1, :17].any() and not found[2, 16:].any()
    assert np.isnan(found[5]).all()


def test_softmax_of_nothing_is_nothing() -> None:
    assert run(F.softmax, f32(2, 0)).shape == (2, 0)
    assert run(F.softmax, f32(0, 3), use={"softmax": "online"}).shape == (0, 3)


@together()
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary", [None, 2, 6])
@pytest.mark.parametrize("shape", [(2, 3, 4, 8), (1, 1, 1, 8), (2, 1, 0, 8), (0, 2, 3, 8)])
def test_rope_turns_pairs_by_position(shape, rotary, layout) -> None:
    x = f32(*shape)
    positions = (np.arange(shape[0] * shape[2]) * 7 % 50).reshape(shape[0], shape[2])
    positions = positions.astype(np.int32)
    found = run(F.rope, x, positions, theta=500.0, layout=layout, rotary=rotary)
    close(found, rope(x, positions, 500.0, layout, rotary or 8), atol=1e-5)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_turns_pairs_by_the_frequencies_given(layout) -> None:
    """Whatever theta says."""
    x, positions = f32(2, 3, 4, 8), np.array([[0, 1, 2, 3], [9, 2, 70, -4]], np.int32)
    speeds = 300.0 ** (-np.arange(3) / 3)
    given = speeds.astype(np.float32)
    found = run(F.rope, x, positions, given, theta=7.0, layout=layout, rotary=6)
    close(found, rope(x, positions, 300.0, layout, 6), atol=1e-5)
    made = run(
        lambda x, at: F.rope(x, at, F.constant(speeds), layout=layout, rotary=6), x, positions
    )
    np.testing.assert_array_equal(made, found)


def test_rope_turns_the_named_pair_and_leaves_the_rest() -> None:
    x = np.array([[[[1, 2, 3, 4, 5]]]], np.float32)
    at = np.array([[1]], np.int32)
    c, s = math.cos(1), math.sin(1)
    half = run(F.rope, x, at, rotary=2)
    close(half, np.array([[[[c - 2 * s, 2 * c + s, 3, 4, 5]]]]))
    found = run(F.rope, x, at, rotary=4, theta=1e30, layout="half")
    close(found, np.array([[[[c - 3 * s, 2, 3 * c + s, 4, 5]]]]), atol=1e-5)


@pytest.mark.parametrize("storage", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_embedding_takes_rows_as_f32_and_clamps(storage, shape) -> None:
    table = f32(5, 4).astype(storage)
    ids = (np.arange(math.prod(shape)) * 3 - 1).reshape(shape).astype(np.int32)
    close(run(F.embedding, table, ids), wide(table)[np.clip(ids, 0, 4)], rtol=0, atol=0)


def test_repetition_penalty_lowers_seen_logits_of_either_sign() -> None:
    logits = np.array([[2, -2, 3, 0], [4, -4, -np.inf, 1]], np.float32)
    seen = np.array([[True, True, False, True], [True, False, True, False]])
    wanted = [[1, -4, 3, 0], [2, -4, -np.inf, 1]]
    assert run(F.repetition_penalty, logits, seen, penalty=2.0).tolist() == wanted
    rows = np.array([2, 4], np.float32)
    found = run(F.repetition_penalty, logits, seen, penalty=rows)
    assert found.tolist() == [wanted[0], [1, -4, -np.inf, 1]]


def test_uniform_numbers_are_the_words_of_the_key() -> None:
    key = np.array([0, 0], np.uint32)
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    wanted = [(word >> 8) / 2**24 for word in words]
    assert run(F.uniform, key, shape=(2, 2)).ravel().tolist() == wanted
    assert run(F.uniform, key, shape=()).tolist() == wanted[0]
    assert run(F.uniform, key, shape=(0, 3)).shape == (0, 3)


def test_normal_numbers_follow_box_and_muller() -> None:
    key = np.array([0, 0], np.uint32)
    a, b, c, d = (word >> 8 for word in (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8))
    wanted = [
        math.sqrt(-2 * math.log((p + 1) / 2**24)) * math.cos(2 * math.pi * q / 2**24)
        for p, q in ((a, b), (c, d))
    ]
    close(run(F.normal, key, shape=(2,)), np.array(wanted))
    many, words = run(F.normal, key, shape=(20000,)), run(F.uniform, key, shape=(20000, 2))
    first, second = wide(words).T
    radius = np.sqrt(-2 * np.log(first + 2.0**-24))
    close(many, radius * np.cos(2 * np.pi * second), rtol=1e-5, atol=2e-6)
    assert many[:2].tolist() == run(F.normal, key, shape=(2,)).tolist()
    assert abs(wide(many).mean()) < 0.02 and abs(wide(many).std() - 1) < 0.02


def test_elementwise_functions_promote_and_broadcast() -> None:
    x = np.array([[-1.5], [2.5]], np.float32)
    whole = i32(-2, 2)
    assert run(F.maximum, x, whole).tolist() == [[-1.5, 2], [2.5, 2.5]]
    assert run(lambda t: F.minimum(t, 0), x).tolist() == [[-1.5], [0]]
    assert run(lambda t: F.clamp(-1, t, 1), x).tolist() == [[-1], [1]]
    flags = np.array([True, False])
    assert run(F.where, flags, x, whole).tolist() == [[-1.5, 2], [2.5, 2]]
    assert run(lambda p: F.where(p, 1, 2.5), flags).tolist() == [1, 2.5]
    assert run(F.not_, flags).tolist() == [False, True]
    close(run(F.exp, x), np.exp(wide(x)))


def test_every_elementwise_op_has_a_function_with_its_documentation() -> None:
    from ptir.ops.record import OPS

    for record in OPS.values():
        name = f"{record.name}_" if record.name in ("and", "or", "not") else record.name
        if "elementwise" in record.traits:
            assert getattr(F, name).__doc__ == record.doc and name in dir(F)


def test_arrays_from_nothing_and_from_several() -> None:
    a, b = f32(2, 3), i32(1, 2, 3)
    assert run(lambda t: F.concat([t, F.full((2, 1), 7)], axis=-1), a)[:, 3].tolist() == [7, 7]
    assert run(lambda t: F.stack([t, F.arange(3)], axis=1), b).tolist() == [[1, 0], [2, 1], [3, 2]]
    assert run(F.take, a, b, axis=1).tolist() == a[:, [1, 2, 2]].tolist()
    values, indices = run(F.top_k, b, k=2)
    assert (values.tolist(), indices.tolist()) == ([3, 2], [2, 1])
