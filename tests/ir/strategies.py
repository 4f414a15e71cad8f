"""Random valid programs, built with the ops themselves: one table row per way to add values."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from ptir.ir import Attr, Block, Literal, Port, Program, Ref, freeze
from ptir.ir.graph import source
from ptir.ops import OPS
from ptir.types import BF16, BOOL, DTYPES, F16, F32, I32, U32, TensorType

Draw = Callable[[st.SearchStrategy], object]
Step = Callable[..., Sequence[Ref]]

SHAPES = ((), (1,), (2,), (2, 3), (0, 3), (2, 1, 2))
TYPES = tuple(TensorType(d, s) for d in (F32, F16, BF16, I32, U32, BOOL) for s in SHAPES)
FLAG = TensorType(BOOL, ())
NAN_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff800000000beef"))[0]
NAMES = ("softmax", "rms_norm", "softmax_0", "a")

TEXT = """\
ptir 1.0

function @softmax_0(%0: f32[2,3]) -> f32[2,3] {
  %1 = exp(%0) : f32[2,3]
  return %1
}

program(%0: f32[2,3] input "x", %1: f32[3] parameter "ln.weight", %2: bool[] input "go") -> \
f32[2,2], i32[2,2], bool[] {
  %3 = composite softmax(%0) {axis = 1} @softmax_0 : f32[2,3]
  %4, %5 = top_k(%3) {k = 2} : f32[2,2], i32[2,2]
  %6 = while(%2) : bool[] region (%0: bool[]) -> bool[] {
    return %0
  } region (%0: bool[]) -> bool[] {
    %1 = not(%0) : bool[]
    return %1
  }
  return %4, %5, %6
}
"""

scalars: st.SearchStrategy[Attr] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from(
        (0, 1, 0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, NAN_PAYLOAD, 5e-324, 1e22)
    ),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(('quote " and \\', "line\n# not a comment", "ünïcode ☃", "\ud800", "}", "")),
    st.sampled_from(sorted(DTYPES)).map(DTYPES.__getitem__),
)


@st.composite
def literals(draw, types: Sequence[TensorType] = TYPES) -> Literal:
    """Any bit pattern of any type; bool elements are 0 or 1."""
    type = draw(st.sampled_from(types))
    if type.dtype == BOOL:
        return Literal(
            type, bytes(draw(st.lists(st.integers(0, 1), min_size=type.size, max_size=type.size)))
        )
    special = [v * type.size for v in _SPECIAL[type.dtype.itemsize]]
    data = st.sampled_from(special) | st.binary(min_size=type.nbytes, max_size=type.nbytes)
    return Literal(type, draw(data))


# Little endian: -0, inf, NaN and a NaN with payload, at 2 and 4 bytes.
_SPECIAL = {
    2: [bytes.fromhex(h) for h in ("0080", "007c", "00fe", "80ff", "807f")],
    4: [bytes.fromhex(h) for h in ("00000080", "0000807f", "0000c07f", "01beefff", "000080ff")],
}

values: st.SearchStrategy[Attr] = st.recursive(
    scalars | literals(), lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4
)
extra = st.dictionaries(
    st.sampled_from(("axis", "eps", "inf", "true", "x.y", "file")), values, max_size=3
)


def _some(draw, refs: Sequence[Ref], *dtypes, rank: int = 0) -> Ref | None:
    found = [r for r in refs if (not dtypes or r.type.dtype in dtypes) and r.type.rank >= rank]
    return draw(st.sampled_from(found)) if found else None


def _constant(draw, refs, depth):
    return OPS["constant"].multi(value=draw(literals()))


def _unary(draw, refs, depth):
    ref = _some(draw, refs, F32)
    return OPS[draw(st.sampled_from(("exp", "neg", "tanh")))].multi(ref) if ref else ()


def _binary(draw, refs, depth):
    ref = _some(draw, refs, F32, I32, U32)
    other = ref and draw(st.sampled_from([r for r in refs if r.type == ref.type]))
    return OPS[draw(st.sampled_from(("add", "sub", "mul")))].multi(ref, other) if ref else ()


def _compare(draw, refs, depth):
    ref = _some(draw, refs, F32)
    other = ref and draw(st.sampled_from([r for r in refs if r.type == ref.type]))
    return OPS["compare"].multi(ref, other, direction="lt") if ref else ()


def _reduce(draw, refs, depth):
    ref = _some(draw, refs, F32, rank=1)
    if ref is None:
        return ()
    axes = draw(st.lists(st.sampled_from(range(ref.type.rank)), unique=True, min_size=1))
    return OPS["reduce"].multi(ref, axes=tuple(sorted(axes)), kind="sum")


def _transpose(draw, refs, depth):
    ref = _some(draw, refs)
    if ref is None:
        return ()
    return OPS["transpose"].multi(ref, permutation=draw(st.permutations(range(ref.type.rank))))


def _concat(draw, refs, depth):
    ref = _some(draw, refs, rank=1)
    same = ref and [r for r in refs if r.type == ref.type]
    return OPS["concat"].multi(*same[:3], axis=0) if ref else ()


def _top_k(draw, refs, depth):
    ref = _some(draw, [r for r in refs if r.type.shape[-1:] > (0,)], F32, rank=1)
    return OPS["top_k"].multi(ref, k=1) if ref else ()


def _iota(draw, refs, depth):
    return OPS["iota"].multi(shape=(2, 3), dtype=draw(st.sampled_from((F32, I32))), axis=1)


def _custom_call(draw, refs, depth):
    operands = draw(st.lists(st.sampled_from(refs), max_size=2)) if refs else []
    results = tuple(map(str, draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))))
    attributes = draw(extra)
    return OPS["custom_call"].multi(*operands, target="a.b.v1", results=results, **attributes)


def _composite(draw, refs, depth):
    """One or two calls of the same lowering, which may differ in name and attributes."""
    operands = draw(st.lists(st.sampled_from(refs), max_size=2)) if refs else []
    lowering = draw(closed_blocks(tuple(r.type for r in operands), depth=depth - 1))
    results: list[Ref] = []
    for _ in range(draw(st.integers(1, 2))):
        attributes = {**draw(extra), "name": draw(st.sampled_from(NAMES))}
        results += OPS["composite"].multi(*operands, regions=(lowering,), **attributes)
    return results


def _cond(draw, refs, depth):
    flag = _some(draw, [r for r in refs if r.type == FLAG])
    operand = _some(draw, refs)
    if flag is None or operand is None:
        return ()
    then = draw(closed_blocks((operand.type,), depth=depth - 1))
    keep = freeze(
        [OPS["constant"](value=Literal(t, bytes(t.nbytes))) for t in then.output_types],
        [source(operand.type)],
    )
    return OPS["cond"].multi(flag, operand, regions=(then, keep))


def _while(draw, refs, depth):
    flag = _some(draw, [r for r in refs if r.type == FLAG])
    state = _some(draw, refs)
    if flag is None or state is None:
        return ()
    inputs = (flag.type, state.type)
    inner = [source(t) for t in inputs]
    body = freeze([OPS["not"](inner[0]), inner[1]], inner)
    return OPS["while"].multi(flag, state, regions=(Block(inputs, (), (0,)), body))


FLAT: tuple[Step, ...] = (
    *(_constant, _unary, _binary, _compare, _reduce, _transpose, _concat, _top_k, _iota),
    _custom_call,
)
NESTED: tuple[Step, ...] = (_composite, _cond, _while)


@st.composite
def closed_blocks(draw, inputs: tuple[TensorType, ...], *, depth: int, most: int = 3) -> Block:
    """A block with these inputs: shared nodes, several outputs, inputs that are outputs."""
    sources = [source(type) for type in inputs]
    refs = list(sources)
    steps = FLAT + NESTED if depth > 0 else FLAT
    for step in draw(st.lists(st.sampled_from(steps), max_size=most)):
        refs += step(draw, refs, depth)
    outputs = draw(st.lists(st.sampled_from(refs), max_size=3)) if refs else []
    return freeze(outputs, sources)


@st.composite
def programs(draw, depth: int = 2) -> Program:
    """A whole valid program."""
    inputs = tuple(draw(st.lists(st.sampled_from((*TYPES, FLAG, FLAG)), max_size=4)))
    block = draw(closed_blocks(inputs, depth=depth, most=7))
    names = st.text(max_size=8) | st.sampled_from(("x", "ln.weight", 'a"b\\', "é\n☃", "\ud800"))
    kinds = st.sampled_from(("input", "parameter"))
    return Program(block, tuple(Port(draw(names), draw(kinds)) for _ in inputs))
