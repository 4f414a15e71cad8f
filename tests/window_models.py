"""Small models whose layers with a window have caches that slide after a few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import ptir
from ptir.backend.contract import Target
from ptir.nn import cached_attention
from ptir.nn.state import WindowKeysValues
from ptir.runtime import Model
from ptir.runtime.session_state import SessionState
from running import REF

ROOM = 8
MODELS = ("gemma3-tiny", "gemma4-tiny", "gpt_oss-tiny")
"""Windows of 24, 24 and 8 positions; layers that read another's cache; sinks."""
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


def sliding(name: str, target: Target, room: int = ROOM, **options: Any) -> Model:
    """A random model of a preset with so much room beside its windows."""
    return with_room(ptir.load_model(f"random:{name}", backend=target, seed=3, **options), room)


def with_room(model: Model, room: int = ROOM) -> Model:
    """The model, whose layers with a window have so much room beside it."""
    for block in model.module._blocks():
        if isinstance(block.state, WindowKeysValues):
            block.state = replace(block.state, room=room)
    return model


def texts(model: Model, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    size = int(model.checkpoint.config["vocab_size"])
    draws = np.random.default_rng(seed)
    return [draws.integers(0, size, length).tolist() for length in lengths]


def firsts(state: SessionState) -> list[list[int]]:
    """Where the caches begin, by row: what the tensors say, which must be what is counted."""
    found = [tensors[2].numpy().tolist() for tensors in state.tensors if len(tensors) == 3]
    counted = [first.tolist() for first in state._windows.firsts.values()]
    assert found and all(one == counted[0] for one in (*found, *counted))
    return [list(rows) for rows in zip(*found, strict=True)]


def follow(model: Model, prompt: Sequence[int], found: Any, *, greedy: bool = True) -> None:
    """An answer is what one run over the whole text, without any cache, says of it."""
    text = [*prompt, *found.token_ids]
    logits = model.forward(text)[len(prompt) - 1 : -1].astype(np.float64)
    near, best = 1e-4 * np.abs(logits).max(), logits.max(-1, keepdims=True)
    chosen = np.take_along_axis(logits, np.array(found.token_ids)[:, None], -1)
    if greedy:
        np.testing.assert_allclose(chosen, best, rtol=0, atol=near)
    if found.logprobs:
        wanted = (chosen - best)[:, 0] - np.log(np.exp(logits - best).sum(-1))
        said = [one["logprob"] for one in found.logprobs]
        np.testing.assert_allclose(said, wanted, rtol=0, atol=near)


def same_as_the_whole_text(name: str, target: Target) -> None:
    """Rows of a model on ``target`` have the tokens that the reference finds with whole caches."""
    found, wanted = sliding(name, target), sliding(name, REF, swa_full=True)
    prompts, options = texts(found, (70, 3)), {"max_tokens": 24, "ignore_eos": True}
    state = found.new_state(2, 128)
    run = found.run(prompts, state=state, temperature=1.0, seed=[5, 6], **options)
    for _ in run:
        pass
    expected = wanted.generate_batch(prompts, temperature=1.0, seed=[5, 6], **options)
    assert [one.token_ids for one in run.results] == [one.token_ids for one in expected]
    assert len({token for one in expected for token in one.token_ids}) > 20
    assert firsts(state)[0][0] > 40


WINDOW, STEPS = 5, ((7, 2), (1, 0), (6, 8), (1, 1), (8, 3), (1, 1), (1, 8), (8, 8), (0, 1))
"""A window, and the tokens that two rows take in together."""


def attended_in_steps(
    target: Target, dtype: str = "f32", window: int = WINDOW, T: int = ROOM
) -> None:
    """Attention over a cache that slides is NumPy's, in f64, over all keys and values.

    Steps are over ``T`` tokens at most.
    """
    B, H, G, D, cap, scale = 2, 4, 2, 16, 3.0, 0.7
    state = WindowKeysValues(G, D, window, ROOM)
    steps = [np.clip(np.subtract(one, at), 0, T) for one in STEPS for at in range(0, max(one), T)]
    draws, capacity = np.random.default_rng(2), 64
    q, k, v = (draws.normal(size=(B, n, capacity, D)).astype("f4") for n in (H, G, G))
    sinks = draws.normal(size=H).astype("f4")
    made = SessionState((state,), B, capacity, ptir.types.dtype(dtype), target)
    given = partial(ptir.tensor, backend=target)

    def step(q: Any, k: Any, v: Any, state: Any, start: Any, count: Any, sinks: Any) -> Any:
        options = {"window": window, "scale": scale, "soft_cap": cap, "sinks": sinks}
        return cached_attention(q, k, v, state[0], start, count, **options)

    run = ptir.jit(step, donate=("state",))
    for counts in steps:
        start, parts = made.positions.copy(), []
        for x in (q, k, v):
            padded = np.zeros((*x.shape[:2], T, D), "f4")
            for row, (at, count) in enumerate(zip(start, counts, strict=True)):
                padded[row, :, :count] = x[row, :, at : at + count]
            parts.append(given(padded))
        made.reserve(counts)
        ends = (given(one.astype("i4")) for one in (start, counts))
        seen, cache = run(*parts, made.tensors, *ends, given(sinks))
        made.tensors = (cache,)
        made.positions += counts
        for row, head, t in np.ndindex(B, H, T):
            if t < counts[row]:
                at = int(start[row]) + t
                past = slice(max(0, at + 1 - window), at + 1)
                keys, values = (x[row, head // 2, past].astype("f8") for x in (k, v))
                scores = cap * np.tanh(keys @ q[row, head, at].astype("f8") * scale / cap)
                weights = np.exp(scores)
                wanted = weights @ values / (weights.sum() + np.exp(sinks[head].astype("f8")))
                near = 1e-5 if dtype == "f32" else 0.05
                np.testing.assert_allclose(seen.numpy()[row, head, t], wanted, atol=near)
    assert made.positions.tolist() == [33, 32]
    assert min(map(min, firsts(made))) >= 32 - ROOM - window
