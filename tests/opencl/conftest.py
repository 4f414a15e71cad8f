"""The OpenCL device under test; without one the tests are skipped, unless it is required."""

from __future__ import annotations

import os

import pytest
from corpus_slices import by_op

from ptir.backend import registry
from ptir.backend.contract import Target
from ptir_testsuite.case import Case


@pytest.fixture(scope="session")
def opencl() -> Target:
    """The first OpenCL device; ``PTIR_REQUIRE_BACKENDS=opencl`` makes its absence a failure."""
    required = os.environ.get("PTIR_REQUIRE_BACKENDS", "").split(",")
    found = [status for status in registry.status_table() if status.name == "opencl"]
    missing = not found or found[0].status == "unavailable"
    if missing and "opencl" not in required:
        pytest.skip(found[0].reason if found else "ptir-backend-opencl is not installed")
    return registry.get("opencl")


@pytest.fixture(scope="session")
def cases() -> dict[str, list[Case]]:
    """The conformance suite's corpus by op."""
    return by_op()


@pytest.fixture
def built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels neither kept on disk nor taken from it, as in a conformance run."""
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")


@pytest.fixture(params=["instructions", "spelled out"])
def dots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, opencl: Target) -> None:
    """The kernels with what the processor has, and with the same operations spelled out."""
    device = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    if request.param == "instructions" and not device.dialect.dots:
        pytest.skip("the device has no dot instructions")
    monkeypatch.setattr(device.dialect, "spelled", request.param == "spelled out")
    monkeypatch.setattr(device.dialect, "dots", frozenset(("dot_bytes", "dot_bf16")))
