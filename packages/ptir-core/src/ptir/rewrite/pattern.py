"""Patterns: programs with holes, written as expressions such as ``neg(neg(x))``.

Names are holes: for values in operand position, for attribute values after ``=``. A hole that
occurs twice must be the same twice. Numbers match values whose elements are all that number, of
its kind: ``0`` integers, ``0.0`` floats (not ``-0.0``), ``True`` bools. ``uniform(c)`` matches any
such value and binds its number. Ops that Python reserves take an underscore: ``not_(x)``.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ptir.ir.attributes import Attr, attribute_text, normalize
from ptir.ir.graph import Node, Ref
from ptir.ops.record import op
from ptir.rewrite.constants import Number, fits, scalar, uniform
from ptir.types import TensorType

Binding = dict[str, Any]
"""Holes by name: a ``Ref`` for a value, an attribute value, or a number for ``uniform``."""

Make = Callable[[str, Sequence[Ref], Mapping[str, Any]], Ref]
"""Applies an op by name to values with attributes; the result is its only one."""


@dataclass(frozen=True)
class Hole:
    """Stands for any value, or any attribute value."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A value whose elements are all this number, bit for bit."""

    number: Number


@dataclass(frozen=True)
class Uniform:
    """A value whose elements are all one number, which is bound to the name."""

    name: str


@dataclass(frozen=True)
class Apply:
    """An op of one result; attributes not mentioned are not looked at."""

    op: str
    operands: tuple[Pattern, ...]
    attributes: tuple[tuple[str, Hole | Attr], ...] = ()


Pattern = Hole | Constant | Uniform | Apply


def parse_pattern(text: str) -> Pattern:
    """The pattern written as ``text``; raises ``ValueError`` (rows are ours, not a user's)."""
    return _pattern(ast.parse(text, mode="eval").body)


def _pattern(tree: ast.expr) -> Pattern:
    if isinstance(tree, ast.Name):
        return Hole(tree.id)
    if not isinstance(tree, ast.Call):
        return Constant(ast.literal_eval(tree))
    if not isinstance(tree.func, ast.Name):
        raise ValueError(f"{ast.unparse(tree)!r}: an op is called by its name")
    if tree.func.id == "uniform":
        return Uniform(ast.unparse(tree.args[0]))
    name = tree.func.id.removesuffix("_")
    name = name if keyword.iskeyword(name) else tree.func.id
    attributes = tuple((str(k.arg), _attribute(k.value)) for k in tree.keywords)
    return Apply(op(name).name, tuple(map(_pattern, tree.args)), attributes)


def _attribute(tree: ast.expr) -> Hole | Attr:
    return Hole(tree.id) if isinstance(tree, ast.Name) else normalize(ast.literal_eval(tree))


def operand_holes(pattern: Pattern) -> Iterator[str]:
    """Names of the holes for values, in order of appearance, repeats included."""
    if isinstance(pattern, Hole):
        yield pattern.name
    if isinstance(pattern, Apply):
        for operand in pattern.operands:
            yield from operand_holes(operand)


def match(pattern: Pattern, value: Ref, bound: Binding) -> Iterator[Binding]:
    """Every way in which ``value`` fits ``pattern``, as ``bound`` extended."""
    if isinstance(pattern, Hole):
        if bound.setdefault(pattern.name, value).key == value.key:
            yield bound
    elif isinstance(pattern, Constant):
        if fits(pattern.number, value.type) and _same(uniform(value), pattern.number):
            yield bound
    elif isinstance(pattern, Uniform):
        number = uniform(value)
        if number is not None:
            yield {**bound, pattern.name: number}
    else:
        yield from match_node(pattern, value.node, bound)


def match_node(pattern: Apply, node: Node, bound: Binding) -> Iterator[Binding]:
    """Every way in which the op applied at ``node`` fits; both orders of commutative operands."""
    fitting = node.op == pattern.op and len(node.operands) == len(pattern.operands)
    if not fitting or len(node.types) != 1:
        return
    attributes = _match_attributes(pattern, node, bound)
    if attributes is None:
        return
    yield from _match_all(pattern.operands, node.operands, attributes)
    if "commutative" in op(node.op).traits:
        yield from _match_all(pattern.operands, node.operands[::-1], attributes)


def _match_attributes(pattern: Apply, node: Node, bound: Binding) -> Binding | None:
    found = dict(bound)
    for name, wanted in pattern.attributes:
        value = node.attributes.get(name)
        expected = found.setdefault(wanted.name, value) if isinstance(wanted, Hole) else wanted
        if not _same(value, expected):
            return None
    return found


def _match_all(
    patterns: Sequence[Pattern], values: Sequence[Ref], bound: Binding
) -> Iterator[Binding]:
    if not patterns:
        yield bound
        return
    for extended in match(patterns[0], values[0], dict(bound)):
        yield from _match_all(patterns[1:], values[1:], extended)


def _same(a: Attr, b: Attr) -> bool:
    if type(a) is type(b) is str or type(a) is type(b) is int:
        return a == b
    return attribute_text(a) == attribute_text(b)


def build(pattern: Pattern, bound: Binding, like: TensorType | None, make: Make) -> Ref:
    """The value that ``pattern`` stands for once its holes are filled.

    Numbers take the type ``like``: the whole's at the root, inside an op the type of its first
    operand that is not a number.
    """
    if isinstance(pattern, Hole):
        found: Ref = bound[pattern.name]
        return found
    if isinstance(pattern, Apply):
        operands = _build_operands(pattern.operands, bound, like, make)
        attributes = {
            name: bound[value.name] if isinstance(value, Hole) else value
            for name, value in pattern.attributes
        }
        return make(pattern.op, operands, attributes)
    if like is None:
        raise ValueError(f"{pattern}: nothing says which type this number has")
    number = pattern.number if isinstance(pattern, Constant) else bound[pattern.name]
    return filled(number, like, make)


def _build_operands(
    patterns: Sequence[Pattern], bound: Binding, like: TensorType | None, make: Make
) -> list[Ref]:
    built = {
        index: build(pattern, bound, like, make)
        for index, pattern in enumerate(patterns)
        if not isinstance(pattern, Constant | Uniform)
    }
    near = next((value.type for value in built.values()), like)
    return [
        built[index] if index in built else build(pattern, bound, near, make)
        for index, pattern in enumerate(patterns)
    ]


def filled(number: Number, type: TensorType, make: Make) -> Ref:
    """A value of the type's shape whose elements are all ``number``: a broadcast scalar."""
    value = make("constant", (), {"value": scalar(number, type)})
    return make("broadcast_to", (value,), {"shape": type.shape}) if type.shape else value
