"""A decode step of GPT-2 on OpenCL, as it says itself and as it is counted."""

from __future__ import annotations

import pytest

import ptir
from ptir.backend.contract import Target
from ptir.cli.explain import kernels_per_layer, ops_elsewhere
from ptir.runtime.explain import explain_decode

MOST = 7
"""Kernels of a layer."""


@pytest.mark.slice(1)
@pytest.mark.parametrize("quant", [None, "int8", "int4"])
def test_a_layer_of_gpt2_is_few_kernels_and_nothing_runs_elsewhere(
    opencl: Target, quant: str | None
) -> None:
    report = explain_decode(ptir.load_model("demo", backend=opencl, quant=quant), 8, 1)
    assert 1 <= kernels_per_layer(report) <= MOST
    assert ops_elsewhere(report) == 0
    assert 1 <= report.counted.kernels_launched <= report.kernels
    assert report.counted.bytes_uploaded == 0
    assert report.counted.bytes_downloaded == 4
    assert report.counted.host_syncs == 0
    works = [work for section in report.sections for work in section.works]
    assert all(work.seconds is not None and work.seconds > 0 for work in works)
