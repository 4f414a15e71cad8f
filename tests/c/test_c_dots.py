"""Dot products: exact by digits, with rounded activations, and ``fast``: OpenCL's tests, on C."""

from __future__ import annotations

from test_opencl_byte_convolutions import *  # noqa: F403
from test_opencl_digits import *  # noqa: F403  collected again, with this folder's device
from test_opencl_dots import *  # noqa: F403
from test_opencl_fast import *  # noqa: F403
