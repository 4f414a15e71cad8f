"""What the distributions declare, by table; `make wheels` builds them and reads what they hold."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
WORKSPACE = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
SHARED = WORKSPACE["tool"]["ptir"]["distributions"]
PACKAGES = sorted(path.parent.name for path in REPOSITORY.glob("packages/*/pyproject.toml"))
each_package = pytest.mark.parametrize("package", PACKAGES)

ENTRIES = {
    "ptir-core": {"scripts": {"ptir": "ptir.cli.main:script"}},
    "ptir-backend-ref": {"ptir.backends": {"ref": "ptir_backend_ref:backend"}},
    "ptir-backend-c": {"ptir.backends": {"c": "ptir_backend_c:backend"}},
    "ptir-backend-opencl": {"ptir.backends": {"opencl": "ptir_backend_opencl:backend"}},
    "ptir-backend-cupy": {"ptir.backends": {"cupy": "ptir_backend_cupy:backend"}},
    "ptir-testsuite": {
        "scripts": {"ptir-conformance": "ptir_testsuite.cli:main"},
        "ptir.plugins": {"conformance": "ptir_testsuite.hooks"},
    },
}
LINUX = "platform_system == 'Linux' and platform_machine == 'x86_64'"
EXTRAS = {
    "ptir-core": {"audio": ["soundfile>=0.12"], "vision": ["pillow>=11"]},
    "ptir-backend-c": {"zig": ["ziglang>=0.13"]},
    "ptir-backend-opencl": {
        "cpu": [f"intel-opencl-rt; {LINUX}", f"intel-cmplr-lib-rt; {LINUX}"],
    },
    "ptir-backend-cupy": {
        "cuda12": ["cupy-cuda12x[ctk]>=14,!=14.1.0"],
        "cuda13": ["cupy-cuda13x[ctk]>=14,!=14.1.0"],
        "cuda12-local": ["cupy-cuda12x>=14,!=14.1.0"],
        "cuda13-local": ["cupy-cuda13x>=14,!=14.1.0"],
        "rocm7": ["cupy-rocm-7-0>=14,!=14.1.0"],
    },
    "ptir-testsuite": {"onnx": ["onnx>=1.17"], "pytest": ["pytest>=8"]},
}


@pytest.fixture(scope="module")
def scripts() -> Iterator[Callable[[str], Any]]:
    """Modules of scripts/ by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(REPOSITORY / "scripts"))
        yield importlib.import_module


def pyproject(package: str) -> dict[str, Any]:
    path = REPOSITORY / "packages" / package / "pyproject.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


@each_package
def test_a_distribution_says_what_the_workspace_says(package: str) -> None:
    project = pyproject(package)["project"]
    assert project["name"] == package
    wanted = {name: value for name, value in SHARED.items() if name not in ("classifiers", "urls")}
    assert {name: project[name] for name in wanted} == wanted
    assert project.get("urls", {}) == SHARED["urls"]
    assert "version" in project["dynamic"] and "version" not in project


@each_package
def test_classifiers_are_the_shared_ones_and_a_topic(package: str) -> None:
    found = pyproject(package)["project"]["classifiers"]
    assert found == sorted(set(found)) and set(SHARED["classifiers"]) <= set(found)
    own = set(found) - set(SHARED["classifiers"])
    assert all(one.startswith(("Topic ::", "Environment ::")) for one in own)
    assert any(one.startswith("Topic ::") for one in own), "each is for something"


@each_package
def test_a_package_is_typed_licensed_and_introduced(package: str, scripts: Any) -> None:
    given = scripts("distributions").DISTRIBUTIONS[package]
    assert given.sources()[f"{given.module}/py.typed"] == b""
    assert (given.folder / "LICENSE").read_bytes() == (REPOSITORY / "LICENSE").read_bytes()
    assert (given.folder / "README.md").read_text("utf-8").startswith(f"# {package}\n")


@each_package
def test_version_and_core_come_from_one_line(package: str) -> None:
    hatch = pyproject(package)["tool"]["hatch"]
    assert hatch["version"]["path"] == "../../VERSION"
    files = hatch.get("metadata", {}).get("hooks", {}).get("requirements_txt", {}).get("files", [])
    own = [path.name for path in (REPOSITORY / "packages" / package).glob("requirements*.txt")]
    assert files == ([] if package == "ptir-core" else ["../../VERSION", *own]), "just this core"
    carried = hatch["build"]["targets"]["sdist"]["only-include"]
    assert sorted(carried) == sorted(["src", "README.md", "LICENSE", *own])


@each_package
def test_what_builds_a_package_is_pinned(package: str) -> None:
    required = pyproject(package)["build-system"]["requires"]
    pinned = (REPOSITORY / "requirements/build.txt").read_text(encoding="utf-8").split()
    assert {line.split(">=")[0] for line in required} <= set(pinned)


@each_package
def test_entry_points_are_these_and_exist(package: str) -> None:
    project = pyproject(package)["project"]
    scripts = {"scripts": project["scripts"]} if "scripts" in project else {}
    assert scripts | project.get("entry-points", {}) == ENTRIES[package]
    for group, entries in ENTRIES[package].items():
        for name, value in entries.items():
            assert EntryPoint(name, value, group).load() is not None


@each_package
def test_extras_bring_these(package: str) -> None:
    found = pyproject(package)["project"].get("optional-dependencies", {})
    assert found == EXTRAS.get(package, {})


@each_package
def test_every_distribution_is_tried_alone(package: str, scripts: Any) -> None:
    rows = scripts("smoke").SMOKE[package]
    assert rows and not rows[0].beside


def test_the_changelog_begins_with_the_version(scripts: Any) -> None:
    section = scripts("public_surface").top_section((REPOSITORY / "CHANGELOG.md").read_text())
    assert section.version == scripts("distributions").version()


def test_nobody_is_told_to_install_the_foreign_distribution() -> None:
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
    pages += REPOSITORY.glob("packages/*/README.md")
    words = {page: page.read_text(encoding="utf-8").split() for page in pages}
    wrong = ["install", "ptir"]
    assert [p for p, w in words.items() if wrong in [w[i : i + 2] for i in range(len(w))]] == []


# ----------------------------------------------------------- the checks of what was built, checked


def wheel_of(given: Any, version: str) -> dict[str, bytes]:
    """What a right wheel of this distribution holds."""
    lines = ["Metadata-Version: 2.4", f"Name: {given.name}", f"Version: {version}"]
    lines += ["License-Expression: MIT", "License-File: LICENSE", "Requires-Python: >=3.11"]
    lines += [f"Classifier: {one}" for one in given.project["classifiers"]]
    lines += [f"Requires-Dist: ptir-core=={version}", "Description-Content-Type: text/markdown", ""]
    text = "\n".join([*lines, (given.folder / "README.md").read_text("utf-8")])
    license_ = (given.folder / "LICENSE").read_bytes()
    about = {"METADATA": text.encode(), "licenses/LICENSE": license_}
    return given.sources() | {f"{given.dist_info}/{name}": it for name, it in about.items()}


def without(name: str) -> Callable[[dict[str, bytes]], None]:
    return lambda held: [held.pop(path) for path in [*held] if path.endswith(name)] and None


def instead(name: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    def change(held: dict[str, bytes]) -> None:
        (path,) = (path for path in held if path.endswith(name))
        assert old in held[path]
        held[path] = held[path].replace(old, new)

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without("/py.typed"), "lacks ptir_backend_ref/py.typed"),
        (without("/backend.py"), "lacks ptir_backend_ref/backend.py of the working tree"),
        (without("licenses/LICENSE"), "LICENSE is missing"),
        (instead("licenses/LICENSE", b"MIT", b"BSD"), "not the LICENSE of the repository"),
        (instead("/backend.py", b"import", b"export"), "holds another ptir_backend_ref/backend.py"),
        (lambda held: held.update({"tests/test_a.py": b""}), "holds the test tests/test_a.py"),
        (lambda held: held.update({"ptir/a.py": b""}), "holds ptir beside ptir_backend_ref"),
        (without("/METADATA"), "metadata: "),
        (instead("METADATA", b"Version: 0", b"Version: 9"), "metadata: version is '9"),
        (instead("METADATA", b"ptir-core==", b"ptir-core>="), "metadata: requirements on ptir"),
        (instead("METADATA", b"Expression: MIT", b"Expression: ?"), "metadata: "),
        (instead("METADATA", b"Typing :: Typed", b"Typing ::"), "metadata: classifiers is"),
        (instead("METADATA", b"\n\n# ptir", b"\n\nptir"), "metadata: readme is"),
        (instead("METADATA", b"\n\n", b"\nProject-URL: A, b:c\n\n"), "metadata: urls is"),
    ],
)
def test_a_damaged_wheel_is_refused(
    damage: Callable[[dict[str, bytes]], None], said: str, scripts: Any
) -> None:
    module = scripts("distributions")
    given = module.DISTRIBUTIONS["ptir-backend-ref"]
    held = wheel_of(given, module.version())
    assert module.faults_of_wheel(given, held) == []
    damage(held)
    assert said in "\n".join(module.faults_of_wheel(given, held))


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "said"),
    [
        (0, "\nI have a moon,\n", "", ""),
        (1, "\nI have a moon,\n", "", "ended with 1, not with 0"),
        (0, "\nI have a Moon,\n", "", "on stdout"),
    ],
)
def test_a_command_is_held_to_its_code_and_text(
    code: int, stdout: str, stderr: str, said: str, scripts: Any
) -> None:
    (row,) = (row for row in scripts("smoke").SMOKE["ptir-backend-c"] if row.command[0] == "ptir")
    found = row.fault(code, stdout, stderr)
    assert said in found and bool(said) == bool(found)
