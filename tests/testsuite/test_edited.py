"""Programs whose text was changed: refused with an error of ptir, or alike on every backend."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from suite_settings import setting_of

import gate
from ptir_testsuite.cli import main
from ptir_testsuite.corpus.edited import EditedProgram, edited_text
from ptir_testsuite.corpus.seeds import BY_HAND, captured
from ptir_testsuite.mutants import Correct
from ptir_testsuite.running import editing
from ptir_testsuite.running.editing import edited_programs, faults, order_of, told
from ptir_testsuite.running.items import run_group
from ptir_testsuite.running.kinds import edited
from ptir_testsuite.running.kinds.edited import ENDLESS, Late, limited, run_edited
from ptir_testsuite.running.outcomes import Outcome, Row

SLICE = gate.seed() or 0
"""Which texts the gate reads; every failure names it."""
TEXTS, BUILT = 200, 8
"""How many texts are read and run on ``ref``, and how many of those that run on ``c`` too."""


def rows_of(items, setting):
    return {row.case: row for row in run_group(tuple(items), setting)}


def shown(rows):
    names = list(rows)
    found = ["\n".join(told(name, row, names)) for name, row in faults(rows)]
    return "\n".join([f"PTIR_SLICE={SLICE}", *found]) if found else ""


def test_a_slice_of_edited_texts_is_refused_or_runs_alike_on_ref_and_c(monkeypatch):
    monkeypatch.setattr(edited, "PATIENCE", 1.0)
    items = edited_programs(TEXTS, SLICE)
    on_ref = rows_of(items, order_of("ref").setting())
    ran = [item for item in items if editing.how(on_ref[item.id]) == "ran"]
    refused = [row for row in on_ref.values() if "refused" in editing.how(row)]
    assert len(ran) > TEXTS // 20 and len(refused) > TEXTS // 20, f"PTIR_SLICE={SLICE}"
    assert not shown({"ref": on_ref})
    some = ran[:: len(ran) // BUILT][:BUILT]
    on_c = rows_of(some, order_of("c").setting())
    assert not shown({"ref": {item.id: on_ref[item.id] for item in some}, "c": on_c})


def test_a_text_is_edited_alike_for_the_same_seed_and_number():
    assert edited_text(3, 5) == edited_text(3, 5) == EditedProgram(3, 5).text
    texts = {edited_text(seed, number) for seed in (3, 4) for number in range(20)}
    assert len(texts) > 35


def test_what_edits_start_from_are_programs_that_run(reference_setting):
    texts = (*BY_HAND, *captured())
    assert len(BY_HAND) == 5 and len(captured()) == 5
    for number, text in enumerate(texts):

        class Unedited(EditedProgram):
            text = texts[number]

        row = run_edited(Unedited(0, number), reference_setting)
        assert (row.outcome, row.facts.get("ended")) == (Outcome.PASS, "ran"), (text, row.message)


@pytest.fixture(scope="module")
def reference_setting():
    return order_of("ref").setting()


class Careless(Correct):
    """Trips over the second of two operands."""

    name = "careless"

    def step(self, instruction, operands, device):
        if len(operands) == 2:
            raise ValueError("operands could not be broadcast together")
        return super().step(instruction, operands, device)


class Wrapping(Correct):
    """Has its own idea of a maximum."""

    name = "wrapping"

    def step(self, instruction, operands, device):
        (first, *rest) = super().step(instruction, operands, device)
        if instruction.op in ("add", "maximum", "transpose"):
            first = np.roll(first, 1) if first.size else first
        return (first, *rest)


@pytest.mark.parametrize(
    ("backend", "outcome"), [(Careless(), Outcome.ERROR), (Wrapping(), Outcome.MISMATCH)]
)
def test_a_backend_that_fails_on_edited_texts_is_found(backend, outcome):
    """The texts of the seeds by hand: few of the first are refused."""
    items = edited_programs(10, 2)
    rows = rows_of(items, setting_of(backend))
    failing = [row for _, row in faults({backend.name: rows})]
    assert any(row.outcome is outcome for row in failing), [r.outcome for r in rows.values()]
    (text, *_) = [m for row in failing for m in ["\n".join(told("x", row, ["ref", "x"]))]]
    assert "ptir-conformance fuzz-text --seed 2 --first" in text and "program(" in text


def test_a_reader_that_raises_what_is_no_error_of_ptir_is_found(monkeypatch, reference_setting):
    def broken(text):
        raise KeyError("axis")

    monkeypatch.setattr(edited, "parse", broken)
    (row,) = run_group((EditedProgram(0, 0),), reference_setting)
    assert row.outcome is Outcome.ERROR and "KeyError" in row.message
    assert [name for name, _ in faults({"ref": {row.case: row}})] == ["ref"]


def test_a_reader_that_does_not_verify_is_found(monkeypatch, reference_setting):
    """Passes trip over it, or backends refuse it, which no text that was read may come to."""
    from ptir.ir.parser import parse_unverified

    monkeypatch.setattr(edited, "parse", parse_unverified)
    rows = run_group(tuple(edited_programs(12)), reference_setting)
    assert any(row.outcome is Outcome.ERROR for row in rows)


# --- between backends ---

RAN = Row(
    "edited-0-7", "program", "", (), (), Outcome.PASS, facts={"ended": "ran", "bits": ["a", ""]}
)
OTHER = replace(RAN, facts={"ended": "ran", "bits": ["b", ""]})
OPEN = replace(RAN, facts={"ended": "ran", "bits": ["a", "c"]})
STUCK = replace(RAN, facts={"ended": ENDLESS})
SILENT = replace(RAN, facts={}, outcome=Outcome.TIMEOUT)
REFUSED = replace(RAN, facts={"ended": "refused: PTIR-201"})
CRASHED = replace(RAN, facts={}, outcome=Outcome.CRASH)


@pytest.mark.parametrize(
    ("ref", "c", "outcomes"),
    [
        (RAN, RAN, []),
        (RAN, OPEN, []),
        (RAN, REFUSED, []),
        (REFUSED, RAN, []),
        (STUCK, STUCK, []),
        (STUCK, SILENT, []),
        (STUCK, REFUSED, []),
        (RAN, OTHER, [("c", Outcome.MISMATCH)]),
        (RAN, STUCK, [("c", Outcome.TIMEOUT)]),
        (STUCK, RAN, [("ref", Outcome.TIMEOUT)]),
        (RAN, SILENT, [("c", Outcome.TIMEOUT)]),
        (RAN, CRASHED, [("c", Outcome.CRASH)]),
        (REFUSED, CRASHED, [("c", Outcome.CRASH)]),
    ],
)  # fmt: skip
def test_backends_must_end_alike(ref, c, outcomes):
    found = faults({"ref": {ref.case: ref}, "c": {c.case: c}})
    assert [(name, row.outcome) for name, row in found] == outcomes


def test_a_loop_that_never_ends_is_left_and_said(monkeypatch, reference_setting):
    monkeypatch.setattr(edited, "PATIENCE", 0.2)
    text = (
        BY_HAND[0]
        .replace("%4 = add(%0, %3)", "%4 = sub(%0, %3)")
        .replace("0x05000000", "0xffffff7f")
    )
    monkeypatch.setattr(EditedProgram, "text", property(lambda self: text))
    (row,) = run_group((EditedProgram(0, 0),), reference_setting)
    assert row.outcome is Outcome.PASS and row.facts == {"ended": ENDLESS}


def test_nothing_is_interrupted_once_it_has_ended():
    with limited(0.05):
        pass
    began = time.monotonic()
    while time.monotonic() < began + 0.1:
        pass
    with pytest.raises(Late), limited(0.05):
        while True:
            pass


def test_what_is_being_freed_is_not_interrupted():
    ended = []

    class Slow:
        def __del__(self):
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                pass
            ended.append(True)

    with pytest.raises(Late), limited(0.05):
        value = Slow()
        del value
        while True:
            pass
    assert ended == [True]


def test_the_command_says_how_the_texts_ended(installed, monkeypatch, capsys):
    def in_process(items, order, jobs, timeout):
        return run_group(tuple(items), order.setting())

    monkeypatch.setattr(editing, "run_in_processes", in_process)
    installed(Correct())
    command = ["fuzz-text", "--backend", "any", "--count", "12", "--seed", "2"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "seed 2, from 0\nany: 12 texts: " in out and out.endswith("no fault\n"), out
    installed(Wrapping())
    assert main([*command, "--most", "1"]) == 1
    out = capsys.readouterr().out
    assert (
        "mismatch [compare]" in out and "again: ptir-conformance fuzz-text --seed 2 --first" in out
    )
