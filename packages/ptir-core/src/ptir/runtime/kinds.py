"""What each kind of model runs: one row for each thing that an architecture may do.

``ptir explain``, ``ptir report``, ``ptir tune`` and ``ptir warmup`` ask these rows, and no class of
a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ptir.models import definition
from ptir.models.table import GENERATES, HEARS, MATCHES, READS, SEES
from ptir.runtime.batches import ROWS, lengths
from ptir.runtime.explain import Step, decode_step, images_step, prefill_step, texts_step
from ptir.runtime.recorded import recorded_images, recorded_labels, recorded_step, recorded_texts
from ptir.runtime.steps import CHUNKS
from ptir.runtime.warmup_jobs import (
    Jobs,
    capacities,
    generations,
    matches,
    readings,
    sights,
    transcriptions,
)
from ptir.runtime.warmup_jobs import batches as row_counts

if TYPE_CHECKING:
    from ptir.capture.build import Captured
    from ptir.runtime.handle import Model

T = TypeVar("T")

TOKENS: Final = 512
"""Tokens of a generation, prompt included, or of a text, that programs are tuned for."""
PROMPT: Final = 128
"""Tokens of a prompt, or of a text, whose kernels' sizes are chosen."""
TEXT: Final = 64
"""Tokens of a text that an encoder is explained with, unless it is said."""


@dataclass(frozen=True)
class Sizes:
    """Which step of a model is meant, and how large it is.

    A token behind ``position`` others; a prompt, or texts, of ``length`` tokens; or what an
    ``encoder`` before the decoder does. ``batch`` rows of it where there may be several, and
    room for ``repeats`` more runs.
    """

    position: int = 64
    length: int | None = None
    encoder: bool = False
    batch: int = 1
    repeats: int = 5


@dataclass(frozen=True)
class Kind:
    """A kind of model: the step that is meant by sizes, and all that its runs are made of.

    ``programs`` are for up to so many tokens (None: the usual number) and a batch, as captured, and
    ``jobs`` run them once and all that goes with them. The kernels of ``largest``, for a batch,
    are those whose sizes are chosen for a device.
    """

    step: Callable[[Any, Sizes], Step]
    programs: Callable[[Any, int | None, int], Iterator[Captured]]
    jobs: Callable[[Any, int | None, int], Jobs]
    largest: Callable[[Any, int], Iterator[Captured]]


def kind_of(model: Model) -> Kind:
    """The row of a model."""
    return row_of(KINDS, model)


def row_of(table: Mapping[tuple[str, ...], T], model: Model) -> T:
    """The row of a model in a table by what architectures can do (``ptir.models.table``)."""
    able = definition(str(model.checkpoint.config["model_type"])).capabilities
    return table[able if able in table else GENERATES if "generate" in able else SEES]


def _generating(model: Any, sizes: Sizes) -> Step:
    if sizes.length is None:
        return decode_step(model, sizes.position, sizes.repeats)
    return prefill_step(model, sizes.length)


def _generations(model: Any, tokens: int | None, batch: int) -> Iterator[Captured]:
    most = min(model.context, TOKENS if tokens is None else tokens)
    for capacity in (one for one in capacities(model.context) if one <= max(most, 64)):
        for length in (1, *(chunk for chunk in CHUNKS if chunk <= min(most, capacity))):
            yield recorded_step(model, batch, length, capacity)


def _prompt_and_token(model: Any, batch: int) -> Iterator[Captured]:
    for length in (1, min(PROMPT, model.context)):
        yield recorded_step(model, batch, length, model.context)


def _seeing(model: Any, sizes: Sizes) -> Step:
    return images_step(model, sizes.batch)


def _sights(model: Any, tokens: int | None, batch: int) -> Iterator[Captured]:
    yield recorded_images(model, batch)


def _matches(model: Any, tokens: int | None, batch: int) -> Iterator[Captured]:
    yield recorded_images(model, batch)
    yield recorded_labels(model, batch)


def _images(model: Any, batch: int) -> Iterator[Captured]:
    return _sights(model, None, batch)


def _images_and_labels(model: Any, batch: int) -> Iterator[Captured]:
    return _matches(model, None, batch)


def _reading(model: Any, sizes: Sizes) -> Step:
    length = min(TEXT, model.limit) if sizes.length is None else sizes.length
    return texts_step(model, sizes.batch, length)


def _readings(model: Any, tokens: int | None, batch: int) -> Iterator[Captured]:
    """Batches of every shape in which so many texts run."""
    most = min(model.limit, TOKENS if tokens is None else tokens)
    ladder = lengths(model.context)
    longest = next(one for one in ladder if one >= most)
    fewest = next((rows for rows in ROWS if rows >= batch), ROWS[-1])
    for rows in (one for one in ROWS if one <= fewest):
        for length in (one for one in ladder if one <= longest):
            yield recorded_texts(model, rows, length)


def _texts(model: Any, batch: int) -> Iterator[Captured]:
    yield recorded_texts(model, batch, min(PROMPT, model.limit))


def _hearing(model: Any, sizes: Sizes) -> Step:
    from ptir.runtime.speech.stepping import prompt_step, token_step, windows_step

    if sizes.encoder:
        return windows_step(model, sizes.batch)
    if sizes.length is not None:
        return prompt_step(model, sizes.batch, sizes.length)
    return token_step(model, sizes.batch, sizes.position)


def _transcriptions(model: Any, tokens: int | None, batch: int) -> Iterator[Captured]:
    """Windows, prompts up to so many tokens (None: those without a text before), and tokens."""
    from ptir.runtime.speech.decoding import PROMPT, prompt_widths
    from ptir.runtime.speech.recorded import recorded_hearing, recorded_prompt, recorded_token

    for rows in row_counts(batch):
        yield recorded_hearing(model, rows)
        for width in prompt_widths(PROMPT if tokens is None else tokens, model.context):
            yield recorded_prompt(model, rows, width)
        yield recorded_token(model, rows)


def _window_and_token(model: Any, batch: int) -> Iterator[Captured]:
    from ptir.runtime.speech.recorded import recorded_hearing, recorded_token

    yield recorded_hearing(model, batch)
    yield recorded_token(model, batch)


KINDS: Final[Mapping[tuple[str, ...], Kind]] = {
    GENERATES: Kind(_generating, _generations, generations, _prompt_and_token),
    SEES: Kind(_seeing, _sights, sights, _images),
    MATCHES: Kind(_seeing, _matches, matches, _images_and_labels),
    READS: Kind(_reading, _readings, readings, _texts),
    HEARS: Kind(_hearing, _transcriptions, transcriptions, _window_and_token),
}
"""By what an architecture can do (``ptir.models.table``)."""
