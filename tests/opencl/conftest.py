"""The OpenCL device under test; without one the tests are skipped, unless it is required."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devices import device, off_the_disk, without_optimizer
from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.codegen.kernel_ir.signatures import DOTS


@pytest.fixture(autouse=True)
def kernels_off_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """See ``devices.off_the_disk``; modules about what is kept override it."""
    off_the_disk(monkeypatch)


@pytest.fixture(scope="session")
def opencl() -> Target:
    """The first OpenCL device; ``PTIR_REQUIRE_BACKENDS=opencl`` makes its absence a failure."""
    found = device("opencl")
    without_optimizer(found)
    return found


@pytest.fixture(params=["instructions", "spelled out"])
def dots(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, opencl: Target
) -> Iterator[None]:
    """The kernels with what the processor has, and with the same operations spelled out."""
    found = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
    if request.param == "instructions" and not found.dialect.dots:
        pytest.skip("the device has no dot instructions")
    monkeypatch.setattr(found.dialect, "spelled", request.param == "spelled out")
    monkeypatch.setattr(found.dialect, "dots", frozenset(DOTS))
    PLANS.clear()  # plans of the other kind
    yield
    PLANS.clear()
