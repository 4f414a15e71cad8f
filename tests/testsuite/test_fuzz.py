"""Fuzzing finds what is wrong, makes it small, keeps it; what is kept fails again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from impostors import Swapping
from suite_settings import setting_of

from ptir.backend import Target, registry
from ptir.errors import UsageError
from ptir.ops.reading import parse
from ptir_testsuite.cli import main
from ptir_testsuite.corpus.programs import exact_of
from ptir_testsuite.corpus.stored import Stored, promote, stored
from ptir_testsuite.mutants import Correct
from ptir_testsuite.running.fuzz import Found, headline
from ptir_testsuite.running.items import items, run_item, selected
from ptir_testsuite.running.kinds.shrink import shrunk
from ptir_testsuite.running.outcomes import Outcome, Row

pytestmark = pytest.mark.turns(2)

HERE = Path(__file__).parent
REFUSED = (Outcome.PASS, Outcome.UNSUPPORTED, Outcome.MISMATCH)
PROGRAM = """\
ptir 1.0

program(%0: f32[3] input "x0", %1: f32[3] input "x1") -> f32[3], f32[3] {
  %2 = exp(%0) : f32[3]
  %3 = sub(%2, %1) : f32[3]
  %4 = neg(%3) : f32[3]
  %5 = add(%4, %1) : f32[3]
  return %4, %5
}"""


def with_sub(candidates):
    """The first that has a difference of two values that are not equal."""
    for one in candidates:
        ops = [i.op for i in one.program.main.instructions]
        if "sub" in ops and any(any(literal.data) for literal in one.inputs):
            return one
    return None


def test_what_does_not_matter_is_left_out():
    arrays = [np.array([1, 2, 3], np.float32), np.array([4, 5, 6], np.float32)]
    small = shrunk(parse(PROGRAM), arrays, with_sub, "by hand")
    assert [i.op for i in small.program.main.instructions] == ["sub"]
    assert len(small.inputs) == 2 and len(small.program.main.outputs) == 1
    set_bytes = sum(b != 0 for literal in small.inputs for b in literal.data)
    assert 0 < set_bytes <= 2
    assert small.note == "by hand"


def test_fuzz_shrinks_and_keeps_what_fails(installed, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=":")
    monkeypatch.setenv("PTIR_TEST_IMPOSTOR", "Swapping")
    installed(Swapping())
    path = tmp_path / "kept.jsonl"
    command = ["fuzz", "--backend", "any", "--count", "24", "--seed", "0", "--most", "1"]
    given = [*command, "--import", "impostor_worker", "--promote", str(path)]
    assert main(given) == 1
    out = capsys.readouterr().out
    assert "any: program-0-" in out and "24/24 runs of 24 programs on any: " in out
    (kept,) = stored(path)
    assert [i.op for i in kept.program.main.instructions] == ["sub"], out
    assert run_item(kept, setting_of(Swapping())).outcome is Outcome.MISMATCH
    assert run_item(kept, setting_of(Correct())).outcome is Outcome.PASS
    assert not promote(path, kept) and len(list(stored(path))) == 1


class Narrow(Correct):
    """Claims less than others, so that programs are drawn within less beside it."""

    name = "narrow"
    claims = frozenset(("core",))
    correctly_rounded = frozenset()


def test_what_fails_replays_as_it_was_drawn_beside_a_backend_that_claims_less(monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=":")
    monkeypatch.setenv("PTIR_TEST_IMPOSTOR", "Swapping")
    found = {"any": Swapping(), "narrow": Narrow()}
    places = {name: Target(one, one.devices()[0]) for name, one in found.items()}
    monkeypatch.setattr(registry, "get", lambda name: places.get(name, places["any"]))
    command = ["fuzz", "--backend", "any", "--backend", "narrow", "--count", "40", "--most", "1"]
    assert main([*command, "--import", "impostor_worker"]) == 1
    out = capsys.readouterr().out
    told = next(line for line in out.splitlines() if line.startswith("any: program-0-"))
    again = next(line for line in out.splitlines() if "; as drawn: " in line).partition(": ")[2]
    assert "--claims core --import impostor_worker" in again
    assert main(shlex.split(again)[1:]) == 1
    replayed = capsys.readouterr().out
    assert "drawn within core\n" in replayed
    assert told.partition("] ")[2] in replayed, replayed


def test_what_is_refused_though_claimed_has_failed():
    rows = [Row(f"program-0-{n}", "program", "", (), (), o) for n, o in enumerate(REFUSED)]
    said = "3/3 runs of 3 programs on mine: 2 failed, 1 of them refused though claimed"
    assert headline(Found({"mine": rows}), 3) == said


def test_programs_that_agree_end_with_0(capsys):
    assert main(["fuzz", "--backend", "ref", "--count", "3"]) == 0
    assert "3/3 runs of 3 programs on ref: every program agrees" in capsys.readouterr().out


def test_kept_programs_are_a_part_of_every_run():
    kept = list(stored())
    assert kept, "the installed file is empty"
    everything = list(items(0))
    assert [item for item in everything if isinstance(item, Stored)] == kept
    for item in kept:
        row = run_item(item, setting_of(Correct()))
        assert (row.case, row.outcome) == (item.id, Outcome.PASS), row.message
        outside = selected(iter([item]), frozenset(), None)
        assert list(outside) == []


def test_an_input_in_one_buffer_comes_back_in_one_buffer(tmp_path):
    array = np.ones(3, np.float32)
    path = tmp_path / "kept.jsonl"
    promote(path, Stored.of(parse(PROGRAM), [array, array], "twice"))
    (found,) = stored(path)
    drawn = found.drawn()
    assert drawn.aliases == ((0, 1),) and drawn.arrays[0] is drawn.arrays[1]
    assert exact_of(drawn.program) == (True, True, False, False, False, False)


@pytest.mark.parametrize(
    ("change", "text"),
    [({"program": "no program"}, "kept.jsonl:1: "), ({"inputs": []}, "not those of the program")],
)
def test_a_damaged_line_names_its_place(change, text, tmp_path):
    path = tmp_path / "kept.jsonl"
    array = np.ones(3, np.float32)
    promote(path, Stored.of(parse(PROGRAM), [array, array]))
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(record | change) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match=text):
        list(stored(path))
