"""Policies, and overrides as text: ``linear[M=1,K>=4096]=force=rows``.

The whole grammar, in which blanks may stand between any two parts::

    overrides  = override { ( blank | ";" ) override }
    override   = FUNCTIONAL [ "[" condition { "," condition } "]" ] "=" policy
    condition  = DIMENSION order NUMBER  |  NAME ( "=" | "!=" ) value { "|" value }
    order      = "=" | "!=" | "<" | "<=" | ">" | ">="
    policy     = "default"  |  "tuned"  |  "force" "=" IMPLEMENTATION
               | "prefer" "=" IMPLEMENTATION  |  "benchmark" [ "(" "cache" "=" NUMBER ")" ]

A DIMENSION is a size that the functional's calls have (``Functional.shapes``), a NAME is ``dtype``,
``backend`` or an attribute of the functional. An attribute that has a number for each axis is one
number where they are the same, else ``2x1``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn

from ptir.errors import UsageError, unknown_name
from ptir.ir.attributes import Attributes
from ptir.notebook import Card, Displayed
from ptir.ops.implementations import BACKEND, Functional, functional
from ptir.types import DTYPES, TensorType

REMEMBERED: Final = 64
"""How many choices of a functional are remembered unless a policy says."""


@dataclass(frozen=True)
class Policy:
    """How a functional's implementation is chosen.

    ``default`` takes the backend's claim, else what is preferred for the call, else ``portable``;
    ``force`` takes ``implementation``, ``prefer`` too where it applies and the backend takes the
    composites that it is made of;
    ``benchmark`` times all that apply and keeps at most ``cache`` results per functional; ``tuned``
    takes what was timed before and times nothing. Where nothing is faster than what weaker
    overrides say, or nothing is known, that is taken.
    """

    kind: Literal["default", "force", "prefer", "benchmark", "tuned"] = "default"
    implementation: str = ""
    cache: int = REMEMBERED

    def __str__(self) -> str:
        match self.kind:
            case "force" | "prefer":
                return f"{self.kind}={self.implementation}"
            case "benchmark":
                return f"benchmark(cache={self.cache})"
            case kind:
                return kind


FOLLOWING: Final = ("tuned", "benchmark")
"""The policies that follow what is timed; where that decides nothing, weaker overrides do."""


@dataclass(frozen=True, order=True)
class Origin:
    """Who asked for an override: ``rank`` is its place in ``RANKS``, a greater one wins."""

    rank: int
    text: str


RANKS: Final = {
    "family": "the family of a model, for how it is best computed",
    "tune": "`ptir tune MODEL`, for the models that it was run for",
    "plugin": "an installed plugin (`ptir_overrides`)",
    "checkpoint": "`ptir_overrides` in a checkpoint's config.json",
    "argument": "`load_model(fast=, overrides=)`, `--fast`",
    "environment": "the variable PTIR_OVERRIDE",
    "command line": "`--override`",
    "context": "`with ptir.overrides(...)`, inner ones over outer ones",
}
"""Where overrides come from, the weakest first: **the one precedence**."""


def origin(kind: str, detail: str = "") -> Origin:
    """The origin of a kind of ``RANKS``; ``detail`` says who or what it was."""
    return Origin([*RANKS].index(kind), detail or kind)


COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Call:
    """What conditions are about: the sizes, attributes, dtype and backend of one call."""

    facts: Mapping[str, int | str]

    @staticmethod
    def of(
        found: Functional,
        types: Sequence[TensorType],
        attributes: Attributes,
        backend: str = "",
        device: int = 0,
    ) -> Call:
        """The facts of a call that runs on a device of a backend."""
        facts: dict[str, int | str] = {}
        for name, value in attributes.items():
            if isinstance(value, bool):
                facts[name] = str(value).lower()
            elif isinstance(value, int | str):
                facts[name] = value
            elif isinstance(value, tuple):
                numbers = [one for one in value if isinstance(one, int)]
                if numbers and len(numbers) == len(value):
                    facts[name] = _by_axis(numbers)
        facts |= found.shapes.sizes(types, attributes)
        facts["dtype"] = found.shapes.dtype(types, attributes)
        return Call({**facts, "backend": backend, "device": device})


def _by_axis(values: Sequence[int]) -> int | str:
    """An attribute that has a number for each axis, as a word: ``2x1``; one that is the same: 2."""
    return values[0] if len(set(values)) == 1 else "x".join(map(str, values))


@dataclass(frozen=True)
class Condition:
    """One comparison of a call's size, or of a word of its, with what an override asks for."""

    name: str
    comparison: str
    values: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}{self.comparison}{'|'.join(map(str, self.values))}"

    def holds(self, call: Call) -> bool:
        """Whether a call is as asked for; one without the fact (an absent attribute) is not."""
        if self.name not in call.facts:
            return False
        found = call.facts[self.name]
        compare = COMPARISONS[self.comparison]
        hits = (compare(*_alike(self.name, found, value, call)) for value in self.values)
        return all(hits) if self.comparison == "!=" else any(hits)


def _alike(
    name: str, found: int | str, value: int | str, call: Call
) -> tuple[int | str, int | str]:
    """Both sides of a comparison, of one kind. A backend may be named with its device."""
    if name == "backend" and ":" in str(value):
        found = f"{found}:{call.facts['device']}"
    return (found, value) if type(found) is type(value) else (str(found), str(value))


@dataclass(frozen=True)
class Override(Displayed):
    """One choice: the calls of a functional that fulfil every condition follow ``policy``."""

    functional: str
    policy: Policy
    conditions: tuple[Condition, ...] = ()
    origin: Origin = field(default=Origin(len(RANKS) - 1, "context"), compare=False)

    @property
    def target(self) -> str:
        """The functional with its conditions: what stands left of the policy."""
        asked = ",".join(map(str, self.conditions))
        return f"{self.functional}[{asked}]" if asked else self.functional

    def __str__(self) -> str:
        return f"{self.target}={self.policy}"

    def __repr__(self) -> str:
        return f"Override({str(self)!r}, given by {self.origin.text!r})"

    def card(self) -> Card:
        """What a notebook shows: which calls, by which policy, and who asked for it."""
        facts = [("calls", self.target), ("policy", self.policy), ("given by", self.origin.text)]
        return Card("Override", facts)

    def fits(self, call: Call) -> bool:
        """Whether the call is one that this is about."""
        return all(condition.holds(call) for condition in self.conditions)


Overrides = tuple[Override, ...]


def merged(*groups: Iterable[Override]) -> Overrides:
    """All overrides by functional, the weakest first; those that can never win are left out.

    Of one origin the later one is the stronger.
    """
    ranked = sorted((one for group in groups for one in group), key=lambda one: one.origin.rank)
    kept: list[Override] = []
    shadowed: set[tuple[str, tuple[Condition, ...]]] = set()
    for one in reversed(ranked):
        if one in kept or {(one.functional, ()), (one.functional, one.conditions)} & shadowed:
            continue
        if one.policy.kind not in FOLLOWING:
            shadowed.add((one.functional, one.conditions))
        kept.append(one)
    return tuple(sorted(reversed(kept), key=lambda one: one.functional))


def fitting(overrides: Sequence[Override], call: Call) -> list[Override]:
    """Those that are about a call, of those about its functional; the first one decides."""
    return [one for one in reversed(overrides) if one.fits(call)]


# --- text ---


def parse_override(text: str, source: Origin | None = None) -> Override:
    """One override as text; raises ``UsageError`` that points at what is wrong in it."""
    reader = _Reader(text, source or origin("context"))
    found = reader.override()
    if not reader.ended:
        reader.fail("here the override has ended; write the next one as one more --override")
    return found


def parse_overrides(text: str, source: Origin) -> list[Override]:
    """All overrides of a text, set apart by blanks or semicolons; raises ``UsageError``."""
    return list(_Reader(text, source).overrides())


def parse_target(target: str, policy: str, source: Origin) -> Override:
    """An override whose two sides are given apart, as a mapping holds them."""
    return parse_override(f"{target}={policy}", source)


class _Reader:
    """Reads a text from left to right; every error says where it stopped."""

    def __init__(self, text: str, source: Origin) -> None:
        self.text, self.at, self.source = text, 0, source

    @property
    def ended(self) -> bool:
        self._blank()
        return self.at == len(self.text)

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        place = self.at if at is None else at
        shown = self.text.replace("\n", " ").replace("\t", " ")
        where = f"override given by {self.source.text}, character {place + 1}"
        raise UsageError(f"{where}: {message}\n  {shown}\n  {' ' * place}^")

    def overrides(self) -> Iterator[Override]:
        while not self.ended:
            if not self._taken(";"):
                yield self.override()

    def override(self) -> Override:
        begin = self._blank()
        name = self._word("the name of a functional")
        try:
            found = functional(name)
        except UsageError as error:
            self.fail(str(error), begin)
        conditions = tuple(self._conditions(found))
        if not self._taken("="):
            self.fail("write FUNCTIONAL=POLICY, e.g. softmax=force=online or linear[M=1]=benchmark")
        return Override(name, self._policy(found), conditions, self.source)

    def _conditions(self, found: Functional) -> Iterator[Condition]:
        if not self._taken("["):
            return
        while True:
            yield self._condition(found)
            if self._taken("]"):
                return
            if not self._taken(","):
                self.fail("a condition ends with ',' or ']'")

    def _condition(self, found: Functional) -> Condition:
        begin = self._blank()
        name = self._word("a size, dtype, backend or an attribute")
        known = (*found.shapes.names, "dtype", "backend", *found.attributes)
        if name not in known:
            self.fail(unknown_name(f"dimension of {found.name}", name, known), begin)
        at = self._blank()
        comparison = next((c for c in COMPARISONS if self._taken(c)), "")
        if not comparison:
            self.fail(f"a comparison is one of {' '.join(COMPARISONS)}")
        if name not in found.shapes.names and comparison not in ("=", "!="):
            self.fail(f"{name} is no size; compare it with = or !=", at)
        values = [self._value(found, name)]
        while self._taken("|"):
            if comparison not in ("=", "!="):
                said = f"several values have no order; {comparison} takes one number"
                self.fail(said, self.at - 1)
            values.append(self._value(found, name))
        return Condition(name, comparison, tuple(values))

    def _value(self, found: Functional, name: str) -> int | str:
        begin = self._blank()
        word = self._word("a number" if name in found.shapes.names else "a value")
        if name == "dtype" and word not in DTYPES:
            self.fail(unknown_name("dtype", word, DTYPES), begin)
        if name in found.shapes.names and not (word.isascii() and word.isdigit()):
            self.fail(f"{name} is a size; {word!r} is no number", begin)
        numbers = word.split("x")
        if not all(number.isascii() and number.isdigit() for number in numbers):
            return word
        return _by_axis([int(number) for number in numbers])

    def _policy(self, found: Functional) -> Policy:
        begin = self._blank()
        kind = self._word("a policy: default, force=NAME, prefer=NAME, benchmark(cache=N) or tuned")
        match kind:
            case "default":
                return Policy()
            case "tuned":
                return Policy("tuned")
            case "benchmark":
                return Policy("benchmark", cache=self._cache())
            case "force" | "prefer" if self._taken("="):
                return Policy(kind, self._implementation(found))
        self.fail(f"{kind!r} is no policy; {POLICIES}", begin)

    def _cache(self) -> int:
        if not self._taken("("):
            return REMEMBERED
        begin = self._blank()
        if self._word("cache") != "cache" or not self._taken("="):
            self.fail("write benchmark(cache=N), N being how many choices are remembered", begin)
        begin = self._blank()
        word = self._word("a number")
        if not (word.isascii() and word.isdigit() and int(word)):
            self.fail(f"cache is a number of at least 1, not {word!r}", begin)
        if not self._taken(")"):
            self.fail("benchmark(cache=N ends with ')'")
        return int(word)

    def _implementation(self, found: Functional) -> str:
        begin = self._blank()
        name = self._word("the name of an implementation")
        known = [*found.implementations, BACKEND]
        if name not in known:
            self.fail(unknown_name(f"implementation of {found.name}", name, known), begin)
        return name

    def _blank(self) -> int:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at

    def _taken(self, symbol: str) -> bool:
        self._blank()
        found = self.text.startswith(symbol, self.at)
        self.at += len(symbol) * found
        return found

    def _word(self, wanted: str) -> str:
        begin = self._blank()
        match = _WORD.match(self.text, begin)
        if match is None:
            self.fail(f"{wanted} is missing")
        self.at = match.end()
        return match[0]


POLICIES: Final = "policies are default, force=NAME, prefer=NAME, benchmark(cache=N) and tuned"
_WORD = re.compile(r"[\w.:+-]+")
