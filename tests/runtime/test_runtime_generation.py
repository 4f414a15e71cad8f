"""Generation: the recorded tokens of an independent implementation, caches, batches, chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptir.errors import UsageError
from ptir.runtime import load_model, steps
from ptir.runtime.handle import padded_length
from ptir.runtime.session import Session, capacity_for
from ptir.runtime.steps import CHUNKS, chunk_sizes
from running import CASES, REF, assert_close, model, small

PROMPTS = [[7, 3, 88], [5], [int(i) for i in np.random.default_rng(0).integers(0, 97, 22)]]


def greedy_by_forward(loaded: Any, prompt: list[int], count: int) -> list[int]:
    """The greedy continuation, computed anew from the whole sequence for each token."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(loaded.forward(ids)[-1].argmax()))
    return ids[len(prompt) :]


def session_for(loaded: Any, rows: int, needed: int) -> Session:
    return Session.of(loaded, rows, needed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["prompt"])
def test_greedy_tokens_and_logits_are_those_of_the_outside_witness(case: dict[str, Any]) -> None:
    found = model().generate(case["prompt"], max_tokens=64)
    assert found.prompt_ids == case["prompt_ids"]
    assert found.token_ids == case["greedy_ids"]
    assert found.text == case["greedy_text"]
    assert found.finish_reason == "length"
    logits = model().forward(case["prompt"])
    for token, value in case["last_logits_top5"]:
        assert abs(logits[-1, token] - value) <= 1e-3
    assert np.abs(logits).mean() == pytest.approx(case["logits_abs_mean"], rel=1e-4)


def test_batch_of_the_recorded_prompts_gives_each_its_own_tokens() -> None:
    found = model().generate_batch([case["prompt"] for case in CASES], max_tokens=64)
    assert [one.token_ids for one in found] == [case["greedy_ids"] for case in CASES]


def test_cached_decoding_equals_uncached(tmp_path: Path) -> None:
    loaded = small(tmp_path)
    run = loaded.generate(PROMPTS[0], max_tokens=37, logprobs=97)
    assert run.token_ids == greedy_by_forward(loaded, PROMPTS[0], 37)
    whole = loaded.forward(PROMPTS[0] + run.token_ids).astype(np.float64)
    expected = whole - np.log(np.exp(whole).sum(axis=-1, keepdims=True))
    for position, entry in enumerate(run.logprobs or (), len(PROMPTS[0]) - 1):
        values = np.empty(97)
        for token, value in entry["top"]:
            values[token] = value
        assert_close(values, expected[position])


def test_rows_of_unequal_length_equal_single_runs_up_to_the_end_of_the_context(
    tmp_path: Path,
) -> None:
    loaded = small(tmp_path)
    prompts = [*PROMPTS, list(range(39)), list(range(40, 71))]
    batch = loaded.generate_batch(prompts, logprobs=5)
    assert [len(one.token_ids) for one in batch] == [37, 39, 18, 1, 9]
    for prompt, together in zip(prompts, batch, strict=True):
        alone = loaded.generate(prompt, logprobs=5)
        assert together.token_ids == alone.token_ids
        ours = [entry["logprob"] for entry in together.logprobs or ()]
        assert_close(ours, [entry["logprob"] for entry in alone.logprobs or ()])


def test_finished_rows_leave_the_others_alone(tmp_path: Path) -> None:
    loaded = small(tmp_path)
    alone = loaded.generate(PROMPTS[1], max_tokens=12).token_ids
    run = loaded.run([list(range(35)), PROMPTS[1]], max_tokens=5)
    run._limits[1] = 12
    assert [piece.row for piece in run] == [0, 1] * 5 + [1] * 7
    assert run.results[1].token_ids == alone


def test_prompt_in_chunks_equals_the_prompt_in_one_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = small(tmp_path)
    expected = np.stack([loaded.forward(prompt)[-1] for prompt in PROMPTS])
    assert_close(session_for(loaded, 3, 24).prefill(PROMPTS), expected)
    monkeypatch.setattr(steps, "CHUNKS", (4,))
    reports: list[tuple[int, int]] = []
    chunked = session_for(loaded, 3, 24)
    assert_close(chunked.prefill(PROMPTS, lambda *report: reports.append(report)), expected)
    assert reports == [(4, 22), (8, 22), (12, 22), (16, 22), (20, 22), (22, 22)]


def test_prompt_longer_than_the_largest_chunk_continues_like_the_whole(tmp_path: Path) -> None:
    loaded = small(tmp_path, n_positions=700)
    prompt = [int(i) for i in np.random.default_rng(1).integers(0, 97, 600)]
    assert len(chunk_sizes(600)) == 2
    found = loaded.generate(prompt, max_tokens=4)
    assert found.token_ids == greedy_by_forward(loaded, prompt, 4)


def test_chunks_cover_the_prompt_and_waste_less_than_they_compute() -> None:
    for length in range(1, 2000):
        chunks = chunk_sizes(length)
        assert sum(real for _, real in chunks) == length
        assert all(size in CHUNKS and real <= size for size, real in chunks)
        assert all(real == size for size, real in chunks[:-1])
        assert sum(size for size, _ in chunks) < max(2 * length, CHUNKS[0] + 1)


@pytest.mark.parametrize(
    ("needed", "context", "capacity"),
    [(1, 40, 40), (1, 256, 64), (65, 256, 128), (200, 256, 256), (5000, 1 << 17, 8192)],
)
def test_capacity_holds_what_is_needed_within_the_context(
    needed: int, context: int, capacity: int
) -> None:
    assert capacity_for(needed, context) == capacity


def test_few_programs_serve_prompts_of_any_length(tmp_path: Path) -> None:
    loaded = small(tmp_path)
    for length in range(1, 40):
        loaded.forward(list(range(length)))
        loaded.generate(list(range(length)), max_tokens=1)
    assert loaded._every.signatures == len({padded_length(n, 40) for n in range(1, 40)}) == 4
    jitted = loaded.steps._jitted
    assert sorted(jitted) == [("_extend", 1, 40)]
    assert jitted["_extend", 1, 40].signatures == len({8, 32})


def test_forward_of_rows_equals_forward_of_each(tmp_path: Path) -> None:
    loaded = small(tmp_path)
    rows = np.arange(26).reshape(2, 13)
    both = loaded.forward(rows)
    assert both.shape == (2, 13, 97)
    for row, logits in zip(rows, both, strict=True):
        assert_close(loaded.forward(row), logits)


def test_trace_holds_every_layer_and_the_same_logits(tmp_path: Path) -> None:
    loaded = small(tmp_path)
    found = loaded.trace(PROMPTS[0])
    assert {"wte", "h.0.ln_1", "h.1.attn.c_attn", "h.1.mlp", "ln_f", "logits"} <= set(found)
    assert found["h.0"].shape == (1, 3, 32)
    assert_close(found["logits"][0], loaded.forward(PROMPTS[0]))


def test_decoding_uploads_nothing_but_the_first_count(tmp_path: Path) -> None:
    loaded = small(tmp_path)
    loaded.generate([1], max_tokens=3)
    session = session_for(loaded, 1, 16)
    session.pick(session.prefill([[1]]))
    session.advance(np.array([True]))
    before = REF.backend.stats(REF.device).bytes_uploaded
    session.advance(np.array([True]))
    assert REF.backend.stats(REF.device).bytes_uploaded == before


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes the reference a device that works by itself; says what was queued and waited for."""
    log: list[str] = []
    backend, queue = REF.backend, Session._queue

    def fetch(handle: Any, device: Any) -> Any:
        values = backend.download(handle, device)
        return lambda: (log.append("wait"), values)[1]

    def queued(self: Session, *given: Any) -> Any:
        log.append("queue")
        return queue(self, *given)

    monkeypatch.setattr(backend, "fetch", fetch)
    monkeypatch.setattr(Session, "_queue", queued)
    return log


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 4}])
def test_the_next_step_is_queued_before_tokens_are_waited_for(
    tmp_path: Path, fetches: list[str], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    loaded = small(tmp_path)
    found = loaded.generate_batch(PROMPTS, max_tokens=6, **options)
    assert fetches == ["queue", *["queue", "wait"] * 4, "wait"]  # as many steps as are needed
    monkeypatch.setattr(REF.backend, "fetch", lambda handle, device: None)
    for one, other in zip(
        found, loaded.generate_batch(PROMPTS, max_tokens=6, **options), strict=True
    ):
        assert one.token_ids == other.token_ids


def test_rows_that_end_leave_while_looking_ahead(
    tmp_path: Path, fetches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = small(tmp_path)
    alone = [loaded.generate(prompt, max_tokens=12) for prompt in PROMPTS]
    first = alone[0].token_ids
    ending = next(token for token in first[2:] if token not in first[:2])
    monkeypatch.setattr(type(loaded), "eos_ids", (ending,))
    ended = loaded.generate_batch(PROMPTS, max_tokens=12)
    assert ended[0].finish_reason == "stop" and len(ended[0].token_ids) >= 2
    for one, other in zip(ended, alone, strict=True):
        assert one.token_ids == other.token_ids[: len(one.token_ids)]
    assert max(len(one.token_ids) for one in ended) == 12


@pytest.mark.parametrize("options", [{"logprobs": 2}, {"repetition_penalty": 1.3}])
def test_what_needs_the_tokens_on_the_host_does_not_look_ahead(
    tmp_path: Path, fetches: list[str], options: dict[str, Any]
) -> None:
    small(tmp_path).generate(PROMPTS[0], max_tokens=4, **options)
    assert fetches == ["queue", "wait"] * 3


def test_a_row_cannot_come_back_into_a_step_looked_ahead_to(
    tmp_path: Path, fetches: list[str]
) -> None:
    session = session_for(small(tmp_path), 2, 16)
    session.pick(session.prefill([[1], [2]]))
    session.advance(np.array([True, False]), ahead=1)
    with pytest.raises(
        UsageError, match=r"advance of rows \[0, 1\].*submitted ahead, for rows \[0\]"
    ):
        session.advance(np.array([True, True]))


@pytest.mark.parametrize(("dtype", "digits"), [("f16", 11), ("bf16", 8)])
def test_a_narrow_cache_takes_half_the_bytes_and_rounds_only_what_is_in_it(
    dtype: str, digits: int
) -> None:
    wide = model()
    narrow = load_model("demo", backend=REF, cache_dtype=dtype)
    pairs = zip(narrow.state_types(2, 64), wide.state_types(2, 64), strict=True)
    assert all(2 * a.nbytes == b.nbytes for p, q in pairs for a, b in zip(p, q, strict=True))
    case = CASES[0]
    logits = narrow.forward(case["prompt"])
    off = np.abs(logits - wide.forward(case["prompt"])).max() / np.abs(logits).max()
    assert 0 < off < 2.0 ** (2 - digits)
    found = narrow.generate(case["prompt"], max_tokens=32)
    assert found.token_ids == case["greedy_ids"][:32]


def test_an_unknown_cache_dtype_is_named() -> None:
    with pytest.raises(UsageError, match=r"unknown cache dtype 'i8'.*bf16"):
        load_model("demo", backend=REF, cache_dtype="i8")
