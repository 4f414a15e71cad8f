"""What `make prove` runs, and that the page of the matrix shows what it ended with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def only(monkeypatch: pytest.MonkeyPatch, code: str, **facts: Any) -> None:
    """One stage, called ``it``, of some code."""
    monkeypatch.setattr(prove, "STAGES", {"it": Stage(1, ("-c", code), **facts)})
    monkeypatch.setattr(prove, "_commit", lambda: "0123abcd")


def headline(folder: Path) -> str:
    (result,) = prove.read(folder / "proof.json")
    return result.headline


def test_a_stage_takes_nothing_of_ptir_from_whoever_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PTIR_SLICE", "PTIR_SCHEDULE", "OCL_ICD_VENDORS"):
        monkeypatch.setenv(name, "5")
    names = "print([n for n in os.environ if n.startswith(('PTIR_', 'OCL_'))])"
    only(monkeypatch, f"import os\n{names}", environment={"PTIR_OWN": "1"})
    assert prove.main(tmp_path, [], publish=False) == 0
    assert headline(tmp_path) == "['PTIR_OWN']"


REPORTING = """
import os, sys
resumed, path = "--resume" in sys.argv, sys.argv[sys.argv.index("--json") + 1]
print("resumed" if resumed else "begun")
open(path, "a").write("row")
sys.exit(int(os.environ["ENDS"]))
"""


def test_an_interrupted_report_goes_on_and_a_failed_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for commit, ends in (("aa", 3), ("aa", 1), ("aa", 0), ("aa", 0), ("bb", 3), ("cc-dirty", 3)):
        only(monkeypatch, REPORTING, environment={"ENDS": str(ends)}, report=True)
        monkeypatch.setattr(prove, "_commit", lambda commit=commit: commit)
        assert prove.main(tmp_path, [], publish=False) == ends
        said.append(headline(tmp_path))
    assert said == ["begun", "resumed", "begun", "begun", "begun", "begun"]
    assert (tmp_path / "it-failed.jsonl").read_text() == "rowrow"
    assert prove.main(tmp_path, [], publish=False) == 3
    assert headline(tmp_path) == "begun"


def test_a_stage_that_a_signal_ended_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert prove.main(tmp_path, [], publish=False) == 128 + 9


def test_packages_that_cannot_be_installed_fail_their_stage_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Stage(1, ("-c", "print('ran')"), packages=(str(tmp_path / "no-such.whl"),))
    monkeypatch.setattr(prove, "STAGES", {"one": absent, "two": Stage(1, ("-c", "print('2')"))})
    monkeypatch.setattr(prove, "_commit", lambda: "0123abcd")
    assert prove.main(tmp_path, [], publish=False) == 1
    first, second = prove.read(tmp_path / "proof.json")
    assert "no-such.whl" in (tmp_path / "one.log").read_text() and first.code == 1
    assert (second.headline, second.code) == ("2", 0)


def test_without_a_commit_nothing_is_run(
    stages: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def no_git() -> str:
        raise FileNotFoundError("no git")

    monkeypatch.setattr(prove, "_commit", no_git)
    assert prove.main(tmp_path, [], publish=False) == 2
    assert capsys.readouterr().out.strip() == "git does not say which commit this is: no git"


def test_what_is_published_stands_on_the_page_and_beside_it(
    stages: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, data = tmp_path / "matrix.md", tmp_path / "published.json"
    page.write_text(f"before\n{prove.BEGIN}\nold\n{prove.END}\nafter\n", encoding="utf-8")
    monkeypatch.setattr(prove, "PAGE", page)
    monkeypatch.setattr(prove, "PUBLISHED", data)
    prove.main(tmp_path / "proof", ["good"], publish=True)
    (result,) = prove.read(data)
    text = page.read_text(encoding="utf-8")
    assert result.headline == "2 passed" and prove.table([result]) in text and "old" not in text
    assert text.startswith("before\n") and text.endswith("after\n")


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


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Commits a change of a file; what comes back is the commit."""
    git = ("git", "-c", "user.name=ptir", "-c", "user.email=ptir@example.org", "-C", str(tmp_path))
    subprocess.run((*git, "init", "-q"), check=True)

    def changed(name: str) -> str:
        with (tmp_path / name).open("a") as file:
            file.write("line\n")
        subprocess.run((*git, "add", name), check=True)
        subprocess.run((*git, "commit", "-q", "-m", name), check=True)
        return prove._commit()

    monkeypatch.setattr(prove, "ROOT", tmp_path)
    monkeypatch.setattr(prove, "PUBLISHED", tmp_path / "published.json")
    return changed


def test_what_reads_nothing_that_changed_is_not_run_again(
    repository: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(1, ("-c", "print('ran')"), reads=("code",))
    monkeypatch.setattr(prove, "STAGES", {"it": stage})
    repository("code")
    first = repository("page")

    def commit_of_the_result(folder: str) -> str:
        assert prove.main(tmp_path / folder, [], publish=False) == 0
        (result,) = prove.read(tmp_path / folder / "proof.json")
        return result.commit

    assert commit_of_the_result("one") == first
    second = repository("page")
    assert commit_of_the_result("one") == first  # no code has changed
    assert commit_of_the_result("two") == second  # another folder knows of nothing
    (tmp_path / "published.json").write_text((tmp_path / "one/proof.json").read_text())
    assert commit_of_the_result("three") == first  # it is published
    assert repository("code") == commit_of_the_result("one")
    monkeypatch.setattr(prove, "_commit", lambda: "abcd-dirty")
    assert commit_of_the_result("one") == "abcd-dirty"


def test_a_stage_imports_its_packages_and_what_was_on_the_path_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[object] = []

    def installing(place: Path, packages: object) -> list[str]:
        wanted.append((place, packages))
        return [sys.executable, "-c", "print('installed')"]

    code = "import os; print(os.environ['PYTHONPATH'].replace(os.pathsep, ' '))"
    stage = Stage(1, ("-c", code), {"PYTHONPATH": "host"}, packages=("one", "two"))
    monkeypatch.setattr(prove, "STAGES", {"stage": stage})
    monkeypatch.setattr(prove, "_installing", installing)
    monkeypatch.setattr(prove, "_importable", lambda place: "beside")
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
