"""Memory that tells: bands around what the host lends, poison and fences where results lie."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from suite_settings import setting_of

from ptir.ops import OPS
from ptir.types import DTYPES, TensorType
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.layouts import BAND, LAYOUTS, memory_of, scribble
from ptir_testsuite.mutants import Correct
from ptir_testsuite.mutants.lifetimes import Beyond, Placing, Sharing, Unwritten
from ptir_testsuite.running import execute
from ptir_testsuite.running.execute import run_case
from ptir_testsuite.running.fences import PATTERNS, poison
from ptir_testsuite.running.items import random_programs, run_item
from ptir_testsuite.running.kinds import forms
from ptir_testsuite.running.outcomes import Outcome
from together import together


def case_of(op, words):
    return next(c for c in cases_of(OPS[op]) if all(w in f"{c.call} {c.origin}" for w in words))


class NoFences:
    """Fences that nobody put up."""

    def __init__(self, types, target, pattern):
        pass

    def broken(self):
        return ""


@together()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (2, 0, 3)])
def test_every_layout_lies_between_bands(layout, shape):
    array = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    lent = LAYOUTS[layout](array)
    np.testing.assert_array_equal(lent, array)
    memory = memory_of(lent)
    if array.size:
        first, last = np.lib.array_utils.byte_bounds(lent)
        start = memory.ctypes.data
        assert first - start >= BAND and start + memory.nbytes - last >= BAND
    before = memory.copy()
    scribble(lent)
    assert not (memory == before).any()


@pytest.mark.parametrize("type", [TensorType(d, (3, 5)) for d in DTYPES.values()], ids=str)
def test_poison_has_the_type_and_differs_between_runs(type):
    first, second = (poison(type, pattern) for pattern in PATTERNS)
    assert first.shape == type.shape and first.dtype == type.dtype.numpy
    assert first.tobytes() != second.tobytes()


def test_an_element_too_far_is_seen_by_the_fences_alone(monkeypatch):
    case = case_of("add", ["f32[4,6]"])
    found = run_case(case, setting_of(Beyond()))
    assert found.outcome is Outcome.MISMATCH and found.phase == "execute"
    assert "a tensor beside the results was overwritten" in found.message
    (program,) = random_programs(1)
    found = run_item(program, setting_of(Beyond()))
    assert "a tensor beside the results was overwritten" in found.message
    monkeypatch.setattr(execute, "Fences", NoFences)
    assert run_case(case, setting_of(Beyond())).outcome is Outcome.PASS


def test_elements_that_nobody_writes_are_seen_by_the_poison_alone(monkeypatch):
    case = case_of("pad", ["f32"])
    found = run_case(case, setting_of(Unwritten()))
    assert found.outcome is Outcome.MISMATCH
    monkeypatch.setattr(execute, "Fences", NoFences)
    assert run_case(case, setting_of(Unwritten())).outcome is Outcome.PASS


def test_an_upload_that_shares_the_hosts_memory_is_seen_by_scribbling(monkeypatch):
    case = case_of("add", ["f32[4,6]", "dense"])
    found = run_case(case, setting_of(Sharing()))
    assert (found.outcome, found.phase) == (Outcome.MISMATCH, "upload")
    assert "shares the host's memory" in found.message
    monkeypatch.setattr(execute, "scribble", lambda array: None)
    assert run_case(case, setting_of(Sharing())).outcome is Outcome.PASS


class Dirty(Correct):
    """Its upload writes a byte, in the host's array or beside it."""

    def __init__(self, where):
        self.where = where

    def upload(self, array, device, *, borrow=False):
        memory = memory_of(array)
        if memory is not array and memory.dtype == np.uint8:
            start = array.ctypes.data - memory.ctypes.data
            memory[start + self.where] ^= 1
        return super().upload(array, device, borrow=borrow)


@pytest.mark.parametrize(("where", "text"), [(0, "a host array"), (-1, "memory beside")])
def test_an_upload_must_leave_the_host_alone(where, text):
    case = case_of("neg", ["f32[4,6]", "dense"])
    found = run_case(case, setting_of(Dirty(where)))
    assert (found.outcome, found.phase) == (Outcome.MISMATCH, "upload")
    assert f"upload changed {text}" in found.message


def test_a_backend_with_memory_of_its_own_passes():
    setting = setting_of(Placing())
    for op in ("add", "sort", "pad", "reduce", "while", "concat"):
        for case in list(cases_of(OPS[op]))[::9]:
            found = run_case(case, setting)
            assert not found.failed, found.message
    assert forms.Fences is execute.Fences


def read_only(array):
    view = array.view()
    view.flags.writeable = False
    return view


class Showing(Correct):
    """What it downloads is made of its own memory."""

    def __init__(self, shown):
        self.shown = shown

    def download(self, handle, device):
        return self.shown(handle)


class ShowingResults(Showing):
    """Shares what was computed, and copies what was uploaded."""

    def step(self, instruction, operands, device):
        found = super().step(instruction, operands, device)
        self.made = getattr(self, "made", ()) + tuple(map(id, found))
        self.kept = getattr(self, "kept", ()) + found
        return found

    def download(self, handle, device):
        return self.shown(handle) if id(handle) in getattr(self, "made", ()) else handle.copy()


@pytest.mark.parametrize("shown", [lambda array: array, np.ndarray.view, read_only])
@pytest.mark.parametrize(
    ("backend", "what"), [(Showing, "operand 0 (dense host array)"), (ShowingResults, "result 0")]
)
@pytest.mark.parametrize("words", [["f32[4,6]", "dense"], ["i32[2]"]])
def test_a_download_that_shares_the_handles_memory_is_found(backend, what, shown, words):
    found = run_case(case_of("add", words), setting_of(backend(shown)))
    assert (found.outcome, found.phase) == (Outcome.MISMATCH, "download")
    assert f"download shares the handle's memory; it must give a copy: {what}" in found.message


@pytest.mark.parametrize(
    ("shown", "phase", "text"),
    [
        (
            lambda array: array.copy().tolist(),
            "download",
            "download gives a value of class list, no NumPy array: operand 0 (dense host array)",
        ),
        (lambda a: a.astype(np.float64), "download", "download gives float64[4, 6], not float32"),
        (
            lambda array: array + array.dtype.type(1),
            "upload",
            "operand 0 (dense host array) does not hold what was uploaded: element [0, 0] is ",
        ),
    ],
)
def test_what_is_wrong_with_an_upload_is_told(shown, phase, text):
    found = run_case(case_of("add", ["f32[4,6]", "dense"]), setting_of(Showing(shown)))
    assert (found.outcome, found.phase) == (Outcome.MISMATCH, phase)
    assert text in found.message


class Plenty(Correct):
    """Gives its result twice."""

    def compile(self, program, device, options):
        right = super().compile(program, device, options)
        return SimpleNamespace(run=lambda handles: [*right.run(handles)] * 2)


def test_more_results_than_outputs_are_a_mismatch():
    found = run_case(case_of("add", ["f32[4,6]", "dense"]), setting_of(Plenty()))
    assert found.outcome is Outcome.MISMATCH and "2 results; 1 are wanted" in found.message
