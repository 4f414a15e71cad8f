"""``ptir verify`` and ``bisect`` of the C backend, beside the reference."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptir.checkpoint import save_archive, save_folder
from ptir.cli.main import main
from ptir.ir.printer import print_program
from random_programs import COLUMNS, ROWS, random_program
from running import small_checkpoint


def run(capsys: Any, *arguments: object) -> tuple[int, Any]:
    code = main([*map(str, arguments), "--backend", "c", "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("step", ["prefill", "decode"])
def test_a_model_is_verified_and_has_no_fault(step: str, tmp_path: Path, capsys: Any) -> None:
    save_folder(small_checkpoint(), tmp_path / "model")
    given = (tmp_path / "model", "--tokens", "5,3,9", "--step", step)
    code, value = run(capsys, "verify", *given)
    assert code == 0 and value["right"]
    names = {row["name"] for row in value["layers"]}
    assert {"h.0.attn", "h.1.ln_1", "h.1", "ln_f"} <= names
    assert all(0 <= row["relative"] < 1e-5 for row in value["layers"])
    # What nothing may differ in differs in the last bit.
    code, value = run(capsys, "verify", *given, "--tolerance", 0)
    assert code == 5 and not value["right"]


def test_a_program_is_bisected_and_the_folder_is_only_taken_when_empty(
    tmp_path: Path, capsys: Any
) -> None:
    path, arrays = tmp_path / "p.ptir", tmp_path / "arrays.safetensors"
    path.write_text(print_program(random_program(4)), encoding="utf-8")
    rng = np.random.default_rng(4)
    save_archive(arrays, {n: rng.normal(size=(ROWS, COLUMNS)).astype("f4") for n in ("x", "y")})
    out = tmp_path / "out"
    code, value = run(capsys, "bisect", path, "--input", arrays, "--out", out)
    assert code == 0 and value["found"] is False and not out.exists()
    code, value = run(capsys, "bisect", path, "--input", arrays, "--out", out, "--tolerance", 0)
    assert code == 5 and value["found"] and value["reproducer_instructions"] <= 10
    held = {one.name for one in out.iterdir()}
    assert held == {
        *("program.ptir", "finding.json"),
        *("inputs.safetensors", "got.safetensors", "wanted.safetensors"),
    }
    again = json.loads((out / "finding.json").read_text(encoding="utf-8"))["command"]
    assert main(shlex.split(again)[1:]) == 5 and "is wrong in" in capsys.readouterr().err
    arguments = [*map(str, ("bisect", path, "--input", arrays, "--out", out)), "--backend", "c"]
    assert main(arguments) == 2 and "is not empty" in capsys.readouterr().err
