"""The glossary and the code say the same: names exist, terms stand once, retired words stay out."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "reference" / "glossary.md"
CORE = REPOSITORY / "packages" / "ptir-core" / "src" / "ptir"
SWEPT = (
    *(
        "partition",
        "functional",
        "rewrite",
        "passes",
        "params",
        "runtime",
        "capture",
        "ops",
        "backend",
    ),
    *("cli", "models", "nn"),
)
"""Rooms whose names are the glossary's. The kernel generator's follow."""
UNSWEPT = {"kernel.py", "matrices.py"}
"""Files of ``backend`` that belong to the kernel generator's words."""
EVERYWHERE = """
    Choice Grid Left Let Maker Parts PARTS Places Reach Shared SharedBackend SharedPhase SharedStep
    Slide beginnings check_places crossing folds_casts generation in_turns lent let param_resolver
    prune remedy share share_block share_step shared_options side_by_side slides turn turns
"""
"""Names that were words of our own where the field has one."""
ROOMS = {
    "partition": "Facts Flow LINKS Link Local STATES Where Window collected flow gathered joined"
    " moved work",
    "functional": "join numbers",
}
"""The same, of one room: elsewhere they are the right word."""


def rows() -> Iterator[tuple[str, ...]]:
    """The rows of the glossary's tables, heads and rules left out."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        if line.startswith("|") and cells[0] not in ("term", "word") and set(cells[0]) != {"-"}:
            yield cells


def defined(path: Path) -> Iterator[str]:
    """The names that a module defines: classes, functions, arguments, fields, constants."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.arg):
            yield node.arg
    for node in tree.body:
        if isinstance(node, ast.Assign):
            yield from (t.id for t in node.targets if isinstance(t, ast.Name))


@cache
def names() -> frozenset[str]:
    """Every name of the core package, and of its modules."""
    files = list(CORE.rglob("*.py"))
    return frozenset({f.stem for f in files} | {name for f in files for name in defined(f)})


def quoted() -> Iterator[str]:
    """The names in backticks in the first column, part by part."""
    for term, *_ in rows():
        for name in re.findall(r"`([A-Za-z_.]+)`", term):
            yield from name.split(".")


def test_names_of_the_glossary_are_in_the_code() -> None:
    found = set(quoted())
    assert len(found) > 20
    assert sorted(found - names()) == []


def test_a_term_stands_once() -> None:
    terms = Counter(
        part.strip()
        for term, *_ in rows()
        for part in re.sub(r"\([^)]*\)|`", "", term).split(",")
        if part.strip()
    )
    shared = {"part", "place", "room", "row", "share"}  # explained once more as plain words
    assert len(terms) > 100
    assert sorted(t for t, n in terms.items() if n > 1 and t not in shared) == []


def test_a_row_says_what_a_term_means_and_what_others_call_it() -> None:
    assert all(all(cells) and len(cells) in (2, 3) for cells in rows())


@pytest.mark.parametrize("room", SWEPT)
def test_retired_words_stay_out_of_the_names(room: str) -> None:
    files = [f for f in (CORE / room).rglob("*.py") if f.name not in UNSWEPT]
    assert files
    retired = {*EVERYWHERE.split(), *ROOMS.get(room, "").split()}
    found = {f"{f.name}: {name}" for f in files for name in defined(f) if name in retired}
    assert sorted(found) == []
