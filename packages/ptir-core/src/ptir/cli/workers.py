"""``ptir explain --workers``: how a step is partitioned among workers, phase by phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, session
from ptir.cli.model import Formats, open_model
from ptir.partition.costs import SERVER, Costs
from ptir.units import size

if TYPE_CHECKING:
    from ptir.runtime import Model
    from ptir.runtime.workers import PartitionedPhase, PartitionedSection, PartitionedStep

COSTS: Final = {
    name: number for name, number in asdict(SERVER).items() if isinstance(number, float)
}
"""What ``--cost`` changes."""

Command = TypeVar("Command", bound=Callable[..., Any])


def workers_options(command: Command) -> Command:
    """The options that choose how many workers there are and what they cost."""
    listed = ", ".join(f"{name}={value:g}" for name, value in COSTS.items())
    cost = click.option(
        "--cost",
        multiple=True,
        metavar="NAME=NUMBER",
        help=f"A cost of a worker for --workers; repeat for more. By default {listed}.",
    )
    workers = click.option(
        "--workers",
        type=click.IntRange(1),
        help="Show how the step would be partitioned among N workers.",
    )
    return workers(cost(command))


def costs_of(given: tuple[str, ...]) -> Costs:
    """The costs with those given as ``NAME=NUMBER``; raises ``click.UsageError``."""
    values: dict[str, Any] = dict(COSTS)
    for text in given:
        name, _, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if name not in COSTS or not value > 0:
            raise click.UsageError(
                f"--cost {text!r}: write NAME=NUMBER, a number > 0; names: {', '.join(COSTS)}"
            )
        values[name] = value
    return Costs(**values)


def explain_partitioned(
    common: CommonOptions,
    model: str,
    formats: Formats,
    workers: int,
    cost: tuple[str, ...],
    prefill: int | None,
    position: int,
) -> None:
    """Print how a step of ``model`` is partitioned among ``workers``."""
    from ptir.runtime.workers import partition_step

    with session(common):
        loaded = open_model(common, model, formats)
        costs = costs_of(cost)
        report = partition_step(loaded, workers, costs, prefill, position)
    if common.json:
        show.value(_json(loaded, formats.weights(loaded), costs, report))
    else:
        _print(loaded, formats.weights(loaded), report)


def _json(model: Model, dtype: str, costs: Costs, report: PartitionedStep) -> dict[str, Any]:
    return {
        "model": model.name,
        "backend": model.target.backend.name,
        "dtype": dtype,
        "step": report.step,
        "tokens": report.tokens,
        "cache_capacity": report.capacity,
        **facts(report, costs),
    }


def facts(report: PartitionedStep, costs: Costs) -> dict[str, Any]:
    """The phases of a partitioned step as JSON values."""
    return {
        "workers": report.workers,
        "barriers": report.barriers,
        "barriers_per_layer": report.barriers_per_layer,
        "weight_bytes": list(report.weights),
        "costs": asdict(costs),
        "sections": [asdict(section) for section in report.sections],
    }


def _print(model: Model, dtype: str, report: PartitionedStep) -> None:
    from rich.text import Text

    what = "one token" if report.step == "decode" else f"{report.tokens} tokens"
    title = f"{model.name} {dtype}: {report.step}, {what}, cache of {report.capacity}"
    show.rich(Text(f"{title}, partitioned among {report.workers}", style="bold"))
    show.rich(Text())
    phases(report)


def phases(report: PartitionedStep) -> None:
    """Print the table of phases, and what they come to."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("", style="cyan", no_wrap=True)
    grid.add_column("computes", overflow="fold")
    for column in ("weights each", "shares", "from others"):
        grid.add_column(column, justify="right", no_wrap=True)
    for section in report.sections:
        grid.add_row(*(Text(text, style="bold") for text in _heading(section)))
        for number, phase in enumerate(section.phases):
            grid.add_row(*_cells(number, phase))
    show.rich(grid)
    show.rich(Text())
    whole = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    whole.add_column(style="bold", no_wrap=True)
    whole.add_column(overflow="fold")
    for row in _facts(report):
        whole.add_row(*row)
    show.rich(whole)


def _heading(section: PartitionedSection) -> tuple[str, str]:
    """How many layers, and which."""
    if not section.layers:
        return "once", "outside the layers"
    first, last = section.layers[0], section.layers[-1]
    return f"{section.count} ×", first if first == last else f"{first} … {last}"


def _cells(number: int, phase: PartitionedPhase) -> Iterator[str]:
    yield f"  phase {number + 1}"
    yield ", ".join(phase.computes)
    yield size(max(phase.weights))
    yield shares(phase.weights)
    yield size(max(phase.received))


LISTED: Final = 8
"""Workers up to which each one's share is listed; of more, the least and the most are."""


def shares(weights: tuple[int, ...]) -> str:
    """Each worker's share of the bytes: ``50.0 | 50.0%``; nothing where there are none."""
    total = sum(weights)
    if not total:
        return ""
    one_by_one = len(weights) <= LISTED
    shown = weights if one_by_one else (min(weights), max(weights))
    return (" | " if one_by_one else " to ").join(f"{100 * n / total:.1f}" for n in shown) + "%"


def _each(weights: tuple[int, ...]) -> str:
    """The bytes of each worker."""
    if len(weights) <= LISTED:
        return ", ".join(size(one) or "0 B" for one in weights)
    return f"{size(min(weights)) or '0 B'} to {size(max(weights)) or '0 B'}"


def _facts(report: PartitionedStep) -> Iterator[tuple[str, str]]:
    layered = f", {report.barriers_per_layer} a layer" if report.barriers_per_layer else ""
    yield "barriers", f"{report.barriers}{layered}, and all wait for each other at the end"
    each = f"{_each(report.weights)} for each of {report.workers} workers"
    yield "weights", f"{each}, which is {shares(report.weights)}"
