"""``ptir eval``'s measures: speed, perplexity and accuracy, alone or beside a peer's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from ptir.cli.eval_options import Asked, inputs_of, truth_of
from ptir.cli.eval_tables import Cell, Column, Result, about, facts_of
from ptir.cli.model import streaming
from ptir.cli.progress import progress
from ptir.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from ptir.peers.subject import Pair
    from ptir.runtime import Model, Perplexity
    from ptir.runtime.image_model import ImageModel

OURS: Final = "ptir"
"""What tables call this side."""
UNSTEADY: Final = 1.5
"""How many times as fast the fastest round of a side may be as its slowest, before it is told."""


def bench_result(model: Model, pair: Pair | None, asked: Asked) -> Result:
    """How fast the model is, in turns with the peer."""
    from ptir.cli.eval_timings import timings
    from ptir.peers.workloads import alternating

    rows: list[list[Cell]] = []
    told: list[dict[str, Any]] = []
    drawn: dict[str, list[dict[str, Any]]] = {}
    records: list[dict[str, Any]] = []
    unit = ""
    for timing in timings(model, pair, asked):
        test, count, unit = timing.test, timing.count, timing.unit
        calls = {OURS: timing.ours}
        if timing.theirs is not None:
            calls[str(asked.against)] = timing.theirs
        with model.policies():
            seconds = alternating(calls, asked.rounds)
        speeds = {side: [count / one for one in every] for side, every in seconds.items()}
        ratios = _ratios(speeds)
        for side, every in speeds.items():
            median = statistics.median(every)
            spread = f"{min(every):.1f} to {max(every):.1f}"
            ratio = statistics.median(ratios) if ratios and side == OURS else None
            range_ = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios and side == OURS else ""
            rows.append([test, side, median, spread, ratio, range_])
            bar = {"name": side, "value": median, "low": min(every), "high": max(every)}
            drawn.setdefault(test, []).append(bar)
        records += [
            {"test": test, "side": side, "round": number, "unit": unit, "speed": speed}
            for side, every in speeds.items()
            for number, speed in enumerate(every, 1)
        ]
        told.append({"test": test, "unit": unit, "speeds": speeds, "ratios": ratios})
    summary = [f"medians of {asked.rounds} rounds" + (", side by side in turns" if pair else "")]
    summary += unsteady(told)
    title = f"{asked.model}: speed" + (f" beside {asked.against}" if pair else "")
    beside = (Column("times as fast", ".2f"), Column("in rounds"))
    if pair is None:
        rows = [row[:4] for row in rows]
    return Result(
        title=title,
        columns=[
            Column("test"),
            Column("side"),
            Column(unit, ".1f"),
            Column("spread"),
            *(beside if pair else ()),
        ],
        rows=rows,
        value={**about(model, pair, asked), "rounds": asked.rounds, "rows": told},
        facts=facts_of(model, pair, asked),
        summary=summary,
        bars=drawn,
        unit=unit,
        records=records,
    )


def unsteady(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to make of speeds that are far apart in rounds."""
    shaken = [
        f"{test['test']} of {side}"
        for test in tests
        for side, speeds in test["speeds"].items()
        if max(speeds) > UNSTEADY * min(speeds)
    ]
    if not shaken:
        return []
    return [
        f"{' and '.join(shaken)}: rounds are more than {UNSTEADY:g} times apart, so something else"
        " runs on these processors; measure again, or with --threads 1"
    ]


def _ratios(speeds: Mapping[str, Sequence[float]]) -> list[float]:
    """How many times as fast ours was in each round; none where it is alone."""
    others = [every for side, every in speeds.items() if side != OURS]
    return [a / b for a, b in zip(speeds[OURS], others[0], strict=True)] if others else []


def perplexity_result(model: Model, pair: Pair | None, asked: Asked) -> Result:
    """How well the model, and the peer, predict a text."""
    from ptir.peers.workloads import likelihoods
    from ptir.runtime.likelihood import perplexity, perplexity_by

    model.require("generate")
    file = Path(asked.inputs[0])
    text = _text(file)
    with progress("windows", streaming(model)) as report:
        found = perplexity(model, text, window=asked.window, stride=asked.stride, progress=report)
    weights = asked.formats.weights(model)
    value = {**about(model, pair, asked), "file": str(file), **_numbers(found)}
    rows: list[list[Cell]] = [[asked.model, weights, *_cells(found)]]
    records = [{"model": asked.model, "weights": weights, **_numbers(found)}]
    summary: list[str] = []
    if pair is not None:
        scorer = likelihoods(pair)
        with progress(f"windows of {asked.against}", None) as report:
            other = perplexity_by(scorer, model, text, asked.window, asked.stride, report)
        rows.append([str(asked.against), "f32", *_cells(other)])
        records.append({"model": str(asked.against), "weights": "f32", **_numbers(other)})
        apart = found.nll - other.nll
        value["theirs"] = _numbers(other)
        value["nll_difference"] = apart
        summary = [f"ours is {apart:+.2g} nats a token from {asked.against}'s"]
    titles = ("model", "weights", "tokens", "nll", "perplexity", "tok/s")
    return Result(
        title=f"{asked.model}: perplexity of {file.name}",
        columns=[*map(Column, titles)],
        rows=rows,
        records=records,
        value=value,
        facts=facts_of(model, pair, asked),
        summary=summary,
    )


def _text(file: Path) -> str:
    """The text of a file; raises ``UsageError`` for one that is empty or not UTF-8."""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8 text: {error}; convert it to UTF-8") from error
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from error
    if not text:
        raise UsageError(f"{file}: is empty; a text of two tokens at least is needed")
    return text


def _numbers(found: Perplexity) -> dict[str, Any]:
    """The fields of a measurement for ``--json``, where what is too large for a float is null."""
    derived = ("perplexity", "perplexity_error", "tokens_per_second")
    every = {**asdict(found), **{name: getattr(found, name) for name in derived}}
    return {k: None if isinstance(v, float) and math.isinf(v) else v for k, v in every.items()}


def _cells(found: Perplexity) -> tuple[str, ...]:
    nll, value = f"{found.nll:.4f}", f"{found.perplexity:.4f}"
    if found.standard_error is not None:
        nll, value = (
            f"{nll} ± {found.standard_error:.4f}",
            f"{value} ± {found.perplexity_error:.4f}",
        )
    counted = f"{found.counted} of {found.text_tokens}"
    return counted, nll, value, f"{found.tokens_per_second:.1f}"


def accuracy_result(model: Model, pair: Pair | None, asked: Asked) -> Result:
    """How many inputs get their right class, by the model and by the peer."""
    from ptir.peers.workloads import answers
    from ptir.runtime.image_model import ImageTextModel

    model.require("classify")
    if isinstance(model, ImageTextModel):
        raise UnsupportedError(
            f"model {asked.model!r} has no classes of its own, so that no answer of it is right;"
            " `ptir classify --label` ranks texts by it"
        )
    if not asked.inputs and not asked.files:
        raise click.UsageError("give texts or image files, of which --truth says the classes")
    labels = cast("ImageModel", model).labels
    inputs = inputs_of(model, asked)
    assert asked.truth is not None  # as ``Asked.check`` has it
    truth = truth_of(asked.truth, len(inputs), labels)
    found = answers(model, pair, inputs, truth)
    sides: list[tuple[str, int, int | None]] = [(OURS, found.ours, found.ours_in_five)]
    if found.theirs is not None:
        sides.append((str(asked.against), found.theirs, found.theirs_in_five))
    five = found.ours_in_five is not None
    rows: list[list[Cell]] = [
        [
            side,
            found.count,
            100 * right / found.count,
            *([100 * within / found.count] if within is not None else []),
        ]
        for side, right, within in sides
    ]
    summary = []
    if found.same is not None:
        summary.append(f"both say the same of {found.same} of {found.count} inputs")
    summary += [
        f"{name}: is {labels[t]}; {OURS} says {labels[a]}, {asked.against} {labels[b]}"
        for name, t, a, b in found.differing[:8]
    ]
    return Result(
        title=f"{asked.model}: accuracy" + (f" beside {asked.against}" if pair else ""),
        columns=[
            Column("side"),
            Column("inputs"),
            Column("right %", ".2f"),
            *([Column("in the first five %", ".2f")] if five else []),
        ],
        rows=rows,
        value={**about(model, pair, asked), **asdict(found)},
        facts=facts_of(model, pair, asked),
        summary=summary,
        bars={"Right": [{"name": s, "value": 100 * right / found.count} for s, right, _ in sides]},
        unit="%",
    )
