"""Backends made of kernels import the published names of level 2, and these are what they need."""

from __future__ import annotations

from pathlib import Path

import pytest

import ptir.backend
from imports import imports_of
from ptir.cli.new_backend import module_of, rendered
from ptir.codegen import api

REPOSITORY = Path(__file__).resolve().parent.parent
BACKENDS = ("c", "opencl", "cupy")
API = "ptir.codegen.api"
PUBLISHED = (API, "ptir.backend", "ptir.backend.contract", "ptir.errors", "ptir.types", "ptir")
"""What such a backend may import of ptir."""
GATHERED = {API: api.__all__, "ptir.backend": ptir.backend.__all__, "ptir": ptir.__all__}
"""The names of those that only gather names."""


def sources() -> dict[str, tuple[str, str]]:
    """Each module of the backends, of the example and of the template: its package and text."""
    found = {}
    for name in BACKENDS:
        package = f"ptir_backend_{name}"
        for path in (REPOSITORY / f"packages/ptir-backend-{name}/src/{package}").glob("*.py"):
            found[f"{package}.{path.stem}"] = package, path.read_text(encoding="utf-8")
    toy = REPOSITORY / "examples/ptir-backend-toy/ptir_backend_toy.py"
    found["ptir_backend_toy"] = "", toy.read_text(encoding="utf-8")
    found["--level kernel"] = "", rendered("mine", "kernel")[f"{module_of('mine')}.py"]
    return found


SOURCES = sources()


def imported(package: str, text: str) -> set[tuple[str, str]]:
    """The modules of ptir that a text imports, each with what is taken from it."""
    found = set()
    for one in imports_of(text, package):
        if one.target.partition(".")[0] != "ptir":
            continue
        module = next((m for m in PUBLISHED if one.target.rpartition(".")[0] == m), one.target)
        found.add((module, one.target.removeprefix(module).lstrip(".")))
    return found


def strangers(package: str, text: str) -> list[str]:
    """What a text imports of ptir that is not published."""
    return sorted(
        f"{module}.{name}".rstrip(".")
        for module, name in imported(package, text)
        if module not in PUBLISHED or (name and name not in GATHERED.get(module, (name,)))
    )


@pytest.mark.parametrize("module", SOURCES)
def test_a_kernel_backend_imports_what_is_published(module: str) -> None:
    assert strangers(*SOURCES[module]) == [], f"import from {', '.join(PUBLISHED)}"


def test_every_published_name_is_needed_by_some_backend() -> None:
    taken = {
        name
        for source in SOURCES.values()
        for module, name in imported(*source)
        if module == API and name
    }
    assert taken | {"Dialect", "Language"} == set(api.__all__), "take unused names out of the list"


@pytest.mark.parametrize(
    "text",
    [
        "from ptir.codegen.launching.memory import Pool",
        "from ptir.codegen import binaries",
        "import ptir.codegen.planning.fuse",
        "def f():\n from ptir.backend.kernel import Walk",
        "from ptir.codegen.api import Pool",
        "from ptir.backend import kernel",
        "from ptir import codegen",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    assert len(strangers("", text)) == 1
