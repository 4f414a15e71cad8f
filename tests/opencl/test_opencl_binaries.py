"""Built kernels on disk: loaded again, and built again when they cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.backend.contract import Options, Target
from ptir.errors import CompileError
from ptir.ir.program import Program
from ptir.types import spec


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_a_damaged_file_is_built_again(opencl: Target, kernels: Path, built: list[str]) -> None:
    run(opencl, program(2.0))
    (file,) = kernels.iterdir()
    file.write_bytes(b"not a program")
    found, wanted = run(opencl, program(2.0))
    np.testing.assert_allclose(found, wanted * 2, rtol=1e-6)
    assert len(built) == 2
    assert file.read_bytes() != b"not a program"


def test_the_cache_can_be_left_alone(
    opencl: Target, kernels: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")
    for _ in range(2):
        run(opencl, program(2.0))
    assert len(built) == 2
    assert not kernels.exists()


def test_a_source_that_does_not_build_says_what_the_driver_said(opencl: Target) -> None:
    device = opencl.backend.opened(opencl.device).device
    with pytest.raises(CompileError, match="undeclared"):
        device.build("__kernel void k(__global float *x) { x[0] = nobody; }")
    found, wanted = run(opencl, program(5.0))
    np.testing.assert_allclose(found, wanted * 5, rtol=1e-6)
