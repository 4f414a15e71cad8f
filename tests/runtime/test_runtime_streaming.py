"""A model under a memory budget: the same results bit for bit, within the budget, or an error."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

import ptir
from gguf_models import kind_of_matrices, write
from ptir.backend.contract import Executable, Options, Target
from ptir.capture.streamed import StreamedPlan
from ptir.checkpoint import open_checkpoint
from ptir.errors import DeviceError, UsageError
from ptir.ir.program import Program
from ptir.params.streaming import StreamedParameters
from ptir.runtime import Model, prepacked
from ptir_backend_ref.backend import RefBackend
from running import REF, Command, command, llama_folder
from tiny_backend import TinyBackend

pytestmark = pytest.mark.turns(2)

__all__ = ["command"]

TOKENS = [1, 2, 3, 50, 7]
GREEDY: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("PTIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PTIR_REBUILD_KERNELS", raising=False)
    return tmp_path / "cache" / "weights"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A Llama of 1.2 MB in f32, of which a layer has 0.3 MB."""
    return llama_folder(tmp_path, num_hidden_layers=4, hidden_size=96, intermediate_size=160)


class WholeBackend(RefBackend):
    """A level 3 backend: it knows nothing of launches, and notes how large its programs are."""

    stages = False

    def __init__(self) -> None:
        super().__init__()
        self.compiled: list[int] = []

    def compile(self, program: Program, device: Any, options: Options) -> Executable:
        assert not options.staged
        self.compiled.append(len(program.main.instructions))
        return Whole(super().compile(program, device, options))


class Whole(Executable):
    """A program that runs at once."""

    def __init__(self, inner: Executable) -> None:
        self.program, self._inner = inner.program, inner

    def run(self, inputs: Any) -> Any:
        return self._inner.run(inputs)


def tiny() -> Target:
    backend = TinyBackend()
    return Target(backend, backend.devices()[0])


def whole() -> Target:
    backend = WholeBackend()
    return Target(backend, backend.devices()[0])


def stream(model: Model) -> StreamedParameters:
    assert model.store.streamed is not None
    return model.store.streamed


@pytest.mark.slice(5)
@pytest.mark.parametrize("budget", ["420KiB", "1MiB", "1GiB"])
@pytest.mark.parametrize("target", [lambda: REF, tiny, whole], ids=["ref", "level 1", "level 3"])
def test_results_are_the_same_bit_for_bit(
    path: Path, target: Callable[[], Target], budget: str
) -> None:
    where = target()
    plain = ptir.load_model(path, backend=where)
    budgeted = ptir.load_model(path, backend=where, device_memory=budget)
    wanted = plain.generate(TOKENS, **GREEDY, logprobs=2)
    found = budgeted.generate(TOKENS, **GREEDY, logprobs=2)
    assert (found.token_ids, found.logprobs) == (wanted.token_ids, wanted.logprobs)
    np.testing.assert_array_equal(budgeted.forward(TOKENS), plain.forward(TOKENS))
    assert stream(budgeted).resident.peak <= stream(budgeted).budget


@pytest.mark.parametrize("how", [{"quant": "int4"}, {"dtype": "bf16"}, {"cache_dtype": "bf16"}])
def test_so_are_those_of_weights_that_are_converted(path: Path, how: dict[str, str]) -> None:
    plain = ptir.load_model(path, backend=REF, **how)  # type: ignore[arg-type]
    model = ptir.load_model(path, backend=REF, device_memory="600KiB", **how)  # type: ignore[arg-type]
    assert model.generate(TOKENS, **GREEDY).token_ids == plain.generate(TOKENS, **GREEDY).token_ids


def test_weights_in_blocks_come_from_the_packed_file(tmp_path: Path, folder: Path) -> None:
    checkpoint = open_checkpoint(llama_folder(tmp_path, num_hidden_layers=3))
    file = write(tmp_path / "m.gguf", checkpoint, kind_of_matrices(Kind.Q4_0)).path
    plain = ptir.load_model(file, backend=REF)
    model = ptir.load_model(file, backend=REF, device_memory="120KiB")
    np.testing.assert_array_equal(model.forward(TOKENS), plain.forward(TOKENS))
    read = model.store.source.counters.bytes_read
    model.generate(TOKENS, **GREEDY)
    model.generate(TOKENS, **GREEDY)
    assert model.store.source.counters.bytes_read == pytest.approx(read, rel=0.5)
    assert not [*folder.iterdir()], "a small model's file has no name left"


def test_what_an_earlier_process_packed_is_streamed(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepacked, "LEAST", 1)
    ptir.load_model(path, backend=REF).forward(TOKENS)
    (packed,) = folder.iterdir()
    before = packed.stat().st_mtime_ns
    ptir.load_model(path, backend=REF, device_memory="800KiB").forward(TOKENS)
    assert packed in {*folder.iterdir()}
    assert packed.stat().st_mtime_ns >= before


def plan_of(model: Model) -> StreamedPlan:
    plan = model.steps.advance(1, 64).plans[-1]
    assert isinstance(plan, StreamedPlan)
    return plan


def test_counters_say_how_often_each_was_read(path: Path) -> None:
    model = ptir.load_model(path, backend=REF, device_memory="600KiB")
    model.generate(TOKENS, **GREEDY)
    table, counted = plan_of(model).schedule, stream(model).counters
    runs = 1 + 5  # a prompt, and a token less than were made: the first comes with the prompt
    assert table.read == sum(table.sizes.values()), "the least recently used is what comes next"
    assert {counted.loads[name] for name in table.sizes} <= {runs, runs + 1}
    assert counted.bytes_read >= runs * table.read
    assert 0 < stream(model).resident.peak <= table.room


def test_what_fits_is_read_once(path: Path) -> None:
    model = ptir.load_model(path, backend=REF, device_memory="1GiB")
    model.generate(TOKENS, **GREEDY)
    model.generate(TOKENS, **GREEDY)
    assert {*stream(model).counters.loads.values()} == {1}


def test_without_a_budget_there_is_no_streamed_plan(path: Path) -> None:
    model = ptir.load_model(path, backend=REF)
    model.generate(TOKENS, **GREEDY)
    assert model.store.streamed is None
    assert not isinstance(model.steps.advance(1, 64).plans[-1], StreamedPlan)


def test_a_level_3_backend_gets_pieces(path: Path) -> None:
    where = whole()
    backend: Any = where.backend
    model = ptir.load_model(path, backend=where, device_memory="600KiB")
    model.forward(TOKENS)
    model.generate(TOKENS, **GREEDY)
    table = plan_of(model).schedule
    assert len(table.stages) > 3
    assert max(backend.compiled) < len(plan_of(model).optimized.main.instructions) / 2


def test_the_smallest_budget_is_named_and_works(path: Path) -> None:
    def run(budget: int) -> list[int]:
        model = ptir.load_model(path, backend=REF, device_memory=budget)
        return model.generate(TOKENS, **GREEDY).token_ids

    with pytest.raises(UsageError, match=r"give --device-memory [0-9]+ or more") as caught:
        run(190_000)
    named = int(str(caught.value).partition("give --device-memory ")[2].partition(" ")[0])
    assert run(named) == ptir.load_model(path, backend=REF).generate(TOKENS, **GREEDY).token_ids
    with pytest.raises(UsageError, match=f"give --device-memory {named} or more"):
        run(named - 1)


def test_a_budget_below_the_cache_is_refused_before_anything_is_read(path: Path) -> None:
    model = ptir.load_model(path, backend=REF, device_memory=90_000)
    with pytest.raises(UsageError, match=r"the state of 64 tokens .* has 98304 bytes"):
        model.generate(TOKENS, **GREEDY)
    assert model.store.source.counters.bytes_read == 0


@pytest.mark.parametrize("given", ["0", "-1", "lots"])
def test_the_command_line_refuses_what_is_no_budget(command: Command, given: str) -> None:
    arguments = ("--tokens", "1", "--backend", "ref", f"--device-memory={given}")
    done = command("run", "random:llama-tiny", *arguments)
    assert done.code == 2
    assert f"device memory '{given}'" in done.err
    assert not done.out


def test_the_command_line_runs_and_explains(command: Command) -> None:
    arguments = ("random:llama-tiny", "--backend", "ref", "--json")
    run = ("--tokens", "1,2,3", "-n", "4", "--temp", "0")
    budget = ("--device-memory", "600KiB")
    plain = command("run", *arguments, *run).value
    value = command("run", *arguments, *run, *budget).value
    assert value["token_ids"] == plain["token_ids"]
    assert value["formats"]["device_memory"] == "600KiB"
    assert "device_memory" not in plain["formats"]
    streamed = command("explain", *arguments, "--position", "8", *budget).value["streamed"]
    assert streamed["budget_bytes"] == 600 << 10
    assert streamed["resident_bytes_at_most"] <= streamed["room_bytes"] < 600 << 10
    assert len(streamed["stages"]) > 2
    assert {*streamed["fetches"]} == {*streamed["bytes"]}
    said = command("run", "random:llama-tiny", "--backend", "ref", *run, *budget).err
    assert "of weights fetched, at most" in said


def test_a_run_that_fails_leaves_nothing_half_fetched(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ptir.load_model(path, backend=REF, device_memory="600KiB")
    wanted = model.forward(TOKENS)

    def failing(*given: Any) -> Any:
        raise DeviceError("the third fetch fails")

    with monkeypatch.context() as patch:
        patch.setattr(RefBackend, "prefetch", failing)
        stream(model).drop_all()
        with pytest.raises(DeviceError, match="third"):
            model.forward(TOKENS)
    assert stream(model).resident.nbytes == 0
    np.testing.assert_array_equal(model.forward(TOKENS), wanted)


def test_where_nothing_can_be_written_that_is_said(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    model = ptir.load_model(path, backend=REF, device_memory="800KiB")
    with pytest.raises(UsageError, match=r"cannot be written to the cache.* with room$"):
        model.forward(TOKENS)


def test_where_a_limit_keeps_it_from_being_written_that_is_said(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_WEIGHTS_LIMIT", "4KiB")
    model = ptir.load_model(path, backend=REF, device_memory="800KiB")
    with pytest.raises(UsageError, match=r"and raise PTIR_WEIGHTS_LIMIT, which is 4 KiB$"):
        model.forward(TOKENS)


@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.3, "top_k": 20}], ids=str)
def test_tokens_that_are_drawn_are_the_same(path: Path, more: dict[str, Any]) -> None:
    how: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "temperature": 1.5, "seed": 5}
    plain = ptir.load_model(path, backend=REF).generate(TOKENS, **how, **more)
    model = ptir.load_model(path, backend=REF, device_memory="600KiB")
    assert model.generate(TOKENS, **how, **more).token_ids == plain.token_ids


def test_speculation_gives_the_same_tokens_under_a_budget(path: Path) -> None:
    how: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "speculate": "lookup"}
    prompt = [1, 2, 3, 4, 5, 1, 2, 3, 4]
    for sampling in ({"temperature": 0}, {"temperature": 0.9, "seed": 3}):
        plain = ptir.load_model(path, backend=REF).generate(prompt, **how, **sampling)
        model = ptir.load_model(path, backend=REF, device_memory="600KiB")
        assert model.generate(prompt, **how, **sampling).token_ids == plain.token_ids


def test_indices_are_checked_under_a_budget_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTIR_CHECK_INDICES", "1")
    model = ptir.load_model(path, backend=REF, device_memory="600KiB")
    plain = ptir.load_model(path, backend=REF)
    np.testing.assert_array_equal(model.forward(TOKENS), plain.forward(TOKENS))


def test_options_that_stream_are_a_plan_of_their_own() -> None:
    assert Options() != replace(Options(), staged=True)
