"""Speculative decoding: tokens are proposed cheaply, and several are verified in one step.

Exact: what is taken is what the model chooses at every position with the draw that belongs to it,
so the tokens are those of plain decoding with the same seed (Leviathan et al. 2023, for proposals
that are certain). A step over some tokens reads the weights once, as one over a single token does.
Where it would not pay, plain steps are taken.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import numpy as np

from ptir.errors import UsageError
from ptir.runtime.session import WIDTHS, Session, capacity_for

if TYPE_CHECKING:
    from ptir.runtime.generation import GenerationStats, SamplingOptions
    from ptir.runtime.handle import Model
    from ptir.runtime.session_state import SessionState

Array = np.ndarray[Any, Any]

COMPARED: Final = 1000
"""Tokens by which vocabularies are told apart: different ones differ nearly everywhere."""
RENAMED: Final = 0.02
"""How many of them may be spelled otherwise all the same."""
LONGEST, SHORTEST = 4, 2
"""Tokens of a text's end that are looked up, the longest first."""
WEIGHT: Final = 0.2
"""Of the newest measurement in a running mean."""
MOSTLY: Final = 0.65
"""How often proposals must be right for a wider step to be tried."""
LEAST_PATIENCE, MOST_PATIENCE = 8, 64
"""Plain steps until proposals that did not pay are tried again: twice as many every time."""
REGRET: Final = 0.03
"""What trying again may cost, of the time of the plain steps before."""
MOST_AHEAD: Final = 8
"""Plain steps submitted at once where nothing was proposed lately."""


class Proposer(Protocol):
    """Guesses how a text goes on.

    One with ``heads`` reads the state of the model's head.
    """

    heads: ClassVar[bool]

    def begin(self, session: Session) -> None:
        """The text is that of a session's row, whose prompt has been taken in."""
        ...

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """At most ``count`` tokens after ``tokens``; none where there is nothing to go by.

        ``tokens`` are those of the call before and what was added.
        """
        ...


class PromptLookup:
    """Goes on as the text did where its last tokens stood before (Saxena 2023)."""

    heads: ClassVar[bool] = False

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._known = 0

    def begin(self, session: Session) -> None:
        """The text alone is read."""

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """What followed the latest earlier place of the text's last tokens.

        Where that place is near the end, what is between the two is repeated.
        """
        self._learn(tokens, len(tokens) - 1)
        places = (self._ends.get(tuple(tokens[-size:])) for size in _sizes(len(tokens)))
        found = next((end for end in places if end is not None), None)
        if found is None:
            return []
        period = len(tokens) - found
        return [tokens[found + n % period] for n in range(count)]

    def _learn(self, tokens: Sequence[int], length: int) -> None:
        """Where the last tokens of every beginning of up to ``length`` tokens end."""
        for end in range(self._known + 1, length + 1):
            for size in _sizes(end):
                self._ends[tuple(tokens[end - size : end])] = end
        self._known = max(self._known, length)


def _sizes(length: int) -> range:
    return range(min(LONGEST, length), SHORTEST - 1, -1)


class DraftModel:
    """A smaller model of the same vocabulary, which goes on greedily."""

    heads: ClassVar[bool] = False

    def __init__(self, draft: Model, model: Model) -> None:
        self._sizes = [int(one.checkpoint.config["vocab_size"]) for one in (draft, model)]
        if not _share_tokens(draft, model, *self._sizes):
            raise UsageError(
                f"draft {draft.name!r} has {self._sizes[0]} tokens and {model.name!r}"
                f" {self._sizes[1]}, and not the same; they must share a vocabulary: choose a draft"
                " of the same family"
            )
        self._model = draft
        self._states: list[SessionState] = []

    def begin(self, session: Session) -> None:
        """The draft's state is kept with the session's: it goes on when a talk does."""
        self._states = session.drafts

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """What the draft says next; it keeps its state from call to call."""
        draft, (known, size) = self._model, self._sizes
        count = min(count, draft.context - len(tokens) - 1)
        if count < 1 or max(tokens) >= known:
            return []
        needed = len(tokens) + count
        state = next((one for one in self._states if one.model is draft), None)
        if state is None:
            state = draft.new_state(1, capacity_for(needed, draft.context))
            self._states.append(state)
        elif state.capacity < needed:
            state.enlarge(capacity_for(needed, draft.context))
        run = draft.run([tokens], max_tokens=count, ignore_eos=True, state=state)
        return [*takewhile(lambda token: token < size, (piece.token_id for piece in run))]


def _share_tokens(draft: Model, model: Model, *sizes: int) -> bool:
    """Whether two models mean the same by the ids that both have, up to a few.

    Sizes of a family's models may differ, since rows are padded, and so may names of tokens that
    were kept for later. Without a tokenizer the sizes are all there is to go by.
    """
    few, many = draft.tokenizer, model.tokenizer
    if few is None or many is None:
        return sizes[0] == sizes[1]
    known = min(*sizes, few.vocab_size, many.vocab_size)
    ids = range(0, known, max(1, known // COMPARED))
    other = sum(few.token(index) != many.token(index) for index in ids)
    return other <= RENAMED * len(ids)


class NextNHead:
    """The model's own head, which goes on greedily."""

    heads: ClassVar[bool] = True

    def __init__(self, model: Model) -> None:
        _ = model.predicting  # one without a head says so

    def begin(self, session: Session) -> None:
        """The session has what the head reads."""
        self._session = session

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        """What the head says follows ``tokens``, which the session has but for the last one."""
        return self._session.propose(tokens, count)


def _best(model: Model) -> Proposer:
    """The head where there is one: it follows any text, and costs less than a model."""
    return NextNHead(model) if model.has_head else PromptLookup()


PROPOSERS: Final[Mapping[str, Callable[[Model], Proposer]]] = {
    "lookup": lambda model: PromptLookup(),
    "nextn": NextNHead,
    "auto": _best,
}
"""What proposes, by the name that ``Model.run`` and ``--speculate`` take."""


def reads_head(speculate: str | Model | None, model: Model) -> bool:
    """Whether ``speculate`` needs a state with the model's head; whether there is one, it says."""
    return speculate == "nextn" or (speculate == "auto" and model.has_head)


def proposer_of(
    speculate: str | Model, model: Model, rows: int, options: SamplingOptions
) -> Proposer:
    """What ``Model.run`` means by ``speculate``; raises ``UsageError`` where it cannot be done."""
    if rows != 1:
        raise UsageError(f"speculate with {rows} prompts: it serves one; leave it out")
    if options.repetition_penalty != 1:
        raise UsageError(
            f"speculate with repetition_penalty {options.repetition_penalty}: what a token costs"
            " depends on those before it; leave one of them out"
        )
    if not isinstance(speculate, str):
        return DraftModel(speculate, model)
    if speculate not in PROPOSERS:
        names = ", ".join(map(repr, PROPOSERS))
        raise UsageError(f"speculate {speculate!r}: must be one of {names} or a loaded model")
    return PROPOSERS[speculate](model)


@dataclass
class _Mean:
    """A running mean of what was measured lately."""

    value: float

    def add(self, found: float) -> None:
        """Take in a measurement."""
        self.value += WEIGHT * (found - self.value)


class Payoff:
    """Learns what steps cost and how often proposals are right, and says how many to verify.

    The first step of a width is not counted: its program may be compiled then.
    """

    def __init__(self) -> None:
        self._right = _Mean(0.5)
        self._seconds: dict[int, _Mean] = {}
        self._seen: set[int] = set()
        self._patience = self._wait = 0
        self._waited = False

    def width(self) -> int:
        """The best width of the next step; 1 is a plain one."""
        if self._wait > 0:
            self._wait -= 1
            return 1
        unknown = [width for width in (1, *WIDTHS[:1]) if width not in self._seconds]
        if unknown:
            return unknown[0]
        best = max(self._seconds, key=lambda width: self._gain(width) / self._seconds[width].value)
        wider = next((width for width in WIDTHS if width not in self._seconds), best)
        if wider > best and self._right.value > MOSTLY:
            return wider  # to learn what it costs: where two do not pay, eight may
        if best > 1:
            self._patience = 0
            return best
        self._waited = not self._waited
        if not self._waited:
            return WIDTHS[0]  # whether proposals have become better
        self._patience = min(MOST_PATIENCE, 2 * self._patience or LEAST_PATIENCE)
        wasted = self._seconds[WIDTHS[0]].value / self._seconds[1].value - 1
        self._wait = max(self._patience, round(wasted / REGRET)) - 1
        return 1

    def _gain(self, width: int) -> float:
        """Tokens that a step is expected to give."""
        return sum(self._right.value**n for n in range(width))

    def stepped(self, width: int, seconds: float) -> None:
        """A step was taken, of a width."""
        if width not in self._seen:
            self._seen.add(width)
        elif width not in self._seconds:
            self._seconds[width] = _Mean(seconds)
        else:
            self._seconds[width].add(seconds)

    def verified(self, proposed: int, accepted: int) -> None:
        """So many of the proposed tokens were right."""
        self._right.add(accepted / min(accepted + 1, proposed))

    def wait_less(self) -> None:
        """A plain step was taken whose width nobody asked for."""
        self._wait = max(0, self._wait - 1)

    @property
    def waiting(self) -> int:
        """Plain steps to come whatever is proposed."""
        return self._wait


class SpeculativeSteps:
    """Steps of a session of one row, as ``Session.advance``, some of which verify proposals.

    ``text`` gives the row's tokens so far, the last chosen one included.
    """

    def __init__(
        self,
        session: Session,
        proposer: Proposer,
        text: Callable[[], list[int]],
        stats: GenerationStats,
    ) -> None:
        self._session, self._proposer, self._text, self._stats = session, proposer, text, stats
        proposer.begin(session)
        self._payoff = Payoff()
        self._verified: deque[tuple[int, Array | None]] = deque()
        self._unproposed = 0
        self._taken, self._began = 0, 0.0

    def advance(
        self, active: Array, logits_too: bool = False, ahead: int = 0
    ) -> tuple[Array, Array | None]:
        """The next token i32[1] and, if asked, the logits f32[1,V] behind it."""
        if not self._verified and not self._session.pending:
            self._verify(logits_too, ahead)
        if self._verified:
            token, logits = self._verified.popleft()
            return np.array([token], np.int32), logits
        return self._plain(active, logits_too, ahead)

    def _verify(self, logits_too: bool, ahead: int) -> None:
        """Verify what is proposed, where that is worth it."""
        width = min(self._payoff.width(), self._session.room, ahead + 1)
        began = time.perf_counter()
        if width == 1:
            return
        proposed = self._proposer.propose(self._text(), width - 1)
        self._unproposed = 0 if proposed else self._unproposed + 1
        if not proposed:
            return
        tokens, logits = self._session.verify(self._text()[-1], proposed, logits_too)
        self._payoff.stepped(_fitting(len(proposed) + 1), time.perf_counter() - began)
        self._payoff.verified(len(proposed), len(tokens) - 1)
        self._stats.proposed_tokens += len(proposed)
        self._stats.accepted_tokens += len(tokens) - 1
        rows = [None] * len(tokens) if logits is None else [row[None] for row in logits]
        self._verified.extend(zip(tokens, rows, strict=True))

    def _plain(self, active: Array, logits_too: bool, ahead: int) -> tuple[Array, Array | None]:
        """A plain step; some more are submitted with it while nothing is going to be proposed."""
        if self._session.pending:
            self._payoff.wait_less()
        else:
            self._taken, self._began = 0, time.perf_counter()
        further = min(ahead, max(self._payoff.waiting, min(self._unproposed, MOST_AHEAD) - 1))
        found = self._session.advance(active, logits_too, further)
        self._taken += 1
        if not self._session.pending:
            self._payoff.stepped(1, (time.perf_counter() - self._began) / self._taken)
        return found


def _fitting(count: int) -> int:
    """The least width for ``count`` tokens."""
    return next(width for width in WIDTHS if width >= count)
