"""A file that is cut while a model runs from it is an error, and the process goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from running import llama_folder

SCRIPT = Path(__file__).parent.parent / "cut_while_used.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of 0.6 MB."""
    return llama_folder(tmp_path, num_hidden_layers=2, hidden_size=96, intermediate_size=160)


def ended(folder: Path, backend: str, budget: str, *how: str) -> subprocess.CompletedProcess[str]:
    """A process that decodes, has its file cut, and goes on."""
    environment = os.environ | {"PTIR_CACHE_DIR": str(folder.parent / "cache")}
    command = [sys.executable, str(SCRIPT), backend, budget, str(folder), *how]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be cut there")
@pytest.mark.slice(1)
@pytest.mark.parametrize("budget", ["", "1200KiB"])
@pytest.mark.parametrize("backend", ["ref", "c", "opencl"])
def test_a_file_cut_between_steps_is_an_error_that_names_it(
    folder: Path, backend: str, budget: str
) -> None:
    done = ended(folder, backend, budget)
    assert done.returncode == 0, done.stderr
    said = f"CheckpointError: {folder}/model.safetensors: weights: the file was cut from "
    if backend == "opencl" and not done.stdout:
        assert not budget, "a device with copies needs the file no longer, unless they come and go"
    else:
        assert done.stdout.startswith(said), done.stdout + done.stderr
        assert "to 4096 bytes while it was in use; fetch it again" in done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be cut there")
@pytest.mark.slice(1)
@pytest.mark.parametrize("budget", ["", "1200KiB"])
def test_c_survives_a_file_that_is_cut_while_kernels_read_it(folder: Path, budget: str) -> None:
    done = ended(folder, "c", budget, "unnoticed")
    assert done.returncode == 0, done.stderr
    said = f"CheckpointError: {folder}/model.safetensors: weights: the file was cut from "
    assert done.stdout.startswith(said), done.stdout + done.stderr
