"""What is compared of a model and a peer: outputs, layers, times, perplexity, right answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from ptir.debug import Difference, Tolerance, difference
from ptir.errors import UnsupportedError
from ptir.peers.definitions import EMBED, GENERATE, HEAR, SCORE_IMAGES, SEE
from ptir.peers.subject import Pair
from ptir.runtime.likelihood import Likelihoods

if TYPE_CHECKING:
    from ptir.runtime import Model, SpeechModel, TextModel

Array = np.ndarray[Any, Any]

OUTPUTS: Final = ("logits", "output", "scores", "features")
"""What traces call the results of whole models, those that a peer gives first."""
OUTPUT: Final = "(output)"
"""What stands for the peer's module where its whole output is compared."""
PAUSE: Final = 0.05
"""Seconds before each timing: threads of the other side keep a core busy for a while."""


@dataclass(frozen=True)
class Input:
    """Something to run on both sides: token ids i32[T], or one prepared image f32[1,H,W,3].

    Tokens of a model of speech are heard in a window, of which these are the ``features`` f32[F,M].
    """

    name: str
    array: Array
    features: Array | None = None

    @property
    def more(self) -> dict[str, Array]:
        """What is given beside the array."""
        return {} if self.features is None else {"features": self.features}


@dataclass(frozen=True)
class Greedy:
    """Greedy tokens of both sides, which are equal up to the first ``same``.

    ``ahead`` is by what share of the largest logit the peer's first other token was ahead of its
    second best; None where all are equal.
    """

    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    same: int
    ahead: float | None

    def right(self, bound: float) -> bool:
        """Whether logits that are off by ``bound`` of the largest can explain where they part."""
        return self.ahead is None or self.ahead <= 2 * bound


@dataclass(frozen=True)
class OutputRow:
    """What an input's outputs differ in.

    Of ``rows`` rows of scores so many have the same ``best`` one; None where outputs are vectors.
    """

    name: str
    found: Difference
    best: int | None
    rows: int
    right: bool
    greedy: Greedy | None = None

    @property
    def distance(self) -> float:
        """The largest distance."""
        return abs(self.found.got - self.found.wanted)


@dataclass(frozen=True)
class LayerRow:
    """What a layer's result and that of the peer's modules that compute it differ in."""

    name: str
    theirs: tuple[str, ...]
    found: Difference
    right: bool


@dataclass(frozen=True)
class Traces:
    """Layers in their order, and those of ours that the peer gives no such result for."""

    rows: tuple[LayerRow, ...]
    alone: tuple[str, ...]

    @property
    def first_wrong(self) -> LayerRow | None:
        """The first layer that differs by more than is allowed."""
        return next((row for row in self.rows if not row.right), None)


@dataclass(frozen=True)
class Answers:
    """How many inputs each side put into their right class, and where they differ."""

    count: int
    ours: int
    theirs: int | None
    ours_in_five: int | None
    theirs_in_five: int | None
    same: int | None
    differing: tuple[tuple[str, int, int, int], ...] = ()
    """Input, right class, the class of ours, and the peer's."""


def validate(
    pair: Pair, inputs: Sequence[Input], tolerance: Tolerance, new_tokens: int
) -> Iterator[OutputRow]:
    """Outputs of both for each input and, of a model of language, greedy tokens behind it."""
    for one, found in zip(inputs, ours(pair.model, inputs), strict=True):
        wanted = pair.peer.output(one.array, **one.more)
        apart = difference(found, wanted.astype(found.dtype).reshape(found.shape))
        bests = (one.reshape(found.shape).argmax(-1) for one in (found, wanted))
        agree = np.equal(*bests)
        greedy = None
        room = min(new_tokens, pair.model.context - one.array.size)
        if pair.task in _GREEDY and room > 0:
            greedy = _GREEDY[pair.task](pair, one, room)
        right = tolerance.allows(apart)
        right &= greedy is None or greedy.right(tolerance.of(apart.dtype))
        same = None if pair.task in (EMBED, SEE) else int(agree.sum())
        yield OutputRow(one.name, apart, same, int(np.size(agree)), right, greedy)


def ours(model: Model, inputs: Iterable[Input]) -> list[Array]:
    """What the model gives for each input; texts of an encoder run together, as they do in use."""
    if model.reads_texts:
        return cast("TextModel", model).vectors([one.array.tolist() for one in inputs])
    return [np.asarray(model.forward(one.array, **one.more)) for one in inputs]


def _greedy(pair: Pair, given: Input, count: int) -> Greedy:
    made = pair.model.generate(given.array.tolist(), max_tokens=count, ignore_eos=True)
    found = tuple(made.token_ids)
    return _beside(found, *pair.peer.greedy(given.array, count))


def _greedy_heard(pair: Pair, given: Input, count: int) -> Greedy:
    """The same of a window, by the model's rules but those of timestamps; an end counts too."""
    assert given.features is not None
    model = cast("SpeechModel", pair.model)
    prompt, tokens = given.array.tolist(), model.tokens
    source = model.hear(given.features)
    made = model.window(source, prompt, timestamps=False, max_tokens=count).tokens
    found = made if len(made) == count else (*made, tokens.end)
    rules = {
        "never": tokens.suppressed,
        "not_first": tokens.suppressed_first,
        "end": tokens.end,
    }
    return _beside(found, *pair.peer.greedy_heard(given.array, count, rules, given.features))


def _beside(found: Sequence[int], tokens: Sequence[int], ahead: Sequence[float]) -> Greedy:
    """Tokens of both sides. Where one has ended, it is there that they part."""
    pairs = enumerate(zip(found, tokens, strict=False))
    most = max(len(found), len(tokens))
    same = next((n for n, (one, other) in pairs if one != other), most)
    return Greedy(tuple(found), tuple(tokens), same, None if same == most else ahead[same])


_GREEDY: Final[Mapping[str, Callable[[Pair, Input, int], Greedy]]] = {
    GENERATE: _greedy,
    HEAR: _greedy_heard,
}
"""How tokens are generated, by what a peer opens a model for, of those that do."""


def trace(pair: Pair, given: Input, tolerance: Tolerance) -> Traces:
    """Every layer's result on both sides, and the output."""
    batch = given.array if given.array.ndim == 4 else given.array[None]
    rows = {name: one[None] for name, one in given.more.items()}
    found = pair.model.trace(batch, **rows)
    named = pair.counterparts([name for name in found if name not in OUTPUTS])
    wanted = sorted({one for row in named.values() for one in row})
    theirs = pair.peer.trace(given.array, wanted, **given.more)
    made = {n: [theirs[m] for m in row] for n, row in named.items() if theirs.keys() >= {*row}}
    output = next(name for name in OUTPUTS if name in found and _is_output(pair, name))
    made[output] = [pair.peer.output(batch, **rows)]
    compared: list[LayerRow] = []
    for name, array in found.items():
        candidates = [difference(array, one) for one in _arranged(array, made.get(name, ()))]
        if candidates:  # two where channels are as many as rows
            nearest = min(candidates, key=lambda one: one.relative)
            right = tolerance.allows(nearest)
            compared.append(LayerRow(name, named.get(name, (OUTPUT,)), nearest, right))
    held = {row.name for row in compared}
    return Traces(tuple(compared), tuple(name for name in found if name not in held))


def _is_output(pair: Pair, name: str) -> bool:
    """Whether a trace's entry is what ``forward`` gives: scores where there are some."""
    return name != "features" or pair.task != SCORE_IMAGES


_TURNS: Final = {3: ((0, 2, 1),), 4: ((0, 2, 3, 1), (0, 2, 1, 3))}
"""By rank the orders of axes that bring channels behind places, or heads before tokens."""


def _arranged(found: Array, theirs: Sequence[Array]) -> Iterator[Array]:
    """The peer's results, side by side where they are several, in the shape of ours.

    As they are; with channels last, or heads before tokens; or as a grid of tokens.
    """
    parts = [part.astype(found.dtype) for part in theirs]
    if not parts or len({part.shape[:-1] for part in parts}) > 1:
        return
    if parts[0].ndim == found.ndim and len({part.shape for part in parts}) == 1:
        for axes in _TURNS.get(found.ndim, ()):
            turned = np.concatenate([part.transpose(axes) for part in parts], axis=-1)
            if turned.shape == found.shape:
                yield turned
    beside = np.concatenate(parts, axis=-1)
    grid = beside.ndim != found.ndim and beside.size == found.size
    if beside.shape == found.shape or (grid and beside.shape[-1] == found.shape[-1]):
        yield beside.reshape(found.shape)


def alternating(
    calls: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, tuple[float, ...]]:
    """Seconds that each call tells, in turns, behind one round that warms up."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            time.sleep(PAUSE)
            seconds = call()
            if number:
                samples[name].append(seconds)
    return {name: tuple(seconds) for name, seconds in samples.items()}


def likelihoods(pair: Pair) -> Callable[[int], Likelihoods]:
    """The peer's likelihoods, for ``ptir.runtime.likelihood.perplexity_by``."""

    def scorer(size: int) -> Likelihoods:
        return lambda tokens: pair.peer.likelihoods(np.asarray(tokens, np.int32))

    return scorer


def answers(
    model: Model, pair: Pair | None, inputs: Sequence[Input], truth: Sequence[int]
) -> Answers:
    """How many of ``inputs`` each side puts into the class that ``truth`` says.

    The first five count too where there are more than five classes. Raises ``UnsupportedError``
    for a model with one class, which is a score and no class.
    """
    mine = ours(model, inputs)
    classes = mine[0].shape[-1]
    if classes < 2:
        raise UnsupportedError(
            f"model {model.name!r} gives one score and no classes; accuracy is of a model with two"
            " classes or more"
        )
    scores = [np.stack([one.reshape(classes) for one in mine])]
    if pair is not None:
        scores.append(np.stack([pair.peer.output(one.array).reshape(classes) for one in inputs]))
    wanted = np.asarray(truth)
    best = [one.argmax(-1) for one in scores]
    right = [int((one == wanted).sum()) for one in best]
    five = [_within(one, wanted) for one in scores] if classes > 5 else [None, None]
    rows = zip(inputs, truth, best[0].tolist(), best[-1].tolist(), strict=True)
    differing = tuple((one.name, t, a, b) for one, t, a, b in rows if a != b)
    both = pair is not None
    return Answers(
        count=len(inputs),
        ours=right[0],
        theirs=right[1] if both else None,
        ours_in_five=five[0],
        theirs_in_five=five[1] if both else None,
        same=len(inputs) - len(differing) if both else None,
        differing=differing,
    )


def _within(scores: Array, wanted: Array) -> int:
    """Rows whose right class is one of the five best."""
    return int((np.argsort(-scores, -1, kind="stable")[:, :5] == wanted[:, None]).any(-1).sum())
