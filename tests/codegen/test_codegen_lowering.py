"""Each pass of lowering by itself: it leaves nothing of what it removes, and is needed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from wgpu_backend import refused, required

from ptir.backend.kernel import Argument
from ptir.codegen.expressions.expr import Apply, Const, Expr, Var
from ptir.codegen.expressions.index import axis, dynamic, number
from ptir.codegen.kernel_ir.nodes import (
    Array,
    Assign,
    Declare,
    Let,
    LoadWords,
    Prefetch,
    Statement,
    Store,
    StorePacked,
    While,
)
from ptir.codegen.kernel_ir.values import Lane, Read, ShuffleXor, Splat, Word
from ptir.codegen.kernel_ir.verify import faults
from ptir.codegen.lowering import bindings
from ptir.codegen.lowering.longs import Longs
from ptir.codegen.lowering.narrow import Narrow
from ptir.codegen.lowering.rewriting import Body
from ptir.codegen.lowering.specials import HIDDEN, Specials
from ptir.codegen.lowering.table import EVERYTHING, LOWERINGS, lowered, remaining
from ptir.codegen.wgsl.render import module
from ptir.errors import UnsupportedError
from ptir.types import BOOL, F16, F32, F64, I8, I32, I64, U32, DType

ITEM = axis("item", 64)
HERE = number(0)


def body(*statements: Statement, **arguments: DType) -> Body:
    """A kernel; arguments whose names begin with ``to`` are written."""
    made = (Argument(name, dtype, name.startswith("to")) for name, dtype in arguments.items())
    return Body(statements, tuple(made))


def moved(dtype: DType, value: Expr | None = None) -> Body:
    """An element goes from one argument to another."""
    read = Read(dtype, "b", ITEM)
    return body(Store(dtype, "to", ITEM, value or read), b=dtype, to=dtype)


WIDE = Var(F32, "x", True)
X, L = Var(F32, "x"), Var(I64, "x")
F = Read(F32, "b", ITEM)

LACKING: dict[str, Body] = {
    "wide values": body(Let(WIDE, Splat(F)), Store(F32, "to", ITEM, Lane(WIDE, 0)), b=F32, to=F32),
    "prefetches": body(Prefetch(F32, "b", ITEM, 64), Store(F32, "to", ITEM, F), b=F32, to=F32),
    "masks": moved(BOOL),
    "narrow floats": moved(
        F16, Apply(F16, "narrow", Apply(F16, "add", *[Read(F16, "b", ITEM)] * 2))
    ),
    "narrow integers": moved(I8, Apply(I8, "add", Read(I8, "b", ITEM), Const(I8, 100))),
    "64-bit integers": moved(I64, Apply(I64, "mul", Read(I64, "b", ITEM), Const(I64, -3))),
    "functions": moved(F32, Apply(F32, "erf", F)),
    "NaN and signed zeros": moved(
        F32, Apply(F32, "select", Apply(BOOL, "eq", F, F), F, Const(F32, 0.0))
    ),
    "overflowing constants": moved(
        I32,
        Apply(I32, "add", Read(I32, "b", ITEM), Apply(I32, "add", *[Const(I32, 2**31 - 1)] * 2)),
    ),
    "special literals": body(Store(F32, "to", ITEM, Const(F32, -math.inf)), to=F32),
    "casts of pointers": body(
        Store(F32, "to", ITEM, Apply(F32, "add", F, Apply(F32, "convert", Read(U32, "b", ITEM)))),
        b=F32,
        to=F32,
    ),
    "mixed loads": body(
        LoadWords("w", U32, "b", ITEM * 4),
        Store(U32, "to", ITEM, Apply(U32, "add", Word("w", 3), Read(U32, "b", ITEM))),
        b=U32,
        to=U32,
    ),
}
"""A kernel with each thing that can be removed."""
REFUSED = {
    "f64": moved(F64),
    "matrix instructions": body(Let(X, F), Store(F32, "to", ITEM, ShuffleXor(X, 1)), b=F32, to=F32),
}
"""Kernels with what nothing stands for."""
UNSEEN = frozenset(
    (
        *("prefetches", "functions", "NaN and signed zeros"),
        *("special literals", "overflowing constants"),
    )
)
"""What naga does not show: a hint is no text, and these it takes, or they mean something else."""


def wrong(given: Body) -> str:
    """What keeps a kernel that is not lowered any further from being a shader."""
    try:
        text = module("k", given.statements, given.arguments, 64, 1, (), 0).text
    except (KeyError, AttributeError, AssertionError) as error:
        return f"nothing is spelled like it: {error!r}"
    return refused(text)


def test_every_row_has_a_kernel() -> None:
    assert LACKING.keys() | REFUSED.keys() == EVERYTHING == set(LOWERINGS)
    assert not LACKING.keys() & REFUSED.keys()


@pytest.mark.parametrize("lack", LACKING)
def test_what_is_lacking_is_found_and_removed(lack: str) -> None:
    given = LACKING[lack]
    assert [one for one in remaining(given, EVERYTHING) if one.startswith(f"{lack}: ")]
    assert remaining(lowered(given, EVERYTHING), EVERYTHING) == []


@pytest.mark.parametrize("lack", LACKING)
def test_a_kernel_is_no_shader_without_the_pass(lack: str) -> None:
    required()
    assert wrong(lowered(LACKING[lack], EVERYTHING)) == ""
    without = lowered(LACKING[lack], EVERYTHING - {lack})
    assert remaining(without, EVERYTHING)
    if lack not in UNSEEN:
        assert wrong(without)


@pytest.mark.parametrize("lack", REFUSED)
def test_what_nothing_stands_for_is_refused(lack: str) -> None:
    with pytest.raises(UnsupportedError, match="the language has no"):
        lowered(REFUSED[lack], EVERYTHING)
    assert remaining(REFUSED[lack], EVERYTHING)


@pytest.mark.parametrize("lack", LACKING)
def test_what_is_lowered_is_legal(lack: str) -> None:
    made = lowered(LACKING[lack], EVERYTHING)
    assert faults(made.statements, made.arguments, 1, 1, {}) == []


@pytest.mark.parametrize("lack", LACKING)
def test_a_language_that_lacks_nothing_gets_the_same_kernel(lack: str) -> None:
    assert lowered(LACKING[lack], ()) == LACKING[lack]


def test_several_lanes_are_refused() -> None:
    from ptir.codegen.kernel_ir.values import Gather

    given = body(Let(WIDE, Gather(F, F)), b=F32)
    with pytest.raises(UnsupportedError, match="2 lanes: the language has scalars only"):
        lowered(given, {"wide values"})


# --- what passes make ---


def test_bytes_are_written_as_bits_of_a_word_that_others_share() -> None:
    made = Narrow.without(moved(I8, Const(I8, -1)))
    (store,) = (one for one in made.statements if not isinstance(one, Let))
    assert isinstance(store, StorePacked) and store.memory == "to" and store.at == ITEM // 4
    assert [(a.name, a.dtype) for a in made.arguments] == [("b", U32), ("to", U32)]


def test_bytes_of_an_array_of_ones_own_are_written_with_the_word() -> None:
    given = body(Array("kept", U32, 4), Store(I8, "kept", ITEM % 4, Const(I8, 1)))
    made = Narrow.without(given).statements
    assert isinstance(made[-1], Store) and made[-1].dtype == U32
    assert not any(isinstance(one, StorePacked) for one in made)


def test_halves_of_a_long_change_together() -> None:
    """The sum's carry is of what was there before either half is assigned."""
    begun = Declare((L,), (Const(I64, 2**32 - 1),))
    made = Longs.without(body(begun, Assign(L, Apply(I64, "add", L, L)))).statements
    first = next(n for n, one in enumerate(made) if isinstance(one, Assign))
    assert all(isinstance(one, Assign) for one in made[first:]) and len(made[first:]) == 2
    assert made[0] == Declare(
        (Var(U32, "x_low"), Var(U32, "x_high")), (Const(U32, 2**32 - 1), Const(U32, 0))
    )


def test_the_low_word_is_the_index() -> None:
    place = dynamic(Read(I64, "at", HERE), 0, 9)
    made = Longs.without(body(Store(F32, "to", place, Const(F32, 1.0)), at=I64, to=F32))
    (store,) = made.statements[-1:]
    assert isinstance(store, Store) and remaining(made, {"64-bit integers"}) == []


def test_what_a_condition_needs_is_computed_in_every_turn() -> None:
    turn = Var(I32, "n")
    wide = Apply(I64, "convert", turn)
    enough = Apply(BOOL, "lt", Apply(I64, "mul", wide, wide), Const(I64, 50))
    after = Apply(I32, "add", turn, Const(I32, 1))
    made = Longs.without(body(While(turn, Const(I32, 0), enough, after, ())))
    (loop,) = made.statements
    assert isinstance(loop, While) and loop.condition == Const(BOOL, 1)
    assert isinstance(loop.body[0], Let), "in the loop, not in front of it"


def test_infinities_are_bits_beside_a_variable() -> None:
    made = Specials.without(moved(F32, Const(F32, math.inf))).statements
    assert made[0] == Declare((HIDDEN,), (Const(U32, 0),))
    assert Specials.remaining(Body(made, ())) == []


# --- buffers ---


def many(count: int, *more: Statement) -> Body:
    names = [f"b{n}" for n in range(count - 1)]
    read = [Let(Var(F32, f"t{n}"), Read(F32, name, ITEM)) for n, name in enumerate(names)]
    arguments: dict[str, Any] = dict.fromkeys(names, F32)
    return body(*read, *more, Store(F32, "to", ITEM, Var(F32, "t0")), **arguments, to=F32)


def test_as_many_buffers_as_allowed_stay() -> None:
    assert lowered(many(8), (), 8) == many(8)


def test_buffers_beyond_that_lie_in_one() -> None:
    given = many(11)
    assert bindings.remaining(given, 8) == ["11 buffers, of which 8 are allowed"]
    made = lowered(given, (), 8)
    assert len(made.arguments) == 8 and bindings.remaining(made, 8) == []
    names = bindings.joined(given, 8)
    assert "to" not in names and len(names) == 5
    found = bindings.layout(made, names)
    assert sorted(name for one in found for name in one.holds) == sorted(
        a.name for a in given.arguments
    )


def test_what_is_read_16_bytes_at_a_time_cannot_be_joined() -> None:
    loads = [LoadWords(f"w{n}", F32, f"b{n}", HERE) for n in range(10)]
    with pytest.raises(UnsupportedError, match="11 buffers and the language has 8, of which 10"):
        lowered(many(11, *loads), (), 8)
