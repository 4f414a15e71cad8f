"""A run that is stopped, whatever by, loses no row, and goes on where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from report_files import records, rewritten, without_times

from ptir_testsuite.cli import main
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant
from ptir_testsuite.reports.files import SCHEMA, Journal
from ptir_testsuite.running.outcomes import Outcome, Row

pytestmark = pytest.mark.usefixtures("few_ops")

COUNT = 40
RUN = ("programs", "--backend", "ref", "--count", str(COUNT), "--seed", "3", "--json")


def started(path, *more):
    command = [sys.executable, "-m", "ptir_testsuite", *RUN, str(path), *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def after_rows(process, path, count):
    """Wait until the file has so many rows."""
    while not path.exists() or path.read_text(encoding="utf-8").count("\n") < count + 1:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The report of a run that nobody stopped."""
    path = tmp_path_factory.mktemp("whole") / "report.jsonl"
    process = started(path)
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    return path


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    ("name", "group", "code"),
    [("SIGINT", True, 3), ("SIGTERM", False, 3), ("SIGKILL", True, -signal.SIGKILL)],
)
def test_what_is_stopped_keeps_its_rows_and_goes_on(name, group, code, tmp_path, whole):
    path = tmp_path / "report.jsonl"
    process = started(path)
    after_rows(process, path, 5)
    number = getattr(signal, name)
    (os.killpg if group else os.kill)(process.pid, number)
    out, err = process.communicate()
    assert process.returncode == code, out + err
    assert "Traceback" not in err
    found = records(path)
    rows = [record for record in found if record["kind"] == "case"]
    assert 5 <= len(rows) < COUNT
    if code == 3:
        assert out.splitlines()[-1].endswith("incomplete: interrupted")
        assert "with --resume goes on" in err.replace("\n", " ")
        assert (found[-1]["interrupted"], found[-1]["attempted"]) == (True, len(rows))
    else:
        assert {record["kind"] for record in found} == {"header", "case"}
    again = started(path, "--resume")
    out, err = again.communicate()
    assert again.returncode == 0, out + err
    assert without_times(path) == without_times(whole)
    kept = [record["seconds"] for record in records(path)[1 : len(rows) + 1]]
    assert kept == [record["seconds"] for record in rows], "rows were run again"


HERE = ("run", "--backend", "any", "--jobs", "0", "--programs", "0", "-k", "rsqrt", "--json")


def unfinished(path):
    """Take the footer and all rows but three out of a report, and tear the last line."""
    lines = records(path)[:4]
    rewritten(path, lines)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "case", "id": "rsq')


def test_a_torn_line_is_run_again(installed, tmp_path, capsys):
    installed(Correct())
    path = tmp_path / "report.jsonl"
    assert main([*HERE, str(path)]) == 3
    before = without_times(path)
    unfinished(path)
    assert main([*HERE, str(path), "--resume"]) == 3
    assert without_times(path) == before


def test_a_row_is_in_the_file_as_soon_as_it_is_known(tmp_path):
    path = tmp_path / "report.jsonl"
    journal = Journal(path)
    journal.begin({"kind": "header", "schema": SCHEMA}, ())
    journal.add(Row("a-0", "a", "a()", (), (), Outcome.PASS))
    assert [record["kind"] for record in records(path)] == ["header", "case"]
    journal.close()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ((), "holds an unfinished run; go on with --resume"),
        (("--resume", "--relax", "flush-to-zero"), "cannot be resumed: its relaxations is []"),
        (("--resume", "-k", "abs"), "cannot be resumed: its -k is '"),
    ],
)
def test_rows_are_neither_overwritten_nor_mixed(more, text, installed, tmp_path, capsys):
    installed(Correct())
    path = tmp_path / "report.jsonl"
    assert main([*HERE, str(path)]) == 3
    unfinished(path)
    before = path.read_bytes()
    capsys.readouterr()
    assert main([*HERE, str(path), *more]) == 2
    assert text in capsys.readouterr().err
    assert path.read_bytes() == before


def test_rows_of_another_backend_are_not_resumed(installed, tmp_path, capsys):
    path = tmp_path / "report.jsonl"
    installed(Correct())
    assert main([*HERE, str(path)]) == 3
    unfinished(path)

    class Other(Mutant):
        name = "other"

    installed(Other(MUTANTS["abs of NaN is 0"]))
    capsys.readouterr()
    assert main([*HERE, str(path), "--resume"]) == 2
    assert "its backend is 'correct' and now it is 'other'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "where", "text"),
    [
        (None, "", "--resume goes on with a file; name it with --json"),
        ("a note\n", "notes.txt", "is there and is no report; choose another file"),
        (None, "no_such_folder/report.jsonl", "there is no folder"),
    ],
)
def test_files_that_cannot_be_written(content, where, text, installed, tmp_path, capsys):
    installed(Correct())
    path = tmp_path / where
    if content:
        path.write_text(content, encoding="utf-8")
    given = [*HERE, str(path)] if where else [*HERE[:-1], "--resume"]
    assert main(given) == 2
    assert text in capsys.readouterr().err
    assert content is None or path.read_text(encoding="utf-8") == content
