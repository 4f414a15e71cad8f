"""The command line at the edges of what it is given, and of the terminal."""

from __future__ import annotations

import io

import pytest
from impostors import Nothing, Zeros
from rich.console import Console

from ptir_testsuite.cli import main, tables
from ptir_testsuite.mutants import Correct
from ptir_testsuite.reports.failures import groups
from ptir_testsuite.reports.report import headline, show
from ptir_testsuite.reports.runner import Programs, Wish, run
from ptir_testsuite.reports.support import folded

pytestmark = pytest.mark.usefixtures("few_ops")

RUN = ("run", "--backend", "any", "--programs", "0", "-k", "rsqrt and sample")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--backend", "any", "--seed", "-1"],
        ["run", "--backend", "any", "--programs", "-1"],
        ["run", "--backend", "any", "--timeout", "0"],
        ["run", "--backend", "any", "--timeout", "nan"],
        ["programs", "--backend", "any", "--count", "-1"],
        ["programs", "--backend", "any", "--first", "-1"],
        ["fuzz", "--most", "-1"],
        ["fuzz", "--seed", "-1"],
        ["verify", __file__, "--again", "-5"],
        ["verify", __file__, "--timeout", "-1"],
        ["replay", "add-0", "--backend", "any", "--most", "-1"],
        ["replay", "add-0", "--backend", "any", "--timeout", "nan"],
        ["mutants", "--timeout", "0"],
    ],
)
def test_a_number_out_of_range_is_a_mistake_in_the_call(arguments, installed, capsys):
    installed(Correct())
    assert main(arguments) == 2
    assert f"Invalid value for '{arguments[-2]}'" in capsys.readouterr().err


def test_a_timeout_without_a_process_is_refused(installed, capsys):
    installed(Correct())
    assert main([*RUN, "--jobs", "0", "--timeout", "3"]) == 2
    assert "--timeout needs a process to give up; --jobs 0 runs" in capsys.readouterr().err
    assert main([*RUN, "--jobs", "0"]) == 3


def test_empty_claims_are_not_the_backends_own(installed, capsys):
    installed(Correct())
    assert main([*RUN, "--jobs", "0", "--claims", ""]) == 2
    assert "no profile claimed" in capsys.readouterr().err


def test_help_shows_defaults(capsys):
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    assert "[default: 200; x>=0]" in out and "[default: 1; x>=0]" in out and '""' not in out


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["matrix", "{report}", "-o", "{folder}/none/x.md"], "--output"),
        (["badge", "{report}", "-o", "{folder}/none/x.svg"], "--output"),
        (["fuzz", "--count", "1", "--promote", "{folder}/none/x.jsonl"], "--promote"),
    ],
)
def test_a_folder_that_is_not_there_is_told_first(arguments, option, installed, tmp_path, capsys):
    installed(Correct())
    path = tmp_path / "rows.jsonl"
    assert main([*RUN, "--jobs", "0", "--json", str(path)]) == 3
    capsys.readouterr()
    assert main([text.format(report=path, folder=tmp_path) for text in arguments]) == 2
    found = capsys.readouterr()
    assert f"{option} {tmp_path}/none/x" in found.err
    assert f"there is no folder {tmp_path}/none" in found.err
    assert not found.out


# --- the terminal ---


def shown(backend, installed, path=None, **wish):
    """What a terminal of 40 columns gets to see of a run."""
    installed(backend)
    wished = {"words": "rsqrt", "jobs": 0, "programs": Programs(0)} | wish
    report = run(Wish("any", **wished))
    stream = io.StringIO()
    show(report, Console(file=stream, width=40, force_terminal=True, color_system=None), path)
    return report, stream.getvalue().splitlines()


def test_lines_to_copy_are_not_broken(installed):
    report, lines = shown(Zeros(), installed, imports=("json",))
    id = groups(report.failures)[0].rows[0].case
    again = (
        f"to see the first in full: ptir-conformance replay {id} --backend zeros:0 --import json"
    )
    assert again in lines and headline(report) in lines


def test_what_no_run_of_a_part_could_check_is_not_told(installed):
    report, lines = shown(Correct(), installed)
    assert report.unchecked and not any("no formula" in line for line in lines)
    report, lines = shown(Correct(), installed, words="", programs=Programs(2, alone=True))
    assert report.unchecked and not any("no formula" in line for line in lines)
    report.header["alone"] = False
    stream = io.StringIO()
    show(report, Console(file=stream, width=40))
    assert "not checked (no formula for the composite): " in stream.getvalue()


GRID = [["op", "bool", "f32", "bf16"], ["add", "", "✓", "12/34"], ["not", "✓", "", ""]]


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (80, [["op", "bool", "f32", "bf16"]]),
        (21, [["op", "bool", "f32", "bf16"]]),
        (20, [["op", "bool", "f32"], ["op", "bf16"]]),
        (3, [["op", "bool"], ["op", "f32"], ["op", "bf16"]]),
    ],
)
def test_a_wide_table_is_folded(width, heads):
    found = list(folded(GRID, width))
    assert [head for head, *_ in found] == heads
    assert all(row[1:] != [""] * len(row[1:]) for _, *rows in found for row in rows)


def test_support_cuts_nothing_in_a_narrow_terminal(installed, monkeypatch):
    stream = io.StringIO()
    narrow = Console(file=stream, width=80, color_system=None)
    monkeypatch.setattr(tables, "console", lambda: narrow)
    installed(Nothing())
    assert main(["support", "--backend", "any"]) == 1
    text = stream.getvalue()
    assert "…" not in text and "claimed: core\n" in text and "not claimed: " in text
    heads = [line.split()[1:] for line in text.splitlines() if line.startswith("op ")]
    assert len(heads) > 1 and {"bool", "f32", "f8e4m3fn"} <= {name for one in heads for name in one}
    wide = [line for line in text.splitlines() if len(line) > 80]
    assert all(line.startswith("claimed and refused: ") for line in wide)
