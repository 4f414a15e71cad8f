"""Every kernel family, control flow, whole models and random programs: OpenCL's tests, on C."""

from __future__ import annotations

from test_opencl_control import *  # noqa: F403  collected again, with this folder's device
from test_opencl_experts import *  # noqa: F403
from test_opencl_extremes import *  # noqa: F403
from test_opencl_families import *  # noqa: F403
from test_opencl_llama import *  # noqa: F403
from test_opencl_one_file import *  # noqa: F403
from test_opencl_programs import *  # noqa: F403
