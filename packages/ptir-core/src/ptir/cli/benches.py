"""What ``ptir bench`` measures of each kind of model, and how: a class for each row of a table."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ptir.cli.bench_rows import Asked, Bench, Test, seconds_of
from ptir.models.table import GENERATES, HEARS, MATCHES, READS, SEES

if TYPE_CHECKING:
    from ptir.capture.plan import Plan
    from ptir.cli.model import Formats
    from ptir.runtime import Model

PROMPT: Final = 512
"""Tokens of a prompt, unless it is said."""
TEXT: Final = 128
"""Tokens of a text that an encoder reads."""
TOKENS: Final = 64
"""Tokens that are decoded."""
BATCHES: Final = (1, 8)
"""Images or texts at once."""


class GenerationBench(Bench):
    """Prompts, and tokens behind one: those of llama-bench.

    ``proposed_by`` is what ``Model.run`` takes as ``speculate``.
    """

    takes = frozenset({"n_prompt", "n_gen", "speculate", "draft"})
    does = "generate"

    def __init__(self, model: Any, proposed_by: str | Model | None = None) -> None:
        super().__init__(model)
        self._proposed_by = proposed_by

    @functools.cached_property
    def tokens(self) -> list[int]:
        """Seeded tokens, as many as the context has."""
        from ptir.runtime.explain import random_tokens

        return random_tokens(self._model, self._model.context)

    def tests(self, asked: Asked) -> list[Test]:
        """A prompt, tokens, and tokens with what proposes some."""
        prompt = PROMPT if asked.n_prompt is None else asked.n_prompt
        new = TOKENS if asked.n_gen is None else asked.n_gen
        room = self._model.context
        if max(prompt, new + 1) > room:
            raise click.UsageError(f"-p {prompt} -n {new} do not fit the context of {room}")
        found = [Test(f"pp{prompt}", prompt, lambda: self.prefill(prompt))] if prompt else []
        if new:
            found.append(Test(f"tg{new}", new, lambda: self.decode(new), probed=True))
        if new and asked.speculate:
            name = f"tg{new}+{asked.speculate}"
            found.append(Test(name, new, lambda: self.speculate(new)))
        return found

    def facts(self, test: Test) -> dict[str, Any]:
        """The bytes of weights that decoding reads for a token."""
        return {"weight_bytes_per_token": self.weight_bytes(test.count) if test.probed else None}

    def fraction(
        self, test: Test, facts: Mapping[str, Any], speed: float, read: float
    ) -> float | None:
        """What decoding reads of weights in a second, of what can be read."""
        return speed * facts["weight_bytes_per_token"] / read if test.probed else None

    def estimated(self, formats: Formats) -> float | None:
        """Tokens per second of decoding as ``ptir list`` estimates them, with what was probed."""
        from ptir.cli.estimates import basis_of
        from ptir.cli.kept_bandwidth import keep
        from ptir.runtime.catalog import layer_count, token_bytes

        kept = keep(self._model.target, max(self._bandwidths), self._probe.kind)
        read = token_bytes(self._model.checkpoint, formats.dtype, formats.quant)
        layers = layer_count(self._model.checkpoint)
        return basis_of(self._model.target, kept, again=True).speed(read, layers)

    def weight_bytes(self, count: int) -> int:
        """Bytes of weights that a step of ``decode(count)`` reads: all, where nobody can tell."""
        from ptir.runtime.session import capacity_for

        capacity = capacity_for(count + 1, self._model.context)
        plans = self._model.steps.advance(1, capacity).plans
        return self._weights_of(plans, "")

    def _weights_of(self, plans: Sequence[Plan], prefix: str) -> int:
        """What the last of ``plans`` reads of weights, or all whose names begin with ``prefix``."""
        from ptir.runtime.explain import weights_read

        known = weights_read(plans[-1]) if plans else None
        store = self._model.store
        names = (name for name in store.source.names() if name.startswith(prefix))
        return known or sum(store.type(name).nbytes for name in names)

    def _session(self, capacity: int) -> Any:
        from ptir.runtime.session import Session

        return Session.of(self._model, 1, capacity)

    def prefill(self, count: int) -> float:
        """Seconds for a prompt of ``count`` tokens, up to the logits of the last."""
        session = self._session(count)
        began = time.perf_counter()
        session.prefill([self.tokens[:count]])
        return time.perf_counter() - began

    def decode(self, count: int) -> float:
        """Seconds for ``count`` greedy tokens after a prompt of one."""
        import numpy as np

        session = self._session(count + 1)
        session.pick(session.prefill([self.tokens[:1]]))
        active = np.ones(1, np.bool_)
        began = time.perf_counter()
        for left in reversed(range(count)):
            session.advance(active, ahead=left)
        return time.perf_counter() - began

    def speculate(self, count: int) -> float:
        """The same as ``decode``, of which some steps verify what is proposed."""
        run = self._model.run(
            [self.tokens[:1]],
            max_tokens=count + 1,
            ignore_eos=True,
            speculate=self._proposed_by,
        )
        for _ in run:
            pass
        seconds: float = run.stats.generated_seconds
        return seconds


class SpeechBench(GenerationBench):
    """The encoder on a window, whose positions take the place of tokens; tokens behind a prompt.

    And both from a window's samples: features, the encoder, a prompt and tokens.
    """

    takes = frozenset({"n_prompt", "n_gen"})
    does = "transcribe"

    def tests(self, asked: Asked) -> list[Test]:
        """A window unless no prompt was asked for, tokens, and a window with tokens."""
        from ptir.runtime.speech.decoding import PROMPT as BEFORE

        new = TOKENS if asked.n_gen is None else asked.n_gen
        room, positions = self._model.context, self._model.module.config.source
        if new + BEFORE > room:
            raise click.UsageError(f"-n {new} does not fit the context of {room} behind a prompt")
        heard = asked.n_prompt != 0
        seconds = self._model.settings.seconds
        found = []
        if heard:
            found.append(Test(f"enc{positions}", positions, self.hear, sound=seconds))
        if new:
            found.append(Test(f"tg{new}", new, lambda: self.decode(new), probed=True))
        if heard and new:
            name = f"win{seconds:g}s+{new}"
            found.append(Test(name, new, lambda: self.transcribe(new), sound=seconds))
        return found

    @functools.cached_property
    def samples(self) -> Any:
        """A window of quiet noise f32[N]."""
        import numpy as np

        return np.random.default_rng(0).normal(0, 0.1, self._model.settings.samples).astype("f4")

    @functools.cached_property
    def features(self) -> Any:
        """A window of noise f32[F,M]."""
        from ptir.runtime.speech.stepping import random_windows

        return random_windows(self._model, 1)[0]

    @functools.cached_property
    def _heard(self) -> Any:
        return self._model.hear(self.features)

    def hear(self) -> float:
        """Seconds for the encoder on a window."""
        began = time.perf_counter()
        self._model.hear(self.features)[-1][-1].numpy()
        return time.perf_counter() - began

    def transcribe(self, count: int) -> float:
        """Seconds from a window's samples to ``count`` tokens, whatever they are."""
        from ptir.runtime.speech.decoding import Manner

        began = time.perf_counter()
        heard = self._model.hear(self._model.features(self.samples))
        self._model.decoder.rehearse(heard, count, Manner(timestamps=True))
        return time.perf_counter() - began

    def decode(self, count: int) -> float:
        """Seconds for ``count`` tokens behind a prompt and its token, each the likeliest."""
        from ptir.runtime.speech.decoding import Manner

        seconds: float = self._model.decoder.rehearse(self._heard, count, Manner(timestamps=True))
        return seconds

    def row(self, test: Test, repetitions: int) -> dict[str, Any]:
        """The same with how many seconds of sound were heard in one, where sound was heard."""
        found = super().row(test, repetitions)
        speed = found[self.key]["median"]
        return {**found, "real_time": test.sound and speed / test.count * test.sound}

    def weight_bytes(self, count: int) -> int:
        """Bytes of weights that a step reads: all of the decoder, where nobody can tell."""
        return self._weights_of(self._model.decoder.steps.advance.plans, "decoder.")

    def estimated(self, formats: Formats) -> float | None:
        """Nothing: ``ptir list`` estimates none for such models."""
        return None


class WholeBench(Bench):
    """What is computed at once, with the arithmetic of it beside the most that the device does."""

    bound = ("peak", "flops_share")

    @functools.cached_property
    def _peak(self) -> float | None:
        from ptir.cli.roofs import flops_of
        from ptir.errors import UnsupportedError

        try:
            return flops_of(self._model.target)
        except UnsupportedError:  # a backend need not have products, nor f32
            return None

    def facts(self, test: Test) -> dict[str, Any]:
        """Operations of a run by definition, and how many images or texts it has."""
        from ptir.runtime.explain import flops_of_run

        # each test has a shape of its own, so that what it ran was compiled last
        return {"rows": test.rows, "flops": flops_of_run(self._planned.plans[-1])}

    def fraction(
        self, test: Test, facts: Mapping[str, Any], speed: float, read: float
    ) -> float | None:
        """Operations in a second, of the most that products of f32 matrices reach."""
        flops, peak = facts["flops"], self._peak
        return flops * speed / test.count / peak if flops and peak else None

    def row(self, test: Test, repetitions: int) -> dict[str, Any]:
        """The same with the seconds of a run."""
        found = super().row(test, repetitions)
        return {**found, "seconds": test.count / found[self.key]["median"]}

    @property
    def _planned(self) -> Any:
        return self._model


class ImageBench(WholeBench):
    """Images at once."""

    takes = frozenset({"batches"})
    does = "see images"
    unit = "images/s"
    key = "images_per_second"

    def tests(self, asked: Asked) -> list[Test]:
        """One for each size of a batch."""
        return [self.test(count) for count in dict.fromkeys(asked.batches or BATCHES)]

    def test(self, count: int) -> Test:
        """``count`` prepared images at once."""
        from ptir.runtime.recorded import random_images

        pixels = random_images(self._model, count)
        return Test(f"img{count}", count, lambda: seconds_of(self._model.forward, pixels), count)


class TextBench(WholeBench):
    """Whole texts of one length at once."""

    takes = frozenset({"n_prompt", "batches"})
    does = "read whole texts"

    def tests(self, asked: Asked) -> list[Test]:
        """One for each size of a batch."""
        most = self._model.limit
        length = min(TEXT, most) if asked.n_prompt is None else asked.n_prompt
        if not 1 <= length <= most:
            raise click.UsageError(f"-p {length}: the model takes texts of 1 to {most} tokens")
        return [self.test(count, length) for count in dict.fromkeys(asked.batches or BATCHES)]

    def test(self, count: int, length: int) -> Test:
        """``count`` texts of ``length`` tokens: what ``forward`` gives for them, or embeddings."""
        tokens = self.tokens(count, length)
        work = functools.partial(seconds_of, self._model.computed, tokens)
        return Test(f"txt{count}x{length}", tokens.size, work, count)

    def tokens(self, count: int, length: int) -> Any:
        """Seeded token ids i32[B,T]."""
        import numpy as np

        size = int(self._model.checkpoint.config["vocab_size"])
        return np.random.default_rng(0).integers(0, size, (count, length)).astype(np.int32)

    @property
    def _planned(self) -> Any:
        return self._model.network


BENCHES: Final[Mapping[tuple[str, ...], type[Bench]]] = {
    GENERATES: GenerationBench,
    SEES: ImageBench,
    MATCHES: ImageBench,
    READS: TextBench,
    HEARS: SpeechBench,
}
"""By what an architecture can do (``ptir.models.table``)."""
