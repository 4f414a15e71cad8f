"""The C device under test; without a compiler the tests are skipped, unless it is required."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices import device
from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.codegen.kernel_ir.signatures import DOTS

# Programs that any device must run were written for the OpenCL tests; here they run on C.
SHARED = ("test_opencl_families", "test_opencl_programs", "test_opencl_control")
SHARED += ("test_opencl_extremes", "test_opencl_llama", "test_opencl_one_file")
SHARED += (
    "test_opencl_byte_convolutions",
    "test_opencl_digits",
    "test_opencl_dots",
    "test_opencl_fast",
)
SHARED += ("test_opencl_conformance", "test_opencl_experts")
sys.path.append(str(Path(__file__).parent.parent / "opencl"))
pytest.register_assert_rewrite(*SHARED)


@pytest.fixture(scope="session")
def c() -> Target:
    """The processor; ``PTIR_REQUIRE_BACKENDS`` with ``c`` makes its absence a failure."""
    return device("c")


@pytest.fixture(scope="session")
def opencl(c: Target) -> Target:
    """The device of the shared tests."""
    return c


@pytest.fixture(params=["instructions", "spelled out"])
def dots(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, c: Target
) -> Iterator[None]:
    """The kernels with what the processor has, and with the same operations spelled out."""
    from ptir_backend_c import prelude

    found = c.backend.opened(c.device).device  # type: ignore[attr-defined]
    if request.param == "instructions" and not found.dialect.dots:
        pytest.skip("the processor has no dot instructions")
    if request.param == "spelled out":
        text = prelude.source("dots.h").replace("defined(", "0 && defined(")
        taken = prelude.source
        monkeypatch.setattr(prelude, "source", lambda n: text if n == "dots.h" else taken(n))
    monkeypatch.setenv("PTIR_REBUILD_KERNELS", "1")  # an artifact of the other kind is none
    monkeypatch.setattr(found.dialect, "dots", frozenset(DOTS))
    for name in ("permutes_bytes", "permutes_words"):
        permutes = request.param == "spelled out" or getattr(found.dialect, name)
        monkeypatch.setattr(found.dialect, name, permutes)
    PLANS.clear()  # plans of the other kind
    yield
    PLANS.clear()
