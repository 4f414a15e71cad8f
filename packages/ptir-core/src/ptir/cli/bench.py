"""``ptir bench``: prompt processing and decoding speed, in the conventions of llama-bench.

A test ``pp512`` runs a prompt of 512 random tokens, ``tg64`` decodes 64 tokens. Each is warmed up
once and repeated; decoding is bracketed by a probe of memory bandwidth (see ``cli.bandwidth``).
Its share of that bandwidth is the bytes of the weights that a step reads, times steps per second.
Of a model of speech ``enc1500`` hears a window, whose 1500 positions take the place of tokens.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from ptir.cli import show
from ptir.cli.bandwidth import Probe, probe_of
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import (
    Formats,
    format_options,
    model_argument,
    open_model,
    speculation,
    speculation_options,
)

if TYPE_CHECKING:
    from ptir.runtime import Model
    from ptir.runtime.speech import SpeechModel


@click.command()
@model_argument
@click.option("-p", "--n-prompt", type=click.IntRange(0), default=512, show_default=True)
@click.option("-n", "--n-gen", type=click.IntRange(0), default=64, show_default=True)
@click.option("-r", "--repetitions", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page of it, too."
)
@speculation_options
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    n_prompt: int,
    n_gen: int,
    repetitions: int,
    html: Path | None,
    formats: Formats,
    speculate: str | None,
    draft: str | None,
) -> None:
    """Measure MODEL: tokens per second of a prompt (ppN) and of decoding (tgN).

    With --speculate or --draft also of decoding the same greedy text with it (tgN+NAME). Of a model
    of speech: positions per second of hearing a window (encN), and of decoding (tgN).
    """
    from ptir.runtime.speech.decoding import PROMPT

    with session(common):
        loaded = open_model(common, model, formats, or_else="transcribe")
        hears = "transcribe" in loaded.capabilities
        room = loaded.context
        if hears and (speculate or draft):
            raise click.UsageError("--speculate and --draft are for models that generate")
        if hears and n_gen + PROMPT > room:
            raise click.UsageError(f"-n {n_gen} does not fit the context of {room} behind a prompt")
        if not hears and max(n_prompt, n_gen + 1) > room:
            raise click.UsageError(f"-p {n_prompt} -n {n_gen} do not fit the context of {room}")
        bench = (
            SpeechBench(loaded)
            if hears
            else Bench(loaded, speculation(common, formats, speculate, draft))
        )
        n_prompt = bench.positions(n_prompt)
        tests: list[tuple[str, int, Callable[[int], float]]] = []
        if n_prompt:
            tests.append((f"{bench.prompt}{n_prompt}", n_prompt, bench.prefill))
        if n_gen:
            tests.append((f"tg{n_gen}", n_gen, bench.decode))
            if speculate or draft:
                tests.append((f"tg{n_gen}+{speculate or 'draft'}", n_gen, bench.speculate))
        rows = [bench.row(name, count, work, repetitions) for name, count, work in tests]
        probe = bench.probed()
        estimate = bench.estimated(formats) if probe else None
    report: dict[str, Any] = {
        "model": model,
        "backend": loaded.target.backend.name,
        "device": loaded.target.device.name,
        **formats.chosen(loaded),
        "probe": probe,
        "estimated_tokens_per_second": estimate,
        "rows": rows,
    }
    label = formats.weights(loaded)
    if html is not None:
        from ptir.report import write_page

        write_page(html, _page(report, label))
    if common.json:
        show.value(report)
        return
    lines = [(model, report["backend"], label, r["test"], *_cells(r)) for r in rows]
    show.table(("model", "backend", "dtype", "test", "tok/s", "spread", "of bandwidth"), lines)
    if probe is not None:
        speed = probe["bytes_per_second"] / 1e9
        show.text(f"\nbandwidth: {speed:.1f} GB/s in the median ({probe['kind']})")
    if estimate is not None:
        show.text(f"estimate of `ptir list` for decoding: {estimate:.1f} tok/s")


def _page(report: dict[str, Any], label: str) -> str:
    """The report as a page: speeds as bars with their spread, and a table."""
    from ptir.report import bars, page, table

    speeds = {row["test"]: row["tokens_per_second"] for row in report["rows"]}
    drawn = [
        {"name": name, "value": speed["median"], "low": speed["min"], "high": speed["max"]}
        for name, speed in speeds.items()
    ]
    columns = "test", "median", "min", "max", "of bandwidth", "weight bytes per token", "samples"
    rows = [
        [
            row["test"],
            *(round(speeds[row["test"]][of], 2) for of in ("median", "min", "max")),
            None if row["bandwidth_share"] is None else round(row["bandwidth_share"], 3),
            row["weight_bytes_per_token"],
            ", ".join(f"{speed:.1f}" for speed in speeds[row["test"]]["samples"]),
        ]
        for row in report["rows"]
    ]
    facts = [("ran on", f"{report['backend']} {report['device']}"), ("weights", label)]
    if report["probe"] is not None:
        measured = report["probe"]["bytes_per_second"] / 1e9
        facts.append(("bandwidth", f"{measured:.1f} GB/s ({report['probe']['kind']})"))
    spread = "Medians; marks are the slowest run and the fastest."
    sections = [bars("Speed", "tok/s", drawn, spread), table("Tokens a second", columns, rows)]
    return page(f"{report['model']}: speed", facts, sections)


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    speed, share = row["tokens_per_second"], row["bandwidth_share"]
    spread = f"{speed['min']:.1f} to {speed['max']:.1f}"
    return f"{speed['median']:.1f}", spread, "" if share is None else f"{share:.0%}"


class Bench:
    """The tests on one model; ``proposed_by`` is what ``Model.run`` takes as ``speculate``."""

    prompt = "pp"
    """What the test of a prompt is called."""

    def __init__(self, model: Model, proposed_by: str | Model | None = None) -> None:
        import numpy as np

        self._model, self._proposed_by = model, proposed_by
        size = int(model.checkpoint.config["vocab_size"])
        self.tokens: list[int] = np.random.default_rng(0).integers(0, size, model.context).tolist()
        self._bandwidths: list[float] = []

    def positions(self, asked: int) -> int:
        """How many a prompt has of which so many were asked for."""
        return asked

    @functools.cached_property
    def _probe(self) -> Probe:
        return probe_of(self._model.target)

    def _bandwidth(self) -> float:
        """One reading of the probe."""
        self._bandwidths.append(self._probe.bandwidth())
        return self._bandwidths[-1]

    def probed(self) -> dict[str, Any] | None:
        """How bandwidth was probed and what the median was; None where nothing was decoded."""
        if not self._bandwidths:
            return None
        median = statistics.median(self._bandwidths)
        return {"kind": self._probe.kind, "bytes_per_second": median}

    def estimated(self, formats: Formats) -> float | None:
        """Tokens per second of decoding as ``ptir list`` estimates them, with what was probed."""
        from ptir.cli.kept_bandwidth import keep
        from ptir.runtime.catalog import estimated_speed, token_bytes

        kept = keep(self._model.target, max(self._bandwidths), self._probe.kind)
        read = token_bytes(self._model.checkpoint, formats.dtype, formats.quant)
        return estimated_speed(read, kept)

    def weight_bytes(self, count: int) -> int:
        """Bytes of weights that a step of ``decode(count)`` reads: all, where nobody can tell."""
        from ptir.runtime.explain import weights_read
        from ptir.runtime.session import capacity_for

        capacity = capacity_for(count + 1, self._model.context)
        plans = self._model.steps.advance(1, capacity).plans
        known = weights_read(plans[-1]) if plans else None
        store = self._model.store
        return known or sum(store.type(name).nbytes for name in store.source.names())

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
        return run.stats.generated_seconds

    def row(
        self, test: str, count: int, work: Callable[[int], float], repetitions: int
    ) -> dict[str, Any]:
        """One row of the report."""
        target = self._model.target
        probed = test.startswith("tg") and "+" not in test
        with self._model.policies():
            work(count)
            memory = target.backend.memory_stats(target.device)  # the probe takes some too
            weights = self.weight_bytes(count) if probed else 0
            speeds, shares = [], []
            for _ in range(repetitions):
                before = self._bandwidth() if probed else 0.0
                speeds.append(count / work(count))
                if probed:
                    shares.append(speeds[-1] * weights / ((before + self._bandwidth()) / 2))
        return {
            "test": test,
            "tokens_per_second": {
                "median": statistics.median(speeds),
                "min": min(speeds),
                "max": max(speeds),
                "samples": speeds,
            },
            "bandwidth_share": statistics.median(shares) if probed else None,
            "weight_bytes_per_token": weights if probed else None,
            "peak_memory_bytes": memory.peak_bytes if memory else None,
        }


class SpeechBench(Bench):
    """The tests on a model of speech: its encoder on a window, and its decoder behind a prompt."""

    prompt = "enc"

    def positions(self, asked: int) -> int:
        """Those of a window, which no one chooses; none where none were asked for."""
        return self._speech.module.config.source if asked else 0

    @property
    def _speech(self) -> SpeechModel:
        return cast("SpeechModel", self._model)

    @functools.cached_property
    def _heard(self) -> Any:
        return self._hear()

    def _hear(self) -> Any:
        """What the decoder attends to of a window of noise."""
        import numpy as np

        settings = self._speech.settings
        shape = settings.frames, settings.mels
        features = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        return self._speech.decoder.hear([features], 1)

    def prefill(self, count: int) -> float:
        """Seconds for the encoder on a window."""
        began = time.perf_counter()
        self._hear()[-1][-1].numpy()
        return time.perf_counter() - began

    def decode(self, count: int) -> float:
        """Seconds for ``count`` tokens behind a prompt and its token, each the likeliest."""
        from ptir.runtime.speech.decoding import Manner

        return self._speech.decoder.rehearse(self._heard, count, Manner(timestamps=True))

    def weight_bytes(self, count: int) -> int:
        """Bytes of weights that a step reads: all of the decoder, where nobody can tell."""
        from ptir.runtime.explain import weights_read

        plans = self._speech.decoder.steps.advance.plans
        known = weights_read(plans[-1]) if plans else None
        store = self._model.store
        names = (name for name in store.source.names() if name.startswith("decoder."))
        return known or sum(store.type(name).nbytes for name in names)

    def estimated(self, formats: Formats) -> None:
        """Nothing: ``ptir list`` estimates none for such models."""
