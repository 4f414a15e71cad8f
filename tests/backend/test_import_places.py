"""What hides an installed backend or plugin is named, and nothing is said where nothing does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ptir import plugins
from ptir.backend import registry
from ptir.backend.import_places import hiding
from ptir.cli.main import main
from tiny_distributions import TINY, Site, called, site

__all__ = ["site"]

Capture = pytest.CaptureFixture[str]
MINE = called("mine", TINY)
HOOK = "from ptir.plugins import hookimpl\n@hookimpl\ndef ptir_models(): return []\n"


@pytest.fixture
def here(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which comes before the site on the path."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    return folder


def hidden() -> list[str]:
    """What is hidden, of backends and of plugins."""
    found = (hiding(entry) for entry in (*registry.listed(), *plugins.listed()))
    return [str(one) for one in found if one is not None]


FORMS = {
    "a file": ("tiny_mine.py", "tiny_mine.py"),
    "a folder": ("tiny_mine/__init__.py", "tiny_mine"),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_hides_a_backend_that_works_is_named_with_what_to_do(
    form: str, site: Site, here: Path, capsys: Capture
) -> None:
    site.backend("mine", TINY)
    file, shown = FORMS[form]
    place = here / file
    place.parent.mkdir(exist_ok=True)
    place.write_text(MINE)
    said = (
        f"tiny_mine is imported from {here / shown}, which hides what tiny-mine 1.0 installed:"
        f" {site.folder / 'tiny_mine.py'}"
    )
    fix = f"rename {here / shown}, or take its folder off the path"
    assert main(["backends"]) == 0
    out, err = capsys.readouterr()
    assert "0 Tiny One (reference)" in out
    (line,) = [line for line in err.splitlines() if "hides" in line]
    assert line.startswith(f"backend mine: {said}; {fix}")
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("!!  backend mine is hidden") and said in line for line in lines)
    assert any(line.startswith(f"fix backend mine is hidden: {fix}") for line in lines)


def test_what_hides_one_that_fails_is_the_cause_and_the_fix(
    site: Site, here: Path, capsys: Capture
) -> None:
    site.backend("mine", TINY)
    site.backend("good", TINY)
    site.plugin("hooks", HOOK)
    for name in ("tiny_mine", "tiny_hooks"):
        (here / f"{name}.py").write_text("notes = 'mine'")
    assert main(["run", "demo", "-p", "x", "-n", "1", "--backend", "mine"]) == 3
    said = capsys.readouterr().err
    assert "has no attribute 'backend'; tiny_mine is imported from" in said
    assert "implements no hook; mark one of" in said and "; tiny_hooks is imported from" in said
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    fixes = [line for line in lines if line.startswith("fix ")]
    assert len(fixes) == 2 and not any("is hidden" in line for line in lines)
    for what, name in (("backend mine", "tiny_mine"), ("plugin hooks", "tiny_hooks")):
        assert any(f.startswith(f"fix {what}: rename {here / name}.py, or") for f in fixes)
    assert main(["backends"]) == 0
    out, err = capsys.readouterr()
    assert (out + err).count("tiny_mine is imported") == 1, "once"
    assert (out + err).count("tiny_hooks is imported") == 1


def test_nothing_is_said_of_what_hides_nothing(site: Site, here: Path, capsys: Capture) -> None:
    site.backend("mine", TINY)
    site.plugin("hooks", HOOK)
    (here / "tiny_mine").mkdir()  # without __init__.py it is behind the module
    (here / "tiny_mine" / "notes.py").touch()
    (here / "other.py").touch()
    assert hidden() == []
    assert main(["backends"]) == 0
    assert "hides" not in "".join(capsys.readouterr())


def test_what_another_distribution_installed_is_not_hidden(site: Site, here: Path) -> None:
    (here / "elsewhere.py").write_text(HOOK)
    site.add("tiny-pointer", plugins.GROUP, "pointer = elsewhere", "")
    assert hidden() == []


def edited(site: Site, project: Path, source: str) -> None:
    """Make the backend ``mine`` one that ``pip install -e`` has installed from ``project``."""
    site.backend("mine", TINY)
    (site.folder / "tiny_mine.py").unlink()
    info = site.folder / "tiny_mine-1.0.dist-info"
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    (info / "RECORD").write_text("tiny_mine.pth,,\ntiny_mine-1.0.dist-info/RECORD,,\n")
    (project / source).mkdir(parents=True)
    (site.folder / "tiny_mine.pth").write_text(f"{project / source}\n")
    (project / source / "tiny_mine.py").write_text(MINE)


@pytest.mark.parametrize("source", ["", "src", "python/of/mine"])
def test_an_editable_one_is_right_anywhere_in_its_project(
    source: str, site: Site, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited(site, tmp_path / "project", source)
    monkeypatch.syspath_prepend(tmp_path / "project" / source)
    assert hidden() == []
    monkeypatch.syspath_prepend(here)
    (here / "tiny_mine.py").write_text(MINE)
    (said,) = hidden()
    assert f"imported from {here / 'tiny_mine.py'}, which hides what tiny-mine 1.0" in said
    assert said.endswith(f"installed: {tmp_path / 'project' / source / 'tiny_mine.py'}")


def test_what_an_editable_project_has_built_is_its_own(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited(site, tmp_path / "project", "src")
    built = tmp_path / "project" / "build" / "lib"
    built.mkdir(parents=True)
    (built / "tiny_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(built)
    assert hidden() == []


@pytest.mark.parametrize("hides", [False, True])
def test_a_module_in_a_namespace_is_looked_for_within_it(
    hides: bool, site: Site, here: Path
) -> None:
    more = {"spaced/hooks.py": HOOK}
    site.add("tiny-spaced", plugins.GROUP, "spaced = spaced.hooks", "", more=more)
    site.modules += ["spaced", "spaced.hooks"]
    (here / "spaced").mkdir()
    if hides:
        (here / "spaced" / "hooks.py").write_text(HOOK)
    starts = f"spaced.hooks is imported from {here / 'spaced' / 'hooks.py'}, which hides"
    assert [said.startswith(starts) for said in hidden()] == [True] * hides


@pytest.mark.parametrize("name", ["direct_url.json", "RECORD"])
def test_metadata_that_say_nothing_accuse_nobody(name: str, site: Site, here: Path) -> None:
    site.backend("mine", TINY)
    (here / "tiny_mine.py").write_text(MINE)
    (site.folder / "tiny_mine-1.0.dist-info" / name).write_bytes(b'\xff["')
    assert hidden() == []
    assert registry.load("mine").name == "mine"
