"""What somebody may do to a report who computes its digests and its footer anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from impostors import Unsociable
from report_files import records, rewritten

from ptir.backend import Target, registry
from ptir.errors import PluginError, UsageError
from ptir_testsuite.cli import main
from ptir_testsuite.corpus.programs import drawn_program
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant
from ptir_testsuite.reports.files import read
from ptir_testsuite.reports.provenance import digest_of
from ptir_testsuite.reports.report import Report
from ptir_testsuite.reports.verify import rejections, verify
from ptir_testsuite.running.kinds.programs import digest_of as program_digest
from ptir_testsuite.running.outcomes import Row

pytestmark = [pytest.mark.usefixtures("few_ops"), pytest.mark.turns(2)]

OTHER_PROGRAM = "the row is of another program than the one of this number"
WORDS = "(rsqrt and f32) or composite-gelu or program- or (add and refusal)"
RUN = ("run", "--backend", "ref", "--programs", "8", "-k", WORDS, "--jobs", "0", "--json")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The lines of a report of the reference as it was written."""
    path = tmp_path_factory.mktemp("honest") / "report.jsonl"
    assert main([*RUN, str(path)]) == 3
    return records(path)


def forged(lines, path, interrupted=False):
    """The lines with a footer and digests as the suite would have written them."""
    header, *rows = ({k: v for k, v in line.items() if k != "digest"} for line in lines[:-1])
    ids = [row["id"] for row in rows]
    header |= {"items": digest_of(ids)}
    report = Report(header, [Row.of(row) for row in rows])
    report.interrupted = interrupted
    rewritten(path, [header, *rows, report.footer()], resealed=True)
    return path


def copied(lines):
    return json.loads(json.dumps(lines))


def changed(lines, number, name, value, path):
    """The report with another value in one line; the counts and rows are not run again."""
    lines = copied(lines)
    lines[number][name] = value
    return verify(forged(lines, path / "report.jsonl"), 0)


def test_an_honest_report_is_believed_whatever_it_holds(honest, tmp_path):
    path = forged(copied(honest), tmp_path / "report.jsonl")
    found = verify(path, 1000)
    assert (found.wrong, found.open) == ([], [])
    assert (
        found.checked[-1]
        == f"{len(honest) - 2} of {len(honest) - 2} rows, drawn at random, run again"
    )


HEADERS = {
    "total": (18, "the header says total 18, and the corpus says "),
    "narrowed": (True, "the header says total "),
    "selected": (99, "the header says selected 99, and the corpus says "),
    "relaxations": (["nosuch"], "the header has a relaxation 'nosuch'; there are "),
    "programs": ([0, 0, 10**12], "the header has 1000000000000 random programs among "),
}


@pytest.mark.slice(3)
@pytest.mark.parametrize("name", HEADERS)
def test_what_the_header_counts_is_counted_again(name, honest, tmp_path):
    value, text = HEADERS[name]
    found = changed(honest, 0, name, value, tmp_path)
    assert found.exit_code == 1 and text in found.wrong[0], found


def test_other_bounds_cannot_be_checked_here(honest, tmp_path):
    found = changed(honest, 0, "accuracy", "0" * 32, tmp_path)
    assert found.exit_code == 3 and "this suite has another accuracy" in found.open[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("version", "7"), ("spec", "9.9"), ("suite", "9.9"), ("correctly_rounded", [])],
)
def test_what_the_header_says_of_the_same_code_is_what_the_code_says(name, value, honest, tmp_path):
    lines = copied(honest)
    lines[0][name] = value
    found = verify(forged(lines, tmp_path / "report.jsonl"), 1)
    assert found.exit_code == 1 and f"the header says {name} {value!r}" in found.wrong[0]


def test_a_claim_left_out_is_missed(honest, tmp_path):
    """Rows outside the claims may be refused, so a report must not choose what is claimed."""
    lines = copied(honest)
    lines[0]["profiles"].remove("f16")
    for row in lines[1:-1]:
        row["claimed"] = "f16" not in row["profiles"]
        if row["op"] == "program" and row["facts"]:  # what is drawn depends on the claims
            seed, number = map(int, row["id"].split("-")[1:])
            drawn = drawn_program(seed, number, frozenset(lines[0]["profiles"]))
            row["facts"]["program"] = program_digest(drawn)
    found = verify(forged(lines, tmp_path / "report.jsonl"), 1)
    assert found.exit_code == 1 and "the header says profiles [" in found.wrong[0]


ROWS = {
    "op": ("add", "the row says op 'add'; it is 'rsqrt'"),
    "call": ("add(f64[9])", "the row says call 'add(f64[9])'; it is 'rsqrt("),
    "dtypes": (["f64"], "the row says dtypes ('f64',); it is ('f32',)"),
    "profiles": ([], "the row says profiles (); it is ('core',)"),
    "claimed": (False, "the row says claimed False; it is True"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_of_what_the_corpus_has_under_its_id(name, honest, tmp_path):
    value, text = ROWS[name]
    found = changed(honest, 1, name, value, tmp_path)
    assert found.exit_code == 1 and text in found.wrong[0], found


@pytest.mark.parametrize("facts", [{"program": "0" * 12}, {}], ids=["another", "none"])
def test_a_program_is_the_one_of_its_number(facts, honest, tmp_path):
    number = next(n for n, line in enumerate(honest) if line.get("id") == "program-0-3")
    found = changed(honest, number, "facts", facts, tmp_path)
    assert found.wrong == [f"program-0-3: {OTHER_PROGRAM}"]


def test_a_row_of_a_lost_process_says_no_program(honest, tmp_path):
    lines = copied(honest)
    row = next(line for line in lines if line.get("id") == "program-0-3")
    row |= {"outcome": "timeout", "phase": "execute", "message": "no answer", "facts": {}}
    found = verify(forged(lines, tmp_path / "report.jsonl"), 0)
    assert found.wrong == []


def test_invented_and_moved_rows_of_an_interrupted_run_are_found(honest, tmp_path):
    path, wrong = tmp_path / "report.jsonl", "the rows are not those that the corpus has for"
    assert verify(forged(copied(honest), path, interrupted=True), 3).exit_code == 0
    lines = copied(honest)
    lines[1]["id"] = "rsqrt-000000000000"
    assert wrong in verify(forged(lines, path, interrupted=True), 3).wrong[0]
    lines = copied(honest)
    lines[1:3] = lines[2:0:-1]
    assert wrong in verify(forged(lines, path, interrupted=True), 3).wrong[0]
    lines = copied(honest)
    del lines[4]
    assert verify(forged(lines, path, interrupted=True), 3).exit_code == 0


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("number", 1, "ref: no device '1'"),
        ("backend", "cuda", "unknown backend 'cuda'"),
        ("device", "another", "another device here than in the report"),
        (
            "code",
            {"ptir": "", "ptir_testsuite": ""},
            "another code here than in the report (ptir differs, ptir_testsuite differs)",
        ),
        ("files", {}, "another code here than in the report (ptir_backend_ref/__init__.py is new"),
        ("dependencies", {"numpy": "1.0"}, "numpy was 1.0 and is "),
    ],
)
def test_what_cannot_be_run_again_is_not_believed(name, value, text, honest, tmp_path):
    """Nothing else proves what rows came to, and a forger chooses what the header says."""
    lines = copied(honest)
    lines[0][name] = value
    found = verify(forged(lines, tmp_path / "report.jsonl"))
    assert found.exit_code == 3 and text in found.open[0] and not found.wrong, found
    assert verify(forged(lines, tmp_path / "report.jsonl"), 0).exit_code == 0


def test_nothing_is_imported_because_a_report_says_so(honest, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil_ops.py").write_text("raise SystemExit(0)\n", encoding="utf-8")
    lines = copied(honest)
    lines[0]["imports"] = ["evil_ops"]
    path = forged(lines, tmp_path / "report.jsonl")
    assert main(["verify", str(path)]) == 3
    assert "it rests on modules of yours; verify with --import evil_ops" in capsys.readouterr().out


def test_an_import_that_fails_is_a_mistake_in_the_call(capsys):
    for command in (
        ["run", "--backend", "ref"],
        ["coverage"],
        ["replay", "add-0", "--backend", "ref"],
    ):
        assert main([*command, "--import", "no_such_module"]) == 2
        assert "--import no_such_module: ModuleNotFoundError: " in capsys.readouterr().err


# --- waivers ---


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"outcome": "pass"}, "waivers[0].outcome must be one of"),
        ({"phase": "lunch"}, "waivers[0].phase must be one of"),
        ({"reason": " "}, "waivers[0].reason must match pattern"),
        ({"expires": 5}, "waivers[0].expires must be string"),
        ({"expires": "2031-02-30"}, "waivers[0].expires must be date"),
        ({"expires": "2020-01-01"}, "expired on 2020-01-01"),
        ({"id": "nosuch-0"}, "there is no case nosuch-0"),
    ],
)
def test_a_waiver_of_a_header_is_held_to_what_one_of_a_file_is(change, text, honest, tmp_path):
    waiver = {"id": "add-0", "outcome": "mismatch", "phase": "compare", "reason": "r"}
    lines = copied(honest)
    lines[0]["waivers"] = [{**waiver, "expires": "2031-01-31", **change}]
    path = forged(lines, tmp_path / "report.jsonl")
    if "must" in text:
        with pytest.raises(UsageError) as refused:
            read(path)
        assert text in str(refused.value)
    else:
        assert text in verify(path, 0).wrong[0]


def test_what_rests_on_an_expired_waiver_gets_no_badge(honest, tmp_path, capsys):
    waiver = {"id": "add-0", "outcome": "mismatch", "phase": "compare", "reason": "r"}
    lines = copied(honest)
    lines[0]["waivers"] = [{**waiver, "expires": "2020-01-31"}]
    path = forged(lines, tmp_path / "report.jsonl")
    assert "expired" in rejections(read(path))[0]
    assert main(["badge", str(path)]) == 2
    assert "expired on 2020-01-31" in capsys.readouterr().err


# --- lines that are none ---

ODD = {
    "a field of another type": ({"worst_ulp": "x"}, "worst_ulp must be number or null"),
    "a negative error": ({"worst_ulp": -5}, "worst_ulp must be bigger than or equal to 0"),
    "a number beyond all floats": ({"worst_ulp": 10**400}, "worst_ulp must be smaller"),
    "a phase of its own": ({"phase": "lunch"}, "phase must be one of"),
    "a list of facts": ({"facts": []}, "facts must be object"),
    "dtypes that are none": ({"dtypes": None}, "dtypes must be array"),
    "an id that is a list": ({"id": ["a"]}, "id must be string"),
    "an outcome of its own": ({"outcome": "fine"}, "outcome must be one of"),
    "another field": ({"more": 1}, "must not contain {'more'} properties"),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("command", ["verify", "matrix", "badge"])
def test_a_line_is_held_to_the_schema(name, command, honest, tmp_path, capsys):
    change, text = ODD[name]
    lines = copied(honest)
    lines[2] |= change
    path = tmp_path / "report.jsonl"
    rewritten(path, lines, resealed=True)
    assert main([command, str(path)]) == 2
    err = capsys.readouterr().err
    assert f"{path}:3: not as report.schema.json says: {text}" in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"kind": "case", "worst_ulp": NaN}', "NaN is no number of JSON"),
        ('{"kind": "case", "kind": "footer"}', "'kind' is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"kind": "case", "id": "\\ud800"}', "surrogates not allowed"),
        ('{"kind": "note"}', "its kind is 'note', and must be one of header, case, footer"),
    ],
)
def test_what_no_line_can_be_is_refused_by_its_number(text, said, honest, tmp_path):
    path = tmp_path / "report.jsonl"
    rewritten(path, honest[:2])
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    with pytest.raises(UsageError) as refused:
        read(path)
    assert f"{path}:3: " in str(refused.value) and said in str(refused.value)


@pytest.mark.parametrize("field", ["backend", "imports", "waivers", "programs", "total", "code"])
def test_a_header_says_everything(field, honest, tmp_path):
    lines = copied(honest)
    del lines[0][field]
    path = tmp_path / "report.jsonl"
    rewritten(path, lines, resealed=True)
    with pytest.raises(UsageError, match=r"must contain .* properties"):
        read(path)


# --- going on with a file ---


def test_an_edit_is_not_sealed_by_going_on(installed, tmp_path, capsys):
    installed(Mutant(MUTANTS["rsqrt by one Newton step"]))
    path = tmp_path / "report.jsonl"
    again = ["run", "--backend", "any", "-k", "rsqrt and f32", "--jobs", "0", "--json", str(path)]
    assert main(again) == 1
    lines = records(path)
    wrong = next(line for line in lines if line.get("outcome") == "mismatch")
    wrong |= {"outcome": "pass", "phase": "", "message": "", "facts": {}}
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    capsys.readouterr()
    assert main([*again, "--resume"]) == 2
    err = capsys.readouterr().err.replace("\n", " ")
    assert "cannot be resumed: line " in err and "its digest is not that of" in err


@pytest.mark.parametrize("change", [{"id": "rsqrt-000000000000"}, {}])
def test_rows_of_other_cases_are_not_gone_on_with(change, installed, tmp_path, capsys):
    installed(Correct())
    path = tmp_path / "report.jsonl"
    again = ["run", "--backend", "any", "-k", "rsqrt and f32", "--jobs", "0", "--json", str(path)]
    assert main(again) == 3
    plain = [{k: v for k, v in line.items() if k != "digest"} for line in records(path)[:3]]
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in [*plain, plain[2] | change])
    assert main([*again, "--resume"]) == 2
    assert "is there twice, or of no case of this run" in capsys.readouterr().err.replace("\n", " ")


# --- honest reports ---


def test_a_timeout_is_one_under_another_limit(honest, tmp_path):
    from ptir_testsuite.reports.rerun import _said
    from ptir_testsuite.running.outcomes import Outcome

    row = Row("a-0", "a", "a()", (), (), Outcome.TIMEOUT, "execute", "no answer within 3 s")
    other = Row("a-0", "a", "a()", (), (), Outcome.TIMEOUT, "execute", "no answer within 60 s")
    assert _said(row) == _said(other)
    assert _said(row) != _said(Row("a-0", "a", "a()", (), (), Outcome.PASS))


def test_what_fails_beside_others_is_run_again_beside_them(monkeypatch, tmp_path, capsys):
    backend = Unsociable()
    monkeypatch.setattr(registry, "get", lambda name: Target(backend, backend.devices()[0]))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    monkeypatch.setenv("PTIR_TEST_IMPOSTOR", "Unsociable")
    path = tmp_path / "report.jsonl"
    command = ["programs", "--backend", "unsociable", "--count", "6", "--import", "impostor_worker"]
    assert main([*command, "--json", str(path)]) == 1
    out = capsys.readouterr().out
    assert "programs --seed 0 --first 0 --count 4 --backend unsociable:0" in out
    rows = {line["id"]: line for line in records(path) if line["kind"] == "case"}
    assert [id for id, row in rows.items() if row["outcome"] == "error"] == [
        "program-0-0",
        "program-0-4",
    ]
    found = verify(path, 2, imports=("impostor_worker",))
    assert not found.wrong, found


def test_a_defect_of_the_suite_is_no_verdict(honest, tmp_path, monkeypatch, capsys):
    """A fault of the suite ends with 2: 1 is what a wrong backend gets."""
    from ptir_testsuite.cli import reports

    def broken(*_):
        raise KeyError("lost")

    monkeypatch.setattr(reports, "verify", broken)
    path = forged(copied(honest), tmp_path / "report.jsonl")
    assert main(["verify", str(path)]) == 2
    assert "a defect of ptir-testsuite" in capsys.readouterr().err


def test_a_backend_that_is_refused_leaves_its_rows_open(honest, tmp_path, monkeypatch):
    def refused(name):
        raise PluginError(f"{name} claims 'nosuch'")

    path = forged(copied(honest), tmp_path / "report.jsonl")
    monkeypatch.setattr(registry, "get", refused)
    found = verify(path, 1)
    assert (found.exit_code, found.open) == (3, ["what the rows came to: ref:0 claims 'nosuch'"])


def test_programs_alone_have_no_column(tmp_path, capsys):
    path = tmp_path / "programs.jsonl"
    assert main(["programs", "--backend", "ref", "--count", "2", "--json", str(path)]) == 0
    assert main(["matrix", str(path)]) == 2
    assert "of random programs alone" in capsys.readouterr().err.replace("\n", " ")


def test_claims_that_no_case_lies_within_are_a_mistake_in_the_call(capsys):
    assert main(["run", "--backend", "ref", "--claims", "f16", "--programs", "3"]) == 2
    err = capsys.readouterr().err.replace("\n", " ")
    assert "no case of f16 needs these alone; write --claims core,f16" in err


def test_fuzz_of_nothing_is_incomplete(capsys):
    assert main(["fuzz", "--backend", "ref", "--count", "0"]) == 3
    assert "nothing was executed" in capsys.readouterr().out
