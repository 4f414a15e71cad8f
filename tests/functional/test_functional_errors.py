"""What functionals refuse, and the whole first line of what they say; defining one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ptir.functional as F
from functional.evaluate import captured, evaluate, f32, run
from ptir.capture import Tensor
from ptir.errors import PluginError, TypeRuleError, UsageError
from ptir.ir.attributes import Attributes
from ptir.ir.graph import source
from ptir.ops import implementations
from ptir.types import parse_type
from together import together


def of(types: str) -> list[Tensor]:
    """Tensors without values, of types written ``f32[2,3] i32[2]``."""
    return [Tensor(source(parse_type(text))) for text in types.split()]


NONE = {}
REFUSED = [
    (
        F.attention,
        "f32[1,5,2,8] f32[1,2,4,8] f32[1,2,4,8]",
        NONE,
        "attention(q f32[1,5,2,8], k f32[1,2,4,8]): query heads 5 are not a multiple of key heads"
        " 2",
    ),
    (
        F.attention,
        "f32[1,2,2,8] f32[1,0,4,8] f32[1,0,4,8]",
        NONE,
        "attention(q f32[1,2,2,8], k f32[1,0,4,8]): query heads 2 are not a multiple of key heads"
        " 0",
    ),
    (
        F.attention,
        "f32[1,2,2,8] f32[1,2,4,8] f32[1,2,4,7]",
        NONE,
        "attention(q f32[1,2,2,8], v f32[1,2,4,7]): D differs, 8 and 7; q[B,H,T,D] and v[B,G,C,D]"
        " are needed",
    ),
    (
        F.attention,
        "f32[2,8] f32[1,2,4,8] f32[1,2,4,8]",
        NONE,
        "attention(q f32[2,8]): q has 2 axes; q[B,H,T,D] is needed",
    ),
    (
        F.attention,
        "f32[1,2,2,0] f32[1,2,4,0] f32[1,2,4,0]",
        NONE,
        "attention(q f32[1,2,2,0]): the heads are empty; D must be at least 1",
    ),
    (
        F.attention,
        "f32[1,2,2,8] f16[1,2,4,8] f32[1,2,4,8]",
        NONE,
        "attention(k f16[1,2,4,8]): k has dtype f16; one of f32, see .astype()",
    ),
    *(
        (F.attention, "f32[1,2,2,8] f32[1,2,4,8] f32[1,2,4,8]", options, f"attention(): {message}")
        for options, message in (
            ({"window": 0}, "window is 0; it must be an integer, at least 1"),
            ({"window": 2.0}, "window is 2.0; it must be an integer, at least 1"),
            ({"soft_cap": 0}, "soft_cap is 0; it must be a finite number, greater than 0"),
            ({"scale": float("nan")}, "scale is nan; it must be a finite number"),
            ({"scale": "1"}, "scale is '1'; it must be a finite number"),
        )
    ),
    (
        F.cache_update,
        "f32[1,2,4,8] f32[1,2,1,8] i32[2] i32[1]",
        NONE,
        "cache_update(cache f32[1,2,4,8], start i32[2]): B differs, 1 and 2; cache[B,H,C,D] and"
        " start[B] are needed",
    ),
    (
        F.cache_update,
        "f32[1,2,4,8] f32[1,2,1,8] f32[1] i32[1]",
        NONE,
        "cache_update(start f32[1]): start has dtype f32; one of i32, see .astype()",
    ),
    (
        F.causal_conv1d,
        "f32[2,5,6] f32[6,4] f32[2,2,6] i32[2]",
        NONE,
        "causal_conv1d(weight f32[6,4], tail f32[2,2,6]): the tail has 2 steps; a weight of 4 taps"
        " needs W - 1, and W at least 1",
    ),
    (
        F.gated_delta_rule,
        "f32[1,2,5,8] f32[1,2,5,8] f32[1,3,5,4] f32[1,3,5] f32[1,3,5] f32[1,3,8,4] i32[1]",
        NONE,
        "gated_delta_rule(q f32[1,2,5,8], v f32[1,3,5,4]): value heads 3 are not a multiple of key"
        " heads 2",
    ),
    (
        F.gated_delta_rule,
        "f32[1,2,5,0] f32[1,2,5,0] f32[1,2,5,4] f32[1,2,5] f32[1,2,5] f32[1,2,0,4] i32[1]",
        NONE,
        "gated_delta_rule(q f32[1,2,5,0], v f32[1,2,5,4]): the heads are empty",
    ),
    (
        F.linear,
        "f32[2,3] f32[4,5]",
        NONE,
        "linear(x f32[2,3], weight f32[4,5]): K differs, 3 and 4; x[...,K] and weight[K,N] are"
        " needed",
    ),
    (
        F.linear,
        "f32[2,3] f32[4,5]",
        {"layout": "oi"},
        "linear(x f32[2,3], weight f32[4,5]): K differs, 3 and 5; x[...,K] and weight[N,K] are"
        " needed",
    ),
    (
        F.linear,
        "f32[2,3] f32[3,5] f32[3]",
        NONE,
        "linear(weight f32[3,5], bias f32[3]): N differs, 5 and 3; weight[K,N] and bias[N] are"
        " needed",
    ),
    (F.linear, "f32[] f32[3,5]", NONE, "linear(x f32[]): x has 0 axes; x[...,K] is needed"),
    (
        F.linear,
        "f32[2,3] i32[3,5]",
        NONE,
        "linear(weight i32[3,5]): weight has dtype i32; one of f32, f16, bf16, see .astype()",
    ),
    (
        F.linear,
        "f32[2,3] f32[3,5]",
        {"layout": "nk"},
        "linear(): layout is 'nk'; it must be one of io, oi",
    ),
    (
        F.embedding,
        "f32[0,3] i32[2]",
        NONE,
        "embedding(table f32[0,3]): table has no rows; at least one is needed",
    ),
    (
        F.embedding,
        "f32[4,3] f32[2]",
        NONE,
        "embedding(ids f32[2]): ids has dtype f32; one of i32, see .astype()",
    ),
    (
        F.layer_norm,
        "f32[2,3] f32[3] f32[4]",
        NONE,
        "layer_norm(x f32[2,3], bias f32[4]): D differs, 3 and 4; x[...,D] and bias[D] are needed",
    ),
    (
        F.layer_norm,
        "f32[2,0] f32[0] f32[0]",
        NONE,
        "layer_norm(x f32[2,0]): the last axis of x is empty; it has no mean",
    ),
    (
        F.rms_norm,
        "f32[2,3] f32[3]",
        {"epsilon": -1},
        "rms_norm(): epsilon is -1; it must be a finite number, at least 0",
    ),
    (
        F.softmax,
        "f32[2,3]",
        {"axis": 2},
        "softmax(x f32[2,3]): axis 2 is not an axis of rank 2",
    ),
    (F.softmax, "f32[]", NONE, "softmax(x f32[]): axis -1 is not an axis of rank 0"),
    (
        F.gelu,
        "f32[2]",
        {"approximate": "erf"},
        "gelu(): approximate is 'erf'; it must be one of none, tanh",
    ),
    (F.silu, "f16[2]", NONE, "silu(x f16[2]): x has dtype f16; one of f32, see .astype()"),
    (
        F.swiglu,
        "f32[2] f32[1]",
        NONE,
        "swiglu(gate f32[2], up f32[1]): gate and up differ in shape; they must be equal",
    ),
    (
        F.rope,
        "f32[1,2,3,8] i32[1,3] f32[4]",
        {"rotary": 6},
        "rope(frequencies f32[4]): frequencies are 4; rotary 6 needs one per pair: 3",
    ),
    (
        F.rope,
        "f32[1,2,3,5] i32[1,3]",
        NONE,
        "rope(x f32[1,2,3,5]): rotary 5 must be even and in 2 .. D = 5",
    ),
    (
        F.rope,
        "f32[1,2,3,4] i32[1,3]",
        {"rotary": 6},
        "rope(x f32[1,2,3,4]): rotary 6 must be even and in 2 .. D = 4",
    ),
    (
        F.rope,
        "f32[1,2,3,4] i32[1,2]",
        NONE,
        "rope(x f32[1,2,3,4], positions i32[1,2]): T differs, 3 and 2; x[B,H,T,D] and"
        " positions[B,T] are needed",
    ),
    (
        F.rope,
        "f32[1,2,3,4] i32[1,3]",
        {"layout": "neox"},
        "rope(): layout is 'neox'; it must be one of half, interleaved",
    ),
    (
        F.rope,
        "f32[1,2,3,4] i32[1,3]",
        {"theta": 0},
        "rope(): theta is 0; it must be a finite number, greater than 0",
    ),
    (
        F.sample,
        "f32[2,0] f32[2] i32[2] f32[2] f32[2] f32[2]",
        NONE,
        "sample(logits f32[2,0]): the vocabulary is empty; nothing can be drawn",
    ),
    (
        F.sample,
        "f32[2,9] f32[2] i32[3] f32[2] f32[2] f32[2]",
        NONE,
        "sample(logits f32[2,9], top_k i32[3]): B differs, 2 and 3; logits[B,V] and top_k[B] are"
        " needed",
    ),
    (
        F.repetition_penalty,
        "f32[2,9] bool[2,8]",
        {"penalty": 1.5},
        "repetition_penalty(logits f32[2,9], seen bool[2,8]): V differs, 9 and 8; logits[B,V] and"
        " seen[B,V] are needed",
    ),
    (
        F.repetition_penalty,
        "f32[2,9] bool[2,9]",
        {"penalty": 0},
        "repetition_penalty(): penalty is 0; it must be a finite number, greater than 0",
    ),
    (
        F.uniform,
        "u32[3]",
        {"shape": (2,)},
        "uniform(key u32[3]): key must have exactly 2 elements",
    ),
    (F.stack, "", {"tensors": []}, "stack(): no tensors given; at least one is needed"),
    (F.exp, "f32[2] f32[2]", NONE, "exp(): 2 operands given; takes operand"),
]


@together()
@pytest.mark.parametrize(("function", "types", "options", "message"), REFUSED)
def test_a_refused_call_says_what_rule_it_breaks_and_where(
    function, types, options, message
) -> None:
    operands = of(types)
    with pytest.raises(TypeRuleError) as caught:
        function(*operands, **options)
    found, place = str(caught.value).split("\n")
    assert found == message
    assert place.startswith(f"  at {Path(__file__)}:")


def test_arrays_are_refused_by_name() -> None:
    message = r"silu\(\): x is ndarray, not a Tensor; make one with ptir.tensor\(x\)"
    with pytest.raises(TypeRuleError, match=message):
        F.silu(np.zeros(2))
    with pytest.raises(TypeRuleError, match=r"attention\(\): q is int, not a Tensor"):
        F.attention(1, 2, 3)
    with pytest.raises(TypeRuleError, match=r"maximum\(\): rhs is list, not a Tensor"):
        F.maximum(*of("f32[2]"), [1, 2])
    with pytest.raises(TypeRuleError, match=r"maximum\(\): none of lhs, rhs is a Tensor"):
        F.maximum(1, 2)


def test_unknown_functions_are_named() -> None:
    with pytest.raises(AttributeError, match=r"unknown functional 'sotfmax' .nearest: softmax"):
        F.sotfmax  # noqa: B018
    with pytest.raises(ImportError, match="ex"):
        from ptir.functional.elementwise import ex  # noqa: F401


def test_equal_calls_share_one_lowering() -> None:
    block = captured(lambda x: F.softmax(F.softmax(x)), f32(2, 3))
    first, second = (i.regions[0] for i in block.instructions)
    assert first is second
    other = captured(F.softmax, f32(2, 4)).instructions[0].regions[0]
    assert other != first


@pytest.fixture
def table(monkeypatch):
    """The table of functionals, as it was before and after the test."""
    monkeypatch.setattr(implementations, "FUNCTIONALS", dict(implementations.FUNCTIONALS))


@pytest.mark.usefixtures("table")
def test_a_functional_of_one_s_own_with_a_second_implementation() -> None:
    @F.functional("double", "x + x")
    def _double(x, *, times):
        return x * float(times)

    @F.implementation("double", "sum")
    def _double_sum(x, *, times):
        """Adds x to itself."""
        return sum([x] * times, start=x * 0.0)

    x = f32(3)
    block = captured(lambda t: F.composite("double", t, times=3), x)
    assert block.instructions[0].attributes == Attributes({"name": "double", "times": 3})
    for use in ({}, {"double": "sum"}):
        np.testing.assert_allclose(evaluate(block, x, use=use)[0], x * 3, rtol=1e-6)
    assert implementations.functional("double").implementations["sum"].doc == "Adds x to itself."
    with pytest.raises(PluginError, match="'double' is defined twice"):
        F.functional("double", "again")(_double)
    with pytest.raises(UsageError, match="unknown functional 'dobule'"):
        F.implementation("dobule", "sum")(_double)


def test_every_functional_of_the_conventions_is_in_the_table() -> None:
    names = "linear layer_norm rms_norm softmax gelu silu swiglu attention cache_update rope"
    names += " conv2d max_pool2d avg_pool2d batch_norm quantized_linear"
    names += " causal_conv1d gated_delta_rule gated_linear_attention"
    wanted = {*names.split(), "embedding", "sample"}
    assert wanted <= set(implementations.FUNCTIONALS)
    for name in wanted:
        found = implementations.FUNCTIONALS[name]
        assert found.doc and "portable" in found.implementations


def test_a_functional_gives_one_composite_and_nothing_else() -> None:
    assert [i.name for i in captured(F.gelu, f32(2)).instructions] == ["gelu"]
    assert run(F.gelu, f32(2)).shape == (2,)
