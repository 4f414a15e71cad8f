"""The distributions of this repository: what they say of themselves, and what is wrong with a file.

`scripts/release.py` asks this of every file it built; tests ask it of small ones made to be wrong.
"""

from __future__ import annotations

import tarfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

from packaging.metadata import ExceptionGroup, Metadata

ROOT: Final = Path(__file__).resolve().parent.parent
CORE: Final = "ptir-core"
LICENSE: Final = "LICENSE"


def version() -> str:
    """The one version of all distributions."""
    lines = (ROOT / "VERSION").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if not line.startswith("#"))
    return line.removeprefix(f"{CORE}==")


@dataclass(frozen=True)
class Distribution:
    """One of packages/."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def module(self) -> str:
        """Its one top-level package."""
        return "ptir" if self.name == CORE else self.name.replace("-", "_")

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))

    @property
    def project(self) -> dict[str, Any]:
        return self.pyproject["project"]

    @property
    def stem(self) -> str:
        """How the names of its files begin."""
        return f"{self.name.replace('-', '_')}-{version()}"

    @property
    def dist_info(self) -> str:
        return f"{self.stem}.dist-info"

    def sources(self) -> dict[str, bytes]:
        """Every file of its package in the working tree, by the path that a wheel gives it."""
        source = self.folder / "src"
        found = (path.relative_to(source) for path in source.rglob("*") if path.is_file())
        return {one.as_posix(): (source / one).read_bytes() for one in found if not _is_cache(one)}


def _is_cache(path: Path) -> bool:
    """Whether a path within a package is none of its files."""
    return any(part == "__pycache__" or part.startswith(".") for part in path.parts)


DISTRIBUTIONS: Final = {
    path.parent.name: Distribution(path.parent)
    for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}


def contents(archive: Path) -> dict[str, bytes]:
    """Every file of a wheel or of a source distribution, by its path."""
    if archive.suffix == ".whl":
        with ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        opened = {member.name: sdist.extractfile(member) for member in sdist.getmembers()}
        return {name: file.read() for name, file in opened.items() if file is not None}


def faults_of_wheel(given: Distribution, held: dict[str, bytes]) -> list[str]:
    """What is wrong with a wheel that holds these files; nothing where it may be published."""
    package = {path: held[path] for path in held if not path.startswith(f"{given.dist_info}/")}
    return [
        *_differences(given.sources(), package),
        *_typed(given, package),
        *_licensed(held, f"{given.dist_info}/licenses/{LICENSE}"),
        *_described(given, held.get(f"{given.dist_info}/METADATA", b"")),
    ]


def faults_of_sdist(given: Distribution, held: dict[str, bytes]) -> list[str]:
    """What is wrong with a source distribution that holds these files."""
    source = f"{given.stem}/src/"
    package = {path.removeprefix(source): held[path] for path in held if path.startswith(source)}
    missing = [
        f"lacks {name}"
        for name in ("pyproject.toml", given.project["readme"])
        if f"{given.stem}/{name}" not in held
    ]
    return [
        *_differences(given.sources(), package),
        *missing,
        *_licensed(held, f"{given.stem}/{LICENSE}"),
        *_described(given, held.get(f"{given.stem}/PKG-INFO", b"")),
    ]


def _differences(wanted: dict[str, bytes], found: dict[str, bytes]) -> Iterator[str]:
    for path in sorted(wanted.keys() | found.keys()):
        if path not in found:
            yield f"lacks {path} of the working tree"
        elif path not in wanted:
            yield f"holds {path}, which is not in the working tree"
        elif wanted[path] != found[path]:
            yield f"holds another {path} than the working tree"


def _typed(given: Distribution, package: dict[str, bytes]) -> Iterator[str]:
    for name in ("__init__.py", "py.typed"):
        if f"{given.module}/{name}" not in package:
            yield f"lacks {given.module}/{name}"
    if others := {path.split("/")[0] for path in package} - {given.module}:
        yield f"holds {', '.join(sorted(others))} beside {given.module}"
    for path in package:
        if "tests" in path.split("/") or path.rpartition("/")[2].startswith("test_"):
            yield f"holds the test {path}"


def _licensed(held: dict[str, bytes], path: str) -> Iterator[str]:
    if held.get(path) != (ROOT / LICENSE).read_bytes():
        yield f"{path} is missing or not the {LICENSE} of the repository"


def _described(given: Distribution, text: bytes) -> Iterator[str]:
    """The core metadata: valid, and what the working tree says."""
    try:
        said = Metadata.from_email(text)
    except ExceptionGroup as errors:
        yield from (f"metadata: {error}" for error in errors.exceptions)
        return
    project, required = given.project, [str(line) for line in said.requires_dist or ()]
    rows = {
        "name": (said.name, given.name),
        "version": (str(said.version), version()),
        "license": (said.license_expression, project["license"]),
        "requires-python": (str(said.requires_python), project["requires-python"]),
        "classifiers": (sorted(said.classifiers or ()), sorted(project["classifiers"])),
        "urls": (said.project_urls or {}, project.get("urls", {})),
        "readme": (said.description, (given.folder / project["readme"]).read_text("utf-8")),
        "requirements on ptir": (
            [line for line in required if line.startswith("ptir")],
            [] if given.name == CORE else [f"{CORE}=={version()}"],
        ),
        "extras": (
            sorted(said.provides_extra or ()),
            sorted(project.get("optional-dependencies", {})),
        ),
    }
    for what, (found, wanted) in rows.items():
        if found != wanted:
            yield f"metadata: {what} is {found!r}; the working tree says {wanted!r}"
