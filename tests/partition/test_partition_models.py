"""Language models among workers: the same tokens, two barriers a layer, even parts, caches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from partitioning import CORES, EAGER, REF, decode_partition, plan_partition, shared

import ptir
from ptir.partition import Partition, Split
from ptir.runtime.workers import partition_step
from running import model

pytestmark = pytest.mark.turns(2)

DEEPER = {"gpt2": 12, "llama-1b": 16}


@pytest.mark.slice(1)
@pytest.mark.parametrize(
    ("spec", "workers"), [("gpt2", 2), ("gpt2", 3), ("gpt2", 4), ("llama-1b", 2)]
)
def test_a_decode_step_has_two_barriers_a_layer(spec: str, workers: int) -> None:
    """And one before the most likely token is found among everybody's logits."""
    report = partition_step(model(f"random:{spec}"), workers, CORES, None, 64)
    assert report.barriers == 2 * DEEPER[spec] + 1
    assert report.barriers_per_layer == 2
    for section in report.sections:
        for phase in section.phases:
            if sum(phase.weights):
                assert max(phase.weights) < 1.01 * sum(phase.weights) / workers
    assert max(report.weights) < 1.01 * sum(report.weights) / workers
    if spec == "gpt2":
        first, second = report.sections[1].phases
        assert first.computes[-4:] == ("linear", "cache_update", "attention", "linear")
        assert second.computes[-3:] == ("linear", "gelu", "linear")


def _splits(found: Partition, name: str) -> set[Split]:
    ports = found.program.ports
    placements = {
        one.placement
        for worker in range(found.workers)
        for one in found.input_shards(worker)
        if ports[one.port].name == name
    }
    assert all(isinstance(one, Split) for one in placements), placements
    return {one for one in placements if isinstance(one, Split)}


def test_weights_are_split_by_heads_hidden_units_and_columns() -> None:
    found = decode_partition("random:gpt2", 3)
    heads = [(256 * w, 256 * w + 256) for w in range(3)]
    fused = tuple(
        tuple((third + start, third + end) for third in (0, 768, 1536)) for start, end in heads
    )
    assert _splits(found, "h.5.attn.c_attn.weight") == {Split(1, fused)}
    assert _splits(found, "h.5.attn.c_proj.weight") == {Split(0, tuple((h,) for h in heads))}
    hidden = tuple(((1024 * w, 1024 * w + 1024),) for w in range(3))
    assert _splits(found, "h.5.mlp.c_fc.weight") == {Split(1, hidden)}
    assert _splits(found, "h.5.mlp.c_proj.weight") == {Split(0, hidden)}


def test_columns_of_an_uneven_vocabulary_are_split_in_panels() -> None:
    found = decode_partition("random:gpt2", 3)
    logits = next(
        one.placement
        for worker in range(3)
        for one in found.input_shards(worker)
        if found.program.ports[one.port].name == "wte.weight" and isinstance(one.placement, Split)
    )
    assert isinstance(logits, Split) and logits.axis == 0
    starts = [part[0][0] for part in logits.parts]
    assert starts[0] == 0 and all(start % 16 == 0 for start in starts)
    assert logits.parts[2][-1][1] == 50257


def test_each_workers_cache_is_that_of_its_heads() -> None:
    found = decode_partition("random:gpt2", 2)
    halves = Split(1, (((0, 6),), ((6, 12),)))
    caches = [n for n, type in enumerate(found.program.inputs) if type.shape == (1, 12, 64, 64)]
    assert len(caches) == 24
    for worker in range(2):
        input_shards = {one.port: one.placement for one in found.input_shards(worker)}
        assert all(input_shards[port] == halves for port in caches)
    extended = [one for one in found.outputs if one.placement == halves]
    assert len(extended) == 24
    assert all([part.worker for part in one.parts] == [0, 1] for one in extended)


def test_grouped_heads_are_split_by_groups_and_gates_beside_what_they_gate() -> None:
    """Query heads go with their keys; the halves of joined projections are split alike."""
    found = decode_partition("random:llama-1b", 2)
    halves = Split(1, (((0, 4),), ((4, 8),)))
    caches = [n for n, type in enumerate(found.program.inputs) if type.shape == (1, 8, 64, 64)]
    input_shards = {one.port: one.placement for one in found.input_shards(1)}
    assert len(caches) == 32 and all(input_shards[port] == halves for port in caches)
    ports = found.program.ports
    names = ("q_proj.weight", "k_proj.weight", "gate_proj.weight", "up_proj.weight")
    for name in names:
        placed = {input_shards[n] for n, port in enumerate(ports) if port.name.endswith(name)}
        assert all(isinstance(one, Split) and one.axis == 0 for one in placed), name


@pytest.mark.slice(3)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("spec", ["demo", "random:gpt2-tiny", "random:llama-tiny"])
def test_tokens_are_those_of_the_whole_program(spec: str, workers: int) -> None:
    prompt = "ROMEO:" if spec == "demo" else [5, 17, 3, 90, 4, 1]
    alone = model(spec).generate(prompt, max_tokens=12, temperature=0.0)
    target = shared(workers)
    here = ptir.load_model(spec, backend=target, dtype="f32", seed=0)
    assert here.generate(prompt, max_tokens=12, temperature=0.0).token_ids == alone.token_ids
    plans = here.steps.advance(1, 64).plans
    assert plans
    if workers > 1:
        assert all(plan_partition(plan).barriers for plan in plans)


def test_sampled_tokens_of_several_rows_are_those_of_the_whole_program() -> None:
    options = {"max_tokens": 6, "temperature": 0.9, "top_k": 20, "top_p": 0.9, "seed": 3}
    prompts = ["To be", "O"]
    here = ptir.load_model("demo", backend=shared(2), dtype="f32")
    found = [one.token_ids for one in here.generate_batch(prompts, **options)]
    wanted = [one.token_ids for one in model("demo").generate_batch(prompts, **options)]
    assert found == wanted


@pytest.mark.slice(1)
@pytest.mark.parametrize("form", [{"dtype": "bf16"}, {"dtype": "bf16", "quant": "int4"}])
def test_narrow_and_quantized_weights_are_shared(form: dict[str, str]) -> None:
    options = {"seed": 0, **form}
    alone = ptir.load_model("random:gpt2-tiny", backend=REF, **options)
    here = ptir.load_model("random:gpt2-tiny", backend=shared(3, EAGER), **options)
    prompt = [5, 17, 3, 90]
    found = here.generate(prompt, max_tokens=8, temperature=0.0).token_ids
    assert found == alone.generate(prompt, max_tokens=8, temperature=0.0).token_ids


def test_many_workers_add_in_parts_where_that_is_cheaper_than_everyone_adding_all() -> None:
    """Each adds its part and reads the others': twice the barriers, an eighth of the addends."""
    near = replace(CORES, barrier_seconds=2e-7)
    report = partition_step(model("random:llama-1b"), 8, near, None, 64)
    assert report.barriers_per_layer == 4
    far = replace(CORES, barrier_seconds=5e-6)
    assert partition_step(model("random:llama-1b"), 8, far, None, 64).barriers_per_layer == 2


@pytest.mark.parametrize(("spec", "workers"), [("gpt2", 2), ("gpt2", 3), ("llama-1b", 2)])
def test_workers_with_equal_shares_and_equal_layers_have_equal_programs(
    spec: str, workers: int
) -> None:
    found = decode_partition(f"random:{spec}", workers)
    layered = [{local.program.main for local in phase.workers} for phase in found.phases[1:-2]]
    assert all(len(programs) == 1 for programs in layered)
    assert len(set().union(*layered[1:-1])) == 2
