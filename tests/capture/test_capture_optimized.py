"""Optimized programs on disk: taken from there where nothing differs, and only there."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import events
from ptir import functional as F
from ptir.backend.contract import Device, Target
from ptir.capture import optimized as kept
from ptir.capture.creation import parameter
from ptir.capture.plan import PLANS
from ptir.ir.program import Program
from ptir.ops import overriding
from ptir.ops.implementations import FUNCTIONALS, Implementation
from ptir.ops.policies import parse_override
from ptir.params.source import ArraySource
from ptir.params.store import ParamStore
from ptir.passes import pipeline
from ptir_backend_ref.backend import RefBackend
from running import REF

Array = np.ndarray[Any, Any]


class Known(RefBackend):
    """The reference with a say about what its programs depend on."""

    identity: str | None = "one"

    def cache_identity(self, device: Device) -> str | None:
        return self.identity


@pytest.fixture
def target() -> Target:
    backend = Known()
    return Target(backend, backend.devices()[0])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own, which takes small programs too."""
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("PTIR_REBUILD_KERNELS", raising=False)
    monkeypatch.delenv("PTIR_VERIFY", raising=False)
    monkeypatch.setattr(kept, "LEAST", 1)
    return tmp_path / "programs"


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that went through the passes."""
    seen = list[Program]()

    def optimize(program: Program, context: Any) -> Program:
        seen.append(program)
        return pipeline.optimize(program, context)

    monkeypatch.setattr(kept, "optimize", optimize)
    return seen


def computed(target: Target, factor: float = 2.0) -> Array:
    """A program with a derived parameter, captured and compiled anew."""
    PLANS.clear()
    store = ParamStore(ArraySource({"w": np.arange(12, dtype=np.float32).reshape(3, 4)}), target)
    x = ptir.tensor(np.ones((2, 4), np.float32), backend=target)
    weight = parameter(store, "w")
    found: Array = F.softmax(F.linear(x, weight.transpose(1, 0) * factor)).numpy()
    return found


def test_a_later_process_runs_no_pass(target: Target, passes: list[Program], folder: Path) -> None:
    wanted = computed(target)
    assert len(passes) == len(list(folder.iterdir())) == 1
    np.testing.assert_array_equal(computed(target), wanted)
    assert len(passes) == 1


def test_what_is_read_is_what_was_made(target: Target) -> None:
    computed(target)
    (made,) = PLANS._plans.values()
    computed(target)
    (found,) = PLANS._plans.values()
    assert found.optimized == made.optimized
    assert found.optimized is not made.optimized
    assert found.derived == made.derived != {}
    assert [i.location for i in found.optimized.main.instructions] == [
        i.location for i in made.optimized.main.instructions
    ]
    assert all(t.dtype is ptir.types.dtype(t.dtype.name) for t in found.optimized.inputs)


def another_device(target: Target, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Known, "identity", "two")


def unknown_device(target: Target, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Known, "identity", None)


def another_variable(target: Target, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PTIR_SCHEDULE", "coop")


def other_rules(target: Target, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept, "pipeline_key", lambda: "other rules")


def a_plugins_pass(target: Target, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept, "PLUGGED", {"plugin/pass": None})


def verified(target: Target, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PTIR_VERIFY", "1")


def rebuilt(target: Target, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PTIR_REBUILD_KERNELS", "1")


def larger_programs_alone(target: Target, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept, "LEAST", 1000)


def an_override(target: Target, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(overriding, "_of_process", (parse_override("softmax=default"),))


DIFFERENCES = [
    an_override,
    *(another_device, unknown_device, another_variable, other_rules, a_plugins_pass),
    *(verified, rebuilt, larger_programs_alone),
]


def test_overrides_belong_to_the_name_of_an_entry(target: Target, passes: list[Program]) -> None:
    for policy in ("default", "force=online", "tuned", "default", "force=online", "tuned"):
        with ptir.overrides({"softmax[N>1]": policy}):
            computed(target)
    assert len(passes) == 3


def test_what_is_timed_or_of_others_is_never_kept(
    target: Target, passes: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with ptir.overrides(softmax="benchmark"):
            computed(target)
    assert len(passes) == 2
    theirs = Implementation("softmax", "theirs", lambda types, attributes: None)
    table = dict(FUNCTIONALS["softmax"].implementations)
    monkeypatch.setitem(table, "theirs", theirs)
    monkeypatch.setitem(
        FUNCTIONALS, "softmax", replace(FUNCTIONALS["softmax"], implementations=table)
    )
    for _ in range(2):
        with ptir.overrides(softmax="force=online"):
            computed(target)
    assert len(passes) == 4


@pytest.mark.parametrize("differ", DIFFERENCES, ids=lambda differ: differ.__name__)
def test_the_passes_run_where_anything_differs(
    target: Target,
    passes: list[Program],
    monkeypatch: pytest.MonkeyPatch,
    differ: Callable[[Target, pytest.MonkeyPatch], None],
) -> None:
    wanted = computed(target)
    differ(target, monkeypatch)
    np.testing.assert_array_equal(computed(target), wanted)
    assert len(passes) == 2


def test_another_program_is_another_entry(target: Target, passes: list[Program]) -> None:
    computed(target)
    computed(target, 3.0)
    assert len(passes) == 2


def test_lines_that_moved_are_not_those_of_the_entry(target: Target, passes: list[Program]) -> None:
    """What is explained and profiled names the line that is there now."""
    program = F.exp(ptir.tensor(np.ones(3, np.float32), backend=target))
    del program
    code = (
        "import ptir\nfrom ptir import functional as F\n{0}def f(x): return F.exp(x) + F.tanh(x)\n"
    )
    x = ptir.tensor(np.ones(3, np.float32), backend=target)
    for lines in ("", "\n\n"):
        space: dict[str, Any] = {}
        exec(compile(code.format(lines), "moved.py", "exec"), space)
        PLANS.clear()
        ptir.jit(space["f"])(x).numpy()
    assert len(passes) == 2


def test_policies_and_listeners_see_the_passes(target: Target, passes: list[Program]) -> None:
    computed(target)
    with ptir.overrides({"softmax": "force=portable"}):
        computed(target)
    heard = list[Any]()
    leave = events.subscribe(heard.append)
    try:
        computed(target)
    finally:
        leave()
    assert len(passes) == 3
    assert any(isinstance(event, events.PassRun) for event in heard)


class Command:
    """What an entry must not be able to run."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def no_program(key: str) -> None:
    kept.PROGRAMS.write(key, pickle.dumps((1, {})))


def a_command(key: str) -> None:
    kept.PROGRAMS.write(key, pickle.dumps(Command()))


def cut_in_two(key: str) -> None:
    path = kept.PROGRAMS.path(key)
    path.write_bytes(path.read_bytes()[:-30])


def no_pickle(key: str) -> None:
    kept.PROGRAMS.write(key, b"\x80\x05garbage")


DAMAGES = [no_program, a_command, cut_in_two, no_pickle]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_entry_is_a_warning(
    target: Target,
    passes: list[Program],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[str], None],
) -> None:
    monkeypatch.chdir(folder.parent)
    wanted = computed(target)
    (entry,) = folder.iterdir()
    damage(entry.stem)
    with pytest.warns(UserWarning, match="program cache: .*optimized again"):
        found = computed(target)
    np.testing.assert_array_equal(found, wanted)
    assert len(passes) == 2
    assert not Path("ran").exists()
    computed(target)
    assert len(passes) == 2  # it was written again


def test_the_reference_keeps_nothing(passes: list[Program], folder: Path) -> None:
    computed(REF)
    computed(REF)
    assert len(passes) == 2
    assert not folder.exists()
