"""A plugin that ends its process takes no command along, and who was tried is not tried again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ptir import plugins
from ptir.backend import trial, verdicts
from ptir.backend.verdicts import VERDICTS
from ptir.cli.main import main
from tiny_distributions import Site, forget, pip_install, site, strangers_tried, wheel

pytestmark = pytest.mark.turns(2)

__all__ = ["site", "strangers_tried"]

GOOD = "from ptir.plugins import hookimpl\n@hookimpl\ndef ptir_models(): return []\n"
LEAVES = "import os\nos._exit(5)\n"
CRASHES = "import ctypes\nctypes.string_at(0)\n"
TRIED = f"import os\nif {trial.IN_TRIAL!r} not in os.environ: raise RuntimeError('untried')\n"
"""Ends no process but that of a trial, for tests that would end with it."""
SOMETIMES = (
    f"import os\nif 'LEAVE' in os.environ and {trial.IN_TRIAL!r} in os.environ: os._exit(5)\n"
)
LEFT_OUT = (
    "plugin leaver of tiny-leaver 1.0 is broken: it ends the process that loads it (exit code 5);"
    " it is left out until `ptir doctor` finds it mended: upgrade or uninstall tiny-leaver"
)


# --- in processes of their own, which a plugin may end ---


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    sources = {"tiny-leaver": LEAVES, "tiny-crasher": CRASHES, "tiny-good": GOOD}
    wheels = [
        wheel(folder, name, plugins.GROUP, f"{name[5:]} = {name.replace('-', '_')}", source)
        for name, source in sources.items()
    ]
    pip_install(target, wheels)
    return target


def in_a_process(
    installed: Path, cache: Path, program: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    path = f"import sys\nsys.path.append({str(installed)!r})\n"
    return subprocess.run(
        [sys.executable, "-c", path + program, *arguments],
        env=os.environ | {"PTIR_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )


COMMAND = "from ptir.cli.main import main\nsys.exit(main())"
RUN = ("run", "demo", "-p", "ROMEO:", "-n", "2", "--temp", "0", "--backend", "ref")


def test_a_run_outlives_plugins_that_end_their_process(installed: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second one takes the verdicts of the first
        done = in_a_process(installed, tmp_path, COMMAND, *RUN)
        assert (done.returncode, done.stdout) == (0, "\nI\n"), done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("plugin ")]
        assert said[1] == LEFT_OUT and len(said) == 2
        assert said[0].startswith("plugin crasher of tiny-crasher 1.0 is broken: it ends the")
        assert "(SIGSEGV)" in said[0]


def test_a_program_outlives_them_too_and_is_warned(installed: Path, tmp_path: Path) -> None:
    program = "import ptir\nprint(ptir.load_model('demo', backend='ref').capabilities[0])"
    done = in_a_process(installed, tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "generate\n"), done.stderr
    assert done.stderr.count(f"RuntimeWarning: {LEFT_OUT}") == 1


# --- what is tried, and what is not ---


@pytest.fixture
def started(strangers_tried: Site, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of those whose trials were started."""
    names, usual = list[str](), trial._started

    def start(entry: trial.Entry, loader: str) -> object:
        names.append(entry.name)
        return usual(entry, loader)

    monkeypatch.setattr(trial, "_started", start)
    return names


def loaded_anew() -> dict[str, str]:
    """What becomes of every plugin in a process that has loaded none."""
    forget()
    found = plugins.load().statuses()
    return {s.name: "ended" if "ends the process" in s.reason else s.status for s in found}


def test_only_the_first_run_after_an_installation_tries(
    strangers_tried: Site, started: list[str]
) -> None:
    strangers_tried.plugin("good", GOOD)
    strangers_tried.plugin("leaver", TRIED + LEAVES)
    for _ in range(3):
        assert loaded_anew() == {"good": "ok", "leaver": "ended"}
    assert started == ["good", "leaver"]
    strangers_tried.plugin("other", GOOD)
    loaded_anew()
    assert started[2:] == ["good", "leaver", "other"], "what others need may have changed"


def upgraded(folder: Path) -> None:
    """A newer version of the same files, with the same times of the folder."""
    metadata = folder / "tiny_good-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))


def rewritten(path: str) -> Callable[[Path], object]:
    return lambda folder: (folder / path).write_text(f"{GOOD}# more\n")


CHANGES = {
    "version": (upgraded, True),
    "module": (rewritten("tiny_good/__init__.py"), True),
    "module within": (rewritten("tiny_good/inner/deep.py"), True),
    "list of files": (rewritten("tiny_good-1.0.dist-info/RECORD"), True),
    "data": (rewritten("tiny_good/data.txt"), False),
    "built": (rewritten("tiny_good/__pycache__/deep.cpython-311.pyc"), False),
    "nothing": (lambda folder: None, False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_version_or_other_files_are_tried_again(
    change: str, strangers_tried: Site, started: list[str]
) -> None:
    names = ("__init__.py", "inner/deep.py", "data.txt", "__pycache__/deep.cpython-311.pyc")
    more = {f"tiny_good/{name}": GOOD for name in names}
    strangers_tried.add("tiny-good", plugins.GROUP, "good = tiny_good", "", more=more)
    (strangers_tried.folder / "tiny_good.py").unlink()
    assert loaded_anew() == {"good": "ok"}
    apply, again = CHANGES[change]
    apply(strangers_tried.folder)
    assert loaded_anew() == {"good": "ok"}
    assert len(started) == 1 + again


def test_an_editable_one_is_tried_again_where_it_was_edited(
    strangers_tried: Site, started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers_tried.plugin("good", GOOD)
    (strangers_tried.folder / "tiny_good.py").unlink()
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tiny_good.py").write_text(GOOD)
    for _ in range(2):
        assert loaded_anew() == {"good": "ok"}
    (tmp_path / "tiny_good.py").write_text(TRIED + LEAVES)
    for _ in range(2):
        assert loaded_anew() == {"good": "ended"}
    assert started == ["good", "good"]


@pytest.mark.parametrize("command", ["doctor", "backends"])
def test_who_looks_at_what_is_installed_tries_again(
    command: str, strangers_tried: Site, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers_tried.plugin("leaver", SOMETIMES + GOOD)
    monkeypatch.setenv("LEAVE", "1")
    assert loaded_anew() == {"leaver": "ended"}
    monkeypatch.delenv("LEAVE")
    assert loaded_anew() == {"leaver": "ended"}, "remembered"
    forget()
    main([command])
    assert loaded_anew() == {"leaver": "ok"}
    assert started == ["leaver"] * 2


def test_of_the_verdicts_the_newest_are_kept(
    strangers_tried: Site, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "MOST", 2)
    for name in ("one", "two", "three"):
        strangers_tried.plugin(name, GOOD)
    for _ in range(2):
        assert set(loaded_anew().values()) == {"ok"}
    assert (started[:3], len(started)) == (["one", "three", "two"], 4)


def test_without_strangers_nothing_is_tried_read_or_written(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    site.plugin("own", GOOD)
    VERDICTS.path.parent.mkdir()
    VERDICTS.path.write_text("[")
    assert loaded_anew() == {"own": "ok"}
    assert VERDICTS.path.read_text() == "["


def test_a_trial_tries_nobody(strangers_tried: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    strangers_tried.plugin("good", GOOD)
    monkeypatch.setenv(trial.IN_TRIAL, "1")
    assert loaded_anew() == {"good": "ok"}
    assert not VERDICTS.path.exists()


def test_without_room_for_a_trial_nobody_is_taken_for_tried(
    strangers_tried: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers_tried.plugin("good", GOOD)

    def full() -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.warns(RuntimeWarning, match="nobody was tried"):
        assert loaded_anew() == {"good": "ok"}
    assert not VERDICTS.path.exists()


DAMAGED = ["", "[]", '{"trials": []}', '{"trials": {"a": {"state": 1, "end": ""}}}', "[" * 100_000]


@pytest.mark.parametrize("text", DAMAGED, ids=["empty", "list", "no table", "number", "deep"])
def test_a_damaged_file_is_said_and_replaced(
    text: str, strangers_tried: Site, started: list[str]
) -> None:
    strangers_tried.plugin("good", GOOD)
    VERDICTS.path.parent.mkdir()
    VERDICTS.path.write_text(text)
    with pytest.warns(RuntimeWarning, match=r"trials\.json: no verdicts .*tried again") as said:
        assert loaded_anew() == {"good": "ok"}
    assert len(said) == 1
    assert loaded_anew() == {"good": "ok"}
    assert started == ["good"]


def test_where_verdicts_cannot_be_kept_is_said_with_what_to_do(
    strangers_tried: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strangers_tried.plugin("good", GOOD)
    (tmp_path / "file").touch()
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    said = r"trials\.json: cannot be written .*; set PTIR_CACHE_DIR to a folder of yours"
    with pytest.warns(RuntimeWarning, match=said):
        assert loaded_anew() == {"good": "ok"}


COMMANDS = """
import click
from ptir.cli.common import common_options, session
from ptir.plugins import hookimpl

@click.command("hello")
@common_options
def hello(common):
    with session(common):
        pass
    click.echo("hello")

@hookimpl
def ptir_commands():
    return [hello]
"""


def test_a_plugin_that_is_left_out_is_told_of_once(
    strangers_tried: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    strangers_tried.plugin("greets", COMMANDS)
    strangers_tried.plugin("leaver", TRIED + LEAVES)
    assert main(["hello"]) == 0
    out, err = capsys.readouterr()
    assert (out, err.splitlines()) == ("hello\n", [LEFT_OUT])
