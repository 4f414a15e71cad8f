"""The reference backend as an interpreter: memory rules, direct NumPy steps, threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from composite_calls import DEVICE, composite, run, type_of

from ptir import ops
from ptir.backend import OpQuery, Options
from ptir.errors import UnsupportedError, UsageError
from ptir.ir import Attributes, Instruction, Port, Program, freeze
from ptir.ir.graph import source
from ptir.ops import OPS, numerics
from ptir.types import spec
from ptir_backend_ref import backend, threads
from together import together

f32, i32 = np.float32, np.int32
AWKWARD = np.array([0.0, -0.0, 1.5, -2.5, 1e38, -1e-45, np.inf, -np.inf, np.nan, 3.0], f32)
WHOLE = np.array([0, 1, -1, 7, -8, 2**31 - 1, -(2**31), 31, 32, 5], i32)


def pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(values, values)
    return a.ravel().copy(), b.ravel().copy()


def calls() -> list[tuple[str, tuple[np.ndarray, ...], dict[str, Any]]]:
    found: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any]]] = []
    for values in (AWKWARD, WHOLE, WHOLE.astype(np.uint32)):
        a, b = pairs(values)
        names = ["neg", "abs", "add", "sub", "mul", "div", "rem", "maximum", "minimum"]
        floats = ["sqrt", "floor", "ceil", "round", "is_finite", "reciprocal"]
        bits = ["not", "and", "or", "xor", "shift_left", "shift_right"]
        for name in names + (floats if values.dtype == f32 else bits):
            if name in OPS:
                found.append((name, (a, b)[: len(OPS[name].operands)], {}))
        for direction in ("eq", "ne", "lt", "le", "gt", "ge"):
            found.append(("compare", (a, b), {"direction": direction}))
        found.append(("select", (a > b, a, b), {}))
    return found


@together("name")
@pytest.mark.parametrize("reuse", [None, 0, 1])
@pytest.mark.parametrize(("name", "operands", "attributes"), calls())
def test_a_step_is_the_records_meaning_bit_for_bit(
    name: str, operands: tuple[np.ndarray, ...], attributes: dict[str, Any], reuse: int | None
) -> None:
    record = OPS[name]
    for shape in ((10, 10), (100,)):
        given = tuple(x.reshape(shape).copy() for x in operands)
        wanted = record.reference(numerics, *given, **attributes)
        kept = [x.copy() for x in given]
        instruction = Instruction(
            name, tuple(range(len(given))), Attributes(attributes), (type_of(wanted),)
        )
        reusable = frozenset() if reuse is None or reuse >= len(given) else frozenset({reuse})
        found = run(instruction, given, reusable)
        assert found.tobytes() == wanted.tobytes()
        for index, (operand, copy) in enumerate(zip(given, kept, strict=True)):
            if index not in reusable:
                assert operand.tobytes() == copy.tobytes()
                assert not np.shares_memory(found, operand)


@together()
@pytest.mark.parametrize(("name", "operands", "attributes"), calls())
def test_a_0d_step_gives_an_array(
    name: str, operands: tuple[np.ndarray, ...], attributes: dict[str, Any]
) -> None:
    given = tuple(x[7:8].reshape(()) for x in operands)
    wanted = OPS[name].reference(numerics, *given, **attributes)
    types = (type_of(np.asarray(wanted)),)
    instruction = Instruction(name, (0, 1, 2)[: len(given)], Attributes(attributes), types)
    assert run(instruction, given).tobytes() == np.asarray(wanted).tobytes()


@pytest.mark.parametrize(
    ("name", "attributes", "view"),
    [
        ("reshape", {"shape": (3, 8)}, True),
        ("transpose", {"permutation": (1, 0)}, True),
        ("slice", {"starts": (0, 1), "limits": (4, 6), "strides": (2, 3)}, True),
        ("slice", {"starts": (1, 1), "limits": (4, 6), "strides": None}, True),
        ("stop_gradient", {}, False),
    ],
)
def test_views_stay_views_and_nothing_else_aliases(
    name: str, attributes: dict[str, Any], view: bool
) -> None:
    x = np.arange(24, dtype=f32).reshape(4, 6)
    wanted = OPS[name].reference(numerics, x, **attributes)
    found = run(Instruction(name, (0,), Attributes(attributes), (type_of(wanted),)), (x,))
    np.testing.assert_array_equal(found, wanted)
    assert np.shares_memory(found, x) == view


# --- handles ---


def test_upload_copies_unless_borrowed_and_borrowed_memory_is_read_only() -> None:
    array = np.arange(6, dtype=f32).reshape(2, 3)
    copied, borrowed = backend.upload(array, DEVICE), backend.upload(array, DEVICE, borrow=True)
    assert not np.shares_memory(copied, array) and np.shares_memory(borrowed, array)
    assert copied.flags.c_contiguous and not borrowed.flags.writeable and array.flags.writeable
    assert backend.upload(array.T, DEVICE).flags.c_contiguous
    assert backend.upload(np.array(2.0, f32), DEVICE, borrow=True).shape == ()


def test_download_and_copy_share_nothing() -> None:
    handle = backend.upload(np.arange(6, dtype=f32), DEVICE)
    for result in (backend.download(handle, DEVICE), backend.copy(handle[::2], DEVICE)):
        assert result.flags.c_contiguous and not np.shares_memory(result, handle)
    assert backend.export(handle, DEVICE) is handle


def test_borrowed_memory_is_not_written_even_where_reuse_is_allowed() -> None:
    array = np.ones((3, 4), f32)
    borrowed = backend.upload(array, DEVICE, borrow=True)
    composite("silu", borrowed, reusable=frozenset({0}))
    run(Instruction("neg", (0,), Attributes(), (spec("f32", 3, 4),)), (borrowed,), frozenset({0}))
    cache = backend.upload(np.ones((1, 1, 2, 2), f32), DEVICE, borrow=True)
    at = np.array([0], i32)
    composite("cache_update", cache, cache * 2, at, at + 1, reusable=frozenset({0}))
    assert (array == 1).all() and (cache == 1).all()


# --- programs ---


def program() -> Program:
    """``(x + y) * y`` and a transposed view of it."""
    x, y = source(spec("f32", 2, 3)), source(spec("f32", 2, 3))
    total = ops.mul(ops.add(x, y), y)
    outputs = [total, ops.transpose(total, permutation=(1, 0))]
    return Program(freeze(outputs, [x, y]), (Port("x"), Port("y")))


def test_a_program_keeps_its_inputs_and_counts_its_kernels() -> None:
    executable = backend.compile(program(), DEVICE, Options())
    x, y = np.full((2, 3), np.inf, f32), np.full((2, 3), -np.inf, f32)
    before = backend.stats(DEVICE).kernels_launched
    total, turned = executable.run([x, y])
    assert np.isnan(total).all() and turned.shape == (3, 2)
    assert (x == np.inf).all() and (y == -np.inf).all()
    assert not np.shares_memory(total, turned)
    assert backend.stats(DEVICE).kernels_launched - before == 2


def test_unsupported_calls_are_refused_before_anything_runs() -> None:
    query = OpQuery("add", Attributes(), (spec("bool", 2), spec("bool", 2)), (spec("bool", 2),))
    assert backend.refusal(query, DEVICE) == "lhs has dtype bool, outside the record of add"
    assert backend.refusal(OpQuery("frobnicate", Attributes(), (), ()), DEVICE)
    x = source(spec("f32", 2))
    call = ops.custom_call(x, target="vendor.fused.v1", results=("f32[2]",))
    foreign = Program(freeze([call], [x]), (Port("x"),))
    with pytest.raises(UnsupportedError, match=r"custom_call target 'vendor.fused.v1' is unknown"):
        backend.compile(foreign, DEVICE, Options())


# --- threads ---

SCRIPT = """
import sys, hashlib
import numpy as np
sys.path.insert(0, sys.argv[1])
from composite_calls import composite
r = np.random.default_rng(0)
x, w = r.standard_normal((300, 600), "f"), r.standard_normal(600, "f")
q, k = r.standard_normal((1, 4, 200, 16), "f"), r.standard_normal((1, 2, 256, 16), "f")
at = np.array([40], "i")
how = {"scale": 0.25, "causal": True, "window": None, "soft_cap": None}
m = r.standard_normal((600, 2000), "f")
results = [
    composite("linear", x, m, shape=(300, 2000), layout="io"),
    composite("linear", x[:2], m, shape=(2, 2000), layout="io"),
    composite("linear", x[:2], m.reshape(2000, 600), shape=(2, 2000), layout="oi"),
    composite("layer_norm", x, w, w, epsilon=1e-5),
    composite("softmax", x, axis=1),
    composite("gelu", x, approximate="tanh"),
    composite("attention", q, k, k, at, at + 200, **how),
]
print(hashlib.sha256(b"".join(y.tobytes() for y in results)).hexdigest())
"""


def test_the_number_of_threads_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for count in ("1", "3"):
        monkeypatch.setenv("PTIR_NUM_THREADS", count)
        command = [sys.executable, "-W", "error", "-c", SCRIPT, __file__.rpartition("/")[0]]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


@pytest.fixture
def fresh_count() -> Any:
    threads.thread_count.cache_clear()
    yield
    threads.thread_count.cache_clear()


@pytest.mark.usefixtures("fresh_count")
def test_a_bad_thread_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTIR_NUM_THREADS", "two")
    with pytest.raises(UsageError, match="PTIR_NUM_THREADS is 'two'; give a whole number from 1"):
        threads.thread_count()


def test_a_failing_task_is_raised_and_others_may_run_at_once() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        threads.run_all([fail] * 4)
    x = np.ones((300, 600), f32)
    results: list[np.ndarray] = []
    workers = [
        threading.Thread(target=lambda: results.append(composite("silu", x))) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4 and all((y == results[0]).all() for y in results)


def test_blas_threads_are_as_before_afterwards() -> None:
    if not threads.blas_is_tamed():
        pytest.skip("NumPy is not built on OpenBLAS")
    found = threads._openblas()
    assert found is not None
    before = found[0]()
    with threads.single_threaded_blas(), threads.single_threaded_blas():
        assert found[0]() == 1
    assert found[0]() == before
