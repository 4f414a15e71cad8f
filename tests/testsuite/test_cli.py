"""The command: exit codes, output for people, and errors of usage."""

from __future__ import annotations

import json
import os

import pytest
from impostors import Nothing

from ptir.switches import switched_on
from ptir_testsuite.cli import main
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant

pytestmark = pytest.mark.usefixtures("few_ops")

BASE = ("run", "--backend", "any", "--jobs", "0", "--programs", "0", "-k")


def test_a_part_that_passes_ends_with_3(installed, capsys):
    installed(Correct())
    assert main([*BASE, "rsqrt"]) == 3
    out = capsys.readouterr().out.splitlines()
    assert out[-1].startswith("attempted ") and out[-1].endswith("pass; incomplete: a part only")
    assert any(line.startswith("rsqrt ") and line.endswith(" ULP") for line in out)


def test_a_mismatch_ends_with_1_and_tells_everything(installed, capsys, tmp_path):
    installed(Mutant(MUTANTS["rsqrt by one Newton step"]))
    path = tmp_path / "rows.jsonl"
    assert main([*BASE, "rsqrt and f32", "--json", str(path)]) == 1
    out = capsys.readouterr().out
    assert "mismatch [compare] rsqrt(f32[5]): the result is wrong in 1 of 5 elements" in out
    assert "worst element [0]: expected 0.707106769, got 0.707108915; 35.8 ULP off" in out
    assert "operand[0] = 2" in out and "not conformant" in out
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert "mismatch" in {row.get("outcome") for row in rows}
    first = next(row["id"] for row in rows if row.get("outcome") == "mismatch")
    again = f"to see the first in full: ptir-conformance replay {first} --backend {Correct.name}"
    assert again in out


def test_a_claimed_profile_that_is_skipped_ends_with_1(installed, capsys):
    installed(Nothing())
    assert main([*BASE, "rsqrt and sample"]) == 1
    assert "refused within the claimed profile core: rsqrt(" in capsys.readouterr().out


class Counting(Correct):
    """Counts the programs that it is given at once."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[int] = []

    def compile_all(self, programs, device):
        self.given.append(len(programs))
        return super().compile_all(programs, device)


@pytest.mark.parametrize("more", [[], ["--at-once"]])
def test_cases_are_compiled_one_by_one_unless_asked_for_at_once(installed, capsys, more):
    backend = Counting()
    installed(backend)
    assert main([*BASE, "rsqrt and f32", *more]) == 3
    # A case is five programs at most: its forms.
    assert (max(backend.given) > 5) == bool(more), backend.given


def test_programs_alone_end_with_0(installed, capsys):
    installed(Correct())
    arguments = ["programs", "--backend", "any", "--jobs", "0", "--count", "5", "--seed", "9"]
    assert main(arguments) == 0
    assert "attempted 5/5: 5 pass; every program agrees" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "rebuilds"),
    [
        ({}, True),
        ({"PTIR_CACHE_DIR": "somewhere"}, False),
        ({"PTIR_REBUILD_KERNELS": "0"}, False),
    ],
)
def test_kernels_are_built_anew_unless_a_folder_for_them_is_named(
    installed, monkeypatch, given, rebuilds
):
    seen = set()

    class Watched(Correct):
        def compile(self, program, device, options):
            seen.add(switched_on("PTIR_REBUILD_KERNELS"))
            return super().compile(program, device, options)

    plain = {name: v for name, v in os.environ.items() if not name.startswith("PTIR_")}
    monkeypatch.setattr(os, "environ", {**plain, **given})
    installed(Watched())
    assert main([*BASE, "rsqrt and sample"]) == 3
    assert seen == {rebuilds}
    assert os.environ == {**plain, **given}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["run"], 2, "Missing option '--backend'"),
        (["run", "--backend", "no_such_backend"], 3, "no_such_backend"),
        ([*BASE, "add and"], 2, "a word is missing"),
        ([*BASE, "add", "--claims", "f61"], 2, "unknown profile 'f61' (nearest: f64, f16"),
        (["walk"], 2, "No such command"),
    ],
)
def test_usage_and_missing_devices_have_their_codes(arguments, code, text, capsys, installed):
    if "any" in arguments:
        installed(Correct())
    assert main(arguments) == code
    assert text in capsys.readouterr().err.replace("\n", " ")


def test_an_option_before_the_command_is_sent_behind_it(capsys):
    assert main(["--waivers", "x", "run"]) == 2
    said = capsys.readouterr().err
    assert "It is an option of run: ptir-conformance run ..." in said
    assert main(["--nothing", "run"]) == 2
    assert "It is an option of" not in capsys.readouterr().err
