"""Telling layers apart by where their parts come from, and reading a step of an interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ptir
from ptir import events
from ptir import functional as F
from ptir.backend.explanation import Access, Explanation, Part
from ptir.errors import UnsupportedError, UsageError
from ptir.ir.program import Port, Program
from ptir.runtime.explain import explain_decode
from ptir.runtime.layers import Layered
from running import REF


def test_a_step_of_the_interpreter_is_its_ops_by_layer() -> None:
    report = explain_decode(ptir.load_model("demo", backend=REF, dtype="f32"), 8, 1)
    outside, layers, end = report.sections
    assert (outside.layers, end.layers) == ((), ())
    assert layers.layers == tuple(f"h.{n}" for n in range(6))
    names = [work.name for work in layers.works]
    assert names.count("linear") == 4
    assert names[-1] == "views"
    assert report.elsewhere == ()
    assert report.kernels == 0


def test_two_layers_are_told_from_what_stands_before_and_behind_them() -> None:
    report = explain_decode(ptir.load_model("random:gpt2-tiny", backend=REF), 8, 1)
    assert [section.layers for section in report.sections] == [(), ("h.0", "h.1"), ()]
    before, layers, behind = ([w.name for w in section.works] for section in report.sections)
    assert (before[:2], layers[0]) == (["iota", "add"], "layer_norm")
    assert behind[-2:] == ["arg_max", "views"]
    places = [work.locations for work in report.sections[1].works if work.name == "attention"]
    assert [(place.scope, place.layer, place.functional) for (place,) in places] == [
        ("h.0.attn", "h.0", "attention")
    ]


def test_a_part_without_instructions_belongs_to_the_layer_of_what_it_writes() -> None:
    block = ptir.capture(lambda x: (F.exp(x), F.neg(x)), ptir.spec("f32", 4)).main
    layers = ("h.0", "h.1")
    made = [
        replace(one, location=one.location._replace(scope=layer, layer=layer))
        for one, layer in zip(block.instructions, layers, strict=True)
    ]
    program = Program(replace(block, instructions=tuple(made)), (Port("x"),))
    whole = [Part("kernel", "map", (n,), (Access(0, 16),), ()) for n in (0, 1)]
    behind = [Part("kernel", "sum", (), (), (Access(n + 1, 16),)) for n in (0, 1)]
    copied = Part("copy", "copy", (), (Access(0, 16),), (Access(0, 16),))
    parts = (whole[0], behind[0], whole[1], behind[1], copied)
    sections = Layered(program, Explanation(parts), {}, frozenset()).sections()
    assert [(s.layers, [work.name for work in s.works]) for s in sections] == [
        (("h.0",), ["map", "sum"]),
        (("h.1",), ["map", "sum"]),
        ((), ["copy"]),
    ]


def test_parts_are_timed_one_by_one_and_results_stay_the_same() -> None:
    double = ptir.jit(lambda x: (x + x).sum(0))
    x = ptir.tensor(np.arange(6, dtype=np.float32).reshape(2, 3), backend=REF)
    runs: list[events.ProgramRun] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.ProgramRun):
            runs.append(event)

    remove = events.subscribe(listen)
    try:
        plain = double(x).numpy()
        with events.timing_parts():
            timed = double(x).numpy()
    finally:
        remove()
    np.testing.assert_array_equal(plain, timed)
    explanation = double.plans[0].executable.explain()
    assert explanation is not None
    assert [len(run.parts) for run in runs] == [0, len(explanation.parts)]
    assert all(seconds > 0 for seconds in runs[1].parts)


def test_an_executable_that_does_not_tell_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ptir.load_model("demo", backend=REF)
    explain_decode(model, 8, 1)
    (plan,) = model.steps.advance(1, 64).plans
    monkeypatch.setattr(type(plan.executable), "explain", lambda self: None)
    with pytest.raises(UnsupportedError, match="ref does not say what a run of this program does"):
        explain_decode(model, 8, 1)


def test_a_position_beyond_the_context_is_refused() -> None:
    model = ptir.load_model("demo", backend=REF)
    with pytest.raises(UsageError, match=r"\d+ tokens do not fit the context of 256"):
        explain_decode(model, 256, 1)
