"""The number of a commit's slice: counted where there is a history, else made of its name, or 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "slice_number.py"
COMMITS = 3


def git(folder: Path, *arguments: str) -> str:
    """What git says; the same for everyone, whatever they have configured."""
    names = ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    alone = {f"GIT_{name}": "nobody" for name in names}
    alone |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ("git", "-C", str(folder), *arguments)
    made = subprocess.run(
        command, env=os.environ | alone, capture_output=True, text=True, check=True
    )
    return made.stdout.strip()


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of a few commits."""
    folder = tmp_path_factory.mktemp("origin")
    git(folder, "init", "--quiet")
    for number in range(COMMITS):
        git(folder, "commit", "--quiet", "--allow-empty", "-m", f"number {number}")
    return folder


def cloned(origin: Path, folder: Path, *options: str) -> Path:
    git(origin, "clone", "--quiet", *options, origin.as_uri(), str(folder))
    return folder


def number(folder: Path, **environment: str) -> int:
    """What the script prints there, with nothing on stderr."""
    made = subprocess.run(
        [sys.executable, SCRIPT],
        cwd=folder,
        env=os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stderr == ""
    return int(made.stdout)


def test_an_ordinary_clone_counts_its_commits(origin: Path, tmp_path: Path) -> None:
    clone = cloned(origin, tmp_path / "clone")
    assert number(clone) == COMMITS
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "one more")
    assert number(clone) == COMMITS + 1, "the next commit's slice is the neighbour"


def test_a_clone_without_history_takes_the_number_of_the_commits_name(
    origin: Path, tmp_path: Path
) -> None:
    clone = cloned(origin, tmp_path / "clone", "--depth", "1")
    assert git(clone, "rev-list", "--count", "HEAD") == "1", "counting would say 1 for any commit"
    name = git(origin, "rev-parse", "HEAD")
    assert number(clone) == int(name[:6], 16)


def test_without_a_repository_or_git_the_number_is_0(origin: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert number(tmp_path / "plain") == 0
    assert number(origin, PATH=str(tmp_path / "plain")) == 0
