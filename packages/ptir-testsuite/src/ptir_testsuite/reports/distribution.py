"""What the backend's author wrote, as it is installed, and what that needs.

A backend is all files of the distribution that declares it, not the one module that defines its
class: a helper beside it computes as much. Of what others wrote, names and versions are enough.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from ptir.backend import Backend, registry
from ptir.backend.entries import normalized
from ptir.backend.import_places import edited_folder

OURS: Final = frozenset({"ptir", "ptir_testsuite"})
"""Packages that have a digest of their own in every report."""
CORE: Final = "ptir-core"
LEVELS: Final = 2
"""What the distribution requires, and what that requires."""

_SKIPPED: Final = re.compile(r"__pycache__|\..*|.*\.dist-info|.*\.egg-info|.*\.pyc")
_TESTS: Final = re.compile(r"tests?|test_.*|.*_test\.py|conftest\.py|setup\.py|noxfile\.py")
"""What lies beside the modules of an editable install and is run by none of them."""
_MODULE: Final = (".py", ".so", ".pyd")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_FOR_TESTS: Final = frozenset({"test", "tests", "dev", "docs", "lint"})
"""Extras that nothing needs to run."""


def distribution_of(backend: Backend) -> metadata.Distribution | None:
    """The distribution that declares the backend, or None where none does."""
    points = (entry.point for entry in registry.listed() if entry.name == backend.name)
    return next((point.dist for point in points if point is not None), None)


def version_of(backend: Backend) -> str:
    """The version of the distribution that a backend was installed with, or that it was not."""
    found = distribution_of(backend)
    return "not installed" if found is None else str(found.version)


def files_of(backend: Backend, imports: Iterable[str] = ()) -> dict[str, str]:
    """A digest of every file of the backend's distribution and of modules of ``--import``.

    Files are named as they are imported, by their path below the folder that is on ``sys.path``.
    """
    found: dict[str, Path] = {}
    distribution = distribution_of(backend)
    if distribution is not None:
        found |= _shipped(distribution, _root(type(backend).__module__))
    for module in (type(backend).__module__, *imports):
        if module.partition(".")[0] not in OURS:
            found |= _named(*_root(module))
    return {name: _digest(path) for name, path in sorted(found.items())}


def dependencies_of(backend: Backend) -> dict[str, str]:
    """The installed version of everything that the backend's distribution requires, by name."""
    distribution, found = distribution_of(backend), dict[str, str]()
    wanted = {CORE} if distribution is None else {CORE, *_required(distribution)}
    for _ in range(LEVELS):
        installed = [one for name in sorted(wanted - found.keys()) for one in _installed(name)]
        found |= {normalized(one.name): str(one.version) for one in installed}
        wanted = {name for one in installed for name in _required(one)}
    return dict(sorted(found.items()))


# --- files ---


def _shipped(
    distribution: metadata.Distribution, own: tuple[Path, Iterable[Path]]
) -> dict[str, Path]:
    """What the distribution installed; of an editable one, all modules beside the backend's."""
    recorded = [path for path in distribution.files or () if ".." not in path.parts]
    shipped = [path for path in recorded if not any(map(_SKIPPED.fullmatch, path.parts))]
    if not shipped or edited_folder(distribution) is not None:
        folder, _ = own
        return _named(folder, (one for one in folder.iterdir() if _is_module(one)))
    root = Path(str(distribution.locate_file("")))
    found = {path.as_posix(): root / path for path in shipped if (root / path).is_file()}
    packages = {root / path.parts[0] for path in shipped if len(path.parts) > 1}
    return found | _named(root, (p for p in packages if (p / "__init__.py").is_file()))


def _is_module(path: Path) -> bool:
    """Whether a path is a module or a package, and none of tests."""
    if _SKIPPED.fullmatch(path.name) or _TESTS.fullmatch(path.name):
        return False
    return path.suffix in _MODULE if path.is_file() else (path / "__init__.py").is_file()


def _root(module: str) -> tuple[Path, list[Path]]:
    """The folder that a module is imported from, and its outermost package or file."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        place = getattr(sys.modules.get(".".join(parts[:depth])), "__file__", None)
        if place is not None:
            file = Path(place)
            top = file.parent if file.name == "__init__.py" else file
            return top.parents[depth - 1], [top]
    return Path(), []


def _named(folder: Path, tops: Iterable[Path]) -> dict[str, Path]:
    """The files of packages and modules by their path below ``folder``."""
    return {path.relative_to(folder).as_posix(): path for top in tops for path in _below(top)}


def _below(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
        return
    for path in top.rglob("*"):
        parts = path.relative_to(top).parts
        if path.is_file() and not any(map(_SKIPPED.fullmatch, parts)):
            yield path


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


# --- dependencies ---


def _required(distribution: metadata.Distribution) -> Iterator[str]:
    """The names of what a distribution requires, with its extras unless they are for tests."""
    for text in distribution.requires or ():
        extra, name = _EXTRA.search(text), _NAME.match(text)
        if name is not None and (extra is None or extra[1] not in _FOR_TESTS):
            yield normalized(name[0])


def _installed(name: str) -> Iterator[metadata.Distribution]:
    try:
        yield metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return
