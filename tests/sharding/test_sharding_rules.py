"""Every factor of every op: done in parts and brought together, the results are the whole's.

The parts are uneven and interleaved, so that a row of the table that confuses two axes, or the
order of places along one, gives something else.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from comparing import reference, run_block, same_bits
from ptir.ir.attributes import Attributes
from ptir.ir.graph import freeze, source
from ptir.ir.program import Instruction
from ptir.ops import OPS
from ptir.ops.record import Array, Op, Sample
from ptir.sharding.local import compute, full_value, shard_of
from ptir.sharding.placement import REPLICATED, Partial, Placement, Ranges, Split, merged
from ptir.sharding.rules import factors
from ptir.sharding.strategies import Strategy, strategy
from ptir.types import dtype_of
from together import together

EXPECTED = {
    *("constant", "iota", "broadcast_to", "transpose", "reshape", "slice", "concat", "pad"),
    *("tile", "reverse", "cumulative", "sort", "top_k", "dynamic_slice", "take"),
    *("dynamic_update_slice", "arg_max", "arg_min", "reduce", "dot_general", "quantize"),
    *("dequantize", "reduce_window", "add", "select", "clamp", "cast", "exp"),
}
"""Ops whose samples must be shared in some way, so that a lost row is noticed."""


def interleaved(count: int, workers: int) -> tuple[Ranges, ...]:
    """Every worker has places here and there: more the later it comes."""
    owner = [min(workers - 1, place * 7 % (2 * workers - 1)) for place in range(count)]
    owner[:workers] = range(workers)
    return tuple(
        merged((p, p + 1) for p in range(count) if owner[p] == worker) for worker in range(workers)
    )


GRID = Array("f32", np.arange(24.0).reshape(3, 8).tolist())
PLACE = Array("i32", [0, 3])
MORE = {
    "slice": [Sample((GRID,), {"starts": (1, 0), "limits": (3, 8), "strides": (1, 1)}, ())],
    "pad": [
        Sample((GRID, Array("f32", 9.0)), {"low": (1, 0), "high": (0, 0), "interior": (2, 0)}, ())
    ],
    "dynamic_slice": [Sample((GRID, PLACE), {"sizes": (3, 4)}, ())],
    "dynamic_update_slice": [
        Sample((GRID, Array("f32", [[-1.0] * 2] * 3), PLACE), {}, ()),
    ],
    "take": [Sample((GRID, Array("i32", [[2, 0, 1], [1, 1, 2]])), {"axis": 0}, ())],
}
"""Calls of ops whose samples have no factor of two units, or confuse no axes."""


def sample_calls(record: Op) -> list[tuple[Sample, Instruction]]:
    calls = []
    for sample in (*record.samples, *MORE.get(record.name, ())):
        types = tuple(array.type for array in sample.operands)
        attributes = Attributes(record.bind(sample.attributes))
        results = record.infer(types, attributes, sample.regions)
        numbers = tuple(range(len(types)))
        one = Instruction(record.name, numbers, attributes, results, sample.regions)
        calls.append((sample, one))
    return calls


def ways(instruction: Instruction, types: Any, workers: int) -> list[Strategy]:
    """The call shared along each of its factors."""
    found = []
    for factor in factors(instruction, types):
        if factor.count >= workers:
            units = interleaved(factor.count, workers)
            axes = (*factor.operands, *factor.results)
            placed = tuple(factor.placed(link, units) for link in axes)
            found.append(Strategy(placed[: len(types)], placed[len(types) :]))
    return found


def part(array: Any, placement: Placement, worker: int) -> Any:
    if not isinstance(placement, Split):
        return array
    places = [p for start, end in placement.parts[worker] for p in range(start, end)]
    return np.take(array, places, axis=placement.axis)


def brought_together(instruction: Instruction, way: Strategy, arrays: list[Any]) -> list[Any]:
    """The results from what two or three workers compute of their parts."""
    workers = next(len(p.parts) for p in (*way.operands, *way.results) if isinstance(p, Split))
    each = []
    for worker in range(workers):
        parts = [part(a, p, worker) for a, p in zip(arrays, way.operands, strict=True)]
        inputs = [
            source(p.local(type_of(a), worker)) for a, p in zip(arrays, way.operands, strict=True)
        ]
        block = freeze(list(compute(instruction, way, worker, inputs)), inputs)
        each.append(run_block(block, parts))
    results = []
    for number, (placed, type) in enumerate(zip(way.results, instruction.types, strict=True)):
        if placed == REPLICATED:
            results.append(each[0][number])
            continue
        held = [source(placed.local(type, worker)) for worker in range(workers)]
        block = freeze([full_value(held, placed, type)], held)
        results += run_block(block, [one[number] for one in each])
    return results


def type_of(array: Any) -> Any:
    from ptir.types import TensorType

    return TensorType(dtype_of(array), tuple(array.shape))


@together()
@pytest.mark.parametrize("name", sorted(OPS))
def test_an_op_done_in_parts_gives_the_whole_result(name: str) -> None:
    record, tried = OPS[name], 0
    if "control" in record.traits:
        return
    for (sample, instruction), workers in itertools.product(sample_calls(record), (2, 3)):
        arrays = [array.numpy() for array in sample.operands]
        wanted = reference(record, arrays, instruction.attributes, instruction.regions)
        for way in ways(instruction, [type_of(a) for a in arrays], workers):
            tried += 1
            found = brought_together(instruction, way, arrays)
            for one, other, placed in zip(found, wanted, way.results, strict=True):
                assert alike(one, other, placed), f"{name} shared as {way}\n{one!r}\n{other!r}"
    assert tried or name not in EXPECTED


def alike(found: Any, wanted: Any, placed: Placement) -> bool:
    """Bit for bit, but sums of floats, whose order differs, to a few units."""
    rounded = isinstance(placed, Partial) and placed.kind in ("sum", "prod")
    if not (rounded and dtype_of(wanted).is_float):
        return same_bits(found, wanted)
    tolerance = 2.0 ** (3 - dtype_of(wanted).digits)
    return np.allclose(
        found.astype("f8"), wanted.astype("f8"), rtol=tolerance, atol=0, equal_nan=True
    )


def test_a_fused_projection_is_split_as_its_heads_are() -> None:
    """Queries, keys and values side by side: of each third the columns of a worker's heads."""
    types = (type_of(np.zeros((1, 36), "f4")),)
    attributes = Attributes({"shape": (1, 3, 4, 3)})
    result = type_of(np.zeros((1, 3, 4, 3), "f4"))
    reshaped = Instruction("reshape", (0,), attributes, (result,))
    heads = Split(2, (((0, 1),), ((1, 4),)))
    way = strategy(reshaped, types, 1, heads)
    assert way is not None
    columns = way.operands[0]
    assert columns == Split(1, (((0, 3), (12, 15), (24, 27)), ((3, 12), (15, 24), (27, 36))))
    assert strategy(reshaped, types, 0, columns) == way
    third = Split(1, (((0, 18),), ((18, 36),)))
    assert strategy(reshaped, types, 0, third) is None


def test_a_slice_of_a_split_value_is_split_where_everybody_has_some_of_it() -> None:
    types = (type_of(np.zeros((2, 12), "f4")),)
    given = Attributes({"starts": (0, 4), "limits": (2, 8), "strides": None})
    cut = Instruction("slice", (0,), given, (type_of(np.zeros((2, 4), "f4")),))
    found = strategy(cut, types, 0, Split(1, (((0, 6),), ((6, 12),))))
    assert found is not None and found.results == (Split(1, (((0, 2),), ((2, 4),))),)
    assert strategy(cut, types, 0, Split(1, (((0, 4),), ((4, 12),)))) is None


def test_narrow_sums_cross_as_f32_and_are_rounded_once() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=shape).astype("f2") for shape in ((3, 64), (64, 5)))
    attributes = Attributes(OPS["dot_general"].bind({"lhs_contract": (1,), "rhs_contract": (0,)}))
    types = (type_of(x), type_of(w))
    results = OPS["dot_general"].infer(types, attributes)
    dot = Instruction("dot_general", (0, 1), attributes, results)
    halves = (((0, 32),), ((32, 64),))
    way = strategy(dot, types, 0, Split(1, halves))
    assert way is not None and way.results == (Partial("sum", wide=True),)
    (found,) = brought_together(dot, way, [x, w])
    exact = (x.astype("f8") @ w.astype("f8")).astype("f2")
    assert np.abs(found.astype("f8") - exact.astype("f8")).max() <= np.spacing(np.abs(exact).max())


def test_part_of_and_collected_are_inverse() -> None:
    array = np.arange(30, dtype="f4").reshape(5, 6)
    placed = Split(1, interleaved(6, 3))
    whole = source(type_of(array))
    parts = [shard_of(whole, placed, worker) for worker in range(3)]
    block = freeze([full_value(parts, placed, whole.type)], [whole])
    assert same_bits(run_block(block, [array])[0], array)
