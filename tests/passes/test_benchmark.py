"""Timed choices: what is timed, when one is decided, what is remembered and for how long."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from ptir.backend.contract import OpQuery
from ptir.errors import PluginError, UnsupportedError, UsageError
from ptir.ir.attributes import Attributes
from ptir.ir.graph import freeze, source
from ptir.ir.program import Port, Program
from ptir.ops.record import OPS
from ptir.passes import PassContext, timing
from ptir.passes.benchmark import TimedCall, decision, fastest, known_choice, spread
from ptir.passes.remembered import Seconds, remembered, tuning_records
from ptir.passes.timing import run_times, sample_inputs
from ptir.types import spec


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "below"))
    return tmp_path / "below"


def call(size: int = 4, name: str = "softmax", *stored: bool, axis: int = 0) -> TimedCall:
    types = (spec("f32", size),)
    attributes = Attributes({"name": name, "axis": axis} if name == "softmax" else {"name": name})
    return TimedCall(OpQuery("composite", attributes, types, types), stored or (False,))


def unary(name: str, kind: str = "input") -> Program:
    x = source(spec("f32", 4))
    return Program(freeze([OPS[name](x)], [x]), (Port("x", kind),))


CANDIDATES = {"portable": lambda: unary("exp"), "online": lambda: unary("sin")}
Times = tuple[dict[str, list[float]], dict[str, str]]


def by_op(candidates: Mapping[str, Program], context: PassContext) -> Times:
    seconds = {"exp": 2.0, "sin": 1.0}
    ops = {name: one.main.instructions[0].op for name, one in candidates.items()}
    return {name: [seconds[op]] * 3 for name, op in ops.items()}, {}


def never(candidates: Mapping[str, Program], context: PassContext) -> Times:
    raise AssertionError("timed again")


def chosen(one: TimedCall, context: PassContext, timer=by_op, candidates=CANDIDATES, limit=4):
    return fastest(one, candidates, "portable", context, limit, timer)


def test_choice_is_timed_once_and_kept_on_disk(context: PassContext) -> None:
    assert chosen(call(), context) == "online"
    assert chosen(call(), context, never) == "online"
    (record,) = tuning_records()
    assert record.seconds == {
        "portable": Seconds(2.0, 2.0, 2.0),
        "online": Seconds(1.0, 1.0, 1.0),
    }
    assert (record.functional, record.backend, record.device) == ("softmax", "paper", "paper")
    assert (record.default, record.decided, record.speedup) == ("portable", True, 2.0)
    assert known_choice(call(), [*CANDIDATES], "portable", context) == "online"
    assert known_choice(call(), ["portable"], "portable", context) is None


def test_a_candidate_that_fails_is_named_and_left_out(context: PassContext) -> None:
    def broken() -> Program:
        raise PluginError("softmax: implementation 'broken' failed: ValueError: no")

    candidates = {**CANDIDATES, "broken": broken}
    with pytest.warns(RuntimeWarning, match="'broken' failed.*it is not timed"):
        assert chosen(call(), context, candidates=candidates) == "online"
    (record,) = tuning_records()
    assert record.refused == ("broken",)


def test_calls_of_a_class_share_a_choice_and_others_do_not(context: PassContext) -> None:
    chosen(call(5), context)
    assert chosen(call(8), context, never) == "online"
    others = (call(4), call(9), call(5, "softmax", True))
    for other in others:
        with pytest.raises(AssertionError, match="timed again"):
            chosen(other, context, never)
    fewer = {"portable": CANDIDATES["portable"]}
    assert chosen(call(5), context, candidates=fewer) == "portable"
    assert len(tuning_records()) == 1


def test_other_kernels_are_timed_again(context: PassContext, monkeypatch) -> None:
    chosen(call(), context)
    monkeypatch.setattr(type(context.backend), "cache_identity", lambda self, device: "newer")
    assert known_choice(call(), [*CANDIDATES], "portable", context) is None
    with pytest.raises(AssertionError, match="timed again"):
        chosen(call(), context, never)


def test_what_is_faster_within_the_spread_stays_the_default(context: PassContext) -> None:
    noisy = {"portable": [1.0, 2.0, 3.0, 4.0], "online": [0.5, 1.5, 2.5, 3.5]}
    assert chosen(call(), context, lambda candidates, _: (noisy, {})) == "portable"
    (record,) = tuning_records()
    assert not record.decided
    assert record.seconds["portable"] == Seconds(1.75, 2.5, 3.25)


def test_decision_needs_quarters_apart() -> None:
    a, near, far = spread([10, 11, 12]), spread([9, 10, 12]), spread([8, 9, 10])
    assert decision({"a": a, "b": near}, "a") == ("a", False)
    assert decision({"a": a, "b": far}, "a") == ("b", True)
    assert decision({"a": a, "b": far}, "b") == ("b", False)


def test_oldest_choices_of_a_functional_are_dropped(context: PassContext) -> None:
    chosen(call(1, "gelu"), context, limit=2)
    for size in (1, 2, 3):
        chosen(call(size), context, limit=2)
    found = [(c.functional, c.call.split()[1].partition(" ")[0]) for c in tuning_records()]
    assert [name for name, _ in found] == ["gelu", "softmax", "softmax"]
    assert [size for _, size in found[1:]] == ["N=2", "N<=4"]


def test_candidate_that_does_not_apply_is_not_counted(context: PassContext) -> None:
    def refused() -> Program:
        raise UnsupportedError("no sin here")

    found = {"online": refused, "portable": CANDIDATES["portable"]}
    assert chosen(call(), context, candidates=found) == "portable"
    assert chosen(call(), context, never, candidates=found) == "portable"
    said = "no implementation applies: online: no sin here; drop the override, or choose another"
    with pytest.raises(UnsupportedError, match=said):
        chosen(call(9), context, candidates={"online": refused})


RIGHT = {
    **dict.fromkeys(("functional", "call", "backend", "device", "version"), "x"),
    "implementation": "a", "default": "a", "decided": False, "refused": [],
    "seconds": {"a": [1.0, 1.0, 1.0]},
}  # fmt: skip


def text_of(**changed: object) -> str:
    return json.dumps({"format": 2, "choices": [{**RIGHT, **changed}]})


DAMAGED = {
    "cut": "[",
    "no list": "{}",
    "other fields": '{"format": 2, "choices": [{"functional": "softmax"}]}',
    "no times": text_of(seconds=3),
    "others' times": text_of(implementation="b"),
    "no number": text_of(seconds={"a": [1, "soon", 2]}),
    "below nothing": text_of(seconds={"a": [1, -1, 2]}),
    "deep": "[" * 100_000,
    "bytes": "\udcff",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_file_is_named_set_aside_and_everything_timed_again(
    context: PassContext, folder: Path, damage: str
) -> None:
    folder.mkdir()
    path = folder / "implementations.json"
    path.write_text(DAMAGED[damage], encoding="utf-8", errors="surrogateescape")
    damaged = path.read_bytes()
    with pytest.raises(UsageError, match=r"implementations\.json: (not a list|cannot be read)"):
        tuning_records()
    with pytest.warns(UserWarning, match=r"implementations\.json: .* implementations\.json\.dama"):
        assert chosen(call(), context) == "online"
    assert chosen(call(), context, never) == "online"
    assert path.with_name("implementations.json.damaged").read_bytes() == damaged


def test_file_that_is_right_or_of_another_version_is_no_damage(folder: Path) -> None:
    folder.mkdir()
    path = folder / "implementations.json"
    path.write_text(text_of())
    assert [record.call for record in remembered()] == ["x"]
    path.write_text('{"format": 3, "choices": "else"}')
    assert remembered() == []


def test_a_cache_folder_that_cannot_be_is_a_warning(context: PassContext, folder: Path) -> None:
    folder.write_text("a file, not a folder")
    with pytest.warns(UserWarning, match=r"cannot be written \(.*set PTIR_CACHE_DIR"):
        assert chosen(call(), context) == "online"


def test_write_leaves_no_other_file_behind(context: PassContext, folder: Path) -> None:
    chosen(call(), context)
    assert [path.name for path in folder.iterdir()] == ["implementations.json"]


def test_rounds_are_warmed_up_synchronized_and_alternate(
    context: PassContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    backend = type(context.backend)
    step = backend.step
    monkeypatch.setattr(timing, "MOST", 1)
    monkeypatch.setattr(backend, "synchronize", lambda self, device: calls.append("wait"))
    monkeypatch.setattr(
        backend, "step", lambda self, one, *rest: calls.append(one.op) or step(self, one, *rest)
    )
    times, refused = run_times({"a": unary("exp"), "b": unary("sin")}, context)
    assert not refused and {name: len(each) for name, each in times.items()} == {"a": 9, "b": 9}
    warm = ["wait", "exp", "wait"] * 2 + ["wait", "sin", "wait"] * 2
    assert calls == warm + ["wait", "exp", "wait", "wait", "sin", "wait"] * 9


def test_parameters_are_timed_in_the_form_that_the_backend_gives_them(
    context: PassContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What depends on parameters alone is computed before, and several copies are gone through."""
    runs: list[int] = []
    backend = type(context.backend)
    step = backend.step

    def counted(self, one, operands, device):
        runs.append(id(operands[0]))
        return step(self, one, operands, device)

    x, w = source(spec("f32", 4)), source(spec("f32", 4))
    lifted = Program(
        freeze([OPS["mul"](x, OPS["exp"](w))], [x, w]), (Port("x"), Port("w", "parameter"))
    )
    monkeypatch.setattr(backend, "step", counted)
    monkeypatch.setattr(timing, "MOST", 1)
    times, _ = run_times({"a": lifted}, context)
    assert len(times["a"]) == 9
    # The exponential of each copy once, then a product a run: two to warm up, nine rounds.
    assert len(runs) == timing.COPIES + timing.WARM_UPS + 9


def test_what_fails_while_it_is_timed_is_left_out(context: PassContext, monkeypatch) -> None:
    backend = type(context.backend)
    step = backend.step

    def fails(self, one, *rest):
        if one.op == "sin":
            raise UnsupportedError("no sine today")
        return step(self, one, *rest)

    monkeypatch.setattr(backend, "step", fails)
    assert chosen(call(), context, timing.run_times) == "portable"
    assert tuning_records()[0].refused == ("online",)


def test_sample_inputs_fit_their_types() -> None:
    types = [spec("f32", 2, 8), spec("i32", 2), spec("bool", 3), spec("bf16", 2)]
    arrays = sample_inputs(types)
    assert [a.shape for a in arrays] == [t.shape for t in types]
    assert [a.dtype for a in arrays] == [t.dtype.numpy for t in types]
    assert arrays[1].tolist() == [4, 4]
