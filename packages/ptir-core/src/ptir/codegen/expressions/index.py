"""Index arithmetic: whole numbers computed from loop variables, kept in a simplified normal form.

Movement ops fold into these expressions (a transpose permutes them, a reshape divides and takes
remainders), and a schedule asks them what it needs to know: their range, and whether consecutive
lanes read consecutive elements. Every atom knows its range, which is what simplifies divisions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ptir.codegen.expressions.expr import Expr


class Axis(NamedTuple):
    """A loop variable with values ``0 .. size - 1``."""

    name: str
    size: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value."""
        return 0, max(0, self.size - 1)


@dataclass(frozen=True)
class _Division:
    of: Index
    by: int


class Quotient(_Division):
    """``of // by``, rounded down, with ``by`` positive."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value."""
        return self.of.low // self.by, self.of.high // self.by


class Remainder(_Division):
    """``of % by``, never negative, with ``by`` positive."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value."""
        return 0, self.by - 1


@dataclass(frozen=True)
class Dynamic:
    """A whole number read or computed at run time, known to lie in a range."""

    value: Expr
    low: int
    high: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value."""
        return self.low, self.high


Atom: TypeAlias = Axis | Quotient | Remainder | Dynamic


class Index:
    """A constant plus whole multiples of atoms; immutable, equal when the normal forms are."""

    __slots__ = ("_bounds", "_dynamic", "_hash", "constant", "terms")
    # Attributes with an underscore are worked out when they are asked for: functools does that too,
    # behind a lock that costs more than most of what is kept here.
    _bounds: tuple[int, int] | None
    _dynamic: bool | None
    _hash: int | None

    def __init__(self, terms: Mapping[Atom, int], constant: int = 0) -> None:
        self.terms = {atom: factor for atom, factor in terms.items() if factor}
        self.constant = constant
        self._bounds = self._dynamic = self._hash = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((frozenset(self.terms.items()), self.constant))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Index):
            return False
        return self.constant == other.constant and self.terms == other.terms

    def __repr__(self) -> str:
        return spelled(self, lambda value: "?", "long")

    @property
    def is_dynamic(self) -> bool:
        """Whether a value known at run time only stands in it, at any depth."""
        if self._dynamic is None:
            self._dynamic = any(
                isinstance(atom, Dynamic) or (not isinstance(atom, Axis) and atom.of.is_dynamic)
                for atom in self.terms
            )
        return self._dynamic

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value, from the ranges of the atoms."""
        if self._bounds is None:
            low = high = self.constant
            for atom, factor in self.terms.items():
                least, most = atom.bounds
                if factor < 0:
                    least, most = most, least
                low, high = low + factor * least, high + factor * most
            self._bounds = low, high
        return self._bounds

    @property
    def low(self) -> int:
        """The least value."""
        return self.bounds[0]

    @property
    def high(self) -> int:
        """The greatest value."""
        return self.bounds[1]

    @property
    def is_constant(self) -> bool:
        """Whether nothing varies."""
        return not self.terms

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return self._moved(other)
        if not other.terms:
            return self._moved(other.constant)
        if not self.terms:
            return other._moved(self.constant)
        terms = dict(self.terms)
        for atom, factor in other.terms.items():
            terms[atom] = terms.get(atom, 0) + factor
        return _rejoined(Index(terms, self.constant + other.constant))

    def _moved(self, by: int) -> Index:
        """The same terms with another constant; they are shared."""
        if not by:
            return self
        made = object.__new__(Index)
        made.terms, made.constant = self.terms, self.constant + by
        made._bounds = made._hash = None
        made._dynamic = self._dynamic
        return made

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        terms = {atom: count * factor for atom, count in self.terms.items()}
        return Index(terms, self.constant * factor)

    def __floordiv__(self, by: int) -> Index:
        if by == 1 or (self.low >= 0 and self.high < by):
            return self if by == 1 else ZERO
        whole, rest = self._split(by)
        if rest.is_constant or (rest.low >= 0 and rest.high < by):
            return whole
        return whole + _quotient(rest, by)

    def __mod__(self, by: int) -> Index:
        if by == 1:
            return ZERO
        rest = self._split(by)[1]
        if rest.low >= 0 and rest.high < by:
            return rest
        return _remainder(rest, by)

    def _split(self, by: int) -> tuple[Index, Index]:
        """``(whole, rest)`` with ``self == whole * by + rest``, the rest's constant in range."""
        whole = {a: f // by for a, f in self.terms.items() if f % by == 0}
        rest = {a: f for a, f in self.terms.items() if f % by}
        return Index(whole, self.constant // by), Index(rest, self.constant % by)

    def coefficient(self, axis: Axis) -> int | None:
        """The factor of ``axis`` where the value is linear in it, else None."""
        for atom in self.terms:
            if atom != axis and axis in _atom_axes(atom):
                return None
        return self.terms.get(axis, 0)


ZERO = Index({})
MOST = (1 << 31) - 1
"""The greatest number of 32 bits with a sign: what variables of kernels count to."""


def axis(name: str, size: int) -> Index:
    """The index that a loop variable is; a loop of one step is the constant 0."""
    return Index({Axis(name, size): 1}) if size > 1 else ZERO


def number(value: int) -> Index:
    """A constant index."""
    return Index({}, value)


def dynamic(value: Expr, low: int, high: int) -> Index:
    """An index computed at run time and known to lie in ``low .. high``."""
    return number(low) if low == high else Index({Dynamic(value, low, high): 1})


def _only_atom(index: Index) -> Atom | None:
    if index.constant == 0 and len(index.terms) == 1:
        ((atom, factor),) = index.terms.items()
        return atom if factor == 1 else None
    return None


def _coarse(index: Index, by: int) -> tuple[int, Index, Index] | None:
    """``(g, coarse, fine)`` with ``index == g * coarse + fine``, 0 <= fine < g, g dividing by."""
    for least in sorted({abs(factor) for factor in index.terms.values()}):
        if least == 1:
            continue
        large = {a: f for a, f in index.terms.items() if abs(f) >= least}
        step = math.gcd(by, *large.values())
        small = {a: f for a, f in index.terms.items() if abs(f) < least}
        fine = Index(small, index.constant % step)
        if step > 1 and fine.low >= 0 and fine.high < step:
            coarse = {a: f // step for a, f in large.items()}
            return step, Index(coarse, index.constant // step), fine
    return None


def _quotient(index: Index, by: int) -> Index:
    found = _coarse(index, by)
    if found is not None:
        step, coarse, _ = found
        return coarse // (by // step)
    atom = _only_atom(index)
    if isinstance(atom, Quotient):
        return atom.of // (atom.by * by)
    if isinstance(atom, Remainder) and atom.by % by == 0:
        return (atom.of // by) % (atom.by // by)
    return Index({Quotient(index, by): 1})


def _remainder(index: Index, by: int) -> Index:
    found = _coarse(index, by)
    if found is not None:
        step, coarse, fine = found
        return (coarse % (by // step)) * step + fine
    atom = _only_atom(index)
    if isinstance(atom, Remainder) and atom.by % by == 0:
        return atom.of % by
    return Index({Remainder(index, by): 1})


def _rejoined(index: Index) -> Index:
    """``index`` with ``x // n * n + x % n`` put together again wherever it occurs."""
    for low, factor in index.terms.items():
        if not isinstance(low, Remainder):
            continue
        for high, other in index.terms.items():
            joined = _joined(low, high) if other == factor * low.by else None
            if joined is not None:
                rest = {a: f for a, f in index.terms.items() if a not in (low, high)}
                return Index(rest, index.constant) + joined * factor
    return index


def _joined(low: Remainder, high: Atom) -> Index | None:
    """``high * low.by + low`` as one value, where ``high`` holds the digits above ``low``."""
    above = low.of // low.by
    if isinstance(high, Remainder) and high.of == above:
        return low.of % (low.by * high.by)
    return low.of if above == Index({high: 1}) else None


def _atom_axes(atom: Atom) -> Iterable[Axis]:
    match atom:
        case Axis():
            return (atom,)
        case Dynamic():
            return atom.value.axes
        case _:
            return axes_of(atom.of)


def axes_of(index: Index) -> Iterable[Axis]:
    """Every loop variable that ``index`` depends on, with repetitions."""
    for atom in index.terms:
        yield from _atom_axes(atom)


def replaced(index: Index, values: Mapping[Axis, Index]) -> Index:
    """``index`` with loop variables given other values, simplified again."""
    if not any(axis in values for axis in axes_of(index)):
        return index
    result = number(index.constant)
    for atom, factor in index.terms.items():
        result = result + _replaced_atom(atom, values) * factor
    return result


def _replaced_atom(atom: Atom, values: Mapping[Axis, Index]) -> Index:
    match atom:
        case Axis():
            return values.get(atom, Index({atom: 1}))
        case Dynamic():
            from ptir.codegen.expressions.expr import substitute

            return dynamic(substitute(atom.value, values), atom.low, atom.high)
        case Quotient():
            return replaced(atom.of, values) // atom.by
        case Remainder():
            return replaced(atom.of, values) % atom.by


def unravel_index(flat: Index, shape: Iterable[int]) -> tuple[Index, ...]:
    """The row-major coordinates of position ``flat`` in ``shape``."""
    found: list[Index] = []
    sizes = list(shape)
    step = math.prod(sizes)
    for position, size in enumerate(sizes):
        step = step // size if size else 0
        if size <= 1:  # nothing has coordinates in an empty shape
            found.append(ZERO)
            continue
        quotient = flat // step if step else ZERO
        found.append(quotient if position == 0 and flat.high < step * size else quotient % size)
    return tuple(found)


def ravel_index(coordinates: Iterable[Index], shape: Iterable[int]) -> Index:
    """The row-major position of ``coordinates`` in ``shape``."""
    flat = ZERO
    for coordinate, size in zip(coordinates, shape, strict=True):
        flat = flat * size + coordinate
    return flat


def is_long(index: Index) -> bool:
    """Whether a sum of some of its parts does not fit into 32 bits."""
    ends = [(index.constant, index.constant)]
    for atom, factor in index.terms.items():
        least, most = (factor * end for end in atom.bounds)
        ends.append((min(least, most), max(least, most)))
    below, above = sum(min(0, one) for one, _ in ends), sum(max(0, one) for _, one in ends)
    return below < -MOST or above > MOST


def spelled(index: Index, dynamic_text: Callable[[Any], str], long: str) -> str:
    """``index`` in C, with ``dynamic_text`` giving the text of values known at run time only.

    Parts are numbers of 32 bits. Where their sum is none (``is_long``) they become of type
    ``long`` first.
    """
    parts: list[str] = []
    cast = f"({long})" if is_long(index) else ""
    for atom, factor in sorted(index.terms.items(), key=lambda item: -abs(item[1])):
        text = cast + _atom_text(atom, dynamic_text, long)
        parts.append(
            text if factor == 1 else f"{text}*{factor}" if factor > 0 else f"{text}*({factor})"
        )
    if index.constant or not parts:
        parts.append(str(index.constant) if index.constant >= 0 else f"({index.constant})")
    return parts[0] if len(parts) == 1 else f"({'+'.join(parts)})"


def _atom_text(atom: Atom, dynamic_text: Callable[[Any], str], long: str) -> str:
    match atom:
        case Axis():
            return atom.name
        case Dynamic():
            return dynamic_text(atom.value)
        case _:
            sign = "/" if isinstance(atom, Quotient) else "%"
            inner = spelled(atom.of, dynamic_text, long)
            if atom.of.low < 0:  # C rounds towards zero: move into the positive range first
                lift = -(atom.of.low // atom.by) * atom.by
                shift = lift // atom.by if sign == "/" else 0
                return f"(({inner}+{lift}){sign}{atom.by}-{shift})"
            return f"({inner}{sign}{atom.by})"
