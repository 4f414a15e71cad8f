"""One batch of prompts being continued: state, positions, chunked prefill, decoding.

Rows of unequal length sit side by side: row b's next token goes to its own position, and a row
with ``count`` 0 in a step is left as it is. Decoding keeps tokens and positions on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from ptir.backend.contract import Target
from ptir.capture.lazy import fetch
from ptir.capture.plan import Plan
from ptir.capture.tensor import Tensor, from_host
from ptir.errors import UnsupportedError, UsageError
from ptir.nn.state import LayerTensors, State
from ptir.runtime.draws import Draws
from ptir.runtime.generation import SamplingOptions
from ptir.runtime.session_state import SessionState
from ptir.runtime.steps import CHUNKS, Steps, choose, chunk_sizes

if TYPE_CHECKING:
    from ptir.runtime.handle import Model

Progress = Callable[[int, int], None]
Array = np.ndarray[Any, Any]

DRAWS: Final = 64
"""Steps whose draws are uploaded together."""
FEEDS: Final = {"tokens": 0, "state": 1, "start": 2, "draw": 3}
"""What of a step's result the next step is given."""
WIDTHS: Final = (2, 4, 8)
"""Tokens that a verifying step is padded to: the last one and those proposed after it."""


@dataclass(frozen=True)
class _Step:
    """A step that was submitted: its rows, its tokens and what waits for them, and its logits."""

    active: Array
    tokens: Tensor
    fetched: Callable[[], Array] | None
    logits: Tensor | None


class Session:
    """Prompts being continued together on a state with a fixed capacity.

    ``prefill`` comes first, then ``pick``, then one ``advance`` per further token. A state that
    holds tokens already is continued.
    """

    def __init__(
        self,
        steps: Steps,
        target: Target,
        state: SessionState,
        options: SamplingOptions,
    ) -> None:
        self._steps = steps
        self._target = target
        self._options = options
        self._state = state
        self.batch, self.capacity, self.drafts = state.batch, state.capacity, state.drafts
        self._constants = self._constant_controls()
        self._draws = Draws(options.seeds(state.batch))
        self._draw: Tensor | None = None
        self._left = 0  # draws of the table that are not used
        self._wide: dict[int, dict[str, Tensor]] = {}
        self._seen: Array | None = None
        self._tokens: Tensor
        self._table: Tensor
        self._start: Tensor
        self._active: tuple[bytes, Tensor] | None = None
        self._ahead: deque[_Step] = deque()
        self._runs_per_call = target.backend.runs_per_call(target.device)
        self._budget = target.backend.budget(target.device)
        self._submitted = 1  # steps of the last call

    @classmethod
    def of(
        cls, model: Model, rows: int, needed: int, options: SamplingOptions | None = None
    ) -> Self:
        """A session of a loaded model for ``rows`` prompts with room for ``needed`` positions."""
        state = model.new_state(rows, capacity_for(needed, model.context))
        return cls(model.steps, model.target, state, options or SamplingOptions())

    def _tensor(self, array: Array, borrow: bool = False) -> Tensor:
        return from_host(array, self._target, borrow=borrow)

    def prefill(self, prompts: Sequence[Sequence[int]], progress: Progress | None = None) -> Array:
        """Take the prompts in, each after what its row holds already.

        Returns the logits f32[B,V] after each last token: those that the state has, where no prompt
        has a token.
        """
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        longest, done = int(lengths.max()), 0
        found: list[tuple[Array, Array]] = []
        for size, real in chunk_sizes(longest, self._state.largest_step):
            logits = self._extend(prompts, lengths, done, size)
            ending = (lengths > done) & (lengths <= done + size)
            if ending.any():
                found.append((ending, logits.numpy()))
            done += real
            if progress:
                progress(done, longest)
        self._state.positions += lengths
        self._start = self._tensor(self._state.positions.astype(np.int32))
        if not longest and self._state.logits is not None:
            return self._state.logits
        final: Array = found[-1][1].copy()
        for ending, values in found:
            final[ending] = values[ending]
        return final

    def _extend(
        self, prompts: Sequence[Sequence[int]], lengths: Array, done: int, size: int
    ) -> Tensor:
        counts = np.clip(lengths - done, 0, size)
        tokens = np.zeros((self.batch, size), np.int32)
        for row, prompt in enumerate(prompts):
            tokens[row, : counts[row]] = prompt[done : done + counts[row]]
        held = self._state.positions.astype(np.int32) + np.minimum(lengths, done)
        self._state.reserve(counts, held)
        start, count = self._tensor(held), self._tensor(counts)
        extend = self._steps.extend(self.batch, self.capacity)
        logits, self._state.tensors = extend(
            self._tensor(tokens), self._state.tensors, start, count
        )
        result: Tensor = logits
        return result

    def prepare(
        self,
        prompts: Sequence[Sequence[int]],
        vocabulary: int,
        logits_too: bool,
        speculative: bool = False,
    ) -> None:
        """Compile the steps that prompts and the tokens behind them take; nothing runs.

        With ``speculative`` those that verify proposals too. Raises ``UsageError`` where one does
        not do with the budget beside the others.
        """
        from ptir.capture.streamed import check_together  # most models run without a budget

        self.watch(prompts, vocabulary)
        each = (self._tensor(np.zeros(self.batch, np.int32)) for _ in range(3))
        last, start, count = each  # one tensor in two places would be another program
        extend = self._steps.extend(self.batch, self.capacity)
        captures: list[Callable[[], Plan]] = []
        cut = chunk_sizes(max(map(len, prompts)), self._state.largest_step)
        for size in sorted({size for size, _ in cut}):
            tokens = self._tensor(np.zeros((self.batch, size), np.int32))
            captures.append(partial(extend.prepare, tokens, self._state.tensors, start, count))
        controls = self._controls() | self._uniform()
        advance = self._steps.advance(self.batch, self.capacity)
        operands = (last, self._state.tensors, start, count, controls, self._draw, logits_too)
        captures.append(partial(advance.prepare, *operands))
        self._draws.back(self._left)  # the first draw is for the token behind the prompt
        self._left = 0
        for size in WIDTHS if speculative else ():
            tokens = self._tensor(np.zeros((1, size), np.int32))
            repeated = self._unused(size)
            given = (tokens, *self._state.split(), start, count, repeated, logits_too)
            captures.append(partial(self._steps.verify(1, self.capacity).prepare, *given))
        if speculative and self._state.heads:
            captures += self._head_captures(last, start, count)
        check_together(captures + self._state.slide_captures())

    def _head_captures(
        self, last: Tensor, start: Tensor, count: Tensor
    ) -> Iterator[Callable[[], Plan]]:
        """What compiles the programs of the model's head."""
        *_, cache, (kept,) = self._state.tensors
        hidden = self._tensor(np.zeros((1, kept.shape[-1]), np.float32))
        yield partial(self._steps.propose(self.capacity).prepare, last, hidden, cache, start)
        for size in CHUNKS:
            tokens = self._tensor(np.zeros((1, size), np.int32))
            program = self._steps.read(self.capacity)
            yield partial(program.prepare, tokens, kept, cache, start, count)

    def watch(self, prompts: Sequence[Sequence[int]], vocabulary: int) -> None:
        """Remember which tokens each row holds, for the repetition penalty."""
        if self._options.repetition_penalty == 1:
            return
        self._seen = np.zeros((self.batch, vocabulary), np.bool_)
        for row, prompt in enumerate(prompts):
            self._seen[row, list(prompt)] = True

    def note(self, row: int, token: int) -> None:
        """Remember a generated token."""
        if self._seen is not None:
            self._seen[row, token] = True

    def pick(self, logits: Array) -> Array:
        """The next token of each row from logits on the host, with the same program parts.

        Raises ``UnsupportedError`` where the backend cannot sample.
        """
        controls = self._controls()
        if not self._options.greedy:
            controls["uniform"] = self._tensor(self._draws.take(1)[0])
        self._tokens = choose(self._tensor(logits), controls)
        try:
            return self._tokens.numpy()
        except UnsupportedError as error:
            if self._options.greedy:
                raise
            fix = "temperature 0 (--temp 0) takes the most likely token without it"
            raise UnsupportedError(f"{error}; {fix}") from error

    def advance(
        self, active: Array, logits_too: bool = False, ahead: int = 0
    ) -> tuple[Array, Array | None]:
        """Append the tokens last chosen to the ``active`` rows and choose the next ones.

        Returns these i32[B] and, if asked, the logits f32[B,V] behind them. ``ahead`` says how many
        steps the rows most likely take after this one. Some are submitted with it: as many as the
        backend takes in one call. Where the device works by itself, the next ones are, too, before
        tokens are waited for of which half of a call's are left. Rows may leave then, but not come
        back.
        """
        if logits_too or self._seen is not None:
            ahead = 0
        if not self._ahead:
            self._queue(active, logits_too, ahead)
        step = self._ahead.popleft()
        if (active & ~step.active).any() or (logits_too and step.logits is None):
            asked, known = (np.flatnonzero(rows).tolist() for rows in (active, step.active))
            raise UsageError(
                f"advance of rows {asked} with logits_too={logits_too}: this step was submitted"
                f" ahead, for rows {known} and without logits; leave out ahead before it"
            )
        further = ahead - len(self._ahead)
        if further > 0 and step.fetched and len(self._ahead) <= self._submitted // 2:
            self._queue(active, False, further - 1)
        tokens = step.fetched() if step.fetched else step.tokens.numpy()
        return tokens, step.logits.numpy() if step.logits is not None else None

    def slide_captures(self) -> list[Callable[[], Plan]]:
        """What compiles the programs by which caches of windows slide."""
        return self._state.slide_captures()

    @property
    def pending(self) -> int:
        """Steps that were submitted ahead and whose tokens nobody has taken."""
        return len(self._ahead)

    @property
    def room(self) -> int:
        """How many tokens more every row can hold."""
        return self.capacity - int(self._state.positions.max())

    def verify(
        self, last: int, proposed: Sequence[int], logits_too: bool = False
    ) -> tuple[list[int], Array | None]:
        """Take in the token chosen ``last`` and, of those proposed after it, the right ones.

        Those that plain steps would choose are right: the tokens are theirs, at most one more than
        proposed. Returns them and, if asked, the logits f32[N,V] behind them. For one row, without
        a repetition penalty.
        """
        given = [last, *proposed]
        self._state.reserve(np.array([len(given)]))
        before, (trimmed, held) = self._state.positions, self._state.split()
        controls = self._repeated(_fitting(len(given)))
        chosen, logits = self._taken(given, trimmed, held, controls, logits_too)
        found = chosen.numpy().tolist()
        wrong = (n for n, token in enumerate(proposed) if token != found[n])
        right = next(wrong, len(proposed))
        self._draws.back(0 if self._options.greedy else len(found) - (right + 1))
        if right < len(proposed) and any(held):
            given = given[: right + 1]
            trimmed = self._state.split()[0]
            self._taken(given, trimmed, held, self._unused(_fitting(len(given))), logits_too)
        self._state.positions = before + right + 1
        self._tokens = self._tensor(np.array([found[right]], np.int32))
        self._start = self._tensor(self._state.positions.astype(np.int32))
        kept = slice(0, right + 1)
        return found[kept], logits.numpy()[kept] if logits is not None else None

    def _taken(
        self,
        given: Sequence[int],
        trimmed: State,
        held: State,
        controls: dict[str, Tensor],
        logits_too: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """What is chosen after each of the tokens ``given``, and the logits; the state is theirs.

        Tensors of layers that cannot be trimmed are taken from ``held``, which stay as they are.
        """
        tokens = np.zeros((1, _fitting(len(given))), np.int32)
        tokens[0, : len(given)] = given
        at = int(self._state.positions[0])
        start, count = (self._tensor(np.array([n], np.int32)) for n in (at, len(given)))
        program = self._steps.verify(1, self.capacity)
        chosen, self._state.tensors, logits = program(
            self._tensor(tokens), trimmed, held, start, count, controls, logits_too
        )
        return chosen, logits

    def _repeated(self, size: int) -> dict[str, Tensor]:
        """The operands of ``choose`` for ``size`` positions of the one row, and their draws."""
        if self._options.greedy:
            return {}
        self._draws.back(self._left)  # what was uploaded for plain steps
        self._left = 0
        if size not in self._wide:
            one = {name: value.numpy() for name, value in self._constants.items()}
            self._wide[size] = {
                name: self._tensor(value.repeat(size)) for name, value in one.items()
            }
        return self._wide[size] | {"uniform": self._tensor(self._draws.take(size)[:, 0])}

    def _unused(self, size: int) -> dict[str, Tensor]:
        """The same where what is chosen is not wanted: the draws come again."""
        controls = self._repeated(size)
        self._draws.back(0 if self._options.greedy else size)
        return controls

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """The tokens that the model's head says follow a row's ``text``, at most ``count``.

        It reads what it has not yet. The state must have been made with ``heads``.
        """
        *own, cache, (kept,) = self._state.tensors
        token, hidden, cache, start = self._read(text, kept, cache)
        found = [token]
        program = self._steps.propose(self.capacity)
        for _ in range(count - 1):
            token, hidden, cache, start = program(token, hidden, cache, start)
            found.append(token)
        self._state.tensors = (*own, cache, (kept,))
        return [int(one.numpy()[0]) for one in found]

    def _read(self, text: Sequence[int], kept: Tensor, cache: LayerTensors) -> tuple[Any, ...]:
        """Have the head read a text to its end, and say what follows (``Steps.read``)."""
        end = len(text) - 1
        at = min(int(self._state.read[0]), end - 1)  # its last token is read again for what it says
        said: tuple[Any, ...] = ()
        for size, real in chunk_sizes(end - at):
            tokens = np.zeros((1, size), np.int32)
            tokens[0, :real] = text[at + 1 : at + 1 + real]
            start, count = (self._tensor(np.array([n], np.int32)) for n in (at, real))
            said = self._steps.read(self.capacity)(self._tensor(tokens), kept, cache, start, count)
            cache, at = said[2], at + real
        self._state.read[0] = end
        return said

    def _queue(self, active: Array, logits_too: bool, ahead: int) -> None:
        """Submit a step, and in the same call some of the ``ahead`` that follow it."""
        advance = self._steps.advance(self.batch, self.capacity)
        controls = self._controls() | self._uniform()
        runs = self._at_once(1 + ahead)
        self._state.reserve(runs * active)
        operands = (self._tokens, self._state.tensors, self._start, self._count(active), controls)
        self._left -= runs
        self._submitted = runs
        if runs == 1:
            result = advance(*operands, self._draw, logits_too)
            every = [result[0]]
        else:
            every, result = advance.repeat(runs, FEEDS, 0, *operands, self._draw, False)
        self._tokens, self._state.tensors, self._start, self._draw = result[:4]
        self._state.positions += runs * active
        logits, rows = result[4] if logits_too else None, active.copy()
        self._ahead += [_Step(rows, t, fetch(t.ref), logits) for t in every]

    def _at_once(self, wanted: int) -> int:
        """How many steps one call submits."""
        if self._runs_per_call == 1 or wanted == 1:
            return 1
        most = self._steps.at_once(self.batch, self.capacity, self._budget)
        if not self._options.greedy:
            most = min(most, self._left)
        return min(wanted, self._runs_per_call, most, self._state.largest_step or most)

    def _uniform(self) -> dict[str, Tensor]:
        """The sampler's draws for the steps to come, uploaded some steps at a time."""
        if self._options.greedy:
            return {}
        if self._left == 0:
            self._table = self._tensor(self._draws.take(DRAWS), borrow=True)
            self._draw, self._left = self._tensor(np.zeros(1, np.int32), borrow=True), DRAWS
        return {"uniform": self._table}

    def _count(self, active: Array) -> Tensor:
        key = active.tobytes()
        if self._active is None or self._active[0] != key:
            self._active = key, self._tensor(active.astype(np.int32))
        return self._active[1]

    def _constant_controls(self) -> dict[str, Tensor]:
        """The operands of ``choose`` that stay the same for the whole session, uploaded once."""
        options, rows = self._options, self.batch
        values = {} if options.repetition_penalty == 1 else {"penalty": options.repetition_penalty}
        if not options.greedy:
            values |= {name: getattr(options, name) for name in ("temperature", "top_p", "min_p")}
        constants = {
            name: self._tensor(np.full(rows, value, np.float32)) for name, value in values.items()
        }
        if not options.greedy:
            constants["top_k"] = self._tensor(np.full(rows, options.top_k, np.int32))
        return constants

    def _controls(self) -> dict[str, Tensor]:
        controls = dict(self._constants)
        if self._seen is not None:
            controls["seen"] = self._tensor(self._seen)
        return controls


def _fitting(count: int) -> int:
    """The least width of a verifying step over ``count`` tokens."""
    return next(width for width in WIDTHS if width >= count)


def capacity_for(needed: int, context: int) -> int:
    """The cache capacity for ``needed`` positions, at most the context.

    The next power of two from 64 to 4096, beyond that a multiple of 4096: few sizes, few programs.
    """
    step = min(4096, max(64, 1 << (needed - 1).bit_length()))
    return min(context, -(-needed // step) * step)
