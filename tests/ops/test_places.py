"""Gather, scatter and segments against NumPy, PyTorch and loops of Python numbers."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ptir
from evaluation import evaluate, same_but_for_nan
from ptir import functional as F
from ptir.errors import TypeRuleError
from ptir.ir.graph import freeze, source
from ptir.ops import numerics as xp
from ptir.ops import places, scatter
from ptir.types import TensorType, dtype_of
from running import REF

fast = settings(max_examples=80)
AWKWARD = (0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 3e38, 1e-45)
EDGES = (-(2**31), -1, 0, 1, 2, 3, 5, 2**31 - 1)


@st.composite
def addresses(draw, empty=False):
    """A shape, its batch count and indexed axes, and indices, some of them outside."""
    shape = tuple(draw(st.lists(st.integers(1 - empty, 3), min_size=1, max_size=4)))
    batch = draw(st.integers(0, len(shape)))
    free = list(range(batch, len(shape)))
    axes = tuple(draw(st.permutations(free))[: draw(st.integers(0, len(free)))])
    lead = (*shape[:batch], *draw(st.lists(st.integers(0, 3), max_size=2)))
    name = draw(st.sampled_from(["i32", "u32"]))
    pool = [e for e in EDGES if name == "i32" or e >= 0] + [2**32 - 1] * (name == "u32")
    count = math.prod(lead) * len(axes)
    flat = draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count))
    indices = np.array(flat, "i4" if name == "i32" else "u4").reshape(*lead, len(axes))
    return shape, batch, axes, indices


def parts(shape, batch, axes, indices):
    """For each place, in order: its position among the places and the index of its part."""
    for lead in np.ndindex(indices.shape[:-1]):
        part = [slice(None)] * len(shape)
        for axis in range(batch):
            part[axis] = lead[axis]
        for axis, number in zip(axes, indices[lead].tolist(), strict=True):
            part[axis] = number
        yield lead, part


@fast
@given(addresses())
def test_gather_reads_each_clamped_part(address):
    shape, batch, axes, indices = address
    x = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    found = xp.gather(x[..., ::-1][..., ::-1], indices, axes=axes, batch=batch)
    for lead, part in parts(*address):
        inside = [
            p if isinstance(p, slice) else min(max(p, 0), n - 1)
            for p, n in zip(part, shape, strict=True)
        ]
        assert found[lead].tolist() == x[tuple(inside)].tolist()


@fast
@given(addresses())
def test_gather_equals_its_decomposition(address):
    shape, batch, axes, indices = address
    x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    inputs = [source(TensorType(dtype_of(a), a.shape)) for a in (x, indices)]
    block = freeze([places.gather.decomposition(*inputs, axes=axes, batch=batch)], inputs)
    wanted = xp.gather(x, indices, axes=axes, batch=batch)
    assert same_but_for_nan(evaluate(block, [x, indices]), [wanted])


def test_gather_of_an_empty_batch_decomposes_to_nothing():
    inputs = [
        source(TensorType(dtype_of(np.zeros(1, d)), s))
        for d, s in (("f4", (0, 3)), ("i4", (0, 2, 1)))
    ]
    block = freeze([places.gather.decomposition(*inputs, axes=(1,), batch=1)], inputs)
    (found,) = evaluate(block, [np.zeros((0, 3), "f4"), np.zeros((0, 2, 1), "i4")])
    assert (found.shape, found.dtype) == ((0, 2), np.float32)


def test_flat_numbers_beyond_32_bits_are_not_decomposed():
    inputs = [
        source(TensorType(dtype_of(np.zeros(1, "f4")), (2**16, 2**15))),
        source(TensorType(dtype_of(np.zeros(1, "i4")), (4, 2))),
    ]
    assert places.gather.decomposition(*inputs, axes=(0, 1), batch=0) is None


def test_gather_expresses_what_others_call_gather():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    along = np.array([[[3, 0], [1, 1], [0, 2]], [[0, 1], [2, 3], [3, 3]]], np.int32)
    found = xp.gather(x, along[..., None], axes=(2,), batch=2)  # take_along_axis, GatherElements
    assert np.array_equal(found, np.take_along_axis(x, along, axis=2))
    middle = np.array([[[2, 0, 1, 1]], [[0, 0, 2, 1]]], np.int32)
    turned = xp.gather(x.swapaxes(1, 2), middle.swapaxes(1, 2)[..., None], axes=(2,), batch=2)
    assert np.array_equal(turned.swapaxes(1, 2), np.take_along_axis(x, middle, axis=1))
    nd = np.array([[[1, 2]], [[0, 3]]], np.int32)  # places with one batch axis
    wanted = np.stack([x[0][1, 2], x[1][0, 3]])[:, None]
    assert np.array_equal(xp.gather(x, nd, axes=(1, 2), batch=1), wanted)
    plain = np.array([[2, 0], [1, 1]], np.int32)  # Gather along an axis
    assert np.array_equal(
        xp.gather(x, plain[..., None], axes=(1,), batch=0).transpose(2, 0, 1, 3), x[:, plain]
    )


def fold(kind, a, b):
    """One fold of Python floats or integers, by the rules as written down."""
    if kind == "replace":
        return b
    if kind in ("add", "mul"):
        return a + b if kind == "add" else a * b
    if isinstance(a, float) and (math.isnan(a) or math.isnan(b)):
        return math.nan
    first = (a, math.copysign(1, a)) if isinstance(a, float) else (a, 0)
    other = (b, math.copysign(1, b)) if isinstance(b, float) else (b, 0)
    return (max if kind == "max" else min)(first, other)[0]


def scattered(x, indices, updates, axes, batch, kind, step):
    """The scatter as a loop; ``step`` rounds (or wraps) after every fold."""
    result = {place: x[place].item() for place in np.ndindex(x.shape)}
    for lead, part in parts(x.shape, batch, axes, indices):
        if any(
            not isinstance(p, slice) and not 0 <= p < n for p, n in zip(part, x.shape, strict=True)
        ):
            continue
        ranges = [
            range(n) if isinstance(p, slice) else [p] for p, n in zip(part, x.shape, strict=True)
        ]
        flat = np.asarray(updates[lead]).reshape(-1).tolist()
        for place, value in zip(itertools.product(*ranges), flat, strict=True):
            result[place] = step(fold(kind, result[place], value))
    return np.array([result[p] for p in np.ndindex(x.shape)]).reshape(x.shape)


def rounded(value):
    with np.errstate(all="ignore"):
        return float(np.float32(value))


def wrapped(value):
    return (int(value) + 2**31) % 2**32 - 2**31


@fast
@given(st.data(), addresses(empty=True), st.sampled_from(["add", "mul", "max", "min", "replace"]))
@pytest.mark.parametrize("name", ["f4", "i4"])
def test_scatter_folds_updates_in_order_and_drops_what_is_outside(name, data, address, kind):
    shape, batch, axes, indices = address
    pool = st.sampled_from(AWKWARD if name == "f4" else (0, 1, -3, 2**31 - 1, -(2**31)))
    kept = [n for a, n in enumerate(shape) if a >= batch and a not in axes]

    def tensor(sizes):
        count = math.prod(sizes)
        return np.array(data.draw(st.lists(pool, min_size=count, max_size=count)), name).reshape(
            sizes
        )

    x, updates = tensor(shape), tensor((*indices.shape[:-1], *kept))
    wanted = scattered(
        x, indices, updates, axes, batch, kind, rounded if name == "f4" else wrapped
    ).astype(name)
    before = x.copy()
    found = xp.scatter_reduce(x, indices, updates, axes=axes, batch=batch, kind=kind)
    assert same_but_for_nan([found], [wanted])
    assert same_but_for_nan([x], [before]) and not np.may_share_memory(found, x)


@pytest.mark.parametrize("element", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_accumulate_in_f32_and_keep_what_is_not_reached(element):
    bits = {np.float16: 0x7D01, ml_dtypes.bfloat16: 0x7F81}[element]  # a signalling NaN
    x = np.array([1.0, 1.0], element)
    x.view(np.uint16)[1] = bits
    tiny = np.full(64, 2.0**-12, element)
    found = xp.scatter_reduce(x, np.zeros((64, 1), np.int32), tiny, axes=(0,), kind="add")
    assert found[0] == np.float32(1 + 64 * 2.0**-12).astype(element) != 1.0
    assert found.view(np.uint16)[1] == bits


@fast
@given(
    st.data(), st.sampled_from(["sum", "prod", "max", "min"]), st.sampled_from(["f4", "i4", "u4"])
)
def test_segments_equal_a_fold_of_each_one(data, kind, name):
    count, wide, rows = (data.draw(st.integers(0, n)) for n in (4, 2, 6))
    ids = data.draw(st.lists(st.integers(-2, 5), min_size=rows, max_size=rows))
    values = st.sampled_from((0.0, -0.0, 2.0, math.inf, math.nan) if name == "f4" else (0, 1, 7))
    flat = data.draw(st.lists(values, min_size=rows * wide, max_size=rows * wide))
    x = np.array(flat, name).reshape(rows, wide)
    found = xp.segment_reduce(x, np.array(ids, np.int32), segments=count, kind=kind)
    chosen = [[r for r in range(rows) if ids[r] == s] for s in range(count)]
    wanted = [xp.reduce(x[c], axes=(0,), kind=kind) for c in chosen]
    assert found.dtype == x.dtype and found.shape == (count, wide)
    assert not count or same_but_for_nan([found], [np.stack(wanted)])


def test_segments_of_every_kind_decompose():
    for example in scatter.segment_reduce.samples:
        inputs = [source(a.type) for a in example.operands]
        block = freeze(
            [scatter.segment_reduce.decomposition(*inputs, **example.attributes)], inputs
        )
        assert "scatter_reduce" in {i.op for i in block.instructions}
        found = evaluate(block, [a.numpy() for a in example.operands])
        assert same_but_for_nan(found, [a.numpy() for a in example.gives])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_take_along_axis_is_numpys(axis):
    x = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)
    order = np.argsort(x, axis=axis)[::-1].astype(np.int32)
    found = F.take_along_axis(*(ptir.tensor(a, backend=REF) for a in (x, order)), axis=axis)
    np.testing.assert_array_equal(found.numpy(), np.take_along_axis(x, order, axis=axis))


def test_places_of_tensors():
    x, i = (ptir.tensor(a, backend=REF) for a in ([[1.0, 2.0], [3.0, 4.0]], [[1], [1]]))
    assert F.gather(x, i, axes=[-1]).numpy().tolist() == [[2, 4], [2, 4]]
    assert F.scatter(x, i, x, axes=[0]).numpy().tolist() == [[1, 2], [3, 4]]
    assert F.scatter(x, i, x, axes=[1], kind="add").numpy().tolist() == [[1, 6], [3, 10]]
    ids = i.reshape(2)
    assert F.segment_reduce(x, ids, 2, kind="max").numpy().tolist() == [[-math.inf] * 2, [3, 4]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, i: F.gather(x, i, axes=(2,)), r"gather\(.*\): axis 2 is not in -2 <= axis < 2"),
        (lambda x, i: F.take_along_axis(x, i[0]), "all axes but 1 must have the same sizes"),
        (lambda x, i: F.scatter(x, i, x, axes=(0,), kind="sum"), "unknown kind 'sum'"),
    ],
)
def test_errors_name_the_rule(call, message):
    with pytest.raises(TypeRuleError, match=message):
        call(*(ptir.tensor(a, backend=REF) for a in ([[1.0, 2.0], [3.0, 4.0]], [[1], [1]])))
