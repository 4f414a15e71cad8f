"""Rules that patterns cannot say: computing constants, and control flow whose way is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ptir.ir.attributes import Literal
from ptir.ir.graph import Node, Ref, freeze, inline, source
from ptir.ir.program import Block
from ptir.ops.record import op
from ptir.rewrite.constants import SMALL_BYTES, computed, known, uniform
from ptir.rewrite.rule import NodeRule, OpBuilder, PlainBuilder, node_rule
from ptir.switches import switched_on
from ptir.types import BOOL, F32, I32, TensorType, spec

_NEVER: Final = frozenset({"constant", "iota", "broadcast_to", "custom_call"})


def _foldable(node: Node) -> bool:
    """Pure, small or no larger than its operands, and not about to raise for its indices."""
    record = op(node.op)
    if node.op in _NEVER or record.regions or not node.operands:
        return False
    if record.bounds is not None and switched_on("PTIR_CHECK_INDICES"):
        return False
    given = sum(operand.type.nbytes for operand in node.operands)
    return sum(t.nbytes for t in node.types) <= max(SMALL_BYTES, given)


def _fold_constants(node: Node, builder: OpBuilder) -> Sequence[Ref] | None:
    """An op of constants becomes constants, unless that takes much more memory."""
    if not _foldable(node):
        return None
    arrays = [known(operand) for operand in node.operands]
    if any(array is None for array in arrays):
        return None
    results = computed(Ref(node), tuple(arrays))
    listed = results if len(node.types) > 1 else (results,)
    return [builder.make("constant", (), {"value": Literal.of(array)}) for array in listed]


def _fold_uniform(node: Node, builder: OpBuilder) -> Sequence[Ref] | None:
    """An elementwise op of uniform values becomes a broadcast of its value for one element."""
    if "elementwise" not in op(node.op).traits or not node.types[0].shape:
        return None
    if any(uniform(operand) is None for operand in node.operands):
        return None
    scalars = [_scalar(operand, builder) for operand in node.operands]
    result = builder.make(node.op, scalars, node.attributes)
    return (builder.make("broadcast_to", (result,), {"shape": node.types[0].shape}),)


def _scalar(value: Ref, builder: OpBuilder) -> Ref:
    while value.node.op != "constant":
        value = value.node.operands[0]
    literal: Literal = value.node.attributes["value"]
    element = TensorType(literal.type.dtype, ())
    data = literal.data[: element.nbytes]
    return builder.make("constant", (), {"value": Literal(element, data)})


def _cond_known(node: Node, builder: OpBuilder) -> Sequence[Ref] | None:
    """A cond whose predicate is known, or whose regions are equal, becomes the region."""
    predicate, *operands = node.operands
    then, otherwise = node.regions
    holds = uniform(predicate)
    if holds is None and then != otherwise:
        return None
    return builder.inline(otherwise if holds is False else then, operands)


def _while_never(node: Node, builder: OpBuilder) -> Sequence[Ref] | None:
    """A while whose condition is known to fail gives its first state."""
    condition = node.regions[0]
    inputs = [source(t) for t in condition.inputs]
    (holds,) = inline(condition, inputs)
    return node.operands if uniform(holds) is False else None


# --- samples ---

_MAKE: Final = PlainBuilder().make


def _constant(array: Any, dtype: str) -> Ref:
    import numpy as np

    literal = Literal.of(np.array(array, dtype=spec(dtype).dtype.numpy))
    return _MAKE("constant", (), {"value": literal})


def _constant_examples() -> list[Block]:
    lhs = _constant([1.5, -2.0, float("nan"), -0.0], "f32")
    rhs = _MAKE("broadcast_to", (_constant(1e-45, "f32"),), {"shape": (4,)})
    values = op("sort").multi(lhs, axis=0)
    total = _MAKE("add", (lhs, rhs), {})
    past = _MAKE("compare", (_iota(), _constant([2, 2, 2, 2], "i32")), {"direction": "lt"})
    return [freeze([total], []), freeze(list(values), []), freeze([past], [])]


def _iota() -> Ref:
    return _MAKE("iota", (), {"shape": (4,), "dtype": I32, "axis": 0})


def _spread(number: float) -> Ref:
    return _MAKE("broadcast_to", (_constant(number, "f32"),), {"shape": (40, 40)})


def _uniform_examples() -> list[Block]:
    difference = _MAKE("sub", (_spread(float("inf")), _spread(float("inf"))), {})
    below = _MAKE("compare", (_spread(-0.0), _spread(0.0)), {"direction": "lt"})
    return [freeze([difference], []), freeze([below], [])]


_PAIR: Final = (spec("f32", 4), spec("f32", 4))


def _cond_examples() -> list[Block]:
    swap, keep = Block(_PAIR, (), (1, 0)), Block(_PAIR, (), (0, 1))
    inputs = [source(t) for t in _PAIR]
    predicate = source(TensorType(BOOL, ()))
    made = [
        op("cond").multi(_constant(holds, "bool"), *inputs, regions=(swap, keep))
        for holds in (True, False)
    ]
    same = op("cond").multi(predicate, *inputs, regions=(swap, swap))
    return [*(freeze(list(m), inputs) for m in made), freeze(list(same), [predicate, *inputs])]


def _while_examples() -> list[Block]:
    inputs = [source(t) for t in _PAIR]
    false = _constant(False, "bool")
    state = [source(TensorType(F32, (4,))) for _ in _PAIR]
    condition, body = freeze([false], state), Block(_PAIR, (), (1, 0))
    results = op("while").multi(*inputs, regions=(condition, body))
    return [freeze(list(results), inputs)]


STRUCTURAL: Final[tuple[NodeRule, ...]] = (
    node_rule("fold constants", "", _fold_constants, _constant_examples),
    node_rule("fold uniform", "", _fold_uniform, _uniform_examples),
    node_rule("cond known", "cond", _cond_known, _cond_examples),
    node_rule("while never", "while", _while_never, _while_examples),
)
