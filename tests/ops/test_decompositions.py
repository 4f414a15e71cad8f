"""Every decomposition equals the reference: pairs of awkward values, every dtype, empty extents.

Bit for bit, NaN equal NaN, but for two: rsqrt is within its accuracy class and float sums of
``cumulative`` within the bound of summation.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from comparing import assert_same, reference, run_block, ulps
from evaluation import awkward, awkward_values
from ptir.errors import TypeRuleError, UnsupportedError
from ptir.ir.attributes import Attributes
from ptir.ir.graph import Ref, freeze, source
from ptir.ops.profiles import primitives
from ptir.ops.record import OPS
from ptir.types import DTYPES, I32, TensorType, dtype_of, spec
from sample_calls import FOR_ITS_OWN_DTYPE, calls_in
from together import together

DECOMPOSED = [record for record in OPS.values() if record.decomposition is not None]
ELEMENTWISE = [
    (record, dtype)
    for record in DECOMPOSED
    if "elementwise" in record.traits
    for dtype in DTYPES.values()
    if dtype in record.dtypes[record.operands[0]]
]


def decomposed(record, types, attributes, regions=()):
    """The decomposition of a call as a block, whose type is that of the op."""
    inputs = [source(t) for t in types]
    bound = Attributes(record.bind(attributes))
    given = record.decomposition(*inputs, **bound, **({"regions": regions} if regions else {}))
    block = freeze([given] if isinstance(given, Ref) else list(given), inputs)
    assert block.output_types == record.infer(types, bound, regions)
    assert record.name not in {i.op for i in block.instructions}
    return block


def both(record, arrays, attributes, regions=()):
    """What the decomposition and the reference give."""
    types = [TensorType(dtype_of(a), a.shape) for a in arrays]
    block = decomposed(record, types, attributes, regions)
    bound = record.bind(attributes)
    with np.errstate(all="ignore"):
        return run_block(block, arrays), reference(record, arrays, bound, regions)


@together("record")
@pytest.mark.parametrize(("record", "dtype"), ELEMENTWISE, ids=lambda v: getattr(v, "name", ""))
def test_elementwise_decomposition_on_all_combinations(record, dtype):
    count = len(record.operands)
    arrays = awkward([spec(dtype, 16**count)] * count)
    found, wanted = both(record, arrays, {})
    if record.name == "rsqrt":
        bound = float(record.accuracy_of(dtype).partition(":")[2])
        assert ulps(found[0], wanted[0]) <= bound
    else:
        assert_same(found, wanted)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rsqrt_of_every_narrow_float_is_within_a_unit(dtype):
    patterns = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype].numpy)
    found, wanted = both(OPS["rsqrt"], [patterns], {})
    assert ulps(found[0], wanted[0]) <= 1


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_rsqrt_of_a_sweep_is_within_its_bound(dtype):
    values = np.exp2(np.random.default_rng(3).uniform(-120, 120, 20000)).astype(DTYPES[dtype].numpy)
    found, wanted = both(OPS["rsqrt"], [values], {})
    assert ulps(found[0], wanted[0]) <= float(OPS["rsqrt"].accuracy.partition(":")[2])


SHAPES = [(16,), (3, 5), (2, 3, 4), (0,), (2, 0), (1, 4), (17, 1)]


def lined(name, dtype, shape):
    """The calls of an op on lines: every axis, every choice of its attributes."""
    x = spec(dtype, *shape)
    for axis, size in enumerate(shape):
        if name == "cumulative":
            yield from (((x,), {"axis": axis, "kind": kind}) for kind in ("sum", "max"))
        elif name == "arg_min" and size:
            yield (x,), {"axis": axis}
        elif name == "reverse":
            yield (x,), {"axes": (axis,)}
    if name == "reverse":
        yield from (((x,), {"axes": axes}) for axes in ((), tuple(range(len(shape)))))
    if name == "top_k":
        yield from (((x,), {"k": k}) for k in {0, shape[-1] // 2, shape[-1]})
    if name == "tile":
        for repeats in itertools.product((0, 1, 3), repeat=len(shape)):
            yield (x,), {"repeats": repeats}


LINED = [
    (OPS[name], dtype)
    for name in ("cumulative", "arg_min", "reverse", "top_k", "tile")
    for dtype in DTYPES.values()
    if dtype in OPS[name].dtypes["operand"]
]


def wide_enough(found, wanted, arrays, axis):
    """Whether float sums agree where finite, by the bound of a sum in any order."""
    wide = np.float64 if found.dtype == np.float64 else np.float32
    x = np.abs(arrays[0].astype(np.float64))
    own = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
    unit = x.shape[axis] * np.finfo(wide).eps * np.cumsum(x, axis)
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    near = np.abs(a - b) <= unit + 2 * own[found.dtype.name] * np.abs(b)
    return bool((near | (np.isnan(a) & np.isnan(b)) | (a == b)).all())


@together("record")
@pytest.mark.parametrize(("record", "dtype"), LINED, ids=lambda v: getattr(v, "name", ""))
def test_decomposition_along_lines(record, dtype):
    for shape in SHAPES:
        for types, attributes in lined(record.name, dtype, shape):
            for turn in (0, 5, 11):
                arrays = awkward(types, turn)
                if record.name == "cumulative" and attributes["kind"] == "sum" and dtype.is_float:
                    arrays = [np.where(np.abs(a) > 1e3, 7, a).astype(a.dtype) for a in arrays]
                    found, wanted = both(record, arrays, attributes)
                    assert wide_enough(found[0], wanted[0], arrays, attributes["axis"])
                else:
                    assert_same(*both(record, arrays, attributes))


def test_cumulative_sums_keep_infinities_nan_and_minus_zero_in_their_place():
    for dtype in ("f16", "bf16", "f32", "f64"):
        line = np.array([-0.0, -0.0, 1.0, np.inf, 2.0, -np.inf, 3.0], DTYPES[dtype].numpy)
        assert_same(*both(OPS["cumulative"], [line], {"axis": 0, "kind": "sum"}))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_cumulative_sums_of_narrow_floats_are_rounded_once(dtype):
    """Whole numbers below 2**24 are exact in f32, so both are the nearest or not narrow enough."""
    line = np.arange(1, 700, dtype=np.float32).astype(DTYPES[dtype].numpy)
    assert_same(*both(OPS["cumulative"], [line], {"axis": 0, "kind": "sum"}))


WINDOWS = [
    ((5,), (2,)),
    ((5,), (5,)),
    ((5,), (0,)),
    ((0,), (0,)),
    ((3, 4), (2, 4)),
    ((3, 4), (3, 1)),
    ((2, 3, 2), (1, 2, 1)),
    ((2, 0), (1, 0)),
    ((), ()),
]
STARTS = (0, 1, -1, 3, 100, -(2**31), 2**31 - 1)


@together("dtype")
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize(("shape", "window"), WINDOWS)
def test_decomposition_of_dynamic_windows(dtype, shape, window):
    (x,) = awkward([spec(dtype, *shape)])
    (update,) = awkward([spec(dtype, *window)], rotation=7)
    for number in range(len(STARTS)):
        starts = np.array([STARTS[(number + 2 * a) % 7] for a in range(len(shape))], np.int32)
        assert_same(*both(OPS["dynamic_slice"], [x, starts], {"sizes": window}))
        assert_same(*both(OPS["dynamic_update_slice"], [x, update, starts], {}))


@together()
@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (8,), (3, 0), (2, 3, 7)])
@pytest.mark.parametrize("key", [(0, 0), (2**32 - 1, 2**32 - 1), (0xDEADBEEF, 7)])
def test_decomposition_of_rng_bits(shape, key):
    assert_same(*both(OPS["rng_bits"], [np.array(key, np.uint32)], {"shape": shape}))


def test_rng_bits_beyond_its_counter_is_refused_by_name():
    with pytest.raises(UnsupportedError, match=r"rng_bits of \d+ words has no decomposition"):
        decomposed(OPS["rng_bits"], [spec("u32", 2)], {"shape": (2**34 + 4,)})


def test_dynamic_update_of_more_than_2_31_elements_counts_in_i64():
    types = [spec("i8", 2**31), spec("i8", 1), spec("i32", 1)]
    block = decomposed(OPS["dynamic_update_slice"], types, {})
    (iota, *_) = [i for i in block.instructions if i.op == "iota"]
    assert iota.types[0].dtype == DTYPES["i64"]
    small = [spec("i8", 2**31 - 1), spec("i8", 1), spec("i32", 1)]
    block = decomposed(OPS["dynamic_update_slice"], small, {})
    assert {i.types[0].dtype for i in block.instructions if i.op == "iota"} == {I32}


@together()
@pytest.mark.parametrize("record", DECOMPOSED, ids=lambda r: r.name)
def test_decompositions_end_in_primitives_and_never_lead_back(record):
    """Follow every op of every decomposition down; no op may reach itself."""
    seen: dict[str, set[str]] = {}

    def below(name, path):
        assert name not in path, [*path, name]
        if OPS[name].decomposition is None:
            return
        for inner in seen.get(name) or needs(name):
            below(inner, (*path, name))

    def needs(name):
        seen[name] = set()
        for call in calls(OPS[name]):
            block = decomposed(OPS[name], *call)
            seen[name] |= {i.op for i in block.instructions}
        return seen[name]

    below(record.name, ())


def calls(record):
    for example in record.samples:
        yield tuple(a.type for a in example.operands), example.attributes, example.regions
    if "elementwise" in record.traits:
        for dtype in record.dtypes[record.operands[0]]:
            yield (spec(dtype, 4),) * len(record.operands), {}, ()


SAMPLED = [
    pytest.param(record, dtype, id=f"{record.name}-{dtype}")
    for record in DECOMPOSED
    for dtype in DTYPES.values()
    if any(dtype in members for members in record.dtypes.values())
]


@together("record")
@pytest.mark.parametrize(("record", "dtype"), SAMPLED)
def test_decomposition_of_the_samples_in_every_dtype(record, dtype):
    """Exact where the record is; within a coarse bound where sums or roundings may differ."""
    compared = 0
    for arrays, attributes, regions in calls_in(record, dtype):
        try:
            found, wanted = both(record, arrays, attributes, regions)
        except TypeRuleError as error:
            assert error.label in FOR_ITS_OWN_DTYPE, error
            continue
        for one, other in zip(found, wanted, strict=True):
            accuracy = record.accuracy_of(dtype_of(other))
            if accuracy == "exact" or accuracy.startswith("rounded"):
                assert_same([one], [other])
            else:
                bound = 2.0**-6 if dtype_of(other).bits < 32 else 1e-6
                np.testing.assert_allclose(one.astype("f8"), other.astype("f8"), rtol=bound)
        compared += 1
    assert compared


def test_core_has_about_thirty_primitives():
    names = {record.name for record in primitives()}
    assert 32 <= len(names) <= 40
    assert {"add", "dot_general", "take", "reduce", "exp"} <= names
    assert not names & {"neg", "sub", "tile", "sort", "cond", "rng_bits", "custom_call"}


def test_awkward_values_hold_the_ends_of_every_dtype():
    for dtype in DTYPES.values():
        if dtype.is_integer:
            assert {np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max} <= set(
                awkward_values(dtype)
            )
