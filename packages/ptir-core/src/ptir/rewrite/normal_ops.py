"""What each op is as algebra: the rules of normal forms, by op."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from ptir.ir.graph import Node
from ptir.rewrite import digits as views
from ptir.rewrite.constants import uniform
from ptir.rewrite.digits import Digits
from ptir.rewrite.known import ELEMENTS
from ptir.rewrite.normal import NormalForms, Rule
from ptir.rewrite.polynomial import CONSTANT, Polynomial, frozen, plus, product


def _float(node: Node) -> bool:
    return node.types[0].dtype.is_float


def _numeric(node: Node) -> bool:
    return node.types[0].dtype.kind != "bool"


def _add(forms: NormalForms, node: Node) -> Polynomial | None:
    if not _numeric(node):
        return None
    a, b = map(forms.of, node.operands)
    if _float(node):
        found = forms.masked(a, b) or forms.masked(b, a)
        if found is not None:
            return found
    return plus(a, b)


def _sub(forms: NormalForms, node: Node) -> Polynomial | None:
    a, b = map(forms.of, node.operands)
    return plus(a, b, -1)


def _mul(forms: NormalForms, node: Node) -> Polynomial | None:
    if not _numeric(node):
        return None
    a, b = map(forms.of, node.operands)
    return product(a, b)


def _div(forms: NormalForms, node: Node) -> Polynomial | None:
    if not _float(node):
        return None
    divisor = node.operands[1]
    array = forms.known.of(divisor)
    if array is not None and array.size > 1 and array.all():
        return product(forms.of(node.operands[0]), forms.literal(divisor, 1 / array))
    a, b = map(forms.of, node.operands)
    return product(a, forms.power(b, -1)) if b else None


def _neg(forms: NormalForms, node: Node) -> Polynomial | None:
    return plus({}, forms.of(node.operands[0]), -1) if _numeric(node) else None


def _powered(exponent: float) -> Rule:
    def rule(forms: NormalForms, node: Node) -> Polynomial | None:
        p = forms.of(node.operands[0])
        return forms.power(p, exponent) if _float(node) and p else None

    return rule


def _pow(forms: NormalForms, node: Node) -> Polynomial | None:
    exponent = uniform(node.operands[1])
    if exponent is None or not _float(node) or not 0 < abs(exponent) <= 4:
        return None
    p = forms.of(node.operands[0])
    return forms.power(p, exponent) if p else None


def _viewed(view: Callable[[Node], Digits]) -> Rule:
    def rule(forms: NormalForms, node: Node) -> Polynomial | None:
        return forms.seen(forms.of(node.operands[0]), view(node))

    return rule


def _slice_view(node: Node) -> Digits:
    shape = node.operands[0].type.shape
    starts, steps = node.attributes["starts"], node.attributes["strides"] or (1,) * len(shape)
    return views.sliced(shape, starts, steps, node.types[0].shape)


def _same_value(forms: NormalForms, node: Node) -> Polynomial | None:
    return forms.of(node.operands[0])


def _cast(forms: NormalForms, node: Node) -> Polynomial | None:
    own, wanted = node.operands[0].type.dtype, node.types[0].dtype
    return forms.of(node.operands[0]) if own == wanted else None


def _iota(forms: NormalForms, node: Node) -> Polynomial | None:
    shape, axis = node.types[0].shape, node.attributes["axis"]
    if node.types[0].dtype.kind != "int":
        return None
    return forms.places(views.merged([(n, int(i == axis)) for i, n in enumerate(shape)]))


def _constant(forms: NormalForms, node: Node) -> Polynomial | None:
    """Whole numbers that grow evenly along every axis, as places."""
    array = node.attributes["value"].numpy()
    if array.dtype.kind != "i" or not 1 < array.size <= ELEMENTS:
        return None
    first, found, rest = array.flat[0].item(), Polynomial(), array.astype("i8")
    rest = rest - first
    for axis, size in enumerate(array.shape):
        step = rest.take(1, axis=axis).flat[0].item() if size > 1 else 0
        shape = [size if i == axis else 1 for i in range(array.ndim)]
        rest = rest - step * _counted(size).reshape(shape)
        view = views.merged([(n, int(i == axis)) for i, n in enumerate(array.shape)])
        found = plus(found, forms.places(view), step) if step else found
    if rest.any():
        return None
    return plus(found, {CONSTANT: first}) if first else found


def _counted(size: int) -> Any:
    import numpy as np

    return np.arange(size)


def _reduce(forms: NormalForms, node: Node) -> Polynomial | None:
    operand, axes = node.operands[0].type, node.attributes["axes"]
    kind = node.attributes["kind"]
    if kind not in ("sum", "max") or not operand.dtype.is_float:
        return None
    order = [a for a in range(operand.rank) if a not in axes]
    inner = math.prod(operand.shape[a] for a in axes)
    if inner == 0:
        return None
    p = forms.seen(
        forms.of(node.operands[0]), views.permuted(operand.shape, [*order, *sorted(axes)])
    )
    if kind == "sum":
        return forms.fold_sum(p, inner)
    return {((forms.atom("fold", (kind, inner), p), 1),): 1.0}


def _dot(forms: NormalForms, node: Node) -> Polynomial | None:
    """A contraction: products of what both sides are over batch, free and contracted axes."""
    if not _float(node) or node.attributes["dtype"] is not None:
        return None
    if any(ref.type.dtype != node.types[0].dtype for ref in node.operands):
        return None
    lhs, rhs = (ref.type.shape for ref in node.operands)
    given = node.attributes
    lb, rb, lc, rc = (given[n] for n in ("lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract"))
    lf = [a for a in range(len(lhs)) if a not in (*lb, *lc)]
    rf = [a for a in range(len(rhs)) if a not in (*rb, *rc)]
    ls, rs = views.strides_of(lhs), views.strides_of(rhs)
    inner = math.prod(lhs[a] for a in lc)
    if not inner:
        return None
    left = [(lhs[a], ls[a]) for a in (*lb, *lf)] + [(rhs[a], 0) for a in rf]
    left += [(lhs[a], ls[a]) for a in lc]
    right = [(rhs[a], rs[a]) for a in rb] + [(lhs[a], 0) for a in lf]
    right += [(rhs[a], rs[a]) for a in (*rf, *rc)]
    a = forms.seen(forms.of(node.operands[0]), views.merged(left))
    b = forms.seen(forms.of(node.operands[1]), views.merged(right))
    return forms.fold_sum(product(a, b), inner)


def _concat(forms: NormalForms, node: Node) -> Polynomial | None:
    axis = node.attributes["axis"]
    shapes = [operand.type.shape for operand in node.operands]
    inner = math.prod(shapes[0][axis + 1 :])
    sizes = tuple(shape[axis] for shape in shapes)
    detail = ("concat", sizes, inner)
    parts = [*map(forms.of, node.operands)]
    if sizes == sizes[:1] * len(sizes) and all(part == parts[0] for part in parts):
        block, outer = sizes[0] * inner, math.prod(shapes[0][:axis])
        return forms.seen(parts[0], views.merged([(outer, block), (len(sizes), 0), (block, 1)]))
    return {((forms.atom("whole", detail, *parts), 1),): 1.0}


def _select(forms: NormalForms, node: Node) -> Polynomial | None:
    predicate, then, other = map(forms.of, node.operands)
    return forms.choice(predicate, then, other)


def _and(forms: NormalForms, node: Node) -> Polynomial | None:
    if _numeric(node):
        return None
    return forms.both([forms.of(operand) for operand in node.operands])


def _not(forms: NormalForms, node: Node) -> Polynomial | None:
    return None if _numeric(node) else forms.negated(forms.of(node.operands[0]))


def _compare(forms: NormalForms, node: Node) -> Polynomial | None:
    a, b = map(forms.of, node.operands)
    direction = node.attributes["direction"]
    if direction in ("eq", "ne"):
        first, second = sorted((a, b), key=frozen)
        same: Polynomial = {((forms.atom("each", ("compare", "eq"), first, second), 1),): 1.0}
        return same if direction == "eq" else forms.negated(same)
    if direction in ("gt", "ge"):
        a, b = b, a
    whole = node.operands[0].type.dtype.kind == "int"
    return forms.less(a, b, whole=whole, strict=direction in ("lt", "gt"))


RULES: Final[Mapping[str, Rule]] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "sqrt": _powered(0.5),
    "rsqrt": _powered(-0.5),
    "reciprocal": _powered(-1),
    "pow": _pow,
    "reshape": _same_value,
    "stop_gradient": _same_value,
    "cast": _cast,
    "transpose": _viewed(
        lambda n: views.permuted(n.operands[0].type.shape, n.attributes["permutation"])
    ),
    "broadcast_to": _viewed(lambda n: views.broadcast(n.operands[0].type.shape, n.types[0].shape)),
    "slice": _viewed(_slice_view),
    "iota": _iota,
    "constant": _constant,
    "reduce": _reduce,
    "dot_general": _dot,
    "concat": _concat,
    "select": _select,
    "and": _and,
    "not": _not,
    "compare": _compare,
}
