"""The suite through `ptir conformance`, and through pytest in an empty folder."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from impostors import Little

from ptir import plugins
from ptir.backend import registry
from ptir.cli.main import main
from ptir.ops import OPS
from ptir_testsuite import hooks
from ptir_testsuite.corpus.derivation import cases_of
from tiny_distributions import Site, site

pytestmark = pytest.mark.turns(2)

__all__ = ["site"]

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent / "packages" / "ptir-testsuite" / "pyproject.toml"


@pytest.fixture
def conformance(site: Site) -> None:
    """The suite's entry point, as pyproject declares it, is the only plugin."""
    declared = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["entry-points"]
    (name, value), *others = declared[plugins.GROUP].items()
    assert value == hooks.__name__ and not others
    site.add("tiny-suite", plugins.GROUP, f"{name} = {value}", "")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["mutants", "-k", "five-term"], 0, "1/1 planted faults"),
        (["mutants", "-k", "no_such_fault"], 3, "0/0 planted faults"),
        (["walk"], 2, "Usage: ptir conformance"),
        (["--help"], 0, "Usage: ptir conformance [OPTIONS] COMMAND"),
        (["mutants", "--help"], 0, "Grade the suite"),
    ],
)
def test_ptir_conformance_is_the_command_with_its_exit_codes(
    arguments, code, text, conformance, capsys
):
    assert main(["conformance", *arguments]) == code
    found = capsys.readouterr()
    assert text in found.out + found.err


def test_the_help_of_ptir_has_a_line_for_it(conformance, capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "conformance" in out and "Say with evidence whether a backend is right." in out


OURS = ("-p", "ptir_testsuite.plugin", "-p", "no:cacheprovider")
GIVEN = ("--ptir-import", "impostor_worker", "--ptir-programs", "2")


def in_a_process(folder, name, *arguments):
    """pytest in a folder of its own, with an impostor for every backend."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *OURS, *GIVEN, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "PTIR_TEST_IMPOSTOR": name, "PTIR_TEST_FEW": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def run_pytest(few_ops, tmp_path, monkeypatch):
    """The same in this process and with the corpus of a few ops, which takes no seconds to make."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "get", registry.get)  # to be what it was when the test is over

    def run(name, *arguments):
        monkeypatch.setenv("PTIR_TEST_IMPOSTOR", name)
        monkeypatch.delitem(sys.modules, "impostor_worker", raising=False)
        written = io.StringIO()
        with redirect_stdout(written), redirect_stderr(written):
            code = pytest.main([*OURS, "-p", "no:xdist", *GIVEN, *arguments])
        return code, written.getvalue()

    return run


BACKEND = ("--ptir-backend", "any", "--ptir-words", "(rsqrt or add-) and sample")


def test_every_case_is_a_test_in_an_empty_folder(tmp_path, run_pytest):
    code, out = in_a_process(tmp_path, "Correct", *BACKEND, "-v")
    assert code == 0, out
    assert "rsqrt-" in out and "PASSED" in out and "failed" not in out
    code, out = run_pytest("Correct", *BACKEND, "-v", "-k", "rsqrt")
    assert code == 0 and "rsqrt-" in out and "add-" not in out and "deselected" in out


def test_a_failure_is_the_message_and_what_is_refused_is_skipped(run_pytest):
    products = ("--ptir-backend", "any", "--ptir-words", "mul- and sample")
    code, out = run_pytest("Failing", *products)
    assert code == 1 and "failed" in out, out
    assert "error [execute] mul(" in out and "the device is gone" in out
    assert 'raise DeviceError("the device is gone")' in out
    (again, *_) = [line for line in out.splitlines() if line.startswith("again: ")]
    assert again.startswith("again: ptir-conformance replay mul-") and "--backend failing" in again
    assert "plugin.py" not in out, "the traceback is of no use"
    code, out = run_pytest("Little", *BACKEND, "-rs")
    assert Little.claims == {"sort"}
    assert code == 0 and "skipped" in out and "unsupported: only add is taken" in out, out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 5, "no tests ran"),
        (("--ptir-words", "add"), 4, "--ptir-words needs --ptir-backend NAME"),
        (("--ptir-claims", "core"), 4, "--ptir-claims needs --ptir-backend NAME"),
        (("--ptir-backend", "any", "--ptir-words", "add and"), 4, "a word is missing"),
        (("--ptir-backend", "any", "--ptir-words", "roound"), 4, "(nearest: round)"),
        (("--ptir-backend", "any", "--ptir-claims", ""), 4, "no profile claimed"),
        (("--ptir-backend", "any", "--ptir-claims", "f61"), 4, "unknown profile 'f61'"),
    ],
)
def test_without_a_backend_nothing_runs_and_mistakes_are_told(arguments, code, text, run_pytest):
    found, out = run_pytest("Correct", *arguments)
    assert found == code and text in out, out


def test_a_waived_failure_is_skipped_with_the_reason_and_a_mistaken_waiver_is_told(
    tmp_path, run_pytest
):
    case = next(case for case in cases_of(OPS["mul"]) if "sample" in case.origin)
    text = '[[waiver]]\nid = "{}"\noutcome = "error"\nphase = "execute"\nreason = "no device"\n'
    file = tmp_path / "waivers.toml"
    file.write_text(text.format(case.id) + "expires = 9999-12-31\n", encoding="utf-8")
    one = ("--ptir-backend", "any", "--ptir-words", case.id, "--ptir-waivers", str(file))
    code, out = run_pytest("Failing", *one, "-rs")
    assert code == 0 and "waived: " in out and "the device is gone" in out, out
    code, out = run_pytest("Correct", *one)
    assert code == 1 and "unexpected pass" in out and "(no device): remove the waiver" in out
    file.write_text(text.format("mul-0") + "expires = 9999-12-31\n", encoding="utf-8")
    code, out = run_pytest("Correct", *one)
    assert code == 4 and "there is no case mul-0" in out
