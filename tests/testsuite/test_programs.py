"""Random programs: the same for the same seed, varied, and sharp enough to find planted faults."""

from __future__ import annotations

from collections import Counter

import pytest
from impostors import Swapping
from suite_settings import setting_of

from ptir.ops import OPS
from ptir.ops.reading import parse
from ptir.ops.verify import verify
from ptir_testsuite.corpus.programs import drawn_program, exact_of
from ptir_testsuite.mutants import MUTANTS, Correct, Mutant
from ptir_testsuite.oracles.propagation import is_continuous
from ptir_testsuite.running.kinds.programs import RandomProgram, run_program
from ptir_testsuite.running.outcomes import Outcome

pytestmark = pytest.mark.turns(2)

CLAIMS = Correct.claims
MANY = 150


@pytest.fixture(scope="module")
def programs():
    return [drawn_program(3, number, CLAIMS) for number in range(MANY)]


def test_a_seed_always_draws_the_same_programs(programs):
    for number in (0, 7, MANY - 1):
        again = drawn_program(3, number, CLAIMS)
        assert again.program == programs[number].program
        pairs = zip(again.arrays, programs[number].arrays, strict=True)
        assert all(a.tobytes() == b.tobytes() for a, b in pairs)
    assert drawn_program(4, 0, CLAIMS).program != programs[0].program


def test_backends_of_the_same_claims_get_the_same_programs():
    """What one rounds better than another changes what it is held to, not what is drawn."""

    class Coarse(Correct):
        correctly_rounded = frozenset()

    facts = [
        [row.facts["program"] for row in outcomes(backend, 40)] for backend in (Correct(), Coarse())
    ]
    assert facts[0] == facts[1]


def test_programs_are_valid_and_survive_printing(programs):
    for drawn in programs:
        verify(drawn.program)
        assert parse(str(drawn.program)) == drawn.program


def test_programs_share_nodes_and_buffers_and_return_inputs(programs):
    seen = Counter()
    for drawn in programs:
        main = drawn.program.main
        reads = Counter(v for i in main.instructions for v in set(i.operands))
        results = {v for numbers, _ in main.numbered() for v in numbers}
        seen["shared node"] += any(reads[v] > 1 for v in results)
        seen["several outputs"] += len(main.outputs) > 1
        seen["output is an input"] += any(v < len(main.inputs) for v in main.outputs)
        seen["one value twice"] += len(set(main.outputs)) < len(main.outputs)
        seen["one buffer twice"] += bool(drawn.aliases)
        seen["an op reads one value twice"] += any(
            len(set(i.operands)) < len(i.operands) for i in main.instructions
        )
        seen["approximate"] += not all(exact_of(drawn.program))
    assert min(seen.values()) > 5, seen
    used = {i.op for drawn in programs for i in drawn.program.main.instructions}
    assert len(used) > 0.8 * len([op for op in OPS.values() if op.samples])


def test_what_jumps_reads_only_exact_values(programs):
    for drawn in programs:
        exact = exact_of(drawn.program)
        for instruction in drawn.program.main.instructions:
            if not is_continuous(OPS[instruction.op]):
                assert all(exact[v] for v in instruction.operands), instruction.op


def outcomes(backend, count):
    setting = setting_of(backend)
    return [run_program(RandomProgram(0, number), setting) for number in range(count)]


def test_the_reference_agrees_with_every_program(setting):
    for number in range(MANY):
        row = run_program(RandomProgram(0, number), setting)
        assert row.outcome is Outcome.PASS, row.message


def test_a_pass_that_changes_meaning_is_found_and_the_report_repeats_it():
    wrong = [row for row in outcomes(Swapping(), 120) if row.failed]
    assert wrong
    message = wrong[0].message
    assert "optimized differs from the same value computed op by op" in message
    assert "= sub(" in message and "x0 = " in message
    assert f"  again: ptir-conformance replay {wrong[0].case} --backend swapping" in message


@pytest.mark.parametrize("name", ["max starts at 0", "integer addition saturates"])
def test_a_wrong_op_is_found_inside_programs(name):
    wrong = [row for row in outcomes(Mutant(MUTANTS[name]), 400) if row.failed]
    assert wrong
    named = f" = {MUTANTS[name].ops[0]} is wrong in"  # or the scan around it
    assert any(named in row.message for row in wrong)
