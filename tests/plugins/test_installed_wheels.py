"""Broken distributions that pip installed are lines of `ptir backends`; the good one works on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_distributions import TINY, called, pip_install, wheel

pytestmark = pytest.mark.turns(2)

BACKENDS = "ptir.backends"
DISTRIBUTIONS = (
    ("tiny-good", BACKENDS, "good = tiny_good:backend", called("good")),
    ("tiny-raises", BACKENDS, "raises = tiny_raises:backend", "raise RuntimeError('no luck')"),
    ("tiny-exits", BACKENDS, "exits = tiny_exits:backend", "import sys\nsys.exit(7)"),
    ("tiny-wrong", BACKENDS, "wrong = tiny_wrong:backend", "backend = {'a': 1}"),
    (
        "tiny-future",
        BACKENDS,
        "future = tiny_future:backend",
        TINY + "\nbackend.api_version = (9, 1)",
    ),
    ("tiny-spelt", BACKENDS, "spelt = tiny_spelt:backend", TINY),
    ("tiny-twin-a", BACKENDS, "twin = tiny_twin_a:backend", TINY),
    ("tiny-twin-b", BACKENDS, "twin = tiny_twin_b:backend", TINY),
    ("tiny-plugin", "ptir.plugins", "sick = tiny_plugin", "raise OSError('no disk')"),
)
CAUSES = {
    "raises": ("broken", "import of tiny_raises:backend failed: RuntimeError: no luck"),
    "exits": ("broken", "import of tiny_exits:backend failed: SystemExit: 7"),
    "wrong": ("broken", "tiny_wrong:backend is dict, not a ptir.backend.Backend instance"),
    "spelt": ("broken", "entry point 'spelt' gives a backend named 'tiny'; they must be equal"),
    "future": ("incompatible", "it needs backend API 9.1 and this ptir-core has 1.0"),
}
TWINS = "'twin' is claimed by tiny-twin-a 1.0 and tiny-twin-b 1.0; uninstall all but one"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    pip_install(target, [wheel(folder, *distribution) for distribution in DISTRIBUTIONS])
    return target


def ptir(
    installed: Path, *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    program = (
        f"import sys\nsys.path.append({str(installed)!r})\n"
        "from ptir.cli.main import main\nsys.exit(main())"
    )
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    kept = os.environ | {"PTIR_CACHE_DIR": str(installed / "cache")}
    return subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True)


def test_each_broken_backend_is_one_line_with_its_cause(installed: Path) -> None:
    done = ptir(installed, "backends")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[1]: line for line in done.stdout.splitlines() if "tiny-" in line[:40]}
    assert set(lines) == {name for name, group, *_ in DISTRIBUTIONS if group == BACKENDS}
    for name, (status, cause) in CAUSES.items():
        assert status in lines[f"tiny-{name}"]
        assert cause in lines[f"tiny-{name}"]
    assert TWINS in lines["tiny-twin-a"]
    assert TWINS in lines["tiny-twin-b"]
    assert "0 Tiny One (reference)" in lines["tiny-good"]
    sick = (
        "plugin sick of tiny-plugin 1.0 is broken: import of tiny_plugin failed: OSError: no disk"
    )
    assert sick in done.stderr.splitlines()
    assert done.stderr.splitlines()[-1] == "`ptir doctor` says how to mend what does not work"


def test_a_file_in_the_working_directory_that_hides_a_backend_is_named(
    installed: Path, tmp_path: Path
) -> None:
    """A command line has the working directory on its path where Python is told to (``-c``)."""
    (tmp_path / "tiny_good.py").write_text(called("good"))
    done = ptir(installed, "backends", folder=tmp_path)
    said = (
        f"backend good: tiny_good is imported from {tmp_path / 'tiny_good.py'}, which hides what"
        f" tiny-good 1.0 installed: {installed / 'tiny_good.py'}; rename "
    )
    assert [line for line in done.stderr.splitlines() if line.startswith(said)], done.stderr
    assert "tiny_good is" not in ptir(installed, "backends").stderr


def test_json_has_exactly_the_promised_fields(installed: Path) -> None:
    found = json.loads(ptir(installed, "backends", "--json").stdout)
    fields = ["name", "distribution", "version", "status", "reason", "devices"]
    assert all(list(record) == fields for record in found)
    by_name = {record["name"]: record for record in found}
    for name, (status, cause) in CAUSES.items():
        assert by_name[name]["status"] == status
        assert cause in by_name[name]["reason"]
        assert by_name[name]["devices"] == []
    device = {"index": 0, "name": "Tiny One", "kind": "reference", "detail": ""}
    device["capabilities"] = {}
    assert by_name["good"]["devices"] == [device]


def test_doctor_runs_a_kernel_and_names_a_fix_for_each_problem(installed: Path) -> None:
    done = ptir(installed, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    checks = {(check["what"], check["found"]): check for check in json.loads(done.stdout)}
    works = checks["backend good:0", "Tiny One (reference) ran the probe program"]
    assert works["ok"]
    problems = {c["what"]: c["fix"] for c in checks.values() if not c["ok"]}
    assert "tiny-raises" in problems["backend raises"]
    assert "upgrade ptir-core" in problems["backend future"]
    assert "uninstall all but one" in problems["backend twin"]
    assert "pip uninstall tiny-plugin" in problems["plugin sick"]


def test_broken_plugin_does_not_break_help(installed: Path) -> None:
    done = ptir(installed, "--help")
    assert done.returncode == 0
    assert "backends" in done.stdout
    assert len(done.stderr.splitlines()) == 1
