"""``ptir inspect`` of folders whose configuration is odd: what it says, and in JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from running import Command, command, llama_folder

__all__ = ["command"]


def folder_with(folder: Path, **settings: Any) -> Path:
    """A model whose ``config.json`` says something else or more."""
    path = llama_folder(folder)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **settings}))
    return path


def test_numbers_that_json_lacks_are_printed_as_texts(command: Command, tmp_path: Path) -> None:
    """A few families have an infinity in their configuration."""
    limits = [0.0, float("inf"), float("-inf"), float("nan")]
    path = folder_with(tmp_path, time_step_limit=limits)
    said = command("inspect", path, "--json").value["config"]["time_step_limit"]
    assert said == [0.0, "Infinity", "-Infinity", "NaN"]


def test_a_field_that_is_wrong_is_told_with_its_folder(command: Command, tmp_path: Path) -> None:
    path = folder_with(tmp_path, rope_theta="wide")
    done = command("inspect", path)
    assert done.code == 1 and f"{path}: llama: rope_theta 'wide' in config.json" in done.err


@pytest.mark.parametrize(("depth", "code"), [(90, 0), (110, 1), (900, 1)])
def test_settings_in_settings_without_end_are_refused(
    command: Command, tmp_path: Path, depth: int, code: int
) -> None:
    path = llama_folder(tmp_path)
    config = (path / "config.json").read_text()
    (path / "config.json").write_text(f'{{"more": {"[" * depth}{"]" * depth},{config.strip()[1:]}')
    done = command("inspect", path, "--json")
    assert done.code == code
    if code:
        assert f"{path}/config.json is nested too deeply: more than 100 levels" in done.err
