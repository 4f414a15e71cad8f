"""Weights above a part of the budget are cut by rows: the same results bit for bit, or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from test_runtime_streaming import tiny, whole

import ptir
from gguf_models import kind_of_matrices, write
from ptir.backend.contract import Target
from ptir.capture.derived_runs import runs_of
from ptir.capture.streamed import StreamedPlan
from ptir.checkpoint import open_checkpoint
from ptir.errors import UsageError
from ptir.params.rows import Rows
from ptir.params.streaming import BudgetError, StreamedParameters
from ptir.runtime import Model
from ptir_backend_ref.backend import RefBackend
from running import REF, Command, command, llama_folder

__all__ = ["command"]

pytestmark = pytest.mark.turns(4)

TOKENS = [1, 2, 3, 2999, 1500, 383, 384]
GREEDY: dict[str, Any] = {"max_tokens": 5, "temperature": 0, "ignore_eos": True, "logprobs": 2}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of this test's own."""
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))


def large(folder: Path, **more: Any) -> Path:
    """A Llama most of whose 2.6 MB in f32 are its vocabulary's: two matrices of 1.1 MB each."""
    sizes = {"vocab_size": 3000, "hidden_size": 96, "intermediate_size": 160}
    return llama_folder(folder, **sizes, **more)


def stream(model: Model) -> StreamedParameters:
    assert model.store.streamed is not None
    return model.store.streamed


def plan_of(model: Model) -> StreamedPlan:
    plan = model.steps.advance(1, 64).plans[-1]
    assert isinstance(plan, StreamedPlan)
    return plan


def cut(model: Model) -> dict[str, Rows]:
    return dict(plan_of(model).rows)


@pytest.mark.parametrize("target", [lambda: REF, whole], ids=["ref", "level 3"])
@pytest.mark.parametrize("tied", [False, True])
def test_results_are_the_same_bit_for_bit(
    tmp_path: Path, target: Callable[[], Target], tied: bool
) -> None:
    path, where = large(tmp_path, tie_word_embeddings=tied), target()
    plain = ptir.load_model(path, backend=where)
    model = ptir.load_model(path, backend=where, device_memory="960KiB")
    found, wanted = model.generate(TOKENS, **GREEDY), plain.generate(TOKENS, **GREEDY)
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    tables = {one.parameter for one in cut(model).values()}
    assert tables == (
        {"embed_tokens.weight"} if tied else {"embed_tokens.weight", "lm_head.weight"}
    )
    assert 0 < stream(model).resident.peak <= stream(model).budget
    assert max(plan_of(model).sizes.values()) <= stream(model).budget // 4


def test_the_reference_counts_no_more_than_the_budget(tmp_path: Path) -> None:
    backend = RefBackend()
    target = Target(backend, backend.devices()[0])
    model = ptir.load_model(large(tmp_path), backend=target, device_memory="960KiB")
    model.generate(TOKENS, **GREEDY)
    assert cut(model)
    assert 0 < backend.memory_stats(target.device).peak_bytes <= stream(model).budget


def test_a_level_1_backend_gives_the_same_tokens(tmp_path: Path) -> None:
    path = large(tmp_path)
    plain = ptir.load_model(path, backend=tiny())
    model = ptir.load_model(path, backend=tiny(), device_memory="1200KiB")
    assert (
        model.generate([1, 2999], **GREEDY).token_ids
        == plain.generate([1, 2999], **GREEDY).token_ids
    )
    assert cut(model)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_K], ids=lambda kind: kind.name)
def test_so_are_those_of_weights_in_blocks(tmp_path: Path, kind: Kind) -> None:
    folder = llama_folder(tmp_path, vocab_size=3000, hidden_size=256, intermediate_size=256)
    file = write(tmp_path / "m.gguf", open_checkpoint(folder), kind_of_matrices(kind)).path
    plain = ptir.load_model(file, backend=REF)
    model = ptir.load_model(file, backend=REF, device_memory="1600KiB")
    found, wanted = model.generate([1, 2999], **GREEDY), plain.generate([1, 2999], **GREEDY)
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    assert len({one.parameter for one in cut(model).values()}) > 1, "words and scales"
    assert 0 < stream(model).resident.peak <= stream(model).budget


def test_rows_of_quantized_weights_are_computed_alone(tmp_path: Path) -> None:
    path = large(tmp_path)
    plain = ptir.load_model(path, backend=REF, quant="int4")
    model = ptir.load_model(path, backend=REF, quant="int4", device_memory="900KiB")
    found, wanted = model.generate(TOKENS, **GREEDY), plain.generate(TOKENS, **GREEDY)
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    source: Any = model.store.source
    name = "lm_head.weight:int4.words"
    np.testing.assert_array_equal(source.read_rows(name, 700, 1100), source.read(name)[700:1100])


def test_each_run_of_rows_is_read_once_a_step_and_all_of_them_are_the_weight(
    tmp_path: Path,
) -> None:
    model = ptir.load_model(large(tmp_path), backend=REF, device_memory="960KiB")
    model.generate(TOKENS, **GREEDY)
    plan, counted = plan_of(model), stream(model).counters
    runs = 1 + 4  # a prompt, and a token less than were made: the first comes with the prompt
    head = [one for one in plan.rows.values() if one.parameter == "lm_head.weight"]
    assert [(one.first, one.end) for one in head] == [
        (first, min(first + 384, 3000)) for first in range(0, 3000, 384)
    ]
    assert {counted.loads[one.name] for one in head} <= {runs, runs + 1}
    assert plan.schedule.read == sum(plan.schedule.sizes.values())
    assert plan.title(head[1].name) == "lm_head.weight rows 384 to 768 of 3000"


def test_indices_outside_clamp_and_are_errors_where_they_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = large(tmp_path)
    model = ptir.load_model(path, backend=REF, device_memory="3MiB")
    plain = ptir.load_model(path, backend=REF)
    embed, other = model.module.embed_tokens, plain.module.embed_tokens
    ids = np.array([[-(2**31), -1, 0, 1535, 1536, 2999, 3000, 2**31 - 1]], np.int32)

    def rows(layer: Any) -> Any:
        return ptir.jit(lambda ids: layer(ids))(ptir.tensor(ids, backend=REF)).numpy()

    np.testing.assert_array_equal(rows(embed), rows(other))
    monkeypatch.setenv("PTIR_CHECK_INDICES", "1")
    with pytest.raises(ptir.errors.DeviceError, match=r"take: index -2147483648 "):
        rows(embed)
    ids = np.array([[0, 1535, 1536, 2999]], np.int32)
    np.testing.assert_array_equal(rows(embed), rows(other))


def test_a_budget_below_rows_and_the_rest_names_the_smallest_one(tmp_path: Path) -> None:
    path = large(tmp_path)

    def run(budget: int) -> list[int]:
        model = ptir.load_model(path, backend=REF, device_memory=budget)
        return model.generate([1, 2], **GREEDY).token_ids

    with pytest.raises(BudgetError, match="rows 0 to 384 of 3000") as caught:
        run(200_000)
    smallest = caught.value.smallest
    assert run(smallest) == ptir.load_model(path, backend=REF).generate([1, 2], **GREEDY).token_ids
    with pytest.raises(BudgetError) as again:
        run(smallest - 1)
    assert again.value.smallest == smallest


def test_what_cannot_be_cut_is_named_with_the_reason(tmp_path: Path) -> None:
    """GPT-2 stores its matrices as [inputs, outputs], and the reference reads them so."""
    from ptir.checkpoint import save_folder
    from running import small_checkpoint

    sizes = {"n_embd": 192, "vocab_size": 40, "n_layer": 1, "n_positions": 40}
    path = save_folder(small_checkpoint(**sizes), tmp_path / "small")
    model = ptir.load_model(path, backend=REF, device_memory=700_000)
    with pytest.raises(UsageError) as caught:
        model.generate([1, 2], **GREEDY)
    said = str(caught.value)
    assert "of h.0.mlp.c_fc.weight" in said or "of h.0.mlp.c_proj.weight" in said
    assert "its outputs lie along axis 1 of f32" in said
    assert "give --device-memory" in said


def test_explain_says_which_rows_a_stage_reads(tmp_path: Path, command: Command) -> None:
    path = large(tmp_path, tokenizer=None)
    arguments = (str(path), "--backend", "ref", "--device-memory", "960KiB", "--position", "4")
    streamed = command("explain", *arguments, "--json").value["streamed"]
    rows = streamed["rows"]
    assert rows["lm_head.weight[384:768]"] == {
        "parameters": ["lm_head.weight"],
        "first": 384,
        "end": 768,
        "of": 3000,
    }
    assert {name for stage in streamed["stages"] for name in stage["needed"]} >= {*rows}
    shown = command("explain", *arguments).out
    assert "lm_head.weight is cut into 8 runs of 384 rows" in " ".join(shown.split())


def test_derived_parameters_are_computed_in_runs_that_take_little(tmp_path: Path) -> None:
    model = ptir.load_model(large(tmp_path), backend=REF, quant="int8", device_memory="2MiB")
    model.generate([1, 2], **GREEDY)
    plan = plan_of(model)
    name = next(n for n, one in plan.derived.items() if len(one.ports) == 2)  # gate and up
    whole = plan.derived[name].block.output_types[0].nbytes
    runs = runs_of(plan.derived, name, whole // 4)
    assert runs is not None
    assert len(runs.places) >= 8
    row = plan.derived[name].block.types[0].nbytes // plan.derived[name].block.types[0].shape[0]
    assert max(run.nbytes for run in runs) == runs.nbytes <= whole // 4 + 2 * row
