"""Where whole numbers lie: indices, loop variables, and what conditions say of them.

What comes in: an index or an expression, and the scopes that it stands in. What goes out: its least
and its greatest value. They follow from the sizes of loops (``Axis``), narrowed by what the kernel
itself says: ends of loops, values of variables that do not change, conditions around it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ptir.codegen.expressions.expr import Apply, Const, Coordinate, Expr, Var
from ptir.codegen.expressions.index import Atom, Axis, Dynamic, Index, Quotient
from ptir.codegen.kernel_ir.scopes import Range, Scopes
from ptir.codegen.kernel_ir.values import Hoisted

HUGE: Final = 1 << 62
"""Beyond every number of an index."""


def bounds(scopes: Scopes, index: Index) -> Range:
    """Where an index lies."""
    low = high = index.constant
    for atom, factor in index.terms.items():
        least, most = (factor * end for end in _atom(scopes, atom))
        low, high = low + min(least, most), high + max(least, most)
    return low, high


def _atom(scopes: Scopes, atom: Atom) -> Range:
    if isinstance(atom, Axis):
        return _both(atom.bounds, _named(scopes, atom.name))
    if isinstance(atom, Dynamic):
        return _both(atom.bounds, number(scopes, atom.value))
    low, high = bounds(scopes, atom.of)
    if isinstance(atom, Quotient):
        return low // atom.by, high // atom.by
    return (low, high) if low >= 0 and high < atom.by else (0, atom.by - 1)


def number(scopes: Scopes, expr: Expr | None) -> Range | None:
    """Where a whole number lies; None where that is not known."""
    match expr:
        case Const() if not expr.dtype.is_float:
            return int(expr.value), int(expr.value)
        case Coordinate():
            return bounds(scopes, expr.index)
        case Var():
            return _named(scopes, expr.name)
        case Hoisted():
            return number(scopes, expr.of)
        case Apply() if expr.op in ("min", "max"):
            return _extreme(scopes, expr)
    return None


def _named(scopes: Scopes, name: str) -> Range | None:
    known = scopes[name]
    return None if known is None else known.range


def _extreme(scopes: Scopes, expr: Apply) -> Range | None:
    ends = [number(scopes, one) for one in expr.args]
    known = [one for one in ends if one is not None]
    if len(known) < 2:
        return None
    take = min if expr.op == "min" else max
    return take(one[0] for one in known), take(one[1] for one in known)


def narrow(scopes: Scopes, condition: Expr) -> None:
    """In the innermost block a condition holds: names that are below something are."""
    if not isinstance(condition, Apply):
        return
    if condition.op == "and":
        for one in condition.args:
            narrow(scopes, one)
    if condition.op not in ("lt", "le"):
        return
    below, limit = condition.args
    end = number(scopes, limit)
    name, moved = _place(below)
    known = scopes[name] if name else None
    if end is None or known is None:
        return
    most = end[1] - (condition.op == "lt") - moved
    least, before = known.range or (-HUGE, HUGE)
    scopes.blocks[-1][name] = replace(known, range=(least, min(before, most)))


def is_unreached(scopes: Scopes) -> bool:
    """Whether conditions around contradict each other, or a loop around has no iteration."""
    known = (one for block in scopes.blocks for one in block.values())
    return any(one.range is not None and one.range[0] > one.range[1] for one in known)


def _both(a: Range, b: Range | None) -> Range:
    """What lies in both ranges."""
    return a if b is None else (max(a[0], b[0]), min(a[1], b[1]))


def _place(expr: Expr) -> tuple[str, int]:
    """The name whose value this is, and what is added to it; no name where it is no such thing."""
    if isinstance(expr, Var):
        return expr.name, 0
    if isinstance(expr, Coordinate) and len(expr.index.terms) == 1:
        ((atom, factor),) = expr.index.terms.items()
        if factor == 1 and isinstance(atom, Axis):
            return atom.name, expr.index.constant
        if factor == 1 and isinstance(atom, Dynamic) and isinstance(atom.value, Var):
            return atom.value.name, expr.index.constant
    return "", 0
