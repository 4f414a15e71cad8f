"""Telling layers apart by the names of parameters, and reading a step of an interpreter."""

from __future__ import annotations

import numpy as np
import pytest

import ptir
from ptir import events
from ptir.errors import UnsupportedError, UsageError
from ptir.runtime.explain import explain_decode
from ptir.runtime.layers import layer_of
from running import REF


@pytest.mark.parametrize(
    ("parameter", "layer"),
    [
        ("h.3.attn.c_attn.weight", "h.3"),
        ("model.layers.11.mlp.experts.5.w1", "model.layers.11"),
        ("layer1.0.conv1.weight", "layer1.0"),
        ("0.weight", "0"),
        ("wte.weight", None),
        ("ln_1.weight", None),
        ("layers.3", None),
    ],
)
def test_a_layer_is_everything_up_to_the_first_number(parameter: str, layer: str | None) -> None:
    assert layer_of(parameter) == layer


def test_a_step_of_the_interpreter_is_its_ops_by_layer() -> None:
    report = explain_decode(ptir.load_model("demo", backend=REF), 8, 1)
    outside, layers, end = report.sections
    assert (outside.layers, end.layers) == ((), ())
    assert layers.layers == tuple(f"h.{n}" for n in range(6))
    names = [work.name for work in layers.works]
    assert names.count("linear") == 4
    assert names[-1] == "views"
    assert report.elsewhere == ()
    assert report.kernels == 0


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
