"""Overrides as text: what they say, where a mistake is, and which of several decides."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.errors import UsageError
from ptir.ir.attributes import Attributes
from ptir.ops import overriding
from ptir.ops.implementations import functional
from ptir.ops.overriding import active_overrides, in_force, overrides_from
from ptir.ops.policies import (
    RANKS,
    Call,
    Origin,
    Override,
    fitting,
    merged,
    origin,
    parse_override,
    parse_overrides,
)
from ptir.types import spec
from together import together

LINEAR = functional("linear")


def linear(rows: int, inputs: int = 8, dtype: str = "f32", backend: str = "c") -> Call:
    types = (spec("f32", rows, inputs), spec(dtype, inputs, 4))
    return Call.of(LINEAR, types, Attributes({"layout": "io"}), backend, 1)


WRITTEN = [
    "softmax=default",
    "softmax=tuned",
    "softmax=force=online",
    "softmax=prefer=online",
    "softmax=benchmark(cache=3)",
    "linear[M=1]=force=rows",
    "linear[M!=1,K>=4096,N<8,dtype=f16|bf16,backend=c|opencl:0,layout=oi]=force=portable",
]


@together()
@pytest.mark.parametrize("text", WRITTEN)
def test_override_prints_as_it_is_written(text: str) -> None:
    assert str(parse_override(text)) == text
    spaced = "".join(f" {one} " if one in "[],=()|" else one for one in text).replace("! =", "!=")
    for pair in ("> =", "< ="):
        spaced = spaced.replace(pair, pair.replace(" ", ""))
    assert str(parse_override(spaced)) == text


def test_texts_hold_several_set_apart_by_blanks_or_semicolons() -> None:
    text = " softmax=default;linear[ M = 1 , K>3 ]=benchmark\n gelu = force=portable ;"
    found = [str(one) for one in parse_overrides(text, origin("environment"))]
    assert found == [
        "softmax=default",
        "linear[M=1,K>3]=benchmark(cache=64)",
        "gelu=force=portable",
    ]
    assert parse_overrides(" ; ", origin("environment")) == []


WRONG = [
    ("softmx=default", 1, "unknown functional 'softmx' (nearest: softmax"),
    ("linear[Q=1]=default", 8, "unknown dimension of linear 'Q'"),
    ("linear[layot=io]=default", 8, "nearest: layout"),
    ("linear[M=x]=default", 10, "M is a size; 'x' is no number"),
    ("linear[M]=default", 9, "a comparison is one of"),
    ("linear[M=1 K=2]=default", 12, "a condition ends with ',' or ']'"),
    ("linear[M=1", 11, "a condition ends with"),
    ("linear[M=]=default", 10, "a number is missing"),
    ("linear[M<1|2]=default", 11, "several values have no order"),
    ("linear[dtype<f32]=default", 13, "dtype is no size; compare it with = or !="),
    ("linear[dtype=f33]=default", 14, "unknown dtype 'f33' (nearest: f32"),
    ("linear[]=default", 8, "is missing"),
    ("linear", 7, "write FUNCTIONAL=POLICY"),
    ("linear=", 8, "a policy: default, force=NAME"),
    ("linear=fast", 8, "'fast' is no policy; policies are default, force=NAME"),
    ("linear=force", 8, "'force' is no policy"),
    ("linear=prefer=rws", 15, "unknown implementation of linear 'rws' (nearest: rows"),
    ("linear=force=rws", 14, "unknown implementation of linear 'rws' (nearest: rows"),
    ("linear=benchmark(cache=0)", 24, "cache is a number of at least 1, not '0'"),
    ("linear=benchmark(size=1)", 18, "write benchmark(cache=N)"),
    ("linear=benchmark(cache=1", 25, "ends with ')'"),
    ("linear=default rest", 16, "here the override has ended"),
]


@together()
@pytest.mark.parametrize(("text", "place", "said"), WRONG)
def test_mistakes_are_pointed_at(text: str, place: int, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_override(text, origin("command line"))
    first, shown, caret = str(caught.value).splitlines()
    assert f"given by command line, character {place}: " in first and said in first
    assert shown == f"  {text}"
    assert caret.index("^") == place + 1


def convolution(strides: tuple[int, int]) -> Call:
    types = spec("f32", 1, 9, 9, 4), spec("f32", 3, 3, 4, 8)
    how = Attributes({"strides": strides, "layout": "hwio"})
    return Call.of(functional("conv2d"), types, how, "c", 0)


@pytest.mark.parametrize(
    ("condition", "strides", "holds"),
    [
        ("strides=1", (1, 1), True),
        ("strides=1x1", (1, 1), True),
        ("strides=1", (2, 1), False),
        ("strides=2x1", (2, 1), True),
        ("strides=2x1", (1, 2), False),
        ("strides=1|2x1", (2, 1), True),
        ("strides!=1", (2, 2), True),
    ],
)
def test_attributes_with_a_number_for_each_axis(
    condition: str, strides: tuple[int, int], holds: bool
) -> None:
    override = parse_override(f"conv2d[{condition}]=default")
    assert override.fits(convolution(strides)) is holds


HOLDS = [
    ("M=1", linear(1), True),
    ("M=1", linear(2), False),
    ("M!=1", linear(2), True),
    ("M=1|2", linear(2), True),
    ("M!=1|2", linear(2), False),
    ("K>=8,K<9", linear(2), True),
    ("K>8", linear(2), False),
    ("K<=7", linear(2), False),
    ("N=4", linear(2), True),
    ("dtype=f16|bf16", linear(2, dtype="bf16"), True),
    ("dtype=f16|bf16", linear(2), False),
    ("backend=c", linear(2), True),
    ("backend=c:1", linear(2), True),
    ("backend=c:0", linear(2), False),
    ("backend!=c", linear(2, backend="opencl"), True),
    ("layout=oi", linear(2), False),
]


@together()
@pytest.mark.parametrize(("asked", "call", "holds"), HOLDS)
def test_conditions_hold_for_the_calls_they_name(asked: str, call: Call, holds: bool) -> None:
    assert parse_override(f"linear[{asked}]=default").fits(call) is holds


def test_sizes_are_those_of_the_call() -> None:
    images = (spec("f32", 2, 7, 9, 3), spec("f32", 4, 3, 5, 2))
    how = Attributes({"layout": "oihw", "groups": 1, "strides": (1, 1)})
    facts = Call.of(functional("conv2d"), images, how).facts
    assert [facts[name] for name in ("N", "H", "W", "C", "O", "KH", "KW")] == [2, 7, 9, 3, 4, 5, 2]
    assert facts["groups"] == 1
    lines = Call.of(functional("softmax"), (spec("f32", 2, 7, 9),), Attributes({"axis": 1})).facts
    assert (lines["M"], lines["N"]) == (18, 7)
    rows = Call.of(LINEAR, (spec("f32", 2, 3, 8), spec("f16", 4, 8)), Attributes({"layout": "oi"}))
    assert [rows.facts[name] for name in ("M", "K", "N", "dtype")] == [6, 8, 4, "f16"]


def from_(kind: str, text: str) -> Override:
    return parse_override(text, origin(kind))


@together()
@pytest.mark.parametrize(("weak", "strong"), [*itertools.combinations(RANKS, 2)])
def test_precedence_is_that_of_the_table(weak: str, strong: str) -> None:
    asked = [from_(weak, "linear=force=rows"), from_(strong, "linear=force=portable")]
    for order in (asked, asked[::-1]):
        found = fitting(merged(order), linear(1))[0]
        assert found is not None and found.origin.text == strong


def test_weaker_overrides_decide_where_stronger_ones_do_not_fit() -> None:
    asked = merged(
        [from_("checkpoint", "linear=force=portable"), from_("command line", "linear[M=1]=tuned")]
    )
    assert str(fitting(asked, linear(1))[0]) == "linear[M=1]=tuned"
    assert str(fitting(asked, linear(2))[0]) == "linear=force=portable"


def test_what_is_asked_for_twice_is_there_once() -> None:
    once = merged([from_("context", "linear=tuned")])
    assert merged(once, [from_("context", "linear=tuned")]) == once
    weak = from_("family", "linear=prefer=rows")
    assert [str(one) for one in merged(once, [weak], once)] == [str(weak), "linear=tuned"]


def test_later_overrides_of_one_origin_win_and_hidden_ones_are_left_out() -> None:
    texts = ("linear[M=1]=tuned", "linear[M=1]=default", "linear[K>1]=tuned")
    kept = merged([from_("context", text) for text in texts])
    assert [str(one) for one in kept] == ["linear[M=1]=default", "linear[K>1]=tuned"]
    assert str(fitting(kept, linear(1))[0]) == "linear[K>1]=tuned"
    general = merged(kept, [from_("context", "linear=default")])
    assert [str(one) for one in general] == ["linear=default"]


def test_order_of_functionals_makes_no_other_key() -> None:
    one = merged([from_("context", "softmax=tuned"), from_("context", "gelu=tuned")])
    other = merged([from_("plugin", "gelu=tuned"), from_("plugin", "softmax=tuned")])
    assert one == other and hash(one) == hash(other)


def test_contexts_nest_and_end() -> None:
    before = active_overrides()
    with ptir.overrides({"linear[M=1]": "force=rows"}, softmax="tuned"):
        with ptir.overrides("softmax=default"):
            found = [str(one) for one in active_overrides()]
        assert found == ["linear[M=1]=force=rows", "softmax=default"]
    assert active_overrides() == before


def test_a_models_overrides_lose_to_what_holds_around_them() -> None:
    given = overrides_from({"softmax": "force=online"}, origin("checkpoint", "here"))
    with ptir.overrides(softmax="default"), in_force(given):
        (found,) = active_overrides()
    assert str(found) == "softmax=default"


def test_plugins_come_above_tuning_and_below_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overriding, "_of_plugins", [])
    monkeypatch.setattr(overriding, "_of_process", None)
    overriding.plug_in_override("theirs", parse_override("softmax=force=online"))
    (found,) = active_overrides()
    assert (str(found), found.origin) == ("softmax=force=online", Origin(2, "theirs"))
    with in_force([from_("tune", "softmax=tuned")]):
        assert active_overrides() == (found,)
    with in_force([from_("checkpoint", "softmax=tuned")]):  # what was not timed is as it is
        assert [str(one) for one in active_overrides()] == [str(found), "softmax=tuned"]
    with in_force([from_("checkpoint", "softmax=default")]):
        assert [str(one) for one in active_overrides()] == ["softmax=default"]


def test_environment_holds_in_every_process_that_compiles() -> None:
    script = (
        "import numpy as np, ptir\n"
        "from ptir import events, functional as F\n"
        "from ptir.backend import Target\n"
        "import ptir_backend_ref\n"
        "backend = ptir_backend_ref.backend\n"
        "events.subscribe(lambda e: print(e.implementation, e.reason)"
        " if isinstance(e, events.ImplementationChosen) else None)\n"
        "x = np.ones((2, 8), 'f4')\n"
        "F.softmax(ptir.tensor(x, backend=Target(backend, backend.devices()[0]))).numpy()\n"
    )
    given = {**os.environ, "PTIR_OVERRIDE": "gelu=default; softmax[N=8]=force=split"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=given, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "split softmax[N=8]=force=split, PTIR_OVERRIDE\n", done.stderr
    wrong = subprocess.run(
        [sys.executable, "-c", script],
        env={**given, "PTIR_OVERRIDE": "softmax=fast"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert wrong.returncode == 1
    assert "given by PTIR_OVERRIDE, character 9: 'fast' is no policy" in wrong.stderr


def test_choice_of_a_call_follows_its_sizes() -> None:
    """A line that is long enough is split, another is not; both are softmax."""
    from ptir import events

    heard: list[tuple[str, str]] = []

    def hear(event: events.Event) -> None:
        if isinstance(event, events.ImplementationChosen):
            heard.append((event.functional, event.implementation))

    remove = events.subscribe(hear)
    try:
        with ptir.overrides("softmax[N>=16]=force=split"):
            for size in (8, 16):
                x = np.linspace(-1, 1, size, dtype=np.float32).reshape(1, size)
                found = F.softmax(ptir.tensor(x, backend="ref")).numpy()
                wanted = np.exp(x.astype("f8")) / np.exp(x.astype("f8")).sum()
                np.testing.assert_allclose(found, wanted, rtol=1e-6)
    finally:
        remove()
    assert heard == [("softmax", "backend"), ("softmax", "split")]
