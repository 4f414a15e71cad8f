"""Cond, while_loop and scan: recorded once, run by the host, right in every way of running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.capture import call
from ptir.capture.run import run_program
from ptir.errors import CaptureError, TypeRuleError
from ptir.ops.record import literal
from running import REF


def tensor(value: Any, dtype: str | None = None) -> ptir.Tensor:
    return ptir.tensor(value, dtype, backend=REF)


def every_way(function: Any, *arrays: Any, closed: tuple[Any, ...] = ()) -> list[Any]:
    """Results of a function of tensors run lazily, jitted, and as a program read from its text.

    ``closed`` are the values of the tensors that it closes over.
    """
    given = [np.asarray(a) for a in arrays]
    lazy = function(*map(tensor, given))
    jitted = ptir.jit(function)
    for _ in range(2):
        replayed = jitted(*map(tensor, given))
    specs = [ptir.spec(tensor(a).dtype, *a.shape) for a in given]
    program = ptir.parse(str(ptir.capture(function, *specs)))
    ports = {port.name: a for port, a in zip(program.ports, [*given, *closed], strict=True)}
    listed = [r if isinstance(r, tuple) else (r,) for r in (lazy, replayed)]
    return [*[[t.numpy() for t in r] for r in listed], list(run_program(program, ports, REF))]


def agree(found: list[Any], *wanted: Any) -> None:
    for results in found:
        for one, other in zip(results, wanted, strict=True):
            assert one.dtype == np.asarray(other).dtype
            np.testing.assert_array_equal(one, other)


@pytest.fixture(params=["lazy", "eager"], autouse=True)
def eagerness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTIR_EAGER", "1" if request.param == "eager" else "0")
    monkeypatch.setattr("ptir.capture.lazy._best", lambda: REF)


@pytest.mark.parametrize("holds", [True, False])
def test_cond_gives_the_chosen_branch(holds: bool) -> None:
    x = np.array([1, -2, 3], np.float32)

    def function(p: Any, x: Any) -> Any:
        return F.cond(p, lambda v: (v * 2.0, v), lambda v: (v - 1.0, -v), x)

    wanted = (x * 2, x) if holds else (x - 1, -x)
    agree(every_way(function, np.array(holds), x), *wanted)


def test_branches_may_use_what_surrounds_them() -> None:
    """Buffers, pending values, symbols of the outer function, and constants of their own."""
    buffer = tensor([10.0, 20.0])
    pending = buffer + 1.0

    def function(p: Any, x: Any) -> Any:
        outer = x * 3.0
        inner = tensor([0.5, 0.25])
        return F.cond(p, lambda: outer + pending, lambda: buffer * inner - x)

    x = np.array([1, 2], np.float32)
    run = ptir.jit(function)
    assert run(tensor(True), tensor(x)).numpy().tolist() == [14, 27]
    assert run(tensor(False), tensor(x)).numpy().tolist() == [4, 3]
    assert function(tensor(True), tensor(x)).numpy().tolist() == [14, 27]


def test_only_the_chosen_branch_runs_so_an_endless_loop_may_hide_in_the_other() -> None:
    def endless(v: Any) -> Any:
        return F.while_loop(lambda s: F.full((), True), lambda s: s, v)

    x = tensor([1.0, 2.0])
    assert F.cond(tensor(True), lambda v: v + 1.0, endless, x).numpy().tolist() == [2, 3]


def test_while_loop_counts_and_hands_on_its_state() -> None:
    def collatz(n: Any) -> Any:
        return F.while_loop(
            lambda n, steps: n != 1,
            lambda n, steps: (F.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1),
            n,
            0,
        )

    agree(every_way(collatz, np.array(27, np.int32)), np.int32(1), np.int32(111))
    agree(every_way(collatz, np.array(1, np.int32)), np.int32(1), np.int32(0))


def test_while_loop_of_one_value_gives_it_itself_and_closes_over_tensors() -> None:
    matrix = tensor([[0.5, 0.25], [0.25, 0.5]])

    def settle(x: Any) -> Any:
        return F.while_loop(lambda v: v.sum() > 1.0, lambda v: v @ matrix, x)

    x = np.array([8, 4], np.float32)
    wanted = x
    while wanted.sum() > 1:
        wanted = wanted @ matrix.numpy()
    agree(every_way(settle, x, closed=(matrix.numpy(),)), wanted)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_equals_a_python_loop(reverse: bool) -> None:
    weight = np.array([[0.5, -1], [2, 0.25]], np.float32)
    xs = np.arange(10, dtype=np.float32).reshape(5, 2)
    closed = tensor(weight)

    def function(state: Any, xs: Any) -> Any:
        def step(carry: Any, x: Any) -> Any:
            after = carry @ closed + x
            return after, (carry, after.sum())

        last, (before, sums) = F.scan(step, state, xs, reverse=reverse)
        return last, before, sums

    carry = np.array([1, -1], np.float32)
    befores: dict[int, Any] = {}
    sums: dict[int, Any] = {}
    for i in range(5)[::-1] if reverse else range(5):
        befores[i] = carry
        carry = carry @ weight + xs[i]
        sums[i] = carry.sum()
    order = range(5)
    wanted = (carry, np.stack([befores[i] for i in order]), np.stack([sums[i] for i in order]))
    agree(every_way(function, np.array([1, -1], np.float32), xs, closed=(weight,)), *wanted)


def test_scan_without_rows_without_outputs_and_without_carries() -> None:
    last, ys = F.scan(lambda c, x: (c * 2, None), tensor(3, "i32"), length=5)
    assert (last.numpy().item(), ys) == (96, None)
    none, doubled = F.scan(lambda c, x: (None, x + x), None, tensor([[1.0], [2.0]]))
    assert none is None and doubled.numpy().tolist() == [[2], [4]]
    _, counted = F.scan(lambda c, x: (c + 1, c), 0, length=4)
    assert counted.numpy().tolist() == [0, 1, 2, 3]
    _, constants = F.scan(lambda c, x: (None, F.full((2,), 7)), None, length=2)
    assert constants.numpy().tolist() == [[7, 7], [7, 7]]
    carry, empty = F.scan(lambda c, x: (c + x, c), tensor([1.0]), tensor(np.zeros((0, 1), "f4")))
    assert carry.numpy().tolist() == [1] and empty.shape == (0, 1)
    assert empty.numpy().shape == (0, 1)


def test_loops_nest() -> None:
    def triangle(n: Any) -> Any:
        def row(total: Any, x: Any) -> Any:
            _, inner = F.while_loop(
                lambda i, s: i < x, lambda i, s: (i + 1, s + i * total), 0, total
            )
            chosen = F.cond(x > 2, lambda: inner, lambda: inner + 100)
            return chosen, inner

        return F.scan(row, 1, n)

    total, inners = 1, []
    for x in (1, 3, 2):
        inner = total
        for i in range(x):
            inner += i * total
        inners.append(inner)
        total = inner if x > 2 else inner + 100
    found = every_way(triangle, np.array([1, 3, 2], np.int32))
    agree(found, np.int32(total), np.array(inners, np.int32))


@dataclass
class State:
    position: Any
    parts: dict[str, Any]


def test_states_are_nested_containers() -> None:
    def step(state: State) -> State:
        parts = {"sum": state.parts["sum"] + state.position, "list": [state.parts["list"][0] * 2]}
        return State(state.position + 1, parts)

    first = State(tensor(0, "i32"), {"sum": tensor(0, "i32"), "list": [tensor([1.0, -1.0])]})
    last = F.while_loop(lambda s: s.position < 4, step, first)
    assert isinstance(last, State)
    assert (int(last.position), int(last.parts["sum"])) == (4, 6)
    assert last.parts["list"][0].numpy().tolist() == [16, -16]


def test_results_are_independent_of_each_other_and_of_the_operands() -> None:
    """Regions hand operands on without copies; what leaves the program must not be shared."""
    step = ptir.jit(lambda p, a: F.cond(p, lambda v: (v, v), lambda v: (v, v + 1.0), a))
    x = tensor([1.0, 2.0])
    first, second = step(tensor(True), x)
    change = ptir.jit(lambda v: -(v * 2.0), donate=["v"])
    assert change(first).numpy().tolist() == [-2, -4]
    assert second.numpy().tolist() == x.numpy().tolist() == [1, 2]
    loop = ptir.jit(lambda a: F.while_loop(lambda i, v: i < 0, lambda i, v: (i, v), 0, a)[1] * 3.0)
    assert [loop(x).numpy().tolist() for _ in range(2)] == [[3, 6], [3, 6]]
    assert x.numpy().tolist() == [1, 2]


def test_a_constant_that_a_region_gives_is_fresh_every_time() -> None:
    def numbers(*values: float) -> Any:
        return lambda: call("constant", value=literal(np.array(values, np.float32)))

    negated = ptir.jit(lambda x: -F.cond(x.sum() > 0.0, numbers(1, 2), numbers(5, 6)))
    found = [negated(tensor(x)).numpy().tolist() for x in ([1.0, 0.0], [-1.0, 0.0]) * 2]
    assert found == [[-1, -2], [-5, -6]] * 2


def test_what_surrounds_a_branch_is_computed_outside_and_once() -> None:
    def function(p: Any, x: Any) -> Any:
        outer = F.exp(x)
        return F.cond(p, lambda: outer + 1.0, lambda: outer)

    program = ptir.capture(function, ptir.spec("bool"), ptir.spec("f32", 2))
    assert [i.op for i in program.main.instructions] == ["exp", "cond"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: F.cond(tensor(True), lambda v: (v, v), lambda v: v, x),
            r"cond\(\): false_fn is \*, true_fn is \(\*, \*\); they must be the same containers",
        ),
        (
            lambda x: F.cond(tensor(True), lambda v: v, lambda v: v.sum(), x),
            r"then gives \(f32\[2\]\), else \(f32\[\]\)",
        ),
        (
            lambda x: F.cond(x, lambda v: v, lambda v: v, x),
            r"cond\(f32\[2\], f32\[2\]\): predicate has dtype f32; one of bool",
        ),
        (
            lambda x: F.while_loop(lambda v: v.sum() < 3.0, lambda v: v.sum(), x),
            r"body gives \(f32\[\]\); the state is \(f32\[2\]\)",
        ),
        (
            lambda x: F.while_loop(lambda a, b: a.sum() < 3.0, lambda a, b: a, x, x),
            r"body_fn is \*, the state is \(\*, \*\); they must be the same containers",
        ),
        (lambda x: F.scan(lambda c, r: c + r, x, x), r"fn returns \*; it must return a pair"),
        (
            lambda x: F.scan(lambda c, r: ((c, c), r), x, x),
            r"the carry that fn returns is \(\*, \*\), the carry is \*",
        ),
        (lambda x: F.scan(lambda c, r: (c, r), x), "length is needed without xs"),
        (lambda x: F.scan(lambda c, r: (c, r), x, x, length=3), r"lengths differ: \[2, 3\]"),
        (lambda x: F.scan(lambda c, r: (c, r), x, x.sum()), r"f32\[\] has no rows"),
        (lambda x: F.scan(lambda c, r: (c, {1}), x, x), "a value is set; tensors, arrays"),
    ],
)
def test_errors_name_what_differs(call: Any, message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        call(tensor([1.0, 2.0]))


def test_reading_a_value_inside_is_refused() -> None:
    with pytest.raises(CaptureError, match="operand 0 of cond"):
        F.cond(tensor(True), lambda v: v if float(v) > 0 else -v, lambda v: v, tensor(1.0))
