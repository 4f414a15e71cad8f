"""Scan: a region run once for each row of its sequences, handing a carry from run to run."""

from __future__ import annotations

from functools import partial
from typing import Any

from ptir.ir.graph import Ref, freeze, inline, source
from ptir.ir.program import Block
from ptir.ops.classes import ANY
from ptir.ops.control import Types, listed, require_inputs
from ptir.ops.control import while_ as while_op
from ptir.ops.indexing import dynamic_update_slice, take
from ptir.ops.layout import broadcast_to, reshape
from ptir.ops.movement import concat
from ptir.ops.record import Array, Attribute, BadCall, Call, Sample, define, literal, op, refusals
from ptir.types import F32, I32, TensorType

_f32 = partial(Array, "f32")


def _scan(call: Call) -> Types:
    (body,) = call.regions
    count, length = call["carries"], call["length"]
    good = type(count) is int and 0 <= count <= len(call.types)
    given = f"carries {count!r} is not in 0 <= carries <= {len(call.types)}"
    call.require(good, "carries", given)
    good = type(length) is int and 0 <= length < 2**31
    call.require(good, "length", f"length {length!r} is not in 0 <= length < 2**31")
    down = call["reverse"]
    call.require(isinstance(down, bool), "reverse", f"reverse {down!r} is not a bool")
    carries, sequences = call.types[:count], call.types[count:]
    for number, found in enumerate(sequences, count):
        message = f"operand {number} is {found}; a sequence has {length} rows"
        call.require(found.shape[:1] == (length,), "sequences", message)
    rows = tuple(found.with_shape(found.shape[1:]) for found in sequences)
    require_inputs(call, "body", body, (*carries, *rows))
    gives = body.output_types
    message = f"body gives {listed(gives)}; it must begin with the carries {listed(carries)}"
    call.require(gives[:count] == carries, "outputs", message)
    return (*carries, *(t.with_shape((length, *t.shape)) for t in gives[count:]))


def _run_scan(
    xp: Any, *operands: Any, regions: Any, carries: int, length: int, **order: Any
) -> Any:
    (body,) = regions
    carry, sequences = operands[:carries], operands[carries:]
    given: list[Any] = [None] * length
    for number in scan_order(length, **order):
        results = body(*carry, *(xp.row(x, number) for x in sequences))
        carry, given[number] = results[:carries], results[carries:]
    if not length:  # nothing ran, so the types say what there is none of
        return (*carry, *(xp.no_rows(type) for type in body.output_types[carries:]))
    return (*carry, *(xp.stack(column) for column in zip(*given, strict=True)))


def scan_order(length: int, reverse: bool = False) -> range:
    """The numbers of the rows in the order in which they are visited."""
    return range(length - 1, -1, -1) if reverse else range(length)


def _scan_decomposition(
    *operands: Ref, regions: tuple[Block, ...], carries: int, length: int, reverse: bool
) -> tuple[Ref, ...]:
    """A while loop over a counter, the operands and the stacked outputs so far."""
    (body,) = regions
    stacks = [
        broadcast_to(_number(0, type), shape=(length, *type.shape))
        for type in body.output_types[carries:]
    ]
    if not length:
        return (*operands[:carries], *stacks)
    first = (_number(0, _COUNTER), *operands, *stacks)
    state = [source(value.type) for value in first]
    condition = freeze([op("compare")(state[0], _number(length, _COUNTER), direction="lt")], state)
    iteration = freeze(_iteration(state, body, carries, length, reverse), state)
    _, *last = while_op.multi(*first, regions=(condition, iteration))
    return (*last[:carries], *last[len(operands) :])


def _iteration(
    state: list[Ref], body: Block, carries: int, length: int, reverse: bool
) -> list[Ref]:
    """The state after one more row."""
    counter, operands = state[0], state[1 : 1 + len(body.inputs)]
    stacks = state[1 + len(body.inputs) :]
    row = op("sub")(_number(length - 1, _COUNTER), counter) if reverse else counter
    rows = [take(x, row, axis=0) for x in operands[carries:]]
    results = inline(body, [*operands[:carries], *rows])
    written = [_written(s, y, row) for s, y in zip(stacks, results[carries:], strict=True)]
    after = op("add")(counter, _number(1, _COUNTER))
    return [after, *results[:carries], *operands[carries:], *written]


def _written(stack: Ref, value: Ref, row: Ref) -> Ref:
    """``stack`` with ``value`` as one of its rows."""
    update = reshape(value, shape=(1, *value.type.shape))
    starts = reshape(row, shape=(1,))
    if value.type.rank:
        rest = broadcast_to(_number(0, _COUNTER), shape=(value.type.rank,))
        starts = concat(starts, rest, axis=0)
    return dynamic_update_slice(stack, update, starts)


_COUNTER = TensorType(I32, ())


def _number(value: int, type: TensorType) -> Ref:
    import numpy as np

    return op("constant")(value=literal(np.array(value, type.dtype.numpy)))


_V = TensorType(F32, (2,))
_DELAY = Block((_V, _V), (), (1, 0))
_CARRY, _ROW = source(_V), source(_V)
_TOTAL = freeze([total := op("add")(_CARRY, _ROW), total], [_CARRY, _ROW])
_ROWS = [[3, 4], [5, 6], [7, -8]]

scan = define(
    "scan",
    "operands*",
    dtypes=ANY,
    attributes=(
        Attribute("carries", "how many operands are carries; the others are sequences"),
        Attribute("length", "how many rows each sequence has, and how often the region runs"),
        Attribute("reverse", "whether the last row comes first", False),
    ),
    regions=1,
    rule=_scan,
    reference=_run_scan,
    decomposition=_scan_decomposition,
    traits="control",
    profile="control-flow",
    doc="""The region run once for each row of the sequences, handing the carries from run to run.

    It takes the carries, then one row (first axis) of each sequence; it gives the next carries,
    of the same types, then any outputs. Results are the last carries, then each output stacked
    along a new first axis, always in the order of the rows, whatever ``reverse`` says.""",
    samples=(
        Sample(
            (_f32([1, -2]), _f32(_ROWS)),
            {"carries": 1, "length": 3},
            (_f32([7, -8]), _f32([[1, -2], [3, 4], [5, 6]])),
            (_DELAY,),
        ),
        Sample(
            (_f32([1, -2]), _f32(_ROWS)),
            {"carries": 1, "length": 3, "reverse": True},
            (_f32([3, 4]), _f32([[5, 6], [7, -8], [1, -2]])),
            (_DELAY,),
        ),
        Sample(
            (_f32([1, -2]), _f32(_ROWS)),
            {"carries": 1, "length": 3},
            (_f32([16, 0]), _f32([[4, 2], [9, 8], [16, 0]])),
            (_TOTAL,),
        ),
        Sample(
            (_f32([1, -2]), _f32([]).reshaped(0, 2)),
            {"carries": 1, "length": 0},
            (_f32([1, -2]), _f32([]).reshaped(0, 2)),
            (_DELAY,),
        ),
        Sample(
            (_f32([1, -2]), _f32([3, 4])),
            {"carries": 2, "length": 3},
            (_f32([3, 4]), _f32([1, -2])),
            (_DELAY,),
        ),
        Sample(
            (_f32([[1, -2]]), _f32([[3, 4]])),
            {"carries": 0, "length": 1},
            (_f32([[3, 4]]), _f32([[1, -2]])),
            (_DELAY,),
        ),
    ),
    bad_calls=(
        *refusals("operands*", ANY, "f32[2]", "f32[3,2]", regions=(_DELAY,), carries=1, length=3),
        *(
            BadCall(label, ("f32[2]", "f32[3,2]"), {"carries": 1, "length": 3} | wrong, says, body)
            for label, wrong, says, body in (
                ("carries", {"carries": 3}, "carries 3 is not in 0 <= carries <= 2", (_DELAY,)),
                ("length", {"length": -1}, "length -1 is not in 0 <= length < 2**31", (_DELAY,)),
                ("reverse", {"reverse": 1}, "reverse 1 is not a bool", (_DELAY,)),
                (
                    "sequences",
                    {"length": 2},
                    "operand 1 is f32[3,2]; a sequence has 2 rows",
                    (_DELAY,),
                ),
                (
                    "inputs",
                    {},
                    "body takes (f32[2]); the operands are (f32[2], f32[2])",
                    (Block((_V,), (), (0,)),),
                ),
                (
                    "outputs",
                    {},
                    "body gives (); it must begin with the carries (f32[2])",
                    (Block((_V, _V), (), ()),),
                ),
                ("regions", {}, "2 regions given; takes 1", (_DELAY, _DELAY)),
            )
        ),
    ),
)
