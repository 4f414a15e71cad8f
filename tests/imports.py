"""What modules import, read from their text, and the circles among them.

An import counts where it runs, inside functions too; one below ``if TYPE_CHECKING`` is for types.
That a module's package is imported before it is left out: every ``__init__`` that gathers names
would close a circle, and Python makes the package before it runs it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """One name that is imported: where, by its whole dotted name, and whether for types alone."""

    line: int
    target: str
    for_types: bool


@dataclass(frozen=True)
class Module:
    """A module of a source tree."""

    name: str
    path: Path

    @property
    def package(self) -> str:
        return self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]

    @property
    def imports(self) -> tuple[Import, ...]:
        return imports_of(self.path.read_text(encoding="utf-8"), self.package)


def modules(root: Path) -> Iterator[Module]:
    """The modules below a folder of packages."""
    for path in sorted(root.glob("**/*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)


@cache
def imports_of(source: str, package: str) -> tuple[Import, ...]:
    """Everything that the text of a module in ``package`` imports, name by name."""
    return tuple(_imports(ast.parse(source), package, for_types=False))


def _imports(node: ast.AST, package: str, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # no import stands in one
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from _imports(ast.Module(child.body, []), package, True)
            yield from _imports(ast.Module(child.orelse, []), package, for_types)
            continue
        if isinstance(child, ast.Import):
            yield from (Import(child.lineno, alias.name, for_types) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = absolute(child, package)
            names = (f"{base}.{alias.name}" for alias in child.names)
            yield from (Import(child.lineno, name, for_types) for name in names)
        yield from _imports(child, package, for_types)


def absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parents = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*parents, node.module] if node.module else parents)


# --- the graph ---


class Edge(NamedTuple):
    """A module imports another one."""

    importer: str
    imported: str
    line: int
    for_types: bool


def edges(known: Mapping[str, Module]) -> list[Edge]:
    """The imports among ``known`` modules; of a name in a module, the module."""
    found = (
        Edge(module.name, _module(one.target, known), one.line, one.for_types)
        for module in known.values()
        for one in module.imports
    )
    return list(dict.fromkeys(edge for edge in found if edge.imported not in ("", edge.importer)))


def _module(target: str, known: Mapping[str, Module]) -> str:
    """The innermost known module in a dotted name, or nothing."""
    while target and target not in known:
        target = target.rpartition(".")[0]
    return target


def circles(graph: Iterable[Edge]) -> list[tuple[str, ...]]:
    """The sets of modules of which each leads to each, sorted."""
    after: dict[str, set[str]] = {}
    for edge in graph:
        after.setdefault(edge.importer, set()).add(edge.imported)
    reached = {name: _reached(name, after) for name in after}
    found = {
        tuple(sorted(other for other in reached[name] if name in reached.get(other, ())))
        for name in after
    }
    return sorted(circle for circle in found if circle)


def _reached(name: str, after: Mapping[str, set[str]]) -> frozenset[str]:
    seen, pending = set[str](), [name]
    while pending:
        for follower in after.get(pending.pop(), ()):
            if follower not in seen:
                seen.add(follower)
                pending.append(follower)
    return frozenset(seen)
