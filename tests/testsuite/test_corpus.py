"""The corpus: the same everywhere, derived from records alone, and wide enough."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import groupby

import pytest

from ptir.ops import OPS
from ptir_testsuite.corpus.case import FORMS, Case
from ptir_testsuite.corpus.derivation import corpus, corpus_hash, judged
from ptir_testsuite.corpus.layouts import LAYOUTS
from ptir_testsuite.running.items import items


@pytest.fixture(scope="module")
def cases():
    return [item for item in items(0) if isinstance(item, Case)]


@pytest.fixture(scope="module")
def by_op(cases):
    return {op: list(alike) for op, alike in groupby(cases, lambda case: case.op)}


def test_ids_are_unique(cases):
    ids = [case.id for case in cases]
    assert len(set(ids)) == len(ids)


def test_another_process_derives_the_same_cases():
    names = ("add", "cast", "dot_general", "rng_bits", "while")
    program = (
        "from ptir.ops import OPS;"
        "from ptir_testsuite.corpus.derivation import corpus, corpus_hash;"
        f"print(corpus_hash(corpus([OPS[name] for name in {names}])))"
    )
    env = os.environ | {"PYTHONHASHSEED": "4242"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout.strip() == corpus_hash(corpus([OPS[name] for name in names]))


def test_every_op_with_samples_has_cases_in_every_dtype_of_its_record(by_op):
    for op in OPS.values():
        if not op.samples:
            continue
        mine = by_op[op.name]
        assert len(mine) > len(op.samples)
        for place, name in enumerate(op.operands):
            if name.endswith("*") and op.regions:
                continue
            found = {case.types[place].dtype for case in mine if place < len(case.types)}
            assert found == op.dtypes[name], (op.name, name)


def test_every_choice_of_an_attribute_has_cases(by_op):
    for op in OPS.values():
        for attribute in op.attributes:
            if attribute.choices:
                found = {case.attributes[attribute.name] for case in by_op[op.name]}
                assert found == set(attribute.choices), (op.name, attribute.name)


def test_ranks_layouts_and_wirings_are_all_there(cases):
    mine = [case for case in cases if case.op == "add"]
    shapes = {case.types[0].shape for case in mine}
    assert {(), (0,), (1,), (2, 0, 3), (1031,)} <= shapes
    assert {case.layout for case in mine} == set(LAYOUTS)
    assert {case.form for case in mine} == set(FORMS)


def test_every_op_of_the_set_has_an_oracle():
    assert [op.name for op in OPS.values() if op.samples and not judged(op)] == []
