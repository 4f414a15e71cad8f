"""Which line a machine is told to run, whatever driver and whichever CuPy it has."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptir.backend import registry
from ptir.cli import main as cli
from ptir.errors import BackendUnavailable
from ptir_backend_cupy import CupyBackend, backend, platforms
from ptir_backend_cupy.platforms import Driver


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with some libraries, some CuPy, and no ROCm."""

    def made(version: int = 0, rocm: bool = False, **wheels: str) -> None:
        def cuda(number: Any) -> int:
            number._obj.value = version
            return 0

        def load(name: str) -> Any:
            if version and name == platforms.LINUX[0]:
                return SimpleNamespace(cuDriverGetVersion=cuda)
            raise OSError(name)

        found = {name.replace("_", "-"): wheel for name, wheel in wheels.items()}
        monkeypatch.setattr(platforms, "ctypes", SimpleNamespace(
            CDLL=load, c_int=ctypes.c_int, byref=ctypes.byref))  # fmt: skip
        monkeypatch.setattr(platforms, "ROCM", Path("/") if rocm else Path("/no/rocm"))
        monkeypatch.setattr(platforms, "wheels", lambda: found)
        monkeypatch.setattr(platforms, "find_spec", lambda name: found or None)

    return made


@pytest.mark.parametrize(
    ("version", "line"),
    [
        (13000, 'pip install "ptir-backend-cupy[cuda13]"'),
        (13020, 'pip install "ptir-backend-cupy[cuda13]"'),
        (14000, 'pip install "ptir-backend-cupy[cuda13]"'),
        (12040, 'pip install "ptir-backend-cupy[cuda12]"'),
        (11080, "update the driver"),
    ],
)
def test_the_line_is_the_one_for_the_driver(machine: Any, version: int, line: str) -> None:
    machine(version)
    with pytest.raises(BackendUnavailable) as said:
        backend()
    assert str(said.value).endswith(line)
    assert f"an NVIDIA driver for CUDA {version // 1000}.{version % 1000 // 10}" in str(said.value)


def test_a_machine_without_a_gpu_is_told_so(machine: Any) -> None:
    machine()
    with pytest.raises(BackendUnavailable, match=r"no ROCm are found; .*pip install .*\[cuda13\]"):
        backend()


def test_an_amd_driver_is_told_what_runs_on_it(machine: Any) -> None:
    machine(rocm=True)
    with pytest.raises(BackendUnavailable, match=r"an AMD driver \(ROCm\).*\[rocm7\]"):
        backend()
    machine(rocm=True, cupy_rocm_7_0="14.2.0")
    with pytest.raises(BackendUnavailable, match="pip install ptir-backend-opencl"):
        backend()


def test_two_distributions_of_cupy_are_one_too_many(machine: Any) -> None:
    machine(13000, cupy_cuda12x="14.2.0", cupy_cuda13x="14.2.0")
    with pytest.raises(BackendUnavailable, match="`pip uninstall cupy-cuda12x cupy-cuda13x`, then"):
        backend()


def test_a_version_that_does_not_work_is_refused(machine: Any) -> None:
    machine(13000, cupy_cuda13x="14.1.0")
    with pytest.raises(BackendUnavailable, match=r"cupy-cuda13x 14.1.0 does not work; pip install"):
        backend()


def test_a_cupy_that_fails_says_what_it_said(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(12040, cupy_cuda13x="14.2.0")

    class Broken(RuntimeError):  # noqa: N818  like CuPy's
        pass

    def count() -> int:
        raise Broken("cudaErrorInsufficientDriver: the driver is too old")

    runtime = SimpleNamespace(CUDARuntimeError=Broken, getDeviceCount=count)
    pretended = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(platforms, "import_module", lambda name: pretended)
    words = (
        r"cupy-cuda13x 14.2.0 finds no usable device with an NVIDIA driver for CUDA 12.4:"
        r' .*too old; pip install "ptir-backend-cupy\[cuda12\]"'
    )
    with pytest.raises(BackendUnavailable, match=words) as said:
        CupyBackend().devices()
    assert "driver is older" in (CupyBackend().fix_for(str(said.value)) or "")
    runtime.getDeviceCount = lambda: 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(BackendUnavailable, match="CUDA_VISIBLE_DEVICES= hides them"):
        CupyBackend().devices()

    def fails(name: str) -> Any:
        raise ImportError("libcublas is missing")

    monkeypatch.setattr(platforms, "import_module", fails)
    with pytest.raises(BackendUnavailable, match=r"cannot be imported .libcublas is missing.; pip"):
        CupyBackend().devices()


def test_the_table_of_backends_holds_the_line(
    machine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(13000)
    (row,) = [row for row in registry.status_table() if row.name == "cupy"]
    assert row.status == "unavailable"
    assert cli.main(["backends"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert 'pip install "ptir-backend-cupy[cuda13]"' in said


def test_advice_for_every_driver_names_an_extra_that_there_is() -> None:
    pyproject = Path(__file__).parents[2] / "packages" / "ptir-backend-cupy" / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    for driver in (Driver("CUDA", (12, 4)), Driver("CUDA", (13, 0)), Driver("ROCm")):
        assert f"{driver.extra} = [" in text
