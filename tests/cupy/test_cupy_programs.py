"""Every kernel family, whole models and random programs: OpenCL's tests, on CUDA text."""

from __future__ import annotations

from test_opencl_byte_convolutions import (  # noqa: F401
    test_convolutions_of_bytes_are_ordinary_ops_too,
)
from test_opencl_extremes import (  # noqa: F401
    test_a_nan_of_f16_has_one_form_in_a_vector_and_beside_it,
    test_a_nan_of_f16_is_stored_alike_everywhere,
    test_constant_bounds_know_nan_and_signed_zeros,
)
from test_opencl_families import *  # noqa: F403  collected again, with this folder's device
from test_opencl_programs import *  # noqa: F403
