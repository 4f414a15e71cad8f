"""Tests that are not in the gate: what each takes, or what there meets its subject.

One table for all, because many tests of OpenCL are collected again by other folders, and only there
take long. ``make prove`` runs them; ``gate.py`` leaves them out where ``PTIR_SLICE`` is set.
"""

from __future__ import annotations

from typing import Final

MODEL: Final = "compiles a whole model; on C it is in the gate, in turn"
BROWSER: Final = "starts a browser, which CI would have to install; the gate reads the page's data"

PROOF_ONLY: Final[dict[str, str]] = {
    "c/test_c_explain.py::"
    "test_so_many_threads_that_sharing_takes_long_to_compute_are_shown_on_request": (
        "plans for nine workers; the phases of two are shown in the gate"
    ),
    "cli/test_chat_command.py::test_the_recording_on_the_front_page_is_what_a_run_shows": (
        "ten seconds of another process; the same talk on a terminal is in the gate"
    ),
    "coop/test_coop_families.py::test_a_repeated_run_gives_the_same_bits": MODEL,
    "coop/test_coop_families.py::test_sampled_tokens_are_the_reference_tokens": MODEL,
    "coop/test_coop_families.py::test_tokens_of_the_demo_model_are_the_reference_tokens": (
        "CI runs the model as groups on Intel's runtime"
    ),
    "coop/test_coop_schedules.py::test_explain_names_the_schedule_of_each_kernel": MODEL,
    "coop/test_coop_subgroups.py::test_products_by_subgroups_of_any_size": (
        "a quarter of a minute for one; a product with a wrong mask is in the gate"
    ),
    "c/test_c_windows.py::test_tokens_are_those_of_whole_caches": (
        "compiles a whole model; attention over such a cache is in the gate"
    ),
    "cupy/test_cupy_programs.py::test_a_long_prompt_gives_the_reference_logits": MODEL,
    "cupy/test_cupy_programs.py::test_sampled_tokens_are_the_reference_tokens": MODEL,
    "cupy/test_cupy_programs.py::test_tokens_of_the_demo_model_are_the_reference_tokens": MODEL,
    "cupy/test_cupy_programs.py::test_rows_of_unequal_length_continue_side_by_side": MODEL,
    "cupy/test_cupy_programs.py::test_a_repeated_run_gives_the_same_bits": MODEL,
    "cupy/test_cupy_programs.py::test_packed_narrow_weights_are_read_exactly": MODEL,
    "cupy/test_cupy_programs.py::test_every_pass_leaves_a_program_that_verifies": MODEL,
    "cupy/test_cupy_matrices.py::test_fast_takes_the_products_of_bf16": MODEL,
    "examples/test_toy_backend.py::test_its_own_tests_pass_on_what_was_installed": (
        "half a minute; CI runs a slice of the corpus on the toy"
    ),
    "examples/test_toy_backend.py::test_slice_of_the_corpus_finds_a_wrong_op": (
        "a corpus of its own process; the same faults are found by the suite's own mutants"
    ),
    "examples/test_toy_backend.py::test_slice_of_the_corpus_says_nothing_of_ops_that_are_right": (
        "shares the run of the test above"
    ),
    "opencl/test_opencl_binaries.py::test_after_a_warm_up_no_process_builds_anything": (
        "half a minute of cold processes; test_cache_commands warms up"
    ),
    "opencl/test_opencl_chains.py::test_more_memories_than_a_kernel_takes_are_several_chains": (
        "ten seconds for kernels of a hundred arguments; shorter chains are in the gate"
    ),
    "opencl/test_opencl_errors.py::test_a_model_goes_on_after_its_device_was_lost": (
        "compiles a whole model twice; a function goes on in the gate"
    ),
    "opencl/test_opencl_explain.py::"
    "test_a_layer_of_gpt2_is_few_kernels_and_nothing_runs_elsewhere": MODEL,
    "opencl/test_opencl_fast.py::test_only_fast_rounds_and_explain_names_it": MODEL,
    "opencl/test_opencl_windows.py::test_tokens_are_those_of_whole_caches": (
        "compiles a whole model; attention over such a cache is in the gate"
    ),
    "opencl/test_opencl_fast.py::test_logits_lose_little_and_as_much_as_the_lowering_does": MODEL,
    "opencl/test_opencl_fast.py::test_prompts_and_single_tokens_agree": MODEL,
    "opencl/test_opencl_fast.py::test_the_model_s_own_override_wins": MODEL,
    "opencl/test_opencl_fast.py::test_tokens_of_the_demo_model_stay": MODEL,
    "opencl/test_opencl_streaming.py::test_rows_of_weights_come_and_go_within_the_budget": (
        "compiles a model twice; on C rows are in the gate"
    ),
    "opencl/test_opencl_llama.py::test_a_layer_is_five_kernels_and_nothing_runs_elsewhere": MODEL,
    "opencl/test_opencl_llama.py::test_joined_weights_are_resident_once": MODEL,
    "opencl/test_opencl_llama.py::test_logits_of_the_preset_are_the_reference_logits": MODEL,
    "opencl/test_opencl_memory.py::test_live_bytes_return_after_a_model_is_dropped": MODEL,
    "opencl/test_opencl_memory.py::test_two_hundred_steps_of_decoding_do_not_grow": MODEL,
    "opencl/test_opencl_parts.py::test_gpt2_in_parts_gives_the_same_tokens": MODEL,
    "opencl/test_opencl_programs.py::test_a_long_prompt_gives_the_reference_logits": MODEL,
    "opencl/test_opencl_programs.py::test_a_repeated_run_gives_the_same_bits": MODEL,
    "opencl/test_opencl_programs.py::test_packed_narrow_weights_are_read_exactly": MODEL,
    "opencl/test_opencl_programs.py::test_sampled_tokens_are_the_reference_tokens": MODEL,
    "opencl/test_opencl_tiles.py::test_warm_up_tunes_with_the_model_and_keeps_the_choice": MODEL,
    **{
        f"report/test_report_browser.py::test_{name}": BROWSER
        for name in (
            "layers_open_to_kernels_and_kernels_to_ops",
            "ten_thousand_instructions_are_searched_and_only_those_in_view_are_drawn",
            "what_is_chosen_in_one_drawing_is_shown_in_all",
            "a_table_is_sorted_and_searched",
            "text_is_readable_in_dark_and_light",
            "a_picture_of_the_page_is_no_empty_sheet",
        )
    },
    "testsuite/test_fuzz.py::"
    "test_what_fails_replays_as_it_was_drawn_beside_a_backend_that_claims_less": (
        "twenty seconds of drawing; the other tests of replays are in the gate"
    ),
    "witness/test_witness_onnx.py::test_every_principle_explains_a_case_that_differs": (
        "needs all cases; of one in ten the gate says that none disagrees"
    ),
    "witness/test_witness_onnx.py::test_no_fewer_cases_agree_than_the_page_says": (
        "counts all cases; of one in ten the gate says that none disagrees"
    ),
}
