"""Whole programs partitioned among one, two and three workers, run on the reference backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from partitioning import EAGER, REF, partition_of, partition_plan, shared

import ptir
from comparing import run_block, same_bits
from devices import device
from ptir import functional as F
from ptir.backend.contract import Device, OpQuery, Options, Target
from ptir.capture.creation import tensor
from ptir.capture.run import run_program
from ptir.errors import UsageError
from ptir.functional.define import composite, lowering
from ptir.ir.graph import freeze, source
from ptir.ir.program import Port, Program
from ptir.ops.implementations import FUNCTIONALS, PORTABLE, Functional, Implementation
from ptir.partition import Partial, Partition, PartitionedBackend, Split, partition
from ptir.partition.phases import InputShard, PhaseOutput
from ptir.partition.search import search
from ptir.sharding.local import compute, localized, says_the_same
from ptir.sharding.strategies import strategy
from ptir.types import spec
from ptir_backend_ref.backend import RefBackend
from ptir_testsuite.oracles.accuracy import Terms
from ptir_testsuite.running.execute import Setting
from ptir_testsuite.running.kinds.programs import RandomProgram
from ptir_testsuite.running.kinds.programs import run_program as judge_program
from ptir_testsuite.running.outcomes import Outcome
from random_programs import random_program
from together import together

WORKERS = (1, 2, 3)


def arrays_for(program: Program, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    typed = zip(program.ports, program.inputs, strict=True)
    return {p.name: rng.standard_normal(t.shape).astype(t.dtype.numpy) for p, t in typed}


def changes_sums(shared_program: Partition, workers: int) -> bool:
    """Whether a sum or product of floats is made of several workers' addends."""
    decisions, *_ = search(shared_program.program, workers, EAGER)
    return any(
        isinstance(placed, Partial) and placed.kind in ("sum", "prod")
        for one in decisions
        for placed in one.strategy.results
    )


@together("workers")
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("seed", range(24))
def test_random_programs_give_the_whole_programs_results(seed: int, workers: int) -> None:
    program = random_program(seed)
    arrays, target = arrays_for(program, seed), shared(workers)
    found = run_program(program, arrays, target)
    wanted = run_program(program, arrays, REF)
    exact = not changes_sums(partition_of(program, target), workers)
    for one, other in zip(found, wanted, strict=True):
        if exact:
            assert same_bits(one, other)
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_random_programs_are_shared_in_every_way() -> None:
    """The programs above are worth running: they split values, add addends and communicate."""
    seen = {"split": 0, "addends": 0, "several phases": 0, "bit for bit": 0}
    for seed in range(24):
        program = random_program(seed)
        found = partition_of(program, shared(2))
        input_shards = (one.placement for worker in range(2) for one in found.input_shards(worker))
        addends = changes_sums(found, 2)
        seen["split"] += any(isinstance(one, Split) for one in input_shards)
        seen["addends"] += addends
        seen["several phases"] += found.barriers > 0
        seen["bit for bit"] += not addends
    assert min(seen.values()) >= 3, seen


@pytest.mark.slice(1)
@pytest.mark.parametrize("workers", WORKERS)
def test_programs_of_the_suite_stay_within_their_propagated_bounds(workers: int) -> None:
    target = shared(workers)
    setting = Setting(target, target.backend.claims, Terms(target.backend.correctly_rounded))
    for number in range(40):
        row = judge_program(RandomProgram(5, number), setting)
        assert row.outcome is Outcome.PASS, row.message


@pytest.mark.slice(1)
@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_the_suite_passes_when_every_program_is_shared(workers: int) -> None:
    from corpus_slices import items_in_turn, outcomes

    target = shared(workers)
    failed = [row for row in outcomes(items_in_turn(40), target) if row.failed]
    assert not failed, f"{len(failed)} fail, the first: {failed[0].message}"


# --- what phases are ---


def body(x: Any, w: Any, v: Any) -> Any:
    return F.tanh(x @ w) @ v, x


def _two_products() -> Program:
    return ptir.capture(body, spec("f32", 1, 10), spec("f32", 10, 18), spec("f32", 18, 7))


@pytest.mark.parametrize("workers", WORKERS)
def test_two_products_of_a_row_need_one_barrier(workers: int) -> None:
    """Columns, then rows of the second weight, then the sum, in phases of whole programs."""
    program = _two_products()
    found = partition_of(program, shared(workers, replace(EAGER, barrier_seconds=1e-6)))
    assert found.barriers == (workers > 1)
    arrays = arrays_for(program, 3)
    for one, other in zip(
        run_program(program, arrays, shared(workers)),
        body(*(tensor(a, backend=REF) for a in arrays.values())),
        strict=True,
    ):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-5)


def sources(found: Partition) -> Sequence[tuple[int, int, Any]]:
    return [
        (number, worker, one)
        for number, phase in enumerate(found.phases)
        for worker, local in enumerate(phase.workers)
        for one in local.sources
    ]


@pytest.mark.parametrize("seed", range(12))
def test_what_is_communicated_was_made_in_an_earlier_phase(seed: int) -> None:
    found = partition_of(random_program(seed), shared(3))
    for number, worker, one in sources(found):
        if isinstance(one, PhaseOutput):
            assert one.phase < number
        else:
            assert isinstance(one, InputShard) and one.worker == worker
    remote_inputs = {
        n
        for n, worker, one in sources(found)
        if isinstance(one, PhaseOutput) and one.worker != worker
    }
    assert remote_inputs == set(range(1, len(found.phases))), "a barrier without communication"


@pytest.mark.parametrize("seed", range(4))
def test_remote_inputs_are_what_others_made(seed: int) -> None:
    found = partition_of(random_program(seed), shared(3))
    for phase in found.phases:
        for worker, local in enumerate(phase.workers):
            makers = [
                one.worker if isinstance(one, PhaseOutput) else worker for one in local.sources
            ]
            others = tuple(n for n, maker in enumerate(makers) if maker != worker)
            assert local.remote_inputs(worker) == others


@pytest.mark.parametrize("seed", range(12))
def test_splits_cover_every_place_once(seed: int) -> None:
    found = partition_of(random_program(seed), shared(3))
    for _, _, one in sources(found):
        if isinstance(one, InputShard) and isinstance(one.placement, Split):
            size = found.program.inputs[one.port].shape[one.placement.axis]
            places = [p for part in one.placement.parts for a, b in part for p in range(a, b)]
            assert sorted(places) == list(range(size))


def test_dear_barriers_leave_everything_to_everyone() -> None:
    dear = replace(EAGER, barrier_seconds=1e3)
    found = partition_of(random_program(4), shared(2, dear))
    assert found.barriers == 0
    assert all(len(one.parts) == 1 for one in found.outputs)


def test_rows_are_split_without_a_barrier_where_nothing_is_communicated() -> None:
    program = ptir.capture(lambda x: F.softmax(x * 2.0), spec("f32", 9, 33))
    found = partition_of(program, shared(3))
    assert found.barriers == 0
    assert [part.worker for part in found.outputs[0].parts] == [0, 1, 2]


def test_an_extreme_along_a_split_axis_is_exact_in_addends() -> None:
    program = ptir.capture(lambda x: (x + 1.0).max(axis=0), spec("f32", 64, 1))
    array = np.random.default_rng(0).normal(size=(64, 1)).astype("f4")
    array[40] = np.nan
    found = run_program(program, {p.name: array for p in program.ports}, shared(3))
    assert np.isnan(found[0]).all()


def test_a_program_without_instructions_is_one_phase() -> None:
    program = ptir.capture(lambda x, y: (y, x, x), spec("f32", 3), spec("i32", 2))
    target, arrays = shared(2), {"x": np.ones(3, "f4"), "y": np.arange(2, dtype="i4")}
    assert partition_of(program, target).barriers == 0
    y, x, again = run_program(program, arrays, target)
    assert (y.tolist(), x.tolist(), again.tolist()) == ([0, 1], [1, 1, 1], [1, 1, 1])


def test_sharing_by_nobody_is_refused() -> None:
    with pytest.raises(UsageError, match="0 workers: there must be at least 1"):
        partition(_two_products(), 0, EAGER)


def test_ports_repeat_no_name_and_say_which_part_they_are() -> None:
    program = ptir.capture(body, spec("f32", 4, 10), spec("f32", 10, 18), spec("f32", 18, 7))
    found = partition_of(program, shared(2))
    names = [port.name for port in found.phases[0].workers[1].program.ports]
    assert len(set(names)) == len(names)
    assert any("[axis" in name for name in names)


# --- composites ---


def _centred(x: Any, *, groups: int) -> Any:
    """Every group of neighbouring columns less its mean."""
    rows, columns = x.shape
    grouped = x.reshape(rows, groups, columns // groups)
    mean = grouped.sum(axis=2, keepdims=True) * (groups / columns)
    return (grouped - mean).reshape(rows, columns)


@pytest.fixture
def centred(monkeypatch: pytest.MonkeyPatch) -> str:
    """A functional with an attribute that says how many groups there are."""
    name = "centred_in_groups"
    portable = Implementation(name, PORTABLE, lowering(_centred))
    monkeypatch.setitem(FUNCTIONALS, name, Functional(name, "", {PORTABLE: portable}))
    return name


def test_a_composite_about_what_is_split_is_taken_apart(centred: str) -> None:
    """Half of the columns have the same number of groups only if those are other groups."""
    program = ptir.capture(lambda x: composite(centred, x, groups=4), spec("f32", 1, 24))
    (instruction,) = program.main.instructions
    halves = Split(1, (((0, 12),), ((12, 24),)))
    way = strategy(instruction, program.inputs, 0, halves)
    assert way is not None and way.results == (halves,)
    assert not says_the_same(instruction, localized(instruction.regions[0], (halves,), 1))
    part = source(spec("f32", 1, 12))
    (found,) = compute(instruction, way, 1, [part])
    array = np.arange(24, dtype="f4").reshape(1, 24) ** 2
    (got,) = run_block(freeze([found], [part]), [array[:, 12:]])
    wanted = run_block(instruction.regions[0], [array])[0][:, 12:]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_attention_on_some_heads_stays_attention() -> None:
    kv = spec("f32", 1, 4, 16, 8)
    program = ptir.capture(
        lambda q, k, v: F.attention(q, k, v, causal=True), spec("f32", 1, 8, 1, 8), kv, kv
    )
    found = partition_of(program, shared(2))
    phase = found.phases[0]
    made = (i for local in phase.workers for i in local.program.main.instructions)
    names = [i.name for i in made if i.op not in ("constant", "broadcast_to")]
    assert names == ["attention", "attention"]
    arrays = arrays_for(program, 2)
    assert same_bits(
        run_program(program, arrays, shared(2))[0], run_program(program, arrays, REF)[0]
    )


class Choosy(RefBackend):
    """Takes attention whole from 8 heads on."""

    def refusal(self, query: OpQuery, device: Device) -> str | None:
        if query.name == "attention" and query.operands[0].shape[1] < 8:
            return "too few heads"
        return super().refusal(query, device)


def test_a_composite_that_is_refused_at_a_workers_sizes_is_lowered() -> None:
    kv = spec("f32", 1, 4, 16, 8)
    program = ptir.capture(lambda q, k, v: F.attention(q, k, v), spec("f32", 1, 8, 1, 8), kv, kv)
    arrays = arrays_for(program, 2)
    found = run_program(program, arrays, shared(2, backend=Choosy()))
    np.testing.assert_allclose(found[0], run_program(program, arrays, REF)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("workers", "groups"), [(2, 2), (3, 3), (2, 1), (3, 2)])
def test_grouped_heads_are_split_by_group_or_within_groups(workers: int, groups: int) -> None:
    kv = spec("f32", 2, groups, 9, 4)
    program = ptir.capture(
        lambda q, k, v: F.attention(q, k, v), spec("f32", 2, groups * 6, 3, 4), kv, kv
    )
    arrays = arrays_for(program, workers)
    found = run_program(program, arrays, shared(workers))
    np.testing.assert_allclose(found[0], run_program(program, arrays, REF)[0], rtol=1e-5, atol=1e-6)


# --- memory ---


def test_what_is_overwritten_is_a_workers_own_and_read_no_more() -> None:
    """Parts of a cache are; a whole input, what crosses and what is an output too are not."""
    cache, new, row = spec("f32", 1, 4, 8, 2), spec("f32", 1, 4, 1, 2), spec("i32", 1)

    def step(cache: Any, new: Any, start: Any, count: Any) -> Any:
        extended = F.cache_update(cache, new * 2.0, start, count)
        return extended, (extended * extended).sum(axis=1)

    found = partition_of(ptir.capture(step, cache, new, row, row), shared(2))
    first = found.phases[0].workers[1]
    names = {first.program.ports[n].name for n in found.expiring(0, 1)}
    assert any(name.startswith("cache[axis") for name in names), names
    assert not {"start", "count"} & names
    for number, phase in enumerate(found.phases):
        for worker, local in enumerate(phase.workers):
            assert not set(local.remote_inputs(worker)) & found.expiring(number, worker)


def test_inputs_stay_as_they_are_though_parts_of_them_are_overwritten() -> None:
    program = random_program(7)
    arrays = arrays_for(program, 7)
    target = shared(3)
    handles = [target.backend.upload(arrays[p.name], target.device) for p in program.ports]
    plan = partition_plan(program, target)
    before = [target.backend.download(one, target.device) for one in handles]
    first = [target.backend.download(h, target.device) for h in plan.run(handles, ())]
    again = [target.backend.download(h, target.device) for h in plan.run(handles, ())]
    after = [target.backend.download(one, target.device) for one in handles]
    assert all(same_bits(a, b) for a, b in zip(before + first, after + again, strict=True))


def test_parameters_are_cut_again_when_they_are_others() -> None:
    """The executable keeps windows of the parameters that it saw last, and of no others."""
    weight = spec("f32", 10, 18)
    program = ptir.capture(lambda x, w: F.tanh(x @ w), spec("f32", 1, 10), weight)
    stored = replace(program, ports=(program.ports[0], Port("w", "parameter")))
    target = shared(2)
    run = target.backend.compile(stored, target.device, Options()).run
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 10)).astype("f4")
    for _ in range(2):
        w = rng.normal(size=(10, 18)).astype("f4")
        (found,) = run([target.backend.upload(a, target.device) for a in (x, w)])
        np.testing.assert_allclose(
            target.backend.download(found, target.device), np.tanh(x @ w), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("name", ["c", "opencl"])
def test_kernels_of_a_backend_run_what_workers_do(name: str) -> None:
    whole = device(name)
    program = _two_products()
    target = Target(PartitionedBackend(whole.backend, 2, EAGER), whole.device)
    arrays = arrays_for(program, 3)
    for one, other in zip(
        run_program(program, arrays, target), run_program(program, arrays, REF), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
