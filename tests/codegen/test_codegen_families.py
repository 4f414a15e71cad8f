"""Families own their rows: what shared code knows of a family is in its row alone."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from paper import TARGET, optimized

import ptir
import ptir.codegen
from ptir import functional as F
from ptir.backend.contract import Options
from ptir.codegen.families import FAMILIES
from ptir.codegen.planning import fuse as fusion
from ptir.codegen.schedules.family import Family
from ptir.codegen.schedules.kernel import Fusion
from ptir.types import spec

ROOT = Path(ptir.codegen.__file__).parent
SHARED = [
    path for path in sorted(ROOT.rglob("*.py")) if "families" not in path.relative_to(ROOT).parts
]
BY_CLASS = re.compile(r"(isinstance|getattr)\(\s*\w*(group|fusion)\w*\.detail")


def test_there_is_shared_code() -> None:
    assert {"fuse.py", "deduplicate.py", "explain.py", "support.py", "tune.py", "plan.py"} <= {
        path.name for path in SHARED
    }


@pytest.mark.parametrize("path", SHARED, ids=lambda path: str(path.relative_to(ROOT)))
def test_shared_code_knows_no_family(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not BY_CLASS.search(text), "a group's detail is its family's"
    for module in imported(ast.parse(text)):
        assert not module.startswith("ptir.codegen.families."), f"imports {module}; ask its row"


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a file imports names of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_row_names_is_there(name: str) -> None:
    row = FAMILIES[name]
    assert callable(row._match) and callable(row._emit)
    for field in ("emit_cooperative", "prologue", "materialized", "inlined"):
        module = getattr(row, field)
        assert not module or callable(row._in(module, field)), field


@pytest.fixture
def extra(monkeypatch: pytest.MonkeyPatch) -> Family:
    """A family in a row of its own, which takes every ``tanh`` that is an output."""
    module = ModuleType("ptir.codegen.families.extra")
    map_ = FAMILIES["map"]

    def match(graph: Any, position: int) -> Fusion | None:
        made = graph.block.instructions[position]
        (value, *_) = graph.results[position]
        if made.op != "tanh" or value not in graph.outputs:
            return None
        return Fusion("extra", frozenset((position,)), made.operands, (value,))

    module.match, module.emit = match, map_._emit  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    row = Family("extra", "extra", ops=("tanh",))
    monkeypatch.setitem(FAMILIES, "extra", row)
    return row


def test_a_family_is_one_row_and_a_module(extra: Family) -> None:
    program = ptir.capture(lambda x: F.tanh(x + 1.0), spec("f32", 3, 40))
    assert [g.family for g in fusion.fuse(optimized(program).main).fusions] == ["extra"]
    executable = TARGET.backend.compile(program, TARGET.device, Options())
    (part,) = executable.explain().parts  # type: ignore[union-attr]
    assert part.name == "extra"
