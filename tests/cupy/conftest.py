"""CUDA without a GPU: its text on the processor, and a pretended CuPy."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.models import gpt2
from ptir.models.table import MODELS, load_modules
from ptir_backend_cupy import CupyBackend, nvrtc
from ptir_backend_cupy.dialect import CudaC
from ptir_backend_cupy.nvrtc import Cubin

HERE = Path(__file__).parent
sys.path += [str(HERE / "host"), str(HERE.parent / "opencl"), str(HERE.parent / "coop")]
# Programs that any device must run were written for the OpenCL tests; here they run as CUDA text.
SHARED = (
    *("test_opencl_families", "test_opencl_programs", "test_opencl_conformance"),
    *("test_opencl_extremes", "test_opencl_byte_convolutions", "test_coop_split"),
)
pytest.register_assert_rewrite(*SHARED, "fake_cupy")


@pytest.fixture(scope="session")
def host() -> Target:
    """CUDA text on the processor, where there is a C++ compiler."""
    required = "cuda" in os.environ.get("PTIR_REQUIRE_BACKENDS", "").split(",")
    if (shutil.which("g++") is None or sys.platform != "linux") and not required:
        pytest.skip("the host shim needs g++ on Linux")
    from cuda_host import backend

    made = backend()
    return Target(made, made.devices()[0])


@pytest.fixture(scope="session")
def opencl(host: Target) -> Target:
    """The device of the shared tests."""
    return host


@pytest.fixture
def fake(host: Target) -> Any:
    """A CuPy that is pretended, over the host shim."""
    from fake_cupy import FakeCupy

    return FakeCupy(host.backend.opened(host.device).device)  # type: ignore[attr-defined]


class HostCompiler:
    """NVRTC, but for the processor."""

    version, place = (13, 0), "pretended"

    def __init__(self, host: Any) -> None:
        self.host, self.identity = host, f"pretended {host.traits.identity}"

    def compiled(self, source: str, architecture: int) -> Cubin:
        return Cubin(self.host.build(source).binary, {})


@pytest.fixture
def cupy(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The backend over the pretended CuPy, which has two devices."""
    monkeypatch.setattr(nvrtc, "find", lambda: HostCompiler(fake.host))
    fake.devices = 2
    backend = CupyBackend()
    backend.__dict__["_cupy"] = fake
    return Target(backend, backend.devices()[0])


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> str:
    """A model for what is queued, not for what kernels compute: a layer of 32, and 65 tokens."""
    load_modules()
    sizes = {"vocab_size": 65, "n_positions": 128, "eos_token_id": 64}
    apart = {"tie_word_embeddings": False}  # else its likeliest token is the one that it is given
    preset = gpt2._preset(32, 1, 2) | sizes | apart
    monkeypatch.setitem(MODELS["gpt2"].presets, "gpt2-little", preset)
    return "random:gpt2-little"


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The bodies of all kernels of groups that are written."""
    PLANS.clear()
    grouped, seen = CudaC.workgroup_kernel, []

    def noting(self: CudaC, name: str, arguments: Any, members: int, body: str) -> str:
        seen.append(body)
        return grouped(self, name, arguments, members, body)

    monkeypatch.setattr(CudaC, "workgroup_kernel", noting)
    return seen
