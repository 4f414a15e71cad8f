"""The workloads of ``ptir eval``, as results to be shown."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click

from ptir.cli.compared import as_json
from ptir.cli.eval_options import Asked, inputs_of, noise, truth_of
from ptir.cli.eval_tables import Cell, Column, Result
from ptir.cli.model import streaming
from ptir.cli.progress import progress
from ptir.errors import UnsupportedError, UsageError
from ptir.switches import THREADS

if TYPE_CHECKING:
    from ptir.cli.common import CommonOptions
    from ptir.peers.subject import Pair
    from ptir.peers.workloads import Input, OutputRow
    from ptir.runtime import Model, Perplexity, TextModel
    from ptir.runtime.image_model import ImageModel

OURS: Final = "ptir"
OFF: Final = (Column("differing"), Column("max abs", ".3g"), Column("relative", ".2g"),
              Column("ulps", ".3g"))  # fmt: skip


def compared(common: CommonOptions, model: Model, asked: Asked) -> Result:
    """Run the workload that was asked for, beside the peer where one was."""
    run = RUNS[asked.workload]
    if asked.against is None:
        return run(model, None, asked)
    from ptir.cli import show
    from ptir.peers.process import library
    from ptir.peers.subject import paired
    from ptir.runtime.specs import resolve

    checkpoint = resolve(asked.model, seed=common.seed or 0)
    given = os.environ.get(THREADS)
    with paired(model, checkpoint, library(asked.against), int(given) if given else None) as pair:
        show.note(f"beside {_peer(pair)}")
        return run(model, pair, asked)


def _peer(pair: Pair) -> str:
    facts = pair.peer.facts
    versions = ", ".join(f"{name} {one}" for name, one in facts.items() if name in _VERSIONS)
    threads = int(facts["threads"])
    return f"{facts['class']} of {versions}, {threads} thread{'s' * (threads > 1)}"


_VERSIONS: Final = ("transformers", "torch")


def _about(model: Model, pair: Pair | None, asked: Asked) -> dict[str, Any]:
    """What every workload says of the two sides, for programs."""
    target = model.target
    said = {
        "workload": asked.workload,
        "model": asked.model,
        "backend": target.backend.name,
        "device": target.device.name,
        **asked.formats.given(),
    }
    return said if pair is None else {**said, "against": dict(pair.peer.facts)}


def _facts(model: Model, pair: Pair | None, asked: Asked) -> list[tuple[str, str]]:
    target = model.target
    rows = [
        ("ran on", f"{target.backend.name}:{target.device.index} {target.device.name}"),
        ("weights", asked.formats.weights(model)),
    ]
    return rows if pair is None else [*rows, ("beside", _peer(pair))]


def _validate(model: Model, pair: Pair | None, asked: Asked) -> Result:
    from ptir.debug import Tolerance
    from ptir.peers.workloads import validate

    assert pair is not None  # the workload compares
    inputs = inputs_of(model, asked)
    found = [*validate(pair, inputs, Tolerance(asked.tolerance), asked.n_gen)]
    greedy = any(row.greedy is not None for row in found)
    columns = [Column("input"), *OFF, Column("best agree")]
    columns += [Column("tokens agree")] if greedy else []
    rows = [_output_cells(row, greedy) for row in found]
    wrong = [row for row in found if not row.right]
    close = [row for row in found if row.right and row.greedy and row.greedy.ahead is not None]
    summary = [
        f"{row.name}: token {row.greedy.same} differs, where the peer's best was ahead of its"
        f" second by {row.greedy.ahead:.1g} of the largest logit: a close call"
        for row in close
        if row.greedy is not None and row.greedy.ahead is not None
    ]
    right = f"{len(found) - len(wrong)} of {len(found)} outputs are right"
    return Result(
        title=f"{asked.model}: outputs beside {asked.against}",
        columns=[*columns, Column("")],
        rows=rows,
        value={
            **_about(model, pair, asked),
            "right": not wrong,
            "outputs": [_output_json(row) for row in found],
        },
        facts=[*_facts(model, pair, asked), ("outputs", right)],
        summary=summary,
        wrong=_wrong_output(wrong[0], asked) if wrong else None,
    )


def _output_cells(row: OutputRow, greedy: bool) -> list[Cell]:
    one = row.found
    cells: list[Cell] = [row.name, f"{one.differing} of {one.elements}", row.distance]
    cells += [one.relative, one.ulps, f"{row.best} of {row.rows}"]
    if greedy:
        made = row.greedy
        cells.append("" if made is None else f"{made.same} of {len(made.ours)}")
    return [*cells, "right" if row.right else "wrong"]


def _output_json(row: OutputRow) -> dict[str, Any]:
    found = {
        "name": row.name,
        "right": row.right,
        **as_json(row.found),
        "max_abs": row.distance,
        "best_agree": row.best,
        "best_of": row.rows,
    }
    return found if row.greedy is None else {**found, "greedy": asdict(row.greedy)}


def _wrong_output(row: OutputRow, asked: Asked) -> str:
    trace = f"`ptir eval {asked.model} --workload trace --against {asked.against}`"
    if row.greedy is not None and row.greedy.ahead is not None:
        return (
            f"{row.name}: token {row.greedy.same} differs from {asked.against}'s, and the output"
            f" is off by {row.found.relative:.2g} of the largest; {trace} finds the layer"
        )
    return (
        f"{row.name}: the output is off by {row.found.relative:.2g} of the largest, by"
        f" {asked.against}; {trace} finds the layer"
    )


def _trace(model: Model, pair: Pair | None, asked: Asked) -> Result:
    from ptir.debug import Tolerance
    from ptir.peers.workloads import trace

    assert pair is not None  # the workload compares
    inputs = inputs_of(model, asked)
    if len(inputs) > 1:
        raise UsageError(f"trace looks at one input, and there are {len(inputs)}; give one")
    found = trace(pair, inputs[0], Tolerance(asked.tolerance))
    first = found.first_wrong
    rows: list[list[Cell]] = [
        [
            row.name,
            " + ".join(row.theirs),
            f"{row.found.differing} of {row.found.elements}",
            abs(row.found.got - row.found.wanted),
            row.found.relative,
            row.found.ulps,
            "right" if row.right else "wrong",
        ]
        for row in found.rows
    ]
    alone = f"{len(found.rows)} of {len(found.rows) + len(found.alone)} layers are compared"
    if found.alone:
        alone += f"; the peer has no such module for {_some(found.alone)}"
    layers = [{"name": r.name, "theirs": r.theirs, "right": r.right, **as_json(r.found)}
              for r in found.rows]  # fmt: skip
    return Result(
        title=f"{asked.model}: layers beside {asked.against}",
        columns=[Column("layer"), Column(f"in {asked.against}"), *OFF, Column("")],
        rows=rows,
        value={
            **_about(model, pair, asked),
            "input": inputs[0].name,
            "right": first is None,
            "first_wrong": first.name if first else None,
            "layers": layers,
            "not_compared": [*found.alone],
        },
        facts=[*_facts(model, pair, asked), ("first wrong", first.name if first else "none")],
        summary=[alone],
        wrong=None
        if first is None
        else f"{model.target} is wrong in {first.name}: {first.found.relative:.2g} of the largest,"
        f" by {asked.against}'s {' + '.join(first.theirs)}",
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _bench(model: Model, pair: Pair | None, asked: Asked) -> Result:
    from ptir.peers.workloads import alternating

    rows: list[list[Cell]] = []
    told: list[dict[str, Any]] = []
    drawn: list[dict[str, Any]] = []
    unit = ""
    for test, count, unit, calls in _timings(model, pair, asked):
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
            name = f"{test} {side}"
            drawn.append({"name": name, "value": median, "low": min(every), "high": max(every)})
        told.append({"test": test, "unit": unit, "speeds": speeds, "ratios": ratios})
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
        ],  # fmt: skip
        rows=rows,
        value={**_about(model, pair, asked), "rounds": asked.rounds, "rows": told},
        facts=_facts(model, pair, asked),
        summary=[f"medians of {asked.rounds} rounds" + (", side by side in turns" if pair else "")],
        bars=drawn,
        unit=unit,
    )


def _ratios(speeds: Mapping[str, Sequence[float]]) -> list[float]:
    """How many times as fast ours was in each round; none where it is alone."""
    others = [every for side, every in speeds.items() if side != OURS]
    return [a / b for a, b in zip(speeds[OURS], others[0], strict=True)] if others else []


Calls = dict[str, Callable[[], float]]


def _timings(model: Model, pair: Pair | None, asked: Asked) -> list[tuple[str, int, str, Calls]]:
    """What is timed: its name, what a call gets done and in which unit, and the calls."""
    import numpy as np

    if "generate" not in model.capabilities:
        if model.reads_texts:
            length = min(asked.n_prompt, cast("TextModel", model).limit)
            size = int(model.checkpoint.config["vocab_size"])
            drawn = np.random.default_rng(0).integers(0, size, (asked.batch, length))
            given, done, unit = drawn.astype(np.int32), drawn.size, "tok/s"
            test = f"{asked.batch} x {length} tokens"
        else:
            given = noise(cast("ImageModel", model), asked.batch)
            done, unit = asked.batch, "images/s"
            test = f"{asked.batch} x {given.shape[1]} x {given.shape[2]} pixels"
        calls: Calls = {OURS: lambda: _timed(lambda: model.forward(given))}
        if pair is not None:
            calls[str(asked.against)] = lambda: pair.peer.seconds("run", given)
        return [(test, done, unit, calls)]
    from ptir.cli.bench import Bench

    prompt, new = asked.n_prompt, asked.n_gen
    if max(prompt, new + 1) > model.context:
        raise click.UsageError(f"-p {prompt} -n {new} do not fit the context of {model.context}")
    if asked.batch > 1:
        raise click.UsageError("--batch is for images and encoders; one text generates at a time")
    bench = Bench(model)
    ids = np.asarray(bench.tokens, np.int32)
    found: list[tuple[str, int, str, Calls]] = []
    reads: Calls = {OURS: lambda: bench.prefill(prompt)}
    writes: Calls = {OURS: lambda: bench.decode(new)}
    if pair is not None:
        reads[str(asked.against)] = lambda: pair.peer.seconds("prefill", ids[:prompt])
        writes[str(asked.against)] = lambda: pair.peer.seconds("decode", ids[:1], new)
    found.append((f"pp{prompt}", prompt, "tok/s", reads))
    if new:
        found.append((f"tg{new}", new, "tok/s", writes))
    return found


def _timed(work: Callable[[], object]) -> float:
    import time

    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _perplexity(model: Model, pair: Pair | None, asked: Asked) -> Result:
    from ptir.peers.workloads import likelihoods
    from ptir.runtime.likelihood import perplexity, perplexity_by

    model.require("generate")
    file = Path(asked.inputs[0])
    text = _text(file)
    with progress("windows", streaming(model)) as report:
        found = perplexity(model, text, window=asked.window, stride=asked.stride, progress=report)
    weights = asked.formats.weights(model)
    value = {**_about(model, pair, asked), "file": str(file), **_numbers(found)}
    rows: list[list[Cell]] = [[asked.model, weights, *_cells(found)]]
    summary: list[str] = []
    if pair is not None:
        scorer = likelihoods(pair)
        with progress(f"windows of {asked.against}", None) as report:
            other = perplexity_by(scorer, model, text, asked.window, asked.stride, report)
        rows.append([str(asked.against), "f32", *_cells(other)])
        apart = found.nll - other.nll
        value["theirs"] = _numbers(other)
        value["nll_difference"] = apart
        summary = [f"ours is {apart:+.2g} nats a token from {asked.against}'s"]
    titles = ("model", "weights", "tokens", "nll", "perplexity", "tok/s")
    return Result(
        title=f"{asked.model}: perplexity of {file.name}",
        columns=[*map(Column, titles)],
        rows=rows,
        value=value,
        facts=_facts(model, pair, asked),
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


def _accuracy(model: Model, pair: Pair | None, asked: Asked) -> Result:
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
        [side, found.count, right / found.count, *([within / found.count] if within is not None
         else [])] for side, right, within in sides
    ]  # fmt: skip
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
            Column("right", ".2%"),
            *([Column("in the first five", ".2%")] if five else []),
        ],  # fmt: skip
        rows=rows,
        value={**_about(model, pair, asked), **asdict(found)},
        facts=_facts(model, pair, asked),
        summary=summary,
        bars=[{"name": side, "value": 100 * right / found.count} for side, right, _ in sides],
        unit="% right",
    )


RUNS: Final[dict[str, Callable[[Model, Pair | None, Asked], Result]]] = {
    "perplexity": _perplexity,
    "accuracy": _accuracy,
    "bench": _bench,
    "validate": _validate,
    "trace": _trace,
}
"""What runs each of ``WORKLOADS``."""
