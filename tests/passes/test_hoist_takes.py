"""Takes are hoisted: rows that nobody reads are not computed, and those that are read are right.

Programs are run as they were captured and after the pass, by NumPy. What a pass must leave alone is
as much tested as what it must find.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ptir
from evaluation import evaluate
from ptir import functional as F
from ptir.capture import call
from ptir.functional.define import lowering
from ptir.ir.graph import rebuild, repeat
from ptir.ir.program import Instruction, Port, Program
from ptir.ops.implementations import FUNCTIONALS, PORTABLE, Functional, Implementation
from ptir.passes import PassContext
from ptir.passes.cse import cse
from ptir.passes.dce import dce
from ptir.passes.hoist_takes import COUNTED, hoist_takes
from ptir.types import spec

ROWS, WIDTH = 7, 8
X, W = spec("f32", 1, ROWS, WIDTH), spec("f32", WIDTH, WIDTH)
AT = spec("i32", 1)
BATCH = spec("f32", 3, ROWS, WIDTH)
HEADS = spec("f32", 2, 4, ROWS, WIDTH)
KEYS = spec("f32", 2, 2, 16, WIDTH)
PLACES = spec("i32", 2)


def arrays(program: Program, *last: Any) -> list[Any]:
    """Numbers for all inputs; the ``last`` ones are given."""
    rng = np.random.default_rng(7)
    drawn = program.inputs[: len(program.inputs) - len(last)]
    return [*(rng.standard_normal(t.shape, np.float32) for t in drawn), *map(np.asarray, last)]


def hoisted(program: Program, context: PassContext) -> Program:
    return cse(dce(hoist_takes(program, context), context), context)


def largest(program: Program) -> int:
    """The elements of the largest value that is computed."""
    return max(math.prod(t.shape) for i in program.main.instructions for t in i.types)


def assert_same_numbers(before: Program, after: Program, given: list[Any]) -> None:
    pairs = zip(evaluate(before.main, given), evaluate(after.main, given), strict=True)
    for wanted, found in pairs:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def row(x: Any, at: Any) -> Any:
    return F.take(x.reshape(ROWS, -1), at)


def turned(x: Any, w: Any, at: Any) -> Any:
    return row(F.linear(x + x.transpose(0, 2, 1), w[:ROWS]), at)


def squared(x: Any, at: Any) -> Any:
    return row(x * x, at)


def both(x: Any, at: Any) -> Any:
    return row(x, at), x


CHAINS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, w, at: row(F.linear(x, w), at),
    "norm and residual": lambda x, w, at: row(
        x + F.rms_norm(F.linear(x, w), w.sum(axis=0), epsilon=1e-5), at
    ),
    "softmax": lambda x, w, at: row(F.softmax(F.linear(x, w)), at),
    "heads apart and joined": lambda x, w, at: row(
        F.gelu(F.linear(x, w).reshape(1, ROWS, 2, 4).transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
        at,
    ),
    "halves": lambda x, w, at: row(F.linear(x, w)[..., :4] * F.silu(F.linear(x, w)[..., 4:]), at),
    "a product of a value with itself": lambda x, w, at: squared(F.linear(x, w), at),
    "positions": lambda x, w, at: row(
        F.linear(x, w) * F.arange(ROWS, dtype="f32").reshape(1, ROWS, 1), at
    ),
    "what others read whole, too": lambda x, w, at: (
        row(F.linear(F.gelu(x), w), at),
        F.gelu(x),
    ),
    "of every row that another sums": lambda x, w, at: row(
        F.linear(x - x.max(axis=1, keepdims=True), w), at
    ),
    "along another axis": lambda x, w, at: F.take(F.linear(x, w), at, axis=1),
    "of a value and of it turned": lambda x, w, at: turned(F.gelu(x[:, :, :ROWS]), w, at),
    "as an embedding": lambda x, w, at: F.embedding(F.linear(x, w).reshape(ROWS, WIDTH), at),
    "of an index that depends on the value": lambda x, w, at: row(
        F.linear(F.gelu(x), w), F.gelu(x)[0, :, 0].argmax(axis=0).reshape(1)
    ),
}


@pytest.mark.parametrize("place", [0, 3, ROWS - 1, ROWS, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_row_that_is_taken_is_computed_alone(
    chain: str, place: int, context: PassContext
) -> None:
    before = ptir.capture(CHAINS[chain], X, W, AT)
    after = hoisted(before, context)
    assert context.rewrites[COUNTED] == 1
    products = [i for i in after.main.instructions if i.name in ("linear", "dot_general")]
    assert [i.types[0].shape for i in products] == [(1, 1, WIDTH)] * len(products) != []
    assert_same_numbers(before, after, arrays(before, np.array([place], np.int32)))


@pytest.mark.parametrize("dtype", ["i32", "u32", "i64"])
def test_an_index_of_any_type_says_where_the_query_stands(dtype: str, context: PassContext) -> None:
    def last(q: Any, k: Any, v: Any, start: Any, length: Any, at: Any) -> Any:
        return F.take(F.attention(q, k, v, start=start, length=length), at, axis=2)

    before = ptir.capture(last, HEADS, KEYS, KEYS, PLACES, PLACES, spec(dtype, 1))
    after = hoisted(before, context)
    (attention,) = (i for i in after.main.instructions if i.name == "attention")
    assert attention.types[0].shape == (2, 4, 1, WIDTH)
    for place in (0, 2, ROWS - 1, ROWS, 2**31 - 1, *((-1,) if dtype[0] == "i" else ())):
        index = np.array([place], spec(dtype, 1).dtype.numpy)
        starts, lengths = np.array([2, 5], np.int32), np.array([9, 12], np.int32)
        assert_same_numbers(before, after, arrays(before, starts, lengths, index))


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": False}, {"window": 2}, {"soft_cap": 2.0}, {"scale": 0.7, "window": 3}],
    ids=str,
)
@pytest.mark.parametrize("place", [0, 4, ROWS - 1])
def test_a_query_that_is_sliced_sees_what_it_saw(
    options: dict[str, Any], place: int, context: PassContext
) -> None:
    def one(q: Any, k: Any, v: Any, sinks: Any, start: Any, length: Any) -> Any:
        seen = F.attention(q, k, v, start=start, length=length, sinks=sinks, **options)
        return seen[:, :, place]

    before = ptir.capture(one, HEADS, KEYS, KEYS, spec("f32", 4), PLACES, PLACES)
    after = hoisted(before, context)
    (attention,) = (i for i in after.main.instructions if i.name == "attention")
    assert attention.types[0].shape == (2, 4, 1, WIDTH)
    given = arrays(before, np.array([0, 5], np.int32), np.array([7, 12], np.int32))
    assert_same_numbers(before, after, given)


@pytest.mark.parametrize("place", [0, 2, ROWS - 1])
def test_a_row_that_is_sliced_of_a_batch_is_computed_alone(
    place: int, context: PassContext
) -> None:
    before = ptir.capture(
        lambda x, w: F.layer_norm(F.linear(x, w), w[0], w[1], epsilon=1e-5)[:, place], BATCH, W
    )
    after = hoisted(before, context)
    assert largest(after) == 3 * WIDTH
    assert_same_numbers(before, after, arrays(before))


def placed(x: Any) -> Any:
    """A functional whose result depends on where a row stands."""
    return F.softmax(x, axis=1)


LEFT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sums along the rows": (
        lambda x, w, at: row(call("cumulative", F.linear(x, w), axis=1, kind="sum"), at),
        (X, W, AT),
    ),
    "weights of the rows": (lambda x, w, at: row(placed(F.linear(x, w)), at), (X, W, AT)),
    "what is an output": (lambda x, w, at: both(F.linear(x, w), at), (X, W, AT)),
    "elementwise work": (lambda x, w, at: row(x * 2 + 1, at), (X, W, AT)),
    "two rows": (lambda x, w: F.linear(x, w)[:, 2:4], (X, W)),
    "an output of a product": (lambda x, w: F.linear(x, w)[..., 3], (X, W)),
    "another row of each in a batch": (
        lambda x, w, at: F.take(F.linear(x, w).reshape(3 * ROWS, WIDTH), at),
        (BATCH, W, spec("i32", 3)),
    ),
    "the only row": (lambda x, w, at: F.take(F.linear(x, w), at, axis=0), (X, W, AT)),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_others_read_or_rows_share_stays(case: str, context: PassContext) -> None:
    function, types = LEFT[case]
    before = ptir.capture(function, *types)
    assert hoist_takes(before, context) is before
    assert COUNTED not in context.rewrites


def register(monkeypatch: pytest.MonkeyPatch, *functions: Callable[..., Any]) -> None:
    """Functionals for a test, called as the functions are."""
    for function in functions:
        name = function.__name__
        portable = Implementation(name, PORTABLE, lowering(function))
        monkeypatch.setitem(FUNCTIONALS, name, Functional(name, "", {PORTABLE: portable}))


@pytest.mark.parametrize("called", ["counted", "around", "weighted"])
def test_a_functional_that_counts_its_rows_stays(
    called: str, monkeypatch: pytest.MonkeyPatch, context: PassContext
) -> None:
    """Its lowering holds the places of all rows; at one row's size it is that of the first."""

    def counted(x: Any) -> Any:
        return x * F.constant(tuple(float(n) for n in range(x.shape[1]))).reshape(1, -1, 1)

    def around(x: Any) -> Any:
        return F.composite("counted", x) + 1

    def weighted(x: Any) -> Any:
        return x * F.composite("counted", F.full(x.shape, 2.0))

    register(monkeypatch, counted, around, weighted)
    before = ptir.capture(
        lambda x, w, at: row(F.linear(F.composite(called, F.linear(x, w)), w), at), X, W, AT
    )
    after = hoisted(before, context)
    whole = [i.name for i in after.main.instructions if i.types[0].shape == (1, ROWS, WIDTH)]
    assert whole == ["linear", called]
    assert_same_numbers(before, after, arrays(before, np.array([4], np.int32)))


def test_a_functional_about_its_number_of_rows_stays(
    monkeypatch: pytest.MonkeyPatch, context: PassContext
) -> None:
    """Of one row it would be ops, not the functional that a backend may have a kernel for."""

    def listed(x: Any, *, rows: int) -> Any:
        return F.tanh(x.reshape(1, rows, -1))

    register(monkeypatch, listed)
    before = ptir.capture(
        lambda x, w, at: row(F.linear(F.composite("listed", x, rows=ROWS), w), at), X, W, AT
    )
    after = hoisted(before, context)
    names = [i.name for i in after.main.instructions if i.op != "reshape"]
    assert names == ["listed", "take", "linear"]
    assert_same_numbers(before, after, arrays(before, np.array([4], np.int32)))


def test_results_whose_rows_are_different_axes_stay(
    monkeypatch: pytest.MonkeyPatch, context: PassContext
) -> None:
    def both_ways(x: Any) -> Any:
        return x + 1, x.transpose(0, 2, 1)

    register(monkeypatch, both_ways)

    def added(x: Any, w: Any, at: Any) -> Any:
        one, other = F.composite_multi("both_ways", x)
        return F.take(F.linear(one + other, w), at, axis=1)

    square = spec("f32", 1, WIDTH, WIDTH)
    before = ptir.capture(added, square, W, AT)
    after = hoisted(before, context)
    assert context.rewrites[COUNTED] == 1
    assert_same_numbers(before, after, arrays(before, np.array([4], np.int32)))


def test_what_says_where_a_query_stands_is_of_the_root_and_not_of_attention(
    context: PassContext,
) -> None:
    def last(q: Any, k: Any, v: Any, start: Any, at: Any) -> Any:
        seen = F.attention(q, k, v, start=start)
        return F.embedding(seen.reshape(ROWS, WIDTH), at)

    shapes = spec("f32", 1, 1, ROWS, WIDTH), spec("f32", 1, 1, 16, WIDTH)
    before = ptir.capture(last, *shapes, shapes[1], AT, AT)
    after = hoisted(before, context)
    of = [(i.name, i.location.functional) for i in after.main.instructions]
    assert [name for name, functional in of if functional == "attention"] == ["attention"]
    assert ("add", "embedding") in of and ("take", "embedding") in of
    lowered = {i.location.implementation for i in after.main.instructions if i.op == "take"}
    assert lowered == {"portable"}


SEVERAL: dict[str, tuple[Callable[..., Any], int]] = {
    "two places of what reads the same": (
        lambda x, w: F.linear(x, w)[:, 1] * F.linear(F.gelu(x), w)[:, 4],
        2,
    ),
    "two places of two values": (lambda x, w: F.linear(x, w)[:, 1] * F.linear(x, -w)[:, 4], 2),
    "one behind the other": (lambda x, w: F.linear(x + F.linear(x, w)[:, 2:3], w)[:, 5], 2),
    "a row of a matrix of several": (lambda x, w: F.gelu(F.gelu(F.linear(x, w))[1])[3], 2),
    "a row behind what mixes rows of a matrix": (
        lambda x, w: F.gelu(F.softmax(F.linear(x, w), axis=1)[1])[3],
        2,
    ),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_several_reads_of_one_program_are_hoisted(case: str, context: PassContext) -> None:
    function, count = SEVERAL[case]
    before = ptir.capture(function, BATCH, W)
    after = hoisted(before, context)
    assert context.rewrites[COUNTED] == count
    assert_same_numbers(before, after, arrays(before))


@pytest.mark.parametrize("named", ["attention", "embedding"])
def test_what_only_bears_a_name_is_what_it_is_lowered_to(named: str, context: PassContext) -> None:
    """A program from outside may call anything so: neither is a row moved nor one read by it."""

    def reversed_rows(q: Any, k: Any, v: Any, start: Any, length: Any, at: Any) -> Any:
        seen = F.attention(F.gelu(q), k, v, start=start, length=length)
        return F.take(seen, at, axis=2)

    def last(x: Any, w: Any, at: Any) -> Any:
        return F.embedding(F.linear(x, w).reshape(ROWS, WIDTH), at)

    def other(*operands: Any) -> Any:
        first = operands[0]
        return first + first.sum(axis=2, keepdims=True) if named == "attention" else first[1:2] * 2

    types = (HEADS, KEYS, KEYS, PLACES, PLACES, AT) if named == "attention" else (X, W, AT)
    before = ptir.capture(reversed_rows if named == "attention" else last, *types)

    def foreign(instruction: Instruction, operands: tuple[Any, ...]) -> Any:
        if instruction.name != named:
            return None
        given = [operand.type for operand in operands]
        region = ptir.capture(other, *given).main
        return repeat(replace(instruction, regions=(region,)), operands)

    before = replace(before, main=rebuild(before.main, foreign))
    after = hoist_takes(before, context)
    (found,) = (i for i in after.main.instructions if i.name == named)
    assert found.types[0].shape == ((2, 4, ROWS, WIDTH) if named == "attention" else (1, WIDTH))
    sizes = [np.array([1, 2], np.int32)] * 2 if named == "attention" else []
    given = arrays(before, *sizes, np.array([5], np.int32))
    assert_same_numbers(before, after, given)


def test_a_place_of_two_that_became_one_is_none_of_either(context: PassContext) -> None:
    """A row of 8 is two of 4 in front of the reshape: what is computed there stays whole."""

    def joined(x: Any, w: Any, at: Any) -> Any:
        halves = F.gelu(x.reshape(1, 2 * ROWS, WIDTH // 2))
        return row(F.linear(halves.reshape(1, ROWS, WIDTH), w), at)

    before = ptir.capture(joined, X, W, AT)
    after = hoisted(before, context)
    shapes = {i.name: i.types[0].shape for i in after.main.instructions}
    assert shapes["gelu"] == (1, 2 * ROWS, WIDTH // 2)
    assert shapes["linear"] == (1, 1, WIDTH)
    assert_same_numbers(before, after, arrays(before, np.array([4], np.int32)))


def test_the_rules_are_imported_where_a_place_is_read() -> None:
    """Programs that were optimized before are read from the disk, and need none of them."""
    code = "import sys, ptir.capture; sys.exit('ptir.sharding.rules' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_weights_are_not_cut(context: PassContext) -> None:
    """What is computed of parameters alone is computed once, in a form of its own."""

    def one_of_three(x: Any, w: Any) -> Any:
        return F.linear(x, F.gelu(w)[1])

    before = ptir.capture(one_of_three, X, spec("f32", 3, WIDTH, WIDTH))
    given, weights = before.ports
    of_parameters = replace(before, ports=(given, Port(weights.name, "parameter")))
    assert hoist_takes(of_parameters, context) is of_parameters
    assert hoist_takes(before, context) is not before


def test_nothing_is_hoisted_where_indices_are_checked(context: PassContext) -> None:
    before = ptir.capture(CHAINS["linear"], X, W, AT)
    assert hoist_takes(before, replace(context, check_indices=True)) is before
