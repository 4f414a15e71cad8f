"""The OpenCL device under test; without one the tests are skipped, unless it is required."""

from __future__ import annotations

import pytest

from devices import device
from ptir.backend.contract import Target


@pytest.fixture(scope="session")
def opencl() -> Target:
    """The first OpenCL device; ``PTIR_REQUIRE_BACKENDS=opencl`` makes its absence a failure."""
    return device("opencl")
