"""Distributions made on the spot: wheels with one module and entry points, as others publish."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import ZipFile

import pytest

from ptir import plugins
from ptir.backend import registry, trial
from ptir.cli import main as cli

TINY = (Path(__file__).parent / "tiny_backend.py").read_text(encoding="utf-8")


STRANGERS = trial.strangers


def called(name: str, source: str = TINY) -> str:
    """``source`` with its backend called ``name``."""
    return source.replace('name = "tiny"', f'name = "{name}"')


def wheel(
    folder: Path,
    name: str,
    group: str,
    entry: str,
    source: str,
    more: Mapping[str, str] = MappingProxyType({}),
    requires: Iterable[str] = (),
) -> Path:
    """A wheel of the distribution ``name`` 1.0 whose module has its name and ``source``.

    ``more`` are texts of further files by path, ``requires`` what it says that it needs.
    """
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    files = {
        f"{module}.py": source,
        **more,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[{group}]\n{entry}\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with ZipFile(path, "w") as archive:
        for member, text in [*files.items(), (f"{info}/RECORD", record)]:
            archive.writestr(member, text)
    return path


def pip_install(target: Path, wheels: list[Path]) -> None:
    """Install ``wheels`` into ``target`` as pip does, without a network."""
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options]
    done = subprocess.run([*command, *map(str, wheels)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Site:
    """A folder on ``sys.path`` that is the only place where distributions are looked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: list[str] = []

    def backend(self, name: str, source: str, distribution: str = "", **others: Any) -> str:
        """Install a backend called ``name`` whose module ends in ``source``; gives the module.

        The backend in it is renamed, as it must be called what its entry point is. ``others`` are
        those of ``wheel``.
        """
        source = called(name, source)
        distribution = distribution or f"tiny-{name}"
        entry = f"{name} = {distribution.replace('-', '_')}:backend"
        return self.add(distribution, registry.GROUP, entry, source, **others)

    def plugin(self, name: str, source: str) -> str:
        """Install a plugin called ``name`` whose module is ``source``; gives the module."""
        module = f"tiny_{name}"
        return self.add(f"tiny-{name}", plugins.GROUP, f"{name} = {module}", source)

    def add(self, distribution: str, group: str, entry: str, source: str, **others: Any) -> str:
        with ZipFile(wheel(self.folder, distribution, group, entry, source, **others)) as archive:
            archive.extractall(self.folder)
        importlib.invalidate_caches()
        self.modules.append(distribution.replace("-", "_"))
        return self.modules[-1]


def forget() -> None:
    """Forget which backends and plugins were loaded, and which commands they gave."""
    loaded = (registry._load_once, registry.best, plugins._loaded, plugins._installed)
    for cached in (*loaded, trial.verdicts):
        cached.cache_clear()
    plugins.ENDS.clear()
    cli.group.__dict__.pop("plugin_commands", None)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty site; what it installs is gone after the test.

    Nothing there is tried in a process of its own, which ``strangers_tried`` is for.
    """
    found = Site(tmp_path / "site")
    found.folder.mkdir()
    monkeypatch.syspath_prepend(found.folder)
    only_here = partial(metadata.distributions, path=[str(found.folder)])
    monkeypatch.setattr(metadata, "distributions", only_here)
    monkeypatch.setattr(trial, "strangers", lambda entries: ())
    forget()
    yield found
    forget()
    for module in found.modules:
        sys.modules.pop(module, None)


@pytest.fixture
def strangers_tried(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site whose backends and plugins are tried as everywhere, and were never tried before."""
    monkeypatch.setattr(trial, "strangers", STRANGERS)
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    return site
