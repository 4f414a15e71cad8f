"""Lazy tensors: what a flush computes, what it shares, and what it refuses."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend import Target
from ptir.capture.plan import PLANS
from ptir.errors import CaptureError, TypeRuleError
from tiny_backend import TinyBackend


def ops_of(program):
    return [instruction.name for instruction in program.main.instructions]


def compiled_by(work):
    before = PLANS.compiled
    work()
    return PLANS.compiled - before


def test_reading_computes_the_requested_value_and_every_live_ancestor_once(runs):
    x = ptir.tensor([1.0, 2.0])
    a = x * 3.0
    b = a + 1.0
    c = b * b
    np.testing.assert_array_equal(c.numpy(), [16, 49])
    np.testing.assert_array_equal(b.numpy(), [4, 7])
    np.testing.assert_array_equal(a.numpy(), [3, 6])
    assert len(runs) == 1
    assert ops_of(runs[0]).count("mul") == 2


def test_a_dead_intermediate_is_not_an_output(runs):
    x = ptir.tensor([1.0, 2.0])
    c = (x * 3.0) + 1.0
    gc.collect()
    c.numpy()
    assert len(runs[0].main.outputs) == 1


def test_an_intermediate_with_a_pending_reader_elsewhere_is_computed_once(runs):
    x = ptir.tensor([1.0, 2.0])
    shared = F.exp(x)
    left, right = shared + 1.0, shared + 2.0
    del shared
    gc.collect()
    left.numpy()
    right.numpy()
    assert [ops_of(p).count("exp") for p in runs] == [1, 0]


def test_a_chain_read_at_every_step_costs_linear_work(runs):
    h = ptir.tensor([0.0])
    before = PLANS.compiled
    for step in range(200):
        h = h * 0.5 + 1.0
        assert 0 < float(h[0]) <= 2, step
    executed = sum(len(p.main.instructions) for p in runs)
    assert len(runs) == 200
    assert executed <= 200 * 10
    assert PLANS.compiled == before + 1


def test_swapped_operands_never_share_a_plan():
    x, w = ptir.tensor([5.0]), ptir.tensor([3.0])
    assert float(x - w) == 2
    assert compiled_by(lambda: (w - x).numpy()) == 1 or float(w - x) == -2
    assert float(w - x) == -2
    step = ptir.jit(lambda a, b: a - b)
    assert (float(step(x, w)), float(step(w, x))) == (2, -2)


def test_different_constants_never_share_a_plan():
    x = ptir.tensor([5.0])
    assert [float(x + n) for n in (1, 2, 1.0, -0.0)] == [6, 7, 6, 5]
    assert [float(ptir.jit(lambda a, n=n: a + n)(x)) for n in (1, 2)] == [6, 7]
    zero = ptir.tensor([-0.0])
    assert np.signbit((zero + -0.0).numpy())
    assert not np.signbit((zero + 0.0).numpy())


def test_overrides_on_and_off_never_share_a_plan():
    x = ptir.tensor(np.linspace(-3, 3, 64, dtype=np.float32).reshape(4, 16))
    step = ptir.jit(lambda a: F.softmax(a))
    plain = step(x).numpy()
    before = PLANS.compiled
    with ptir.overrides(softmax="force=online"):
        online = step(x).numpy()
    assert PLANS.compiled == before + 1
    step(x)
    assert PLANS.compiled == before + 1
    np.testing.assert_allclose(plain, online, rtol=1e-6)


def test_the_same_shapes_share_a_plan():
    x, y = ptir.tensor([1.0, 2.0]), ptir.tensor([3.0, 4.0])
    (x * y).numpy()
    a, b = ptir.tensor([5.0, 6.0]), ptir.tensor([7.0, 8.0])
    assert compiled_by(lambda: (a * b).numpy()) == 0


def test_eager_mode_runs_every_op_at_once(runs, monkeypatch):
    monkeypatch.setenv("PTIR_EAGER", "1")
    x = ptir.tensor([1.0, 4.0])
    y = F.sqrt(x) * x
    assert [ops_of(p) for p in runs] == [["sqrt"], ["mul"]]
    np.testing.assert_array_equal(y.numpy(), [1, 8])


def test_numpy_returns_memory_of_its_own():
    x = ptir.tensor([1.0, 2.0])
    first = x.numpy()
    first[:] = 0
    np.testing.assert_array_equal(x.numpy(), [1, 2])


def test_tensor_copies_the_array_that_it_is_given():
    array = np.ones(3, np.float32)
    x = ptir.tensor(array)
    array[:] = 0
    np.testing.assert_array_equal(x.numpy(), [1, 1, 1])


def test_dlpack_goes_in_and_out():
    x = ptir.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    out = np.from_dlpack(x + 1.0)
    np.testing.assert_array_equal(out, [[1, 2, 3], [4, 5, 6]])

    class Exporter:
        def __dlpack__(self, **options):
            return np.arange(3, dtype=np.int32).__dlpack__(**options)

        def __dlpack_device__(self):
            return (1, 0)

    np.testing.assert_array_equal(ptir.tensor(Exporter()).numpy(), [0, 1, 2])


def test_array_protocol_materializes():
    np.testing.assert_array_equal(np.asarray(ptir.tensor([1.0, 2.0]) * 2.0), [2, 4])


def test_tensors_of_two_devices_do_not_meet():
    tiny = TinyBackend()
    x = ptir.tensor([1.0])
    y = ptir.tensor([1.0], backend=Target(tiny, tiny.devices()[0]))
    with pytest.raises(CaptureError, match=r"tensors on ref:0 .* and tiny:0 .* meet"):
        (x + y).numpy()


def test_errors_name_the_op_the_types_and_the_users_line():
    x, y = ptir.tensor(np.ones((2, 3), np.float32)), ptir.tensor(np.ones((2, 4), np.float32))
    with pytest.raises(TypeRuleError, match=r"shapes \[2, 3\] and \[2, 4\] do not broadcast"):
        x + y
    with pytest.raises(TypeRuleError) as caught:
        x @ y
    message = str(caught.value)
    assert "dot_general(f32[2,3], f32[2,4]): contracting dims differ: 3 vs 2" in message
    assert f"{__file__}:" in message


def test_printing_computes_and_shows_type_and_values():
    assert str(ptir.tensor([1.0, 2.0]) + 1.0) == "Tensor(f32[2], [2. 3.])"


def test_repr_computes_nothing_and_shows_what_was_computed():
    x = ptir.tensor([1.0, 2.0]) + 1.0
    assert repr(x) == "Tensor(f32[2], pending)"
    assert not x.ref.node.is_source
    x.numpy()
    assert repr(x) == "Tensor(f32[2], [2. 3.])"
