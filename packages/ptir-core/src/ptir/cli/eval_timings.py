"""What ``ptir eval --workload bench`` times of each kind of model, ours and the peer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from ptir.cli import bench_rows
from ptir.cli.bench_rows import Bench, seconds_of
from ptir.cli.benches import BENCHES, GenerationBench, ImageBench, SpeechBench, TextBench
from ptir.cli.eval_options import Asked
from ptir.runtime.kinds import row_of

if TYPE_CHECKING:
    from ptir.peers.subject import Pair
    from ptir.runtime import Model

Seconds: TypeAlias = Callable[[], float]
"""Something that runs, and tells for how long."""


@dataclass(frozen=True)
class Timing:
    """A test: its name, what a call gets done and in which unit, and the calls of both sides."""

    test: str
    count: int
    unit: str
    ours: Seconds
    theirs: Seconds | None


def timings(model: Model, pair: Pair | None, asked: Asked) -> list[Timing]:
    """What is timed of a model; raises ``click.UsageError`` for sizes that do not fit."""
    kind = row_of(BENCHES, model)
    if asked.batch > 1 and "batches" not in kind.takes:
        raise click.UsageError(
            "--batch is for images and encoders; one text at a time is generated, or heard"
        )
    return TIMED[kind](model, pair, asked)


def _images(model: Any, pair: Pair | None, asked: Asked) -> list[Timing]:
    from ptir.runtime.recorded import random_images

    given = random_images(model, asked.batch)
    test = f"{asked.batch} x {given.shape[1]} x {given.shape[2]} pixels"
    theirs = partial(pair.peer.seconds, "run", given) if pair else None
    ours = partial(seconds_of, model.forward, given)
    return [Timing(test, asked.batch, ImageBench.unit, ours, theirs)]


def _texts(model: Any, pair: Pair | None, asked: Asked) -> list[Timing]:
    length = min(asked.n_prompt, model.limit)
    given = TextBench(model).tokens(asked.batch, length)
    theirs = partial(pair.peer.seconds, "run", given) if pair else None
    ours, test = partial(seconds_of, model.forward, given), f"{asked.batch} x {length} tokens"
    return [Timing(test, given.size, TextBench.unit, ours, theirs)]


def _generations(model: Any, pair: Pair | None, asked: Asked) -> list[Timing]:
    import numpy as np

    prompt, new = asked.n_prompt, asked.n_gen
    if max(prompt, new + 1) > model.context:
        raise click.UsageError(f"-p {prompt} -n {new} do not fit the context of {model.context}")
    bench = GenerationBench(model)
    ids = np.asarray(bench.tokens, np.int32)
    reads = partial(pair.peer.seconds, "prefill", ids[:prompt]) if pair else None
    writes = partial(pair.peer.seconds, "decode", ids[:1], new) if pair else None
    found = [Timing(f"pp{prompt}", prompt, "tok/s", partial(bench.prefill, prompt), reads)]
    more = Timing(f"tg{new}", new, "tok/s", partial(bench.decode, new), writes)
    return [*found, more] if new else found


def _speech(model: Any, pair: Pair | None, asked: Asked) -> list[Timing]:
    """A window, whose positions take the place of tokens, and tokens behind a prompt.

    The window from its samples on, as ``ptir bench`` has it, is both: no peer has one call for it.
    """
    import numpy as np

    bench = SpeechBench(model)
    heard, *more = bench.tests(bench_rows.Asked(n_gen=asked.n_gen))
    written = [test for test in more if not test.sound]
    prompt = np.asarray(model.tokens.usual(timestamps=True), np.int32)
    hears = writes = None
    if pair is not None:
        asks = partial(pair.peer.seconds, features=bench.features)
        hears = partial(asks, "hear", prompt)
        writes = partial(asks, "decode_heard", prompt, asked.n_gen)
    found = [Timing(heard.name, heard.count, "tok/s", heard.work, hears)]
    return [*found, *(Timing(one.name, one.count, "tok/s", one.work, writes) for one in written)]


TIMED: Final[Mapping[type[Bench], Callable[[Any, Pair | None, Asked], list[Timing]]]] = {
    GenerationBench: _generations,
    ImageBench: _images,
    TextBench: _texts,
    SpeechBench: _speech,
}
"""By what measures a kind of model."""
