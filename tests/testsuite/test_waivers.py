"""Waivers: exactly that failure of exactly that case, for a while, and never a pass."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace

import jsonschema
import pytest
from report_files import records, rewritten
from test_reports import SCHEMA

from ptir.errors import UsageError
from ptir_testsuite.cli import main
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant
from ptir_testsuite.reports import badge, matrix
from ptir_testsuite.reports.report import CONFORMANT, Report
from ptir_testsuite.reports.verify import verify
from ptir_testsuite.reports.waivers import Waiver, read_waivers
from ptir_testsuite.running.outcomes import Outcome, Row

pytestmark = [pytest.mark.usefixtures("few_ops"), pytest.mark.turns(2)]

MUTANT = "rsqrt by one Newton step"
WORDS = "rsqrt and f32"
LATER = (datetime.date.today() + datetime.timedelta(days=30)).isoformat()
FIELDS = {"outcome": "mismatch", "phase": "compare", "reason": "one step", "expires": LATER}


def toml(path, *waivers):
    lines = []
    for waiver in waivers:
        lines.append("[[waiver]]")
        for name, value in waiver.items():
            written = value if name == "expires" else json.dumps(value)
            lines.append(f"{name} = {written}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def ran(installed, tmp_path):
    """Runs a backend with waivers of some ids; the exit code and the report's path."""

    def run(ids, backend=None, **changes):
        installed(backend or Mutant(MUTANTS[MUTANT]))
        path = tmp_path / "report.jsonl"
        path.unlink(missing_ok=True)
        file = toml(tmp_path / "waivers.toml", *({"id": i} | FIELDS | changes for i in ids))
        run = ["run", "--backend", "any", "--jobs", "0", "--programs", "0", "-k", WORDS]
        return main([*run, "--json", str(path), "--waivers", str(file)]), path

    return run


@pytest.fixture
def failing(ran):
    """The ids of all rows that the mutant fails."""
    code, path = ran([])
    assert code == 1
    return [row["id"] for row in records(path) if row.get("outcome") == "mismatch"]


def test_a_waived_failure_is_counted_named_and_no_pass(failing, ran, capsys):
    capsys.readouterr()
    code, path = ran(failing)
    out = capsys.readouterr().out
    assert code == 3, "a part only: nothing fails"
    header, *rows, footer = records(path)
    waived = [row for row in rows if row["outcome"] == "waived"]
    assert [row["id"] for row in waived] == failing
    assert all(row["facts"]["waived"] == "mismatch" for row in waived)
    assert all("is wrong in " in row["message"] for row in waived)
    assert footer["attempted"] == len(rows) and footer["outcomes"]["waived"] == len(failing)
    assert footer["outcomes"]["pass"] == len(rows) - len(failing)
    assert [waiver["id"] for waiver in header["waivers"]] == sorted(failing)
    assert f", {len(failing)} waived; " in out.splitlines()[-1]
    assert f"waived {failing[0]}: mismatch [compare]; one step, until {LATER}" in out
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for line in records(path):
        assert not [error.message for error in validator.iter_errors(line)]
    found = verify(path, 0)
    assert found.exit_code == 0, found.wrong
    assert f"{len(failing)} waivers, none of which has expired" in found.checked


def test_the_verdict_the_badge_and_the_matrix_say_that_it_rests_on_waivers(failing, ran):
    _, path = ran(failing)
    header, *rows, _ = records(path)
    header = {k: v for k, v in header.items() if k != "digest"} | {"words": ""}
    found = Report(header, [Row.of({k: v for k, v in r.items() if k != "digest"}) for r in rows])
    assert (found.exit_code, found.verdict) == (CONFORMANT, "conformant but for waivers")
    assert "conformant but for waivers" in badge.svg(found) and "#dfb317" in badge.svg(found)
    assert json.loads(badge.shields(found))["color"] == "yellow"
    marks = matrix.matrix([matrix.Column("any", found)])
    assert ["rsqrt", "w"] in [row[:2] for row in marks]
    only = Report(header | {"selected": 1}, [r for r in found.rows if "waived" in r.facts][:1])
    assert only.exit_code == 3, "waived rows alone are no success"


def test_one_failure_that_is_not_waived_fails(failing, ran):
    assert ran(failing[1:])[0] == 1


def test_a_waived_case_that_passes_is_an_unexpected_pass(failing, ran, capsys):
    code, path = ran(failing, Correct())
    assert code == 1
    rows = [row for row in records(path) if row.get("id") in failing]
    assert {row["outcome"] for row in rows} == {"unexpected pass"}
    text = "it comes to pass; waived as mismatch [compare] (one step): remove the waiver"
    assert text in capsys.readouterr().out
    assert verify(path, 0).exit_code == 0


@pytest.mark.parametrize("change", [{"phase": "execute"}, {"outcome": "error"}])
def test_a_waived_case_that_fails_otherwise_keeps_its_outcome(change, failing, ran, capsys):
    code, path = ran(failing, **change)
    assert code == 1
    rows = [row for row in records(path) if row.get("id") in failing]
    assert {row["outcome"] for row in rows} == {"mismatch"}
    assert "waived as" in rows[0]["message"] and "and it is that no more" in rows[0]["message"]


@pytest.mark.parametrize(
    ("waivers", "text"),
    [
        ([{"id": "add-0"}], "there is no case add-0"),
        ([{"id": "add-0"}, {"id": "add-0"}], "add-0 is waived twice"),
        ([{"id": "add-0", "expires": "2020-02-29"}], "add-0 expired on 2020-02-29"),
        ([{"id": "add-0", "expires": '"soon"'}], "expires is no date"),
        ([{"id": "add-0", "outcome": "pass"}], "'pass' cannot be waived; known: mismatch"),
        ([{"id": "add-0", "phase": "lunch"}], "unknown phase 'lunch'; known: load"),
        ([{"id": "add-0", "reason": " "}], "a waiver needs a reason"),
        ([{"id": "add-0", "why": "x"}], "it must say id, outcome, phase, reason, expires"),
    ],
)
def test_a_waiver_that_does_not_fit_is_a_mistake_in_the_call(
    waivers, text, installed, tmp_path, capsys
):
    installed(Correct())
    file = toml(tmp_path / "waivers.toml", *(FIELDS | waiver for waiver in waivers))
    run = ["run", "--backend", "any", "--jobs", "0", "--programs", "0", "-k", WORDS]
    assert main([*run, "--waivers", str(file)]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.toml", "waiver = 1", "[[waiver]] tables and nothing else"),
        ("a.toml", "[[waivers]]", "[[waiver]] tables and nothing else"),
        ("a.toml", "[[", "a.toml: "),
        ("a.json", "[]", "[[waiver]] tables and nothing else"),
    ],
)
def test_what_is_no_file_of_waivers_is_refused(name, content, text, tmp_path):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_waivers(tmp_path / name)
    assert text in str(caught.value)
    with pytest.raises(UsageError, match="No such file"):
        read_waivers(tmp_path / "none.toml")


def test_json_says_the_same_as_toml_and_the_last_day_counts(tmp_path):
    waiver = {"id": "add-0"} | FIELDS
    (tmp_path / "a.json").write_text(json.dumps({"waiver": [waiver]}), encoding="utf-8")
    found = read_waivers(tmp_path / "a.json", datetime.date.fromisoformat(LATER))
    assert found == read_waivers(toml(tmp_path / "a.toml", waiver)) == (Waiver(**waiver),)
    day = datetime.date.fromisoformat(LATER) + datetime.timedelta(days=1)
    with pytest.raises(UsageError, match="expired on"):
        read_waivers(tmp_path / "a.json", day)


def test_what_is_refused_within_the_claims_can_be_waived():
    row = Row("a-0", "a", "a()", (), (), Outcome.UNSUPPORTED, phase="compile", message="no")
    waiver = Waiver("a-0", "unsupported", "compile", "later", LATER)
    assert waiver.applied(row).outcome is Outcome.WAIVED
    elsewhere = waiver.applied(replace(row, claimed=False))
    assert elsewhere.outcome is Outcome.UNEXPECTED_PASS and elsewhere.failed


# --- verify ---


def unlisted(lines, failing):
    lines[0]["waivers"] = []


def otherwise(lines, failing):
    lines[0]["waivers"][0]["outcome"] = "crash"


def twice(lines, failing):
    lines[0]["waivers"].append(lines[0]["waivers"][0])


def expired(lines, failing):
    lines[0]["waivers"][0]["expires"] = "2020-02-29"


def passed(lines, failing):
    for line in lines:
        if line.get("id") == failing[0]:
            line |= {"outcome": "pass", "phase": "", "message": "", "facts": {}}
    lines[-1]["outcomes"]["pass"] += 1
    lines[-1]["outcomes"]["waived"] -= 1


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (unlisted, "is waived, and the header has no waiver for it"),
        (otherwise, "is waived for something else than its waiver says"),
        (twice, "a case is waived twice"),
        (expired, "expired on 2020-02-29: run again"),
        (passed, "has a waiver, does not fail, and is no unexpected pass"),
    ],
)
def test_verify_knows_waivers(edit, text, failing, ran):
    _, path = ran(failing)
    lines = records(path)
    edit(lines, failing)
    rewritten(path, lines, resealed=True)
    found = verify(path, 0)
    assert found.exit_code == 1
    assert text in "\n".join(found.wrong)
