"""The OpenCL device with coop schedules forced: a CPU runs the kernels that GPUs get."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices import device, off_the_disk, without_optimizer
from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.switches import SCHEDULE

# The tests of the serial schedules run here too, where kernels are groups.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "opencl"))


@pytest.fixture(autouse=True)
def coop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is compiled is work-groups."""
    monkeypatch.setenv(SCHEDULE, "coop")
    PLANS.clear()  # plans of the other schedule
    yield
    PLANS.clear()


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
