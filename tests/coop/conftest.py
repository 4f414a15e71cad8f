"""The OpenCL device with coop schedules forced: a CPU runs the kernels that GPUs get."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gate
from devices import device
from ptir.backend.contract import Target
from ptir.capture.plan import PLANS
from ptir.switches import SCHEDULE

# The tests of the serial schedules run here too, where kernels are groups.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "opencl"))


@pytest.fixture(autouse=True)
def coop(monkeypatch: pytest.MonkeyPatch, opencl: Target) -> Iterator[None]:
    """Whatever is compiled is work-groups.

    In the gate without the compiler's optimizer, which takes seconds for the unrolled tile of one
    product: what these tests are about is the text. `make prove` runs them with it.
    """
    monkeypatch.setenv(SCHEDULE, "coop")
    if gate.seed() is not None:
        found: Any = opencl.backend.opened(opencl.device).device  # type: ignore[attr-defined]
        monkeypatch.setattr(found, "_options", [*found._options, "-cl-opt-disable"])
    PLANS.clear()  # plans of the other schedule
    yield
    PLANS.clear()


@pytest.fixture
def opencl() -> Target:
    """The first OpenCL device; ``PTIR_REQUIRE_BACKENDS=opencl`` makes its absence a failure."""
    return device("opencl")
