"""Polynomials: sums of monomials, each a number times powers of atoms that are known by number."""

from __future__ import annotations

import math
from typing import Final

Monomial = tuple[tuple[int, float], ...]
"""Atoms by number, each with its exponent, ordered."""
Polynomial = dict[Monomial, float]
"""Monomials with their numbers; an empty one is 0."""

ROUNDING: Final = 2e-6
"""How far numbers may be apart, as a share: what f32 constants and their products lose."""
TERMS: Final = 40
"""Most monomials of a polynomial."""

CONSTANT: Final[Monomial] = ()


class TooLargeError(Exception):
    """A normal form that grows beyond what any pattern has."""


def close(a: float, b: float) -> bool:
    """Whether two numbers are equal but for rounding."""
    return a == b or (abs(a - b) <= ROUNDING * max(abs(a), abs(b)) < math.inf)


def frozen(p: Polynomial) -> tuple[tuple[Monomial, float], ...]:
    """The monomials in one order, the constant last."""
    return tuple(sorted(p.items(), key=lambda item: (not item[0], item[0])))


def times(a: Monomial, b: Monomial) -> Monomial:
    """The product of two monomials."""
    powers = dict(a)
    for atom, exponent in b:
        powers[atom] = powers.get(atom, 0) + exponent
    return tuple(sorted((atom, e) for atom, e in powers.items() if e))


def plus(a: Polynomial, b: Polynomial, factor: float = 1) -> Polynomial:
    """``a + factor * b``; monomials that cancel but for rounding are gone."""
    found = dict(a)
    for monomial, number in b.items():
        before = found.get(monomial, 0)
        after = before + factor * number
        if after == 0 or (abs(after) <= 1e-9 * abs(before) and math.isfinite(after)):
            found.pop(monomial, None)
        else:
            found[monomial] = after
    if len(found) > TERMS:
        raise TooLargeError
    return found


def product(a: Polynomial, b: Polynomial) -> Polynomial:
    """``a * b``, multiplied out."""
    found: Polynomial = {}
    if len(a) * len(b) > TERMS:
        raise TooLargeError
    for one, number in a.items():
        for other, factor in b.items():
            found = plus(found, {times(one, other): number * factor})
    return found


def alike(a: Polynomial, b: Polynomial) -> bool:
    """Whether two polynomials are equal but for the rounding of their numbers."""
    return a.keys() == b.keys() and all(close(number, b[m]) for m, number in a.items())
