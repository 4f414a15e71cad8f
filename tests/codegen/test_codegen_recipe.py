"""Recipes: compiled programs as data, and which ones a later process takes from disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper import DEVICE, PaperBackend, PaperDevice, compiled, optimized

import ptir
from ptir import functional as F
from ptir.backend import code_state
from ptir.backend.contract import Options
from ptir.codegen import compile
from ptir.codegen.artifact import record
from ptir.codegen.artifact.record import Artifact
from ptir.codegen.launching.launches import KernelProgram
from ptir.codegen.schedules import tuned_tiles
from ptir.codegen.schedules.tiles import Tiles
from ptir.ir.program import Port, Program
from ptir.types import spec
from random_programs import random_program


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    yield tmp_path / "recipes"
    code_state._state.cache_clear()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The blocks that were really compiled."""
    compile_block, seen = compile.compile_block, list[Any]()

    def counted(block: Any, *rest: Any, **options: Any) -> Any:
        seen.append(block)
        return compile_block(block, *rest, **options)

    monkeypatch.setattr(compile, "compile_block", counted)
    return seen


def program(factor: float = 2.0) -> Program:
    table = np.arange(5, dtype=np.float32)
    return optimized(
        ptir.capture(
            lambda x: (F.softmax(x @ x.transpose(1, 0)) * factor, x + table), spec("f32", 5, 5)
        )
    )


def compile_anew(program: Program, options: Options | None = None) -> KernelProgram:
    """What a process that compiled nothing yet makes of a program."""
    made = PaperBackend().compile(program, DEVICE, options or Options())
    assert isinstance(made, KernelProgram)
    return made


def steps(made: KernelProgram) -> list[Any]:
    return [(type(step), *step.places) for step in made.steps]


@pytest.mark.parametrize("seed", range(12))
def test_a_recipe_read_back_is_the_recipe(seed: int) -> None:
    made = compiled(random_program(seed), Options(donated=frozenset((0,)))).artifact()
    assert Artifact.decoded(made.encoded()) == made


def test_constants_are_read_back_bit_for_bit() -> None:
    made = compiled(program()).artifact()
    assert [constant.numpy().tolist() for constant in made.constants] == [[0, 1, 2, 3, 4]]
    assert Artifact.decoded(made.encoded()).constants == made.constants


def test_a_later_process_neither_fuses_nor_writes(kept: Path, written: list[Any]) -> None:
    first, second = compile_anew(program()), compile_anew(program())
    assert len(written) == len(list(kept.iterdir())) == 1
    assert steps(first) == steps(second) and len(steps(first)) >= 2


def altered(device: PaperDevice, change: str) -> PaperDevice:
    if change == "identity":
        device.traits = replace(device.traits, identity="paper, next driver")
    if change == "units":
        device.traits = replace(device.traits, compute_units=3)
    if change == "dialect":
        device.dialect = type(device.dialect)(doubles=False)
    if change == "sharing":
        device.partitioning = "always"
    return device


def test_every_part_of_the_key_counts(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(PaperDevice):
        pass

    whole, plain = program(), Options()
    changes = ("", "identity", "units", "dialect", "sharing")
    devices = [altered(PaperDevice(), change) for change in changes]
    given = [(whole, device, plain) for device in (*devices, Other())]
    others = (
        Options(donated=frozenset((0,))),
        Options(aliases=((0, 1),)),
        Options(check_indices=True),
    )
    given += [(whole, PaperDevice(), options) for options in others]
    given.append((program(3.0), PaperDevice(), plain))
    given.append((Program(whole.main, (Port("x", "parameter"),)), PaperDevice(), plain))
    keys = [record.cache_key(*each) for each in given]
    tuned_tiles.remember(devices[0], Tiles(workgroups_per_unit=9))
    keys.append(record.cache_key(*given[0]))
    monkeypatch.setattr(record.panels, "VERSION", record.panels.VERSION + 1)
    keys.append(record.cache_key(*given[0]))
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_changed_code_finds_no_recipe_of_the_code_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "code" / "inner"
    source.mkdir(parents=True)
    (source.parent / "__init__.py").write_text("")
    (source / "part.py").write_text("x = 1\n")
    monkeypatch.setitem(
        sys.modules, "changing", type("M", (), {"__file__": f"{source.parent}/__init__.py"})
    )

    def state() -> str | None:
        code_state._state.cache_clear()
        return code_state._state("changing")

    states = [state()]
    (source / "part.py").write_text("x = 11\n")
    states.append(state())
    status = (source / "part.py").stat()
    os.utime(source / "part.py", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    states.append(state())
    (source / "more.py").write_text("")
    states.append(state())
    assert state() == states[-1]
    assert len(set(states)) == 4 and None not in states


def test_code_that_is_in_no_file_keeps_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PaperDevice, "__module__", "nowhere.at_all")
    monkeypatch.setitem(sys.modules, "nowhere", type("M", (), {}))
    compile_anew(program())
    assert not kept.exists()


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_a_damaged_recipe_is_a_warning_and_made_again(
    kept: Path, written: list[Any], damage: str
) -> None:
    first = compile_anew(program())
    (path,) = kept.iterdir()
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        record.ARTIFACTS.write(path.stem, b'{"source": ""}')
    with pytest.warns(UserWarning, match=rf"{path.name} is .*; the program is compiled again"):
        second = compile_anew(program())
    assert steps(first) == steps(second)
    compile_anew(program())
    assert len(written) == 2


def test_large_constants_are_not_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "LARGEST", 19)
    compile_anew(program())
    assert not kept.exists()
    monkeypatch.setattr(record, "LARGEST", 20)
    compile_anew(program())
    assert kept.exists()


def test_the_switch_leaves_the_disk_alone(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")
    compile_anew(program())
    assert not kept.exists()


def test_a_folder_that_cannot_be_is_a_warning(kept: Path) -> None:
    kept.write_text("a file, not a folder")
    with pytest.warns(
        UserWarning, match=r"artifact cache: .*recipes cannot be written .*; programs"
    ):
        compile_anew(program())
