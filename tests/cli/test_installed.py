"""What is installed beside ptir: what it may not do to a command, and what is said of it."""

from __future__ import annotations

import json
import sys

import pytest

from ptir.backend import registry
from ptir.cli.common import CommonOptions, open_target
from ptir.cli.main import main
from tiny_distributions import TINY, Site, site, strangers_tried

__all__ = ["site", "strangers_tried"]

Capture = pytest.CaptureFixture[str]
HOOK = "@hookimpl\ndef ptir_models():\n    return []\n"
LOUD = """
import os, sys
os.write(1, b"raw\\n")
sys.__stdout__.write("kept\\n")
os.system("echo child")
print("printed")
"""


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        (
            "ops = ('add',)",
            "the backend lacks an op: the probe needs add and dot_general on f32, as every model"
            " does; `ptir-conformance support --backend bad` lists what it runs",
        ),
        (
            "def synchronize(self, device): raise errors.OutOfMemory('full')",
            "free memory of Tiny One",
        ),
        (
            "def synchronize(self, device): raise errors.DeviceLost('gone')",
            "check the driver of Tiny One, or name another device",
        ),
        (
            "def compile(self, *given): raise errors.CompileError('no cc')",
            "check the compiler that the backend uses for Tiny One",
        ),
        (
            "def synchronize(self, device): raise KeyError('x')",
            "it is a mistake in tiny-bad 1.0: upgrade it, or tell its authors",
        ),
        ("def claimed(self, device): return 1", "it is a mistake in tiny-bad 1.0"),
    ],
    ids=["op", "memory", "lost", "compiler", "raised", "declared"],
)
def test_the_advice_of_doctor_follows_from_the_error(
    body: str, fix: str, site: Site, capsys: Capture
) -> None:
    site.backend("good", TINY)
    wrong = f"from ptir import errors\nclass Bad(TinyBackend):\n    {body}\nbackend = Bad()\n"
    site.backend("bad", f"{TINY}\n{wrong}")
    assert main(["doctor"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "fix backend bad" in line]
    assert line.startswith(f"fix backend bad:0: {fix}")
    assert ("driver" in line) == ("driver" in fix)


def test_a_run_names_what_it_chose_and_what_failed_but_not_what_is_absent(
    site: Site, capsys: Capture
) -> None:
    common = CommonOptions(None, (), None, "all", False, False, False, None)
    site.backend("good", TINY)
    absent = "from ptir.errors import BackendUnavailable\nraise BackendUnavailable('no CUDA')"
    site.backend("gpu", absent)
    open_target(common)
    assert capsys.readouterr() == ("", "running on good:0 (Tiny One)\n")
    registry.best.cache_clear()
    card = "backend = WrongBackend((Device(1, 'Card', 'discrete'),))"
    site.backend("card", f"{TINY}\n{card}")
    site.backend("odd", "raise OSError('no disk')")
    open_target(common)
    said = "running on good:0 (Tiny One); odd, card:1 failed, see `ptir doctor`\n"
    assert capsys.readouterr() == ("", said)
    assert main(["backends"]) == 0
    assert "no CUDA" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["backends", "doctor"])
def test_a_plugin_that_ends_the_process_is_a_line(
    command: str, strangers_tried: Site, capsys: Capture
) -> None:
    strangers_tried.backend("good", TINY)
    strangers_tried.plugin("leaver", "import os\nos._exit(5)")
    assert main([command]) == 0
    found = capsys.readouterr()
    assert "it ends the process that loads it (exit code 5)" in found.out + found.err


def test_stdout_carries_the_result_alone_whatever_is_loaded(
    site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Descriptor 1 is the process's, so the test plays a process: stdout is that descriptor."""
    site.backend("loud", TINY + LOUD)
    site.plugin("louder", LOUD + "from ptir.plugins import hookimpl\n" + HOOK)
    stdout = open(1, "w", closefd=False)  # noqa: SIM115  descriptor 1 outlives it
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.setattr("sys.__stdout__", stdout)
    assert main(["backends", "--json"]) == 0
    assert sys.stdout is stdout
    print("after", flush=True)
    out, err = capfd.readouterr()
    result, _, after = out.rpartition("]")
    assert [row["name"] for row in json.loads(result + "]")] == ["loud"]
    assert after == "\nafter\n"
    for line in ("raw", "kept", "child", "printed"):
        assert err.count(f"{line}\n") == 2
