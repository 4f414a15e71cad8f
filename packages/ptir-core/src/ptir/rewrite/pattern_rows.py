"""The table of derived patterns: one row for each functional that is found as ops.

Smaller ones come first where one value may be both: the first row that matches a root takes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ptir.ir.attributes import Literal
from ptir.ir.graph import Node, Ref
from ptir.ops.implementations import PORTABLE
from ptir.ops.record import op
from ptir.rewrite.known import Known
from ptir.rewrite.pattern_table import (
    SENTINELS,
    Form,
    Given,
    Operands,
    PatternRow,
    define_own,
)
from ptir.types import I32


def _axes(form: Form, operands: Operands, root: Ref) -> Iterator[Given]:
    for axis in reversed(range(operands["x"].type.rank)):
        yield operands, {"axis": axis}


# --- rope ---


def _rotated(form: Form, operands: Operands, root: Ref) -> Iterator[Given]:
    """With the angles' base where the frequencies are powers of one, else with frequencies."""
    x, positions, frequencies = (operands[n] for n in ("x", "positions", "frequencies"))
    half = frequencies.type.shape[0]
    given = {"layout": form.attributes["layout"], "rotary": 2 * half, "theta": 10000.0}
    if not 2 <= 2 * half <= x.type.shape[-1]:
        return
    array = Known().of(frequencies)
    if array is not None:
        for theta in _bases(array):
            yield {"x": x, "positions": positions}, {**given, "theta": theta}
    yield operands, given


def _bases(array: Any) -> Iterator[float]:
    """Numbers whose powers the frequencies probably are."""
    half = len(array)
    if half == 1:
        yield 10000.0
    elif 0 < array[1] < 1:
        base = float(array[-1]) ** (-half / (half - 1))
        for figures in range(1, 8):
            yield float(f"{base:.{figures}g}")
        yield float(round(base))


# --- attention ---

_LIMIT: Final = 2**31 - 1


def _seen(form: Form, operands: Operands, root: Ref) -> Iterator[Given]:
    """Positions and lengths as they are found, or as constants that mean none."""
    if form.spelling == PORTABLE:
        for window in _windows(form, operands, root):
            yield operands, {**form.attributes, "window": window}
        return
    q, k, v = (operands[n] for n in "qkv")
    if q.type.rank != 4 or k.type.shape != v.type.shape[:3] + k.type.shape[3:]:
        return
    if q.type.shape[3] != v.type.shape[3]:
        return
    B, T, C = q.type.shape[0], q.type.shape[2], k.type.shape[2]
    cap = SENTINELS[1] if form.spelling == "bent" else None
    given = {"scale": SENTINELS[0], "window": None, "soft_cap": cap, "causal": False}
    whole = {"q": q, "k": k, "v": v, "start": _full(B, 0), "length": _full(B, C)}
    mask = operands.get("mask")
    if mask is None:
        yield whole, given
        return
    places = _places(mask, B)
    for start in (_full(B, 0), *([_full(B, C - T)] if C > T else []), *places):
        for window in (None, *_constant_windows(mask, T, C)):
            yield {**whole, "start": start}, {**given, "causal": True, "window": window}


def _full(count: int, number: int) -> Ref:
    import numpy as np

    value = op("constant")(value=Literal.of(np.array(number, np.int32)))
    return op("broadcast_to")(value, shape=(count,))


def _places(mask: Ref, rows: int) -> list[Ref]:
    """Positions that a mask is made of: i32 values from outside, one for each row or for all."""
    found: dict[tuple[int, int], Ref] = {}
    for node in _below(mask, 64):
        for ref in node.operands:
            if ref.type.dtype == I32 and ref.node.is_source and ref.type.size in (1, rows):
                found[ref.key] = ref
    made = []
    for ref in list(found.values())[:3]:
        if ref.type.shape == (rows,):
            made.append(ref)
        elif ref.type.size == rows:
            made.append(op("reshape")(ref, shape=(rows,)))
        else:
            flat = op("reshape")(ref, shape=(1,))
            made.append(op("broadcast_to")(flat, shape=(rows,)))
    return made


def _below(value: Ref, most: int) -> list[Node]:
    seen: dict[int, Node] = {}
    pending = [value.node]
    while pending and len(seen) < most:
        node = pending.pop()
        if node.serial not in seen:
            seen[node.serial] = node
            pending += [r.node for r in node.operands]
    return list(seen.values())


def _constant_windows(mask: Ref, rows: int, keys: int) -> Iterator[int]:
    """How many keys the last query sees, where a mask is constant; or numbers that it holds."""
    array = Known().of(mask)
    if array is None:
        yield from _integers(mask, keys)
        return
    if array.shape[-2:] != (rows, keys) or not array.size:
        return
    last = array.reshape(-1, rows, keys)[0, -1]
    kept = last if array.dtype == bool else last == 0
    for count in {int(kept.sum()), keys - int(kept.sum())}:
        if 0 < count < keys:
            yield count


def _integers(value: Ref, limit: int) -> Iterator[int]:
    from ptir.rewrite.constants import uniform

    found: set[int] = set()
    for node in _below(value, 64):
        number = uniform(Ref(node)) if node.op == "constant" else None
        if isinstance(number, int) and not isinstance(number, bool) and 0 < abs(number) < _LIMIT:
            found.update((abs(number), abs(number) + 1))
    yield from sorted(n for n in found if n <= 2 * limit)[:4]


def _windows(form: Form, operands: Operands, root: Ref) -> Iterator[int | None]:
    if form.attributes["window"] is None:
        yield None
        return
    yield from _integers(root, _LIMIT)


def _nice(operands: Operands, name: str) -> Sequence[float]:
    if name != "scale":
        return ()
    size = operands["q"].type.shape[-1]
    return (1 / math.sqrt(size), size**-0.5, 1.0)


# --- the rows ---

_FLOATS: Final = "f32|f16|bf16"

define_own(
    PatternRow(
        "softmax", "x[...,D]", ("exp", "reduce"), {"": ("f32[2,3,4]",)}, {"axis": (2,)}, solve=_axes
    )
)
define_own(
    PatternRow(
        "layer_norm",
        "x[...,D] weight[D] bias[D]",
        ("reduce", "rsqrt|sqrt|pow"),
        {"": ("f32[2,3,4] f32[4] f32[4]",)},
        unknown=("epsilon",),
    )
)
define_own(
    PatternRow(
        "rms_norm",
        "x[...,D] weight[D]",
        ("reduce", "rsqrt|sqrt|pow"),
        {"": ("f32[2,3,4] f32[4]",)},
        unknown=("epsilon",),
    )
)
define_own(
    PatternRow(
        "batch_norm",
        "x[...,C] weight[C] bias[C] mean[C] variance[C]",
        ("rsqrt|sqrt|pow",),
        {"": ("f32[2,3,4] f32[4] f32[4] f32[4] f32[4]",)},
        unknown=("epsilon",),
    )
)
define_own(
    PatternRow(
        "gelu", "x[...]", ("erf|tanh",), {"": ("f32[2,3,4]",)}, {"approximate": ("none", "tanh")}
    )
)
define_own(PatternRow("silu", "x[...]", ("exp|tanh",), {"": ("f32[2,3,4]",)}))
define_own(
    PatternRow("swiglu", "gate[...] up[...]", ("exp|tanh|silu",), {"": ("f32[2,3,4] f32[2,3,4]",)})
)
define_own(
    PatternRow(
        "linear",
        f"x[...,K] weight:{_FLOATS}[M,N] bias[O]",
        ("dot_general",),
        {"": ("f32[2,3,4] f32[4,5] f32[5]", "f32[2,3,4] f32[4,5]")},
        {"layout": ("io",)},
        solve=lambda form, operands, root: (
            (operands, {"layout": layout}) for layout in ("io", "oi")
        ),
    )
)
define_own(
    PatternRow(
        "embedding", f"table:{_FLOATS}[V,D] ids:i32[...]", ("take",), {"": ("f32[7,4] i32[2,3]",)}
    )
)
define_own(
    PatternRow(
        "rope",
        "x[B,H,T,D] positions:i32[B,T] frequencies[P]",
        ("cos", "sin", "concat"),
        {"": ("f32[2,3,5,8] i32[2,5] f32[4]", "f32[2,3,5,8] i32[2,5] f32[3]")},
        {"layout": ("half", "interleaved"), "theta": (10000.0,), "rotary": (8, 6)},
        permutations=((0, 2, 1, 3),),
        solve=_rotated,
    )
)
define_own(
    PatternRow(
        "attention",
        "q*[B,H,T,D] k*[B,G,C,D] v[B,G,C,D] start:i32[B] length:i32[B]",
        ("dot_general", "exp|softmax"),
        {
            PORTABLE: (
                "f32[2,6,5,4] f32[2,3,7,4] f32[2,3,7,4] i32[2] i32[2]",
                "f32[2,6,1,4] f32[2,3,7,4] f32[2,3,7,4] i32[2] i32[2]",
            ),
            "bare": ("f32[2,6,5,4] f32[2,6,7,4] f32[2,6,7,4]",),
            "selected": ("f32[2,6,5,4] f32[2,6,7,4] f32[2,6,7,4] bool[2,1,5,7]",),
            "filled": ("f32[2,6,5,4] f32[2,6,7,4] f32[2,6,7,4] bool[2,1,5,7]",),
            "added": ("f32[2,6,5,4] f32[2,6,7,4] f32[2,6,7,4] f32[2,1,5,7]",),
            "bent": ("f32[2,6,5,4] f32[2,6,7,4] f32[2,6,7,4] f32[2,1,5,7]",),
        },
        {"causal": (True, False), "window": (None, 5), "soft_cap": (None, 1.0)},
        unknown=("scale", "soft_cap"),
        masks=True,
        solve=_seen,
        nice=_nice,
    )
)
define_own(
    PatternRow(
        "cache_update",
        f"cache:{_FLOATS}[B,H,C,D] new:{_FLOATS}[B,H,T,D] start:i32[B] count:i32[B]",
        ("take", "select"),
        {
            "": (
                "f32[2,3,7,4] f32[2,3,5,4] i32[2] i32[2]",
                "f32[2,3,7,4] f32[2,3,1,4] i32[2] i32[2]",
                "f32[1,3,7,4] f32[1,3,5,4] i32[1] i32[1]",
                "f32[1,3,7,4] f32[1,3,1,4] i32[1] i32[1]",
            )
        },
    )
)
