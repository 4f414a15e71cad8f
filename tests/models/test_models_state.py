"""A made-up state, in this file alone: sessions hold, rewind and enlarge what they know nothing of.

The model has a layer that forgets by half with every token, attention with a cache, and a layer
that reads that one's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ptir
from ptir import functional as F
from ptir.capture.tensor import Tensor
from ptir.errors import UsageError
from ptir.models.table import MODELS, ModelDefinition, define_model
from ptir.nn import Embedding, Linear, Module, cached_attention, last_rows
from ptir.nn.state import Carried, KeysValues, LayerState, Recurrent, SharedState, State
from ptir.runtime import Model
from ptir.runtime.session_state import MARKS, SessionState
from running import REF

WIDTH, HEADS, VOCABULARY, KEPT = 8, 2, 61, 0.5
LARGER = 40.0
"""Random weights are small; what the layers add must matter for the next token."""
CONFIG = {"model_type": "made-up", "vocab_size": VOCABULARY, "n_positions": 96}
PROMPT = [3, 7, 60, 1, 0, 22, 9, 14, 14, 2, 31]


def faded(x: Tensor, past: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the past and of x f32[B,T,D] that halves with every token, and the next past."""
    length = x.shape[1]
    steps = np.arange(length)
    since = steps[:, None] - steps
    within = np.where(since >= 0, KEPT ** np.maximum(since, 0), 0.0).astype(np.float32)
    before = F.constant([KEPT ** (n + 1) for n in range(length)]).reshape(1, length, 1)
    sums = F.constant(within.ravel().tolist()).reshape(length, length) @ x + before * past.reshape(
        -1, 1, x.shape[2]
    )
    age = count.reshape(-1, 1) - 1 - F.arange(length).reshape(1, length)
    real = age >= 0
    weights = F.where(real, F.exp(F.where(real, age, 0).astype("f32") * np.log(KEPT)), 0.0)
    added = (weights.reshape(-1, length, 1) * x).sum(1)
    left = F.exp(count.astype("f32") * np.log(KEPT)).reshape(-1, 1) * past
    return sums, F.where(count.reshape(-1, 1) > 0, left + added, past)


class MadeUp(Module):
    """Three layers with a state of each kind."""

    def __init__(self, config: Any) -> None:
        self.embed = Embedding(VOCABULARY, WIDTH)
        self.qkv = Linear(WIDTH, 3 * WIDTH)
        self.query = Linear(WIDTH, WIDTH)
        self.head = Linear(WIDTH, VOCABULARY, bias=False)

    def states(self) -> tuple[LayerState, ...]:
        return (
            Recurrent((Carried("past", (WIDTH,)),)),
            KeysValues(HEADS, WIDTH // HEADS),
            SharedState(1),
        )

    def __call__(
        self, tokens: Tensor, state: State, start: Tensor, count: Tensor, *, every: bool = False
    ) -> tuple[Tensor, State]:
        batch, length = tokens.shape
        (past,), cache, _ = state
        x, past = faded(LARGER * self.embed(tokens), past, count)
        fused = (LARGER * self.qkv(x)).reshape(batch, length, 3, HEADS, -1)
        q, k, v = (fused[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        seen, cache = cached_attention(q, k, v, cache, start, count)
        x = x + seen.transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
        q = (LARGER * self.query(x)).reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3)
        seen = F.attention(q, *cache, start=start, length=start + count)
        x = x + seen.transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
        return self.head(x if every else last_rows(x, count)), ((past,), cache, ())


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    define_model(
        ModelDefinition(
            "made-up",
            build=MadeUp,
            context=lambda config: config["n_positions"],
            presets={"made-up": CONFIG},
        )
    )
    yield ptir.load_model("random:made-up", backend=REF, seed=12)
    del MODELS["made-up"]


def greedy(model: Model, prompt: list[int], count: int) -> list[int]:
    """The continuation, every token from the whole sequence at once."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model.forward(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def continued(model: Model, state: SessionState, prompt: list[int], count: int = 6) -> Any:
    run = model.run([prompt], max_tokens=count, ignore_eos=True, state=state)
    for _ in run:
        pass
    return run.results[0]


def test_ragged_rows_and_prompts_in_chunks_equal_each_row_at_once(model: Model) -> None:
    prompts = [PROMPT, [5], PROMPT * 4]
    found = model.generate_batch(prompts, max_tokens=12, ignore_eos=True)
    assert [one.token_ids for one in found] == [greedy(model, prompt, 12) for prompt in prompts]
    assert len({t for one in found for t in one.token_ids}) > 6


def test_only_what_is_kept_for_each_position_is_narrowed() -> None:
    states = MadeUp(CONFIG).states()
    types = [state.types(2, 16, ptir.types.dtype("bf16")) for state in states]
    names = [[str(one) for one in row] for row in types]
    assert names == [["f32[2,8]"], ["bf16[2,2,16,4]"] * 2, []]


def test_a_state_that_is_continued_computes_new_tokens_only(model: Model) -> None:
    state = model.new_state(1, 64)
    first = continued(model, state, PROMPT)
    longer = [*PROMPT, *first.token_ids, 8, 9]
    second = continued(model, state, longer)
    assert second.token_ids == greedy(model, longer, 6)
    # The answer may have run ahead of what was asked: the way back goes to the end of the prompt.
    assert second.stats.cached_tokens >= len(PROMPT)
    assert second.stats.prompt_tokens == len(longer)


def test_another_way_on_from_the_middle_begins_at_the_last_mark_before_it(model: Model) -> None:
    state = model.new_state(1, 64)
    continued(model, state, PROMPT)
    longer = [*PROMPT, 50, 51, 52]
    continued(model, state, longer)
    turned = [*longer[:-1], 4, 4]
    found = continued(model, state, turned)
    assert (found.token_ids, found.stats.cached_tokens) == (greedy(model, turned, 6), len(PROMPT))
    other = [9, 9, 9]
    found = continued(model, state, other)
    assert (found.token_ids, found.stats.cached_tokens) == (greedy(model, other, 6), 0)


def test_the_same_texts_again_are_not_computed_again(model: Model) -> None:
    """There is no way back by one token, so the logits behind the last one are kept."""
    rows = [PROMPT, PROMPT[:3]]
    for prompts in (rows[:1], rows):
        state, found = model.new_state(len(prompts), 64), []
        for seed, count in ((1, 6), (2, 6), (2, 1), (2, 6), (3, 6)):
            given = {"max_tokens": count, "ignore_eos": True, "temperature": 1.0, "seed": seed}
            run = model.run(prompts, state=state, **given)
            assert len({piece.token_id for piece in run}) > 0
            wanted = model.generate_batch(prompts, **given)
            assert [one.token_ids for one in run.results] == [one.token_ids for one in wanted]
            found.append(run.stats.cached_tokens)
        assert found == [0, *[sum(map(len, prompts))] * 4]
    assert len(state._marks) == 1  # those before it would be lost
    run = model.run([PROMPT, [*PROMPT[:3], 9]], max_tokens=6, ignore_eos=True, state=state)
    assert len(list(run)) == 12 and run.stats.cached_tokens == 3
    assert run.results[0].token_ids == greedy(model, PROMPT, 6)


def test_a_state_grows_with_what_it_is_to_hold(model: Model) -> None:
    state = model.new_state(1, 16)
    continued(model, state, PROMPT, 3)
    longer = [*PROMPT, *PROMPT, *PROMPT]
    found = continued(model, state, longer)
    assert state.capacity == 64
    assert (found.token_ids, found.stats.cached_tokens) == (greedy(model, longer, 6), len(PROMPT))


def test_rows_of_a_batch_go_back_each_by_itself(model: Model) -> None:
    state = model.new_state(2, 64)
    rows = [PROMPT, PROMPT[::-1]]
    for _ in model.run(rows, max_tokens=4, ignore_eos=True, state=state):
        pass
    changed = [[*rows[0], 1, 2], [*rows[1][:4], 33]]
    run = model.run(changed, max_tokens=4, ignore_eos=True, state=state)
    for _ in run:
        pass
    assert [one.token_ids for one in run.results] == [greedy(model, row, 4) for row in changed]
    assert run.stats.cached_tokens == len(PROMPT)  # of the first; the other began anew


def test_few_copies_are_kept(model: Model) -> None:
    state = model.new_state(1, 64)
    prompt = list(PROMPT)
    for step in range(MARKS + 3):
        prompt.append(step)
        continued(model, state, prompt, 1)
    found = continued(model, state, PROMPT[:5])
    assert (found.stats.cached_tokens, found.token_ids) == (0, greedy(model, PROMPT[:5], 6))


def test_a_run_that_was_cut_short_leaves_a_state_that_begins_anew(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = model.new_state(1, 64)
    continued(model, state, PROMPT)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    longer = [*PROMPT, 1]
    run = model.run([longer], max_tokens=4, state=state, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        next(run)
    found = continued(model, state, longer)
    assert (found.token_ids, found.stats.cached_tokens) == (greedy(model, longer, 6), 0)


def test_positions_that_no_row_came_to_and_other_batches_are_refused(model: Model) -> None:
    state = model.new_state(1, 64)
    continued(model, state, PROMPT, 2)
    with pytest.raises(UsageError, match=r"rewind to \[40\].*from 0 to what it holds, \[1\d\]"):
        state.rewind([40])
    with pytest.raises(UsageError, match="2 prompts and a state of 1 rows"):
        model.run([[1], [2]], state=state)
    with pytest.raises(UsageError, match="enlarge to 8: there is room for 64"):
        state.enlarge(8)
    other = ptir.load_model("random:llama-tiny", backend=REF)
    with pytest.raises(UsageError, match="state is of another model than 'random:llama-tiny'"):
        other.run([[1]], state=state)


def test_a_run_that_another_has_overtaken_ends_and_leaves_the_state_alone(model: Model) -> None:
    other, state = [9, 8, 7, 6, 5], model.new_state(1, 96)
    dropped = model.run([PROMPT], max_tokens=20, temperature=0.0, state=state)
    said = [next(dropped).token_id for _ in range(3)]
    overtaken = model.run([PROMPT], max_tokens=20, temperature=0.0, state=state)
    next(overtaken)
    model.generate(other, max_tokens=6, temperature=0.0, state=state)
    assert dropped.results[0].token_ids == said
    with pytest.raises(UsageError, match="another run has gone on with the state"):
        list(overtaken)
    for prompt in ([*PROMPT, *said, 4], [*other, 1]):
        found = model.generate(prompt, max_tokens=6, temperature=0.0, state=state)
        plain = model.generate(prompt, max_tokens=6, temperature=0.0)
        assert found.token_ids == plain.token_ids
