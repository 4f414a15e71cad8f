"""A generation in progress: prompts go in, pieces come out, results are kept.

Iterating runs it. Interrupting the iteration (Ctrl-C) keeps what was generated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptir.errors import UsageError
from ptir.runtime.finite import check_numbers
from ptir.runtime.generation import (
    FinishReason,
    Generation,
    GenerationStats,
    Piece,
    SamplingOptions,
)
from ptir.runtime.session import Progress, Session, capacity_for
from ptir.runtime.session_state import SessionState
from ptir.text import StopMatcher

if TYPE_CHECKING:
    from ptir.runtime.handle import Model
    from ptir.runtime.speculation import Proposer

Array = np.ndarray[Any, Any]


class Row:
    """One prompt's continuation: its tokens, its text so far and why it ended."""

    def __init__(self, model: Model, prompt: list[int], stop: Sequence[str]) -> None:
        self.prompt = prompt
        self.tokens: list[int] = []
        self.logprobs: list[dict[str, Any]] = []
        self.parts: list[str] = []
        self.finish: FinishReason | None = None
        self._stream = model.tokenizer.stream(after=prompt) if model.tokenizer else None
        self._matcher = StopMatcher(stop)

    def text(self) -> list[int]:
        """All tokens so far."""
        return [*self.prompt, *self.tokens]

    def push(self, token: int) -> str:
        """Append a token; returns the text that became certain. A stop string ends the row."""
        self.tokens.append(token)
        text, stopped = self._matcher.push(self._stream.push(token) if self._stream else "")
        if stopped:
            self.finish = "stop"
        self.parts.append(text)
        return text

    def end(self, reason: FinishReason) -> str:
        """End the row; returns the text still held back (which may complete a stop string)."""
        rest, stopped = self._matcher.push(self._stream.flush() if self._stream else "")
        text = rest if stopped else rest + self._matcher.flush()
        self.finish = "stop" if stopped else reason
        self.parts.append(text)
        return text


class GenerationRun:
    """Iterate to run; afterwards ``results`` holds a ``Generation`` per prompt.

    ``stats`` counts all rows together.
    """

    def __init__(
        self,
        model: Model,
        prompts: list[list[int]],
        options: SamplingOptions,
        max_tokens: int | None,
        stop: tuple[str, ...],
        logprobs: int | None,
        ignore_eos: bool,
        progress: Progress | None,
        state: SessionState | None = None,
        ends: Sequence[int] = (),
        proposer: Proposer | None = None,
    ) -> None:
        self._model = model
        self._options = options
        self._continued = state
        self._run = object()
        self._proposer = proposer
        self._logprobs = logprobs
        self._progress = progress
        self._eos = frozenset(() if ignore_eos else (*model.eos_ids, *ends))
        self._rows = [Row(model, prompt, stop) for prompt in prompts]
        self._limits = [_limit(model, prompt, max_tokens) for prompt in prompts]
        target = model.target
        self.stats = GenerationStats(
            prompt_tokens=sum(map(len, prompts)),
            load_seconds=model.load_seconds,
            backend=target.backend.name,
            device=target.device.name,
        )
        self._fallbacks = target.backend.stats(target.device).host_fallback_ops
        self._pieces = self._measured()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        with self._model.policies():
            return next(self._pieces)

    @property
    def results(self) -> list[Generation]:
        """What was generated, one per prompt.

        Asking before the end ends the run; rows that were not finished are ``interrupted``.
        """
        self._pieces.close()
        for row in self._rows:
            if row.finish is None:
                row.end("interrupted")
        return [
            Generation(
                text="".join(row.parts),
                token_ids=list(row.tokens),
                prompt_ids=row.prompt,
                finish_reason=row.finish or "interrupted",
                stats=self.stats,
                logprobs=row.logprobs if self._logprobs is not None else None,
            )
            for row in self._rows
        ]

    def _measured(self) -> Generator[Piece, None, None]:
        try:
            if self._rows:
                yield from self._generate()
        except GeneratorExit:
            raise
        except BaseException:
            state = self._continued
            if state is not None and state.run is self._run:
                state.restart()  # a step may have been cut short with its tensors
            raise
        finally:
            self._close()

    def _generate(self) -> Iterator[Piece]:
        began = time.perf_counter()
        prompts = [row.prompt for row in self._rows]
        state = self._room(prompts)
        state.run = self._run
        steps = self._model.head_steps if state.heads else self._model.steps
        session = Session(steps, self._model.target, state, self._options)
        held = state.keep(prompts)
        self.stats.cached_tokens = int(held.sum())
        left = [prompt[count:] for prompt, count in zip(prompts, held, strict=True)]
        if self._model.store.streamed is not None:
            size = int(self._model.checkpoint.config["vocab_size"])
            speculative = self._proposer is not None
            session.prepare(left, size, self._logprobs is not None, speculative)
        logits = session.prefill(left, self._progress)
        what = f"{self._model.name}: the logits after the prompt"
        check_numbers(logits, what, self._model.checkpoint.source)
        state.tokens = [list(prompt) for prompt in prompts]
        if self._continued is not None:
            state.mark(logits)
        session.watch(prompts, logits.shape[1])
        chosen = session.pick(logits)
        started = time.perf_counter()
        self.stats.prompt_seconds = started - began
        self.stats.first_token_seconds = self.stats.prompt_seconds + self.stats.load_seconds
        for row, limit in zip(self._rows, self._limits, strict=True):
            row.finish = None if limit > 0 else "length"
        scores: Array | None = logits
        advance = self._steps(session)
        while True:
            for index, row in enumerate(self._rows):
                if row.finish is None:
                    yield from self._accept(session, index, int(chosen[index]), scores)
            self.stats.generated_seconds = time.perf_counter() - started
            active = np.array([row.finish is None for row in self._rows])
            if not active.any():
                return
            if state.run is not self._run:
                raise UsageError(
                    "another run has gone on with the state of this one, which ends here; finish a"
                    " run before the next, or give each a state of its own"
                )
            chosen, scores = advance(active, self._logprobs is not None, self._ahead())

    def _steps(self, session: Session) -> Callable[..., tuple[Array, Array | None]]:
        """What appends the tokens last chosen and chooses the next ones."""
        if self._proposer is None:
            return session.advance
        (row,) = self._rows
        from ptir.runtime.speculation import SpeculativeSteps  # most runs propose nothing

        return SpeculativeSteps(session, self._proposer, row.text, self.stats).advance

    def _ahead(self) -> int:
        """How many tokens all rows that go on may take after the next one."""
        rows = zip(self._rows, self._limits, strict=True)
        return min(limit - len(row.tokens) for row, limit in rows if row.finish is None) - 1

    def _room(self, prompts: list[list[int]]) -> SessionState:
        """The state that was given, or a new one, with room for all that may come."""
        model, state = self._model, self._continued
        heads = self._proposer is not None and self._proposer.heads
        needed = max(len(p) + limit for p, limit in zip(prompts, self._limits, strict=True))
        if state is None:
            capacity = capacity_for(needed, model.context)
            return model.new_state(len(prompts), capacity, heads=heads)
        if state.capacity < needed:
            capacity = capacity_for(needed, model.context)
            model.make_room(len(prompts), capacity, heads=state.heads)
            state.enlarge(capacity)
        return state

    def _accept(
        self, session: Session, index: int, token: int, scores: Array | None
    ) -> Iterator[Piece]:
        row = self._rows[index]
        if token in self._eos:
            rest = row.end("stop")
            if rest:
                yield Piece(index, token, rest)
            return
        logprob = self._score(row, scores[index], token) if scores is not None else None
        session.note(index, token)
        text = row.push(token)
        self.stats.generated_tokens += 1
        if row.finish is None and len(row.tokens) >= self._limits[index]:
            text += row.end("length")
        yield Piece(index, token, text, logprob)

    def _score(self, row: Row, logits: Array, token: int) -> float | None:
        if self._logprobs is None:
            return None
        wide = logits.astype(np.float64)
        shifted = wide - wide.max()
        logs = shifted - np.log(np.exp(shifted).sum())
        best = np.argsort(-logs, kind="stable")[: self._logprobs]
        value = float(logs[token])
        top = [[int(i), float(logs[i])] for i in best]
        row.logprobs.append({"token_id": token, "logprob": value, "top": top})
        return value

    def _close(self) -> None:
        state = self._continued
        if state is not None and state.run is self._run and any(state.tokens):
            state.tokens = [[*row.prompt, *row.tokens] for row in self._rows]
        target = self._model.target
        memory = target.backend.memory_stats(target.device)
        self.stats.peak_memory_bytes = memory.peak_bytes if memory else 0
        total = target.backend.stats(target.device).host_fallback_ops
        self.stats.host_fallback_ops = total - self._fallbacks


def _limit(model: Model, prompt: list[int], max_tokens: int | None) -> int:
    """How many tokens may follow ``prompt``; raises ``UsageError`` when they do not fit."""
    if not prompt:
        raise UsageError("the prompt is empty; give at least one token")
    room = model.context - len(prompt)
    wanted = 1 if max_tokens is None else max_tokens
    if wanted > room:
        raise UsageError(
            f"a prompt of {len(prompt)} tokens and {wanted} new ones do not fit the context of"
            f" {model.context}; shorten the prompt or ask for fewer tokens"
        )
    return room if max_tokens is None else max_tokens
