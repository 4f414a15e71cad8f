"""Lifetime rows: a right backend passes, each wrong one is given away, and the step is named."""

from __future__ import annotations

import re

import numpy as np
import pytest
from impostors import Failing, Nothing
from suite_settings import setting_of

import ptir_backend_ref
from ptir.backend.buffer import Buffer
from ptir_testsuite.cli import main
from ptir_testsuite.corpus.recipes import RECIPES, arrays, program
from ptir_testsuite.corpus.scripts import DONATIONS, THREADS
from ptir_testsuite.mutants import Correct
from ptir_testsuite.mutants.lifetimes import Clearing, Leaking, Placing, Racing, Twice
from ptir_testsuite.running.finding import item_of
from ptir_testsuite.running.items import described, items, profiles, run_item
from ptir_testsuite.running.kinds.lifetime import KINDS, lifetimes
from ptir_testsuite.running.outcomes import Outcome

pytestmark = [pytest.mark.usefixtures("few_ops", "frozen_heap"), pytest.mark.turns(2)]


def one(kind, number=0):
    return list(lifetimes(kind))[number]


@pytest.mark.slice(8)
@pytest.mark.parametrize("item", [*lifetimes()], ids=lambda item: item.id)
def test_a_right_backend_passes(item):
    found = run_item(item, setting_of(Placing()))
    assert found.outcome is Outcome.PASS, found.message
    assert not found.facts


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_backend_passes(kind, setting):
    found = run_item(one(kind), setting)
    assert found.outcome is Outcome.PASS, found.message
    assert "memory" not in found.facts


def test_a_tensor_that_several_threads_donate_goes_to_one(monkeypatch):
    """Were it given up after the run, several would run at the same time, all in its memory."""

    def looked_at(self, reason):
        return self.handle

    monkeypatch.setattr(Buffer, "claim", looked_at)
    found = run_item(one("rivals"), setting_of(Placing()))
    assert found.outcome is Outcome.ACCEPTED_INVALID
    assert "8 of 8 threads that donate one tensor succeeded; it must be one" in found.message


def test_what_cannot_be_looked_at_is_said(installed, capsys):
    found = run_item(one("memory"), setting_of(Correct()))
    assert found.outcome is Outcome.PASS and found.facts == {"memory": "not reported"}
    installed(Correct())
    assert main(["run", "--backend", "any", "--jobs", "0", "-k", "lifetime-memory"]) == 3
    assert "leaks (the backend does not report live bytes)" in capsys.readouterr().out


def test_scripts_hold_everything_that_can_be_done():
    steps = [step for item in lifetimes() for step in item.script]
    wanted = {"upload", "lend", "compile", "run", "copy", "download", "delete", "check", "collect"}
    wanted |= {"threads", "repeat", "rivals", "grown", "use after donation"}
    assert wanted <= {step.do for step in steps}
    ways = {(step.recipe, step.how) for step in steps if step.do == "run"}
    assert len(ways) == len(DONATIONS) * len(RECIPES), "every program is run in every way"
    assert THREADS >= 4
    ids = [item.id for item in lifetimes()]
    assert len(set(ids)) == len(ids) and all(item_of(id).id == id for id in ids)
    assert [i.id for i in items(0) if i.id.startswith("lifetime-")] == ids
    assert profiles(one("walk")) == {"core"} and "lifetime-walk-" in described(one("walk"))


@pytest.mark.parametrize("name", RECIPES)
def test_the_arrays_of_a_recipe_are_what_its_program_means(name):
    backend = ptir_backend_ref.backend
    device = backend.devices()[0]
    shape = (17, 16)
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-(2**31), 2**31, shape).astype(np.int32) for _ in range(2))
    from ptir.backend import Options

    executable = backend.compile(program(name, shape), device, Options())
    found = executable.run([backend.upload(x, device) for x in (a, b)])
    assert len(found) == RECIPES[name].results
    for got, wanted in zip(found, arrays(name, a, b), strict=True):
        np.testing.assert_array_equal(backend.download(got, device), wanted)


@pytest.mark.slice(2)
@pytest.mark.parametrize(
    ("backend", "kind", "text"),
    [
        (Leaking, "memory", r"a leak: with everything deleted and collected, \d+ bytes were live"),
        (Racing, "threads", r"step \d+ of \d+, threads p .*: result 0 of run \d+ of thread \d"),
        (Twice, "walk", r"step \d+ of \d+, .*: [a-z]\d+ is wrong in \d+ of \d+ elements: \["),
        (Clearing, "walk", r"the memory lent for x\d+, or memory beside it, was written to"),
        (Failing, "walk", r"step \d+ of \d+, run p\d+ .*: execute raised DeviceError: the device"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_failure_names_its_step(backend, kind, text):
    setting = setting_of(backend())
    failed = next(row for i in lifetimes(kind) if (row := run_item(i, setting)).failed)
    wanted = Outcome.ERROR if backend is Failing else Outcome.MISMATCH
    assert failed.outcome is wanted
    assert re.search(text, failed.message), failed.message
    assert failed.message.endswith(f"case {failed.case}")


def test_refused_within_the_claims_is_unsupported_and_fails():
    found = run_item(one("walk"), setting_of(Nothing()))
    assert found.outcome is Outcome.UNSUPPORTED and found.failed


def test_a_donated_tensor_that_stays_usable_is_accepted_invalid(monkeypatch):
    monkeypatch.setattr(Buffer, "consume", lambda self, reason: None)
    setting = setting_of(Correct())
    few = [*lifetimes("tensors")][:4]
    failed = [row for i in few if (row := run_item(i, setting)).failed]
    assert {row.outcome for row in failed} == {Outcome.ACCEPTED_INVALID}
    assert re.search(r"use after donation [xy]\d+: reading it gave", failed[0].message)


def test_another_error_after_a_donation_is_a_wrong_error(monkeypatch):
    def consume(self, reason):
        self.gone = "it is somewhere else"

    monkeypatch.setattr(Buffer, "consume", consume)
    setting = setting_of(Correct())
    few = [*lifetimes("tensors")][:4]
    failed = [row for i in few if (row := run_item(i, setting)).failed]
    assert {row.outcome for row in failed} == {Outcome.WRONG_ERROR}
    assert "does not say that it was donated" in failed[0].message


def test_a_row_is_replayed_from_its_id(capsys):
    item = one("memory")
    assert main(["replay", item.id, "--backend", "ref"]) == 0
    out = capsys.readouterr().out
    assert "1. upload a i32[1031] [dense]" in out and "outcome: pass" in out
    assert "program(%0: i32[1031]" in out
    assert main(["replay", "lifetime-walk-000000000000", "--backend", "ref"]) == 2
    assert "the nearest are: lifetime-" in capsys.readouterr().err
