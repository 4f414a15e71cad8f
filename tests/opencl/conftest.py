"""The OpenCL device under test; without one the tests are skipped, unless it is required."""

from __future__ import annotations

import os

import pytest

from ptir.backend import registry
from ptir.backend.contract import Target
from ptir.errors import BackendUnavailable


@pytest.fixture(scope="session")
def opencl() -> Target:
    """The first OpenCL device; ``PTIR_REQUIRE_BACKENDS=opencl`` makes its absence a failure."""
    required = os.environ.get("PTIR_REQUIRE_BACKENDS", "").split(",")
    try:
        return registry.get("opencl")
    except BackendUnavailable as error:
        if "opencl" in required:
            pytest.fail(f"PTIR_REQUIRE_BACKENDS names opencl: {error}")
        pytest.skip(str(error))
