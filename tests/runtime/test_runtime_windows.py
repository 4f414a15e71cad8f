"""Layers with a window keep what it sees: the same tokens as with whole caches, in less memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptir
from chat_models import CHATML
from proposals import PROPOSALS, Told
from ptir.checkpoint import save_folder
from ptir.cli.explain import _title
from ptir.errors import UsageError
from ptir.models.table import preset
from ptir.nn.state import ROOM as USUAL
from ptir.nn.state import KeysValues, WindowKeysValues
from ptir.runtime import Model
from ptir.runtime.chat import Conversation
from ptir.runtime.explain import explain_decode
from ptir.runtime.session import WIDTHS
from ptir.runtime.session_state import SessionState
from ptir.runtime.specs import random_checkpoint
from ptir.runtime.speculation import Payoff
from ptir.runtime.steps import CHUNKS, chunk_sizes
from running import REF
from window_models import (
    GREEDY,
    MODELS,
    ROOM,
    attended_in_steps,
    firsts,
    follow,
    sliding,
    texts,
    with_room,
)

WINDOW = 24


@pytest.fixture(scope="module")
def model() -> Model:
    return sliding("gemma3-tiny", REF)


def continued(
    model: Model, state: SessionState, prompt: list[int], count: int = 4, **options: Any
) -> Any:
    run = model.run([prompt], max_tokens=count, state=state, **{**GREEDY, **options})
    for _ in run:
        pass
    return run.results[0]


def nbytes(state: SessionState) -> list[int]:
    """Of the tensors that each layer has, by what they really are."""
    return [sum(one.numpy().nbytes for one in tensors) for tensors in state.tensors]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_attention_over_a_cache_that_slides_is_attention_over_everything(dtype: str) -> None:
    attended_in_steps(REF, dtype)


@pytest.mark.slice(1)
@pytest.mark.parametrize("name", MODELS)
def test_ragged_rows_several_windows_long_equal_each_row_at_once(name: str) -> None:
    model = sliding(name, REF)
    assert any(isinstance(state, WindowKeysValues) for state in model.states())
    prompts = texts(model, (100, 3, 41))
    state = model.new_state(3, 256)
    options = {"temperature": 1.0, "seed": 7, "ignore_eos": True}
    run = model.run(prompts, max_tokens=24, logprobs=1, state=state, **options)
    for _ in run:
        pass
    for prompt, found in zip(prompts, run.results, strict=True):
        follow(model, prompt, found, greedy=False)
    assert len({token for found in run.results for token in found.token_ids}) > 20
    assert min(map(min, firsts(state)[::2])) > 0  # the longer rows have slid


@pytest.mark.slice(1)
@pytest.mark.parametrize("cuts", [(7, 1, 30, 2, 60), (64, 36)])
def test_a_prompt_in_any_pieces_is_the_whole_prompt(model: Model, cuts: Sequence[int]) -> None:
    (prompt,) = texts(model, (100,))
    state = model.new_state(1, 16)
    for end in np.cumsum(cuts).tolist():
        found = continued(model, state, prompt[:end], 12, logprobs=1)
        follow(model, prompt[:end], found)
    assert firsts(state)[0][0] > 100 - WINDOW - ROOM


def test_no_piece_of_a_prompt_is_larger_than_the_room() -> None:
    for most in (8, 20, 512):
        for length in (1, 7, 8, 33, 700):
            pieces = chunk_sizes(length, most)
            assert sum(real for _, real in pieces) == length
            assert all(real <= size <= most and size in CHUNKS for size, real in pieces)
    assert chunk_sizes(700, USUAL) == chunk_sizes(700)


@pytest.mark.slice(2)
@pytest.mark.parametrize("how", PROPOSALS)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.2, "seed": 4}])
def test_proposals_over_the_edge_of_a_cache_leave_the_tokens_alone(
    model: Model, how: str, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of all widths take in more than stays, while caches slide."""
    widths = cycle((1, *WIDTHS))
    monkeypatch.setattr(Payoff, "width", lambda self: next(widths))
    (prompt,) = texts(model, (40,))
    state, options = model.new_state(1, 256), {"max_tokens": 40, **GREEDY, **sampling}
    wanted = model.generate(prompt, **options)
    run = model.run([prompt], state=state, **options)
    run._proposer = Told([*prompt, *wanted.token_ids], PROPOSALS[how])
    for _ in run:
        pass
    assert run.results[0].token_ids == wanted.token_ids
    assert run.stats.proposed_tokens > 12
    assert firsts(state)[0][0] > 30
    follow(
        model, [*prompt, *wanted.token_ids], continued(model, state, [*prompt, *wanted.token_ids])
    )


def test_a_state_goes_back_as_far_as_the_cache_reaches(model: Model) -> None:
    (prompt,) = texts(model, (120,))
    state = model.new_state(1, 256)
    continued(model, state, prompt)
    ((first, *_),) = firsts(state)
    reach = first + WINDOW - 1
    assert 0 < 120 - reach < ROOM
    state._marks.clear()
    assert state.rewind([reach]).tolist() == [reach]
    other = [*prompt[:reach], 5, 6, 7]
    found = continued(model, state, other)
    assert found.stats.cached_tokens == reach
    follow(model, other, found)
    ((first, *_),) = firsts(state)
    state._marks.clear()
    assert state.rewind([first + WINDOW - 2]).tolist() == [0]
    assert firsts(state) == [[0] * 2]
    follow(model, other, continued(model, state, other))


def test_what_windows_saw_at_the_last_mark_is_kept_when_caches_slide_beyond_it(
    model: Model,
) -> None:
    (prompt,) = texts(model, (90,))
    state = model.new_state(1, 256)
    continued(model, state, prompt[:50])
    assert [mark.firsts for mark in state._marks] == [None]  # no copy where none is needed
    continued(model, state, prompt, 60)
    assert [mark.firsts is None for mark in state._marks] == [True, False]
    turned = [*prompt, 4, 4]
    found = continued(model, state, turned, 30)
    assert found.stats.cached_tokens == len(prompt)
    follow(model, turned, found)
    # Of an earlier mark nothing is left, so what comes before the last one begins anew.
    other = [*prompt[:60], 9]
    found = continued(model, state, other)
    assert found.stats.cached_tokens == 0
    follow(model, other, found)


@pytest.mark.parametrize("length", [86, 87, 91])
def test_a_text_goes_on_anew_from_its_last_token_wherever_caches_slid(
    model: Model, length: int
) -> None:
    (prompt,) = texts(model, (length,))
    state = model.new_state(1, 256)
    continued(model, state, prompt, 60)
    found = continued(model, state, prompt)
    assert found.stats.cached_tokens == length - 1
    follow(model, prompt, found)


def test_what_was_kept_of_an_answer_is_not_taken_for_what_came_in_its_place(model: Model) -> None:
    (prompt,) = texts(model, (90,))
    state = model.new_state(1, 256)
    continued(model, state, prompt, 60)  # the copy at 90 holds tokens of this answer
    continued(model, state, [*prompt, 4, 4, *prompt[:50]])
    other = [*prompt, 4, 4, 7]
    found = continued(model, state, other)
    assert found.stats.cached_tokens == 90
    follow(model, other, found)


def test_a_mark_whose_windows_are_lost_leads_nowhere_also_once_it_is_the_last(
    model: Model,
) -> None:
    (prompt,) = texts(model, (86,))
    state = model.new_state(1, 256)
    continued(model, state, prompt[:20])
    continued(model, state, prompt, 60)  # the mark at 86 has the windows now
    continued(model, state, [*prompt, 4, 4], 1)
    assert continued(model, state, [*prompt[:84], *prompt[:60]]).stats.cached_tokens == 84
    assert [mark.positions.tolist() for mark in state._marks] == [[20], [144]]
    other = [*prompt[:30], 9]
    found = continued(model, state, other)
    assert found.stats.cached_tokens == 0
    follow(model, other, found)


def test_rows_go_back_each_by_itself(model: Model) -> None:
    rows = texts(model, (100, 60))
    state = model.new_state(2, 256)

    def answers(prompts: list[list[int]], count: int) -> Any:
        run = model.run(prompts, max_tokens=count, state=state, **GREEDY)
        for _ in run:
            pass
        for prompt, found in zip(prompts, run.results, strict=True):
            follow(model, prompt, found)
        return run

    answers(rows, 40)
    run = answers([[*rows[0], 1, 2], [*rows[1][:20], 3]], 12)
    assert run.stats.cached_tokens == 100  # of the first; the other began anew
    run = answers([[*rows[0], 1, 2, 8], [*rows[1][:20], 3, 8]], 12)
    assert run.stats.cached_tokens == 102 + 21


def test_the_bytes_of_a_state_stop_growing_where_a_window_ends(model: Model) -> None:
    state = model.new_state(1, 16)
    before = nbytes(state)
    sizes = []
    for length in (30, 60, 120, 200):
        continued(model, state, texts(model, (length,))[0])
        sizes.append(nbytes(state))
    windows = [sized[::2] for sized in sizes]  # every second layer has none
    assert before[0] < windows[0][0] == windows[-1][0] == windows[-1][1]
    assert windows[0] == windows[-1]
    (config,) = (model.module.config,)
    each = 2 * 4 * config.num_key_value_heads * config.head_dim
    assert windows[-1][0] == each * (WINDOW + ROOM) + 4
    assert [sized[1] for sized in sizes] == [each * 64, each * 64, each * 128, each * 256]


def test_a_context_of_any_length_takes_what_a_window_does_and_swa_full_takes_all() -> None:
    found, full = (
        ptir.load_model("random:gemma3-270m", backend=REF, swa_full=swa_full)
        for swa_full in (False, True)
    )

    def nbytes(model: Model, capacity: int, dtype: str = "f32") -> int:
        states = model.states()
        types = [state.types(1, capacity, ptir.types.dtype(dtype)) for state in states]
        return sum(one.nbytes for layer in types for one in layer)

    position = 2 * 256 * 4
    assert nbytes(full, 32768) == 18 * 32768 * position
    assert nbytes(found, 32768) == (3 * 32768 + 15 * 1024) * position + 15 * 4
    assert nbytes(found, 32768) - nbytes(found, 4096) == 3 * 28672 * position
    assert nbytes(found, 512) == nbytes(full, 512) + 15 * 4
    assert nbytes(found, 32768, "bf16") - 15 * 4 == (nbytes(found, 32768) - 15 * 4) // 2


def test_only_where_it_saves_memory_and_loses_nothing_is_a_window_kept() -> None:
    def states(name: str, **changed: Any) -> set[type]:
        definition, config = preset(name)
        built = definition.build({**definition.defaults, **config, **changed})
        return {type(state) for state in built.states()}

    assert states("starcoder2-3b", num_hidden_layers=1) == {WindowKeysValues}
    assert states("mistral-7b", num_hidden_layers=1) == {
        KeysValues
    }  # of version 0.3, which has none
    # What a long text rotates by is chosen by the room that its cache has.
    assert states("phi3-tiny") == {KeysValues}
    # A context that a window and its room cover is kept whole.
    short = ptir.load_model("random:gemma3-tiny", backend=REF)
    assert {type(state) for state in short.states()} == {KeysValues}
    assert {type(state) for state in short.module.states()} == {KeysValues, WindowKeysValues}


def test_caches_of_16_bits_slide_as_others_do() -> None:
    found, full = (
        sliding("gemma3-tiny", REF, cache_dtype="bf16", swa_full=swa_full)
        for swa_full in (False, True)
    )
    prompts = texts(found, (70, 12))
    results = [
        [one.token_ids for one in model.generate_batch(prompts, max_tokens=40, **GREEDY)]
        for model in (found, full)
    ]
    assert results[0] == results[1]


def test_a_step_over_more_than_the_room_is_refused_before_anything_moves(model: Model) -> None:
    state = model.new_state(1, 256)
    continued(model, state, texts(model, (60,))[0])
    before = firsts(state)
    with pytest.raises(UsageError, match=r"a step over 9 tokens: .* window of 24 has room for 8"):
        state.reserve(np.array([9]))
    assert firsts(state) == before


def test_a_budget_counts_what_windows_keep_and_slides_run_in_it() -> None:
    plain = sliding("gemma3-tiny", REF)
    (prompt,) = texts(plain, (100,))
    options = {"max_tokens": 20, **GREEDY}
    budgeted = sliding("gemma3-tiny", REF, device_memory="700KiB")
    assert (
        budgeted.generate(prompt, **options).token_ids
        == plain.generate(prompt, **options).token_ids
    )


def test_explain_says_which_layers_keep_a_window_and_times_their_steps_alone() -> None:
    model = sliding("gemma3-tiny", REF)
    report = explain_decode(model, 90, 12)
    assert report.windows == {WINDOW + ROOM: 2}
    title = "random:gemma3-tiny f32: decode, one token at position 90, cache of 128, 32 in 2 layers"
    assert _title(model, "f32", report) == f"{title} with a window"
    assert explain_decode(model, 8, 1).windows == {WINDOW + ROOM: 2}
    assert explain_decode(sliding("gemma3-tiny", REF, swa_full=True), 90, 1).windows == {}


def test_a_talk_several_windows_long_computes_new_tokens_only(tmp_path: Path) -> None:
    """Answers longer than the room behind a window, and one that is asked for again."""
    folder = save_folder(random_checkpoint("gemma3-tiny", 3), tmp_path / "m")
    file = folder / "tokenizer_config.json"
    said = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps({**said, "chat_template": CHATML}), encoding="utf-8")
    talks: list[list[str]] = []
    for swa_full in (False, True):
        model = with_room(ptir.load_model(folder, backend=REF, swa_full=swa_full))
        talk = Conversation(model, max_tokens=20, **GREEDY)
        answers = [talk.ask(text) for text in ("Who is there?", "And then?", "Why?")]
        answers.append(talk.regenerate(seed=2, temperature=0.9).finished())
        talks.append([one.text for one in answers])
        kept = [one.stats.cached_tokens for one in answers]
        new = [one.stats.prompt_tokens - one.stats.cached_tokens for one in answers]
        assert kept == sorted(kept) and kept[1] > 0
        assert max(new[1:]) < 80 < 180 < answers[-1].stats.prompt_tokens and new[3] == 1
    assert talks[0] == talks[1]
    assert len(set(talks[0])) == 4
