"""Another commit's packages beside this tree's: checked out, imported by a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = ("ptir", *(f"ptir_backend_{name}" for name in ("ref", "c", "opencl", "cupy")))
"""What is measured is one of these, or loads it."""
FIND = """
import importlib.util, json, sys
found = {name: importlib.util.find_spec(name) for name in sys.argv[1:]}
print(json.dumps({name: spec and spec.origin for name, spec in found.items()}))
"""

ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The tree of a commit in a folder of its own, for as long as it lasts."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def importing(tree: Path) -> dict[str, str]:
    """The environment of a process that imports the packages of a tree.

    Byte code is written beside what the tree builds: an installed package has its own.
    Raises ``RuntimeError`` where it would import others: then two trees would be compared with one.
    """
    sources = sorted(str(place) for place in tree.glob("packages/*/src"))
    environment = {
        "PYTHONPATH": os.pathsep.join(sources),
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(tree / "build" / "bytecode"),
    }
    command = (sys.executable, "-c", FIND, *PACKAGES)
    made = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    for package, place in json.loads(made.stdout).items():
        if place is not None and not Path(place).resolve().is_relative_to(tree.resolve()):
            raise RuntimeError(f"{package} is imported from {place}, and not from {tree}")
    return environment


def _git(*arguments: str) -> None:
    command = ("git", "-C", str(ROOT), *arguments)
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        sys.exit(f"{' '.join(command)}: {made.stderr.strip()}")
