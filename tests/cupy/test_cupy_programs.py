"""Every kernel family, whole models and random programs: OpenCL's tests, on CUDA text."""

from __future__ import annotations

from test_opencl_families import *  # noqa: F403  collected again, with this folder's device
from test_opencl_programs import *  # noqa: F403
