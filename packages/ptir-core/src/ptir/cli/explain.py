"""``ptir explain``: what one step of a model does on a backend, layer by layer.

Kernels with what is fused into each, the bytes that each moves, how long each takes, the memory
that the step needs, and whether anything ran elsewhere. Equal layers are shown once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ptir.cli import show
from ptir.cli.common import CommonOptions, common_options, session
from ptir.cli.model import (
    Formats,
    format_options,
    model_argument,
    open_model,
)
from ptir.cli.workers import LISTED, explain_partitioned, facts, phases, workers_options
from ptir.partition.costs import SERVER
from ptir.units import duration, size

if TYPE_CHECKING:
    from rich.table import Table

    from ptir.params.residency import ResidencySchedule
    from ptir.params.rows import Rows
    from ptir.runtime import Model
    from ptir.runtime.explain import Step, StepReport, Streamed
    from ptir.runtime.kinds import Sizes
    from ptir.runtime.layers import LayerPart, Section
    from ptir.runtime.tune import Chosen
    from ptir.runtime.workers import PartitionedStep


@click.command()
@model_argument
@click.option(
    "--prefill",
    type=click.IntRange(1),
    help="Explain a prompt of N tokens instead; of an encoder, texts of N tokens each.",
)
@click.option(
    "--position",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Tokens that are in the cache before a decode step.",
)
@click.option("--encoder", is_flag=True, help="Of a model of speech: explain hearing a window.")
@click.option("--folded", is_flag=True, help="Show what is computed once, from parameters alone.")
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Images, texts or windows of speech of a run, of a model that takes them.",
)
@click.option("-r", "--repetitions", type=click.IntRange(1), default=5, show_default=True)
@workers_options
@format_options
@common_options
def command(
    common: CommonOptions,
    model: str,
    prefill: int | None,
    position: int,
    encoder: bool,
    folded: bool,
    batch: int,
    repetitions: int,
    workers: int | None,
    cost: tuple[str, ...],
    formats: Formats,
) -> None:
    """Show what a decode step of MODEL runs: kernels, bytes and time by layer.

    The step is run: its launches, and what ran elsewhere, are counted. The time of a part is taken
    alone, with waiting for it, so that all parts take longer together than the step does.

    Where the device's threads can share a step as workers, how they would is shown below: the
    phases, the barriers between them, and what each worker reads. With --workers nothing is run,
    and that is shown for so many workers and the costs given. With --folded nothing is run either:
    every parameter that is computed from others before the first step is shown, with its id.
    """
    from ptir.runtime.explain import explained
    from ptir.runtime.kinds import Sizes
    from ptir.runtime.workers import partition_step

    if workers is None and cost:
        raise click.UsageError("--cost is about sharing; give --workers too")
    if workers is not None:
        explain_partitioned(common, model, formats, workers, cost, prefill, position)
        return
    sizes = Sizes(position, prefill, encoder, batch, 0 if folded else repetitions)
    if folded:
        _explain_folded(common, model, formats, sizes)
        return
    with session(common):
        loaded = open_model(common, model, formats, needs="trace")
        step = step_of(loaded, sizes)
        with loaded.policies():
            report = explained(loaded, step, repetitions)
        chosen = _chosen(loaded, report)
        by_workers, count = None, report.explanation.workers
        if 1 < count <= LISTED and "generate" in loaded.capabilities:
            by_workers = partition_step(loaded, count, SERVER, prefill, position)
    if common.json:
        value = _json(loaded, formats.weights(loaded), report, by_workers)
        chosen_json = [asdict(one) for one in chosen]
        show.value({**value, "formats": formats.chosen(loaded), "implementations": chosen_json})
        return
    _print(loaded, formats.weights(loaded), report)
    if chosen:
        show.rich("")
        show.table(
            ("implementation of", "is", "because of"),
            [(one.functional, one.implementation, one.reason) for one in chosen],
        )
    if count > 1:
        show.rich("")
        show.rich(f"by {count} workers ({report.explanation.sharing})")
    if by_workers is not None:
        show.rich("")
        phases(by_workers)
    elif count > 1 and "generate" in loaded.capabilities:
        show.rich(f"their phases: ptir explain {model} --workers {count}")


def _chosen(model: Model, report: StepReport) -> list[Chosen]:
    """What overrides made of the step's calls; nothing where none are in force."""
    from ptir.ops.overriding import active_overrides

    with model.policies():
        asked = {one.functional for one in active_overrides()}
        if not asked:
            return []
        from ptir.runtime.tune import choices

        found = dict.fromkeys(choices(report.captured().program, model))
        return [one for one in found if one.functional in asked]


def step_of(model: Model, sizes: Sizes) -> Step:
    """The step that is meant; raises ``click.UsageError`` for an encoder that is all of a model."""
    from ptir.runtime.kinds import kind_of

    if sizes.encoder and "transcribe" not in model.capabilities:
        raise click.UsageError(f"--encoder is for models of speech; leave it out for {model.name}")
    return kind_of(model).step(model, sizes)


def _explain_folded(common: CommonOptions, model: str, formats: Formats, sizes: Sizes) -> None:
    from ptir.cli.folded import folded, print_folded

    with session(common):
        loaded = open_model(common, model, formats, needs="trace")
        records = folded(loaded, step_of(loaded, sizes))
    if common.json:
        show.value(records)
    else:
        print_folded(records)


# --- JSON ---


def _json(
    model: Model, dtype: str, report: StepReport, by_workers: PartitionedStep | None
) -> dict[str, Any]:
    moved = _moved(report)
    return {
        "model": model.name,
        "backend": model.target.backend.name,
        "device": model.target.device.name,
        "dtype": dtype,
        "step": report.step,
        "rows": report.rows,
        "tokens": report.tokens,
        "position": report.position,
        "cache_capacity": report.capacity,
        "kernels": report.kernels,
        "kernels_per_layer": kernels_per_layer(report),
        "parts": len(report.explanation.parts),
        "bytes": asdict(moved) | {"total": moved.total},
        "arena_bytes": report.explanation.arena_bytes,
        "sharing": report.explanation.sharing,
        "shared": facts(by_workers, SERVER) if by_workers else None,
        "peak_memory_bytes": report.memory.peak_bytes if report.memory else None,
        "parameter_bytes": report.resident,
        "cache_bytes": report.cache,
        "window_caches": [
            {"places": places, "layers": layers} for places, layers in report.windows.items()
        ],
        "packed": asdict(report.packed),
        **({"streamed": _streamed_json(report.streamed)} if report.streamed else {}),
        "ops_elsewhere": ops_elsewhere(report),
        "unaccounted_ops": list(report.elsewhere),
        "counted": asdict(report.counted),
        "seconds": report.seconds,
        "sections": [
            {"layers": list(s.layers), "parts": [_work_json(work) for work in s.works]}
            for s in report.sections
        ],
    }


def _streamed_json(streamed: Streamed) -> dict[str, Any]:
    """The schedule, what a step reads of it, and what was counted."""
    schedule = streamed.schedule
    return {
        "budget_bytes": streamed.budget,
        "room_bytes": schedule.room,
        "read_bytes_per_run": schedule.read,
        "resident_bytes_at_most": streamed.resident,
        "fetched_bytes": streamed.fetched,
        "fetches": dict(streamed.reads),
        "bytes": dict(schedule.sizes),
        "rows": {name: _rows_json(*of) for name, of in streamed.rows.items()},
        "stages": [asdict(stage) for stage in schedule.stages],
    }


def _rows_json(stored: tuple[str, ...], rows: Rows) -> dict[str, Any]:
    first, end, count = rows.outputs
    return {"parameters": list(stored), "first": first, "end": end, "of": count}


def _work_json(work: LayerPart) -> dict[str, Any]:
    from ptir.ir.jsonform import location_json

    bytes_moved = asdict(work.moved) | {"total": work.moved.total}
    places = [location_json(location) for location in work.locations]
    return asdict(work) | {"moved": bytes_moved, "locations": places}


def ops_elsewhere(report: StepReport) -> int:
    """Ops that did not run on the device: counted by the backend, or in no part of the run."""
    return report.counted.host_fallback_ops + len(report.elsewhere)


def kernels_per_layer(report: StepReport) -> int:
    """Kernels of the layer that has most."""
    layers = [s for s in report.sections if s.layers]
    return max((sum(w.kind == "kernel" for w in s.works) for s in layers), default=0)


def _moved(report: StepReport) -> Any:
    from ptir.runtime.layers import Traffic

    works = (work.moved for s in report.sections for work in s.works for _ in range(s.count))
    return sum(works, Traffic())


# --- for people ---

WIDE = 100
"""Columns from which there is room for the parameters, and for the cache apart from the rest."""


def _print(model: Model, dtype: str, report: StepReport) -> None:
    from rich.table import Table
    from rich.text import Text

    where = model.target
    show.rich(Text(_title(model, dtype, report), style="bold"))
    show.rich(Text(f"{where.backend.name}:{where.device.index} {where.device.name}", style="dim"))
    show.rich(Text())
    show.rich(_parts(report, wide=show.width() >= WIDE))
    show.rich(Text())
    whole = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    whole.add_column(style="bold", no_wrap=True)
    whole.add_column(overflow="fold")
    for name, said in _facts(report):
        whole.add_row(name, said)
    show.rich(whole)
    if report.streamed is not None:
        show.rich(Text())
        show.rich(_stages(report.streamed.schedule))


def _stages(schedule: ResidencySchedule) -> Table:
    """The table of stages: what must be resident for each, what is fetched meanwhile, what goes."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("stage", style="cyan", no_wrap=True)
    for column in ("launches", "reads", "waits for", "fetches", "drops", "resident"):
        grid.add_column(column, justify="right", no_wrap=True)
    for number, stage in enumerate(schedule.stages):
        moved = (stage.needed, stage.late, stage.fetched, stage.dropped)
        sizes = (size(sum(schedule.sizes[name] for name in names)) for names in moved)
        launches = f"{stage.first}-{stage.end - 1}"
        grid.add_row(str(number), launches, *sizes, size(stage.resident))
    return grid


def _parts(report: StepReport, *, wide: bool) -> Table:
    """The table of parts: one line each, under a line for their layers."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0))
    grid.add_column("", style="cyan", no_wrap=True)
    grid.add_column("computes", overflow="fold")
    if wide:
        grid.add_column("with", style="dim", overflow="fold")
    sizes = ("weights", "cache", "other") if wide else ("weights", "other")
    for column in (*sizes, "time", "share", "GB/s"):
        grid.add_column(column, justify="right", no_wrap=True)
    whole = _one_by_one(report)
    schedules = {work.schedule for section in report.sections for work in section.works}
    for section in report.sections:
        heading = (Text(text, style="bold") for text in _heading(section))
        grid.add_row(*heading)
        for work in section.works:
            grid.add_row(*_cells(work, section.count, whole, wide, schedules))
    return grid


def _one_by_one(report: StepReport) -> float:
    """The seconds of all parts, each waited for."""
    return sum((w.seconds or 0.0) * s.count for s in report.sections for w in s.works)


def _title(model: Model, dtype: str, report: StepReport) -> str:
    what = step_title(report)
    if not report.capacity:
        return f"{model.name} {dtype}: {what}"
    windows = "".join(
        f", {places} in {layers} layer{'s' * (layers > 1)} with a window"
        for places, layers in report.windows.items()
    )
    return f"{model.name} {dtype}: {report.step}, {what}, cache of {report.capacity}{windows}"


def step_title(report: StepReport) -> str:
    """What a step computes, in words."""
    rows, several = report.rows, "s" * (report.rows > 1)
    if report.step == "images":
        return f"{rows} image{several}"
    if report.step == "windows":
        return f"{rows} window{several} of speech"
    if report.step == "texts":
        return f"texts of {report.tokens} tokens together"
    of_each = f" of each of {rows} windows" if rows > 1 else ""
    if report.step == "decode":
        return f"one token at position {report.position}{of_each}"
    return f"{report.tokens // rows} tokens{of_each}"


def _heading(section: Section) -> tuple[str, str]:
    """How many layers, and which."""
    if not section.layers:
        return "once", "outside the layers"
    first, last = section.layers[0], section.layers[-1]
    return f"{section.count} ×", first if first == last else f"{first} … {last}"


def _cells(
    work: LayerPart, count: int, whole: float, wide: bool, schedules: Collection[str]
) -> Iterator[str]:
    """A row. Schedules are named where kernels are work-groups, those of others included."""
    yield f"  {work.name} {work.schedule}" if "coop" in schedules else f"  {work.name}"
    yield "" if work.fused == (work.name,) else ", ".join(dict.fromkeys(work.fused))
    if wide:
        yield " ".join(dict.fromkeys(map(_layer_name, work.parameters)))
    yield size(work.moved.weights)
    if wide:
        yield size(work.moved.cache)
    yield size(work.moved.other + (0 if wide else work.moved.cache))
    if work.seconds is None:
        yield from ("", "", "")
        return
    yield duration(work.seconds)
    yield f"{work.seconds * count / whole:.0%}"
    rate = work.moved.total / work.seconds / 1e9
    yield f"{rate:.1f}" if work.moved.total >= TELLING else ""


TELLING = 1 << 18
"""Bytes from which a rate says something."""


def _layer_name(parameter: str) -> str:
    """``attn.c_attn`` of ``attn.c_attn.weight`` and of ``attn.c_attn.weight:int4.words``."""
    stem = parameter.partition(":")[0]
    return stem.rpartition(".")[0] or stem


def _facts(report: StepReport) -> Iterator[tuple[str, str]]:
    moved, counted = _moved(report), report.counted
    yield "runs", _runs(report)
    yield (
        "moves",
        f"{size(moved.total)}: weights {size(moved.weights)},"
        f" cache at most {size(moved.cache) or '0 B'}, other {size(moved.other)}",
    )
    rate = moved.total / report.seconds / 1e9
    alone = f"its parts one by one {duration(_one_by_one(report))}"
    if report.streamed is not None:
        alone = "its parts are not timed, because weights come and go between them"
    yield "takes", f"{duration(report.seconds)}, which is {rate:.1f} GB/s; {alone}"
    yield "memory", _memory(report)
    if report.streamed is not None:
        yield "streams", _streams(report.streamed)
        for said in _cuts(report.streamed):
            yield "", said
    packed = report.packed
    if packed.count:
        held = f"{packed.count} parameters, {size(packed.nbytes)}"
        yield "packed", f"{held}, computed from stored ones when they load"
    yield (
        "elsewhere",
        f"{ops_elsewhere(report)} ops; {counted.host_syncs} host syncs,"
        f" {size(counted.bytes_uploaded) or '0 B'} to the device,"
        f" {size(counted.bytes_downloaded) or '0 B'} back",
    )


def _streams(streamed: Streamed) -> str:
    schedule = streamed.schedule
    return (
        f"{size(schedule.read) or '0 B'} of {size(sum(schedule.sizes.values()))} of weights are"
        f" fetched for each step, in {len(schedule.stages)} stages; at most"
        f" {size(streamed.resident)} were resident of {size(streamed.budget)} in all"
    )


def _cuts(streamed: Streamed) -> Iterator[str]:
    """Which weights are read by rows."""
    runs: dict[tuple[str, ...], list[Rows]] = {}
    for stored, rows in streamed.rows.values():
        runs.setdefault(stored, []).append(rows)
    for stored, cut in runs.items():
        first, end, count = cut[0].outputs
        yield (
            f"{' + '.join(stored)} is cut into {len(cut)} runs of {end - first} rows, of {count}"
        )


def _runs(report: StepReport) -> str:
    parts, counted = report.explanation.parts, report.counted.kernels_launched
    if not report.kernels:
        return f"{len(parts)} ops one by one; {counted} launches counted"
    copies = sum(part.kind == "copy" for part in parts)
    return (
        f"{report.kernels} kernels, {kernels_per_layer(report)} in a layer, and {copies} copies;"
        f" {counted} launches counted, which may run several kernels each"
    )


def _memory(report: StepReport) -> str:
    arena = report.explanation.arena_bytes
    held = f"parameters {size(report.resident)}, cache {size(report.cache) or '0 B'}"
    intermediates = "" if arena is None else f", arena {size(arena) or '0 B'}"
    if report.memory is None:
        return f"{held}{intermediates}; the backend counts none"
    peak = report.memory.peak_bytes
    ratio = peak / max(report.resident + report.cache, 1)
    return f"{held}{intermediates}; peak {size(peak)}, {ratio:.2f} × (parameters + cache)"
