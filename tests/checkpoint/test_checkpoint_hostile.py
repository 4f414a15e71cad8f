"""Models with something wrong in their files are refused by name, or run; and who says so is awake.

All of them: ``python tests/fuzz_files.py`` (a stage of ``make prove``).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuzz_files
from hostile import config_mutations, folder_mutations, judging
from hostile.judging import Fault, judged
from hostile.models import RECIPES, Files
from hostile.planted import planted
from hostile.watched import watched
from ptir.errors import CheckpointError, UsageError

SLICE = int(os.environ.get("PTIR_SLICE") or 0)
COUNTS = {"gguf": 120, "folder": 40, "config": 60}
FOLDERS = 4
"""Ways of storing that a slice takes, others for each number; and families."""


@pytest.fixture(scope="module")
def rights(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """The right models by kind."""
    folder = tmp_path_factory.mktemp("right")
    cases = tuple(folder_mutations.CASES)
    families = tuple(config_mutations.smallest())
    some = tuple(cases[(SLICE * FOLDERS + n) % len(cases)] for n in range(FOLDERS))
    apart = len(families) // FOLDERS  # so that those that nearly never run are not together
    families = tuple(families[(SLICE + n * apart) % len(families)] for n in range(FOLDERS))
    return {
        "gguf": fuzz_files.gguf_models(folder / "gguf"),
        "folder": folder_mutations.folders(folder / "folder", some),
        "config": config_mutations.folders(folder / "config", families),
    }


@pytest.mark.parametrize("kind", fuzz_files.KINDS)
def test_mutated_models_are_refused_by_name_or_run(
    rights: Mapping[str, Mapping[str, Any]], tmp_path: Path, kind: str
) -> None:
    ends = Counter(
        fuzz_files.ending(kind, rights[kind], SLICE, number, tmp_path / "model")
        for number in range(COUNTS[kind])
    )
    faults = [ended for ended in ends if ended.startswith("fault")]
    assert not faults, "\n".join(faults)
    refused = sum(count for ended, count in ends.items() if ended.startswith("refused"))
    assert refused > COUNTS[kind] / 4 and ends["ran"] > COUNTS[kind] / 40, ends


def test_right_models_run(rights: Mapping[str, Mapping[str, Files]], tmp_path: Path) -> None:
    assert rights["gguf"].keys() == RECIPES.keys()
    for name, files in rights["gguf"].items():
        (tmp_path / name).mkdir()
        for file, parts in files.items():
            (tmp_path / name / file).write_bytes(parts.written())
        assert judged(tmp_path / name / next(iter(files))) == "ran", name


def _wrong_error(path: Path) -> None:
    raise UsageError(f"{path}: is no model")


def _nameless(path: Path) -> None:
    raise CheckpointError("something is wrong")


def _long(path: Path) -> None:
    raise CheckpointError(f"{path}: {'x' * 5000}")


def _endless(path: Path) -> None:
    while True:
        pass


def _greedy(path: Path) -> None:
    np.ones(150 << 17)  # 150 MiB


def _slow(path: Path) -> None:
    _spin(0.3)
    raise CheckpointError(f"{path}: is wrong")


def _spin(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


PLANTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another exception": (lambda path: {}[path], "open it: KeyError"),
    "another error": (_wrong_error, "UsageError, not CheckpointError"),
    "no name": (_nameless, "does not name the file"),
    "a page": (_long, "letters"),
    "without an end": (_endless, "took more than 0.2 s"),
    "a late refusal": (_slow, "refused after 0.[3-9] s"),
    "much memory": (_greedy, "took 1[45]. MiB"),
}


@pytest.mark.parametrize("case", PLANTED)
def test_what_no_file_may_bring_about_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    step, words = PLANTED[case]
    monkeypatch.setattr(judging, "STEPS", {"open it": step})
    monkeypatch.setattr(judging, "PATIENCE", 0.2 if case == "without an end" else 5.0)
    monkeypatch.setattr(judging, "REFUSING", 0.2)
    with pytest.raises(Fault, match=words):
        judged(tmp_path / "m.gguf")


def test_a_crash_and_a_hang_cost_one_model_each() -> None:
    found = dict(watched(planted, (3, 1), range(5), jobs=1, timeout=0.5))
    assert found.pop(1).startswith("crash: SIGABRT")
    assert found.pop(3) == "hang: no answer within 0.5 s"
    assert found == {number: f"did {number}" for number in (0, 2, 4)}


def test_a_fault_is_counted_and_says_how_to_meet_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [(7, "ran"), (8, "refused (inspect)"), (9, "crash: SIGSEGV")]
    monkeypatch.setattr(fuzz_files, "watched", lambda *given, **how: iter(ends))
    monkeypatch.setattr(fuzz_files, "KINDS", {"any": fuzz_files.Kind(lambda folder: {}, None)})
    counted = fuzz_files.run("any", 3, 2, 7, jobs=1, timeout=1.0)
    out = capsys.readouterr().out
    assert "SIGSEGV" in out and "fuzz_files.py --kind any --seed 2 --first 9 --count 1" in out
    line = fuzz_files.headline("any", counted)
    assert line == "3 mutated any models: 1 ran, 1 refused (inspect); 1 faults"
