"""What the verifier of kernels finds, rule by rule, before any compiler sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from paper import compiled, optimized

import ptir
from ptir.backend.kernel import Argument
from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, Var
from ptir.codegen.expressions.index import axis, number
from ptir.codegen.kernel_ir import nodes, render, values, verify
from ptir.codegen.kernel_ir.nodes import (
    Array,
    Assign,
    Barrier,
    Break,
    Declare,
    For,
    If,
    Let,
    LoadWords,
    Scope,
    Statement,
    Store,
    StoreWords,
    While,
)
from ptir.codegen.kernel_ir.values import Gather, Lane, Read, ShuffleXor, Splat, Word
from ptir.codegen.kernel_ir.verify import faults
from ptir.errors import VerifyError
from ptir.functional import softmax
from ptir.types import BF16, BOOL, DTYPES, F32, I32, U8, U32, DType

LANES = 16
I16 = DTYPES["i16"]
ARGUMENTS = (Argument("b0", F32, False), Argument("b1", F32, True))
BYTES = {"b0": 4 * 64, "b1": 4 * 64}
ZERO, ONE = Const(F32, 0.0), Const(I32, 1)
NUMBER = Const(U32, 1)
ITEM, MEMBER = axis("item", 4), axis("member", 8)
HERE = number(0)
X, ACC, W = Var(F32, "x"), Var(F32, "acc"), Var(F32, "w", True)


def read(at: Any = HERE, wide: bool = False, memory: str = "b0") -> Read:
    return Read(F32, memory, at, wide)


def store(value: Expr, at: Any = HERE) -> Store:
    return Store(F32, "b1", at, value)


def less(a: Any, b: int) -> Expr:
    return Apply(BOOL, "lt", Coordinate(I32, a), Const(I32, b))


FOUR = Const(I32, 4)


def loop(*body: Statement, end: Expr = FOUR) -> For:
    return For("i", Const(I32, 0), end, 1, body)


GOOD: tuple[Statement, ...] = (
    Declare((ACC,), (ZERO,)),
    loop(
        Let(X, read(axis("i", 4) + ITEM * 4)),
        Assign(ACC, Apply(F32, "fma", X, X, ACC)),
        If(less(axis("i", 4), 2), (Break(),), (store(X),)),
    ),
    Let(W, read(ITEM * 16, wide=True)),
    Store(F32, "b1", ITEM * 16, Apply(F32, "mul", W, Splat(ACC))),
    While(Var(I32, "at"), ONE, less(axis("at", 9), 3), Coordinate(I32, axis("at", 9) + 1), ()),
)


def found(*statements: Statement, members: int = 1) -> list[str]:
    return [one.rule for one in faults(statements, ARGUMENTS, members, LANES, BYTES)]


def test_a_legal_kernel_is_legal() -> None:
    assert found(*GOOD) == []


GROUPS: tuple[Statement, ...] = (
    Array("room", F32, 8, shared=True),
    Declare((ACC,), (read(MEMBER),)),
    Store(F32, "room", MEMBER, ACC),
    Barrier(),
    Let(X, ShuffleXor(ACC, 1)),
    loop(Barrier()),
    If(less(ITEM, 2), (Barrier(),)),
    If(less(MEMBER, 2), (store(Read(F32, "room", MEMBER)),)),
)


def test_a_legal_kernel_of_groups_is_legal() -> None:
    assert found(*GROUPS, members=8) == []


def narrow_shared(
    store_as: DType = I32, value: Expr | None = None, read_as: DType = U8, at: Any = MEMBER
) -> tuple[Statement, ...]:
    """A shared array of bytes, each written as a whole word, as dialects spell an element."""
    byte = Apply(U8, "convert", Coordinate(I32, MEMBER)) if value is None else value
    return (
        Array("near", U8, 8, shared=True),
        Store(store_as, "near", at, byte),
        Barrier(),
        store(Apply(F32, "convert", Read(read_as, "near", MEMBER))),
        store(read()),
    )


@pytest.mark.parametrize("dtype", (U8, I32))
def test_a_narrow_shared_array_holds_an_element_a_place(dtype: DType) -> None:
    assert found(*narrow_shared(store_as=dtype), members=8) == []


BROKEN: dict[str, tuple[Callable[[], list[str]], str]] = {
    "no declaration": (lambda: found(store(X), store(read())), "x is read and not declared"),
    "out of scope": (
        lambda: found(Scope((Let(X, read()),)), store(X)),
        "x is read and not declared",
    ),
    "twice": (lambda: found(Let(X, read()), Let(X, ZERO), store(X)), "x is declared twice"),
    "other type": (
        lambda: found(Let(Var(I32, "x"), ONE), store(X), store(read())),
        "x is declared as i32 and read as f32",
    ),
    "let changes": (
        lambda: found(Let(X, read()), Assign(X, ZERO), store(X)),
        "x is assigned, and does not change",
    ),
    "assigned type": (
        lambda: found(Declare((ACC,), (ZERO,)), Assign(ACC, ONE), store(read())),
        "acc is f32 and is assigned i32",
    ),
    "assigned lanes": (
        lambda: found(Declare((ACC,), (ZERO,)), Assign(ACC, read(wide=True)), store(ACC)),
        "acc is f32 and is assigned f32 per lane",
    ),
    "unassignable": (lambda: found(Assign(ACC, read()), store(ZERO)), "acc is assigned and not"),
    "mixed types": (
        lambda: found(store(Apply(F32, "add", read(), ONE))),
        r"add(f32, i32) -> f32: these types do not go together",
    ),
    "no mask": (
        lambda: found(store(Apply(F32, "select", ONE, read(), ZERO))),
        "select(i32, f32, f32) -> f32: these types",
    ),
    "no condition": (
        lambda: found(If(ONE, ()), store(read())),
        "a condition is i32; it must be bool",
    ),
    "operands": (lambda: found(store(Apply(F32, "fma", read(), ZERO))), "3 operands are expected"),
    "no splat": (
        lambda: found(Let(W, Apply(F32, "add", read(wide=True), ZERO)), store(W)),
        "a scalar needs a splat",
    ),
    "splat of lanes": (lambda: found(store(Splat(read(wide=True)))), "what is put into every lane"),
    "lane": (
        lambda: found(Let(W, read(wide=True)), store(Lane(W, 16))),
        "lane 16 of f32 per lane, which has 16 lanes",
    ),
    "gathered": (lambda: found(store(Gather(*[read()] * 15))), "15 scalars are gathered into 16"),
    "read beyond": (
        lambda: found(store(read(axis("item", 4) * 16 + 16))),
        "b0 of 64 elements is read at 16 to 64",
    ),
    "read beyond, from a base": (
        lambda: found(store(Read(F32, "b0", number(1), base=ITEM * 16 + 15))),
        "b0 of 64 elements is read at 16 to 64",
    ),
    "lanes beyond": (
        lambda: found(Store(F32, "b1", ITEM * 16 + 1, read(ITEM * 16, wide=True))),
        "b1 of 64 elements is written at 1 to 64",
    ),
    "before": (lambda: found(store(read(ITEM - 1))), "is read at -1 to 2"),
    "array beyond": (
        lambda: found(
            Array("a", F32, 4),
            loop(Store(F32, "a", axis("i", 5), read()), end=Const(I32, 5)),
            store(ZERO),
        ),
        "a of 4 elements is written at 0 to 4",
    ),
    "narrow beyond": (
        lambda: found(Array("a", U32, 4), Store(BF16, "a", number(8), read()), store(ZERO)),
        "a of 8 elements is written at 8 to 8",
    ),
    "no memory": (lambda: found(store(read(memory="b7")), store(read())), "b7 is read, and is"),
    "written operand": (
        lambda: found(Store(F32, "b0", number(0), ZERO), store(ZERO)),
        "argument b0 is written, and is not declared so",
    ),
    "unused argument": (lambda: found(store(ZERO)), "argument b0 is never read or written"),
    "loop of floats": (
        lambda: found(loop(store(read()), end=read())),
        "an end of a loop is f32; it must be i32",
    ),
    "still": (
        lambda: found(For("i", ONE, ONE, 0, (store(read()),))),
        "a loop of i goes by 0",
    ),
    "break": (lambda: found(store(read()), Break()), "a break stands in no loop"),
    "barrier of one": (lambda: found(store(read()), Barrier()), "not one of workgroups"),
    "barrier of some": (
        lambda: found(*GROUPS[:3], If(less(MEMBER, 4), (Barrier(),)), store(ACC), members=8),
        "a barrier stands where only some threads may come",
    ),
    "barrier in a loop of each": (
        lambda: found(
            store(read()),
            For("i", Coordinate(I32, MEMBER), Const(I32, 9), 8, (Barrier(),)),
            members=8,
        ),
        "a barrier stands where only some threads may come",
    ),
    "barrier behind what varies later": (
        lambda: found(
            Declare((Var(I32, "n"),), (Const(I32, 0),)),
            loop(
                If(less(axis("n", 9), 3), (Barrier(),)),
                Assign(Var(I32, "n"), Coordinate(I32, MEMBER)),
            ),
            store(read()),
            members=8,
        ),
        "a barrier stands where only some threads may come",
    ),
    "exchange of some": (
        lambda: found(
            Declare((ACC,), (read(MEMBER),)),
            If(less(MEMBER, 4), (store(ShuffleXor(ACC, 1)),)),
            members=8,
        ),
        "an exchange of values stands where only some",
    ),
    "shared by one": (
        lambda: found(Array("a", F32, 4, shared=True), store(read())),
        "array a is shared, and the kernel is not one of workgroups",
    ),
    "words": (lambda: found(store(read()), Store(U32, "b1", ITEM, Word("w1", 0))), "w1 names no"),
    "words between": (
        lambda: found(LoadWords("w1", F32, "b0", ITEM * 4 + 2), store(ZERO)),
        "16 bytes of b0 are taken at (item*4+2), which 4 may not divide",
    ),
    "an exchange across nobody": (
        lambda: found(
            Declare((N,), (ONE,)), Let(Var(I32, "x"), ShuffleXor(N, 3)), store(read()), members=8
        ),
        "threads exchange across 3: no power of two below their number",
    ),
    "a loop further than it is taken for": (
        lambda: found(For("i", Const(I32, 0), Const(I32, 5), 1, (store(read(axis("i", 4))),))),
        "i goes up to 4, and is taken for below 4",
    ),
    "words beyond": (
        lambda: found(LoadWords("w1", F32, "b0", ITEM * 16 + 16), store(ZERO)),
        "b0 of 64 elements is read at 16 to 67",
    ),
    "stored words": (
        lambda: found(StoreWords(F32, "b1", ITEM * 4, (read(),) * 4)),
        "a word of 16 bytes is f32; it must be u32",
    ),
    "another type in a narrow array": (
        lambda: found(*narrow_shared(store_as=I16), members=8),
        "near holds u8 and is written as i16",
    ),
    "another value in a narrow array": (
        lambda: found(*narrow_shared(value=Const(I32, 1)), members=8),
        "near: i32 is stored as u8",
    ),
    "another type out of a narrow array": (
        lambda: found(*narrow_shared(read_as=I32), members=8),
        "near holds u8 and is read as i32",
    ),
    "beyond a narrow array": (
        lambda: found(*narrow_shared(at=MEMBER + 1), members=8),
        "near of 8 elements is written at 1 to 8",
    ),
    "parts of words read": (
        lambda: found(Array("a", U32, 4), Let(X, Read(BF16, "a", HERE)), store(read())),
        "a holds u32 and is read as bf16",
    ),
    "a constant written": (
        lambda: found(
            Array("a", U32, 2, numbers=(1, 2)), Store(U32, "a", number(0), NUMBER), store(read())
        ),
        "array a is written, and is a constant",
    ),
    "a constant of another size": (
        lambda: found(Array("a", U32, 3, numbers=(1, 2)), store(read())),
        "array a is no constant of 3 u32",
    ),
    "a constant beyond": (
        lambda: found(
            Array("a", U32, 16, numbers=(1,) * 16),
            Let(Var(U32, "x", True), Read(U32, "a", number(1), True)),
            store(read()),
        ),
        "a of 16 elements is read at 1 to 16",
    ),
    "bytes of one word": (
        lambda: found(
            Let(Var(U32, "x"), Apply(U32, "permute_bytes", *[NUMBER] * 3)), store(read())
        ),
        "wide u32 are expected",
    ),
    "stored type": (lambda: found(store(ONE), store(read())), "b1: i32 is stored as f32"),
}
"""A kernel with one thing wrong, and what is said of it."""


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_said(name: str) -> None:
    build, said = BROKEN[name]
    problems = build()
    assert any(said in one for one in problems), problems
    assert len(problems) == 1, problems


def test_a_fault_names_the_innermost_statement() -> None:
    wrong = Assign(W, ZERO)
    first, second = faults(
        (loop(If(less(axis("i", 4), 2), (wrong,)), store(read())),), ARGUMENTS[1:], 1, LANES, {}
    )
    assert first.statement == wrong
    assert str(first) == "w is assigned and not declared, in `assign w:f32 wide, 0.0:f32`"
    assert str(second).endswith(", in `store f32, b1, [0], read(f32, b0, [0])`")
    (unused,) = faults((), ARGUMENTS[:1], 1, LANES, {})
    assert str(unused) == "argument b0 is never read or written"


def test_what_is_generated_is_verified_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTIR_VERIFY", "1")
    program = ptir.capture(lambda x: softmax(x) + x, ptir.spec("f32", 3, 40))
    assert compiled(program).kernels


def test_a_fault_of_the_generator_is_found_before_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ptir.codegen.kernel_ir.writer import Writer

    right = Writer.memory

    def memory(self: Writer, value: int, dtype: Any, written: bool = False) -> str:
        return right(self, value, dtype)  # forgets that an argument is written

    monkeypatch.setattr(Writer, "memory", memory)
    program = optimized(ptir.capture(lambda x: x * 2.0 + x, ptir.spec("f32", 3, 40)))
    monkeypatch.setenv("PTIR_VERIFY", "0")
    compiled(program)
    monkeypatch.setenv("PTIR_VERIFY", "1")
    said = r"a map kernel for .* is not legal: argument b\d is written, .*, in `store f32, b\d, \["
    with pytest.raises(VerifyError, match=said):
        compiled(program)


N, AT = Var(I32, "n"), axis("n", 99)


def guarded(*body: Statement, otherwise: tuple[Statement, ...] = ()) -> list[str]:
    """What is said of statements where n is below 64."""
    begun = Declare((N,), (Coordinate(I32, MEMBER),))
    return found(begun, store(read()), If(less(AT, 64), body, otherwise), members=8)


def test_a_condition_says_where_an_index_lies() -> None:
    assert guarded(store(read(AT))) == []
    assert guarded(store(read(AT + 1))) != []
    assert guarded(Let(X, read(AT)), Assign(N, ONE), store(X), store(read(AT))) != []
    assert guarded(store(read()), otherwise=(store(read(AT)),)) != []
    assert guarded(loop(If(less(AT + 3, 64), (store(read(AT + 3)),)))) == []


def test_what_is_never_reached_reads_nothing() -> None:
    nowhere = store(read(number(999)))
    assert found(store(read()), loop(nowhere, end=Const(I32, 0))) == []
    assert found(store(read()), loop(nowhere, end=Const(I32, 1))) != []
    far = Let(N, Coordinate(I32, ITEM + 70))
    assert found(far, store(read()), If(less(AT, 64), (nowhere,))) == []
    assert found(far, store(read()), If(less(AT, 71), (nowhere,))) != []


def test_loops_and_what_does_not_change_say_where_an_index_lies() -> None:
    up_to = For("n", Const(I32, 0), Const(I32, 64), 1, (store(read(AT)),))
    assert found(up_to) == []
    assert found(up_to._replace(end=Const(I32, 65))) != []
    assert found(Let(N, Coordinate(I32, ITEM * 21)), store(read(AT))) == []
    assert found(Let(N, Coordinate(I32, ITEM * 22)), store(read(AT))) != []
    down = While(N, Const(I32, 1), less(AT, 63), Coordinate(I32, AT + 1), (store(read(AT + 1)),))
    assert found(down) == []
    assert found(down._replace(condition=less(AT, 64))) != []


def test_what_varies_under_a_condition_on_itself_varies_behind_it() -> None:
    problems = found(
        Declare((N,), (ONE,)),
        store(read()),
        If(less(AT, 64), (Assign(N, Coordinate(I32, MEMBER)),)),
        If(less(AT, 3), (Barrier(),)),
        members=8,
    )
    assert problems == ["a barrier stands where only some threads may come"]


def test_every_kind_of_node_is_rendered_and_verified() -> None:
    statements = set(get_args(nodes.Statement))
    assert render.LINES.keys() | render.BLOCKS.keys() == statements
    assert verify.CHECKS.keys() == statements
    made = {kind for kind in vars(values).values() if isinstance(kind, type)}
    made = {kind for kind in made if issubclass(kind, Expr) and kind is not Expr}
    assert made - render.TEXTS.keys() == set() == made - values.CHILDREN.keys()


def test_axes_are_read_by_name() -> None:
    assert found(store(read(axis("j", 4)))) == ["j is read and not declared"]
