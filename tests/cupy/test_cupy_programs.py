"""Every kernel family, whole models and random programs: OpenCL's tests, on CUDA text."""

from __future__ import annotations

from typing import Final

from test_opencl_extremes import (  # noqa: F401
    test_a_nan_of_f16_has_one_form_in_a_vector_and_beside_it,
    test_a_nan_of_f16_is_stored_alike_everywhere,
)
from test_opencl_families import *  # noqa: F403  collected again, with this folder's device
from test_opencl_programs import *  # noqa: F403

MODEL: Final = "compiles for ten seconds; test_cupy_device runs that model"
PROVE: Final = {
    "test_sampled_tokens_are_the_reference_tokens": MODEL,
    "test_tokens_of_the_demo_model_are_the_reference_tokens": MODEL,
    "test_rows_of_unequal_length_continue_side_by_side": MODEL,
    "test_a_repeated_run_gives_the_same_bits": MODEL,
}
"""Not in the gate, and why."""
