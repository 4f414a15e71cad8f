"""What the corpus owes to the op records, and where it has nothing: the holes.

Owed are, for every op: each dtype of each operand; each branch of each attribute with each kind of
dtype; a refusal for each constraint that its type rule names. What the type rule refuses in every
call that could be made from the op's own is owed by nobody. Sweeps are owed by every op whose sizes
are its own to choose.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

from ptir.errors import PtirError
from ptir.ir.attributes import Attributes
from ptir.ops import OPS
from ptir.ops.classes import ANY, F8
from ptir.ops.record import REQUIRED, Op
from ptir.types import DTYPES, DType, TensorType
from ptir_testsuite.corpus.derivation import cases_of
from ptir_testsuite.corpus.owed import swept
from ptir_testsuite.corpus.pairs import PAIRED, paired, pairs_of
from ptir_testsuite.oracles import ORACLES

EXEMPT: Final = {"extension": "what it takes is defined by whoever calls it"}
"""Profiles of which nothing is owed, and why."""

_REFUSED: Final = (PtirError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class Need:
    """Something that a case must exercise, and whether one does."""

    op: str
    text: str
    met: bool


@dataclass(frozen=True)
class Call:
    """A call of the corpus without its values."""

    types: tuple[TensorType, ...]
    attributes: Attributes
    results: tuple[TensorType, ...]
    regions: tuple[Any, ...]

    @property
    def kind(self) -> str:
        """The kind of dtype that the call is about: its first operand's, else its result's."""
        return kind_of((*self.types, *self.results)[0].dtype)


def kind_of(dtype: DType) -> str:
    """A dtype class: bool, int, uint, float or f8."""
    return "f8" if dtype in F8 else dtype.kind


def needs(ops: Iterable[Op] | None = None) -> Iterator[Need]:
    """Everything owed to these ops (default: all that are defined)."""
    for op in OPS.values() if ops is None else ops:
        if op.profile in EXEMPT:
            continue
        calls = calls_of(op)
        if not calls:
            yield Need(op.name, "any case at all", False)
            continue
        yield from _dtypes(op, calls)
        yield from _branches(op, calls)
        yield from _pairs(op, calls)
        yield from _constraints(op)
        least = max(1, min((t.rank for call in calls for t in call.results), default=1))
        yield from (Need(op.name, text, met) for text, met in swept(op, least))


def calls_of(op: Op) -> list[Call]:
    """The distinct calls of the op's cases."""
    found = (Call(c.types, c.attributes, c.results, c.regions) for c in cases_of(op))
    return list({(c.types, c.attributes.text, c.regions): c for c in found}.values())


# --- dtypes ---


def _dtypes(op: Op, calls: Sequence[Call]) -> Iterator[Need]:
    for place, name in enumerate(op.operands):
        seen = {c.types[place].dtype for c in calls if len(c.types) > place}
        for dtype in (d for d in DTYPES.values() if d in op.dtypes[name]):
            met = dtype in seen
            if met or _possible(op, _with_dtype(calls, place, dtype)):
                yield Need(op.name, f"{dtype} as {name.rstrip('*')}", met)


def _with_dtype(calls: Sequence[Call], place: int, dtype: DType) -> Iterator[Call]:
    """Calls with another dtype at one operand, alone and together with its likes."""
    for call in calls:
        if len(call.types) <= place:
            continue
        own = call.types[place].dtype
        alone = tuple(t.with_dtype(dtype) if n == place else t for n, t in enumerate(call.types))
        likes = tuple(t.with_dtype(dtype) if t.dtype == own else t for t in call.types)
        for types in (alone, likes):
            yield Call(types, call.attributes, call.results, call.regions)


def _possible(op: Op, calls: Iterable[Call], kind: str = "") -> bool:
    return any(_accepted(op, call, kind) for call in calls)


def _accepted(op: Op, call: Call, kind: str) -> bool:
    """Whether the type rule takes the call, and it is about this kind of dtype if any is named."""
    try:
        attributes = Attributes(op.bind(call.attributes))
        results = op.infer(call.types, attributes, call.regions)
    except _REFUSED:
        return False
    return not kind or Call(call.types, attributes, results, call.regions).kind == kind


# --- attribute branches ---

Branch = tuple[str, Callable[[Any], bool], tuple[Any, ...]]
"""A name for it, which values are of it, and values to try where no case has one."""


def branches_of(op: Op, calls: Sequence[Call]) -> dict[str, list[Branch]]:
    """The branches of every attribute: choices, both of a switch, given or not, every dtype."""
    found: dict[str, list[Branch]] = {}
    for attribute in op.attributes:
        name = attribute.name
        values = [c.attributes[name] for c in calls if name in c.attributes]
        mine: list[Branch] = []
        if attribute.choices:
            mine = [_exactly(v) for v in attribute.choices]
        elif any(isinstance(v, bool) for v in (attribute.default, *values)):
            mine = [_exactly(v) for v in (False, True)]
        elif any(isinstance(v, DType) for v in values):
            mine = [_exactly(d) for d in DTYPES.values()]
        elif attribute.default is None:
            given = tuple({repr(v): v for v in values if v is not None}.values())
            mine = [("none", _is_none, (None,)), ("given", _is_given, given)]
        elif attribute.default is REQUIRED:
            mine = [("given", _is_given, ())]
        found[name] = mine
    return {name: mine for name, mine in found.items() if mine}


def _exactly(value: Any) -> Branch:
    return str(value).lower(), lambda v: type(v) is type(value) and v == value, (value,)


def _is_none(value: Any) -> bool:
    return value is None


def _is_given(value: Any) -> bool:
    return value is not None


def _branches(op: Op, calls: Sequence[Call]) -> Iterator[Need]:
    kinds = _kinds(op, calls)
    for name, mine in branches_of(op, calls).items():
        for text, holds, values in mine:
            seen = {c.kind for c in calls if name in c.attributes and holds(c.attributes[name])}
            for kind, dtypes in kinds.items():
                met = kind in seen
                tried = _changed(calls, dtypes, name, values)
                if met or _possible(op, tried, kind):
                    yield Need(op.name, f"{name} = {text} with {kind}", met)


def _kinds(op: Op, calls: Sequence[Call]) -> Mapping[str, list[DType]]:
    """The dtypes that calls of the op can be about, by kind."""
    about = {c.types[0].dtype if c.types else c.results[0].dtype for c in calls}
    allowed = op.dtypes[op.operands[0]] if op.operands else about
    found: dict[str, list[DType]] = {}
    for dtype in (d for d in DTYPES.values() if d in allowed):
        found.setdefault(kind_of(dtype), []).append(dtype)
    return found


def _changed(
    calls: Sequence[Call], dtypes: Sequence[DType], name: str, values: Sequence[Any]
) -> Iterator[Call]:
    """Calls with a value of the branch, about a dtype of the kind."""
    for call in calls:
        for value in values:
            attributes = Attributes(dict(call.attributes) | {name: value})
            if not call.types:
                yield Call((), attributes, call.results, call.regions)
                continue
            own = call.types[0].dtype
            for dtype in dtypes:
                types = tuple(t.with_dtype(dtype) if t.dtype == own else t for t in call.types)
                yield Call(types, attributes, call.results, call.regions)


# --- pairs of values ---


def _pairs(op: Op, calls: Sequence[Call]) -> Iterator[Need]:
    """Rows of values where an op has several attributes, and cases for every pair of them."""
    if len(op.attributes) < 2 or op.regions:
        return
    if op.name in ORACLES:  # without an oracle nothing but samples is judged
        yield Need(op.name, "rows of values for pairs of attributes", op.name in PAIRED)
    wanted = {pair for template in paired(op.name) for pair in pairs_of(template.attributes)}
    met = {pair for call in calls for pair in pairs_of(call.attributes)}
    for one, other in sorted(wanted):
        text = f"{one[0]} = {one[1]} beside {other[0]} = {other[1]}"
        yield Need(op.name, text, (one, other) in met)


# --- constraints ---


def _constraints(op: Op) -> Iterator[Need]:
    labels = {call.label for call in op.bad_calls}
    for label in sorted(constraints_of(op)):
        yield Need(op.name, f"a refusal labelled {label!r}", label in labels)


def constraints_of(op: Op) -> set[str]:
    """The labels of the constraints that calls of the op can break, read from its type rule."""
    found = _labels(op.rule, ())
    if not op.variadic:
        found.add("arity")
    if any(allowed != ANY for allowed in op.dtypes.values()):
        found.add("dtype")
    if any(attribute.choices for attribute in op.attributes):
        found.add("attribute")
    if len(op.operands) == 1 and not op.variadic:  # operands that must be alike are alike
        found -= {"dtypes", "shapes"}
    return found


def _labels(function: Callable[..., Any], seen: tuple[Any, ...]) -> set[str]:
    """The labels in a rule and in the functions that it calls by name."""
    try:
        source = inspect.getsource(function)
    except OSError:  # a rule written where Python keeps no source
        return set()
    found: set[str] = set()
    for node in ast.walk(_tree(source)):
        if not isinstance(node, ast.Call):
            continue
        attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        found |= _label(attribute, node.args)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        inner = _named(function, name)
        if inner is not None and inner not in seen:
            found |= _labels(inner, (*seen, function))
    return found


def _tree(source: str) -> ast.AST:
    text = inspect.cleandoc("\n" + source)
    try:
        return ast.parse(text)
    except SyntaxError:  # a lambda inside a call: the line alone is no statement
        return ast.parse(f"f({text.rstrip().rstrip(',')})")


def _label(method: str, arguments: Sequence[ast.expr]) -> set[str]:
    place = {"require": 1, "fail": 0, "integers": 0, "axes": 0}.get(method)
    if method == "axis":
        return {"axis"}
    if place is None or len(arguments) <= place:
        return set()
    argument = arguments[place]
    constant = argument.value if isinstance(argument, ast.Constant) else None
    return {constant} if isinstance(constant, str) else set()


def _named(function: Callable[..., Any], name: str) -> FunctionType | None:
    found = getattr(function, "__globals__", {}).get(name)
    return found if isinstance(found, FunctionType) else None
