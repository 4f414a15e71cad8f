"""The reference backend conforms: the whole corpus, every refusal, every composite."""

from __future__ import annotations

import pytest

from corpus_slices import in_turn, part
from ptir_testsuite.corpus.sweeps import Sweep
from ptir_testsuite.running.items import items, run_item

SWEEPS_IN_TURN = 6
"""In the gate one sweep in so many: they take longest, and generated kernels run all of them."""


@pytest.mark.slow
def test_the_reference_backend_conforms(setting):
    found = part(items(0))
    sweeps = set(in_turn([item for item in found if isinstance(item, Sweep)], SWEEPS_IN_TURN))
    chosen = [item for item in found if not isinstance(item, Sweep) or item in sweeps]
    failed = [row for item in chosen if (row := run_item(item, setting)).failed]
    assert not failed, f"{len(failed)} fail, the first: {failed[0].message}"
