"""The reference backend conforms: the whole corpus, every refusal, every composite."""

from __future__ import annotations

import pytest

from corpus_slices import items_in_turn
from ptir_testsuite.running.items import run_item


@pytest.mark.slow
def test_the_reference_backend_conforms(setting):
    failed = [row for item in items_in_turn(8) if (row := run_item(item, setting)).failed]
    assert not failed, f"{len(failed)} fail, the first: {failed[0].message}"
