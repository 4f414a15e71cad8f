"""Control flow on tensors: cond, while_loop and scan, whose bodies are Python functions.

Each function is recorded once, on symbols, as a region of the program. Tensors that it uses from
outside become operands; operands, states and results may be nested containers of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptir.capture import Tensor, call
from ptir.capture.tensor import record
from ptir.capture.trace import Tracing, symbol
from ptir.capture.tree import Structure, describe, flatten, unflatten
from ptir.functional.arrays import full
from ptir.ir.graph import Ref, freeze
from ptir.ir.program import Block
from ptir.ops.record import literal, op, type_error
from ptir.types import BOOL, TensorType


def cond(
    predicate: Tensor | bool,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    *operands: Any,
) -> Any:
    """``true_fn(*operands)`` if the bool[] predicate holds, else ``false_fn(*operands)``.

    Only the chosen one runs. Both must return the same containers of tensors of the same types.
    Raises ``TypeRuleError``.
    """
    given = _Tree("cond", operands)
    then, otherwise = (
        _Traced("cond", function, given.types, given.structure) for function in (true_fn, false_fn)
    )
    _require_same("cond", "false_fn", otherwise.structure, "true_fn", then.structure)
    free = _union(then.free(), otherwise.free())
    regions = (then.block(free), otherwise.block(free))
    chosen = _tensor("cond", predicate)
    refs = (chosen.ref, *given.refs, *free)
    results = _recorded(op("cond").multi(*refs, regions=regions))
    return unflatten(then.structure, iter(results))


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], *state: Any) -> Any:
    """The state after ``state = body_fn(*state)`` ran as long as ``cond_fn(*state)`` holds.

    The condition gives a bool[]; the body returns as many values as the state has, of the same
    types (one value itself, several as a tuple), and so does the loop. Raises ``TypeRuleError``.
    """
    given = _Tree("while_loop", state)
    one = len(state) == 1
    step = (lambda only: (body_fn(only),)) if one else body_fn
    condition, body = (
        _Traced("while_loop", function, given.types, given.structure)
        for function in (cond_fn, step)
    )
    _require_same("while_loop", "body_fn", body.structure, "the state", given.structure)
    free = _union(condition.free(), body.free())
    regions = (condition.block(free), body.block(free, keep=free))
    results = _recorded(op("while").multi(*given.refs, *free, regions=regions))
    final = given.restore(results[: len(given.refs)])
    return final[0] if one else final


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    xs: Any = None,
    *,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """``carry, y = fn(carry, x)`` for each row x of ``xs``: the last carry, and the ys stacked.

    Every tensor in ``xs`` has the same first axis, whose rows are handed to ``fn``; without ``xs``
    it gets None, ``length`` times. ``reverse`` visits the last row first; the ys keep the order of
    the rows. ``fn`` keeps the types of the carry; y may be None. Raises ``TypeRuleError``.
    """
    first, rows = _Tree("scan", (carry,)), _Tree("scan", (xs,))
    count = _length(rows, length)
    types = [*first.types, *(type.with_shape(type.shape[1:]) for type in rows.types)]
    body = _Traced("scan", fn, types, first.structure, rows.structure)
    kept, given = _pair(body.structure)
    _require_same("scan", "the carry that fn returns", kept, "the carry", first.structure[1][1])
    free, at = body.free(), len(first.refs)
    region = body.block(free, at, keep=free)
    attributes = {"carries": at + len(free), "length": count, "reverse": reverse}
    refs = (*first.refs, *free, *rows.refs)
    results = _recorded(op("scan").multi(*refs, regions=(region,), **attributes))
    return first.restore(results[:at])[0], unflatten(given, iter(results[at + len(free) :]))


def _pair(structure: Any) -> tuple[Any, Any]:
    """The structures of the carry and of y in what a scan's function returns."""
    if structure[0] is not tuple or len(structure) != 3:
        said = f"fn returns {describe(structure)}; it must return a pair (carry, y)"
        raise type_error("scan", (), said)
    (_, carry), (_, given) = structure[1:]
    return carry, given


class _Tree:
    """Nested values as tensors: their graph values, types and structure."""

    def __init__(self, name: str, value: Any) -> None:
        leaves: list[Any] = []
        self.structure: Any = flatten(value, leaves)
        self.refs = [_tensor(name, leaf).ref for leaf in leaves]
        self.types = [ref.type for ref in self.refs]

    def restore(self, tensors: Sequence[Tensor]) -> Any:
        """The same structure around other tensors."""
        return unflatten(self.structure, iter(tensors))


def _tensor(name: str, leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    if isinstance(leaf, bool | int | float):
        return full((), leaf)
    if hasattr(leaf, "__array__"):
        return call("constant", value=literal(leaf))
    kind = type(leaf).__name__
    message = f"a value is {kind}; tensors, arrays, numbers and containers of them are taken"
    raise type_error(name, (), message)


class _Traced:
    """A function recorded on symbols: what it gives, and what it uses from outside."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        types: Sequence[TensorType],
        *structures: Structure,
    ) -> None:
        self._began = symbol(TensorType(BOOL, ()), name).node.serial
        self._symbols = [symbol(type, f"operand {i} of {name}") for i, type in enumerate(types)]
        tensors = iter([Tensor(ref) for ref in self._symbols])
        arguments = [value for s in structures for value in unflatten(s, tensors)]
        with Tracing():
            given = _Tree(name, function(*arguments))
        self.structure = given.structure
        self._outputs = given.refs

    def free(self) -> list[Ref]:
        """The graph values from outside that the function uses, in the order they were made."""
        own = {ref.node.serial for ref in self._symbols}
        found: dict[tuple[int, int], Ref] = {}
        seen: set[int] = set()
        pending = list(self._outputs)
        while pending:
            ref = pending.pop()
            node = ref.node
            if node.serial in own:
                continue
            if node.is_source or node.serial < self._began:
                found[ref.key] = ref
            elif node.serial not in seen:
                seen.add(node.serial)
                pending.extend(node.operands)
        return [found[key] for key in sorted(found)]

    def block(self, free: Sequence[Ref], at: int | None = None, keep: Sequence[Ref] = ()) -> Block:
        """The region: the symbols, from ``at`` on behind ``free``, to the outputs likewise.

        ``keep`` are values that it hands on beside the outputs.
        """
        symbols, outputs = self._symbols, self._outputs
        end = len(symbols) if at is None else at
        cut = len(outputs) if at is None else at
        inputs = [*symbols[:end], *free, *symbols[end:]]
        return freeze([*outputs[:cut], *keep, *outputs[cut:]], inputs)


def _union(first: Sequence[Ref], second: Sequence[Ref]) -> list[Ref]:
    found = {ref.key: ref for ref in (*first, *second)}
    return [found[key] for key in sorted(found)]


def _recorded(refs: Sequence[Ref]) -> tuple[Tensor, ...]:
    return record(refs) if refs else ()


def _require_same(name: str, what: str, found: Any, other: str, wanted: Any) -> None:
    if found != wanted:
        shown = f"{what} is {describe(found)}, {other} is {describe(wanted)}"
        raise type_error(name, (), f"{shown}; they must be the same containers")


def _length(rows: _Tree, length: int | None) -> int:
    for type in rows.types:
        if not type.shape:
            raise type_error("scan", rows.types, f"{type} has no rows; xs needs a first axis")
    counts = {type.shape[0] for type in rows.types}
    if length is not None:
        counts.add(length)
    if len(counts) != 1:
        said = "length is needed without xs" if not counts else f"lengths differ: {sorted(counts)}"
        raise type_error("scan", rows.types, said)
    return counts.pop()
