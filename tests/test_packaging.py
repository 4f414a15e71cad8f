"""What the distributions contain and declare, read from wheels built here."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent.name for path in REPOSITORY.glob("packages/*/pyproject.toml"))
DEMO = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
each_package = pytest.mark.parametrize("package", PACKAGES)

Build = Callable[[str], Path]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a package's wheel from the working tree, once."""
    return _builder(tmp_path_factory.mktemp("tree"), "--wheel")


@pytest.fixture(scope="module")
def wheel_from_sdist(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a package's wheel from its source distribution, once."""
    return _builder(tmp_path_factory.mktemp("sdist"))


def _builder(folder: Path, *options: str) -> Build:
    def built(package: str) -> Path:
        pattern = f"{package.replace('-', '_')}-*.whl"
        if not list(folder.glob(pattern)):
            _build(REPOSITORY / "packages" / package, folder, *options)
        (path,) = folder.glob(pattern)
        return path

    return built


def _build(package: Path, folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), *options]
    done = subprocess.run([*command, str(package)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def names(wheel: Path) -> list[str]:
    with ZipFile(wheel) as archive:
        return sorted(archive.namelist())


def dist_info(wheel: Path, name: str) -> str:
    (path,) = (found for found in names(wheel) if found.endswith(f".dist-info/{name}"))
    with ZipFile(wheel) as archive:
        return archive.read(path).decode()


def metadata(wheel: Path) -> Message:
    return Parser().parsestr(dist_info(wheel, "METADATA"))


def version() -> str:
    (line,) = (
        line
        for line in (REPOSITORY / "VERSION").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    return line.removeprefix("ptir-core==")


def is_cache(path: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)


@each_package
def test_version_licence_and_python_are_the_workspace_ones(package: str, wheel: Build) -> None:
    declared = metadata(wheel(package))
    assert declared["Name"] == package
    assert declared["Version"] == version()
    assert declared["License-Expression"] == "MIT"
    assert declared["Requires-Python"] == ">=3.11"
    text = dist_info(wheel(package), "licenses/LICENSE")
    assert text == (REPOSITORY / "LICENSE").read_text(encoding="utf-8")


@each_package
def test_wheel_holds_one_typed_top_level_package(package: str, wheel: Build) -> None:
    module = "ptir" if package == "ptir-core" else package.replace("-", "_")
    code = [name for name in names(wheel(package)) if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in code} == {module}
    assert f"{module}/py.typed" in code
    assert f"{module}/__init__.py" in code


@each_package
def test_wheel_holds_every_source_file_and_no_tests(package: str, wheel: Build) -> None:
    source = REPOSITORY / "packages" / package / "src"
    files = [path.relative_to(source) for path in source.rglob("*") if path.is_file()]
    written = {path.as_posix() for path in files if not is_cache(path)}
    packed = {name for name in names(wheel(package)) if ".dist-info/" not in name}
    assert packed == written
    assert not [name for name in packed if "test" in Path(name).parts[-1] or "tests/" in name]


@each_package
def test_wheel_from_source_distribution_is_the_same(
    package: str, wheel: Build, wheel_from_sdist: Build
) -> None:
    assert names(wheel_from_sdist(package)) == names(wheel(package))
    rebuilt, direct = metadata(wheel_from_sdist(package)), metadata(wheel(package))
    assert sorted(rebuilt.items()) == sorted(direct.items())


@each_package
def test_everything_but_core_requires_exactly_this_core(package: str, wheel: Build) -> None:
    required = metadata(wheel(package)).get_all("Requires-Dist", [])
    pinned = [line for line in required if line.startswith("ptir")]
    assert pinned == ([] if package == "ptir-core" else [f"ptir-core=={version()}"])


def test_core_ships_the_demo_model_and_the_command(wheel: Build) -> None:
    packed = names(wheel("ptir-core"))
    assert {f"ptir/data/demo/{name}" for name in DEMO} <= set(packed)
    assert "ptir = ptir.cli.main:main" in dist_info(wheel("ptir-core"), "entry_points.txt")


def test_reference_backend_is_an_entry_point(wheel: Build) -> None:
    declared = dist_info(wheel("ptir-backend-ref"), "entry_points.txt")
    assert declared.split("\n")[:2] == ["[ptir.backends]", "ref = ptir_backend_ref:backend"]


def test_c_backend_is_an_entry_point_and_brings_a_compiler_when_asked(wheel: Build) -> None:
    declared = dist_info(wheel("ptir-backend-c"), "entry_points.txt")
    assert declared.split("\n")[:2] == ["[ptir.backends]", "c = ptir_backend_c:backend"]
    required = metadata(wheel("ptir-backend-c")).get_all("Requires-Dist", [])
    assert [line.split(">")[0] for line in required] == [f"ptir-core=={version()}", "ziglang"]
    assert "extra ==" in required[1]


def test_opencl_backend_is_an_entry_point_and_brings_a_cpu_runtime_when_asked(
    wheel: Build,
) -> None:
    declared = dist_info(wheel("ptir-backend-opencl"), "entry_points.txt")
    assert declared.split("\n")[:2] == ["[ptir.backends]", "opencl = ptir_backend_opencl:backend"]
    required = metadata(wheel("ptir-backend-opencl")).get_all("Requires-Dist", [])
    always = [line for line in required if "extra ==" not in line]
    extra = [line.split(";")[0] for line in required if 'extra == "cpu"' in line.replace("'", '"')]
    assert [line.split(">")[0] for line in always] == [f"ptir-core=={version()}", "pyopencl"]
    assert extra == ["intel-cmplr-lib-rt", "intel-opencl-rt"]


def test_cupy_backend_is_an_entry_point_and_leaves_the_choice_of_cupy(wheel: Build) -> None:
    declared = dist_info(wheel("ptir-backend-cupy"), "entry_points.txt")
    assert declared.split("\n")[:2] == ["[ptir.backends]", "cupy = ptir_backend_cupy:backend"]
    required = metadata(wheel("ptir-backend-cupy")).get_all("Requires-Dist", [])
    always = [line for line in required if "extra ==" not in line]
    assert always == [f"ptir-core=={version()}"], "without a GPU it installs alone"
    chosen = {line.split("extra == ")[1].strip("'\""): line for line in required[1:]}
    assert {extra: re.split(r"[>!;]", line)[0] for extra, line in chosen.items()} == {
        "cuda12": "cupy-cuda12x[ctk]",
        "cuda13": "cupy-cuda13x[ctk]",
        "cuda12-local": "cupy-cuda12x",
        "cuda13-local": "cupy-cuda13x",
        "rocm7": "cupy-rocm-7-0",
    }
    assert all("!=14.1.0" in line for line in chosen.values())
    held = {name.rpartition("/")[2] for name in names(wheel("ptir-backend-cupy"))}
    assert held >= {"functions.h", "matrices.h", "vectors.h"}


def test_nobody_is_told_to_install_the_foreign_distribution() -> None:
    pages = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]
    pages += REPOSITORY.glob("packages/*/README.md")
    words = {page: page.read_text(encoding="utf-8").split() for page in pages}
    wrong = ["install", "ptir"]
    assert [p for p, w in words.items() if wrong in [w[i : i + 2] for i in range(len(w))]] == []
