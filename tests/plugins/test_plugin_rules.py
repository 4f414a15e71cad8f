"""Rules and passes of plugins: wrong ones are named with their cause, and the run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import ptir
from ptir import events, plugins
from ptir import functional as F
from ptir.backend.contract import BackendPass
from ptir.cli import passes as shown
from ptir.errors import PluginError
from ptir.ir.graph import Node
from ptir.ir.program import Program
from ptir.passes import PassContext, optimize, pipeline, pipeline_key, stage
from ptir.passes.pipeline import plug_in
from ptir.rewrite import plugged
from ptir.rewrite.plugged import check_rule, plug_in_rule
from ptir.rewrite.rule import NodeRule, row
from ptir.rewrite.rules import EXACT, FAST_MATH
from ptir.types import spec
from running import REF
from tiny_distributions import Site, site, strangers_tried

__all__ = ["site", "strangers_tried"]

F32 = {"x": "f32[256]"}
PAIR = {"x": "f32[256]", "y": "f32[256]"}


@pytest.fixture(autouse=True)
def nothing_plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pipeline, "PLUGGED", {})
    monkeypatch.setattr(stage, "PLUGGED", pipeline.PLUGGED)
    kept = dict(plugged.PLUGGED_RULES)
    plugged.PLUGGED_RULES.clear()
    yield
    plugged.PLUGGED_RULES.clear()
    plugged.PLUGGED_RULES.update(kept)


def optimized(program: Program) -> tuple[Program, dict[str, int]]:
    context = PassContext(REF.backend, REF.device)
    return optimize(program, context), context.rewrites


def failing(node: Node, builder: Any) -> Any:
    """Raises for large tensors only, which no sample is."""
    if node.types[0].size > 1000:
        raise ValueError("no luck")
    return node.operands if node.operands[0].node.op == "abs" else None


def node_rule(body: Any, examples: Any = ()) -> NodeRule:
    return NodeRule("odd", "abs", body, "abs -> ?", "mine.py:1", lambda: list(examples))


def block(code: Any, *shape: int) -> Any:
    return ptir.capture(code, spec("f32", *shape)).main


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (row("r", "compare(x, y)", "x", PAIR | {"d": "lt"}), "a sample cannot be made"),
        (row("r", "not_(compare(x, y, direction=d))", "x", PAIR | {"d": "lt"}), "gives f32"),
        (row("r", "mul(x, 0.0)", "0.0", F32), r"changes a result: \S+ becomes 0.0 for \S+; mark"),
        (row("r", "log(exp(x))", "x", F32), "mark it exact=False"),
        (row("r", "add(x, y)", "add(y, x)", PAIR), "rule 'r' feeds itself: add"),
        (row("r", "abs(x)", "abs(neg(x))", F32), r"have no end|feeds itself"),
        (row("r", "tanh(x)", "tanh(x)"), "has no sample; give types"),
        (row("r", "exp(x)", "x", F32, when=lambda b: False), "does not fire on its sample of f32"),
        (row("r", "exp(x)", "x", F32, when=lambda b: 1 / 0), "failed on exp: ZeroDivisionError"),
        (node_rule(lambda node, builder: [], [block(F.abs, 4)]), r"gives , not f32\[4\]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_rule_is_refused_with_its_cause(rule: Any, words: str) -> None:
    with pytest.raises(PluginError, match=words) as caught:
        check_rule(rule)
    assert rule.line in str(caught.value)
    assert rule.name in str(caught.value)


def test_every_row_of_ours_passes_the_check_that_others_must() -> None:
    for rule in EXACT[::6]:
        check_rule(rule)
    with pytest.raises(PluginError, match="there is one of this name"):
        plug_in_rule("me", EXACT[0])


def test_rules_of_a_plugin_are_applied_and_keyed(site: Site) -> None:
    source = (
        "from ptir.plugins import hookimpl\nfrom ptir.rewrite import row\n"
        "@hookimpl\ndef ptir_rules():\n"
        "    return [row('sign of sign', 'sign(sign(x))', 'sign(x)', {'x': 'f32[256]'}),\n"
        "            row('wrong', 'mul(x, 0.0)', '0.0', {'x': 'f32[256]'})]\n"
    )
    before = pipeline_key()
    site.plugin("one", source)
    (failure,) = plugins.install().failures()
    assert "rule 'wrong' changes a result" in failure.reason
    program = ptir.capture(lambda x: F.sign(F.sign(x)), spec("f32", 8))
    after, counts = optimized(program)
    assert [i.op for i in after.main.instructions] == ["sign"]
    assert counts["sign of sign"] == 1
    assert pipeline_key() != before


def test_rule_that_fails_on_a_program_is_left_out_and_the_run_goes_on() -> None:
    plug_in_rule("me", node_rule(failing, [block(lambda x: F.abs(F.abs(x)), 4)]))
    program = ptir.capture(F.abs, spec("f32", 2000))
    with pytest.warns(RuntimeWarning, match=r"plugin me: mine.py:1: rule 'odd' failed on abs: V"):
        after, _ = optimized(program)
    assert [i.op for i in after.main.instructions] == ["abs"]
    assert plugged.PLUGGED_RULES == {}


def test_inexact_rules_are_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in_rule("me", row("mine", "exp(log(x))", "x", F32, exact=False))
    program = ptir.capture(lambda x: F.exp(F.log(x)) + F.log(F.exp(x)), spec("f32", 8))
    before = pipeline_key()
    assert "mine" not in optimized(program)[1]
    monkeypatch.setenv("PTIR_FAST_MATH", "1")
    after, counts = optimized(program)
    assert counts["mine"] == counts["log exp"] == 1
    assert [i.op for i in after.main.instructions] == ["add"]
    assert pipeline_key() != before
    assert {r.name for r in FAST_MATH} >= {"log exp"}


def retyped(program: Program) -> Program:
    main = program.main
    return replace(program, main=replace(main, outputs=(*main.outputs, 0)))


def bad(program: Program) -> Program:
    raise ValueError("no luck")


@pytest.mark.parametrize("point", ["pre", "raised", "selected", "cleanup"])
@pytest.mark.parametrize(
    ("run", "words"),
    [
        (bad, "ValueError: no luck"),
        (lambda program: None, "it returned NoneType, not a Program"),
        (retyped, r"its outputs are f32\[8\], f32\[8\]; they must stay f32\[8\]"),
    ],
)
def test_failing_pass_of_a_plugin_is_named_and_skipped(point: Any, run: Any, words: str) -> None:
    plug_in("me", BackendPass("mine", point, run))
    program = ptir.capture(F.tanh, spec("f32", 8))
    with pytest.warns(RuntimeWarning, match=f"plugin me: pass 'mine' failed: .*{words}"):
        after, _ = optimized(program)
    assert [i.op for i in after.main.instructions] == ["tanh"]


def test_passes_run_at_their_points() -> None:
    seen: list[tuple[str, list[str]]] = []

    def noting(point: str) -> Any:
        def run(program: Program) -> Program:
            seen.append((point, [i.name for i in program.main.instructions]))
            return program

        return run

    for point in ("cleanup", "selected", "raised", "pre"):
        plug_in("me", BackendPass(point, point, noting(point)))  # type: ignore[arg-type]
    optimized(ptir.capture(lambda x: x / (1.0 + F.exp(-x)), spec("f32", 8)))
    assert [point for point, _ in seen] == ["pre", "raised", "selected", "cleanup"]
    assert [names == ["silu"] for _, names in seen] == [False, True, True, True]


def test_firings_say_which_rule_fired_where() -> None:
    program = ptir.capture(lambda x: F.abs(-x) / (1.0 + F.exp(-F.abs(-x))), spec("f32", 8))
    runs = shown.runs_of(program, REF)
    assert isinstance(runs[0], events.PassRun)
    text = "\n".join(shown.lines(runs, locations=False))
    assert "abs neg on abs at" in text
    assert "raise silu on div at" in text
    assert "test_plugin_rules.py" in text
    (fired,) = (f for run in runs for f in run.firings if f.rule == "raise silu")
    assert fired.location.file.endswith("test_plugin_rules.py")
    assert shown.record(runs[0])["program"] is not None
