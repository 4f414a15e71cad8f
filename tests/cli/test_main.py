"""What the shell sees: exit codes, one clear message, a light `--help`, commands of plugins."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import click
import pytest

from ptir import errors
from ptir.cli import main as cli
from ptir.cli.main import COMMANDS, main
from ptir.ops import OPS
from ptir.ops.classes import NUMERIC, listed
from tiny_distributions import TINY, Site, site
from together import together

__all__ = ["site"]

Capture = pytest.CaptureFixture[str]


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail() -> None:
        raise error

    command = click.Command("fails", callback=fail)
    monkeypatch.setitem(cli.group.__dict__, "plugin_commands", {"fails": command})


FAMILY = [
    found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, errors.PtirError)
]


@pytest.mark.parametrize("kind", FAMILY)
def test_error_of_the_family_is_one_message_with_code_and_exit_code(
    kind: type[errors.PtirError], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    failing(monkeypatch, kind("what went wrong"))
    assert main(["fails"]) == kind.exit_code
    assert capsys.readouterr() == ("", f"error [{kind.code}]: what went wrong\n")


def test_exit_codes_are_the_promised_ones() -> None:
    promised = {"BackendUnavailable": 3, "UnsupportedError": 4, "VerifyError": 5, "UsageError": 2}
    assert {k.__name__: k.exit_code for k in FAMILY if k.exit_code != 1} == promised


def test_unexpected_error_is_one_line_and_a_traceback_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    failing(monkeypatch, ValueError("odd\nmore"))
    assert main(["fails"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: unexpected ValueError: odd (set PTIR_DEBUG=1")
    monkeypatch.setenv("PTIR_DEBUG", "1")
    assert main(["fails"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    assert main(["fails"]) == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["opss"], "unknown command 'opss' (nearest: ops"),
        (["conformance", "run"], "command 'conformance' is not installed: pip install ptir-tests"),
        (["ops", "--bogus"], "No such option"),
        (["ops", "--dump-mode", "some"], "'some' is not one of"),
        (["ops", "--seed", "-1"], "-1 is not in the range"),
    ],
)
def test_usage_errors_exit_with_2(argv: list[str], words: str, site: Site, capsys: Capture) -> None:
    assert main(argv) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert words in found.err


RUN_NOTHING = ("new-backend", "diff", "patterns", "pull", "cache", "convert", "inspect")


def test_every_row_of_the_table_is_a_command_with_the_common_options(
    site: Site, capsys: Capture
) -> None:
    for row in COMMANDS:
        if row.name in RUN_NOTHING:
            continue  # run nothing: they take them without showing them
        assert main([row.name, "--help"]) == 0
        found = capsys.readouterr().out
        for twin in ("BACKEND", "OVERRIDE", "DUMP_DIR", "DUMP_MODE", "STATS", "PROFILE", "SEED"):
            assert f"PTIR_{twin}" in found


def test_help_lists_every_command_and_imports_none() -> None:
    program = (
        "import sys\nfrom ptir.cli.main import main, COMMANDS\ncode = main(['--help'])\n"
        "heavy = {'numpy', 'ml_dtypes', 'tokenizers', 'rich', 'safetensors'}\n"
        "heavy |= {'ptir.ops', 'ptir.ir'}\n"
        "heavy |= {row.module for row in COMMANDS}\n"
        "sys.exit(code or sorted(heavy & set(sys.modules)) or 0)"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for row in COMMANDS:
        assert f"{row.name} " in done.stdout
        assert row.help in done.stdout


def test_run_imports_nothing_that_only_times_or_reports() -> None:
    program = (
        "import sys\nfrom ptir.cli.main import main\n"
        "args = ['run', 'random:gpt2-tiny', '--tokens', '1,2', '-n', '2', '--backend', 'ref']\n"
        "code = main(args)\n"
        "unused = {'statistics', 'ptir.trace.dump', 'ptir.trace.profile', 'ptir.trace.timeline'}\n"
        "unused |= {'ptir.report', 'ptir.runtime.tune'}\n"
        "sys.exit(code or sorted(unused & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PLUGIN = (
    "import click\nfrom ptir.plugins import hookimpl\n"
    "@hookimpl\ndef ptir_commands():\n"
    "    hello = click.Command('NAME', callback=lambda: click.echo('hi'), short_help='greets')\n"
    "    return [hello]\n"
)


def test_plugin_command_appears_and_runs(site: Site, capsys: Capture) -> None:
    site.plugin("greeter", PLUGIN.replace("NAME", "hello"))
    assert main(["--help"]) == 0
    assert "greets" in capsys.readouterr().out
    assert main(["hello"]) == 0
    assert capsys.readouterr() == ("hi\n", "")


def test_own_commands_are_found_without_loading_a_plugin(site: Site, capsys: Capture) -> None:
    module = site.plugin("greeter", PLUGIN)
    assert main(["ops", "--help"]) == 0
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("name", "words"), [("ops", "also claimed by ptir itself"), ("hi", "also claimed by b")]
)
def test_taken_command_names_are_refused_in_one_line_each(
    site: Site, capsys: Capture, name: str, words: str
) -> None:
    for plugin in ("a", "b"):
        site.plugin(plugin, PLUGIN.replace("NAME", name))
    assert main(["--help"]) == 0
    found = capsys.readouterr()
    assert "greets" not in found.out
    assert [line for line in found.err.splitlines() if words in line]
    assert len(found.err.splitlines()) == 2


def test_ops_json_is_the_whole_table(capsys: Capture) -> None:
    assert main(["ops", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [record["name"] for record in found] == list(OPS)
    fields = ["name", "operands", "attributes", "dtypes", "doc"]
    assert all(list(record) == fields for record in found)
    (dot,) = [record for record in found if record["name"] == "dot_general"]
    assert dot["operands"] == ["lhs", "rhs"]
    assert dot["dtypes"]["lhs"] == listed(NUMERIC).split(", ")
    required = [a["name"] for a in dot["attributes"] if a["required"]]
    assert required == ["lhs_contract", "rhs_contract"]


def test_ops_name_explains_it_with_an_example(capsys: Capture) -> None:
    assert main(["ops", "dot_general"]) == 0
    found = capsys.readouterr().out
    for words in ("dot_general(lhs, rhs)", "Integers wrap", "lhs_contract: axes", "gives f32 [["):
        assert words in found


@together()
@pytest.mark.parametrize("name", list(OPS))
def test_every_op_can_be_explained(name: str, capsys: Capture) -> None:
    assert main(["ops", name]) == 0
    assert capsys.readouterr().out.startswith(f"{name}(")


def test_unknown_op_names_the_nearest(capsys: Capture) -> None:
    assert main(["ops", "dot_generall"]) == 2
    assert "error [PTIR-501]: unknown op 'dot_generall' (nearest: dot_general" in (
        capsys.readouterr().err
    )


def test_ops_table_has_a_line_per_op(capsys: Capture) -> None:
    assert main(["ops"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("(")[0] for line in lines[1:]] == list(OPS)


def test_environment_stands_in_for_an_option(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    site.backend("good", TINY)
    monkeypatch.setenv("PTIR_JSON", "1")
    assert main(["backends"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "good"


def test_backends_without_any_says_how_to_get_one(site: Site, capsys: Capture) -> None:
    assert main(["backends"]) == 0
    assert "pip install ptir-backend-ref" in capsys.readouterr().err
    assert main(["backends", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_doctor_without_a_working_backend_exits_with_3(site: Site, capsys: Capture) -> None:
    site.backend("bad", TINY + "\nbackend = WrongBackend()\n")
    assert main(["doctor"]) == 3
    found = capsys.readouterr()
    assert "the probe program gave" in found.out
    assert "fix backend bad:0: check the driver" in found.out
    assert "error [PTIR-402]" in found.err


def test_doctor_sends_whoever_edits_a_backend_to_its_folder(site: Site, capsys: Capture) -> None:
    site.backend("absent", "class Wrong: pass")
    site.backend("wrong", TINY + "\nbackend = WrongBackend()\n")
    site.backend("good", TINY)
    for name in ("absent", "wrong"):
        origin = {"url": "file:///home/me/my%20own", "dir_info": {"editable": True}}
        place = site.folder / f"tiny_{name}-1.0.dist-info" / "direct_url.json"
        place.write_text(json.dumps(origin))
    assert main(["doctor"]) == 0
    fixes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fix ")]
    assert fixes == [
        "fix backend absent: correct it in /home/me/my own, then look again with `ptir doctor`",
        "fix backend wrong:0: correct the backend in /home/me/my own;"
        " `ptir-conformance run --backend wrong` says what is wrong",
    ]


def test_messages_are_broken_between_words_on_a_terminal_and_nowhere_else(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    path = "/" + "long/" * 20
    failing(
        monkeypatch, errors.PtirError(f"the file  {path} is not there\n  at well-known-places:7")
    )
    whole = f"error [PTIR-000]: the file  {path} is not there\n  at well-known-places:7\n"
    assert main(["fails"]) == 1
    assert capsys.readouterr().err == whole
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["fails"]) == 1
    found = capsys.readouterr().err
    assert found.splitlines()[1] == path
    assert found.splitlines()[-1] == "  at well-known-places:7"
    assert found.split() == whole.split()
    failing(monkeypatch, errors.PtirError(" ".join(["alphabet"] * 30)))
    assert main(["fails"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 3 and max(map(len, lines)) <= 60
    assert set(" ".join(lines).split()) == {"error", "[PTIR-000]:", "alphabet"}


@pytest.mark.parametrize("method", ["capabilities", "findings", "fix_for"])
def test_a_backend_that_fails_to_describe_itself_is_a_line_and_no_more(
    method: str, site: Site, capsys: Capture
) -> None:
    base = "WrongBackend" if method == "fix_for" else "TinyBackend"
    body = f"class Odd({base}):\n    def {method}(self, *_):\n        1 / 0"
    site.backend("odd", f"{TINY}\n{body}\nbackend = Odd()\n")
    site.backend("good", TINY)
    assert main(["doctor"]) == 0
    assert f"{method}() failed: ZeroDivisionError" in capsys.readouterr().out
    assert main(["backends", "--json"]) == 0
    status = {row["name"]: row["status"] for row in json.loads(capsys.readouterr().out)}
    assert status == {"good": "ok", "odd": "broken" if method == "capabilities" else "ok"}


def test_doctor_shows_what_a_backend_says_about_itself(site: Site, capsys: Capture) -> None:
    body = """
from ptir.backend.contract import Finding
class Told(TinyBackend):
    def capabilities(self, device):
        return {"fp16": True, "lanes": 8}
    def findings(self):
        return [Finding("library", "is old", "upgrade the library"), Finding("cable", "is in")]
class Ill(WrongBackend):
    def fix_for(self, problem):
        return "turn it off and on" if "probe program gave" in problem else None
"""
    site.backend("told", f"{TINY}\n{body}\nbackend = Told()\n")
    site.backend("ill", f"{TINY}\n{body}\nbackend = Ill()\n")
    assert main(["doctor"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "ok backend told:0 capabilities fp16 yes, lanes 8" in lines
    assert "!! backend told: library is old" in lines
    assert "ok backend told: cable is in" in lines
    assert "fix backend told: library: upgrade the library" in lines
    assert "fix backend ill:0: turn it off and on" in lines
    assert main(["backends", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["told"]["devices"][0]["capabilities"] == {"fp16": True, "lanes": 8}


def test_a_command_looks_for_cycles_seldom_and_its_caller_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, inside = gc.get_threshold(), list[int]()
    command = click.Command("looks", callback=lambda: inside.append(gc.get_threshold()[0]))
    monkeypatch.setitem(cli.group.__dict__, "plugin_commands", {"looks": command})
    assert main(["looks"]) == 0
    assert inside[0] > 10 * before[0]
    assert gc.get_threshold() == before
