"""The conformance suite's corpus on OpenCL: every op in every element type, random programs.

The whole corpus is ``ptir-conformance run --backend opencl``; here each op meets each type of its
first operand once.
"""

from __future__ import annotations

import pytest

from corpus_slices import ByOp, in_turn, outcomes, part, spread
from ptir.backend.contract import Target
from ptir.ops import OPS
from ptir_backend_opencl import OpenCLBackend
from ptir_testsuite.corpus.case import Case
from ptir_testsuite.running.items import composites, random_programs
from ptir_testsuite.running.outcomes import Outcome

pytestmark = pytest.mark.usefixtures("built_anew")


def test_every_op_in_every_dtype(opencl: Target, cases: ByOp) -> None:
    pairs: dict[tuple[str, str], list[Case]] = {}
    assert set(cases) == {op.name for op in OPS.values() if op.samples}
    for case in (case for listed in cases.in_turn(10) for case in listed):
        pairs.setdefault((case.op, case.dtypes[0] if case.dtypes else ""), []).append(case)
    chosen = [listed[len(listed) // 2] for listed in pairs.values()]
    stats = opencl.backend.stats(opencl.device)
    launched = stats.kernels_launched
    wrong = [row for row in outcomes(chosen, opencl) if row.outcome is not Outcome.PASS]
    assert not wrong, wrong[0].message
    assert stats.kernels_launched > launched + len(chosen)
    assert stats.host_fallback_ops == 0


def test_composites_whole_and_lowered(opencl: Target) -> None:
    wrong = [
        r
        for r in outcomes(in_turn(part(composites()), 20), opencl)
        if r.outcome is not Outcome.PASS
    ]
    assert not wrong, wrong[0].message


def test_random_programs_agree_with_the_oracle(opencl: Target) -> None:
    found = outcomes(in_turn(part(random_programs(40, seed=4)), 2), opencl)
    wrong = [row for row in found if row.outcome is not Outcome.PASS]
    assert not wrong, wrong[0].message


def test_a_device_that_lacks_features_refuses_f64_and_nothing_else(
    opencl: Target, cases: ByOp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_OPENCL_WITHOUT", "fp16,fp64,subgroups,large-groups")
    backend = OpenCLBackend()
    target = Target(backend, backend.devices()[opencl.device.index])
    facts = backend.capabilities(target.device)
    assert not facts["fp64"] and not facts["fp16"] and facts["work_group_size"] <= 256
    assert backend.claimed(target.device) == opencl.backend.claimed(opencl.device) - {"f64"}
    chosen = [case for listed in cases.in_turn(8) for case in spread(listed, 2)]
    chosen += [c for c in spread(cases["cast"], 12) if c not in chosen]
    for row, case in zip(outcomes(chosen, target), chosen, strict=True):
        double = "f64" in case.dtypes
        assert row.outcome is (Outcome.UNSUPPORTED if double else Outcome.PASS), row.message
