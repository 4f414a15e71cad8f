"""What a report rests on: every file of the backend's distribution, and what that needs."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from types import SimpleNamespace

import numpy as np
import pytest

from ptir.backend import registry
from ptir.errors import UsageError
from ptir_testsuite.reports import provenance
from ptir_testsuite.reports.distribution import dependencies_of, files_of, version_of
from ptir_testsuite.reports.files import require_same
from ptir_testsuite.reports.provenance import origin_of, strange
from ptir_testsuite.reports.report import Report
from ptir_testsuite.reports.rerun import run_again
from ptir_testsuite.reports.verification import Verification
from ptir_testsuite.running.outcomes import Outcome, Row
from tiny_distributions import TINY, Site, site

__all__ = ["site"]

HELPER = "def scale(x):\n    return x\n"
FILES = {
    "tiny_helpers/__init__.py": "",
    "tiny_helpers/deep/scale.py": HELPER,
    "tiny_helpers/deep/kernels.cl": "kernel void one() {}\n",
    "tiny_alone.py": HELPER,
    "tiny_space/inner.py": HELPER,
}
"""Beside the module of the backend: a package with data, a module, a part of a namespace."""
NEEDS = ("numpy>=1", 'pytest; extra == "test"', 'no-such-thing; extra == "gpu"', "Ptir_Core")


@pytest.fixture
def target(site: Site):
    """The device of a backend whose distribution has several top-level names."""
    site.backend("mine", TINY, more=FILES, requires=NEEDS)
    return registry.get("mine")


def origin(target, **changes):
    return {**origin_of(target), **changes}


def test_every_file_of_the_distribution_is_in_the_report(target):
    files = files_of(target.backend)
    assert files.keys() == {"tiny_mine.py", *FILES}
    assert len(set(files.values())) == 4, "a digest is of the text"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_swapped_is_named(name, target, site):
    before = origin(target)
    (site.folder / name).write_text("def scale(x):\n    return 2 * x\n", encoding="utf-8")
    said = f"another code here than in the report ({name} differs)"
    assert strange(before, origin(target)) == [said]


def test_a_file_that_came_into_a_package_and_one_that_went_are_named(target, site):
    before = origin(target)
    (site.folder / "tiny_helpers" / "new.py").write_text("", encoding="utf-8")
    (site.folder / "tiny_alone.py").unlink()
    (found,) = strange(before, origin(target))
    assert "(tiny_alone.py is gone, tiny_helpers/new.py is new)" in found


def test_files_of_others_and_what_python_writes_are_no_part_of_it(target, site):
    before = origin(target)
    for name in ("other.py", "tiny_space/others.py", "tiny_helpers/__pycache__/scale.pyc"):
        path = site.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("", encoding="utf-8")
    assert strange(before, origin(target)) == []


def test_a_report_is_not_believed_after_a_helper_was_swapped(target, site):
    header = origin(target, backend="mine", number=0, imports=[])
    report = Report(header, [Row("add-0", "add", "", (), (), Outcome.PASS)])
    (site.folder / "tiny_alone.py").write_text("def scale(x):\n    return 0\n", encoding="utf-8")
    found = Verification()
    run_again(report, {}, 1, 1.0, found)
    said = "what the rows came to: another code here than in the report (tiny_alone.py differs): "
    assert found.open == [said + "verify it where it was made, or run again"]
    assert found.exit_code == 3


def test_a_run_is_not_gone_on_with_after_a_helper_was_swapped(target, site, tmp_path):
    header = {"kind": "header", "files": files_of(target.backend)}
    (site.folder / "tiny_alone.py").write_text("", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        require_same(tmp_path, header, header | {"files": files_of(target.backend)})
    assert "cannot be resumed: of its files, tiny_alone.py differs;" in str(refused.value)


def test_an_editable_install_is_all_modules_beside_the_backends_without_tests(target, site):
    """Its record names a file with the folder, and no module."""
    info = site.folder / "tiny_mine-1.0.dist-info"
    (info / "RECORD").write_text("_tiny_mine.pth,,\n", encoding="utf-8")
    origin = {"url": site.folder.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin), encoding="utf-8")
    for name in ("test_mine.py", "conftest.py", "setup.py", "notes.txt"):
        (site.folder / name).write_text("", encoding="utf-8")
    (site.folder / "tests").mkdir()
    (site.folder / "tests" / "__init__.py").write_text("", encoding="utf-8")
    wanted = {"tiny_mine.py", *FILES} - {"tiny_space/inner.py"}
    assert files_of(target.backend).keys() == wanted


def test_modules_of_import_are_a_part_of_the_code(target, site, monkeypatch):
    (site.folder / "my_ops").mkdir()
    for name in ("__init__", "oracle"):
        (site.folder / "my_ops" / f"{name}.py").write_text("", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "my_ops", __import__("my_ops"))
    named = files_of(target.backend, ["my_ops"]).keys() - files_of(target.backend).keys()
    assert named == {"my_ops/__init__.py", "my_ops/oracle.py"}


# --- dependencies ---


def test_what_the_distribution_requires_is_recorded_with_what_that_requires(target):
    found = dependencies_of(target.backend)
    assert found["numpy"] == np.__version__
    assert found["ptir-core"] == metadata.version("ptir-core")
    assert "ml-dtypes" in found, "required by what is required"
    assert "pytest" not in found and "no-such-thing" not in found


def test_another_version_of_a_dependency_is_named(target, monkeypatch):
    before, now = origin(target), metadata.distribution("numpy").version
    before["dependencies"] = before["dependencies"] | {"numpy": "1.0"}
    said = f"other dependencies here than in the report (numpy was 1.0 and is {now})"
    assert strange(before, origin(target)) == [said]


def test_the_version_is_that_of_the_distribution(target):
    assert version_of(target.backend) == "1.0"


@pytest.mark.parametrize("folder", ("plain", ".hidden/lib"))
def test_the_digest_of_a_package_is_of_its_files_wherever_it_lies(folder, tmp_path, monkeypatch):
    root = tmp_path / folder / "tiny_package"
    (root / "__pycache__").mkdir(parents=True)
    (root / "__init__.py").write_text("", encoding="utf-8")
    (root / "part.py").write_text("A = 1\n", encoding="utf-8")
    module = SimpleNamespace(__file__=str(root / "__init__.py"))
    monkeypatch.setitem(sys.modules, "tiny_package", module)
    found = []
    for file, text in (("part.py", "A = 1\n"), ("__pycache__/x.pyc", ""), ("part.py", "A = 2\n")):
        (root / file).write_text(text, encoding="utf-8")
        provenance._digest.cache_clear()
        found.append(provenance._digest("tiny_package"))
    assert found[0] == found[1] != found[2]
