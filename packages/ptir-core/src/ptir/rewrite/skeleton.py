"""Skeletons: where the operands of a composite would be, in a value that may be one.

A skeleton is the lowering of a functional without its numbers, views and the order of its sums and
products. Matching binds its operands and says nothing more: whether the value is the composite is
for normal forms to tell (``rewrite.normal``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ptir.ir.attributes import Literal
from ptir.ir.graph import Node, Ref
from ptir.ops.record import op
from ptir.rewrite.constants import uniform
from ptir.types import F32

Bound = dict[int, Ref]
"""What stands for operands, by the serial of their source."""

VIEWS: Final = frozenset({"reshape", "broadcast_to", "transpose", "stop_gradient"})
PRODUCTS: Final = frozenset({"mul", "div", "neg", "sqrt", "rsqrt", "reciprocal", "pow"})
SUMS: Final = frozenset({"add", "sub"})
STEPS: Final = 3000
"""Most steps of one match."""
OPENINGS: Final = 48
"""Most ways in which one value is looked at as a sum or a product."""


class OutOfStepsError(Exception):
    """A match that takes longer than any that succeeds."""


def bare(value: Ref) -> Ref:
    """What is behind the views of a value, and behind widening to f32 and repeating."""
    while True:
        node = value.node
        widened = node.op == "cast" and node.types[0] == F32_OF(node)
        if node.op not in VIEWS and not widened and not _repeats(node):
            return value
        value = node.operands[0]


def _repeats(node: Node) -> bool:
    """Whether a value is one other several times, side by side."""
    return node.op == "concat" and len({bare(ref).key for ref in node.operands}) == 1


def F32_OF(node: Node) -> object:  # noqa: N802
    """The type of a cast that only widens, or None."""
    own = node.operands[0].type
    small = own.dtype.is_float and own.dtype.bits < 32
    return node.types[0] if small and node.types[0].dtype == F32 else None


def _is_array(value: Ref) -> bool:
    return value.node.op == "constant" and value.type.dtype.is_float


def _constant(value: Ref) -> bool:
    return uniform(value) is not None


def _factors(value: Ref, exponent: float) -> list[tuple[Ref, float]] | None:
    """A value as the product that its op is, or None."""
    node = value.node
    if node.op == "dot_general" and _outer(node):
        return [(operand, exponent) for operand in node.operands]
    if node.op not in PRODUCTS or not node.types[0].dtype.is_float:
        return None
    first = node.operands[0]
    match node.op:
        case "mul":
            return [(first, exponent), (node.operands[1], exponent)]
        case "div":
            return [(first, exponent), (node.operands[1], -exponent)]
        case "neg":
            return [(first, exponent)]
        case "pow":
            power = uniform(node.operands[1])
            return None if power is None else [(first, exponent * power)]
        case _:
            powers = {"sqrt": 0.5, "rsqrt": -0.5, "reciprocal": -1.0}
            return [(first, exponent * powers[node.op])]


def _outer(node: Node) -> bool:
    """Whether a contraction sums nothing: it is an outer product."""
    shape = node.operands[0].type.shape
    return all(shape[axis] == 1 for axis in node.attributes["lhs_contract"])


Product = dict[tuple[int, int], tuple[Ref, float]]


def _multiplied(state: Product, added: Sequence[tuple[Ref, float]]) -> Product:
    found = dict(state)
    for value, exponent in added:
        base = bare(value)
        if _constant(base):
            continue
        first, before = found.get(base.key, (value, 0.0))
        found[base.key] = (first, before + exponent)
        if before + exponent == 0:
            del found[base.key]
    return found


Factors = list[tuple[Ref, float]]
Cache = dict[tuple[tuple[int, int], int], tuple[Factors, ...]]
"""What values were found to be as products of so many factors."""


def products(value: Ref, count: int, known: Cache) -> tuple[Factors, ...]:
    """Ways to see a value as a product of ``count`` factors that are no numbers."""
    key = (value.key, count)
    found = known.get(key)
    if found is None:
        found = known[key] = tuple(_products(value, count))
    return found


def _products(value: Ref, count: int) -> Iterator[Factors]:
    if value.node.op not in _OPENED and not _repeats(value.node):
        constant = _constant(value)
        if count == 1 and not constant:
            yield [(value, 1.0)]
        if count == 0 and constant:
            yield []
        return
    pending = [_multiplied({}, [(value, 1.0)])]
    seen: set[frozenset[tuple[tuple[int, int], float]]] = set()
    while pending and len(seen) < OPENINGS:
        state = pending.pop(0)
        key = frozenset((k, e) for k, (_, e) in state.items())
        if key in seen:
            continue
        seen.add(key)
        if len(state) == count:
            yield list(state.values())
        if len(state) > count + 2:
            continue
        for key_, (factor, exponent) in state.items():
            opened = _factors(bare(factor), exponent)
            if opened is not None:
                rest = {k: v for k, v in state.items() if k != key_}
                pending.append(_multiplied(rest, opened))


_OPENED: Final = PRODUCTS | VIEWS | {"cast", "dot_general"}
"""Ops that a product may be looked for in."""


def sums(value: Ref, count: int, cache: Cache) -> Iterator[list[Ref]]:
    """Ways to see a value as a sum of ``count`` terms that are no numbers."""
    pending = [[value]]
    seen: set[tuple[tuple[int, int], ...]] = set()
    while pending and len(seen) < OPENINGS:
        state = pending.pop(0)
        key = tuple(sorted(term.key for term in state))
        if key in seen:
            continue
        seen.add(key)
        if len(state) == count:
            yield state
        if len(state) > count:
            continue
        for index, term in enumerate(state):
            for opened in _terms(term, cache):
                rest = [*state[:index], *opened, *state[index + 1 :]]
                pending.append([one for one in rest if not _constant(bare(one))])


def _terms(value: Ref, cache: Cache) -> Iterator[list[Ref]]:
    """A value as the sum that it is, behind numbers that it is multiplied by."""
    base = bare(value)
    if base.node.op in SUMS:
        yield list(base.node.operands)
        return
    for ((factor, exponent),) in products(base, 1, cache):
        node = bare(factor).node
        if exponent == 1 and node.op in SUMS:
            yield list(node.operands)
            return


def fully(value: Ref) -> list[tuple[Ref, float]]:
    """A value as a product, opened as far as it goes."""
    state = _multiplied({}, [(value, 1.0)])
    while True:
        for key, (factor, exponent) in state.items():
            opened = _factors(bare(factor), exponent)
            if opened is not None:
                rest = {k: v for k, v in state.items() if k != key}
                state = _multiplied(rest, opened)
                break
        else:
            return list(state.values())


def summed(value: Ref) -> list[Ref]:
    """A value as a sum, opened as far as it goes; numbers are left out."""
    pending, found, cache = [value], [], Cache()
    while pending:
        term = bare(pending.pop(0))
        if _constant(term):
            continue
        opened = next(_terms(term, cache), None)
        if opened is None:
            found.append(term)
        else:
            pending += opened
    return found


@dataclass
class Skeleton:
    """The graph of a lowering, its sources standing for operands.

    ``taken`` gives the name of the composite that a node of the program is taken as, if any.
    """

    root: Ref
    leaves: tuple[Ref, ...]
    _factored: dict[tuple[int, int], list[tuple[Ref, float]]] = field(
        default_factory=dict[tuple[int, int], list[tuple[Ref, float]]]
    )
    _summed: dict[tuple[int, int], list[Ref]] = field(
        default_factory=dict[tuple[int, int], list[Ref]]
    )

    def match(self, value: Ref, taken: Taken) -> Iterator[Bound]:
        """Every way in which operands may be found; raises ``OutOfStepsError``."""
        yield from _Match(self, taken).fit(self.root, value, {})

    def factors(self, value: Ref) -> list[tuple[Ref, float]]:
        """A value of the skeleton as a product."""
        if value.key not in self._factored:
            self._factored[value.key] = fully(value)
        return self._factored[value.key]

    def terms(self, value: Ref) -> list[Ref]:
        """A value of the skeleton as a sum."""
        if value.key not in self._summed:
            self._summed[value.key] = summed(value)
        return self._summed[value.key]


@dataclass
class Taken:
    """Composites that nodes of a program are taken as, and what is known of its values."""

    products: Cache = field(default_factory=Cache, kw_only=True)
    inverses: dict[tuple[int, int], Ref] = field(
        default_factory=dict[tuple[int, int], Ref], kw_only=True
    )
    """Reciprocals of constant arrays that something is divided by."""

    def inverse(self, constant: Ref) -> Ref:
        """The reciprocals of a constant array: one value for each array."""
        import numpy as np

        if constant.key not in self.inverses:
            with np.errstate(divide="ignore"):
                array = np.asarray(1 / constant.node.attributes["value"].numpy())
            kept = array.astype(constant.type.dtype.numpy)
            self.inverses[constant.key] = op("constant")(value=Literal.of(kept))
        return self.inverses[constant.key]

    def name(self, node: Node) -> str | None:
        """The name of the composite that a node is, or is taken as."""
        return str(node.attributes["name"]) if node.op == "composite" else None

    def operands(self, node: Node) -> Sequence[Ref]:
        """The operands of that composite."""
        return node.operands


class _Match:
    def __init__(self, skeleton: Skeleton, taken: Taken) -> None:
        self._skeleton, self._taken = skeleton, taken
        self._cache = taken.products
        self._steps = 0

    def fit(self, wanted: Ref, value: Ref, bound: Bound) -> Iterator[Bound]:
        self._steps += 1
        if self._steps > STEPS:
            raise OutOfStepsError
        wanted = bare(wanted)
        if wanted.node.is_source:
            yield from _bind(wanted, value, bound)
            return
        factors = self._skeleton.factors(wanted)
        if len(factors) != 1 or bare(factors[0][0]).key != wanted.key:
            for parts in products(value, len(factors), self._cache):
                yield from self._assign(factors, parts, bound)
        elif wanted.node.op in SUMS:
            terms = self._skeleton.terms(wanted)
            for addends in self._sums(value, len(terms)):
                given = [(addend, 1.0) for addend in addends]
                yield from self._assign([(t, 1.0) for t in terms], given, bound)
        else:
            for ((found, exponent),) in products(value, 1, self._cache):
                if exponent == 1:
                    yield from self._atom(wanted, bare(found), bound)

    def _sums(self, value: Ref, count: int) -> Iterator[list[Ref]]:
        """Sums behind numbers, too."""
        for ((found, exponent),) in products(value, 1, self._cache):
            if exponent == 1:
                yield from sums(found, count, self._cache)

    def _assign(
        self,
        wanted: Sequence[tuple[Ref, float]],
        found: Sequence[tuple[Ref, float]],
        bound: Bound,
    ) -> Iterator[Bound]:
        """Every way to give each wanted part a found one; what is least free goes first."""
        if not wanted:
            yield bound
            return
        order = sorted(range(len(wanted)), key=lambda i: bare(wanted[i][0]).node.is_source)
        part, exponent = wanted[order[0]]
        rest = [wanted[i] for i in order[1:]]
        for index, value in self._powers(part, exponent, found):
            if self._may_be(part, value):
                others = [*found[:index], *found[index + 1 :]]
                for extended in self.fit(part, value, bound):
                    yield from self._assign(rest, others, extended)

    def _powers(
        self, wanted: Ref, exponent: float, found: Sequence[tuple[Ref, float]]
    ) -> Iterator[tuple[int, Ref]]:
        """Factors of that exponent; for an operand also arrays divided by, as reciprocals."""
        for index, (value, power) in enumerate(found):
            base = bare(value)
            if power == exponent:
                yield index, value
            elif power == -exponent and bare(wanted).node.is_source and _is_array(base):
                yield index, self._taken.inverse(base)

    def _may_be(self, wanted: Ref, value: Ref) -> bool:
        node, found = bare(wanted).node, bare(value).node
        if node.is_source or node.op in PRODUCTS or node.op in SUMS or node.op == "cast":
            return True
        return found.op in PRODUCTS or self._same_op(node, found)

    def _same_op(self, node: Node, found: Node) -> bool:
        if node.op == "composite":
            return self._taken.name(found) == str(node.attributes["name"])
        if node.op == "constant":
            return found.op in ("constant", SOURCE_OP)
        return node.op == found.op and node.attributes.get("kind") == found.attributes.get("kind")

    def _atom(self, wanted: Ref, value: Ref, bound: Bound) -> Iterator[Bound]:
        node, found = wanted.node, value.node
        if not self._same_op(node, found):
            return
        values = self._taken.operands(found) if node.op == "composite" else found.operands
        if len(values) != len(node.operands):
            return
        yield from self._all(node.operands, values, bound)
        if "commutative" in op(node.op).traits or node.op == "compare":
            yield from self._all(node.operands, values[::-1], bound)

    def _all(self, wanted: Sequence[Ref], values: Sequence[Ref], bound: Bound) -> Iterator[Bound]:
        if not wanted:
            yield bound
            return
        for extended in self.fit(wanted[0], values[0], bound):
            yield from self._all(wanted[1:], values[1:], extended)


SOURCE_OP: Final = "source"


def _bind(wanted: Ref, value: Ref, bound: Bound) -> Iterator[Bound]:
    known = bound.get(wanted.node.serial)
    if known is None:
        yield {**bound, wanted.node.serial: value}
    elif bare(known).key == bare(value).key:
        yield bound
