"""Timed choices: what is timed, what is remembered and for how long."""

from __future__ import annotations

import json

import pytest

from ptir.backend.contract import OpQuery
from ptir.errors import UnsupportedError, UsageError
from ptir.ir.attributes import Attributes
from ptir.ir.graph import freeze, source
from ptir.ir.program import Port, Program
from ptir.ops.record import OPS
from ptir.passes import PassContext
from ptir.passes.benchmark import cache_folder, fastest, run_time, sample_inputs, tuning_records
from ptir.types import spec


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "below"))
    return tmp_path / "below"


def query(size: int = 4, name: str = "softmax") -> OpQuery:
    types = (spec("f32", size),)
    return OpQuery("composite", Attributes({"name": name, "axis": 0}), types, types)


def negated(name: str) -> Program:
    x = source(spec("f32", 4))
    return Program(freeze([OPS[name](x)], [x]), (Port("x"),))


CANDIDATES = {"portable": lambda: negated("exp"), "online": lambda: negated("sin")}


def by_op(program: Program, context: PassContext) -> float:
    return {"exp": 2.0, "sin": 1.0}[program.main.instructions[0].op]


def never(program: Program, context: PassContext) -> float:
    raise AssertionError("timed again")


def test_choice_is_timed_once_and_kept_on_disk(context: PassContext) -> None:
    assert fastest(query(), CANDIDATES, context, 4, by_op) == "online"
    assert fastest(query(), CANDIDATES, context, 4, never) == "online"
    (record,) = tuning_records()
    assert record.seconds == {"portable": 2.0, "online": 1.0}
    assert (record.functional, record.backend, record.device) == ("softmax", "paper", "paper")


def test_other_types_attributes_or_candidates_are_timed_again(context: PassContext) -> None:
    fastest(query(), CANDIDATES, context, 4, by_op)
    with pytest.raises(AssertionError, match="timed again"):
        fastest(query(5), CANDIDATES, context, 4, never)
    other = OpQuery("composite", Attributes({"name": "softmax", "axis": 1}), (), ())
    with pytest.raises(AssertionError, match="timed again"):
        fastest(other, CANDIDATES, context, 4, never)
    fewer = {"portable": CANDIDATES["portable"]}
    assert fastest(query(), fewer, context, 4, by_op) == "portable"
    assert len(tuning_records()) == 1


def test_oldest_choices_of_a_functional_are_dropped(context: PassContext) -> None:
    fastest(query(1, "gelu"), CANDIDATES, context, 2, by_op)
    for size in (1, 2, 3):
        fastest(query(size), CANDIDATES, context, 2, by_op)
    found = [(c.functional, c.call.partition(" ")[0]) for c in tuning_records()]
    assert found == [("gelu", "(f32[1])"), ("softmax", "(f32[2])"), ("softmax", "(f32[3])")]


def test_candidate_that_does_not_apply_is_not_counted(context: PassContext) -> None:
    def refused() -> Program:
        raise UnsupportedError("no sin here")

    found = {"online": refused, "portable": CANDIDATES["portable"]}
    assert fastest(query(), found, context, 4, by_op) == "portable"
    said = "no implementation applies: online: no sin here; drop the override, or choose another"
    with pytest.raises(UnsupportedError, match=said):
        fastest(query(), {"online": refused}, context, 4, by_op)


DAMAGED = {
    "cut": "[",
    "no list": "{}",
    "other fields": '{"choices": [{"functional": "softmax"}]}',
    "no times": json.dumps(
        {"choices": [{**dict.fromkeys(("functional", "call", "backend", "device"), "x"),
                      "implementation": "online", "seconds": 3}]}
    ),
    "deep": "[" * 100_000,
    "bytes": "\udcff",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_file_is_named_and_everything_timed_again(
    context: PassContext, folder, damage: str
) -> None:
    folder.mkdir()
    path = folder / "implementations.json"
    path.write_text(DAMAGED[damage], encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UsageError, match=r"implementations\.json: (not a list|cannot be read)"):
        tuning_records()
    with pytest.warns(UserWarning, match=r"implementations\.json: .*; its implem.* timed again"):
        assert fastest(query(), CANDIDATES, context, 4, by_op) == "online"
    assert fastest(query(), CANDIDATES, context, 4, never) == "online"


def test_a_cache_folder_that_cannot_be_is_a_warning(
    context: PassContext, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write_text("a file, not a folder")
    with pytest.warns(UserWarning) as told:
        assert fastest(query(), CANDIDATES, context, 4, by_op) == "online"
    assert [str(w.message).partition(": ")[2][:17] for w in told] == [
        "cannot be read ([",
        "cannot be written",
    ]


def test_write_leaves_no_other_file_behind(context: PassContext, folder) -> None:
    fastest(query(), CANDIDATES, context, 4, by_op)
    assert [path.name for path in folder.iterdir()] == ["implementations.json"]


def test_cache_folder_is_the_platforms_unless_chosen(
    monkeypatch: pytest.MonkeyPatch, folder, tmp_path
) -> None:
    assert cache_folder() == folder
    monkeypatch.delenv("PTIR_CACHE_DIR")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ptir"


def test_run_is_warmed_up_and_synchronized(context: PassContext, monkeypatch) -> None:
    calls: list[str] = []
    backend = type(context.backend)
    step = backend.step
    monkeypatch.setattr(backend, "synchronize", lambda self, device: calls.append("wait"))
    monkeypatch.setattr(
        backend, "step", lambda self, *given: calls.append("step") or step(self, *given)
    )
    assert run_time(negated("exp"), context) >= 0
    assert calls == ["wait", "step", "wait"] * 9


def test_sample_inputs_fit_their_types() -> None:
    types = [spec("f32", 2, 8), spec("i32", 2), spec("bool", 3), spec("bf16", 2)]
    arrays = sample_inputs(types)
    assert [a.shape for a in arrays] == [t.shape for t in types]
    assert [a.dtype for a in arrays] == [t.dtype.numpy for t in types]
    assert arrays[1].tolist() == [4, 4]
