"""Units of tests: what is run together, and that workers are handed no less."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import units


def item(nodeid: str, *scopes: str) -> Any:
    """A test whose fixtures have these scopes."""
    found = {str(n): [SimpleNamespace(scope=scope)] for n, scope in enumerate(scopes)}
    return SimpleNamespace(nodeid=nodeid, _fixtureinfo=SimpleNamespace(name2fixturedefs=found))


def test_the_longest_units_come_first_and_long_tests_are_units_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = units.ALONE
    seconds = {"a.py::test_a": 0.7 * long, "b.py::test_b": 0.1 * long, "b.py::test_long": long}
    monkeypatch.setattr(units, "timings", lambda: seconds)
    found = units.ordered([item(name) for name in ("b.py::test_b", "a.py::test_a[1]", *seconds)])
    names = {unit: [one.nodeid for one in mine] for unit, mine in found.items()}
    assert [*names.items()] == [
        ("a.py", ["a.py::test_a[1]", "a.py::test_a"]),
        ("b.py::test_long", ["b.py::test_long"]),
        ("b.py", ["b.py::test_b", "b.py::test_b"]),
    ]


def test_what_is_made_once_for_a_module_keeps_long_tests_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(units, "timings", lambda: {"b.py::test_long": units.ALONE})
    found = units.ordered([item("b.py::test_b"), item("b.py::test_long", "function", "module")])
    assert list(found) == ["b.py"]


SHARED = """
import pytest

@pytest.fixture(scope="module")
def made():
    return object()

@pytest.mark.parametrize("n", range(6))
def test_one(made, n):
    pass
"""


def test_a_worker_is_handed_a_file_whole(tmp_path: Path) -> None:
    plugin = f"import sys; sys.path.insert(0, {str(Path(units.__file__).parent)!r}); import units\n"
    registered = "def pytest_configure(config): config.pluginmanager.register(units, 'units')\n"
    (tmp_path / "conftest.py").write_text(plugin + registered, encoding="utf-8")
    for name in ("a", "b", "c"):
        (tmp_path / f"test_{name}.py").write_text(SHARED, encoding="utf-8")
    called = (sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadgroup")
    done = subprocess.run(
        [*called, "--no-loadscope-reorder", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = re.findall(r"\[(gw\d)\].* PASSED (test_\w)\.py", done.stdout)
    assert len(ran) == 18
    assert len(set(ran)) == 3, f"files were divided among workers:\n{done.stdout}"
