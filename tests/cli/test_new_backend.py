"""`ptir new-backend`: what it writes is the example under another name, and what it refuses."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from ptir.backend import registry
from ptir.cli.main import main
from ptir.cli.new_backend import LEVELS, LONGEST, rendered, write
from ptir.errors import CompileError
from tiny_distributions import TINY, Site, site

__all__ = ["site"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ptir-backend-toy"
Capture = pytest.CaptureFixture[str]


NAMED = "test_the_readme_names_the_profiles_that_are_claimed"
CACHES = {"__pycache__", ".ruff_cache", ".pytest_cache", ".mypy_cache"}


def files(folder: Path) -> dict[str, str]:
    found = [path for path in folder.rglob("*") if path.is_file() and not CACHES & {*path.parts}]
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in found}


def test_the_example_is_what_the_command_writes() -> None:
    again = "stale: remove examples/ptir-backend-toy, then `ptir new-backend toy` in examples"
    assert files(EXAMPLE) == rendered("toy"), again


@pytest.mark.parametrize("level", LEVELS)
def test_another_name_changes_nothing_but_the_name(level: str) -> None:
    renamed = {
        path.replace("toy", "my_gpu"): text.replace("backend_toy", "backend_my_gpu").replace(
            "toy", "my-gpu"
        )
        for path, text in rendered("toy", level).items()
    }
    made = rendered("my-gpu", level)
    assert made == renamed
    assert not [text for text in made.values() if re.search(r"@[a-z]+@", text)]


def test_levels_differ_in_the_module_and_where_it_is_named() -> None:
    made = {level: rendered("mine", level) for level in LEVELS}
    for level, files_of in made.items():
        (name,) = re.findall(r'mine = "ptir_backend_mine:(\w+)"', files_of["pyproject.toml"])
        module = files_of["ptir_backend_mine.py"]
        assert f"class {name}(" in module, level
        assert len(module.splitlines()) < {"interpreter": 80, "kernel": 200}[level]
    assert made["interpreter"] == rendered("mine")


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_said_of_it_stays_true_when_it_becomes_something_else(
    level: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was made from is told as its past; its own test holds the README to the claims."""
    made = rendered("mine", level)
    first, _, past = made["README.md"].partition("## Where it comes from")
    assert not re.search(r"NumPy|C\+\+|core profile", first)
    assert 'description = "The backend mine of ptir."' in made["pyproject.toml"]
    assert "It began as what `ptir new-backend` writes: " in past
    module = made["ptir_backend_mine.py"]
    assert module.startswith('"""The backend "mine" of ptir, which began as ')
    (name,) = re.findall(r"ptir_backend_mine:(\w+)", made["pyproject.toml"])
    site.add("ptir-backend-mine", registry.GROUP, f"mine = ptir_backend_mine:{name}", module)
    write(tmp_path / "mine", made)
    check = runpy.run_path(str(tmp_path / "mine" / "test_ptir_backend_mine.py"))[NAMED]
    check()
    backend = type(registry.get("mine").backend)
    monkeypatch.setattr(backend, "claims", backend.claims ^ {"core", "f64"})
    with pytest.raises(AssertionError):
        check()


def test_level_that_is_none_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main(["new-backend", "mine", str(tmp_path / "new"), "--level", "compiler"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "'compiler' is not one of 'interpreter', 'kernel'" in said
    assert not (tmp_path / "new").exists()


def test_files_are_written_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "my-gpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "name": "my-gpu",
        "distribution": "ptir-backend-my-gpu",
        "module": "ptir_backend_my_gpu",
        "folder": "ptir-backend-my-gpu",
        "files": list(rendered("my-gpu")),
    }
    assert files(tmp_path / "ptir-backend-my-gpu") == rendered("my-gpu")


def test_without_json_stdout_is_empty_and_the_next_steps_are_named(
    tmp_path: Path, capsys: Capture
) -> None:
    assert main(["new-backend", "mine", str(tmp_path / "there")]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "ptir-conformance run --backend mine" in printed.err
    assert files(tmp_path / "there") == rendered("mine")


def test_help_shows_its_own_options_and_the_others_are_taken(
    tmp_path: Path, capsys: Capture
) -> None:
    assert main(["new-backend", "--help"]) == 0
    shown = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert shown == ["--level", "--json", "--help"]
    assert main(["new-backend", "mine", str(tmp_path / "mine"), "--seed", "1", "--stats"]) == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["x", "a" * LONGEST, "ab-" + "c" * (LONGEST - 3)])
def test_what_is_written_is_formatted_and_clean_by_default(
    name: str, level: str, tmp_path: Path
) -> None:
    assert main(["new-backend", name, str(tmp_path / "new"), "--level", level]) == 0
    for check in (["format", "--check"], ["check"]):
        command = [sys.executable, "-m", "ruff", *check, "--isolated", "--no-cache"]
        done = subprocess.run([*command, str(tmp_path / "new")], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_refused_source_is_kept_and_what_the_compiler_says_is_cut(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    module = rendered("plain", "kernel")["ptir_backend_plain.py"]
    entry = "plain = ptir_backend_plain:CppBackend"
    site.add("ptir-backend-plain", registry.GROUP, entry, module)
    target = registry.get("plain")
    wrong = "\n".join(f"nothing {'x' * 300}{number};" for number in range(20))
    with pytest.raises(CompileError) as raised:
        target.backend.open(target.device).build(wrong)
    first, *said = str(raised.value).splitlines()
    kept = tmp_path / "cache" / "plain-refused.cpp"
    assert first == f"plain: `c++` refuses what is kept as {kept}:"
    assert kept.read_text("utf-8") == wrong
    assert said[0].startswith("kernels.cpp:1:1: error: ")
    assert len(said) == 10 and max(map(len, said)) == 200


REFUSED = {
    "": "'' is not a name for a backend",
    "My_GPU": "'My_GPU' is not a name for a backend: lower-case letters, digits and single hyphens"
    " between them, a letter first; 'my-gpu' is",
    "a--b": "; 'a-b' is",
    "a.b": "; 'a-b' is",
    "9th": "a letter first",
    "gpu-": "; 'gpu' is",
    "gpu:0": "; 'gpu-0' is",
    "../up": "; 'up' is",
    "größe": "is not a name for a backend",
    "a" * (LONGEST + 1): f"has {LONGEST + 1} characters; at most {LONGEST} are allowed",
    "cupy": "'cupy' is a backend of ptir itself; choose another name",
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_name_is_refused(name: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["new-backend", name, str(tmp_path / "new")]) == 2
    assert REFUSED[name] in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_name_of_an_installed_backend_or_distribution_is_refused(
    site: Site, tmp_path: Path, capsys: Capture
) -> None:
    site.backend("taken", TINY)
    site.backend("other", TINY, "ptir-backend-mine")
    for name, message in {
        "taken": "a backend 'taken' is installed by tiny-taken 1.0; choose another name",
        "mine": "ptir-backend-mine 1.0 is installed; choose another name",
    }.items():
        assert main(["new-backend", name, str(tmp_path / "new")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_folder_that_exists_is_left_alone(tmp_path: Path, capsys: Capture) -> None:
    there = tmp_path / "there"
    there.mkdir()
    assert main(["new-backend", "mine", str(there)]) == 2
    assert f"{there} exists already; name a folder" in capsys.readouterr().err
    assert list(there.iterdir()) == []
    assert main(["new-backend", "mine", str(tmp_path / "no" / "mine")]) == 2
    assert f"there is no folder {tmp_path / 'no'}" in capsys.readouterr().err
