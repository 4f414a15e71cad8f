"""Control ops: regions that run once, one of them, or repeatedly; composites and custom calls.

Regions are closed blocks: what they need comes in as parameters. A result may be an operand
itself, since a region may return what it was given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from ptir.errors import TypeRuleError, UnsupportedError
from ptir.ir.program import Block
from ptir.ops.classes import ANY, dtypes
from ptir.ops.record import Array, Attribute, BadCall, Call, Sample, bad, define, refusals
from ptir.types import BOOL, F32, TensorType, parse_type

_f32, _bool = partial(Array, "f32"), partial(Array, "bool")
_FLAG = TensorType(BOOL, ())

Types = tuple[TensorType, ...]


def listed(types: Sequence[TensorType]) -> str:
    """Types as messages show them."""
    return f"({', '.join(map(str, types))})"


def require_inputs(call: Call, name: str, region: Block, operands: Types) -> None:
    """Refuse a region that does not take exactly ``operands``."""
    message = f"{name} takes {listed(region.inputs)}; the operands are {listed(operands)}"
    call.require(region.inputs == operands, "inputs", message)


def _cond(call: Call) -> Types:
    then, otherwise = call.regions
    predicate, *operands = call.types
    call.require(
        predicate == _FLAG, "predicate", f"predicate has type {predicate}; bool[] is needed"
    )
    require_inputs(call, "then", then, tuple(operands))
    require_inputs(call, "else", otherwise, tuple(operands))
    found, other = then.output_types, otherwise.output_types
    call.require(found == other, "outputs", f"then gives {listed(found)}, else {listed(other)}")
    return found


def _run_cond(xp: Any, predicate: Any, *operands: Any, regions: Any) -> Any:
    then, otherwise = regions
    return then(*operands) if bool(predicate) else otherwise(*operands)


_V, _W = TensorType(F32, (2,)), TensorType(F32, (1,))
_KEEP = Block((_V, _W), (), (0, 1))
_SWAP = Block((_V, _W), (), (1, 0))
_FIRST = Block((_V, _W), (), (0,))
_SECOND = Block((_V, _W), (), (1,))
_TWICE = Block((_V, _W), (), (0, 0))
_OTHER = Block((_W,), (), (0,))

cond = define(
    "cond",
    "predicate operands*",
    dtypes={"predicate": dtypes("bool"), "operands*": ANY},
    regions=2,
    rule=_cond,
    reference=_run_cond,
    traits="control",
    profile="control-flow",
    doc="""The results of the first region (then) if the predicate holds, else of the second.

    Only the chosen region runs. Both take the operands and give equal types.""",
    samples=(
        Sample(
            (_bool(True), _f32([1, -2]), _f32([3, 4])),
            {},
            (_f32([3, 4]), _f32([1, -2])),
            (Block((_V, _V), (), (1, 0)), Block((_V, _V), (), (0, 1))),
        ),
        Sample(
            (_bool(True), _f32([1, -2]), _f32([3, 4])),
            {},
            (_f32([1, -2]),),
            (Block((_V, _V), (), (0,)), Block((_V, _V), (), (1,))),
        ),
        Sample(
            (_bool(False), _f32([1, -2]), _f32([3, 4])),
            {},
            (_f32([3, 4]),),
            (Block((_V, _V), (), (0,)), Block((_V, _V), (), (1,))),
        ),
    ),
    bad_calls=(
        *refusals(
            "predicate operands*",
            {"predicate": dtypes("bool"), "operands*": ANY},
            "bool[]",
            "f32[2]",
            regions=(_FIRST, _FIRST),
        ),
        BadCall(
            "predicate",
            ("bool[1]", "f32[2]", "f32[1]"),
            {},
            "predicate has type bool[1]; bool[] is needed",
            (_FIRST, _FIRST),
        ),
        BadCall(
            "inputs",
            ("bool[]", "f32[2]", "f32[1]"),
            {},
            "then takes (f32[1]); the operands are (f32[2], f32[1])",
            (_OTHER, _SECOND),
        ),
        BadCall(
            "inputs",
            ("bool[]", "f32[2]", "f32[1]"),
            {},
            "else takes (f32[1]); the operands are (f32[2], f32[1])",
            (_SECOND, _OTHER),
        ),
        BadCall(
            "outputs",
            ("bool[]", "f32[2]", "f32[1]"),
            {},
            "then gives (f32[2]), else (f32[1])",
            (_FIRST, _SECOND),
        ),
        BadCall(
            "regions", ("bool[]", "f32[2]", "f32[1]"), {}, "1 regions given; takes 2", (_FIRST,)
        ),
    ),
)


def _while(call: Call) -> Types:
    condition, body = call.regions
    state = call.types
    call.require(bool(state), "operands", "no operands given; a loop without state cannot end")
    require_inputs(call, "condition", condition, state)
    require_inputs(call, "body", body, state)
    flags, found = condition.output_types, body.output_types
    call.require(flags == (_FLAG,), "condition", f"condition gives {listed(flags)}, not (bool[])")
    call.require(
        found == state, "body", f"body gives {listed(found)}; the state is {listed(state)}"
    )
    return state


def _run_while(xp: Any, *state: Any, regions: Any) -> Any:
    condition, body = regions
    while bool(condition(*state)[0]):
        state = body(*state)
    return state


_STATE = (_FLAG, _FLAG, _FLAG, _V, _V, _V)
_GO = Block(_STATE, (), (0,))
_BODY = Block(_STATE, (), (1, 2, 2, 4, 5, 3))
_STEP = Block((_FLAG,), (), (0,))

while_ = define(
    "while",
    "operands*",
    dtypes=ANY,
    regions=2,
    rule=_while,
    reference=_run_while,
    traits="control",
    profile="control-flow",
    doc="""The state after the second region (body) ran as long as the first (condition) holds.

    The operands are the first state; the condition is asked before every run of the body.""",
    samples=tuple(
        Sample(
            (*map(_bool, flags), *map(_f32, before)),
            {},
            (*map(_bool, end), *map(_f32, after)),
            (_GO, _BODY),
        )
        for before in (([1, -2], [3, 4], [5, 6]),)
        for flags, end, after in (
            ((False, True, False), (False, True, False), before),
            ((True, False, False), (False, False, False), ([3, 4], [5, 6], [1, -2])),
            ((True, True, False), (False, False, False), ([5, 6], [1, -2], [3, 4])),
        )
    ),
    bad_calls=(
        *refusals("operands*", ANY, "bool[]", regions=(_STEP, _STEP)),
        BadCall(
            "operands",
            (),
            {},
            "no operands given; a loop without state cannot end",
            (Block((), (), ()), Block((), (), ())),
        ),
        BadCall(
            "inputs",
            ("f32[2]", "f32[1]"),
            {},
            "condition takes (bool[]); the operands are (f32[2], f32[1])",
            (_STEP, _KEEP),
        ),
        BadCall(
            "inputs",
            ("bool[]",),
            {},
            "body takes (f32[2], f32[1]); the operands are (bool[])",
            (_STEP, _KEEP),
        ),
        BadCall(
            "condition",
            ("f32[2]", "f32[1]"),
            {},
            "condition gives (f32[2]), not (bool[])",
            (_FIRST, _KEEP),
        ),
        BadCall(
            "body",
            ("bool[]",),
            {},
            "body gives (bool[], bool[]); the state is (bool[])",
            (_STEP, Block((_FLAG,), (), (0, 0))),
        ),
    ),
)

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def _composite(call: Call) -> Types:
    (lowering,) = call.regions
    name = call["name"]
    named = isinstance(name, str) and _NAME.fullmatch(name) is not None
    call.require(named, "name", f"name {name!r} is refused; write it as rms_norm")
    require_inputs(call, "lowering", lowering, call.types)
    return lowering.output_types


def _run_composite(xp: Any, /, *operands: Any, regions: Any, **attributes: Any) -> Any:
    return regions[0](*operands)


composite = define(
    "composite",
    "operands*",
    dtypes=ANY,
    attributes=(Attribute("name", "the functional that this is"),),
    open_attributes=True,
    regions=1,
    rule=_composite,
    reference=_run_composite,
    traits="control",
    profile="extension",
    doc="""A named functional with its lowering attached, which says exactly what it computes.

    A backend may take it whole, by name and further attributes; inlining it is always right.""",
    samples=(
        Sample((_f32([1, -2]), _f32([3])), {"name": "swap"}, (_f32([3]), _f32([1, -2])), (_SWAP,)),
        Sample(
            (_f32([1, -2]), _f32([3])),
            {"name": "twice", "eps": 0.5},
            (_f32([1, -2]), _f32([1, -2])),
            (_TWICE,),
        ),
    ),
    bad_calls=(
        *refusals("operands*", ANY, "f32[2]", "f32[1]", regions=(_SWAP,), name="swap"),
        BadCall(
            "name",
            ("f32[2]", "f32[1]"),
            {"name": "two words"},
            "name 'two words' is refused; write it as rms_norm",
            (_SWAP,),
        ),
        BadCall(
            "inputs",
            ("f32[2]",),
            {"name": "swap"},
            "lowering takes (f32[2], f32[1]); the operands are (f32[2])",
            (_SWAP,),
        ),
        BadCall("regions", ("f32[2]",), {"name": "swap"}, "0 regions given; takes 1", ()),
    ),
)

_TARGET = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+\.v[1-9][0-9]*")


def _custom_call(call: Call) -> Types:
    target, results = call["target"], call["results"]
    named = isinstance(target, str) and _TARGET.fullmatch(target) is not None
    rule = "it must be namespaced and versioned, as in vendor.fused_norm.v1"
    call.require(named, "target", f"target {target!r} is refused: {rule}")
    listed = isinstance(results, tuple) and results and all(isinstance(r, str) for r in results)
    call.require(bool(listed), "results", f"results {results!r} is not a tuple of type texts")
    return tuple(_result_type(call, text) for text in results)


def _result_type(call: Call, text: str) -> TensorType:
    try:
        return parse_type(text)
    except TypeRuleError as error:
        call.fail("results", f"results: {error}")


def _run_custom_call(xp: Any, /, *operands: Any, target: str, **attributes: Any) -> NoReturn:
    raise UnsupportedError(
        f"custom_call {target!r} has no reference; use a backend that implements it"
    )


custom_call = define(
    "custom_call",
    "operands*",
    dtypes=ANY,
    attributes=(
        Attribute("target", "what is called: namespace.name.v1"),
        Attribute("results", "types of the results as text, for example f32[2,3]"),
    ),
    open_attributes=True,
    rule=_custom_call,
    reference=_run_custom_call,
    traits="control",
    profile="extension",
    doc="""A pure function that only a backend knows, by namespaced and versioned target.

    A backend that does not know the target refuses the program; there is no fallback.""",
    bad_calls=(
        *refusals("operands*", ANY, "f32[2]", target="vendor.fused_norm.v1", results=("f32[2]",)),
        bad(
            "target",
            "f32[2]",
            target="fused_norm",
            results=("f32[2]",),
            message="target 'fused_norm' is refused: "
            "it must be namespaced and versioned, as in vendor.fused_norm.v1",
        ),
        bad(
            "target",
            "f32[2]",
            target="vendor.fused_norm",
            results=("f32[2]",),
            message="target 'vendor.fused_norm' is refused: "
            "it must be namespaced and versioned, as in vendor.fused_norm.v1",
        ),
        bad(
            "results",
            "f32[2]",
            target="vendor.fused_norm.v1",
            results=(),
            message="results () is not a tuple of type texts",
        ),
        bad(
            "results",
            "f32[2]",
            target="vendor.fused_norm.v1",
            results=("f32(2)",),
            message="results: 'f32(2)' is not a tensor type; write it as f32[2,3]",
        ),
    ),
)
