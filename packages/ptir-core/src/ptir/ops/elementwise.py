"""What elementwise ops share: type rules without broadcasting, bad calls, rows and literals.

``accuracy`` is what float results promise (everything else is exact): ``exact``, ``rounded`` (the
nearest float), ``ulp:N``, or ``rounded or ulp:N`` (rounded where a backend claims it, as the
reference does). Samples hold values that tell a right answer from its mirror image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptir.ops.classes import F8, DTypeClass, listed
from ptir.ops.record import Array, Attribute, BadCall, Call, Op, Sample, bad, define, sample
from ptir.types import BOOL, DTYPES, TensorType


def same_type(call: Call) -> TensorType:
    """The operands' common type."""
    first = call.types[0]
    for other in call.types[1:]:
        message = f"operand dtypes differ: {first.dtype} vs {other.dtype}; cast one of them"
        call.require(first.dtype == other.dtype, "dtypes", message)
        same_shape(call, first, other)
    return first


def same_shape(call: Call, first: TensorType, other: TensorType) -> None:
    """Refuse operands whose shapes differ."""
    message = f"operand shapes differ: {list(first.shape)} vs {list(other.shape)}; use broadcast_to"
    call.require(first.shape == other.shape, "shapes", message)


def predicate(call: Call) -> TensorType:
    """A bool for each element of operands of one type."""
    return same_type(call).with_dtype(BOOL)


def through(name: str) -> Callable[..., Any]:
    """The numerics function called ``name``, looked up when it runs: NumPy loads that late."""

    def reference(xp: Any, *arrays: Any, **attributes: Any) -> Any:
        return getattr(xp, name)(*arrays, **attributes)

    return reference


def _refusals(operands: str, allowed: DTypeClass, attributes: dict[str, Any]) -> list[BadCall]:
    """The bad calls of every op whose operands have one type: dtype, arity, dtypes, shapes."""
    names = operands.split()
    count, good = len(names), next(n for n in reversed(DTYPES) if DTYPES[n] in allowed)
    calls = []
    for wrong in ("f8e4m3fn", "bool", "f32"):
        if DTYPES[wrong] not in allowed:
            message = f"{names[0]} has dtype {wrong}; one of {listed(allowed)}"
            calls.append(bad("dtype", *[f"{wrong}[2]"] * count, message=message, **attributes))
    for given in (count - 1, count + 1):
        message = f"{given} operands given; takes {', '.join(names)}"
        calls.append(bad("arity", *[f"{good}[2]"] * given, message=message, **attributes))
    if count > 1:
        calls += _mismatches(count, good, allowed, attributes)
    return calls


def _mismatches(
    count: int, good: str, allowed: DTypeClass, attributes: dict[str, Any]
) -> list[BadCall]:
    """One bad call for each operand that differs from the first in its shape or its dtype."""
    calls = []
    other = next(n for n in DTYPES if DTYPES[n] in allowed and n != good)
    for position in range(1, count):
        types = [f"{good}[2]"] * count
        types[position] = f"{good}[2,1]"
        message = "operand shapes differ: [2] vs [2, 1]; use broadcast_to"
        calls.append(bad("shapes", *types, message=message, **attributes))
        types[position] = f"{other}[2]"
        message = f"operand dtypes differ: {good} vs {other}; cast one of them"
        calls.append(bad("dtypes", *types, message=message, **attributes))
    return calls


def row(
    name: str,
    operands: str,
    allowed: DTypeClass,
    doc: str,
    samples: Sequence[Sample],
    *,
    traits: str = "",
    rule: Callable[[Call], TensorType] = same_type,
    attributes: Sequence[Attribute] = (),
    call: dict[str, Any] | None = None,
    also_bad: Sequence[BadCall] = (),
    **rest: Any,
) -> Op:
    """Define an elementwise op; ``call`` holds valid attributes for the derived bad calls."""
    numerics_name = f"{name}_" if name in ("and", "or", "not") else name
    return define(
        name,
        operands,
        dtypes=allowed,
        rule=rule,
        reference=through(numerics_name),
        doc=doc,
        attributes=attributes,
        samples=samples,
        bad_calls=[*_refusals(operands, allowed, call or {}), *also_bad],
        traits=f"elementwise {traits}",
        **rest,
    )


def unary(name: str, allowed: DTypeClass, doc: str, *pairs: tuple[Array, Array], **rest: Any) -> Op:
    """Define an op of one operand; each pair is an operand and what it gives."""
    samples = [sample(given, gives=gives) for given, gives in pairs]
    return row(name, "operand", allowed, doc, samples, **rest)


def binary(
    name: str, allowed: DTypeClass, doc: str, *triples: tuple[Array, Array, Array], **rest: Any
) -> Op:
    """Define an op of two operands; each triple is the operands and what they give."""
    samples = [sample(lhs, rhs, gives=gives) for lhs, rhs, gives in triples]
    return row(name, rest.pop("operands", "lhs rhs"), allowed, doc, samples, **rest)


Vector = Callable[..., Array]


def _vector(dtype: str) -> Vector:
    return lambda *values: Array(dtype, list(values))


bool_, f16, bf16, f32, f64 = map(_vector, ("bool", "f16", "bf16", "f32", "f64"))
i8, i16, i32, i64 = map(_vector, ("i8", "i16", "i32", "i64"))
u8, u16, u32, u64 = map(_vector, ("u8", "u16", "u32", "u64"))
e4m3, e5m2 = (_vector(dtype.name) for dtype in sorted(F8, key=lambda d: d.name))


def low(bits: int) -> int:
    """The least signed integer."""
    return -(1 << (bits - 1))


def high(bits: int) -> int:
    """The greatest signed integer."""
    return (1 << (bits - 1)) - 1


def ones(bits: int) -> int:
    """The greatest unsigned integer: all bits one."""
    return (1 << bits) - 1


TINY = 1e-45  # the smallest f32 above zero
LAST = 3.4028234663852886e38  # the largest finite f32
