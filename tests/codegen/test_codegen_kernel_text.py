"""The text form of kernels: what is printed is read back as it was, and bad text is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest
from paper import DEVICE, GroupsBackend, PaperBackend, PaperDevice, optimized

import ptir
from corpus_slices import ByOp
from ptir.backend.contract import Options, Target
from ptir.backend.kernel import Argument
from ptir.capture.plan import PLANS
from ptir.codegen import compile
from ptir.codegen.context import Context
from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Var, interned
from ptir.codegen.expressions.index import Dynamic, Index, Quotient, Remainder, axis
from ptir.codegen.kernel_ir import nodes
from ptir.codegen.kernel_ir.nodes import Assign, Barrier, Break, If, Let, Statement, Store
from ptir.codegen.kernel_ir.text import STATEMENTS, Body, fields_of, line, parsed, printed
from ptir.codegen.kernel_ir.values import FetchAdd, Gather, Read
from ptir.codegen.planning import persistent
from ptir.codegen.planning.deduplicate import write_kernels
from ptir.codegen.planning.persistent import PersistentKernel
from ptir.codegen.schedules.kernel import Kernel, KernelCode
from ptir.errors import PtirError, VerifyError
from ptir.functional import softmax
from ptir.ops.overriding import active_overrides
from ptir.passes.context import PassContext
from ptir.passes.pipeline import optimize
from ptir.types import BOOL, F32, I8, I32, TensorType
from ptir_testsuite.running.execute import options_of

BACKENDS = {"serial": PaperBackend, "groups": GroupsBackend}


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch, built_anew: None) -> Iterator[list[Kernel]]:
    """Every kernel that is written meanwhile, each printed and read back."""
    found: list[Kernel] = []

    def seen(*given: Any) -> tuple[Kernel | None, ...]:
        kernels = write_kernels(*given)
        for one in kernels:
            for kernel in one.launches if one else ():
                check(kernel.code)
                found.append(kernel)
        return kernels

    monkeypatch.setattr(compile, "write_kernels", seen)
    yield found


def check(code: KernelCode) -> None:
    """The text of ``code`` is read back as the same code, which is rendered alike."""
    body = parsed(code.printed)
    again = KernelCode(body.preamble, body.body, body.arguments, code.dialect)
    assert again == code and hash(again) == hash(code)
    assert again.text == code.text
    assert again.printed == code.printed


@pytest.mark.parametrize("name", BACKENDS)
def test_kernels_of_the_corpus_are_read_back(name: str, cases: ByOp, checked: list[Kernel]) -> None:
    backend = BACKENDS[name]()
    context = PassContext(backend, DEVICE, active_overrides())
    for of_op in cases.in_turn(4):
        for case in of_op[:: max(1, len(of_op) // 3)]:
            try:
                backend.compile(optimize(case.program, context), DEVICE, options_of(case))
            except PtirError as error:
                assert not isinstance(error, VerifyError), f"{case.id}: {error}"
    assert len(checked) > 10


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("model", ("gpt2-tiny", "llama-tiny"))
def test_kernels_of_models_are_read_back(model: str, name: str, checked: list[Kernel]) -> None:
    PLANS.clear()  # another test may have compiled the same steps
    target = Target(BACKENDS[name](), DEVICE)
    ptir.load_model(f"random:{model}", backend=target).generate(list(range(20)), max_tokens=2)
    assert {"linear", "attention"} <= {kernel.family for kernel in checked}
    assert any(kernel.workgroup_size > 1 for kernel in checked) is (name == "groups")


class ChainsDevice(PaperDevice):
    """One that launches what follows one another as persistent kernels."""

    traits = replace(PaperDevice.traits, max_persistent_buffers=16)


class ChainsBackend(PaperBackend):
    """One paper device of workers that stay."""

    name = "paper-persistent"
    kind = ChainsDevice


@pytest.fixture
def persistent_names(monkeypatch: pytest.MonkeyPatch, built_anew: None) -> list[str]:
    """Every phase and persistent kernel that is written meanwhile, each verified and read back."""
    found: list[str] = []
    right = persistent._check

    def seen(what: str, code: KernelCode, *given: Any) -> None:
        found.append(what)
        check(code)
        right(what, code, *given)

    monkeypatch.setenv("PTIR_VERIFY", "1")
    monkeypatch.setattr(persistent, "_check", seen)
    return found


@pytest.mark.slice(1)
@pytest.mark.parametrize("model", ("gpt2-tiny", "llama-tiny"))
def test_phases_and_persistent_kernels_of_models_are_legal_and_read_back(
    model: str, persistent_names: list[str]
) -> None:
    PLANS.clear()
    target = Target(ChainsBackend(), DEVICE)
    ptir.load_model(f"random:{model}", backend=target).generate(list(range(20)), max_tokens=2)
    families = {re.sub(r"(\w+)_phase.*", r"\1", what) for what in persistent_names}
    assert {"chain_0", "linear", "attention", "map"} <= families


def test_a_persistent_kernel_that_is_not_legal_is_found_before_a_compiler(
    persistent_names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled() -> None:
        x = ptir.spec("f32", 6, 40)
        program = ptir.capture(lambda x: softmax(softmax(x), axis=0), x)
        compile.compile_block(optimized(program).main, Context.of(ChainsDevice()), Options())

    compiled()
    assert persistent_names
    monkeypatch.setattr(persistent, "LINE", 2 * persistent.LINE)  # counters of two phases overlap
    with pytest.raises(VerifyError, match=r"_phase_0, a phase, is not legal: turn of 32 elements"):
        compiled()
    monkeypatch.undo()
    monkeypatch.setenv("PTIR_VERIFY", "1")
    monkeypatch.setattr(
        PersistentKernel, "counters", property(lambda kernel: TensorType(I32, (32,)))
    )
    with pytest.raises(VerifyError, match=r"chain_0 is not legal: turns of 32 elements is"):
        compiled()


X, AT = Var(F32, "x"), axis("i", 4)
NAN = Const(F32, float("nan"))
TEXTS: dict[str, Callable[[], Statement]] = {
    "let x:f32, read(f32, b0, [i:4*16 + -3])": lambda: Let(X, Read(F32, "b0", AT * 16 + -3)),
    "let x:f32, read(f32, b0, [i:4], base=[0])": lambda: Let(
        X, Read(F32, "b0", AT, False, Index({}))
    ),
    "assign x:f32, nan(7ff8000000000000):f32": lambda: Assign(X, NAN),
    "assign x:f32, -inf:f32": lambda: Assign(X, Const(F32, -float("inf"))),
    "assign x:f32, 0:f32": lambda: Assign(X, Const(F32, 0)),
    "assign x:f32, -0.0:f32": lambda: Assign(X, Const(F32, -0.0)),
    "assign x:f32 wide, gather(x:f32, x:f32)": lambda: Assign(Var(F32, "x", True), Gather(X, X)),
    "store f32, b1, [(x:i32 in 0 to 3)*2], x:f32": lambda: Store(
        F32, "b1", Index({Dynamic(Var(I32, "x"), 0, 3): 2}), X
    ),
    "store f32, b1, [([i:4 + 1]/2) + ([i:4]%3)], x:f32": lambda: Store(
        F32, "b1", Index({Quotient(AT + 1, 2): 1, Remainder(AT, 3): 1}), X
    ),
    "barrier": Barrier,
    "signal turn, [16], fetchadd(turn, [i:4*2])": lambda: nodes.Signal(
        "turn", Index({}, 16), FetchAdd("turn", AT * 2)
    ),
    "call f, turns, [0], 3:i32, uses, [i:4], (f32, i8), (true, false)": lambda: nodes.Call(
        "f", "turns", Index({}), Const(I32, 3), "uses", AT, (F32, I8), (True, False)
    ),
    "prefetch f32, b0, [i:4], 64": lambda: nodes.Prefetch(F32, "b0", AT, 64),
    "asynccopy shared1, [i:4], b0, [i:4*4]": lambda: nodes.AsyncCopy("shared1", AT, "b0", AT * 4),
}
"""A line, and what it says."""


@pytest.mark.parametrize("text", TEXTS)
def test_a_line_says_all_of_a_statement(text: str) -> None:
    statement = TEXTS[text]()
    assert line(statement) == text
    assert parsed(f"preamble {{}} body {{ {text} }}") == Body((), (), (statement,))


def test_bodies_and_other_sides_are_read_back() -> None:
    less = Apply(BOOL, "lt", Coordinate(I32, AT), Const(I32, 2))
    one = If(less, (Break(),), (If(less, (Let(X, NAN),), ()),))
    text = printed(Body((), (one,), ()))
    assert parsed(text) == Body((), (one,), ())
    assert line(one) == "if lt(bool, coordinate(i32, [i:4]), 2:i32), { ... }"
    assert parsed(text.replace("{", " # a comment\n {\n")) == parsed(text)


WRONG = {
    "let x:f32": "line 2, column 10: expected ',', found '}'",
    "let x:f32,\nlett": "line 3, column 1: expected a value (hoisted, .*), found 'lett'",
    "lett x:f32, 0:i32": "line 2, column 1: expected '}' or a statement (let, .*), found 'lett'",
    "let x:g32, 0:i32": "line 2, column 7: expected an element type (bool, .*), found 'g32'",
    "let 2:f32, 0:i32": "line 2, column 5: expected a variable such as x:f32, found '2'",
    "assign x:f32, mull(f32, x:f32)": "expected a value (.*), found 'mull'",
    "assign x:f32, 1.0e999:f32": "1.0e999 is out of range for a 64-bit float",
    "array a, f32, many": "expected a whole number, found 'many'",
    "array a, f32, 4, shared=maybe": "expected a truth value (true, false), found 'maybe'",
    "array a, f32, 4, wide=true": "expected a field (shared, numbers), found 'wide'",
    "array a, f32, 4, shared=true, shared=true": "expected a field (numbers), found 'shared'",
    "array a, u32, 1, shared=true, numbers=(1), shared=true": "expected '}' or a statement",
    "store f32, b0, [i:4 + i:4], x:f32": "expected another term, found 'i:4'",
    "store f32, b0, [i], x:f32": "expected ':', found ']'",
    "store f32, b0, [(i:i32 in 0)], x:f32": "expected 'to', found ')'",
    "store f32, b0, [([i:4]*4)], x:f32": "expected '%', found '*'",
    "break;": "no token starts with ';'",
    "if 1:bool, {": "expected '}' or a statement (let, .*), found 'body'",
}
"""What stands in a kernel, and what is said of it."""


@pytest.mark.parametrize("text", WRONG)
def test_bad_text_is_named_with_what_was_expected(text: str) -> None:
    with pytest.raises(VerifyError) as found:
        parsed(f"preamble {{\n{text}}} body {{}}")
    said = re.escape(WRONG[text]).replace(r"\.\*", ".*")
    assert re.search(said, str(found.value)), str(found.value)
    with pytest.raises(VerifyError, match="line 2, column 1: expected the end of the text"):
        parsed("preamble {} body {}\npreamble")


def test_phases_and_persistent_kernels_are_code_that_is_legal_and_read_back() -> None:
    device = PaperDevice()
    device.traits = replace(device.traits, max_persistent_buffers=8)
    x = ptir.spec("f32", 6, 40)
    program = ptir.capture(lambda x: softmax(softmax(x).sum(axis=1, keepdims=True) + x, axis=0), x)
    context = Context.of(device)
    with interned(context.source.nodes):
        made = compile.compile_block(optimized(program).main, context, Options())
        assert "chain_0_phases" in made.source
        codes = [persistent.phase(one.code) for one in made.kernels if one]
        (kernel,) = made.persistent
        numbers = range(len(codes))
        phases = persistent.phases(kernel, made.kernels, made.plan, made.max_allocation, numbers)
        functions = [(f"f{n}", code.arguments) for n, code in enumerate(codes)]
        whole = persistent.persistent_code(device.dialect, "table", kernel, phases, functions, 2)
        for code in (*codes, whole):
            check(code)
        table, nbytes = Argument("table", I32, False), {"table": len(codes) * 12}
        turns = kernel.counters.nbytes
        assert problems(whole, table, nbytes | {"turns": turns}) == []
        assert problems(whole, table, nbytes | {"turns": turns - 4 * persistent.LINE}) != []
        given = Let(persistent.ITEMS, Const(I32, 9))
        counters = Argument(persistent.COUNTERS, I32, True)
        for code in codes:
            whole = replace(code, preamble=(given, *code.preamble))
            assert problems(whole, counters, {persistent.COUNTERS: 8 * persistent.LINE}) == []
            assert problems(whole, counters, {persistent.COUNTERS: 4 * persistent.LINE}) != []


def problems(code: KernelCode, more: Argument, nbytes: dict[str, int]) -> list[str]:
    """What is wrong with code that takes one thing more."""
    faults = replace(code, arguments=(*code.arguments, more)).faults(1, nbytes)
    return [str(fault) for fault in faults]


def test_statements_of_other_kinds_are_not_equal() -> None:
    assert Break() != Barrier() and Let(X, NAN) != Assign(X, NAN)
    assert Let(X, NAN) == Let(Var(F32, "x"), Const(F32, float("nan")))
    assert len({Break(), Barrier(), Let(X, NAN), Assign(X, NAN), Let(X, NAN)}) == 4


def test_every_statement_has_a_text() -> None:
    assert set(STATEMENTS.values()) == set(get_args(nodes.Statement))
    for kind in STATEMENTS.values():
        assert [field.name for field in fields_of(kind)] == list(kind._fields)
