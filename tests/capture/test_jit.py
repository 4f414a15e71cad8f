"""jit and capture: replay, donation, poisoning, liveness, threads."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend import Target
from ptir.errors import CaptureError, DeviceError, TypeRuleError
from tiny_backend import TinyBackend


def test_a_function_is_captured_once_per_signature():
    calls = []

    @ptir.jit
    def step(x, n):
        calls.append(n)
        return x * n

    x = ptir.tensor([1.0, 2.0])
    for n in (2, 2, 3):
        np.testing.assert_array_equal(step(x, n).numpy(), [n, 2 * n])
    step(ptir.tensor([1.0]), 2)
    assert calls == [2, 3, 2]


def test_nested_results_keep_their_structure():
    step = ptir.jit(lambda pair, scale: {"sum": pair[0] + pair[1], "both": [pair[0] * scale, 7]})
    out = step((ptir.tensor([1.0]), ptir.tensor([2.0])), scale=3.0)
    assert float(out["sum"]) == 3
    assert float(out["both"][0]) == 3
    assert int(out["both"][1]) == 7


def test_reading_inside_a_capture_is_an_error():
    def reads(x):
        return x * float(x.sum())

    with pytest.raises(CaptureError, match="has no value while a function is being captured"):
        ptir.jit(reads)(ptir.tensor([1.0]))
    with pytest.raises(CaptureError):
        ptir.capture(reads, ptir.spec("f32", 1))
    with pytest.raises(CaptureError):
        ptir.jit(lambda x: x if x.sum() > 0 else -x)(ptir.tensor([1.0]))


def test_a_symbolic_tensor_that_escapes_is_refused():
    kept = []
    ptir.capture(lambda x: kept.append(x) or x, ptir.spec("f32", 1))
    with pytest.raises(CaptureError):
        (kept[0] + 1.0).numpy()


def test_closed_over_tensors_become_inputs():
    w = ptir.tensor([2.0]) * 3.0
    step = ptir.jit(lambda x: x * w)
    assert float(step(ptir.tensor([5.0]))) == 30
    program = ptir.capture(lambda x: x * w, ptir.spec("f32", 1))
    assert [port.name for port in program.ports] == ["x", "closed0"]


def test_capture_names_ports_after_arguments_and_round_trips():
    def model(a, b):
        return F.softmax(a @ b)

    program = ptir.capture(model, ptir.spec("f32", 2, 3), ptir.spec("f32", 3, 4))
    assert [port.name for port in program.ports] == ["a", "b"]
    assert ptir.parse(str(program)) == program


def test_a_dumped_program_runs_alone(reference):
    program = ptir.capture(lambda a: F.gelu(a) + 1.0, ptir.spec("f32", 3))
    array = np.array([-1, 0, 2], np.float32)
    (result,) = ptir.run_program(ptir.parse(str(program)), {"a": array}, reference)
    np.testing.assert_array_equal(result, (F.gelu(ptir.tensor(array)) + 1.0).numpy())


def test_a_donated_tensor_cannot_be_used_again():
    step = ptir.jit(lambda cache, x: cache + x, donate=("cache",))
    cache, x = ptir.tensor([1.0]), ptir.tensor([2.0])
    assert float(step(cache, x)) == 3
    with pytest.raises(CaptureError, match="donated to <lambda>"):
        cache.numpy()
    with pytest.raises(CaptureError, match="donated"):
        (cache + 1.0).numpy()
    assert float(x) == 2


def test_a_tensor_that_is_closed_over_cannot_be_donated():
    x = ptir.tensor(np.ones((4, 4), np.float32), backend="ref")
    step = ptir.jit(lambda cache: (cache * 2.0, x.sum(axis=0)), donate=("cache",))
    step(ptir.tensor(np.zeros((4, 4), np.float32), backend="ref"))
    with pytest.raises(CaptureError, match="donated"):
        step(x)


def test_donating_an_argument_that_does_not_exist_is_refused():
    with pytest.raises(TypeRuleError, match="donate names 'cash'"):
        ptir.jit(lambda cache: cache, donate=("cash",))


def test_a_donated_cache_is_updated_in_place():
    def write(cache, new, start, count):
        return F.cache_update(cache, new, start, count)

    step = ptir.jit(write, donate=("cache",))
    cache = ptir.tensor(np.zeros((1, 1, 4, 2), np.float32))
    new = ptir.tensor(np.ones((1, 1, 1, 2), np.float32))
    handle = cache.ref.node.payload.handle
    out = step(cache, new, ptir.tensor([2]), ptir.tensor([1]))
    assert out.ref.node.payload.handle is handle
    np.testing.assert_array_equal(out.numpy()[0, 0, :, 0], [0, 0, 1, 0])


def test_memory_that_was_handed_out_is_copied_before_a_donation_overwrites_it():
    step = ptir.jit(F.cache_update, donate=("cache",))
    cache = ptir.tensor(np.zeros((1, 1, 4, 2), np.float32))
    outside = np.from_dlpack(cache)
    new = ptir.tensor(np.ones((1, 1, 1, 2), np.float32))
    step(cache, new, ptir.tensor([0]), ptir.tensor([1]))
    assert not outside.any()


def test_one_buffer_as_donated_and_plain_argument_stays_intact():
    def both(cache, new, start, count, other):
        return F.cache_update(cache, new, start, count), other + 0.5

    step = ptir.jit(both, donate=("cache",))
    cache = ptir.tensor(np.zeros((1, 1, 2, 1), np.float32))
    new = ptir.tensor(np.ones((1, 1, 1, 1), np.float32))
    updated, other = step(cache, new, ptir.tensor([0]), ptir.tensor([1]), cache)
    np.testing.assert_array_equal(updated.numpy().ravel(), [1, 0])
    np.testing.assert_array_equal(other.numpy().ravel(), [0.5, 0.5])


def test_outputs_alias_neither_inputs_nor_each_other():
    step = ptir.jit(lambda x: (x, x.reshape(2), x[0:1]))
    x = ptir.tensor([[1.0, 2.0]])
    handles = [t.ref.node.payload.handle for t in step(x)] + [x.ref.node.payload.handle]
    for i, a in enumerate(handles):
        assert not any(np.shares_memory(a, b) for b in handles[i + 1 :])


class Failing(TinyBackend):
    """A device that breaks down when it computes an exponential."""

    name = "failing"

    def step(self, instruction, operands, device):
        if instruction.op == "exp":
            raise DeviceError("failing: the device is on fire")
        return super().step(instruction, operands, device)


def test_a_failed_run_poisons_what_it_consumed_and_nothing_else():
    backend = Failing()
    target = Target(backend, backend.devices()[0])
    step = ptir.jit(lambda cache, x: F.exp(cache) + x, donate=("cache",))
    cache, x = ptir.tensor([1.0], backend=target), ptir.tensor([1.0], backend=target)
    with pytest.raises(DeviceError, match="on fire"):
        step(cache, x)
    with pytest.raises(CaptureError, match="a failed run consumed it"):
        cache.numpy()
    assert float(x + 1.0) == 2


class Counted(np.ndarray):
    """An array that can be weakly referenced and counted."""


class Counting(TinyBackend):
    """Counts how many results are alive at once."""

    name = "counting"
    alive = 0
    peak = 0

    def step(self, instruction, operands, device):
        (result,) = super().step(instruction, operands, device)
        array = np.array(result).view(Counted)
        self.alive += 1
        self.peak = max(self.peak, self.alive)
        weakref.finalize(array, self._gone)
        return (array,)

    def _gone(self):
        self.alive -= 1


def test_intermediates_are_freed_during_a_run():
    backend = Counting()
    target = Target(backend, backend.devices()[0])

    def chain(x):
        for _ in range(50):
            x = F.exp(x) * 0.1
        return x

    ptir.jit(chain)(ptir.tensor([0.5], backend=target)).numpy()
    assert backend.peak <= 5
    assert backend.alive == 0


def test_many_threads_may_call_one_function():
    step = ptir.jit(lambda x, y: F.softmax(x @ y))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((8, 8)).astype(np.float32) for _ in range(8)]
    wanted = [step(ptir.tensor(a), ptir.tensor(a)).numpy() for a in arrays]
    wrong = []

    def work(index):
        for _ in range(30):
            x = ptir.tensor(arrays[index])
            if not np.array_equal(step(x, x * 1.0).numpy(), wanted[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_signatures_of_a_number_are_worth_a_warning():
    step = ptir.jit(lambda x, n: x + n)
    x = ptir.tensor([1.0])
    with pytest.warns(UserWarning, match="captured 32 signatures; pass values that change as"):
        for n in range(32):
            step(x, n)


def test_equal_numbers_of_different_kinds_are_different_signatures():
    step = ptir.jit(lambda x, n: x * 0 + (10 if isinstance(n, bool) else 20))
    x = ptir.tensor([1.0])
    assert (float(step(x, True)), float(step(x, 1))) == (10, 20)


def test_a_jitted_function_inside_another_is_part_of_it():
    inner = ptir.jit(lambda x: x + 1.0)
    outer = ptir.jit(lambda x: inner(x) * 2.0)
    assert float(outer(ptir.tensor([1.0]))) == 4
    assert inner.signatures == 0


def test_a_symbolic_tensor_can_be_printed_during_and_after_its_capture():
    kept = []
    ptir.capture(lambda x: kept.append((x + 1.0, repr(x))) or x, ptir.spec("f32", 2))
    assert kept[0][1] == "Tensor(f32[2])"
    assert repr(kept[0][0]) == "Tensor(f32[2])"
