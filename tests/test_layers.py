"""A module imports only from its own room and the rooms above it, and importing stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from together import together

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
SOURCES = {
    "ptir": PACKAGES / "ptir-core" / "src",
    "ptir_testsuite": PACKAGES / "ptir-testsuite" / "src",
}
CORE = (
    *(
        "errors",
        "switches",
        "events",
        "types",
        "ir",
        "ops",
        "params",
        "rewrite",
        "backend",
        "passes",
        "partition",
        "codegen",
    ),
    *("capture", "functional", "nn", "models", "checkpoint", "text"),
    *("vision", "plugins", "runtime", "trace", "cli"),
)
SUITE = (
    *("oracles", "corpus", "running", "reports"),
    *("mutants", "witnesses", "cli", "plugin", "hooks", "__main__"),
)
ROOMS = {"ptir": CORE, "ptir_testsuite": SUITE}
MODULES = {
    str(path.relative_to(source)): path
    for name, source in SOURCES.items()
    for path in sorted(source.glob(f"{name}/**/*.py"))
    if path != source / name / "__init__.py"
}


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """The imports in ``source`` that ``module`` may not make, one line of text each."""
    root, room = module.split(".")[0], room_of(module)
    rooms = ROOMS[root]
    if room not in rooms:
        return [f"{module}: {room!r} is no room of {root}; known: {', '.join(rooms)}"]
    allowed = rooms[: rooms.index(room) + 1]
    package = module if is_package else module.rpartition(".")[0]
    return [
        f"{module}:{line} imports {target}, which is not above {room!r}"
        for line, target in imported(ast.parse(source), package)
        if target.split(".")[0] == root and room_of(target) not in allowed
    ]


def room_of(module: str) -> str:
    return (*module.split("."), "")[1]


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import that runs, inside functions too."""
    for node in running(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, package)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below ``node`` except the bodies of ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for statement in child.orelse:
                yield statement
                yield from running(statement)
        else:
            yield child
            yield from running(child)


def absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parents, node.module] if node.module else parents)


@together(lambda name: str(Path(name).parent))
@pytest.mark.parametrize("name", MODULES)
def test_module_imports_only_from_rooms_above(name: str) -> None:
    path, parts = MODULES[name], Path(name).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    module = ".".join(parts[:-1] if is_package else parts)
    assert violations(path.read_text(encoding="utf-8"), module, is_package) == []


ACCEPTED = [
    ("import numpy", "ptir.ops.math"),
    ("from ptir.types import F32", "ptir.ops.math"),
    ("from ptir.ops.table import OPS", "ptir.ops.math"),
    ("from ptir import errors", "ptir.types"),
    ("from .table import OPS", "ptir.ops.math"),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import ptir.cli", "ptir.types"),
]
REFUSED = [
    ("from ptir.ops import add", "ptir.types"),
    ("import ptir.cli.main", "ptir.plugins"),
    ("def f():\n from ptir.runtime import x", "ptir.nn.linear"),
    ("from ..runtime import x", "ptir.nn.linear"),
    ("from ptir import runtime", "ptir.nn.linear"),
    ("from ptir import tensor", "ptir.models.gpt2"),
    ("import ptir", "ptir.cli.main"),
    ("if TYPE_CHECKING:\n pass\nelse:\n import ptir.cli", "ptir.types"),
    ("import numpy", "ptir.utils"),
    ("from ptir_testsuite.running.outcomes import Row", "ptir_testsuite.corpus.case"),
    ("from ptir_testsuite.corpus.case import Case", "ptir_testsuite.oracles.floats"),
]


@pytest.mark.parametrize(("source", "module"), ACCEPTED)
def test_import_from_above_is_accepted(source: str, module: str) -> None:
    assert violations(source, module) == []


@pytest.mark.parametrize(("source", "module"), REFUSED)
def test_import_from_below_or_unknown_room_is_refused(source: str, module: str) -> None:
    assert len(violations(source, module)) == 1


HEAVY = ("numpy", "ml_dtypes", "tokenizers", "safetensors")
REPORT = f"print('HEAVY', [name for name in {HEAVY} if name in sys.modules])"
HELP = (
    "import sys\n"
    "from ptir.cli.main import main\n"
    "try:\n"
    "    main(['--help'])\n"
    "except SystemExit as exit:\n"
    "    assert not exit.code, exit.code\n"
)


@pytest.mark.parametrize("program", ["import sys, ptir\n", HELP], ids=["import ptir", "--help"])
def test_nothing_heavy_is_imported_by(program: str) -> None:
    command = [sys.executable, "-W", "error", "-c", program + REPORT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"
