"""Built kernels of a real driver on disk: loaded again by a process that did not build them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.capture import call
from ptir.codegen import compile
from ptir.codegen.artifact import binaries
from ptir.ir.program import Program
from ptir.ops.overriding import active_overrides
from ptir.passes.context import PassContext
from ptir.passes.pipeline import optimize
from ptir.types import spec


@pytest.fixture(autouse=True)
def kernels_off_the_disk() -> None:
    """Not here: what lies on the disk is the subject."""


@pytest.fixture
def kernels(opencl: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; what the first opening of the device tries out is built before."""
    opencl.backend.opened(opencl.device)
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path))
    return tmp_path / "kernels"


@pytest.fixture
def built(opencl: Target, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were really built."""
    device = opencl.backend.opened(opencl.device).device
    build, seen = device.build, list[str]()

    def counted(source: str) -> Any:
        seen.append(source)
        return build(source)

    monkeypatch.setattr(device, "build", counted)
    return seen


def program(factor: float) -> Program:
    return ptir.capture(lambda x: F.exp(x) * factor, spec("f32", 40))


def run(target: Target, program: Program) -> Any:
    """The result and what it should be, as a process that built nothing yet computes it."""
    binaries.forget()
    executable = target.backend.compile(program, target.device, Options())
    x = np.linspace(-1, 1, 40, dtype=np.float32)
    (result,) = executable.run([target.backend.upload(x, target.device)])
    return target.backend.download(result, target.device), np.exp(x)


def test_a_program_is_built_once(opencl: Target, kernels: Path, built: list[str]) -> None:
    for _ in range(2):
        found, wanted = run(opencl, program(2.0))
        np.testing.assert_allclose(found, wanted * 2, rtol=1e-6)
    assert len(built) == 1
    assert len(list(kernels.iterdir())) == 1


def test_another_source_is_another_file(opencl: Target, kernels: Path, built: list[str]) -> None:
    for factor in (2.0, 3.0):
        found, wanted = run(opencl, program(factor))
        np.testing.assert_allclose(found, wanted * factor, rtol=1e-6)
    assert len(built) == len(list(kernels.iterdir())) == 2


def test_what_the_driver_does_not_take_is_built_again(
    opencl: Target, kernels: Path, built: list[str]
) -> None:
    run(opencl, program(2.0))
    (file,) = kernels.iterdir()
    binaries.BINARIES.write(file.stem, b"not a program")
    with pytest.warns(UserWarning, match="refused by the driver"):
        found, wanted = run(opencl, program(2.0))
    np.testing.assert_allclose(found, wanted * 2, rtol=1e-6)
    assert len(built) == 2
    assert b"not a program" not in file.read_bytes()


def test_a_program_runs_from_its_recipe(
    opencl: Target, kernels: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants, copies, scratch memory and the arena are all as they were when it was made."""
    table = np.arange(40, dtype=np.float32)

    def body(x: Any) -> Any:
        y = F.softmax(x + table)
        sums = call("cumulative", y, axis=0, kind="sum")
        return y, y.reshape(1, 40) @ sums.reshape(40, 1), x, x

    context = PassContext(opencl.backend, opencl.device, active_overrides())
    program = optimize(ptir.capture(body, spec("f32", 40)), context)
    x = np.linspace(-1, 1, 40, dtype=np.float32)

    def results() -> list[bytes]:
        binaries.forget()
        executable = opencl.backend.compile(program, opencl.device, Options())
        found = executable.run([opencl.backend.upload(x, opencl.device)])
        return [opencl.backend.download(each, opencl.device).tobytes() for each in found]

    first = results()
    assert first[2] == first[3] == x.tobytes()
    monkeypatch.setattr(compile, "compile_block", None)
    assert results() == first
    assert len(built) == 1


def ptir_command(folder: Path, *arguments: str) -> Any:
    environment = {**os.environ, "PTIR_CACHE_DIR": str(folder)}
    code = "import sys\nfrom ptir.cli.main import main\nsys.exit(main())"
    command = [sys.executable, "-c", code, *arguments, "--json", "--backend", "opencl"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def statistic(said: str, name: str) -> int:
    (line,) = (line for line in said.splitlines() if line.startswith(f"{name} "))
    return int(line.split()[1])


@pytest.mark.slow
def test_after_a_warm_up_no_process_builds_anything(opencl: Target, tmp_path: Path) -> None:
    first, _ = ptir_command(tmp_path, "warmup", "demo", "--tokens", "40")
    assert first["capacities"] == [64]
    assert first["kernel_files_built"] > 0 and first["kernel_files_restored"] == 0
    runs = (
        ("run", "demo", "-p", "ROMEO:", "-n", "5", "--temp", "0"),
        ("run", "demo", "-p", "ROMEO: " * 9, "-n", "5", "--temp", "0.7", "--top-k", "9"),
    )
    for arguments in runs:
        _, said = ptir_command(tmp_path, *arguments, "--stats")
        assert statistic(said, "kernel_files_built") == 0
        assert statistic(said, "kernel_files_restored") > 0
    again, _ = ptir_command(tmp_path, "warmup", "demo", "--tokens", "40")
    assert (again["kernel_files_built"], again["kernel_files_restored"]) == (
        0,
        first["kernel_files_built"],
    )
