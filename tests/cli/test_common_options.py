"""The common options reach a command, and a session puts them in force and takes them back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ptir import events
from ptir.cli.common import CommonOptions, common_options, open_target, session
from ptir.cli.main import main
from ptir.errors import BackendUnavailable, UsageError
from ptir.ops import implementations
from ptir.ops.overriding import active_overrides
from tiny_distributions import TINY, Site, site

__all__ = ["site"]

Capture = pytest.CaptureFixture[str]


def parsed(*argv: str, **environment: str) -> CommonOptions:
    seen: list[CommonOptions] = []

    @click.command()
    @common_options
    def command(common: CommonOptions) -> None:
        seen.append(common)

    done = CliRunner().invoke(command, argv, env=environment, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return seen[0]


DEFAULT = CommonOptions(None, (), None, "all", False, False, False, None)


def test_without_options_nothing_is_asked_for() -> None:
    assert parsed() == DEFAULT


def test_options_and_their_environment_twins_mean_the_same() -> None:
    given = parsed(
        *("--backend", "opencl:0", "--override", "a=default", "--override", "b=force=c"),
        *("--dump-dir", "d", "--dump-mode", "compile", "--stats", "--profile", "--json"),
        *("--seed", "7", "--dump-inputs", "--profile-out", "f.json"),
    )
    twins = parsed(
        PTIR_BACKEND="opencl:0",
        PTIR_DUMP_DIR="d",
        PTIR_DUMP_MODE="compile",
        PTIR_STATS="1",
        PTIR_PROFILE="1",
        PTIR_JSON="1",
        PTIR_SEED="7",
        PTIR_DUMP_INPUTS="1",
        PTIR_PROFILE_OUT="f.json",
    )
    overrides = ("a=default", "b=force=c")
    assert given == CommonOptions(
        "opencl:0", overrides, Path("d"), "compile", True, True, True, 7, True, Path("f.json")
    )
    assert twins == replace(given, override=())


def test_overrides_of_the_environment_are_left_to_who_compiles() -> None:
    assert parsed(PTIR_OVERRIDE="a=default") == DEFAULT
    assert parsed("--override", "b=default", PTIR_OVERRIDE="a=default").override == ("b=default",)


def test_options_win_over_the_environment() -> None:
    assert parsed("--seed", "1", PTIR_SEED="2").seed == 1


@pytest.fixture
def functional(monkeypatch: pytest.MonkeyPatch) -> None:
    found = implementations.Functional("tiny_f", "A functional.", {})
    monkeypatch.setitem(implementations.FUNCTIONALS, "tiny_f", found)
    only = implementations.Implementation("tiny_f", "fast", lambda types, attributes: None)
    implementations.register(only)


@pytest.mark.usefixtures("functional")
def test_session_puts_overrides_in_force_and_takes_them_back(site: Site) -> None:
    with session(
        CommonOptions(None, ("tiny_f=force=fast",), None, "all", False, False, False, None)
    ):
        (found,) = active_overrides()
        assert (found.functional, str(found.policy)) == ("tiny_f", "force=fast")
        assert found.origin.text == "command line"
    assert active_overrides() == ()


@pytest.mark.usefixtures("functional")
def test_wrong_override_fails_and_leaves_nothing_behind(site: Site) -> None:
    wrong = CommonOptions(None, ("tiny_f=force=fats",), None, "all", True, False, False, None)
    with pytest.raises(UsageError, match="nearest: fast"), session(wrong):
        pass
    assert not events.listening()


@pytest.mark.usefixtures("functional")
def test_statistics_go_to_stderr(site: Site, capsys: Capture) -> None:
    asked = CommonOptions(None, (), None, "all", True, True, False, None)
    with session(asked):
        events.emit(events.ParameterLoaded("wte", 64, 0.5))
        events.emit(events.ImplementationChosen("tiny_f", "fast", "forced"))
    found = capsys.readouterr()
    assert found.out == ""
    assert "parameter_bytes" in found.err
    assert "fast: forced" in found.err
    assert "parameters loaded   1      500.0 ms  64 B" in found.err
    assert not events.listening()


SINK = """
from ptir.plugins import hookimpl
from ptir.trace import Sink
class Writes(Sink):
    def __init__(self, folder): self.folder, self.seen = folder, 0
    def __call__(self, event): self.seen += 1
    def finish(self): (self.folder / "seen.txt").write_text(str(self.seen))
@hookimpl
def ptir_trace_sinks(folder): return [Writes(folder)]
"""


def test_sinks_of_plugins_hear_events_and_are_finished(site: Site, tmp_path: Path) -> None:
    site.plugin("sink", SINK)
    with session(CommonOptions(None, (), tmp_path / "d", "all", False, False, False, None)):
        events.emit(events.ParameterLoaded("wte", 64, 0.5))
    assert (tmp_path / "d" / "seen.txt").read_text() == "1"


def test_automatic_choice_is_said_and_a_named_backend_is_final(site: Site, capsys: Capture) -> None:
    site.backend("good", TINY)
    site.backend("gone", "raise OSError('no library')")
    assert open_target(DEFAULT).device.name == "Tiny One"
    said = "running on good:0 (Tiny One); gone failed, see `ptir doctor`\n"
    assert capsys.readouterr().err == said
    with pytest.raises(BackendUnavailable, match="no library"):
        open_target(CommonOptions("gone", (), None, "all", False, False, False, None))


@pytest.mark.usefixtures("functional")
def test_overrides_command_lists_implementations(site: Site, capsys: Capture) -> None:
    assert main(["overrides", "--override", "tiny_f=force=fast"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["functional", "policy"]
    row, asked = [row for row in rows if row.startswith("tiny_f ")]
    assert row.split() == ["tiny_f", "force=fast", "fast", "reordered"]
    assert asked.split() == ["tiny_f", "force=fast", "command", "line"]


LOUD = TINY.replace("reference = OPS", "print('computing'); reference = OPS")


@pytest.mark.slice(2)
@pytest.mark.parametrize(
    "asked",
    [
        ("run", "-p", "x", "-n", "2", "--temp", "0", "--json"),
        ("run", "-p", "x", "-n", "2", "--temp", "0"),
        ("forward", "-p", "x", "--json"),
        ("explain", "-r", "1", "--json"),
        ("explain", "--workers", "2", "--json"),
        ("bench", "-p", "2", "-n", "0", "-r", "1", "--json"),
    ],
)
def test_what_a_backend_prints_while_it_runs_stays_off_stdout(
    asked: tuple[str, ...], site: Site, capsys: Capture
) -> None:
    assert LOUD != TINY
    site.backend("loud", LOUD)
    name, *options = asked
    assert main([name, "random:gpt2-tiny", *options, "--backend", "loud"]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() and "computing" not in printed.out
    assert ("computing" in printed.err) == ("--workers" not in asked)
    if "--json" in asked:
        json.loads(printed.out)
