"""Contractions, reductions, movements and indexing against models written as plain loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptir.errors import TypeRuleError
from ptir.ir.attributes import Attributes
from ptir.ir.graph import freeze, source
from ptir.ops import contraction, indexing, layout, movement, order, reduction
from ptir.ops.numerics import arrays as xp
from ptir.ops.numerics import elementwise as elementwise_numerics
from ptir.ops.record import OPS, Array
from ptir.types import BF16, DTYPES, F16, TensorType, dtype_of, parse_type
from together import together

MODULES = (contraction, reduction, order, layout, movement, indexing)
RECORDS = [r for m in MODULES for r in vars(m).values() if getattr(r, "reference", None)]
RECORDS = list({record.name: record for record in RECORDS}.values())
AWKWARD = (0.0, -0.0, 1.0, -1.0, 2.5, -3.0, math.inf, -math.inf, math.nan)
INTEGERS = {
    name: (0, 1, 5, np.iinfo(d.numpy).min, np.iinfo(d.numpy).max, np.iinfo(d.numpy).max - 1)
    for name, d in DTYPES.items()
    if d.is_integer
}
FLOATS = ("f16", "bf16", "f32", "f64")
NUMBERS = (*FLOATS, *INTEGERS)
EVERY = tuple(DTYPES)
INDICES = ("i32", "u32", "i64")

fast = settings(max_examples=60)
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
lined = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)


def same(found, wanted) -> bool:
    """Equal shape, dtype and bits, all NaN being one."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return False
    if found.dtype.kind in "biu":
        return bool(np.array_equal(found, wanted))
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    values = np.array_equal(a, b, equal_nan=True)
    numbers = ~np.isnan(a)
    return bool(values and np.array_equal(np.signbit(a[numbers]), np.signbit(b[numbers])))


def scatter(draw, values):
    """The same values with strides that are not those of a dense array."""
    match draw(st.sampled_from(["dense", "fortran", "strided", "reversed"])):
        case "dense":
            return values
        case "fortran":
            return np.asfortranarray(values)
        case "strided":
            wide = np.repeat(values[..., None], 2, axis=-1)
            return wide[..., 0]
        case _:
            every = tuple(slice(None, None, -1) for _ in values.shape)
            return np.ascontiguousarray(values[(..., *every)])[(..., *every)]


@st.composite
def tensors(draw, shape=shapes, dtypes=NUMBERS, awkward=True):
    shape, name = draw(shape) if hasattr(shape, "example") else shape, draw(st.sampled_from(dtypes))
    if name == "bool":
        pool = st.booleans()
    elif name in INTEGERS:
        pool = st.sampled_from(INTEGERS[name])
    else:
        pool = st.sampled_from(AWKWARD) if awkward else st.integers(-8, 8).map(float)
    size = math.prod(shape)
    flat = draw(st.lists(pool, min_size=size, max_size=size))
    dense = np.array(flat, dtype=parse_type(f"{name}[]").dtype.numpy).reshape(shape)
    return scatter(draw, dense)


def wrapped(value: int, dtype) -> int:
    bits = np.iinfo(dtype)
    return (value - bits.min) % 2**bits.bits + bits.min


# every record: samples, bad calls, decompositions


@together("record")
@pytest.mark.parametrize(
    ("record", "number"),
    [(r, n) for r in RECORDS for n in range(len(r.samples))],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_samples_give_their_literal_results_on_any_strides(record, number):
    case = record.samples[number]
    attributes = record.bind(case.attributes)
    types = [operand.type for operand in case.operands]
    assert record.infer(types, Attributes(attributes)) == tuple(g.type for g in case.gives)
    dense = [operand.numpy() for operand in case.operands]
    for lay in (np.ascontiguousarray, np.asfortranarray, lambda x: np.stack([x, x], -1)[..., 0]):
        operands = [lay(x).reshape(x.shape) for x in dense]
        results = record.reference(xp, *operands, **attributes)
        results = results if isinstance(results, tuple) else (results,)
        assert len(results) == len(case.gives)
        for found, wanted in zip(results, case.gives, strict=True):
            assert isinstance(found, np.ndarray)
            assert same(found, wanted.numpy()), (found, wanted)
            views = any(np.may_share_memory(found, x) for x in operands)
            assert "view" in record.traits or not views
        assert all(same(x, y) for x, y in zip(operands, dense, strict=True))


@together("record")
@pytest.mark.parametrize(
    ("record", "case"),
    [(r, c) for r in RECORDS for c in r.bad_calls],
    ids=lambda value: getattr(value, "name", getattr(value, "label", "")),
)
def test_bad_calls_are_refused_with_their_exact_message(record, case):
    operands = [source(parse_type(text)) for text in case.operands]
    with pytest.raises(TypeRuleError) as caught:
        record.multi(*operands, **case.attributes)
    first, where = str(caught.value).splitlines()
    shown = "" if case.label == "attribute" else ", ".join(case.operands)
    assert first == f"{record.name}({shown}): {case.message}"
    assert where.startswith(f"  at {__file__}:")
    assert caught.value.label == case.label


def evaluate(block, *operands):
    """The outputs of a block, each op by its reference."""
    values = list(operands)
    for instruction in block.instructions:
        record = OPS[instruction.op]
        home = elementwise_numerics if instruction.op in ("neg", "not") else xp
        arguments = [values[v] for v in instruction.operands]
        results = record.reference(home, *arguments, **instruction.attributes)
        values.extend(results if isinstance(results, tuple) else (results,))
    return [values[v] for v in block.outputs]


def decomposed(record, *operands, **attributes):
    inputs = [source(TensorType(dtype_of(x), x.shape)) for x in operands]
    outputs = record.decomposition(*inputs, **attributes)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    block = freeze(outputs, inputs)
    assert all(i.op != record.name for i in block.instructions)
    return evaluate(block, *operands)


@fast
@given(st.data(), tensors(lined))
def test_arg_min_equals_its_decomposition(data, x):
    axis = data.draw(st.integers(0, x.ndim - 1))
    if x.shape[axis]:
        (found,) = decomposed(order.arg_min, x, axis=axis)
        assert same(found, xp.arg_min(x, axis=axis))


@fast
@given(st.data(), tensors(lined))
def test_top_k_equals_its_decomposition(data, x):
    k = data.draw(st.integers(0, x.shape[-1]))
    found = decomposed(order.top_k, x, k=k)
    assert all(same(a, b) for a, b in zip(found, xp.top_k(x, k=k), strict=True))


@fast
@given(st.data(), tensors(dtypes=EVERY))
def test_tile_equals_its_decomposition_and_a_modulo(data, x):
    repeats = tuple(data.draw(st.integers(0, 3)) for _ in x.shape)
    (found,) = decomposed(movement.tile, x, repeats=repeats)
    wanted = np.empty([n * r for n, r in zip(x.shape, repeats, strict=True)], x.dtype)
    for place in np.ndindex(wanted.shape):
        wanted[place] = x[tuple(i % n for i, n in zip(place, x.shape, strict=True))]
    assert same(found, wanted)
    assert same(xp.tile(x, repeats=repeats), wanted)


# dot_general


def dot_model(lhs, rhs, lhs_batch, rhs_batch, lhs_contract, rhs_contract):
    """Nested loops over Python numbers."""
    left_free = [a for a in range(lhs.ndim) if a not in lhs_batch + lhs_contract]
    right_free = [a for a in range(rhs.ndim) if a not in rhs_batch + rhs_contract]
    sizes = [lhs.shape[a] for a in (*lhs_batch, *left_free)] + [rhs.shape[a] for a in right_free]
    result = np.zeros(sizes, object)
    for place in np.ndindex(*sizes):
        batch, rest = place[: len(lhs_batch)], place[len(lhs_batch) :]
        rows, columns = rest[: len(left_free)], rest[len(left_free) :]
        total = 0
        for k in np.ndindex(*(lhs.shape[a] for a in lhs_contract)):
            at = dict(
                zip((*lhs_batch, *left_free, *lhs_contract), (*batch, *rows, *k), strict=True)
            )
            to = dict(
                zip((*rhs_batch, *right_free, *rhs_contract), (*batch, *columns, *k), strict=True)
            )
            left = lhs[tuple(at[a] for a in range(lhs.ndim))].item()
            total += left * rhs[tuple(to[a] for a in range(rhs.ndim))].item()
        result[place] = wrapped(int(total), lhs.dtype) if lhs.dtype.kind in "iu" else total
    return result.astype(lhs.dtype)


@st.composite
def contractions(draw):
    counts = [draw(st.integers(0, 2)) for _ in range(4)]
    batch, contract, left, right = (
        [draw(st.integers(0 if draw(st.booleans()) else 1, 3)) for _ in range(n)] for n in counts
    )

    def side(free):
        labels = [("b", i) for i in range(len(batch))] + [("c", i) for i in range(len(contract))]
        labels += [("f", i) for i in range(len(free))]
        order = draw(st.permutations(labels))
        sizes = {"b": batch, "c": contract, "f": free}
        shape = tuple(sizes[kind][i] for kind, i in order)
        return (
            shape,
            tuple(order.index(("b", i)) for i in range(len(batch))),
            tuple(order.index(("c", i)) for i in range(len(contract))),
        )

    name = draw(st.sampled_from(NUMBERS))
    lhs_shape, lhs_batch, lhs_contract = side(left)
    rhs_shape, rhs_batch, rhs_contract = side(right)
    lhs = draw(tensors(lhs_shape, (name,), awkward=False))
    rhs = draw(tensors(rhs_shape, (name,), awkward=False))
    return lhs, rhs, lhs_batch, rhs_batch, lhs_contract, rhs_contract


@fast
@given(contractions())
def test_dot_general_equals_nested_loops(case):
    lhs, rhs, lhs_batch, rhs_batch, lhs_contract, rhs_contract = case
    attributes = {
        "lhs_batch": lhs_batch,
        "rhs_batch": rhs_batch,
        "lhs_contract": lhs_contract,
        "rhs_contract": rhs_contract,
    }
    wanted = dot_model(*case)
    assert np.array_equal(xp.dot_general(lhs, rhs, **attributes), wanted)
    types = [TensorType(dtype_of(x), x.shape) for x in (lhs, rhs)]
    bound = contraction.dot_general.bind(attributes)
    (inferred,) = contraction.dot_general.infer(types, bound)
    assert (inferred.shape, inferred.dtype.numpy) == (wanted.shape, wanted.dtype)


def test_dot_general_hands_blas_views_of_its_operands():
    rng = np.random.default_rng(1)
    heads = rng.normal(size=(2, 5, 3, 4)).astype(np.float32)
    split = xp.matrices(heads, (0, 2), (1,), (3,))
    across = xp.matrices(heads, (0, 2), (3,), (1,))
    weight = xp.matrices(heads[0, 0], (), (1,), (0,))
    for view in (split, across, weight):
        assert np.shares_memory(view, heads)
        assert xp.blas_ready(view) is view
    crossed = heads.transpose(0, 1, 3, 2)[:, :, ::2, :]
    assert xp.blas_ready(crossed) is not crossed
    assert np.array_equal(xp.blas_ready(crossed), crossed)


@pytest.mark.parametrize("element", [F16, BF16])
def test_dot_general_of_narrow_floats_accumulates_in_f32_and_rounds_once(element):
    ones = np.ones(4097, element.numpy)
    found = xp.dot_general(ones, ones, lhs_contract=(0,), rhs_contract=(0,))
    assert found.dtype == element.numpy
    assert found == np.float32(4097).astype(element.numpy)
    assert float(found) == 4096.0


# reductions


def later(candidate: float, best: float) -> bool:
    """Whether a maximum moves on: NaN beats numbers, +0 beats -0."""
    if math.isnan(best):
        return False
    signs = (math.copysign(1, candidate), math.copysign(1, best))
    return (
        math.isnan(candidate) or candidate > best or (candidate == best == 0 and signs == (1, -1))
    )


def fold(kind, values, dtype):
    """A fold of Python numbers."""
    if kind in ("any", "all"):
        return {"any": any, "all": all}[kind](values)
    if kind in ("sum", "prod"):
        total = {"sum": math.fsum, "prod": math.prod}[kind](values) if dtype.kind == "f" else None
        exact = {"sum": sum, "prod": math.prod}[kind](values) if total is None else total
        return total if total is not None else wrapped(exact, dtype)
    lowest = -math.inf if dtype.kind == "f" else np.iinfo(dtype).min
    highest = math.inf if dtype.kind == "f" else np.iinfo(dtype).max
    best = lowest if kind == "max" else highest
    for value in values:
        ahead = later(value, best) if kind == "max" else later(-value, -best)
        best = value if ahead and dtype.kind == "f" else best
        if dtype.kind != "f":
            best = max(best, value) if kind == "max" else min(best, value)
    return best


@fast
@given(st.data(), tensors(dtypes=(*NUMBERS, "bool"), awkward=True))
def test_reduce_equals_a_fold_over_the_dropped_axes(data, x):
    number = x.dtype != np.bool_
    kinds = ("max", "min", "sum", "prod") if number else ("any", "all")
    kind = data.draw(st.sampled_from(kinds))
    if kind in ("sum", "prod") and x.dtype.kind not in "iu":
        x = np.nan_to_num(x.astype(np.float32), nan=2, posinf=4, neginf=-2).astype(x.dtype)
    axes = tuple(data.draw(st.permutations(range(x.ndim)))[: data.draw(st.integers(0, x.ndim))])
    kept = [a for a in range(x.ndim) if a not in axes]
    wanted = np.empty([x.shape[a] for a in kept], x.dtype)
    for place in np.ndindex(wanted.shape):
        index = [slice(None)] * x.ndim
        for a, i in zip(kept, place, strict=True):
            index[a] = slice(i, i + 1)
        model = np.dtype(np.float32) if x.dtype.kind not in "iub" else x.dtype
        wanted[place] = fold(kind, [v.item() for v in x[tuple(index)].ravel()], model)
    found = xp.reduce(x, axes=axes, kind=kind)
    if kind in ("sum", "prod"):
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)
    else:
        assert same(found, wanted)


@pytest.mark.parametrize("element", [F16, BF16])
def test_sums_of_narrow_floats_do_not_stall(element):
    ones = np.ones((2, 5000), element.numpy)
    rounded = np.float32(5000).astype(element.numpy)
    assert same(xp.reduce(ones, axes=(1,), kind="sum"), np.array([rounded, rounded]))
    running = xp.cumulative(ones, axis=1, kind="sum").astype(float)
    assert running[0, 2047] == 2048.0


def test_float_sums_stay_close_to_the_exact_sum():
    x = np.random.default_rng(2).normal(size=(7, 1001)).astype(np.float32)
    exact = [math.fsum(row) for row in x.astype(np.float64)]
    bound = 1001 * 2.0**-24 * np.abs(x.astype(np.float64)).sum(axis=1)
    assert (np.abs(xp.reduce(x, axes=(1,), kind="sum") - exact) <= bound).all()


def lines(x, axis):
    """Every line along an axis: its place and its Python values."""
    for place in np.ndindex(*(n for a, n in enumerate(x.shape) if a != axis)):
        index = (*place[:axis], slice(None), *place[axis:])
        yield index, [v.item() for v in x[index]]


@fast
@given(st.data(), tensors(lined, NUMBERS))
def test_arg_extremes_are_the_first_nan_else_the_first_extreme(data, x):
    axis = data.draw(st.integers(0, x.ndim - 1))
    if not x.shape[axis]:
        return
    for function, sign in ((xp.arg_max, 1), (xp.arg_min, -1)):
        found = function(x, axis=axis)
        assert found.dtype == np.int32
        for index, values in lines(x, axis):
            nans = [i for i, v in enumerate(values) if v != v]
            best = max(range(len(values)), key=lambda i, v=values: (sign * v[i], -i))
            place = tuple(i for i in index if not isinstance(i, slice))
            assert found[place] == (nans[0] if nans else best)


@fast
@given(st.data(), tensors(lined), st.sampled_from(["sum", "max"]))
def test_cumulative_is_the_fold_of_every_prefix(data, x, kind):
    axis = data.draw(st.integers(0, x.ndim - 1))
    floats = x.dtype.kind not in "iu"
    if kind == "sum" and floats:
        x = np.nan_to_num(x.astype(np.float64), nan=2, posinf=4, neginf=-2).astype(x.dtype)
    wanted = np.empty(x.shape, x.dtype)
    model = np.dtype(np.float64) if floats else x.dtype
    for index, values in lines(x, axis):
        wanted[index] = [fold(kind, values[: i + 1], model) for i in range(len(values))]
    found = xp.cumulative(x, axis=axis, kind=kind)
    assert np.array_equal(found, wanted) if kind == "sum" else same(found, wanted)


@fast
@given(st.data(), tensors(lined, NUMBERS), st.booleans())
def test_sort_is_stable_with_nan_last_both_ways(data, x, descending):
    axis = data.draw(st.integers(0, x.ndim - 1))
    values, indices = xp.sort(x, axis=axis, descending=descending)
    assert (values.dtype, indices.dtype) == (x.dtype, np.int32)
    for index, line in lines(x, axis):
        sign = -1 if descending else 1
        order = sorted(
            range(len(line)),
            key=lambda i, v=line: (v[i] != v[i], sign * v[i] if v[i] == v[i] else 0),
        )
        assert indices[index].tolist() == order
        assert same(values[index], x[index][order] if order else x[index])


# movement


@fast
@given(st.data(), tensors(dtypes=EVERY))
def test_transpose_and_reverse_move_each_element_to_its_place(data, x):
    order = tuple(data.draw(st.permutations(range(x.ndim))))
    axes = tuple(a for a in range(x.ndim) if data.draw(st.booleans()))
    moved, turned = xp.transpose(x, permutation=order), xp.reverse(x, axes=axes)
    assert moved.shape == tuple(x.shape[a] for a in order)
    for place in np.ndindex(x.shape):
        assert same(moved[tuple(place[a] for a in order)], x[place])
        mirror = tuple(x.shape[a] - 1 - i if a in axes else i for a, i in enumerate(place))
        assert same(turned[mirror], x[place])


@fast
@given(st.data(), tensors(dtypes=EVERY))
def test_slice_picks_the_elements_that_a_range_names(data, x):
    limits = tuple(data.draw(st.integers(0, n)) for n in x.shape)
    starts = tuple(data.draw(st.integers(0, n)) for n in limits)
    strides = tuple(data.draw(st.integers(1, 3)) for _ in x.shape)
    picked = [range(*triple) for triple in zip(starts, limits, strides, strict=True)]
    found = xp.strided_slice(x, starts=starts, limits=limits, strides=strides)
    attributes = {"starts": starts, "limits": limits, "strides": strides}
    (inferred,) = movement.slice.infer([TensorType(dtype_of(x), x.shape)], attributes)
    assert found.shape == inferred.shape == tuple(map(len, picked))
    for place in np.ndindex(found.shape):
        assert same(found[place], x[tuple(r[i] for r, i in zip(picked, place, strict=True))])


@fast
@given(st.data(), tensors(dtypes=EVERY))
def test_broadcast_to_reads_the_aligned_element(data, x):
    leading = data.draw(st.lists(st.integers(0, 2), max_size=2))
    shape = (*leading, *(data.draw(st.integers(0, 3)) if n == 1 else n for n in x.shape))
    found = xp.broadcast_to(x, shape=shape)
    assert found.shape == shape
    for place in np.ndindex(shape):
        inner = place[len(leading) :]
        at = tuple(0 if n == 1 else i for n, i in zip(x.shape, inner, strict=True))
        assert same(found[place], x[at])


@fast
@given(st.data(), tensors(dtypes=EVERY))
def test_pad_puts_each_element_at_its_place_and_the_value_elsewhere(data, x):
    ends = st.integers(-4, 3)
    low, high = (tuple(data.draw(ends) for _ in x.shape) for _ in range(2))
    gaps = tuple(data.draw(st.integers(0, 2)) for _ in x.shape)
    attributes = {"low": low, "high": high, "interior": gaps}
    value = np.array(1, x.dtype)
    spread = [max(0, (n - 1) * (g + 1) + 1) for n, g in zip(x.shape, gaps, strict=True)]
    sizes = [a + n + b for a, n, b in zip(low, spread, high, strict=True)]
    types = [TensorType(dtype_of(x), x.shape), TensorType(dtype_of(x), ())]
    if any(size < 0 for size in sizes):
        with pytest.raises(TypeRuleError, match="crop more than there is"):
            movement.pad.infer(types, attributes)
        return
    wanted = np.full(sizes, value)
    for place in np.ndindex(x.shape):
        at = tuple(a + i * (g + 1) for a, i, g in zip(low, place, gaps, strict=True))
        if all(0 <= i < n for i, n in zip(at, sizes, strict=True)):
            wanted[at] = x[place]
    assert movement.pad.infer(types, attributes)[0].shape == tuple(sizes)
    assert same(xp.pad(x, value, **attributes), wanted)


@fast
@given(st.data(), tensors(lined, EVERY))
def test_slices_of_a_concat_are_its_operands(data, x):
    axis = data.draw(st.integers(0, x.ndim - 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, x.shape[axis]), max_size=3)))
    bounds = list(itertools.pairwise([0, *cuts, x.shape[axis]]))
    every = (slice(None),) * axis
    parts = [x[(*every, slice(a, b))] for a, b in bounds]
    assert same(xp.concat(*parts, axis=axis), x)


@fast
@given(tensors(dtypes=EVERY))
def test_reshape_keeps_row_major_order(x):
    flat = xp.reshape(x, shape=(x.size,))
    for number, place in enumerate(np.ndindex(x.shape)):
        assert same(flat[number], x[place])


# indexing


@fast
@given(st.data(), tensors(lined, EVERY))
def test_take_reads_the_clamped_slice(data, x):
    axis = data.draw(st.integers(0, x.ndim - 1))
    size = x.shape[axis]
    if not size:
        return
    indices = data.draw(tensors(shapes, INDICES))
    found = xp.take(x, indices, axis=axis)
    assert found.shape == (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    for place in np.ndindex(found.shape):
        named = indices[place[axis : axis + indices.ndim]].item()
        at = (*place[:axis], min(max(named, 0), size - 1), *place[axis + indices.ndim :])
        assert same(found[place], x[at])


@fast
@given(st.data(), tensors(dtypes=EVERY))
def test_dynamic_windows_move_until_they_fit(data, x):
    sizes = tuple(data.draw(st.integers(0, n)) for n in x.shape)
    edges = st.integers(-3, 5) | st.sampled_from(INTEGERS["i32"])
    starts = np.array([data.draw(edges) for _ in x.shape], np.int32)
    begins = [
        min(max(s, 0), n - w) for s, n, w in zip(starts.tolist(), x.shape, sizes, strict=True)
    ]
    window = xp.dynamic_slice(x, starts, sizes=sizes)
    update = np.full(sizes, 1, x.dtype)
    updated = xp.dynamic_update_slice(x, update, starts)
    assert (window.shape, updated.shape) == (sizes, x.shape)
    assert not np.may_share_memory(updated, x)
    for place in np.ndindex(x.shape):
        within = tuple(i - b for i, b in zip(place, begins, strict=True))
        inside = all(0 <= i < w for i, w in zip(within, sizes, strict=True))
        assert same(updated[place], update[within] if inside else x[place])
        assert not inside or same(window[within], x[place])


def test_sample_permutations_are_not_their_own_inverse():
    """A transpose composed backwards must not pass its samples."""
    orders = [s.attributes["permutation"] for s in layout.transpose.samples]
    assert any(o != tuple(np.argsort(o)) for o in orders)


def test_literal_operands_have_the_type_they_print():
    assert str(Array("bf16", [[1.5, 2.0]]).type) == "bf16[1,2]"
