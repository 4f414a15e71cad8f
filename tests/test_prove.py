"""What `make prove` runs, and that the page of the matrix shows what it ended with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))
import prove
from prove import Result, Stage

DONE = Result("ref", "attempted 2/2: 2 pass; conformant", 0, 61, "0123abcd", "2026-01-02", "one, 2")


def test_the_page_shows_the_published_results() -> None:
    page = prove.PAGE.read_text(encoding="utf-8")
    shown = page.partition(prove.BEGIN)[2].partition(prove.END)[0].strip()
    assert shown == prove.table(prove.read(prove.PUBLISHED)).strip()


def test_a_row_says_what_where_when_and_whether_it_failed() -> None:
    assert prove.table([DONE]).splitlines()[-1] == (
        "| ref | attempted 2/2: 2 pass; conformant | 1.0 | 0123abcd | 2026-01-02, one, 2 |"
    )


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(code: int, text: str) -> Stage:
        return Stage(1, ("-c", f"print('some\\n{text}'); raise SystemExit({code})"))

    monkeypatch.setattr(prove, "STAGES", {"good": ends(0, "2 passed"), "bad": ends(1, "1 failed")})
    monkeypatch.setattr(prove, "_commit", lambda: "0123abcd")


def test_stages_are_run_in_order_with_an_estimate_and_the_worst_code(
    stages: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove.main(tmp_path, [], publish=False) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "[1/2] good: about 1 min, all about 2 min"
    assert out[1].startswith("[1/2] good: 2 passed (") and out[3].startswith("[2/2] bad: 1 failed")
    assert [(r.stage, r.code) for r in prove.read(tmp_path / "proof.json")] == [
        ("good", 0),
        ("bad", 1),
    ]


def test_what_passed_on_the_same_commit_is_not_run_again_and_what_failed_is(
    stages: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prove.main(tmp_path, [], publish=False)
    capsys.readouterr()
    assert prove.main(tmp_path, [], publish=False) == 1
    out = capsys.readouterr().out
    assert "[1/2] good: 2 passed (before)" in out and "[2/2] bad: about 1 min, all about 1" in out


def test_a_stage_imports_its_packages_and_what_was_on_the_path_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[object] = []

    def installed(place: Path, packages: object) -> str:
        wanted.append((place, packages))
        return "beside"

    code = "import os; print(os.environ['PYTHONPATH'].replace(os.pathsep, ' '))"
    stage = Stage(1, ("-c", code), {"PYTHONPATH": "host"}, packages=("one", "two"))
    monkeypatch.setattr(prove, "STAGES", {"stage": stage})
    monkeypatch.setattr(prove, "_installed", installed)
    monkeypatch.setenv("PYTHONPATH", "mine")
    prove.main(tmp_path, [], publish=False)
    (result,) = prove.read(tmp_path / "proof.json")
    assert result.headline == "beside host mine"
    assert wanted == [(tmp_path / "packages", ("one", "two"))]


def test_intels_runtime_is_what_the_backend_names() -> None:
    names = [need.partition(";")[0] for need in prove.intel()]
    assert names == ["intel-opencl-rt", "intel-cmplr-lib-rt"]
    assert {n for n, s in prove.STAGES.items() if s.packages} == {"intel", "coop-intel"}


def test_an_unknown_stage_is_named_with_those_that_there_are(
    stages: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove.main(tmp_path, ["goof"], publish=False) == 2
    assert "goof; there are good, bad" in capsys.readouterr().out
