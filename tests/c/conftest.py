"""The C device under test; without a compiler the tests are skipped, unless it is required."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ptir.backend import registry
from ptir.backend.contract import Target
from ptir_testsuite.case import Case

# Programs that any device must run were written for the OpenCL tests; here they run on C.
SHARED = ("test_opencl_families", "test_opencl_programs", "test_opencl_control")
SHARED += ("test_opencl_extremes", "test_opencl_llama")
SHARED += ("test_opencl_digits", "test_opencl_dots", "test_opencl_fast")
SHARED += ("test_opencl_conformance", "corpus_slices")
sys.path.append(str(Path(__file__).parent.parent / "opencl"))
pytest.register_assert_rewrite(*SHARED)


@pytest.fixture(scope="session")
def c() -> Target:
    """The processor; ``PTIR_REQUIRE_BACKENDS`` with ``c`` makes its absence a failure."""
    required = os.environ.get("PTIR_REQUIRE_BACKENDS", "").split(",")
    found = [status for status in registry.status_table() if status.name == "c"]
    missing = not found or found[0].status == "unavailable"
    if missing and "c" not in required:
        pytest.skip(found[0].reason if found else "ptir-backend-c is not installed")
    return registry.get("c")


@pytest.fixture(scope="session")
def opencl(c: Target) -> Target:
    """The device of the shared tests."""
    return c


@pytest.fixture(scope="session")
def cases() -> dict[str, list[Case]]:
    """The conformance suite's corpus by op."""
    from corpus_slices import by_op

    found: dict[str, list[Case]] = by_op()
    return found


@pytest.fixture
def built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels neither kept on disk nor taken from it, as in a conformance run."""
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")


@pytest.fixture(params=["instructions", "spelled out"])
def dots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, c: Target) -> None:
    """The kernels with what the processor has, and with the same operations spelled out."""
    from ptir_backend_c import prelude

    device = c.backend.opened(c.device).device  # type: ignore[attr-defined]
    if request.param == "instructions" and not device.dialect.dots:
        pytest.skip("the processor has no dot instructions")
    if request.param == "spelled out":
        text = prelude.source("dots.h").replace("defined(", "0 && defined(")
        taken = prelude.source
        monkeypatch.setattr(prelude, "source", lambda n: text if n == "dots.h" else taken(n))
    monkeypatch.setattr(device.dialect, "dots", frozenset(("dot_bytes", "dot_bf16")))
