"""What a reader is told of a failure: from where an error came, which claim is broken, the form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from impostors import Failing, Little, Nothing
from suite_settings import setting_of

from ptir.errors import DeviceError
from ptir.ops import OPS
from ptir_testsuite.cli import main
from ptir_testsuite.corpus.composites import CompositeCall
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.mutants import Correct
from ptir_testsuite.running import replay
from ptir_testsuite.running.execute import run_case
from ptir_testsuite.running.items import run_item
from ptir_testsuite.running.kinds.lifetime import lifetimes
from ptir_testsuite.running.kinds.programs import RandomProgram
from ptir_testsuite.running.outcomes import Outcome

pytestmark = pytest.mark.usefixtures("few_ops")

BASE = ("run", "--backend", "any", "--jobs", "0", "--programs", "0", "-k")
RULE = "backends raise only errors of ptir.errors"


def inverse(message):
    raise KeyError(message)


class Untyped(Correct):
    """Raises something of its own, two calls deep."""

    name = "untyped"

    def step(self, instruction, operands, device):
        return inverse(instruction.op)


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


RAISED = "raised KeyError: '"
PLACE = f"at test_told.py:{line_of('raise KeyError(message)')} in inverse"


@pytest.mark.parametrize(
    "item",
    [
        next(cases_of(OPS["neg"])),
        CompositeCall("gelu", 0),
        next(lifetimes("walk")),
        RandomProgram(0, 1),
    ],
    ids=["case", "composite", "lifetime", "program"],
)
def test_an_error_is_told_with_its_place_and_the_rule_that_it_breaks(item):
    row = run_item(item, setting_of(Untyped()))
    assert row.outcome is Outcome.ERROR
    first = next(line for line in row.message.splitlines() if RAISED in line)
    assert first.index(RAISED) < first.index(PLACE) < first.index(RULE)
    assert row.facts["raised"] == PLACE.removeprefix("at ")
    assert str(Path(__file__)) not in row.message, "reports are the same on every machine"
    assert row.trace[-1].strip() == "raise KeyError(message)"
    assert all("ptir_testsuite" not in line for line in row.trace)
    assert "trace" not in row.record()


def test_an_error_of_ptir_breaks_no_rule():
    row = run_case(next(cases_of(OPS["mul"])), setting_of(Failing()))
    assert "DeviceError: the device is gone at impostors.py:" in row.message
    assert RULE not in row.message


def test_only_the_first_line_of_a_long_error_names_its_place():
    class Compiling(Correct):
        def step(self, instruction, operands, device):
            raise DeviceError("it failed\n  1 | int x")

    row = run_case(next(cases_of(OPS["mul"])), setting_of(Compiling()))
    first, second, *_ = row.message.splitlines()
    assert first.endswith(" in step") and second == "  1 | int x"


def replayed(monkeypatch, installed, backend, case, capsys):
    """What replay prints of a case, run in this process."""

    def here(items, order, jobs, timeout):
        return [run_case(item, setting_of(backend)) for item in items]

    monkeypatch.setattr(replay, "run_in_processes", here)
    installed(backend)
    code = main(["replay", case.id, "--backend", "any"])
    return code, capsys.readouterr().out


def test_replay_prints_the_frames_of_the_backend_once(monkeypatch, installed, capsys):
    case = next(cases_of(OPS["neg"]))
    code, out = replayed(monkeypatch, installed, Untyped(), case, capsys)
    assert code == 1
    assert f'File "{__file__}", line {line_of("raise KeyError(message)")}, in inverse' in out
    assert out.count("    raise KeyError(message)") == 1
    assert out.count("    return inverse(instruction.op)") == 1


def test_replay_prints_frames_that_only_the_first_run_had(monkeypatch, installed, capsys):
    class Once(Correct):
        def step(self, instruction, operands, device):
            if not self.__dict__.setdefault("done", []):
                self.done.append(True)
                inverse("once")
            return super().step(instruction, operands, device)

    code, out = replayed(monkeypatch, installed, Once(), next(cases_of(OPS["neg"])), capsys)
    assert code == 1 and "got 0: " in out
    assert "raised in, innermost last:" in out and "    raise KeyError(message)" in out


def test_replay_runs_the_decomposition_of_what_is_refused(monkeypatch, installed, capsys):
    class Without(Correct):
        def refusal(self, query, device):
            return "no arg_min" if query.op == "arg_min" else super().refusal(query, device)

        def step(self, instruction, operands, device):
            assert instruction.op != "arg_min"
            return super().step(instruction, operands, device)

    case = next(cases_of(OPS["arg_min"]))
    code, out = replayed(monkeypatch, installed, Without(), case, capsys)
    assert code == 0, out
    assert "run by its decomposition (no arg_min):" in out and "got 0: " in out
    assert "got: " not in out and "outcome: pass" in out


# --- refused though claimed ---


def test_a_broken_claim_is_told_as_other_failures_are(installed, capsys):
    installed(Nothing())
    assert main([*BASE, "add- and sample"]) == 1
    out = capsys.readouterr().out
    case = next(case for case in cases_of(OPS["add"]) if "sample" in case.origin)
    wanted = f"refused within the claimed profile core: {case.call}: nothing is taken\n  case "
    assert f"unsupported [compile] {wanted}{case.id}" in out


def test_a_broken_claim_is_counted_once(installed, capsys):
    installed(Nothing())
    assert main([*BASE, "rsqrt and sample"]) == 1
    out = capsys.readouterr().out.splitlines()
    head = next(line for line in out if line.startswith("op ")).split()
    cells = dict(zip(head, next(x for x in out if x.startswith("rsqrt ")).split(), strict=False))
    broken, honest = int(cells["failed"]), int(cells["unsupported"])
    assert broken + honest == int(cells["attempted"]) and broken and honest
    assert f"{honest} unsupported, {broken} refused though claimed; not conformant" in out[-1]


def test_an_honest_refusal_is_unsupported_and_no_failure(installed, capsys):
    backend = Little()
    installed(backend)
    assert main([*BASE, "rsqrt and sample"]) == 3
    out = capsys.readouterr().out
    assert "unsupported; incomplete: nothing was executed" in out
    assert "refused though claimed" not in out and "refused within" not in out


# --- the form of a result ---


class Shaped(Correct):
    """Downloads results in another form."""

    def __init__(self, form):
        self.form, self.made = form, []

    def step(self, instruction, operands, device):
        found = super().step(instruction, operands, device)
        self.made += found
        return found

    def download(self, handle, device):
        is_result = any(handle is made for made in self.made)
        return self.form(handle) if is_result else handle.copy()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (lambda a: np.swapaxes(a, 0, 1).copy(), "the result is f32[6,4]; it must be f32[4,6]"),
        (lambda a: a.astype(np.float64), "the result is f64[4,6]; it must be f32[4,6]"),
        (np.ndarray.tolist, "the result is of class list, no NumPy array; it must be f32[4,6]"),
    ],
)
def test_a_result_of_another_form_is_told_as_that(form, text):
    case = next(c for c in cases_of(OPS["neg"]) if "f32[4,6]" in c.call)
    row = run_case(case, setting_of(Shaped(form)))
    assert row.outcome is Outcome.MISMATCH
    assert f"{case.call}: {text}\n  case {case.id}" in row.message


@pytest.mark.parametrize("given", [True, 3])
def test_a_refusal_is_a_reason_or_none(given):
    class Odd(Correct):
        def refusal(self, query, device):
            return given

    row = run_case(next(cases_of(OPS["neg"])), setting_of(Odd()))
    assert f"refusal() gave {given}; it must give a reason (a string) or None" in row.message
