"""Reports: the published schema, equal bytes for equal runs, and edits that verify rejects."""

from __future__ import annotations

import json
import re
from importlib import resources

import jsonschema
import pytest
from impostors import Failing, Little, Modest, Zeros
from report_files import records, rewritten, without_times
from suite_settings import setting_of

from ptir.errors import UsageError
from ptir_testsuite.cli import main
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant
from ptir_testsuite.reports.report import Report
from ptir_testsuite.reports.verify import verify
from ptir_testsuite.running.execute import run_case
from ptir_testsuite.running.finding import item_of
from ptir_testsuite.running.outcomes import PHASES, Outcome, Row

pytestmark = [pytest.mark.usefixtures("few_ops"), pytest.mark.turns(2)]

SCHEMA = json.loads(
    resources.files("ptir_testsuite.reports")
    .joinpath("report.schema.json")
    .read_text(encoding="utf-8")
)
RUN = ("run", "--backend", "any", "--jobs", "0", "--programs", "4", "--json")
MUTANT = "rsqrt by one Newton step"
WORDS = "(rsqrt and f32) or composite-gelu or program- or (add and refusal)"


@pytest.fixture
def report(installed, tmp_path):
    """Writes the report of a backend and returns its path."""

    def written(backend, words=WORDS, name="report.jsonl"):
        installed(backend)
        main([*RUN, str(tmp_path / name), "-k", words])
        return tmp_path / name

    return written


@pytest.mark.parametrize(
    "backend",
    [Correct(), Mutant(MUTANTS[MUTANT]), Little(), Modest(), Failing(), Zeros()],
    ids=lambda backend: backend.name,
)
def test_every_line_is_as_the_schema_says(backend, report):
    validator = jsonschema.Draft202012Validator(SCHEMA)
    lines = records(report(backend))
    for line in lines:
        errors = [error.message for error in validator.iter_errors(line)]
        assert not errors, errors
    assert [lines[0]["kind"], lines[1]["kind"], lines[-1]["kind"]] == ["header", "case", "footer"]


def test_the_schema_knows_every_outcome_and_phase_and_nothing_else(report):
    row = SCHEMA["$defs"]["row"]["properties"]
    assert row["outcome"]["enum"] == [outcome.value for outcome in Outcome]
    assert row["phase"]["enum"] == ["", *PHASES]
    validator = jsonschema.Draft202012Validator(SCHEMA)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    line = records(report(Correct()))[1]
    for odd in ({"outcome": "fine"}, {"phase": "lunch"}, {"extra": 1}, {"worst_ulp": -1}):
        assert not validator.is_valid(line | odd), odd
    assert not validator.is_valid({k: v for k, v in line.items() if k != "message"})


def test_a_row_comes_back_from_its_record_and_nothing_else_is_one():
    row = run_case(item_of("rsqrt-24b96322fc22"), setting_of(Correct()))
    record = json.loads(json.dumps(row.record()))
    assert Row.of(record).record() == record
    with pytest.raises(UsageError, match="a row has other fields than a report's: extra"):
        Row.of(record | {"extra": 1})
    with pytest.raises(UsageError, match="'fine' is no outcome"):
        Row.of(record | {"outcome": "fine"})


def test_a_mismatch_holds_the_bits_of_both_elements(report):
    rows = [r for r in records(report(Mutant(MUTANTS[MUTANT]))) if r.get("outcome") == "mismatch"]
    facts = rows[0]["facts"]
    assert (facts["expected_hex"], facts["actual_hex"]) == ("0x3f3504f3", "0x3f350517")


def test_two_runs_of_one_seed_differ_in_times_only(report):
    found = [report(Mutant(MUTANTS[MUTANT]), name=name) for name in ("a.jsonl", "b.jsonl")]
    assert without_times(found[0]) == without_times(found[1])
    texts = [re.sub(r'"seconds": [^,]*, ', "", p.read_text(encoding="utf-8")) for p in found]
    assert texts[0] == texts[1] and '"seconds"' not in texts[0]


# --- verify ---


def edited(lines):
    lines[2]["message"] = "nothing to see"


def improved(lines):
    lines[1] |= {"outcome": "pass", "phase": "", "message": ""}


def removed(lines):
    del lines[3]


def added(lines):
    lines.insert(3, {**lines[3], "id": "rsqrt-000000000000"})


def swapped(lines):
    lines[2], lines[3] = lines[3], lines[2]


def footer_edited(lines):
    lines[-1] |= {"verdict": "conformant", "exit_code": 0}


def header_edited(lines):
    lines[0]["device"] = "a better one"


EDITS = (edited, improved, removed, added, swapped, footer_edited, header_edited)


def test_a_report_as_written_is_believed(report, capsys):
    path = report(Mutant(MUTANTS[MUTANT]))
    assert main(["verify", str(path), "--again", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{path}: believed"


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_rejected(edit, report, capsys):
    path = report(Mutant(MUTANTS[MUTANT]))
    lines = records(path)
    edit(lines)
    rewritten(path, lines)
    capsys.readouterr()
    assert main(["verify", str(path), "--again", "0"]) == 1
    out = capsys.readouterr().out
    assert "its digest is not that of the lines up to it" in out and "rejected" in out


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (improved, "the footer says outcomes"),
        (removed, "the rows are not those that the header selects"),
        (added, "the rows are not those that the header selects"),
        (swapped, "the rows are not those that the header selects"),
        (footer_edited, "the footer says verdict 'conformant', and the rows say 'not conformant'"),
    ],
)
def test_an_edit_with_new_digests_is_rejected_too(edit, text, report):
    path = report(Mutant(MUTANTS[MUTANT]))
    lines = records(path)
    edit(lines)
    rewritten(path, lines, resealed=True)
    found = verify(path, 0)
    assert found.exit_code == 1
    assert text in "\n".join(found.wrong)


def test_a_row_left_out_everywhere_is_missed_in_the_corpus(report):
    from ptir_testsuite.reports.provenance import digest_of

    path = report(Correct(), "rsqrt and f32")
    header, *rows, _ = records(path)
    del rows[2]
    header |= {"selected": len(rows), "items": digest_of(row["id"] for row in rows)}
    wanted = Report(header, [Row.of({k: v for k, v in r.items() if k != "digest"}) for r in rows])
    rewritten(path, [header, *rows, wanted.footer()], resealed=True)
    found = verify(path, 0)
    assert found.wrong == [
        "the header says selected 20, and the corpus says 21",
        "the rows are not those that the corpus has for this selection",
    ]


def test_an_invented_row_is_found_by_running_it_again(capsys, tmp_path):
    path = tmp_path / "report.jsonl"
    assert main(["run", "--backend", "ref", "-k", "rsqrt and f16", "--json", str(path)]) == 3
    lines = records(path)
    assert verify(path, 100).exit_code == 0
    lines[1]["worst_ulp"] = 0.125
    rewritten(path, lines, resealed=True)
    found = verify(path, 100)
    assert found.exit_code == 1
    assert f"{lines[1]['id']}: the report says worst_ulp 0.125; run again it is" in found.wrong[0]


def test_an_unfinished_report_is_rejected(report):
    path = report(Correct(), "rsqrt and f32")
    rewritten(path, records(path)[:-1])
    assert verify(path, 0).wrong == [
        "there is no footer: the run is unfinished, or its end was cut off"
    ]


def test_a_report_of_another_corpus_cannot_be_checked_in_full(report):
    path = report(Correct(), "rsqrt and f32")
    header, *rest = records(path)
    rewritten(path, [header | {"corpus": "0" * 32}, *rest], resealed=True)
    found = verify(path, 0)
    assert found.exit_code == 3 and "this suite has another corpus" in found.open[0]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hello\n", "not a line of JSON"),
        ("[1]\n", "it has no kind"),
        ('{"a": 1}\n', "the first line is not a header"),
        ('{"kind": "header", "schema": 2}\n', "schema 2; this suite reads 4; run the suite again"),
        ('{"kind": "case"}\n', "the first line is not a header"),
    ],
)
def test_what_is_no_report_is_a_mistake_in_the_call(content, text, tmp_path, capsys):
    path = tmp_path / "odd.jsonl"
    path.write_text(content, encoding="utf-8")
    assert main(["verify", str(path)]) == 2
    assert text in capsys.readouterr().err


# --- replay ---


def replayed(arguments, capsys):
    code = main(["replay", *arguments])
    return code, capsys.readouterr().out


def test_a_failing_row_is_told_in_full_from_its_id(report, capsys, monkeypatch):
    from ptir_testsuite.running import replay

    rows = records(report(Mutant(MUTANTS[MUTANT]), "rsqrt and f32 and sample"))
    failing = next(row for row in rows if row.get("outcome") == "mismatch")

    def here(items, order, jobs, timeout):
        return [run_case(item, setting_of(Mutant(MUTANTS[MUTANT]))) for item in items]

    monkeypatch.setattr(replay, "run_in_processes", here)
    code, out = replayed([failing["id"], "--backend", "any"], capsys)
    assert code == 1
    for text in (
        "call: rsqrt(f32[5])",
        "rule: f32[5]: 2 ULP",
        "%1 = rsqrt(%0) : f32[5]",
        "input 0: f32[5] [2, ",
        "expected (oracle) 0: f32[5] [0.707106769, ",
        "got 0: f32[5] [0.707108915, ",
        "outcome: mismatch [compare]",
        f"  case {failing['id']}",
    ):
        assert text in out, text


@pytest.mark.parametrize(
    ("id", "texts"),
    [
        ("program-0-1", ("program 1 of seed 0", "input 0: f32[2,2,2] [", "got 1: i32[2,2] [")),
        ("composite-gelu-0", ("call: gelu(", "expected (formula): [", "worst error: ")),
        ("add-refusal", ("rule: it breaks 'dtype'", "expected: TypeRuleError")),
    ],
)
def test_every_kind_of_row_is_replayed(id, texts, capsys):
    if id == "add-refusal":
        from ptir.ops import OPS
        from ptir_testsuite.running.kinds.refusals import refusals

        id = next(refusals([OPS["add"]])).id
    code, out = replayed([id, "--backend", "ref"], capsys)
    assert code == 0, out
    assert all(text in out for text in (*texts, "outcome: pass")), out


@pytest.mark.parametrize(
    ("id", "text"),
    [
        ("ad-0123456789ab", "there is no op 'ad'"),
        ("add-0123456789ab", "is not in the corpus of this version of the suite"),
        ("composite-gelu-99", "the nearest are: composite-gelu-"),
    ],
)
def test_an_unknown_id_is_a_mistake_in_the_call(id, text, capsys):
    assert main(["replay", id, "--backend", "ref"]) == 2
    assert text in capsys.readouterr().err
