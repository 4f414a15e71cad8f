"""Normal forms: what a value is as algebra, so that two spellings of one thing are equal.

A value is a polynomial: a sum of monomials, each a number times powers of atoms. Atoms are what
algebra leaves whole: an input seen through a view, ``exp`` of a polynomial, the sum of a monomial
over an axis. Views go down to the inputs (``rewrite.digits``), contractions are sums of products,
numbers may differ by the rounding of f32. Equal normal forms are equal functions of real numbers;
they may round differently.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ptir.ir.graph import Node, Ref
from ptir.ops.record import op
from ptir.rewrite import digits as views
from ptir.rewrite.constants import uniform
from ptir.rewrite.digits import Digits
from ptir.rewrite.known import Known
from ptir.rewrite.polynomial import (
    CONSTANT,
    Monomial,
    Polynomial,
    TooLargeError,
    alike,
    close,
    frozen,
    plus,
    product,
    times,
)
from ptir.switches import FAST_MATH, switched_on

MASKED: Final = -1e9
"""Scores from here down have no weight: what is written where a key is masked."""
MASKED_ROUGHLY: Final = -1e4
"""The same with ``--fast-math``: masks of f16, which scores in the thousands would pass."""

DEPTH: Final = 100
"""Most ops on a path from a value to its leaves."""
LESS: Final = ("compare", "lt int")
"""A whole number that is less than 0."""
PLACES: Final = ("places",)
"""The leaf of whole numbers from 0 on."""


ODD: Final = frozenset({"erf", "tanh", "sin"})
"""Functions f with f(-x) = -f(x)."""


@dataclass(frozen=True)
class Atom:
    """What algebra leaves whole: a kind, what tells it apart, and polynomials of one index each.

    Kinds: ``leaf`` (seen through the view in ``detail``), ``fold`` (over the last ``inner``
    elements), ``each`` (elementwise), ``whole`` (nothing is known of how views go through it).
    """

    kind: str
    detail: tuple[Any, ...]
    parts: tuple[tuple[tuple[Monomial, float], ...], ...]


Rule = Callable[["NormalForms", Node], "Polynomial | None"]
"""What an op is as algebra, or None where algebra does not know it."""


@dataclass
class NormalForms:
    """Normal forms of the values of one graph, in which the values ``leaves`` are not looked into.

    ``composite`` gives the composite that a node is taken as, ``rules`` what ops are as algebra,
    ``budget`` how many nodes may be looked at; beyond it ``TooLargeError`` is raised. With
    ``masks`` numbers of ``MASKED`` and less are -inf, and adding 0 or such a number is choosing.
    With ``ratios`` numbers need not be equal: how far they are apart is collected there.
    """

    leaves: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    composite: Callable[[Node], tuple[str, str, Sequence[Ref]] | None] = lambda node: None
    rules: Mapping[str, Rule] = field(default_factory=dict[str, Rule])
    budget: int = 400
    masks: bool = False
    ratios: list[float] | None = None
    known: Known = field(default_factory=Known)
    _depth: int = 0
    atoms: list[Atom] = field(default_factory=list[Atom])
    _ids: dict[Any, list[int]] = field(default_factory=dict[Any, list[int]])
    _found: dict[tuple[int, int], Polynomial] = field(
        default_factory=dict[tuple[int, int], Polynomial]
    )
    _seen: dict[tuple[int, Digits], int] = field(default_factory=dict[tuple[int, Digits], int])

    # --- atoms ---

    def atom(self, kind: str, detail: tuple[Any, ...], *parts: Polynomial) -> int:
        """The number of an atom; those that are equal but for rounding have one."""
        kept = tuple(map(frozen, parts))
        signature = (kind, detail, tuple(tuple(m for m, _ in part) for part in kept))
        numbers = [number for part in kept for _, number in part]
        ids = self._ids.setdefault(signature, [])
        for known in ids:
            others = [number for part in self.atoms[known].parts for _, number in part]
            if all(map(operator.eq if detail == LESS else close, numbers, others)):
                return known
        if self.ratios is not None and ids and detail != LESS:
            others = [number for part in self.atoms[ids[0]].parts for _, number in part]
            self._note(numbers, others)
            return ids[0]
        self.atoms.append(Atom(kind, detail, kept))
        ids.append(len(self.atoms) - 1)
        return ids[-1]

    def _note(self, wanted: Iterable[float], found: Iterable[float]) -> None:
        for one, other in zip(wanted, found, strict=True):
            if self.ratios is not None and not close(one, other) and one and math.isfinite(one):
                self.ratios.append(other / one)

    def same(self, wanted: Polynomial, found: Polynomial) -> bool:
        """Whether two polynomials are equal; while collecting, but for their numbers."""
        if self.ratios is None:
            return alike(wanted, found)
        if wanted.keys() != found.keys():
            return False
        self._note(wanted.values(), [found[m] for m in wanted])
        return True

    def _single(self, *atom: Any) -> Polynomial:
        return {((self.atom(*atom), 1),): 1.0}

    # --- views ---

    def seen(self, p: Polynomial, view: Digits) -> Polynomial:
        """``p`` as a view sees it."""
        found: Polynomial = {}
        for monomial, number in p.items():
            term: Polynomial = {CONSTANT: number}
            for atom, exponent in monomial:
                term = product(term, self._power_seen(atom, exponent, view))
            found = plus(found, term)
        return found

    def _power_seen(self, number: int, exponent: float, view: Digits) -> Polynomial:
        atom = self.atoms[number]
        if exponent == 1 and atom.kind == "leaf" and atom.detail[0] == PLACES:
            through = views.composed(view, atom.detail[1])
            if through is not None:
                return self.places(through)
        return {((self._atom_seen(number, view), exponent),): 1}

    def places(self, view: Digits) -> Polynomial:
        """The whole numbers from 0 on, seen through a view: a sum over its digits."""
        found: Polynomial = {CONSTANT: view.offset} if view.offset else {}
        for index, (_, stride) in enumerate(view.digits):
            if stride:
                alone = [(n, int(i == index)) for i, (n, _) in enumerate(view.digits)]
                atom = self.atom("leaf", (PLACES, views.merged(alone)))
                found = plus(found, {((atom, 1),): stride})
        return found

    def _atom_seen(self, number: int, view: Digits) -> int:
        key = (number, view)
        if key not in self._seen:
            self._seen[key] = self._look(self.atoms[number], number, view)
        return self._seen[key]

    def _look(self, atom: Atom, number: int, view: Digits) -> int:
        if atom.kind == "leaf":
            name, own = atom.detail
            through = views.composed(view, own)
            if through is not None:
                return self.atom("leaf", (name, through))
        elif atom.kind == "each":
            return self.atom("each", atom.detail, *(self.seen(dict(p), view) for p in atom.parts))
        elif atom.kind == "fold":
            wide = views.of_blocks(view, atom.detail[1])
            return self.atom("fold", atom.detail, self.seen(dict(atom.parts[0]), wide))
        elif atom.detail[0] == "concat":
            sizes, inner = atom.detail[1:]
            rows = views.in_blocks(view, sum(sizes) * inner)
            if rows is not None:
                each = zip(atom.parts, sizes, strict=True)
                parts = (self.seen(dict(p), views.of_blocks(rows, n * inner)) for p, n in each)
                return self.atom("whole", atom.detail, *parts)
        return self.atom("leaf", (("whole", number), view))

    # --- values ---

    def of(self, value: Ref) -> Polynomial:
        """The normal form of a value over its flat index."""
        found = self._found.get(value.key)
        if found is None:
            self.budget -= 1
            self._depth += 1
            if self.budget < 0 or self._depth > DEPTH:
                raise TooLargeError
            found = self._found[value.key] = self._of(value)
            self._depth -= 1
        return found

    def _of(self, value: Ref) -> Polynomial:
        node = value.node
        size = value.type.size
        if value.key in self.leaves:
            name = self.leaves[value.key]
            return self._single("leaf", (name, views.identity(size)))
        number = uniform(value)
        if number is not None and not isinstance(number, bool):
            low = self.masks and value.type.dtype.is_float and number <= masked_from()
            number = -math.inf if low else number
            return {CONSTANT: number} if number else {}
        if node.is_source:
            return self._single("leaf", (("value", *value.key), views.identity(size)))
        taken = self.composite(node)
        if taken is not None:
            name, text, operands = taken
            return self._single("whole", ("composite", name, text), *map(self.of, operands))
        array = self.known.of(value)
        if array is not None:
            return self.literal(value, array)
        rule = self.rules.get(node.op)
        found = rule(self, node) if rule else None
        return self._other(value) if found is None else found

    def literal(self, value: Ref, array: Any) -> Polynomial:
        """A constant array without the axes along which it repeats."""
        shape, strides, kept = value.type.shape, [], array
        for axis in range(len(shape)):
            first = kept.take([0], axis=axis) if shape[axis] else kept
            if shape[axis] > 1 and (first == kept).all():
                kept = first
        strides = views.strides_of(kept.shape)
        rows = zip(shape, kept.shape, strides, strict=True)
        view = views.merged([(n, s if n == m else 0) for n, m, s in rows])
        if kept.size == 1:
            number = kept.reshape(()).item()
            if isinstance(number, bool):
                return self._truth(number)
            return {CONSTANT: number} if number else {}
        if value.type.dtype.is_float:
            kept = kept.astype("f4")
        name = ("literal", str(kept.dtype), kept.tobytes())
        return self._single("leaf", (name, view))

    def _truth(self, holds: bool) -> Polynomial:
        return self._single("each", ("truth", holds))

    def _other(self, value: Ref) -> Polynomial:
        """An op that algebra knows nothing of; elementwise ones let views through."""
        node = value.node
        parts = [self.of(operand) for operand in node.operands]
        regions = tuple(region.digest for region in node.regions)
        if "elementwise" in op(node.op).traits:
            return self._elementwise(node, parts)
        shapes = tuple(operand.type.shape for operand in node.operands)
        detail = (node.op, node.attributes.text, value.index, shapes, regions)
        return self._single("whole", detail, *parts)

    def _elementwise(self, node: Node, parts: list[Polynomial]) -> Polynomial:
        if node.op in ODD and frozen(parts[0])[0][1] < 0:
            minus = product(parts[0], {CONSTANT: -1})
            return product(self._elementwise(node, [minus]), {CONSTANT: -1})
        if len(parts) == 1:
            pieces = self._concat_pieces(parts[0])
            if pieces is not None:
                detail, polynomials = pieces
                inner = [
                    self._single("each", (node.op, node.attributes.text), p) for p in polynomials
                ]
                return self._single("whole", detail, *inner)
        if "commutative" in op(node.op).traits:
            parts.sort(key=frozen)
        return self._single("each", (node.op, node.attributes.text), *parts)

    def _concat_pieces(self, p: Polynomial) -> tuple[tuple[Any, ...], list[Polynomial]] | None:
        """The pieces of a polynomial that is nothing but joined ones."""
        if len(p) != 1:
            return None
        ((monomial, number),) = p.items()
        if len(monomial) != 1 or monomial[0][1] != 1:
            return None
        atom = self.atoms[monomial[0][0]]
        if atom.kind != "whole" or atom.detail[0] != "concat":
            return None
        return atom.detail, [product(dict(part), {CONSTANT: number}) for part in atom.parts]

    # --- algebra ---

    def power(self, p: Polynomial, exponent: float) -> Polynomial:
        """``p ** exponent``; whole powers of a monomial go inside, small ones are multiplied."""
        if not p:
            raise TooLargeError
        if len(p) > 1 and exponent in (2, 3):
            return product(p, self.power(p, exponent - 1))
        if len(p) == 1:
            ((monomial, number),) = p.items()
            inside = float(exponent).is_integer() or all(self._positive(m) for m in monomial)
            if inside and (number > 0 or float(exponent).is_integer()):
                powers = tuple((atom, e * exponent) for atom, e in monomial)
                return {powers: float(number) ** exponent}
        if exponent == 1:
            return p
        monomials = frozen(p)
        lead = monomials[0][1]
        if lead <= 0 or not math.isfinite(lead):
            lead = 1.0
        base = self.atom("each", ("power",), {m: number / lead for m, number in monomials})
        return {((base, exponent),): lead**exponent}

    def _positive(self, power: tuple[int, float]) -> bool:
        """Whether roots of powers of this atom are roots of it: it is a root or ``exp`` itself."""
        atom, exponent = power
        detail = self.atoms[atom].detail
        return detail[0] == "exp" or (detail == ("power",) and abs(exponent) < 1)

    def fold_sum(self, p: Polynomial, inner: int) -> Polynomial:
        """The sum over the last ``inner`` elements: what is equal along them is taken out."""
        found: Polynomial = {}
        for monomial, number in p.items():
            outside: Monomial = ()
            inside: list[tuple[int, float]] = []
            for atom, exponent in monomial:
                still = self._along(atom, inner)
                if still is None:
                    inside.append((atom, exponent))
                else:
                    outside = times(outside, ((still, exponent),))
            if inside and inner > 1:
                body = {tuple(sorted(inside)): 1.0}
                fold = self.atom("fold", ("sum", inner), body)
                outside, count = times(outside, ((fold, 1),)), 1
            else:
                count = inner
            found = plus(found, {outside: number * count})
        return found

    def _along(self, number: int, inner: int) -> int | None:
        """An atom that is equal along the last ``inner`` elements, of the elements above them."""
        atom = self.atoms[number]
        if atom.kind == "leaf":
            name, view = atom.detail
            parts = views.split(view, inner)
            if parts is None or any(stride for _, stride in parts[1]):
                return None
            return self.atom("leaf", (name, views.merged(parts[0], view.offset)))
        if atom.kind == "each":
            above = [self._all_along(dict(part), inner) for part in atom.parts]
            if any(p is None for p in above):
                return None
            return self.atom("each", atom.detail, *(p for p in above if p is not None))
        if atom.kind == "fold":
            return None if inner > 1 else number
        return None

    def _all_along(self, p: Polynomial, inner: int) -> Polynomial | None:
        found: Polynomial = {}
        for monomial, number in p.items():
            term: Monomial = ()
            for atom, exponent in monomial:
                still = self._along(atom, inner)
                if still is None:
                    return None
                term = times(term, ((still, exponent),))
            found = plus(found, {term: number})
        return found

    # --- what is masked ---

    def masked(self, p: Polynomial, mask: Polynomial) -> Polynomial | None:
        """``p + mask``, where the mask is 0 or as low as scores that have no weight."""
        if not self.masks or len(mask) != 1:
            return None
        ((monomial, number),) = mask.items()
        if number != 1 or len(monomial) != 1 or monomial[0][1] != 1:
            return None
        atom = self.atoms[monomial[0][0]]
        low: Polynomial = {CONSTANT: -math.inf}
        if atom.kind == "each" and atom.detail[0] == "select":
            predicate, then, otherwise = (dict(part) for part in atom.parts)
            if not then and _is_low(otherwise):
                return self.choice(predicate, p, low)
            if not otherwise and _is_low(then):
                return self.choice(self.negated(predicate), p, low)
        elif atom.kind == "leaf" and atom.detail[0][0] == "literal":
            holds = _shown(atom.detail[0])
            if holds is not None:
                name = ("literal", "bool", holds)
                return self.choice(self._single("leaf", (name, atom.detail[1])), p, low)
        return None

    def choice(self, predicate: Polynomial, then: Polynomial, other: Polynomial) -> Polynomial:
        """``then`` where the predicate holds, else ``other``."""
        holds = self.truth(predicate)
        if holds is not None:
            return then if holds else other
        if _is_low(then) and not _is_low(other):
            predicate, then, other = self.negated(predicate), other, then
        return self._single("each", ("select", ""), predicate, then, other)

    def negated(self, predicate: Polynomial) -> Polynomial:
        """The opposite of a predicate; a second ``not`` undoes the first."""
        holds = self.truth(predicate)
        if holds is not None:
            return self._truth(not holds)
        atom = self._atom_of(predicate)
        if atom is not None and atom.kind == "each" and atom.detail == ("not", ""):
            return dict(atom.parts[0])
        if atom is not None and atom.kind == "each" and atom.detail == LESS:
            # not (d < 0) is -d - 1 < 0
            minus = {m: -number for m, number in atom.parts[0]}
            return self._single("each", atom.detail, plus(minus, {CONSTANT: 1}, -1))
        if atom is not None and atom.kind == "leaf" and atom.detail[0][:2] == ("literal", "bool"):
            name, view = atom.detail
            flipped = bytes(1 - byte for byte in name[2])
            return self._single("leaf", (("literal", "bool", flipped), view))
        return self._single("each", ("not", ""), predicate)

    def truth(self, predicate: Polynomial) -> bool | None:
        """What a predicate is where that is known."""
        atom = self._atom_of(predicate)
        return bool(atom.detail[1]) if atom is not None and atom.detail[0] == "truth" else None

    def _atom_of(self, p: Polynomial) -> Atom | None:
        if len(p) != 1:
            return None
        ((monomial, _),) = p.items()
        return self.atoms[monomial[0][0]] if len(monomial) == 1 else None

    def both(self, parts: Sequence[Polynomial]) -> Polynomial:
        """All of several predicates."""
        found: dict[Any, Polynomial] = {}
        for part in parts:
            holds = self.truth(part)
            if holds is False:
                return self._truth(False)
            atom = self._atom_of(part)
            if atom is not None and atom.kind == "each" and atom.detail[0] == "and":
                found |= {inner: dict(inner) for inner in atom.parts}
            elif holds is None:
                found[frozen(part)] = part
        if not found:
            return self._truth(True)
        ordered = [found[key] for key in sorted(found)]
        return ordered[0] if len(ordered) == 1 else self._single("each", ("and", ""), *ordered)

    def bounds(self, p: Polynomial) -> tuple[float, float]:
        """Between which numbers a polynomial of places lies."""
        low = high = 0.0
        for monomial, number in p.items():
            if monomial:
                least, most = self._bounds_of(monomial)
            else:
                least = most = 1.0
            ends = sorted((least * number, most * number)) if number else [0.0, 0.0]
            low, high = low + ends[0], high + ends[1]
        return low, high

    def _bounds_of(self, monomial: Monomial) -> tuple[float, float]:
        if len(monomial) == 1 and monomial[0][1] == 1:
            atom = self.atoms[monomial[0][0]]
            if atom.kind == "leaf" and atom.detail[0] == PLACES:
                view = atom.detail[1]
                return view.offset, view.offset + sum((n - 1) * s for n, s in view.digits)
        return -math.inf, math.inf

    def less(self, a: Polynomial, b: Polynomial, *, whole: bool, strict: bool) -> Polynomial:
        """``a < b`` or, unless strict, ``a <= b``; of whole numbers as ``a - b < 0``."""
        if not whole:
            return self._single("each", ("compare", "lt" if strict else "le"), a, b)
        difference = plus(a, b, -1)
        if not strict:
            difference = plus(difference, {CONSTANT: 1}, -1)
        low, high = self.bounds(difference)
        if high < 0 or low >= 0:
            return self._truth(high < 0)
        return self._single("each", LESS, difference)


def _is_low(p: Polynomial) -> bool:
    return p.keys() == {CONSTANT} and p[CONSTANT] == -math.inf


def masked_from() -> float:
    """The greatest number that counts as a mask."""
    return MASKED_ROUGHLY if switched_on(FAST_MATH) else MASKED


def _shown(literal: tuple[str, str, bytes]) -> bytes | None:
    """Where a mask that is added is 0, if it is as low as can be everywhere else."""
    import numpy as np

    array = np.frombuffer(literal[2], literal[1])
    if array.dtype.kind != "f" or not ((array == 0) | (array <= masked_from())).all():
        return None
    return bytes((array == 0).tobytes())
