"""The op record: everything there is to say about an op, said once.

``define`` adds a record to ``OPS``. From a record derive the builder (the record is callable on
graph values), the verifier, constant folding, the reference backend, documentation and
conformance cases. Type errors are formatted here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from ptir.errors import PluginError, TypeRuleError, unknown_name
from ptir.ir.attributes import Attributes, Literal
from ptir.ir.graph import Ref, emit
from ptir.ir.location import caller, here
from ptir.ir.program import Block
from ptir.ops.classes import DTypeClass, listed
from ptir.types import DTYPES, F32, DType, TensorType, parse_type

REQUIRED: Final = object()


@dataclass(frozen=True)
class Attribute:
    """One attribute of an op: its name, what it means, its choices and its default."""

    name: str
    doc: str
    default: Any = REQUIRED
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Array:
    """A literal operand of a sample: dtype name and nested values, held without NumPy."""

    dtype: str
    values: Any
    shape: tuple[int, ...] | None = None

    def reshaped(self, *shape: int) -> Array:
        """The same values in a shape that nesting cannot spell, for example (0, 2)."""
        return Array(self.dtype, self.values, shape)

    def numpy(self) -> Any:
        """The operand as a NumPy array."""
        import numpy as np

        array = np.array(self.values, dtype=DTYPES[self.dtype].numpy)
        return array if self.shape is None else array.reshape(self.shape)

    @property
    def type(self) -> TensorType:
        """The operand's type."""
        return TensorType(DTYPES[self.dtype], tuple(self.numpy().shape))


@dataclass(frozen=True)
class Sample:
    """A call that works: operands, attributes, and the literal results a reader can check."""

    operands: tuple[Array, ...]
    attributes: Mapping[str, Any]
    gives: tuple[Array, ...]
    regions: tuple[Block, ...] = ()


@dataclass(frozen=True)
class BadCall:
    """A call that violates one labelled constraint, and the message it must give."""

    label: str
    operands: tuple[str, ...]
    attributes: Mapping[str, Any]
    message: str
    regions: tuple[Block, ...] = ()


def sample(*operands: Array, gives: Array | tuple[Array, ...], **attributes: Any) -> Sample:
    """A sample call with its literal result."""
    return Sample(operands, attributes, gives if isinstance(gives, tuple) else (gives,))


def bad(label: str, *operands: str, message: str, **attributes: Any) -> BadCall:
    """A bad call: the constraint's label, operand types as text, attributes, the message's end."""
    return BadCall(label, operands, attributes, message)


def refusals(
    names: str,
    allowed: DTypeClass | Mapping[str, DTypeClass],
    /,
    *good: str,
    regions: tuple[Block, ...] = (),
    **attributes: Any,
) -> tuple[BadCall, ...]:
    """The dtype and arity bad calls of an op with these operands, from a good call's types."""
    operands = names.split()
    classes = allowed if isinstance(allowed, Mapping) else dict.fromkeys(operands, allowed)
    calls = []
    for index, (name, text) in enumerate(zip(operands, good, strict=False)):
        wrong = [d for d in reversed(DTYPES.values()) if d not in classes[name]][:1]
        for element in wrong:
            types = [*good]
            types[index] = str(parse_type(text).with_dtype(element))
            message = f"{name.rstrip('*')} has dtype {element}; one of {listed(classes[name])}"
            calls.append(BadCall("dtype", tuple(types), attributes, message, regions))
    if not names.endswith("*"):
        for given in (good[:-1], (*good, good[-1])):
            message = f"{len(given)} operands given; takes {', '.join(operands)}"
            calls.append(BadCall("arity", given, attributes, message, regions))
    return tuple(calls)


@dataclass(frozen=True)
class Call:
    """One application of an op as its type rule sees it."""

    op: str
    types: tuple[TensorType, ...]
    attributes: Mapping[str, Any]
    regions: tuple[Block, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]

    def require(self, holds: bool, label: str, message: str) -> None:
        """Refuse the call with ``message`` unless the constraint called ``label`` holds."""
        if not holds:
            self.fail(label, message)

    def fail(self, label: str, message: str) -> NoReturn:
        """Raise the type error of this call."""
        raise type_error(self.op, self.types, message, label)

    def axis(self, value: Any, rank: int, what: str = "axis") -> int:
        """A normalized axis number of an operand with ``rank`` axes."""
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < rank:
            self.fail("axis", f"{what} {value} is not an axis of rank {rank} (0 <= axis < {rank})")
        return value

    def integers(
        self, name: str, count: int | None = None, least: int | None = None, per: str = "axis"
    ) -> tuple[int, ...]:
        """The attribute called ``name`` as integers: ``count`` of them, each ``least`` or more."""
        values: Any = self[name]
        whole = isinstance(values, tuple) and all(type(value) is int for value in values)
        self.require(whole, name, f"{name} {values!r} is not a tuple of integers")
        if count is not None and len(values) != count:
            self.fail(name, f"{name} {values} has {len(values)} entries; one per {per} is {count}")
        if least is not None and any(value < least for value in values):
            self.fail(name, f"{name} {values} has an entry below {least}")
        return tuple(values)

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """The attribute called ``name`` as distinct axis numbers below ``rank``."""
        values = tuple(self.axis(value, rank, f"{name} entry") for value in self.integers(name))
        self.require(len(set(values)) == len(values), name, f"{name} {values} repeats an axis")
        return values


def type_error(
    call: str, types: Sequence[TensorType], message: str, label: str = ""
) -> TypeRuleError:
    """The error for a refused call: ``add(f32[2], i32[2]): message`` and the caller's line."""
    known = here()
    where = known if known.file else caller()
    error = TypeRuleError(
        f"{call}({', '.join(map(str, types))}): {message}"
        + (f"\n  at {where}" if where.file else "")
    )
    error.label = label  # type: ignore[attr-defined]
    return error


def is_own(module: str) -> bool:
    """Whether a module is of ptir itself, and of no plugin."""
    return module.partition(".")[0] == __name__.partition(".")[0]


Rule = Callable[[Call], "TensorType | tuple[TensorType, ...]"]
Bounds = Callable[[Sequence[TensorType], Mapping[str, Any]], tuple[int, tuple[int, ...]]]


@dataclass(frozen=True, eq=False)
class Op:
    """One primitive. See the module for what derives from it.

    ``operands`` names them in order, a last name ending in ``*`` takes any number; ``dtypes`` maps
    each operand name to its class, ``result`` where there are no operands.
    ``reference(xp, *arrays, **attributes)`` computes NumPy arrays with the numerics namespace
    ``xp``; ops with regions also get ``regions=``, callables.
    ``decomposition(*refs, **attributes)`` rewrites a call into simpler ops, exactly, or gives None
    where it cannot; ops with regions also get ``regions=``, blocks. ``bounds(types, attributes)``
    of an op that reads places from an operand gives that operand's number and the greatest valid
    values along its last axis (one for all, or one each).
    """

    name: str
    operands: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    dtypes: Mapping[str, DTypeClass]
    rule: Rule
    reference: Callable[..., Any]
    doc: str
    samples: tuple[Sample, ...]
    bad_calls: tuple[BadCall, ...]
    traits: frozenset[str] = frozenset()
    accuracy: str = "exact"
    exact_kinds: tuple[str, ...] = ()
    profile: str = "core"
    decomposition: Callable[..., Any] | None = None
    bounds: Bounds | None = None
    regions: int = 0
    open_attributes: bool = False

    @property
    def variadic(self) -> bool:
        """Whether the last operand name takes any number of operands."""
        return bool(self.operands) and self.operands[-1].endswith("*")

    @property
    def module(self) -> str:
        """The module that the op is from; where its functions come from several, one not of ptir.

        So an op that a plugin made of ptir's parts is the plugin's.
        """
        functions = (self.rule, self.reference, self.decomposition)
        found = [m for f in functions if isinstance(m := getattr(f, "__module__", None), str)]
        return next((m for m in found if not is_own(m)), found[0] if found else "")

    def accuracy_of(self, dtype: DType, attributes: Mapping[str, Any] | None = None) -> str:
        """The accuracy class of results computed in ``dtype``; see ``docs/reference/ops.md``.

        Bool and integers are exact, and so are the op's ``exact_kinds`` where ``attributes`` tell.
        ``accuracy`` itself holds for f32 and f64; an ``ulp`` bound of f16 and bf16, which are
        computed wider and rounded once, is 1.
        """
        if not dtype.is_float or (attributes or {}).get("kind") in self.exact_kinds:
            return "exact"
        if dtype.bits >= F32.bits:
            return self.accuracy
        return re.sub(r"ulp:[0-9.]+", "ulp:1", self.accuracy)

    def bind(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """The call's attributes with defaults filled in; raises ``TypeRuleError``."""
        names = {a.name for a in self.attributes}
        unknown = [name for name in attributes if name not in names]
        if unknown and not self.open_attributes:
            message = unknown_name("attribute", unknown[0], names)
            raise type_error(self.name, (), message, "attribute")
        bound = dict(attributes)
        for attribute in self.attributes:
            if attribute.name not in bound:
                if attribute.default is REQUIRED:
                    message = f"attribute {attribute.name!r} is missing: {attribute.doc}"
                    raise type_error(self.name, (), message, "attribute")
                bound[attribute.name] = attribute.default
            value = bound[attribute.name]
            if attribute.choices and value not in attribute.choices:
                message = unknown_name(attribute.name, str(value), attribute.choices)
                raise type_error(self.name, (), message, "attribute")
        return bound

    def infer(
        self,
        types: Sequence[TensorType],
        attributes: Mapping[str, Any],
        regions: tuple[Block, ...] = (),
    ) -> tuple[TensorType, ...]:
        """Result types of a call; raises ``TypeRuleError`` naming the rule that it breaks."""
        call = Call(self.name, tuple(types), attributes, regions)
        self._check_arity(call)
        for index, found in enumerate(types):
            name = self.operands[min(index, len(self.operands) - 1)]
            allowed = self.dtypes[name]
            if found.dtype not in allowed:
                call.fail(
                    "dtype",
                    f"{name.rstrip('*')} has dtype {found.dtype}; one of {listed(allowed)}",
                )
        result = self.rule(call)
        results = result if isinstance(result, tuple) else (result,)
        for number, type in enumerate(results):
            call.require(not type.excess, "size", f"result {number} {type.excess}: {type}")
        return results

    def _check_arity(self, call: Call) -> None:
        expected, given = len(self.operands), len(call.types)
        if given != expected and not (self.variadic and given >= expected - 1):
            names = ", ".join(self.operands) or "none"
            call.fail("arity", f"{given} operands given; takes {names}")
        if len(call.regions) != self.regions:
            call.fail("regions", f"{len(call.regions)} regions given; takes {self.regions}")

    def multi(
        self, *operands: Ref, regions: tuple[Block, ...] = (), **attributes: Any
    ) -> tuple[Ref, ...]:
        """Apply the op to graph values; returns all its results. Raises ``TypeRuleError``."""
        frozen = Attributes(self.bind(attributes))
        types = self.infer([r.type for r in operands], frozen, regions)
        return emit(self.name, operands, frozen, types, regions, here())

    def __call__(self, *operands: Ref, **attributes: Any) -> Ref:
        """Apply the op to graph values; returns its only result. Raises ``TypeRuleError``."""
        return self.multi(*operands, **attributes)[0]


OPS: Final[dict[str, Op]] = {}


def define(
    name: str,
    operands: str,
    *,
    dtypes: DTypeClass | Mapping[str, DTypeClass],
    rule: Rule,
    reference: Callable[..., Any],
    doc: str,
    attributes: Sequence[Attribute] = (),
    samples: Sequence[Sample] = (),
    bad_calls: Sequence[BadCall] = (),
    traits: str = "",
    **rest: Any,
) -> Op:
    """Add an op to the table and return its record; a name that is taken is a ``PluginError``."""
    names = tuple(operands.split())
    classes = dtypes if isinstance(dtypes, Mapping) else dict.fromkeys(names or ("result",), dtypes)
    op = Op(
        name,
        names,
        tuple(attributes),
        classes,
        rule,
        reference,
        doc,
        tuple(samples),
        tuple(bad_calls),
        frozenset(traits.split()),
        **rest,
    )
    return add(op)


def add(record: Op) -> Op:
    """Add a record to the table, once; another of its name is a ``PluginError``."""
    if OPS.setdefault(record.name, record) is not record:
        raise PluginError(f"op {record.name!r} is defined twice; choose another name")
    return record


def op(name: str) -> Op:
    """The record of the op called ``name``; raises ``TypeRuleError`` with the nearest names."""
    found = OPS.get(name)
    if found is None:
        raise TypeRuleError(unknown_name("op", name, OPS))
    return found


def literal(array: Any) -> Literal:
    """A literal from anything NumPy can hold."""
    import numpy as np

    return Literal.of(np.asarray(array))
