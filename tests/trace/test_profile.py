"""Profiles attribute every second to a layer, a functional and a kernel; timelines are valid."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import events
from ptir import functional as F
from ptir.backend.contract import Target
from ptir.capture.plan import plan_for
from ptir.errors import UsageError
from ptir.nn import LayerNorm, Module
from ptir.trace import ProfileSink, TimelineSink, listening_to
from ptir.trace.profile import VIEWS, Roofs, profile_json, total, works_by


class Layer(Module):
    def __init__(self) -> None:
        self.norm = LayerNorm(8, epsilon=1e-5)

    def __call__(self, x: Any) -> Any:
        return F.softmax(self.norm(x) @ x.T)


class Model(Module):
    def __init__(self) -> None:
        self.h = [Layer(), Layer()]


@pytest.fixture(scope="module")
def plan() -> Any:
    model: Any = Model().bind(lambda key: F.full((8,), 1.0))
    program = ptir.capture(lambda x: model.h[1](model.h[0](x)), ptir.spec("f32", 8, 8))
    return plan_for(program, ptir.backend("ref"), name="model")


def ran(plan: Any, runs: int, seconds: list[float]) -> ProfileSink:
    """A sink that heard runs whose parts took so long."""
    sink = ProfileSink()
    for number in range(runs):
        whole = sum(seconds) + 0.5
        sink(events.ProgramRun(plan.optimized, "ref", "numpy", whole, tuple(seconds), number, plan))
    return sink


def test_every_view_has_all_seconds_bytes_and_flops(plan: Any) -> None:
    parts = plan.executable.explain().parts
    seconds = [1.0 + n for n in range(len(parts))]
    programs = ran(plan, 3, seconds).programs()
    found = {view: works_by(view, programs) for view in VIEWS}
    assert {view: total(works) for view, works in found.items()} == dict.fromkeys(
        VIEWS, 3 * sum(seconds)
    )
    assert {sum(w.count for w in works) for works in found.values()} == {3 * len(parts)}
    flops = {sum(w.flops for w in works) for works in found.values()}
    assert len(flops) == 1
    accesses = [a.nbytes for part in parts for a in (*part.reads, *part.writes)]
    assert {sum(w.nbytes for w in works) for works in found.values()} == {3 * sum(accesses)}
    # two products of 8x8x8, three times: what remains is norms and softmaxes
    products = next(w for w in found["kernel"] if w.name in ("linear", "dot_general"))
    assert products.flops == 3 * 2 * 2 * 8**3
    assert {work.name for work in found["layer"]} >= {"h.0", "h.1"}
    (norm,) = (w for w in found["functional"] if w.name == "layer_norm")
    assert (norm.detail, norm.count) == ("backend", 6)


def test_the_slowest_part_is_the_first_row(plan: Any) -> None:
    parts = plan.executable.explain().parts
    names = [part.name for part in parts]
    slow = names.index("softmax")
    seconds = [1.0] * len(parts)
    seconds[slow] = 100.0
    first, *_ = works_by("functional", ran(plan, 1, seconds).programs())
    assert first.name == "softmax"


def test_runs_whose_parts_nobody_timed_count_whole(plan: Any) -> None:
    sink = ProfileSink()
    sink(events.ProgramRun(plan.optimized, "ref", "numpy", 2.0, (), 1, plan))
    (program,) = sink.programs()
    assert (program.runs, program.seconds, program.works()) == (1, 2.0, [])
    told = profile_json([program], Roofs())
    assert (told["programs"][0]["name"], told["kernel"]) == ("model", [])
    json.dumps(told)


@pytest.mark.parametrize(
    ("roofs", "share"),
    [
        (Roofs(), None),
        (Roofs(100.0), 0.25),  # 50 bytes take half a second at least
        (Roofs(100.0, 40.0), 0.5),  # 40 FLOPs take a second
        (Roofs(None, 40.0), 0.5),
    ],
)
def test_the_share_is_of_the_roof_that_is_nearer(roofs: Roofs, share: float | None) -> None:
    assert roofs.share(2.0, 50, 40) == share
    assert roofs.share(0.0, 50, 40) is None


# --- what backends say of their kernels ---


@pytest.mark.parametrize("name", ["ref", "c", "opencl"])
def test_parts_are_timed_within_the_run_and_change_nothing(name: str) -> None:
    target: Target = ptir.backend(name)
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    step = ptir.jit(lambda x: F.softmax(F.gelu(x @ x) @ x))
    given = ptir.tensor(x, backend=target)
    plain = step(given).numpy()
    step(ptir.tensor(x[::-1] * 2.0, backend=target)).numpy()  # memory that comes again holds others
    sink = ProfileSink()
    with listening_to([sink]), events.timing_parts():
        timed = step(given).numpy()
        step(given)
    assert np.array_equal(plain, timed)
    (program,) = sink.programs()
    assert program.timed == program.runs == 2
    assert len(program.parts) == len(program.executable.explain().parts)  # type: ignore[union-attr]
    assert all(seconds > 0 for seconds in program.parts)
    assert sum(program.parts) <= program.seconds


# --- the timeline ---

PHASES = {"X": {"ts", "dur", "pid", "tid", "name"}, "M": {"pid", "name", "args"}}
"""By phase, the fields that the Trace Event Format demands (its sections 2.1, 2.2 and 2.10)."""


def check_timeline(path: Path) -> list[dict[str, Any]]:
    """The events of a file, each of which has what the format demands."""
    found = json.loads(path.read_text())
    assert set(found) <= {"traceEvents", "displayTimeUnit"}
    assert found["displayTimeUnit"] in ("ms", "ns")
    for event in found["traceEvents"]:
        needed = {**PHASES, "C": {"ts", "pid", "name", "args"}}[event["ph"]]
        assert needed <= set(event)
        assert isinstance(event["name"], str)
        assert all(isinstance(event[key], int) for key in ("pid", "tid") if key in event)
        assert all(event[key] >= 0 for key in ("ts", "dur") if key in event)
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
    events_found: list[dict[str, Any]] = found["traceEvents"]
    return events_found


def check_nesting(found: list[dict[str, Any]]) -> None:
    """Complete events of a thread hold each other or lie apart: the format's rule for ``X``."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in (one for one in found if one["ph"] == "X"):
        span = (one["ts"], one["ts"] + one["dur"])
        threads.setdefault((one["pid"], one["tid"]), []).append(span)
    for spans in threads.values():
        ends: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= begin + 0.01:
                ends.pop()
            assert not ends or end <= ends[-1] + 0.01
            ends.append(end)


def test_a_timeline_holds_passes_compilations_runs_and_parts(tmp_path: Path) -> None:
    step = ptir.jit(lambda x: F.softmax(x @ x + 3.5))
    path = tmp_path / "t.json"
    with listening_to([TimelineSink(path)]), events.timing_parts():
        given = ptir.tensor(np.ones((4, 4), np.float32), backend="ref")
        for _ in range(3):
            step(given)
        events.emit(events.ParameterLoaded("wte", 64, 0.0))
    found = check_timeline(path)
    check_nesting(found)
    kinds = {one["cat"] for one in found if one["ph"] == "X"}
    assert kinds == {"pass", "compile", "cache", "run", "op", "load"}
    parts = [one["name"] for one in found if one["pid"] == 2 and one["ph"] == "X"]
    assert parts.count("softmax") == parts.count("add") == 3
    (counter,) = (one for one in found if one["ph"] == "C")
    assert counter["args"] == {"bytes": 64}


def test_what_is_told_late_still_holds_what_happened_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 1.0, 2.0, 2.6, 5.0])
    monkeypatch.setattr("ptir.trace.timeline.time.perf_counter", lambda: next(clock))
    sink = TimelineSink(tmp_path / "t.json")
    for name, seconds in (("a", 0.5), ("b", 0.9), ("c", 0.5), ("whole", 3.5)):
        sink(events.ParameterLoaded(name, 0, seconds))  # b is told 0.1 s late, the whole 0.4 s
    sink.finish()
    found = [one for one in check_timeline(tmp_path / "t.json") if one["ph"] == "X"]
    check_nesting(found)
    whole = found[-1]
    assert (whole["ts"], whole["ts"] + whole["dur"]) == (1.1e6, 5e6)


def test_parts_lie_one_behind_the_other_inside_their_run(plan: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    sink = TimelineSink(path)
    count = len(plan.executable.explain().parts)
    sink(events.ProgramRun(plan.optimized, "r", "d", 0.0, (0.25,) * count, 1, plan))
    sink.finish()
    found = [one for one in check_timeline(path) if one["ph"] == "X" and one["pid"] == 2]
    begins = [one["ts"] - found[0]["ts"] for one in found]
    assert begins == pytest.approx([n * 0.25e6 for n in range(count)])
    assert found[0]["args"]["layer"] in ("h.0", "")


def test_a_timeline_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--profile-out .*nowhere.*choose another"):
        TimelineSink(tmp_path / "nowhere" / "t.json")


def test_a_plan_that_gave_its_executable_up_is_still_profiled(plan: Any) -> None:
    held = SimpleNamespace(**{n: getattr(plan, n) for n in ("executable", "optimized", "name")})
    for name in ("captured", "derived", "donated", "options", "rows", "target"):
        setattr(held, name, getattr(plan, name))
    count = len(plan.executable.explain().parts)
    sink = ProfileSink()
    sink(events.ProgramRun(plan.optimized, "r", "d", 1.0, (0.1,) * count, 1, held))
    held.executable = None
    assert works_by("kernel", sink.programs())
