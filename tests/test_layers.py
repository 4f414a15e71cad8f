"""Modules import from rooms above and never in a circle, and importing stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from imports import Edge, Module, circles, edges, imports_of, modules
from together import together

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.append(str(REPOSITORY / "scripts"))

from rooms import INNER, PLANNED, ROOMS  # noqa: E402  a script's, not a package's

PACKAGES = REPOSITORY / "packages"
EVERY = {m.name: m for source in sorted(PACKAGES.glob("*/src")) for m in modules(source)}
MODULES = [name for name in EVERY if name.partition(".")[0] in ROOMS and name not in ROOMS]


ORDERS: dict[str, tuple[str, ...]] = {root: (*rooms,) for root, rooms in ROOMS.items()} | INNER


def violations(source: str, module: Module) -> list[str]:
    """The imports in ``source`` that ``module`` may not make, one line of text each."""
    orders = ((p, rooms) for p, rooms in ORDERS.items() if module.name.startswith(f"{p}."))
    return [one for order in orders for one in _violations(source, module, *order)]


def _violations(source: str, module: Module, package: str, rooms: tuple[str, ...]) -> list[str]:
    room = room_of(module.name, package)
    if room not in rooms:
        return [f"{module.name}: {room!r} is no room of {package}; known: {', '.join(rooms)}"]
    allowed = rooms[: rooms.index(room) + 1]
    return [
        f"{module.name}:{one.line} imports {one.target}, which is not above {room!r}"
        for one in imports_of(source, module.package)
        if not one.for_types and f"{one.target}.".startswith(f"{package}.")
        if room_of(one.target, package) not in allowed
    ]


def room_of(module: str, package: str) -> str:
    return module.removeprefix(package).removeprefix(".").partition(".")[0]


@together(lambda name: name.rpartition(".")[0])
@pytest.mark.parametrize("name", MODULES)
def test_module_imports_only_from_rooms_above(name: str) -> None:
    assert violations(EVERY[name].path.read_text(encoding="utf-8"), EVERY[name]) == []


@pytest.mark.parametrize("package", ORDERS)
def test_rooms_have_files_unless_they_are_planned(package: str) -> None:
    found = {room_of(name, package) for name in MODULES if name.startswith(f"{package}.")}
    planned = {room for room, holds in ROOMS.get(package, {}).items() if holds == PLANNED}
    assert found == {*ORDERS[package]} - planned


ACCEPTED = [
    ("import numpy", "ptir.ops.math"),
    ("from ptir.types import F32", "ptir.ops.math"),
    ("from ptir.ops.table import OPS", "ptir.ops.math"),
    ("from ptir import errors", "ptir.types"),
    ("from .table import OPS", "ptir.ops.math"),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import ptir.cli", "ptir.types"),
    ("from ptir.codegen.fusion.graph import Graph", "ptir.codegen.schedules.kernel"),
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
    ("from ptir.codegen.schedules.kernel import Group", "ptir.codegen.fusion.graph"),
    ("from ptir.codegen.planning import fuse", "ptir.codegen.schedules.kernel"),
    ("def f():\n from ..families import FAMILIES", "ptir.codegen.schedules.tile"),
    ("import ptir.codegen", "ptir.codegen.weights.panels"),
    ("import numpy", "ptir.codegen.extras.x"),
    ("import numpy", "ptir.utils"),
    ("from ptir_testsuite.running.outcomes import Row", "ptir_testsuite.corpus.case"),
    ("from ptir_testsuite.corpus.case import Case", "ptir_testsuite.oracles.floats"),
]


@pytest.mark.parametrize(("source", "module"), ACCEPTED)
def test_import_from_above_is_accepted(source: str, module: str) -> None:
    assert violations(source, Module(module, Path("x.py"))) == []


@pytest.mark.parametrize(("source", "module"), REFUSED)
def test_import_from_below_or_unknown_room_is_refused(source: str, module: str) -> None:
    assert len(violations(source, Module(module, Path("x.py")))) == 1


CIRCLES: dict[tuple[str, ...], str] = {
    ("ptir.codegen.expressions.expr", "ptir.codegen.expressions.index"): (
        "an expression reads at an index, and an index is calculated by expressions"
    ),
}
"""Modules that import each other when they run, and why they may."""

ONLY_TYPES: dict[tuple[str, str], str] = {
    **dict.fromkeys(
        [
            (f"ptir.ir.{name}", "ptir.ir.program")
            for name in ("text", "structure", "printer", "shown")
        ],
        "a program prints itself; a protocol would be all of its records again",
    ),
    **dict.fromkeys(
        [
            (f"ptir.runtime.{name}", "ptir.runtime.handle")
            for name in ("chat", "generate", "session", "speculation", "summary")
        ],
        "a model makes runs, and drafts; a protocol would be half of its fields again",
    ),
    **dict.fromkeys(
        [
            (f"ptir.runtime.speech.{name}", "ptir.runtime.speech.speech_model")
            for name in ("decoding", "hearing")
        ],
        "a model makes them, and they are its work; a protocol would be half of its fields again",
    ),
    ("ptir_testsuite.witnesses.onnx_import.table", "ptir_testsuite.witnesses.onnx_import.scope"): (
        "the rows of a table take the scope that looks things up in it"
    ),
    ("ptir_backend_cupy.launching", "ptir_backend_cupy.device"): (
        "a launcher belongs to the device that makes it"
    ),
}
"""Imports for types alone that would close a circle if they ran, and why they are no protocol."""


def test_no_modules_import_each_other() -> None:
    found = circles(edge for edge in edges(EVERY) if not edge.for_types)
    assert not told(found), f"move what both need to where both may import it:\n{told(found)}"
    assert found == sorted(CIRCLES), "a circle is gone: take its row out"


def test_imports_for_types_that_would_close_a_circle_are_known() -> None:
    every = edges(EVERY)
    closed = circles(edge for edge in every if (edge.importer, edge.imported) not in ONLY_TYPES)
    assert closed == sorted(CIRCLES), told(closed)
    pairs = {edge[:2]: edge for edge in every if edge.for_types}
    for row in ONLY_TYPES:
        others = [edge for edge in every if edge[:2] == row or edge[:2] not in ONLY_TYPES]
        assert row in pairs and any(set(row) <= set(c) for c in circles(others)), f"{row} is gone"


def told(found: list[tuple[str, ...]]) -> str:
    """The imports that make circles which are no row of ``CIRCLES``, a line each."""
    return "\n".join(
        f"{edge.importer}:{edge.line} imports {edge.imported}"
        for circle in found
        if circle not in CIRCLES
        for edge in edges(EVERY)
        if {edge.importer, edge.imported} <= set(circle)
    )


A_AND_B = [
    ("import p.b", "import p.a", True),
    ("from p.b import x", "from p import a", True),
    ("from p import b", "def f():\n from .a import x", True),
    ("import p.b", "class C:\n def f(self):\n  try:\n   import p.a\n  finally:\n   pass", True),
    ("import p.b", "if TYPE_CHECKING:\n pass\nelse:\n import p.a", True),
    ("import p.b", "if typing.TYPE_CHECKING:\n import p.a", False),
    ("import p.b", "import os.path, q.a", False),
    ("import p.b", "", False),
]


@pytest.mark.parametrize(("a", "b", "circular"), A_AND_B)
def test_a_circle_is_found_wherever_its_imports_stand(
    a: str, b: str, circular: bool, tmp_path: Path
) -> None:
    (tmp_path / "p").mkdir()
    for name, source in (("__init__", "from p.a import x"), ("a", a), ("b", b), ("c", "import p")):
        (tmp_path / "p" / f"{name}.py").write_text(source, encoding="utf-8")
    found = edges({module.name: module for module in modules(tmp_path)})
    assert Edge("p.c", "p", 1, False) in found
    running = circles(edge for edge in found if not edge.for_types)
    assert running == ([("p.a", "p.b")] if circular else [])


def test_a_circle_may_be_long() -> None:
    ring = [Edge(f"m{n}", f"m{(n + 1) % 5}", 1, False) for n in range(5)]
    assert circles([*ring, Edge("m0", "n", 1, False)]) == [("m0", "m1", "m2", "m3", "m4")]
    assert circles(ring[1:]) == []


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


UNUSED = (
    *("ptir.stores", "ptir.checkpoint.gguf", "ptir.checkpoint.quantized"),
    *("ptir.runtime.image_model", "ptir.vision"),
)
FIRST_TOKEN = (
    "import sys\n"
    "from ptir.cli.main import main\n"
    "assert not main(['run', 'demo', '-p', 'I', '-n', '1', '--temp', '0', '--backend', 'ref'])\n"
    f"print('UNUSED', [name for name in {UNUSED} if name in sys.modules])"
)


def test_a_folder_is_opened_without_what_other_models_need() -> None:
    """Every process waits for what is imported before its first token."""
    command = [sys.executable, "-W", "error", "-c", FIRST_TOKEN]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "UNUSED []"
