"""Every family as work-groups: the tests of the serial schedules, with coop forced.

They compare with NumPy in f64 and with the reference backend. The fixture ``opencl`` is this
folder's.
"""

from __future__ import annotations

from test_opencl_convolutions import (  # noqa: F401  collected here
    test_depthwise_around_a_vector_of_channels,
    test_geometry_and_groups,
    test_weights_of_sixteen_bits,
)
from test_opencl_experts import (  # noqa: F401
    test_experts_in_words_are_read_as_they_lie,
    test_experts_multiply_with_the_weights_of_the_chosen_alone,
)
from test_opencl_extremes import (  # noqa: F401
    test_a_nan_of_f16_has_one_form_in_a_vector_and_beside_it,
    test_a_nan_of_f16_is_stored_alike_everywhere,
    test_constant_bounds_know_nan_and_signed_zeros,
    test_extremes_know_nan_and_signed_zeros,
)
from test_opencl_families import (  # noqa: F401
    test_a_narrow_cache_is_read_as_it_lies,
    test_a_query_that_sees_nothing_gives_zero,
    test_arg_max_takes_the_first_nan_then_the_first_greatest,
    test_attention,
    test_cache_update_writes_what_it_should_and_nothing_else,
    test_contractions,
    test_every_sample_of_every_op_that_is_taken,
    test_products_with_packed_weights,
    test_products_with_quantized_weights,
    test_products_with_weights_whose_values_are_places_in_a_table,
    test_reductions_along_any_axes,
    test_softmax_and_norms,
)
from test_opencl_lines import (  # noqa: F401
    test_a_running_maximum_orders_the_zeros,
    test_random_words_are_those_of_the_definition,
    test_running_sums_and_maxima,
    test_running_sums_of_integers_wrap_and_negative_zeros_stay,
)
from test_opencl_order import (  # noqa: F401
    test_integers_of_every_width,
    test_sorting_along_any_axis,
    test_sorting_is_stable_with_nan_last,
    test_the_greatest_elements,
)
from test_opencl_programs import (  # noqa: F401
    test_a_repeated_run_gives_the_same_bits,
    test_sampled_tokens_are_the_reference_tokens,
    test_tokens_of_the_demo_model_are_the_reference_tokens,
)
from test_opencl_recurrence import (  # noqa: F401
    test_a_delta_rule_is_that_of_tokens_one_by_one,
    test_a_rule_writes_its_state_in_place_and_reads_what_it_was_given,
)
