"""No text of a language is written outside of dialects, the renderer and persistent kernels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import ptir.codegen

ROOT = Path(ptir.codegen.__file__).parent
FILES = [p for p in sorted(ROOT.rglob("*.py")) if re.search(r"\bwriter\b", p.read_text("utf-8"))]
"""Whatever builds kernels; the renderer and persistent kernels (``persistent.py``) do not."""
CODE = re.compile(
    r";\s*$|[{}]\s*$|\b(for|if|while)\s*\(|^\s*\[$|\]\s*=\s*$|\b(int|float|const)\s+\w*\s*$"
)
"""What stands in C and in no sentence: ends of statements, headers, subscripts, declarations."""


def pieces(tree: ast.AST) -> Iterator[str]:
    """Strings that are no docstring and no message of an error."""
    apart = {id(inner) for node in ast.walk(tree) for inner in said(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart:
            yield node.value


def said(node: ast.AST) -> Iterator[ast.AST]:
    """What is said to people: a string that stands alone, what is raised or asserted."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node.value
    if isinstance(node, ast.Raise | ast.Assert):
        yield from ast.walk(node)


def code_in(source: str) -> list[str]:
    return [piece for piece in pieces(ast.parse(source)) if CODE.search(piece)]


@pytest.mark.parametrize(
    "source",
    [
        'w.line(f"{name} = {text};")',
        'w.block(f"for (int i = 0; i < {n}; ++i)")',
        'w.block("if (member == 0)")',
        'w.line(f"{array}[{at}] = {x}")',
        'x = f"const int {name} = {y}"',
    ],
)
def test_code_is_found_where_there_is_some(source: str) -> None:
    assert code_in(source)


def test_sentences_and_names_are_no_code() -> None:
    source = '"""A page; it ends."""\nraise E(f"if (x) {y};")\nz = f"a{m}_{c}", "a norm; a sum"'
    assert code_in(source) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_kernel_is_written_as_text(file: Path) -> None:
    assert code_in(file.read_text(encoding="utf-8")) == []


def test_all_families_are_looked_at() -> None:
    families = {p for p in FILES if "families" in p.relative_to(ROOT).parts}
    assert len(FILES) > len(families) > 30
