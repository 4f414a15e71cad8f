"""The OpenCL device with coop schedules forced: a CPU runs the kernels that GPUs get."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from devices import device
from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.switches import SCHEDULE


@pytest.fixture(scope="session")
def opencl() -> Target:
    """The first OpenCL device; ``PTIR_REQUIRE_BACKENDS=opencl`` makes its absence a failure."""
    return device("opencl")


@pytest.fixture
def coop(opencl: Target, monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """The device, whatever is compiled for it being work-groups."""
    monkeypatch.setenv(SCHEDULE, "coop")
    PLANS.clear()  # plans of the other schedule
    yield opencl
    PLANS.clear()
